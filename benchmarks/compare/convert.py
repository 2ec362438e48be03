"""How fast is `mla convert` beside the work it cannot avoid, and beside the converter of mlarray 0.0.x?

Makes volumes of real size (or takes a folder of ``.nii.gz`` files), then measures in one run, interleaved:

- *floor*: decoding each gzip stream with ISA-L and compressing the voxels with blosc2 (same codec, level, filter, chunks and
  blocks), nothing else, in as many processes as the converter uses;
- *mla convert* with its defaults;
- with ``--rival PYTHON``, a loop over ``mlarray_convert`` of that environment (``pip install "mlarray[all]==0.0.54"``).

Prints the ratios with their spread, and JSON with ``--json FILE``. Ratios only: machines are noisy.

    python benchmarks/compare/convert.py SCRATCH [--cases 20] [--repeats 3] [--workers 2] [--rival PYTHON]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

NOISE_HU = 18.0


def volume(shape: tuple[int, int, int], dtype: str, seed: int) -> np.ndarray:
    """Return a CT-like volume: smooth organs in air with noise; int16 as scanned, float32 as resampled and z-scored."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(0, 1, tuple(max(4, n // 16) for n in shape)).astype(np.float32)
    smooth = coarse
    for axis, extent in enumerate(shape):
        position = np.linspace(0, smooth.shape[axis] - 1, extent)
        low = np.minimum(position.astype(int), smooth.shape[axis] - 2)
        weight = (position - low).astype(np.float32).reshape([-1 if i == axis else 1 for i in range(3)])
        smooth = smooth.take(low, axis) * (1 - weight) + smooth.take(low + 1, axis) * weight
    z, y, x = np.ogrid[tuple(slice(-1, 1, complex(n)) for n in shape)]
    inside = (x / 0.8) ** 2 + (y / 0.6) ** 2 + (z / 1.3) ** 2 < 1
    hounsfield = np.where(inside, smooth * 60 + 40, -1000) + rng.normal(0, NOISE_HU, shape).astype(np.float32)
    values = np.clip(hounsfield, -1024, 3071)
    if dtype == "int16":
        return np.rint(values).astype(np.int16)
    return ((values - values.mean()) / values.std()).astype(np.float32)


def make_cases(folder: Path, count: int) -> list[Path]:
    """Write the cases, half int16 and half float32, 200 to 512 voxels a side."""
    import nibabel as nib

    rng = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        path = folder / f"case_{number:02d}.nii.gz"
        dtype = "int16" if number % 2 else "float32"
        shape = (*(int(n) for n in rng.integers(200, 513, 2)), int(rng.integers(200, 320)))
        if not path.exists():
            data = volume(shape[::-1], dtype, number).T
            nib.Nifti1Image(data, np.diag([0.8, 0.8, 1.5, 1.0])).to_filename(path)
        paths.append(path)
    return paths


def floor(path: str) -> tuple[float, float, float]:
    """Decode and compress one case in memory; return both times, and that of the choice of the filter, which is not part."""
    import blosc2
    import nibabel as nib
    from isal import igzip

    from mlarray.layout import layout_for_patch
    from mlarray.storage.filters import choose_filter, sample_region

    header = nib.load(path)
    shape, dtype = header.shape[::-1], header.get_data_dtype()
    began = time.perf_counter()
    with igzip.open(path, "rb") as stream:
        raw = stream.read()
    voxels = np.frombuffer(raw, dtype, offset=int(header.dataobj.offset)).reshape(shape)
    decoded = time.perf_counter()
    layout = layout_for_patch(shape, dtype.itemsize, patch_size=192)
    choosing = time.perf_counter()
    choice = choose_filter(voxels[sample_region(shape, layout.chunks).slices], layout, threads=1)
    chosen = time.perf_counter()
    filters = [blosc2.Filter.SHUFFLE if choice.shuffle else blosc2.Filter.NOFILTER]
    params = blosc2.CParams(codec=blosc2.Codec.LZ4HC, clevel=5, nthreads=1, filters=filters, filters_meta=[0])
    blosc2.asarray(voxels, chunks=layout.chunks, blocks=layout.blocks, cparams=params)
    return decoded - began, time.perf_counter() - chosen, chosen - choosing


def time_floor(paths: list[Path], workers: int) -> float:
    """Return the wall time of the unavoidable work, processes started and warmed up before."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(floor, [str(paths[0])] * workers))
        began = time.perf_counter()
        choosing = sum(took[2] for took in pool.map(floor, [str(path) for path in paths]))
        return time.perf_counter() - began - choosing / workers


def time_command(command: list[str], output: Path) -> float:
    """Return the wall time of a command that writes ``output``, which is removed first and afterwards."""
    shutil.rmtree(output, ignore_errors=True)
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    elapsed = time.perf_counter() - began
    shutil.rmtree(output, ignore_errors=True)
    return elapsed


def time_rival(python: str, paths: list[Path], output: Path) -> float:
    """Return the wall time of looping over the command of 0.0.x."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = str(Path(python).with_name("mlarray_convert"))
    began = time.perf_counter()
    for path in paths:
        subprocess.run(
            [command, str(path), str(output / f"{path.name[:-7]}.mla")], check=True, stdout=subprocess.DEVNULL
        )
    elapsed = time.perf_counter() - began
    shutil.rmtree(output)
    return elapsed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--data", type=Path, help="a folder of .nii.gz files to use instead of making some")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rival", help="python of an environment with mlarray[all]==0.0.54")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.data or arguments.scratch / "cases"
    paths = sorted(folder.glob("*.nii.gz")) if arguments.data else make_cases(folder, arguments.cases)
    output = arguments.scratch / "out"
    mla = [str(Path(sys.executable).with_name("mla")), "convert", str(folder), "-o", str(output)]
    times: dict[str, list[float]] = {"floor": [], "mla": [], "rival": []}
    for _ in range(arguments.repeats):
        times["floor"].append(time_floor(paths, arguments.workers))
        times["mla"].append(time_command([*mla, "--workers", str(arguments.workers), "--quiet"], output))
        if arguments.rival:
            times["rival"].append(time_rival(arguments.rival, paths, output))
        print({name: round(values[-1], 2) for name, values in times.items() if values}, flush=True)
    over_floor = [ours / least for ours, least in zip(times["mla"], times["floor"], strict=True)]
    result = {"cases": len(paths), "over_floor": over_floor, "seconds": times}
    print(f"mla convert / (decode + compress): {_spread(over_floor)}")
    if arguments.rival:
        gain = [theirs / ours for theirs, ours in zip(times["rival"], times["mla"], strict=True)]
        result["rival_over_mla"] = gain
        print(f"mlarray 0.0.54 / mla convert: {_spread(gain)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


def _spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.3f} (from {min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
