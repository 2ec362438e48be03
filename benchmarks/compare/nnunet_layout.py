"""Do our layouts equal those of the installed nnU-Net, number for number?

Calls ``comp_blosc2_params`` of an installed ``nnunetv2`` (2.8.1 is the version whose rule we follow) and our
``layout_for_patch`` on random 2D and 3D images with a channel axis, prints the number of differences and exits with 1
when there are any. nnU-Net's heavy dependencies are not needed for that one function: whatever is missing is replaced by
an empty stand-in for the time of the import.

    pip install --no-deps nnunetv2==2.8.1
    python benchmarks/compare/nnunet_layout.py --cases 20000 --seed 0
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from mlarray.layout import layout_for_patch

MODULE = "nnunetv2.training.dataloading.nnunet_dataset"
COMMON_PATCHES = (16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)


@dataclass(frozen=True, slots=True)
class Case:
    """One image with its channel axis first; a 2D image has a leading spatial extent of 1, as in nnU-Net."""

    image: tuple[int, int, int, int]
    patch: tuple[int, ...]
    itemsize: int
    block_limit_bytes: int
    chunk_limit_bytes: int
    chunk_patch_factor: float


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=20_000, help="cases with the default limits")
    parser.add_argument("--limit-cases", type=int, default=5_000, help="cases more, with other limits")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    theirs = load_nnunet_rule()
    rng = random.Random(options.seed)
    differences = 0
    for number in range(options.cases + options.limit_cases):
        case = random_case(rng, default_limits=number < options.cases)
        expected, found = nnunet_layout(theirs, case), our_layout(case)
        if expected != found:
            differences += 1
            if differences <= 10:
                print(f"{case}\n  nnU-Net (blocks, chunks): {expected}\n  mlarray (blocks, chunks): {found}")
    version = importlib.metadata.version("nnunetv2")
    print(
        f"nnunetv2 {version}: {differences} differences in {options.cases} cases with default limits "
        f"and {options.limit_cases} with others (seed {options.seed})"
    )
    return 1 if differences else 0


def load_nnunet_rule() -> Callable[..., Any]:
    """Import nnU-Net's function, with stand-ins for the dependencies that are not installed."""
    stubs: list[str] = []
    try:
        while True:
            try:
                rule: Callable[..., Any] = importlib.import_module(MODULE).comp_blosc2_params
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith("nnunetv2") or error.name in stubs:
                    raise
                stubs.append(error.name)
                sys.modules[error.name] = StandIn(error.name)
            else:
                return rule
    finally:
        for name in stubs:
            del sys.modules[name]


class StandIn(ModuleType):
    """A module that has every attribute, so that ``from it import name`` succeeds."""

    __path__: list[str] = []  # noqa: RUF012 - makes it a package; shared and never filled

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def random_case(rng: random.Random, *, default_limits: bool) -> Case:
    """Draw shapes and patches over many magnitudes, with the awkward ones (1, thin, larger than the image) frequent."""
    spatial = [_extent(rng, 1100) for _ in range(3)]
    if rng.random() < 0.25:
        spatial[0] = 1
    patch = [rng.choice(COMMON_PATCHES) if rng.random() < 0.5 else _extent(rng, 700) for _ in range(3)]
    if rng.random() < 0.25:
        patch = patch[1:]
    limits = (128 * 1024, 6 * 1024**2, 1.5)
    if not default_limits:
        block_limit = rng.randint(8, 1 << rng.randint(4, 22))
        limits = (block_limit, rng.randint(8, 1 << rng.randint(4, 26)), rng.choice((1.0, 1.1, 1.25, 2.0, 3.0)))
    image = (rng.randint(1, 5), spatial[0], spatial[1], spatial[2])
    return Case(image, tuple(patch), rng.choice((1, 2, 4, 8)), *limits)


def _extent(rng: random.Random, largest: int) -> int:
    kind = rng.random()
    if kind < 0.1:
        return 1
    return rng.randint(1, 16 if kind < 0.2 else 64 if kind < 0.4 else largest)


def nnunet_layout(rule: Callable[..., Any], case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    blocks, chunks = rule(
        case.image,
        case.patch,
        case.itemsize,
        max_block_nbytes=case.block_limit_bytes,
        max_chunk_nbytes=case.chunk_limit_bytes,
        max_chunk_to_patch_ratio_per_axis=case.chunk_patch_factor,
    )
    return tuple(int(n) for n in blocks), tuple(int(n) for n in chunks)


def our_layout(case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    layout = layout_for_patch(
        case.image,
        case.itemsize,
        patch_size=case.patch,
        spatial=(False, True, True, True),
        block_limit_bytes=case.block_limit_bytes,
        chunk_limit_bytes=case.chunk_limit_bytes,
        chunk_patch_factor=case.chunk_patch_factor,
    )
    assert layout.blocks is not None and layout.chunks is not None  # noqa: PT018 - the image has spatial axes
    return layout.blocks, layout.chunks


if __name__ == "__main__":
    sys.exit(main())
