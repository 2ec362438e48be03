"""The one place that talks to blosc2: creating, opening, reading and writing stores.

A :class:`BloscStore` is an array of chunks, in memory or in a file, with small named records beside it (blosc2's
variable-length metalayers). It knows nothing of what those records mean, nor of numpy's indexing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from mlarray.errors import DTypeError, FormatError, UsageError
from mlarray.layout import ChunkGrid, Layout
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.storage.chunk_proof import FirstTouch
from mlarray.storage.forks import in_turn, is_forked, keep_for_ever, watch, with_safe_threads
from mlarray.storage.frame import (
    RESTORE,
    FrameHeader,
    FrameSizes,
    Version,
    refuse_contradictions,
    unfinished,
    usable_name,
    with_mark,
)
from mlarray.storage.gather import ChunkGatherer
from mlarray.storage.guards import ChunkGuard, RecordGuard, refuse_chunk, refuse_frame, refuse_header
from mlarray.storage.opened import OpenedFile
from mlarray.storage.options import COMPRESSION_THREADS, Compression, Params
from mlarray.storage.packing import ChunkPacker, packer_for
from mlarray.storage.parameters import compression_params, decompression_params, frame_opener
from mlarray.storage.publish import full_disk_told
from mlarray.storage.readahead import FileReadAhead, read_ahead_for, use_native
from mlarray.storage.records import StoredRecords
from mlarray.storage.same_file import SameFile, of_one_file

MapMode: TypeAlias = Literal["r", "r+", "w+", "c"] | None


class BloscStore(StoredRecords):
    """Chunks of one array, in memory or in a file.

    Instances come from :func:`create_store` and :func:`open_store`.

    Attributes
    ----------
    shape, chunks, blocks : tuple of int
        Extent per axis of the array, of a chunk and of a block, as stored.
    dtype : numpy dtype
        As stored.
    first_touch : FirstTouch or None
        Proves each chunk before it is decoded for the first time.
    """

    def __init__(
        self, array: Any, path: Path | None, mmap_mode: MapMode, *, writable: bool, version: Version | None = None
    ) -> None:
        self._array = array
        self._schunk = array.schunk
        self.path = path
        self.mmap_mode = mmap_mode
        self.writable = writable
        self.opened_version = version  # of a file that is only read
        self._file: OpenedFile | None = None
        self._same_file = SameFile(path, version) if path and version and mmap_mode is None else None
        self.is_marked = False  # by a writer that has not finished
        self._is_foreign = False  # made by the process that this one was forked from, and not usable here
        self._process = os.getpid()
        self._gatherer: ChunkGatherer | None = None
        self._packer: ChunkPacker | None = None
        self._ahead: FileReadAhead | None = None
        self.first_touch: FirstTouch | None = None
        self._guard: ChunkGuard | None = None
        self.record_guard: RecordGuard | None = None
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.chunks: tuple[int, ...] = tuple(array.chunks)
        self.blocks: tuple[int, ...] = tuple(array.blocks)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.lock = watch(self)

    @property
    def grid(self) -> ChunkGrid:
        """The grid of chunks and blocks."""
        return ChunkGrid(self.shape, tuple(max(1, c) for c in self.chunks), tuple(max(1, b) for b in self.blocks))

    @property
    def _sizes(self) -> FrameSizes:
        inside = self._schunk
        return FrameSizes(inside.nchunks, inside.chunksize, inside.blocksize, inside.typesize)

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return int(self._schunk.nchunks)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the compressed chunks."""
        return int(self._schunk.cbytes)

    @property
    def compression(self) -> Compression:
        """Codec, level and filters."""
        params = self._schunk.cparams
        filters = tuple(f.name for f in params.filters if getattr(f, "value", f) != 0)
        return Compression(params.codec.name, int(params.clevel), filters)

    @property
    def cparams(self) -> Any:
        """The compression parameters of blosc2 that the store was made with."""
        return self._schunk.cparams

    @in_turn
    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of a region that lies within the array, in the stored byte order."""
        shape = region.shape
        if not region.is_within(self.shape) or (out is not None and out.shape != shape):
            # blosc2 does not check either, and would read or write outside the buffers.
            raise IndexError(
                f"Region {region.start}..{region.stop} does not fit shape {self.shape}"
                f"{'' if out is None else f' and buffer {out.shape}'}."
            )
        if out is None:
            out = np.empty(shape, self.dtype)
        if 0 in shape:
            return out
        if self._gatherer is not None:
            self._gatherer.flush(region)
        self._look_at_file()
        if self.first_touch is not None:
            self.first_touch.before_read(region)
        direct = out.flags.c_contiguous and out.dtype == self.dtype
        block = out if direct else np.empty(shape, self.dtype)
        faults = 0 if self._ahead is None else self._ahead.before_read(region, self)
        self._stored(lambda: f"voxels {region.start} to {region.stop}", lambda: self._decode(region, block))
        if self._ahead is not None:
            self._ahead.after_read(faults)
        if not direct:
            out[...] = block
        return out

    @in_turn
    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block``, whose shape is that of the region; its values are cast to the stored dtype."""
        if not self.writable:
            raise UsageError(
                f"{self.path or 'The array'} was opened read-only.", hint="Open it with mmap_mode='r+' to write."
            )
        if not region.is_within(self.shape) or block.shape != region.shape:
            raise IndexError(
                f"Region {region.start}..{region.stop} does not fit shape {self.shape} and block {block.shape}."
            )
        if region.is_empty():
            return
        if self._gatherer is not None:
            self._gatherer.write(region, block)
        else:
            self._store_block(region, block)

    def gather_writes(self) -> None:
        """Keep chunks that are written in parts in memory until they are complete, and compress each once."""
        self._gatherer = ChunkGatherer(self._stored_block, self._store_block, self.grid)

    def pack_chunks(self, at_once: int) -> None:
        """Compress whole chunks that are written together side by side, ``at_once`` of them; other threads run meanwhile."""
        import blosc2

        self._packer = packer_for(self._schunk.cparams, self.grid, self.dtype, blosc2, at_once=at_once)

    @in_turn
    def flush(self, region: Region | None = None) -> None:
        """Store what is still gathered, of the chunks of ``region`` or of all."""
        if self._gatherer is not None:
            self._gatherer.flush(region)

    def prefetch(self, regions: Iterable[Region]) -> None:
        """Announce reads to come to the kernel, without waiting, where there is a file and the system offers that."""
        if self._ahead:
            self._ahead.prefetch(regions, self)

    @in_turn
    def chunk_bytes(self, index: int) -> bytes:
        """Return the stored bytes of one chunk."""
        self._look_at_file()
        return bytes(self._stored(lambda: f"chunk {index}", lambda: self._checked_chunk(index)))

    @in_turn
    def put_chunk_bytes(self, index: int, data: bytes) -> None:
        """Replace one chunk by stored bytes of a store with the same shape, dtype, chunks and blocks."""
        with self._writing():
            self._schunk.update_chunk(index, data)

    @in_turn
    def mark(self, *, unfinished: bool) -> None:
        """Write into the header that the store is not finished, or that it is. See :func:`~mlarray.storage.frame.with_mark`."""
        from blosc2 import blosc2_ext

        layer = with_mark(blosc2_ext.meta__getitem__(self._schunk, "b2nd"), unfinished=unfinished)
        with self._writing():
            blosc2_ext.meta__setitem__(self._schunk, "b2nd", layer)
        self.is_marked = unfinished

    @in_turn
    def continue_in(self, path: Path) -> None:
        """Go on with the file at ``path``, which holds what this store holds, and write there.

        Files are written with ordinary calls: a full disk is then an error of the call. Through a memory map it would be SIGBUS.
        """
        own = open_store(path, mode="a", mmap_mode=None, dparams=self._schunk.dparams)
        if self.writable:
            own._schunk.cparams = self._schunk.cparams  # a file does not keep the number of threads
        gatherer, packer = self._gatherer, self._packer
        self.close()
        self._gatherer, self._packer = gatherer, packer
        self._array, self._schunk, self._file, self.is_marked = own._array, own._schunk, own._file, own.is_marked
        self._guard, self.record_guard = own._guard, own.record_guard
        self.path, self.mmap_mode, self.writable = path, None, True
        self.opened_version = None

    @in_turn
    def frame_bytes(self) -> bytes:
        """Return the whole store as the bytes of a file: chunks as stored, and records."""
        self.flush()
        return bytes(self._schunk.to_cframe())

    def _stored_block(self, region: Region) -> NDArray:
        self._check(region)
        block = np.empty(region.shape, self.dtype)
        self._array.get_slice_numpy(block, (region.start, region.stop))
        return block

    def _store_block(self, region: Region, block: NDArray) -> None:
        with self._writing():
            if self._packer is not None and self._packer.takes(region):
                for index, data in self._packer.packed(region, block):
                    self._schunk.update_chunk(index, data)
            else:
                self._check(region)
                self._array.set_slice((region.start, region.stop), np.ascontiguousarray(block, dtype=self.dtype))

    def _decode(self, region: Region, block: NDArray) -> None:
        self._check(region)
        self._array.get_slice_numpy(block, (region.start, region.stop))

    def _check(self, region: Region) -> None:
        if self._guard is not None:
            self._guard.before_touch(region, self)

    def _checked_chunk(self, index: int) -> bytes:
        data = bytes(self._schunk.get_chunk(index))
        refuse_chunk(data, self._sizes)
        return data

    def _writing(self) -> AbstractContextManager[None]:
        self._look_at_file()
        return full_disk_told(self.path)

    def _look_at_file(self) -> None:
        if self._file is not None:
            self._file.refuse_other() if self.mmap_mode is None else self._file.refuse_shortened()

    def _stored(self, what: Callable[[], str], get: Callable[[], Any]) -> Any:
        """Return what blosc2 gets out of the store, again where the file may have been another one meanwhile."""
        try:
            found = get()
            while self._same_file is not None and not self._same_file.was_left_alone():
                found = get()
        except (RuntimeError, KeyError) as error:  # they say nothing more; KeyError: the file was changed
            if self._same_file is not None:
                self._same_file.was_left_alone()
            raise self._damaged(what(), error) from error
        return found

    def _damaged(self, what: str, error: Exception) -> FormatError:
        return FormatError(
            f"{self.path or 'The array'} is damaged: {what} cannot be decoded ({str(error) or 'by blosc2'}).",
            hint=RESTORE,
        )

    def ready(self) -> None:
        """Raise when the store is closed, or get one of this process's own where that of the parent cannot be used."""
        if self._array is None:
            raise DTypeError(f"There is no array: {self.path or 'it'} was closed.")
        if self._is_foreign:
            self._adopt()

    def in_child(self, *, at_rest: bool) -> None:
        """Be told that this process was just forked; ``at_rest``: that no other thread was using the store."""
        self.lock = watch(self)
        if self._array is None:
            return
        # Chunks of a store that is only read, by one thread, are decoded in this process as in that of the parent.
        if not at_rest or self.writable or self._schunk.dparams.nthreads > 1:
            keep_for_ever(self._array, self._schunk)
            self._is_foreign = True

    def _adopt(self) -> None:
        from mlarray.storage.copies import store_of_parent

        self._is_foreign = False  # records and stored chunks can be read
        own = store_of_parent(self, self._process)
        self._array, self._schunk, self._ahead = own._array, own._schunk, own._ahead
        self._guard, self.record_guard = own._guard, own.record_guard

    def close(self) -> None:
        """Release the file, when no other thread is reading it."""
        with self.lock:
            self._array = self._schunk = self._gatherer = self._packer = None
            self._ahead = self.first_touch = self._same_file = None

    @property
    def is_open(self) -> bool:
        """Whether the store can be read."""
        return self._array is not None


