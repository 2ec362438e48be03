"""Does a file that is written slab by slab grow as fast as one that is written at once?

Writes each volume in every way once per round, in a new order each time: the whole array with ``save``, and slabs of 16 planes
into a created file, through a memory map (``"w+"``) and with ordinary file calls (None). Slabs end within chunks. Closing
counts, waiting for the disk does not. A created file cannot look at the data to choose its filter, which the whole array does;
the filters in use are printed.

    python benchmarks/compare/writing.py SCRATCH [--json FILE] [--rounds 7] [--data ct_int16,ct_float32]
        [--shape 400,512,512] [--layouts nnunet,small-blocks] [--planes 16] [--patch 128]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
from spreads import bounded, extents, machine, quartiles, ratio, show_bounds, text_of, write_json
from volumes import FULL_SHAPE, volume_file

from mlarray import MLArray

LAYOUTS = ("nnunet", "small-blocks")
LEAST = 0.85  # of the rate of writing at once, through a memory map


def write_at_once(array: np.ndarray, path: Path, options: dict[str, Any]) -> None:
    """Write an array with one call."""
    MLArray(array, **options).save(path)


def slab_writer(planes: int, *, mapped: bool) -> Callable[[np.ndarray, Path, dict[str, Any]], None]:
    """Return a function that writes an array in slabs of planes."""

    def write(array: np.ndarray, path: Path, options: dict[str, Any]) -> None:
        with MLArray.create(path, array.shape, array.dtype, mmap_mode="w+" if mapped else None, **options) as image:
            for start in range(0, len(array), planes):
                image[start : start + planes] = array[start : start + planes]

    return write


def facts_of(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Return what was written, or end the run where it is not what was given."""
    with MLArray.open(path) as image:
        chunks = image.layout.chunks
        depth = chunks[0] if chunks else len(array)
        for start in range(0, len(array), depth):
            if not np.array_equal(image[start : start + depth], array[start : start + depth]):
                raise SystemExit(f"{path.name} holds other values than were written.")
        cparams = image.meta.blosc2.cparams or {}
    filters = [blosc2.Filter(number).name for number in cparams.get("filters", ()) if number]
    return {"bytes": path.stat().st_size, "chunks": list(chunks or ()), "filters": filters}


def measure(array: np.ndarray, folder: Path, options: dict[str, Any], rounds: int, planes: int) -> dict[str, Any]:
    """Return seconds of every way and round, and what each of them wrote."""
    ways = {
        "at once": write_at_once,
        "slabs": slab_writer(planes, mapped=True),
        "slabs no map": slab_writer(planes, mapped=False),
    }
    rng = np.random.default_rng(7)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    files: dict[str, Any] = {}
    for number in range(rounds + 1):
        for name in map(str, rng.permutation(list(ways))):
            path = folder / f"{name.replace(' ', '_')}.mla"
            path.unlink(missing_ok=True)
            began = time.perf_counter()
            ways[name](array, path, options)
            passed = time.perf_counter() - began
            if number == 0:  # the first round loads modules and checks what was written
                files[name] = facts_of(path, array)
            else:
                seconds[name].append(passed)
            path.unlink()
    mebibytes = array.nbytes / 2**20
    return {
        "seconds": seconds,
        "files": files,
        "rates": {name: quartiles([mebibytes / one for one in values]) for name, values in seconds.items()},
        # The ratio of rates is that of the seconds the other way round.
        "over_at_once": {name: ratio(seconds["at once"], values) for name, values in seconds.items()},
    }


def checks(writes: dict[str, Any], planes: int) -> list[dict[str, Any]]:
    """Return the bounds."""
    return [
        bounded(f"rate of slabs of {planes} / at once, {data}, {layout}", found["over_at_once"]["slabs"], least=LEAST)
        for data, layouts in writes.items()
        for layout, found in layouts.items()
    ]


def show(writes: dict[str, Any]) -> None:
    """Print the table."""
    print(f"\n{'':40}{'MiB/s of voxels':>24}{'rate / at once':>24}{'MB':>9}  chunks, filters")
    for data, layouts in writes.items():
        for layout, found in layouts.items():
            for name, rate in found["rates"].items():
                file = found["files"][name]
                told = f"{' x '.join(map(str, file['chunks']))}, {' '.join(file['filters'])}"
                cells = f"{text_of(rate):>24}{text_of(found['over_at_once'][name]):>24}{file['bytes'] / 1e6:>9.1f}"
                print(f"{f'{data}, {layout}, {name}':40}{cells}  {told}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=lambda text: text.split(","), default=["ct_int16", "ct_float32"])
    parser.add_argument("--layouts", type=lambda text: text.split(","), default=list(LAYOUTS))
    parser.add_argument("--shape", type=extents, default=FULL_SHAPE)
    parser.add_argument("--planes", type=int, default=16)
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.scratch.resolve() / "writing"
    folder.mkdir(parents=True, exist_ok=True)
    writes: dict[str, Any] = {}
    for data in arguments.data:
        array = np.load(volume_file(arguments.scratch.resolve(), data, arguments.shape))
        for layout in arguments.layouts:
            print(f"writing {data}, {layout}", flush=True)
            options = {"patch_size": arguments.patch, "layout": layout}
            found = measure(array, folder, options, arguments.rounds, arguments.planes)
            writes.setdefault(data, {})[layout] = found
    results = {
        "kind": "writing",
        "writes": writes,
        "shape": list(arguments.shape),
        "patch": arguments.patch,
        "planes": arguments.planes,
        "rounds": arguments.rounds,
        "checks": checks(writes, arguments.planes),
        "machine": machine(),
    }
    show(writes)
    show_bounds(results["checks"])
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
