"""How are several chunks compressed at once, while the next ones are being read?

``blosc2`` writes a slice chunk by chunk and keeps Python's interpreter lock meanwhile: nothing else runs. Here each chunk is
arranged as it is stored, and compressed by a thread of its own without that lock. The bytes are those of one compression
thread, so a file does not depend on how many threads made it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from mlarray.chunk_grid import ChunkGrid
from mlarray.region import Region
from mlarray.sources.base import NDArray

HELD_CHUNKS = 3  # in memory for each chunk that is being compressed: filled up, arranged, and the place for the result
_CODECS = frozenset({"BLOSCLZ", "LZ4", "LZ4HC", "ZLIB", "ZSTD"})
_FILTERS = frozenset({"NOFILTER", "SHUFFLE", "BITSHUFFLE"})
_PASSED = ("codec", "codec_meta", "clevel", "typesize", "splitmode", "filters", "filters_meta")
_LARGEST_ITEM = 255
_LARGEST_CHUNK = 1 << 30


class ChunkPacker:
    """Compresses whole chunks, several at once.

    Parameters
    ----------
    compress : callable
        ``compress(voxels)`` returns a stored chunk and lets other threads run meanwhile.
    grid : ChunkGrid
        The chunks.
    dtype : numpy dtype
        As stored.
    at_once : int
        Chunks that are compressed at once. Each takes ``HELD_CHUNKS`` times its size in memory.
    """

    def __init__(
        self, compress: Callable[[NDArray], bytes], grid: ChunkGrid, dtype: np.dtype[Any], *, at_once: int
    ) -> None:
        self._compress = compress
        self._grid = grid
        self._dtype = dtype
        self._at_once = at_once

    def takes(self, region: Region) -> bool:
        """Tell whether a region consists of whole chunks."""
        sizes = zip(region.start, region.stop, self._grid.chunks, self._grid.shape, strict=True)
        return all(low % chunk == 0 and (high % chunk == 0 or high == extent) for low, high, chunk, extent in sizes)

    def packed(self, region: Region, block: NDArray) -> Iterator[tuple[int, bytes]]:
        """Yield the number and the stored bytes of every chunk of ``region``, in order.

        No thread is left behind, also when the caller stops early.
        """
        waiting: deque[tuple[int, Future[bytes]]] = deque()
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="mla-pack") as pool:
            try:
                for index in self._grid.chunks_touched(region.start, region.stop):
                    if len(waiting) == 2 * self._at_once:  # enough that no thread waits for the one that stores
                        first, future = waiting.popleft()
                        yield first, future.result()
                    chunk = Region(*self._grid.chunk_region(index))
                    waiting.append((index, pool.submit(self._pack, block[chunk.relative_to(region).slices])))
                while waiting:
                    first, future = waiting.popleft()
                    yield first, future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _pack(self, part: NDArray) -> bytes:
        return self._compress(arranged(part, self._grid.chunks, self._grid.blocks, self._dtype))


def arranged(part: NDArray, chunks: tuple[int, ...], blocks: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
    """Return the voxels of a chunk as Blosc2 stores them: filled up with zeros to whole blocks, block after block.

    Parameters
    ----------
    part : ndarray
        What the array has of the chunk; less than a chunk at its border.
    chunks, blocks : tuple of int
        Extents.
    dtype : numpy dtype
        As stored.

    Returns
    -------
    ndarray
        One-dimensional, contiguous.
    """
    counts = [-(-chunk // block) for chunk, block in zip(chunks, blocks, strict=True)]
    whole = tuple(count * block for count, block in zip(counts, blocks, strict=True))
    if part.shape != whole:
        padded = np.zeros(whole, dtype)
        padded[tuple(map(slice, part.shape))] = part
        part = padded
    split = [extent for pair in zip(counts, blocks, strict=True) for extent in pair]
    order = (*range(0, len(split), 2), *range(1, len(split), 2))
    return np.ascontiguousarray(part.reshape(split).transpose(order), dtype).reshape(-1)


def packer_for(cparams: Any, grid: ChunkGrid, dtype: np.dtype[Any], blosc2: Any, *, at_once: int) -> ChunkPacker | None:
    """Return what compresses chunks as an array with these parameters does.

    Parameters
    ----------
    cparams : blosc2.CParams
        Of the array. Its threads share one chunk where only one is compressed at a time.
    grid, dtype, at_once
        See :class:`ChunkPacker`.
    blosc2 : module
        Asked to release the interpreter lock from here on, in this process.

    Returns
    -------
    ChunkPacker or None
        None where a chunk cannot be compressed by itself: with a codec or filter that asks for its array, or a dictionary.
    """
    if (
        cparams.codec.name not in _CODECS
        or not _FILTERS.issuperset(one.name for one in cparams.filters)
        or cparams.use_dict
        or not dtype.itemsize == cparams.typesize <= _LARGEST_ITEM
        or math.prod(grid.chunks) * dtype.itemsize > _LARGEST_CHUNK
    ):
        return None
    given = {name: getattr(cparams, name) for name in _PASSED}
    given["nthreads"] = 1 if at_once > 1 else cparams.nthreads  # blosc2 has one pool of threads for all callers
    given["blocksize"] = math.prod(grid.blocks) * dtype.itemsize
    blosc2.set_releasegil(True)
    return ChunkPacker(partial(blosc2.compress2, **given), grid, dtype, at_once=at_once)
