"""How fast is a DICOM series converted beside pydicom's reading and decoding of the same files, and in how much memory?

Makes 500 slices of 512 x 512 (CT-like, 12 of 16 bits), or takes a folder, then measures interleaved, each in its own process:

- *pydicom*: ``dcmread(file).pixel_array`` for every file, nothing else;
- *headers*: finding the files, their headers, grouping, through this package;
- *pixels*: every voxel through this package, the headers being known;
- *read*: both;
- *floor*: compressing the same voxels with blosc2 alone as the converter does (LZ4HC 5, SHUFFLE, ``THREADS`` threads), from
  memory to memory: no conversion to ``.mla`` can be faster. *floor-1*: with one thread; *floor-lz4*: with LZ4 1;
- one case converted to each target, from finding the files to the published file: a format, ``nii`` (not compressed), or
  ``mla-lz4`` (LZ4 level 1 in place of the default LZ4HC 5).

Prints seconds, rates as a part of pydicom's, processor time (all threads and imports), what other processes used meanwhile (a
measurement beside others says nothing), and peak memory; JSON with ``--json FILE``.

    python benchmarks/compare/dicom.py SCRATCH [--slices 500] [--syntax native|rle|jpegls|j2k] [--repeats 3] [--to mla,nifti]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

MEMORY = "400MB"
THREADS = 2
NOISE_HU = 18.0
SYNTAXES = {
    "native": "1.2.840.10008.1.2.1",
    "rle": "1.2.840.10008.1.2.5",
    "jpegls": "1.2.840.10008.1.2.4.80",
    "j2k": "1.2.840.10008.1.2.4.90",
}


def slice_of(number: int, extent: int) -> np.ndarray:
    """Return a CT-like slice: a noisy ellipse in air, stored values with intercept -1024."""
    rng = np.random.default_rng(number)
    y, x = np.ogrid[-1 : 1 : extent * 1j, -1 : 1 : extent * 1j]
    inside = (x / 0.8) ** 2 + (y / 0.6) ** 2 < 1
    organ = 60 * np.sin(7 * x + number / 20) * np.cos(5 * y)
    hounsfield = np.where(inside, organ + 40, -1000) + rng.normal(0, NOISE_HU, (extent, extent))
    return np.clip(hounsfield + 1024, 0, 4095).astype(np.uint16)


def make_series(folder: Path, count: int, extent: int, syntax: str) -> None:
    """Write a series with headers of some fifty fields."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True)
    series, study = generate_uid(), generate_uid()
    for k in range(count):
        data = Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, generate_uid()
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
        data.SeriesInstanceUID, data.StudyInstanceUID, data.SeriesNumber, data.InstanceNumber = series, study, 3, k + 1
        data.Modality, data.Manufacturer, data.KVP, data.ConvolutionKernel = "CT", "NONE", 120, "B30f"
        data.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        data.ImagePositionPatient, data.ImageOrientationPatient = [-180, -180, 0.8 * k], [1, 0, 0, 0, 1, 0]
        data.PixelSpacing, data.SliceThickness, data.PatientPosition = [0.7, 0.7], 1, "HFS"
        data.RescaleSlope, data.RescaleIntercept, data.WindowCenter, data.WindowWidth = 1, -1024, 40, 400
        data.Rows, data.Columns, data.SamplesPerPixel = extent, extent, 1
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 12, 11, 0
        data.PhotometricInterpretation = "MONOCHROME2"
        private = data.private_block(0x0029, "BENCHMARK", create=True)
        for element in range(20):
            private.add_new(element, "LO", f"value {element}")
        data.PixelData = slice_of(k, extent).tobytes()
        if syntax != "native":
            data.compress(SYNTAXES[syntax], generate_instance_uid=False)
        data.save_as(folder / f"IM{(k * 7919) % count:05d}", enforce_file_format=True)


def by_pydicom(folder: Path) -> float:
    """Return the seconds that pydicom takes for every file."""
    import pydicom

    files = sorted(folder.iterdir())
    began = time.perf_counter()
    for file in files:
        _ = pydicom.dcmread(file).pixel_array
    return time.perf_counter() - began


def by_reading(folder: Path) -> float:
    """Return the seconds for headers and voxels through this package, in slabs of 32 slices."""
    import pydicom  # noqa: F401  imported outside of the time, as for the others

    from mlarray import open_source

    began = time.perf_counter()
    with open_source(folder) as source:
        for part in source.spec.region.split(0, 32):
            source.read(part)
    return time.perf_counter() - began


def by_headers(folder: Path) -> float:
    """Return the seconds for finding files and reading their headers."""
    import pydicom  # noqa: F401

    from mlarray.formats.dicom import files_below, survey

    began = time.perf_counter()
    survey(files_below(folder))
    return time.perf_counter() - began


def by_pixels(folder: Path) -> float:
    """Return the seconds for the voxels through this package, in slabs of 32 slices."""
    from mlarray import open_source

    with open_source(folder) as source:
        source.read(next(iter(source.spec.region.split(0, 1))))
        began = time.perf_counter()
        for part in source.spec.region.split(0, 32):
            source.read(part)
        return time.perf_counter() - began


