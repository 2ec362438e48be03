"""Which bytes will a read need, and can storage fetch them in parallel?

A memory-mapped read of a cold file waits for one page after the other. The blocks that a region touches are known before: the
index of a frame says where each chunk lies, the header of a chunk where each of its blocks lies. Announcing exactly those
ranges to the kernel (``posix_fadvise``, ``WILLNEED``) loads them at once; the read itself then finds them there or on their
way.

Announcing costs time when the data is cached already, so it is done only while a file is *cold*. A file is cold after opening
it took longer than memory would, or after a read in which the kernel had to fetch pages; it stays cold for the next
:data:`COLD_READS` reads, and each read renews that when its first bytes were not there yet.

The setting is one of the process (:func:`set_read_ahead`), the one piece of shared state in this package. It is kept per
process: a forked child starts with the setting of its parent and files of its own.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlarray.chunk_grid import ChunkGrid
from mlarray.errors import UsageError
from mlarray.locks import ForkSafeLock
from mlarray.region import Region
from mlarray.storage.frame import FrameHeader
from mlarray.storage.frame_parts import Decompress, read_offsets

try:
    import resource
except ImportError:  # Windows
    _USAGE_OF_THREAD = None
else:
    _USAGE_OF_THREAD = getattr(resource, "RUSAGE_THREAD", None)

DEFAULT_REQUESTS = 256
ENVIRONMENT = "BLOSC_PREFETCH"
COLD_READS = 4
SLOW_BYTE_SECONDS = 60e-6  # a cached page takes 2 to 10 microseconds, a disk or a network at least 80
MERGE_GAP_BYTES = 48 * 1024
DEFAULT_WINDOW_BYTES = 128 * 1024
_CHUNK_HEADER_BYTES = 32
_COPIED_FLAG = 0x2  # chunk stored without compression: its blocks follow each other
# What a damaged or replaced file can cause here. A hint is then not given; the read itself tells what is wrong.
UNUSABLE = (OSError, ValueError, RuntimeError, IndexError, OverflowError, struct.error)
Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ReadAheadStatus:
    """What read-ahead does in this process.

    Parameters
    ----------
    requests : int
        The setting: most ranges announced for one read; 0 is off.
    method : {"fadvise", "blosc2", "none"}
        Who does it.
    reason : str
        Why.
    announced_bytes, announced_ranges : int
        What this process has announced so far.
    """

    requests: int
    method: str
    reason: str
    announced_bytes: int
    announced_ranges: int


class _Setting:
    """The process-wide setting and its counters."""

    def __init__(self) -> None:
        self.requests: int | None = None
        self.native: Callable[[int], object] | None = None
        self.announced_bytes = 0
        self.announced_ranges = 0


_setting = _Setting()


def set_read_ahead(requests: int) -> None:
    """Set how many ranges a read of a cold file may announce, for all files of this process.

    Parameters
    ----------
    requests : int
        0 turns read-ahead off; the default is 256.

    Raises
    ------
    UsageError
        For anything but an integer from 0 on.
    """
    if isinstance(requests, bool) or not isinstance(requests, int) or requests < 0:
        raise UsageError(f"Read-ahead is a number of ranges from 0 on, got {requests!r}.")
    _setting.requests = requests
    if _setting.native is not None:
        _setting.native(requests)


def get_read_ahead() -> int:
    """Return the number of ranges a read may announce; 0 when read-ahead is off.

    Without a call of :func:`set_read_ahead` the environment variable ``BLOSC_PREFETCH`` decides (0 turns it off), else 256.
    """
    if _setting.requests is None:
        given = os.environ.get(ENVIRONMENT, "").strip()
        _setting.requests = int(given) if given.isdigit() else DEFAULT_REQUESTS
    return _setting.requests


def read_ahead_status() -> ReadAheadStatus:
    """Return what read-ahead does in this process, and why."""
    requests = get_read_ahead()
    if requests and _setting.native is not None:
        method, reason = "blosc2", "This blosc2 reads ahead by itself."
    elif not hasattr(os, "posix_fadvise"):
        method, reason = (
            "none",
            "This system has no posix_fadvise; reads of cold files wait for one page after the other.",
        )
    elif requests == 0:
        method, reason = "none", f"Turned off by set_read_ahead(0) or {ENVIRONMENT}=0."
    else:
        method, reason = "fadvise", "The blocks that a read of a cold file needs are announced to the kernel."
    return ReadAheadStatus(requests, method, reason, _setting.announced_bytes, _setting.announced_ranges)


class Gridded(Protocol):
    """What knows the chunks and blocks of the array; asked only when something is announced."""

    @property
    def grid(self) -> ChunkGrid:
        """Chunks and blocks."""


def use_native(set_prefetch: Callable[[int], object] | None) -> None:
    """Let blosc2 read ahead by itself, where it has a setter (no release on PyPI yet); it gets the present setting."""
    if set_prefetch is not None and _setting.native is None:
        _setting.native = set_prefetch
        if ENVIRONMENT not in os.environ:
            set_prefetch(get_read_ahead())


def read_ahead_for(path: Path, header: FrameHeader, decompress: Decompress) -> FileReadAhead | None:
    """Return the read-ahead for a file that is being opened, or None where there is none.

    When reading the header had to wait for storage, the index and the records at the end of the file, which opening it
    reads next, are announced at once.
    """
    if _setting.native is not None or get_read_ahead() == 0 or not hasattr(os, "posix_fadvise"):
        return None
    ahead = FileReadAhead(path, header, decompress)
    if header.seconds > SLOW_BYTE_SECONDS:
        ahead.announce_end()
    return ahead


class FileReadAhead:
    """Read-ahead for one open file.

    Parameters
    ----------
    path : Path
        The file.
    header : FrameHeader
        Where the chunks begin, how long they are, how long the frame is.
    decompress : callable
        ``decompress(chunk)`` returns the bytes of a Blosc2 chunk; it decodes the index.

    Attributes
    ----------
    cold_reads : int
        How many reads to come are announced.
    """

    def __init__(self, path: Path, header: FrameHeader, decompress: Decompress) -> None:
        self._path = path
        self._header = header
        self._start = header.header_bytes
        self._data_end = header.data_end
        self._decompress = decompress
        self._lock = ForkSafeLock()
        self._fd = -1
        self._pid = 0
        self._offsets: npt.NDArray[np.int64] | None = None
        self._block_ends: dict[int, tuple[list[int], list[int]] | None] = {}
        self._usable = True
        self._grid: ChunkGrid | None = None
        self.cold_reads = 0

    def before_read(self, region: Region, store: Gridded) -> int:
        """Announce what a read needs if the file is cold; return the page faults so far, for :meth:`after_read`."""
        if self.cold_reads > 0 and self._usable and get_read_ahead() > 0:
            self._grid = self._grid or store.grid
            try:
                self.announce(region)
            except UNUSABLE:
                self._usable = False  # a hint that cannot be given; the read itself tells what is wrong with the file
        return page_faults()

    def after_read(self, faults: int) -> None:
        """Note whether the read had to wait for pages."""
        if page_faults() != faults:
            self.cold_reads = COLD_READS

    def announce_end(self) -> None:
        """Announce the index and the records behind the chunks, and take the file for cold."""
        self.cold_reads = COLD_READS
        with suppress(OSError):
            _advise(self._descriptor(), [(self._data_end, self._header.frame_bytes)], self._window)

    def announce(self, region: Region) -> None:
        """Announce the blocks of a read that follows at once, and find out whether the file is still cold."""
        ranges = self.ranges(region)
        if not ranges:
            return
        fd = self._descriptor()
        _advise(fd, ranges, self._window)
        before = time.perf_counter()
        os.pread(fd, 1, ranges[0][0])
        waited = time.perf_counter() - before > SLOW_BYTE_SECONDS
        self.cold_reads = COLD_READS if waited else self.cold_reads - 1

    def prefetch(self, regions: Iterable[Region], store: Gridded) -> None:
        """Announce the blocks of reads to come, from a thread of its own, so that the caller does not wait."""
        if get_read_ahead() > 0 and self._usable:
            self._grid = self._grid or store.grid
            _background().put((self, list(regions)))

    def announce_now(self, regions: Iterable[Region]) -> None:
        """Announce the blocks of several regions; may wait for the index of the file."""
        merged = _merged(sorted(piece for region in regions for piece in self.ranges(region)))
        _advise(self._descriptor(), merged, self._window)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._fd >= 0 and self._pid == os.getpid():
                os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    @property
    def _window(self) -> int:
        return _window_bytes(os.fstat(self._descriptor()).st_dev)

    def _descriptor(self) -> int:
        with self._lock:
            if self._fd < 0 or self._pid != os.getpid():
                self._fd = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                self._pid = os.getpid()
            return self._fd

    def ranges(self, region: Region, store: Gridded | None = None) -> Ranges:
        """Return the byte ranges of the blocks of ``region`` in the file, sorted and merged."""
        if store is not None:
            self._grid = self._grid or store.grid
        if region.is_empty() or self._grid is None:
            return []
        offsets = self._chunk_offsets()
        wanted: dict[int, list[int]] = {}
        for chunk, block in self._grid.blocks_touched(region.start, region.stop):
            wanted.setdefault(chunk, []).append(block)
        stored = {chunk: blocks for chunk, blocks in wanted.items() if offsets[chunk] >= 0}
        self._read_chunk_headers(stored)
        pieces: Ranges = []
        for chunk, blocks in stored.items():
            known = self._block_ends[chunk]
            if known is None:
                pieces.append(self.chunk_range(chunk))
                continue
            starts, ends = known
            begin = int(offsets[chunk]) + self._start
            pieces += [(begin + starts[block], begin + ends[block]) for block in blocks if block < len(starts)]
        return _merged(sorted(pieces))

    def _chunk_offsets(self) -> npt.NDArray[np.int64]:
        if self._offsets is None:
            assert self._grid is not None
            self._offsets = read_offsets(self._descriptor(), self._header, self._decompress, self._grid.chunk_count)
        return self._offsets

    def _read_chunk_headers(self, chunks: Iterable[int]) -> None:
        """Read where the blocks of some chunks lie; the headers are announced together and wait once."""
        new = [chunk for chunk in chunks if chunk not in self._block_ends]
        if not new or self._grid is None:
            return
        fd, offsets = self._descriptor(), self._chunk_offsets()
        count = int(np.prod([-(-c // b) for c, b in zip(self._grid.chunks, self._grid.blocks, strict=True)]))
        size = _CHUNK_HEADER_BYTES + 4 * count
        places = [int(offsets[chunk]) + self._start for chunk in new]
        if len(new) > 1:
            _advise(fd, [(place, place + size) for place in places], self._window)
        for chunk, place in zip(new, places, strict=True):
            self._block_ends[chunk] = _block_ranges(os.pread(fd, size, place), count)

    def chunk_range(self, chunk: int, store: Gridded | None = None) -> tuple[int, int]:
        """Return the byte range of a whole chunk: up to the next chunk behind it."""
        if store is not None:
            self._grid = self._grid or store.grid
        offsets = self._chunk_offsets()
        begin = int(offsets[chunk])
        behind = offsets[offsets > begin]
        end = int(behind.min()) + self._start if len(behind) else self._data_end
        return begin + self._start, end


def _block_ranges(raw: bytes, count: int) -> tuple[list[int], list[int]] | None:
    """Return first and last byte of each block relative to its chunk, or None for a chunk without block starts."""
    if len(raw) < _CHUNK_HEADER_BYTES:
        return None
    flags, compressed = raw[2], struct.unpack_from("<i", raw, 12)[0]
    if flags & _COPIED_FLAG or len(raw) < _CHUNK_HEADER_BYTES + 4 * count:
        return None
    starts = np.frombuffer(raw, np.int32, count, _CHUNK_HEADER_BYTES).astype(np.int64)
    # Several compression threads write blocks as they finish: the end of one is the next higher start of any other.
    ordered = np.append(np.sort(starts), compressed)
    return starts.tolist(), ordered[np.searchsorted(ordered, starts, side="right")].tolist()


def _merged(pieces: Iterable[tuple[int, int]]) -> Ranges:
    merged: Ranges = []
    for low, high in pieces:
        if merged and low - merged[-1][1] <= MERGE_GAP_BYTES:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _advise(fd: int, ranges: Ranges, window: int) -> None:
    """Announce ranges in steps of the device's read-ahead window: the kernel silently cuts a longer request to that."""
    left = get_read_ahead()
    for low, high in ranges:
        for begin in range(low, high, window):
            if left <= 0:
                return
            length = min(window, high - begin)
            os.posix_fadvise(fd, begin, length, os.POSIX_FADV_WILLNEED)
            _setting.announced_bytes += length
            _setting.announced_ranges += 1
            left -= 1


