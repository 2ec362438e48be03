"""The one copy loop: voxels from a source to a sink, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from mlarray.region import Region
from mlarray.sources.base import NDArray, Source, Writer


@dataclass(frozen=True, slots=True)
class TileDigest:
    """The checksum of one tile as it was read from the source.

    Parameters
    ----------
    region : Region
        Where.
    digest : int
        XXH3-64 of the voxels in C order.
    """

    region: Region
    digest: int


def copy(
    source: Source,
    sink: Writer,
    tiles: Iterable[Region],
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[TileDigest, ...]:
    """Copy every tile from ``source`` to ``sink`` and return what was copied, as checksums.

    Parameters
    ----------
    source : Source
        Where voxels come from.
    sink : Writer
        Where they go; neither published nor aborted here.
    tiles : iterable of Region
        In the order to read them; see :func:`mlarray.sources.tiles.plan_tiles`.
    progress : callable, optional
        Called with the number of array bytes after each tile.

    Returns
    -------
    tuple of TileDigest
        One per tile: :func:`differing_tiles` compares a stored copy against them without the source.
    """
    digests: list[TileDigest] = []
    dtype = source.spec.dtype.newbyteorder("=")
    buffer = np.empty(0, dtype)
    for region in tiles:
        if buffer.size < region.size:
            buffer = np.empty(region.size, dtype)
        block = source.read(region, buffer[: region.size].reshape(region.shape))
        digests.append(TileDigest(region, digest(block)))
        sink.write(region, block)
        if progress is not None:
            progress(block.nbytes)
    return tuple(digests)


def differing_tiles(source: Source, digests: Iterable[TileDigest]) -> Iterator[Region]:
    """Yield the regions in which ``source`` no longer holds what was copied."""
    for expected in digests:
        if digest(source.read(expected.region)) != expected.digest:
            yield expected.region


def digest(block: NDArray) -> int:
    """Return the XXH3-64 checksum of the voxels of ``block`` in C order."""
    return int(xxhash.xxh3_64_intdigest(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data))
