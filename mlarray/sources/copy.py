"""The one copy loop: voxels from a source to a sink, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
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
    read_ahead: bool = False,
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
    read_ahead : bool
        Whether a thread reads the next tile while one is written, which takes the memory of a tile more.

    Returns
    -------
    tuple of TileDigest
        One per tile: :func:`differing_tiles` compares a stored copy against them without the source.
    """
    digests: list[TileDigest] = []
    with closing(_blocks_ahead(source, tiles) if read_ahead else _blocks(source, tiles)) as blocks:
        for region, block in blocks:
            digests.append(TileDigest(region, digest(block)))
            sink.write(region, block)
            if progress is not None:
                progress(block.nbytes)
    return tuple(digests)


class _Buffer:
    """Memory for one tile, used again for the next."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._voxels: NDArray = np.empty(0, source.spec.dtype.newbyteorder("="))

    def read(self, region: Region) -> NDArray:
        if self._voxels.size < region.size:
            self._voxels = np.empty(region.size, self._voxels.dtype)
        return self._source.read(region, self._voxels[: region.size].reshape(region.shape))


def _blocks(source: Source, tiles: Iterable[Region]) -> Generator[tuple[Region, NDArray], None, None]:
    buffer = _Buffer(source)
    for region in tiles:
        yield region, buffer.read(region)


def _blocks_ahead(source: Source, tiles: Iterable[Region]) -> Generator[tuple[Region, NDArray], None, None]:
    """Yield tiles while a thread reads the next one. It ends with the generator, also when that is closed early."""
    buffers = [_Buffer(source), _Buffer(source)]
    coming: tuple[Region, Future[NDArray]] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="mla-read") as reader:
        for number, region in enumerate(tiles):
            present = coming
            if present is not None:
                block = present[1].result()
            coming = region, reader.submit(buffers[number % 2].read, region)
            if present is not None:
                yield present[0], block
        if coming is not None:
            yield coming[0], coming[1].result()


def differing_tiles(source: Source, digests: Iterable[TileDigest]) -> Iterator[Region]:
    """Yield the regions in which ``source`` no longer holds what was copied."""
    for expected in digests:
        if digest(source.read(expected.region)) != expected.digest:
            yield expected.region


def digest(block: NDArray) -> int:
    """Return the XXH3-64 checksum of the voxels of ``block`` in C order."""
    return int(xxhash.xxh3_64_intdigest(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data))