def by_compressing(folder: Path, codec: str = "LZ4HC", level: int = 5, threads: int = THREADS) -> float:
    """Return the seconds for compressing the voxels alone, as they are stored in an ``.mla``."""
    import blosc2

    from mlarray import open_source

    with open_source(folder) as source:
        voxels = source.read(source.spec.region)
    from mlarray.storage.options import StorageOptions

    layout = StorageOptions().layout_for(source.spec)
    filters = [blosc2.Filter.SHUFFLE]
    cparams = blosc2.CParams(codec=blosc2.Codec[codec], clevel=level, filters=filters, nthreads=threads, typesize=2)
    began = time.perf_counter()
    blosc2.asarray(voxels, chunks=layout.chunks, blocks=layout.blocks, cparams=cparams)
    return time.perf_counter() - began


def by_converting(folder: Path, out: Path, target: str) -> float:
    """Return the seconds from finding the files to the published output, in this process and within the memory limit."""
    import blosc2
    import pydicom  # noqa: F401

    from mlarray_convert.discovery import discover
    from mlarray_convert.request import make_request, parse_memory
    from mlarray_convert.run import Job, run_case

    began = time.perf_counter()
    storage = None
    if target == "mla-lz4":
        filters, codec = [blosc2.Filter.SHUFFLE], blosc2.Codec.LZ4
        storage = {"cparams": {"codec": codec, "clevel": 1, "filters": filters, "nthreads": THREADS, "typesize": 2}}
    if target == "nii":
        out.mkdir(parents=True, exist_ok=True)
        out, target = out / "volume.nii", "nifti"
    to = target.split("-lz4")[0]
    request = make_request(folder, out, to=to, memory=MEMORY, if_exists="overwrite", storage=storage)
    (case,) = discover(request).cases
    outcome = run_case(Job(case, request, parse_memory(MEMORY), THREADS), lambda share: None)
    seconds = time.perf_counter() - began
    if outcome.reason:
        raise SystemExit(outcome.reason)
    return seconds


def busy_seconds() -> float:
    """Return the seconds that all processors have worked for anybody, where the system tells (Linux)."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system = map(int, stat.read_text(encoding="ascii").split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def measured(kind: str, folder: Path, out: Path) -> tuple[float, float, float, float]:
    """Run one measurement in a process of its own.

    Returns seconds, peak memory in MB, seconds of processor time, and of that what other processes used meanwhile.
    """
    before, began = busy_seconds(), os.times()
    command = [sys.executable, __file__, str(folder), "--only", kind, "--out", str(out)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(answer.splitlines()[-1])
    ended = os.times()
    own = sum(ended[2:4]) - sum(began[2:4])
    return found["seconds"], found["peak_mb"], found["cpu"], max(0.0, busy_seconds() - before - own)


def one(kind: str, folder: Path, out: Path) -> dict[str, float]:
    """Measure in this process."""
    whats = {
        "pydicom": by_pydicom,
        "headers": by_headers,
        "pixels": by_pixels,
        "read": by_reading,
        "floor": by_compressing,
        "floor-1": partial(by_compressing, threads=1),
        "floor-lz4": partial(by_compressing, codec="LZ4", level=1),
    }
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = whats[kind](folder) if kind in whats else by_converting(folder, out, kind)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "peak_mb": after.ru_maxrss / 1000, "cpu": cpu}


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--slices", type=int, default=500)
    parser.add_argument("--extent", type=int, default=512)
    parser.add_argument("--syntax", choices=sorted(SYNTAXES), default="native")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stages", default="headers,pixels,read,floor,floor-1", help="measured beside the targets")
    parser.add_argument("--to", default="mla,mla-lz4,ome-zarr,nii")
    parser.add_argument("--series", type=Path, help="a folder with one volume, instead of a made one")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(one(options.only, options.scratch, options.out)))
        return
    folder = options.series
    if folder is None:
        folder = options.scratch / f"{options.syntax}_{options.slices}_{options.extent}"
        if not folder.exists():
            make_series(folder, options.slices, options.extent, options.syntax)
    count = sum(1 for path in folder.iterdir() if path.is_file())
    kinds = ["pydicom", *options.stages.split(","), *options.to.split(",")]
    times: dict[str, list[tuple[float, float, float, float]]] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        for kind in kinds:
            out = options.scratch / "out"
            times[kind].append(measured(kind, folder, out))
            shutil.rmtree(out, ignore_errors=True)
    base = [seconds for seconds, *_ in times["pydicom"]]
    print(f"{count} slices, {options.syntax}, {options.repeats} repeats")
    for kind in kinds:
        ratios = [first / seconds for first, (seconds, *_) in zip(base, times[kind], strict=True)]
        median = statistics.median(seconds for seconds, *_ in times[kind])
        peak = max(memory for _, memory, *_ in times[kind])
        cpu = statistics.median(used for _, _, used, _ in times[kind])
        others = max(other for *_, other in times[kind])
        rate = f"{statistics.median(ratios):.2f} of pydicom's rate ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"{kind:10} {median:7.2f} s  {rate}  processor {cpu:.2f} s (others {others:.1f})  peak {peak:.0f} MB")
    if options.json:
        options.json.write_text(json.dumps(times), encoding="ascii")


if __name__ == "__main__":
    main()
