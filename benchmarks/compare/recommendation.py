"""Is what ``mla bench`` recommends no slower than the default, measured afresh?

Runs the benchmark on made-up CT as a user would, in the time that is given. Then another volume (another seed) is written with
the recommended arguments and with none, and random patches are read from both, warm, in rounds with a new order each time.

    python benchmarks/compare/recommendation.py SCRATCH [--json FILE] [--seconds 120] [--patch 128] [--rounds 25]
"""

from __future__ import annotations

import argparse
import ast
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers import draw
from spreads import bounded, machine, ratio, show_bounds, write_json
from volumes import ct

from mlarray import MLArray, Region
from mlarray_convert.bench import bench

SHAPE = (256, 384, 384)
PATCHES = 8


def arguments_of(call: str) -> dict[str, Any]:
    """Return the keyword arguments of a call as it stands in a recommendation: ``MLArray(array, patch_size=128)``."""
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}


def fresh(scratch: Path, patch: int, recommended: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return seconds per round of the default and of the recommendation, on a volume that neither has seen."""
    volume = ct(SHAPE, 77)
    images = {}
    for name, options in (("default", {"patch_size": patch}), ("recommended", recommended)):
        path = scratch / f"recommendation_{name}.mla"
        MLArray(volume, **options).save(path)
        images[name] = MLArray.open(path)
    rng = np.random.default_rng(78)
    found: dict[str, list[float]] = {name: [] for name in images}
    out = np.empty((patch,) * 3, volume.dtype)
    for number in range(rounds + 1):
        regions = [Region(*draw(rng, SHAPE, out.shape, None)) for _ in range(PATCHES)]
        for name in rng.permutation(list(images)):
            began = time.perf_counter()
            for region in regions:
                images[str(name)].read(region, out)
            if number:  # the first round fills the page cache
                found[str(name)].append(time.perf_counter() - began)
    for image in images.values():
        image.close()
    return found


def main() -> None:
    """Run the benchmark, then the measurement, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    report = bench(synthetic="ct", patch_size=options.patch, seconds=options.seconds, scratch=options.scratch)
    taken = time.perf_counter() - began
    advice = report.recommendation
    print(f"{taken:.0f} of {options.seconds:.0f} seconds: {advice.python}\n{advice.reason}")
    seconds = fresh(options.scratch, options.patch, arguments_of(advice.python), options.rounds)
    rows = [
        bounded("mla bench: seconds taken", dict.fromkeys(("median", "low", "high"), taken), most=options.seconds),
        bounded("recommended / default, fresh", ratio(seconds["recommended"], seconds["default"]), most=1.0),
    ]
    show_bounds(rows)
    results = {"recommended": advice.python, "seconds": seconds, "checks": rows, "machine": machine()}
    write_json(options.json, results)


if __name__ == "__main__":
    main()