def create_store(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    layout: Layout,
    *,
    path: Path | None = None,
    cparams: Params = None,
    dparams: Params = None,
    shuffle: bool = True,
    threads: int = COMPRESSION_THREADS,
) -> BloscStore:
    """Create a store whose voxels are not written yet (they read as zeros).

    Parameters
    ----------
    shape, dtype : tuple of int, numpy dtype
        Of the array, at least one axis.
    layout : Layout
        Chunks and blocks, or None in both for blosc2's own choice.
    path : Path, optional
        File to create; an existing one is replaced by a new file, so that readers of the old one keep it. Default: memory.
    cparams, dparams : mapping or blosc2 object, optional
        Replace the defaults as a whole.
    shuffle : bool
        Whether the default parameters use the SHUFFLE filter.
    threads : int
        Compression threads of the default parameters.

    Returns
    -------
    BloscStore
        Writable.
    """
    import blosc2

    name = None if path is None else usable_name(path)
    sizes = {} if layout.chunks is None else {"chunks": layout.chunks, "blocks": layout.blocks}
    target: dict[str, Any] = {}
    if path is not None:
        path.unlink(missing_ok=True)
        target = {"urlpath": name, "mode": "w"}
    try:
        array = blosc2.zeros(
            shape,
            dtype,
            cparams=compression_params(blosc2, cparams, dtype, shuffle=shuffle, threads=threads),
            dparams=decompression_params(blosc2, dparams),
            **sizes,
            **target,
        )
    except (RuntimeError, ValueError, TypeError, OverflowError, AttributeError) as error:
        # It checks little of what it gets.
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"The folder {path.parent} does not exist.", hint="Create it first.") from error
        if path is not None:  # what can be made in memory fails for want of space, or of permission
            create_store(shape, dtype, layout, cparams=cparams, dparams=dparams, shuffle=shuffle, threads=threads)
            with full_disk_told(path):
                raise RuntimeError(str(error)) from error
        raise UsageError(
            f"Blosc2 cannot create an array of shape {shape} and dtype {dtype} with chunks {layout.chunks} and blocks "
            f"{layout.blocks}: {error}."
        ) from error
    return BloscStore(array, path, None, writable=True)


