"""How are the voxels of a zarr array read and written in pieces of bounded size?

zarr-python decodes and encodes; this module decides how much at a time, and looks at what the store hands out before it is
decoded. A chunk that is missing stands for the fill value, but one that is there and too short is damage: Blosc would read
past the end of its buffer, an empty shard would pass for one without chunks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import FormatError
from mlarray.formats.ome_zarr_codecs import bounded
from mlarray.formats.ome_zarr_store import Node, Stored, stored
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.storage.remote import filesystem, is_remote

PIECE_BYTES = 16 * 1024 * 1024  # what one call of zarr decodes, which it does with up to ten chunks at once
_SETTLE_SECONDS = 10.0  # it takes milliseconds, unless the machine is busy
_BLOSC_HEADER = 16  # bytes; the sizes of the content and of the frame are at 4 and 12 (README_CHUNK_FORMAT of c-blosc)


class ZarrVoxels:
    """The voxels of one array; opened when they are first read, in each process anew.

    Parameters
    ----------
    node : Node
        Its description.

    Raises
    ------
    FormatError
        When the description asks for what cannot or must not be read.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.stored: Stored = stored(node)
        self._array: Any = None
        self._pid = 0

    def read_into(self, region: Region, out: NDArray) -> None:
        """Fill ``out`` with the voxels of a region that is not empty."""
        array = self._opened()
        for box in boxes(region, self.stored.chunks, self.stored.dtype.itemsize, PIECE_BYTES):
            try:
                out[box.relative_to(region).slices] = array[box.slices]
            except BaseException as error:  # also when the process is told to stop
                _settle(array.store.loop)
                of_system = isinstance(error, OSError) and error.errno is not None  # gzip's errors are OSErrors, too
                if not isinstance(error, Exception) or of_system or isinstance(error, MemoryError):
                    raise
                raise self._damaged(box, error) from error  # codecs raise whatever they like; that names the chunk

    def close(self) -> None:
        """Forget the opened array; a later read opens it again."""
        self._array = None

    @property
    def held_bytes(self) -> int:
        """Bytes that reading holds beside its result."""
        return 2 * max(PIECE_BYTES, self.stored.chunk_bytes)

    def _opened(self) -> Any:
        array, pid = self._array, os.getpid()
        if array is None or self._pid != pid:
            array = _open(self.node, self.stored)
            self._array, self._pid = array, pid
        return array

    def _damaged(self, box: Region, error: Exception) -> FormatError:
        """Return the error with the first chunk of ``box`` that cannot be decoded."""
        told = f"{type(error).__name__}: {error}" if not isinstance(error, FormatError) else error.message
        for chunk in boxes(box, self.stored.chunks, 1, 0):
            try:
                self._opened()[chunk.slices]
            except Exception as again:
                index = tuple(a // c for a, c in zip(chunk.start, self.stored.chunks, strict=True))
                told = again.message if isinstance(again, FormatError) else f"{type(again).__name__}: {again}"
                return FormatError(
                    f"{self.node.place}: the chunk {index} is damaged ({' '.join(told.split())}).",
                    hint="Copy the store again, or write it again.",
                )
        return FormatError(f"{self.node.place} cannot be read: {' '.join(told.split())}.")


def _settle(loop: asyncio.AbstractEventLoop | None) -> None:
    """Wait for the chunks that zarr is reading beside one that failed.

    zarr leaves them to themselves, and asyncio complains at the end of the process of each that nobody waited for.
    """
    if loop is None or not loop.is_running():
        return

    async def settled() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        done = (await asyncio.wait(others, timeout=_SETTLE_SECONDS))[0] if others else set()
        for task in done:
            if not task.cancelled():
                task.exception()  # looked at, it is not complained of

    asyncio.run_coroutine_threadsafe(settled(), loop).result()


def boxes(region: Region, chunks: Sequence[int], itemsize: int, limit_bytes: int) -> Iterator[Region]:
    """Yield pieces of a region that are cut at the borders of chunks only.

    Parameters
    ----------
    region : Region
        Not empty.
    chunks : sequence of int
        Extents of the grid, which starts at the origin.
    itemsize, limit_bytes : int
        A piece holds as many chunks as stay within the limit, at least one.

    Examples
    --------
    >>> [box.shape for box in boxes(Region((3,), (10,)), (4,), 1, 0)]
    [(1,), (4,), (2,)]
    """
    group = list(chunks)
    for axis in reversed(range(region.ndim)):
        first = region.start[axis] // chunks[axis]
        needed = -(-region.stop[axis] // chunks[axis]) - first
        other = math.prod(group) // group[axis] * itemsize
        fitting = max(1, limit_bytes // max(1, other * chunks[axis]))
        group[axis] = chunks[axis] * min(needed, fitting)
        if fitting < needed:
            break
    cuts = []
    for low, high, extent, chunk in zip(region.start, region.stop, group, chunks, strict=True):
        inner = range((low // chunk) * chunk + extent, high, extent)
        edges = [low, *inner, high]
        cuts.append(list(itertools.pairwise(edges)))
    for corner in itertools.product(*cuts):
        yield Region(tuple(a for a, _ in corner), tuple(b for _, b in corner))


def write_objects(array: Any, region: Region, block: NDArray, objects: Sequence[int], threads: int) -> None:
    """Store a block, each object of the store (shard or chunk) whole and by one thread.

    Parameters
    ----------
    array : zarr.Array
        Opened for writing.
    region : Region
        Starts and ends at borders of objects, or at the end of the array.
    block : ndarray
        Its voxels.
    objects : sequence of int
        Extents of an object.
    threads : int
        How many are written at once.
    """
    pieces = list(boxes(region, objects, 1, 0))

    def write(piece: Region) -> None:
        array[piece.slices] = np.ascontiguousarray(block[piece.relative_to(region).slices])

    if threads < 2 or len(pieces) < 2:
        for piece in pieces:
            write(piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(write, pieces):
            pass


def _open(node: Node, layout: Stored) -> Any:
    from zarr import Array
    from zarr.storage import FsspecStore, LocalStore, StorePath

    if is_remote(node.root):
        filesystem(node.root)  # tells which package is missing
        store = FsspecStore.from_url(str(node.root), read_only=True)
    else:
        store = LocalStore(Path(node.root), read_only=True)
    document = {key: value for key, value in node.document.items() if key != "attributes"}
    try:
        described = bounded(document, layout) | {"attributes": {}}
        return Array.from_dict(StorePath(_checked(store, layout), node.path), described)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise FormatError(f"The array {node.place} is described in a way that zarr refuses: {error}.") from error


def _checked(store: Any, layout: Stored) -> Any:
    """Return the store behind one that refuses objects which cannot be whole."""
    from zarr.abc.store import RangeByteRequest, SuffixByteRequest
    from zarr.storage import WrapperStore

    expected = math.prod(layout.objects) * layout.dtype.itemsize

    class CheckedStore(WrapperStore):  # type: ignore[misc]
        loop: asyncio.AbstractEventLoop | None = None  # where zarr reads; known once it does

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            self.loop = asyncio.get_running_loop()
            value = await self._store.get(key, prototype, byte_range)
            if value is not None:
                found = len(value)
                if isinstance(byte_range, RangeByteRequest) and found != byte_range.end - byte_range.start:
                    wanted = byte_range.end - byte_range.start
                    raise FormatError(f"{key}: {wanted} bytes from {byte_range.start} on were asked for, {found} came")
                if isinstance(byte_range, SuffixByteRequest) and found > byte_range.suffix:
                    raise FormatError(f"{key}: {byte_range.suffix} bytes were asked for, {found} came")
                if found == 0:
                    raise FormatError(f"{key} is empty")
                if layout.blosc and byte_range is None:
                    _check_frame(key, value, expected)
            return value

    return CheckedStore(store)


def _check_frame(key: str, value: Any, expected: int) -> None:
    """Raise unless a Blosc frame has the length that its header says, and the content that a chunk has."""
    head = bytes(value.as_numpy_array()[:_BLOSC_HEADER])
    length, content = int.from_bytes(head[12:16], "little"), int.from_bytes(head[4:8], "little")
    if len(head) < _BLOSC_HEADER or length != len(value):
        raise FormatError(f"{key} is torn: its Blosc header says {length} bytes, {len(value)} are there")
    if content != expected:
        raise FormatError(f"{key} holds {content} bytes of voxels, a chunk has {expected}")
