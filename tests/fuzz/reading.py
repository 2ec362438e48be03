"""What is done with an image file that was fuzzed? All that opening, looking and reading do, within a few MiB."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from pathlib import Path
from random import Random

from mlarray.errors import MLArrayError
from mlarray.formats.registry import format_of, items_of, module_of, open_source
from mlarray.metadata import encode
from mlarray.region import Region
from mlarray.sources.base import Source
from mlarray.storage.contents import source_metadata
from tests.fuzz.inputs import Files

ALL_BYTES = 2 << 20
"""Arrays up to here are read as a whole."""
LARGEST_SIDE = 9
ITEMS = 3
METADATA_SHARE = 0.1
"""Of inputs whose header becomes metadata, which takes several times as long as reading it."""


class WrongVoxels(Exception):
    """A read returned another shape or dtype than the source had announced."""


class ReadImage:
    """Opens the file or folder ``name`` of an input, reads from it, and makes metadata of what the header says."""

    def __init__(self, name: str, *, items: bool = False) -> None:
        self._name, self._items = name, items

    def __call__(self, folder: Path, files: Files) -> Hashable:
        path = folder / self._name
        random = Random(zlib.crc32(b"".join(files.values())))
        names: list[str | None] = [None]
        if self._items:
            names += [one.name for one in items_of(path)[:ITEMS]]
        kinds: list[Hashable] = []
        refused: MLArrayError | None = None
        for name in names:
            try:
                with open_source(path, item=name) as source:
                    kinds.append(look_at(source, random))
            except MLArrayError as error:
                refused = error
        check = getattr(module_of(format_of(path)), "check_stored", None)
        if check is not None:
            check(path, item=None)
        if refused is not None and not kinds:
            raise refused
        return tuple(kinds)


def look_at(source: Source, random: Random) -> Hashable:
    """Read all of a small array, or some regions of a large one; return what kind of image it was."""
    spec, info = source.spec, source.info
    regions = [_small_region(random, spec.shape) for _ in range(2)]
    if spec.nbytes <= ALL_BYTES:
        regions.append(Region.full(spec.shape))
    for region in regions:
        voxels = source.read(region)
        if voxels.shape != region.shape or voxels.dtype != spec.dtype:
            raise WrongVoxels(f"{voxels.shape} {voxels.dtype} instead of {region.shape} {spec.dtype}")
    if random.random() < METADATA_SHARE:
        encode(source_metadata(spec, info)[0])
        str(info)
    notes = tuple(sorted({note.code for note in info.notes}))
    return spec.ndim, spec.dtype.str, notes, spec.geometry is None, len(info.header)


def _small_region(random: Random, shape: tuple[int, ...]) -> Region:
    starts = [random.choice((0, max(0, n - 1), random.randrange(n) if n else 0)) for n in shape]
    stops = [min(n, a + random.randint(0, LARGEST_SIDE)) for a, n in zip(starts, shape, strict=True)]
    return Region(tuple(min(a, b) for a, b in zip(starts, stops, strict=True)), tuple(stops))