def open_store(path: Path, *, mode: str = "r", mmap_mode: MapMode = "r", dparams: Params = None) -> BloscStore:
    """Open the store in a file.

    Parameters
    ----------
    path : Path
        An existing file.
    mode : {"r", "a"}
        Used where ``mmap_mode`` is None.
    mmap_mode : {"r", "r+", "c", None}
        Memory mapping; ``"c"`` keeps changes in memory.
    dparams : mapping or blosc2.DParams, optional
        Default: 1 thread.

    Raises
    ------
    FileNotFoundError, PermissionError
        As the system says.
    UsageError
        When blosc2 cannot take the name.
    FormatError
        When the file is no array of blosc2, is damaged, or was never finished.
    """
    name = usable_name(path)
    return of_one_file(path, lambda header: _opened(path, name, header, mode, mmap_mode, dparams))


def _opened(path: Path, name: str, header: FrameHeader, mode: str, mmap_mode: MapMode, dparams: Params) -> BloscStore:
    import blosc2

    offsets, records = refuse_frame(path, header, decoded), RecordGuard(path, header)
    use_native(getattr(blosc2, "set_prefetch", None))
    writable = mmap_mode in ("r+", "c") if mmap_mode else mode == "a"
    if writable and mmap_mode != "c" and not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be opened for writing: permission denied.")
    # What is written moves chunks; a reader's file stays as it is.
    ahead = None if writable else read_ahead_for(path, header, decoded)
    try:
        array = frame_opener(blosc2)(name, mode, 0, mmap_mode=mmap_mode, dparams=decompression_params(blosc2, dparams))
    except (RuntimeError, ValueError, TypeError, SyntaxError, OverflowError) as error:  # no dtype of numpy's
        if header.is_unfinished:
            raise unfinished(path) from error
        raise FormatError(f"{path} is damaged or was never finished: blosc2 cannot open it.", hint=RESTORE) from error
    if type(array) is not blosc2.NDArray:
        raise FormatError(f"{path} holds a Blosc2 {type(array).__name__}, not an array.")
    if writable and is_forked():
        array.schunk.cparams = with_safe_threads(array.schunk.cparams)
    opened = BloscStore(array, path, mmap_mode, writable=writable, version=None if writable else header.version)
    frame = opened._sizes
    if opened.dtype.itemsize != frame.item_bytes:  # all else was compared when the header was read
        sizes = {"shape": opened.shape, "chunks": opened.chunks, "blocks": opened.blocks}
        refuse_contradictions(path, frame, **sizes, itemsize=opened.dtype.itemsize)
    opened._ahead, opened.record_guard = ahead, records
    opened._guard = ChunkGuard(path, header, frame, offsets)
    if mmap_mode or writable:  # the records behind the index are in memory by now
        needed = min(header.frame_bytes, header.data_end + 32 + 8 * frame.chunk_count)
        opened._file = OpenedFile(path, *header.version[:2], needed)
    opened.is_marked = header.is_unfinished
    return opened


def decoded(chunk: bytes) -> bytes:
    """Return the bytes of a stored chunk; a damaged one, or one of a foreign codec, is a RuntimeError or ValueError."""
    import blosc2

    size, block, stored = refuse_header(chunk)
    if stored > len(chunk):  # `decompress` does not ask for it
        raise ValueError(f"It has {len(chunk)} of {stored} bytes.")
    # The one makes a context of its own, which takes 35 times as long; the other could use threads for several blocks.
    return bytes(blosc2.decompress(chunk) if size <= block else blosc2.decompress2(chunk, nthreads=1))


def store_from_frame(data: bytes) -> BloscStore:
    """Return a store in memory made of :meth:`BloscStore.frame_bytes` of this process or one like it."""
    import blosc2

    array = blosc2.ndarray_from_cframe(data, copy=True)
    if is_forked():
        array.schunk.cparams = with_safe_threads(array.schunk.cparams)
        array.schunk.dparams = with_safe_threads(array.schunk.dparams)
    return BloscStore(array, None, None, writable=True)
