"""May a chunk of an HDF5 dataset be decoded, or would it fill the memory?

HDF5 inflates whatever a chunk expands to and compares sizes afterwards. So chunks that could expand far beyond their size are
inflated here first, in pieces that are not kept. Most cannot: deflate grows data at most 1032 times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlarray.errors import FormatError
from mlarray.formats.expansion import DEFLATE_RATIO, inflated_bytes, too_large
from mlarray.limits import CHUNK_BYTES, EXPANSION_BYTES, HDF5_EXPANSION_BYTES
from mlarray.region import Region

_DEFLATE = 1  # H5Z_FILTER_DEFLATE
_REMEMBERED = 100_000


def refuse_large_chunks(path: Path, place: str, dataset: Any) -> None:
    """Refuse a dataset whose chunks are too large to be held, or are deflated twice.

    Raises
    ------
    FormatError
        Naming the size and the limit.
    """
    chunks = dataset.chunks
    if chunks is None:
        return
    nbytes = math.prod(chunks) * dataset.dtype.itemsize
    if nbytes > CHUNK_BYTES:
        raise FormatError(
            f"{path}: a chunk of {place} has {nbytes} bytes; at most {CHUNK_BYTES} can be held.", hint=CHUNK_BYTES.hint
        )
    if len(_deflated(dataset)) > 1:
        raise FormatError(f"{path}: the chunks of {place} are deflated twice, which nobody does to data.")


class ChunkGuard:
    """Remembers which chunks of a dataset were found to be harmless; not for several threads at once.

    Parameters
    ----------
    path : Path
        The file.
    place : str
        Path of the dataset, for messages.
    """

    def __init__(self, path: Path, place: str) -> None:
        self._path, self._place = path, place
        self._seen: set[tuple[int, ...]] = set()

    def check(self, dataset: Any, region: Region) -> None:
        """Refuse a region that touches a chunk which expands beyond its size.

        Raises
        ------
        FormatError
            Naming the chunk.
        """
        if dataset.chunks is None or dataset.is_virtual:
            return
        filters = _deflated(dataset)
        if not filters:
            return
        nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        for corner in _corners(region, dataset.chunks):
            if corner in self._seen:
                continue
            stored = dataset.id.get_chunk_info_by_coord(corner)
            inflates = stored.byte_offset is not None and not stored.filter_mask >> filters[0] & 1
            if inflates and stored.size * DEFLATE_RATIO > nbytes + HDF5_EXPANSION_BYTES:
                self._inflate(dataset, corner, nbytes + EXPANSION_BYTES)
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen.add(corner)

    def _inflate(self, dataset: Any, corner: tuple[int, ...], most: int) -> None:
        _, data = dataset.id.read_direct_chunk(corner)
        rest = iter((bytes(data), b""))
        if inflated_bytes(lambda count: next(rest), most) > most:
            told = too_large(len(data), most)
            raise FormatError(f"{self._path}: the chunk of {self._place} at {corner} is damaged: {told.message}")


def _deflated(dataset: Any) -> list[int]:
    plist = dataset.id.get_create_plist()
    return [position for position in range(plist.get_nfilters()) if plist.get_filter(position)[0] == _DEFLATE]


def _corners(region: Region, chunks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    ranges = [
        range(low // chunk * chunk, high, chunk)
        for low, high, chunk in zip(region.start, region.stop, chunks, strict=True)
    ]
    return itertools.product(*ranges)
