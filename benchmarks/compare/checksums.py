"""What do checksums cost: when a file is written, when it is read for the first time with ``verify="lazy"``, when it is verified?

A round does everything once, in a random order, in this process, with the files in the page cache:

- *write*: saving an array (compression, write, checksums, seal), and the part of it that makes checksums and seal;
- *first pass*: every voxel once, in patches, and as many patches at random places, with ``verify=None`` and ``"lazy"``;
- *verify*: what ``mla verify`` does with one file, in stored bytes a second of one processor.

Processor time is compared, not the clock, so that other work on the machine counts little. Prints medians and quartiles over
rounds, ratios within rounds, and which bounds are kept; JSON with ``--json FILE``.

    python benchmarks/compare/checksums.py SCRATCH [--rounds 9] [--shape 320,448,448] [--patch 128] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from spreads import bounded, extents, machine, quartiles, ratio, show_bounds, text_of, write_json
from volumes import ct

from mlarray import MLArray
from mlarray.region import Region
from mlarray.storage import integrity

WRITE, LAZY, VERIFY_RATE = 0.03, 1.05, 1.0


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of a call, of all threads of the process."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measured_save(array: np.ndarray, path: Path, patch: int) -> tuple[float, float]:
    """Save an array; return the processor time of all of it, and of its checksums and seal."""
    image = MLArray(array, patch_size=patch, axes="zyx")
    path.unlink(missing_ok=True)
    checksums = 0.0
    finish = integrity.finish

    def timed(*arguments: Any, **named: Any) -> None:
        nonlocal checksums
        checksums += processor_seconds(lambda: finish(*arguments, **named))

    integrity.finish = timed  # type: ignore[assignment]
    try:
        whole = processor_seconds(lambda: (MLArray(array, patch_size=patch, axes="zyx"), image.save(path)))
    finally:
        integrity.finish = finish
    return whole, checksums


def patches(shape: tuple[int, ...], patch: int, rng: np.random.Generator | None) -> list[Region]:
    """Return the patches that cover an array, or as many at random places."""
    grid = list(itertools.product(*(range(0, extent, patch) for extent in shape)))
    if rng is not None:
        grid = [tuple(int(rng.integers(0, extent - patch + 1)) for extent in shape) for _ in grid]
    whole = Region.full(shape)
    return [Region(start, tuple(low + patch for low in start)).intersect(whole) for start in grid]


def first_pass(path: Path, regions: list[Region], verify: str | None) -> float:
    """Return the processor time of opening a file and reading some patches of it."""

    def read() -> None:
        with MLArray.open(path, verify=verify) as image:  # type: ignore[arg-type]
            for region in regions:
                image.read(region)

    return processor_seconds(read)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shape", type=extents, default=(320, 448, 448))
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    path, spare = options.scratch / "checksums.mla", options.scratch / "written.mla"
    array = ct(options.shape, 1)
    MLArray(array, patch_size=options.patch, axes="zyx").save(path)
    stored = path.stat().st_size
    rng = np.random.default_rng(2)
    figures: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        figures.setdefault(name, []).append(seconds)

    def write() -> None:
        whole, checksums = measured_save(array, spare, options.patch)
        note("write without", whole - checksums)
        note("write checksums", checksums)

    covering, places = patches(options.shape, options.patch, None), patches(options.shape, options.patch, rng)
    works: list[Callable[[], None]] = [
        write,
        *(
            lambda name=name, regions=regions, verify=verify: note(  # type: ignore[misc]
                f"{name}, {verify}", first_pass(path, regions, verify)
            )
            for name, regions in (("grid", covering), ("random", places))
            for verify in (None, "lazy")
        ),
        lambda: note("verify", processor_seconds(lambda: integrity.check_file(path))),
    ]
    for _ in range(options.rounds):
        for work in random.sample(works, len(works)):
            work()
    rows = {name: quartiles(values) for name, values in figures.items()}
    rate = quartiles([stored / seconds / 1e9 for seconds in figures["verify"]])
    bounds = [
        bounded(
            "checksums and seal / all else of a save",
            ratio(figures["write checksums"], figures["write without"]),
            most=WRITE,
        ),
        bounded("first pass on the grid, lazy / none", ratio(figures["grid, lazy"], figures["grid, None"]), most=LAZY),
        bounded(
            "first pass at random places, lazy / none",
            ratio(figures["random, lazy"], figures["random, None"]),
            most=LAZY,
        ),
        bounded("mla verify, GB of stored bytes a second", rate, least=VERIFY_RATE),
    ]
    print(f"{options.shape} int16, {array.nbytes / 1e6:.0f} MB, stored {stored / 1e6:.0f} MB, patch {options.patch}")
    for name, spread in rows.items():
        print(f"{name:24} {text_of(spread)} s")
    show_bounds(bounds)
    write_json(options.json, {"machine": machine(), "rows": rows, "bounds": bounds})
    for made in (path, spare):
        made.unlink()


if __name__ == "__main__":
    main()