def page_faults() -> int:
    """Return how often this thread has waited for a page or a block of a file so far; 0 where the system does not tell."""
    if _USAGE_OF_THREAD is None:
        return 0
    usage = resource.getrusage(_USAGE_OF_THREAD)
    return usage.ru_majflt + usage.ru_inblock


@cache
def _window_bytes(device: int) -> int:
    """Return the read-ahead window of a device."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for place in (f"/sys/class/bdi/{number}", f"/sys/dev/block/{number}/queue", f"/sys/dev/block/{number}/../queue"):
        try:
            kibibytes = int(Path(place, "read_ahead_kb").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if kibibytes > 0:
            return kibibytes * 1024
    return DEFAULT_WINDOW_BYTES


_Work = tuple[FileReadAhead, list[Region]]


class _Background:
    """The thread that announces for :meth:`FileReadAhead.prefetch`; one per process, made anew after a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.work: queue.Queue[_Work] = queue.Queue()
        threading.Thread(target=self._run, name="mlarray-read-ahead", daemon=True).start()

    def put(self, work: _Work) -> None:
        """Hand over work."""
        self.work.put(work)

    def _run(self) -> None:
        while True:
            file, regions = self.work.get()
            # A hint that cannot be given is dropped; the read itself tells what is wrong with the file.
            with suppress(*UNUSABLE):
                file.announce_now(regions)
            self.work.task_done()


_workers: list[_Background] = []


def wait_for_prefetches() -> None:
    """Wait until everything handed to :meth:`FileReadAhead.prefetch` in this process has been announced."""
    if _workers and _workers[-1].pid == os.getpid():
        _workers[-1].work.join()


def _background() -> _Background:
    if not _workers or _workers[-1].pid != os.getpid():
        _workers[:] = [_Background()]
    return _workers[-1]
