"""Does a conversion stay within its memory limit when the volume is four times as large?

Writes one volume as ``.nii.gz`` and as ``.mha``, converts each with ``mla convert --memory 1GB --workers 1``, and prints the
peak resident memory of the converting processes (from the kernel) and whether every voxel is right, by checksum.

    python benchmarks/compare/bounded_memory.py SCRATCH [--gib 4] [--memory 1GB] [--to mla|ome-zarr] [--json FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

PLANE = (1024, 1024)
_PEAK = """
import resource, subprocess, sys
run = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(run.returncode)
"""


def planes(count: int) -> Iterator[np.ndarray]:
    """Yield the planes of an int16 volume with CT-like noise, no two alike."""
    rng = np.random.default_rng(3)
    noise = rng.normal(40, 18, (32, *PLANE)).astype(np.int16)
    for z in range(count):
        yield np.roll(noise[z % 32], (z // 32) * 37, axis=1) + np.int16(z % 97)


def write_sources(folder: Path, count: int) -> tuple[dict[str, Path], str]:
    """Write both files and return them with the checksum of the voxels in C order."""
    import nibabel as nib

    folder.mkdir(parents=True, exist_ok=True)
    paths = {"nii.gz": folder / "volume.nii.gz", "mha": folder / "volume.mha"}
    shape = (count, *PLANE)
    header = nib.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape[::-1])
    header.set_zooms((0.7, 0.7, 1.0))
    header["magic"], header["vox_offset"] = b"n+1", 352
    meta = (
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = False\n"
        f"TransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 0 0 0\nElementSpacing = 0.7 0.7 1\n"
        f"DimSize = {shape[2]} {shape[1]} {shape[0]}\nElementType = MET_SHORT\nElementDataFile = LOCAL\n"
    )
    state = xxhash.xxh3_128()
    with gzip.open(paths["nii.gz"], "wb", compresslevel=1) as packed, paths["mha"].open("wb") as plain:
        packed.write(header.binaryblock + b"\0\0\0\0")
        plain.write(meta.encode())
        for plane in planes(count):
            raw = plane.tobytes()
            packed.write(raw)
            plain.write(raw)
            state.update(raw)
    return paths, state.hexdigest()


def checksum(path: Path) -> str:
    """Return the checksum of all voxels of an output in C order, read by planes."""
    from mlarray import Region
    from mlarray.formats.registry import open_source

    state = xxhash.xxh3_128()
    with open_source(path, mapped=False) as image:
        shape, depth = image.spec.shape, image.chunks[0]
        for z in range(0, shape[0], depth):
            state.update(image.read(Region((z, 0, 0), (min(z + depth, shape[0]), *shape[1:]))).tobytes())
    return state.hexdigest()


def remove(path: Path) -> None:
    """Remove an output, a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--to", choices=["mla", "ome-zarr"], default="mla")
    parser.add_argument("--shards", action="store_true", help="of an OME-Zarr")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count = int(arguments.gib * 2**30 / (PLANE[0] * PLANE[1] * 2))
    paths, expected = write_sources(arguments.scratch, count)
    mla = str(Path(sys.executable).with_name("mla"))
    results = {}
    for kind, path in paths.items():
        output = arguments.scratch / f"{kind}.{'mla' if arguments.to == 'mla' else 'ome.zarr'}"
        remove(output)
        command = [
            mla,
            "convert",
            str(path),
            "-o",
            str(output),
            "--memory",
            arguments.memory,
            "--workers",
            "1",
            "--quiet",
            *(["--shards", "auto"] if arguments.shards else []),
        ]
        began = time.perf_counter()
        # A process of its own around the command: its children's peak is then that of the conversion alone.
        run = subprocess.run([sys.executable, "-c", _PEAK, *command], check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        peak = int(run.stdout.split()[-1]) * 1024
        equal = checksum(output) == expected
        results[kind] = {
            "peak_bytes": peak,
            "seconds": seconds,
            "equal": equal,
            "voxel_bytes": count * PLANE[0] * PLANE[1] * 2,
        }
        print(f"{kind}: peak {peak / 1e9:.3f} GB, {seconds:.0f} s, every voxel equal: {equal}", flush=True)
        remove(output)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    sys.exit(0 if all(result["equal"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
