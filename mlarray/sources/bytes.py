"""Where do the bytes of a raw voxel block come from? A file, several files in a row, or a compressed stream.

Each answers ``readinto(offset, buffer)``, where offset 0 is the first byte of the voxel block. A file is read with
positioned reads, which share no state between threads and never fault on a file that shrinks (a memory map would). A
stream can only go forward: going back means decoding again from the start, which is counted.
"""

from __future__ import annotations

import bz2
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, cast

from mlarray.errors import FormatError
from mlarray.locks import ForkSafeLock

SKIP_BYTES = 1 << 20
# How exactly an error can say where a stream was cut; and what decoders that allocate each read do best with.
STREAM_PIECE_BYTES = 512 * 1024


class ByteReader(Protocol):
    """Random or forward access to the bytes of a voxel block."""

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset``; a short file is a :class:`FormatError`."""

    def close(self) -> None:
        """Release the file; a later read opens it again."""


class FileBytes:
    """Bytes of one file from ``start`` on.

    The file is opened on first use and once per process: a forked child or an unpickled copy opens its own.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._start = start
        self._fd = -1
        self._pid = 0
        self._lock = ForkSafeLock()

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset``."""
        fd = self._descriptor()
        position = self._start + offset
        done = 0
        while done < len(buffer):
            count = (
                os.preadv(fd, [buffer[done:]], position + done)
                if _HAS_PREADV
                else self._seek_read(buffer, done, position)
            )
            if count == 0:
                raise short_data(self._path, position + len(buffer), position + done)
            done += count

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        with self._lock:
            if self._fd >= 0 and self._pid == os.getpid():
                os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (FileBytes, (self._path, self._start))

    def _descriptor(self) -> int:
        with self._lock:
            if self._fd < 0 or self._pid != os.getpid():
                self._fd = os.open(self._path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
                self._pid = os.getpid()
            return self._fd

    def _seek_read(self, buffer: memoryview, done: int, position: int) -> int:
        with self._lock:  # Windows has no positioned reads: seek and read must not interleave between threads
            os.lseek(self._fd, position + done, os.SEEK_SET)
            data = os.read(self._fd, min(len(buffer) - done, 1 << 24))
        buffer[done : done + len(data)] = data
        return len(data)


_HAS_PREADV = hasattr(os, "preadv")


class JoinedBytes:
    """Several byte blocks read as one, each of a known length (a header that names one file per slice)."""

    def __init__(self, parts: Sequence[tuple[ByteReader, int]]) -> None:
        self._parts = tuple(parts)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset``, across part borders."""
        start = 0
        for part, length in self._parts:
            low, high = max(offset, start), min(offset + len(buffer), start + length)
            if low < high:
                part.readinto(low - start, buffer[low - offset : high - offset])
            start += length

    def close(self) -> None:
        """Close every part."""
        for part, _ in self._parts:
            part.close()


class StreamBytes:
    """Bytes of a compressed stream, decoded forward once.

    Parameters
    ----------
    path : Path
        The file; it is part of error messages.
    open_stream : callable
        ``open_stream(path)`` returns a readable whose first byte is offset 0 (or ``start``). Must be picklable.
    length : int
        Decoded bytes of the voxel block. When the last of them has been read, the rest of the stream is read too, so
        that a checksum at its end is verified.
    start : int, optional
        Decoded bytes before the voxel block.

    Attributes
    ----------
    restarts : int
        How often the stream was decoded again because a read went back.
    """

    def __init__(self, path: Path, open_stream: Callable[[Path], Any], length: int, start: int = 0) -> None:
        self._path = path
        self._open_stream = open_stream
        self._length = length
        self._start = start
        self._stream: BinaryIO | None = None
        self._position = 0
        self._pid = 0
        self._lock = ForkSafeLock()
        self.restarts = 0

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Decode up to ``offset`` and fill ``buffer``."""
        with self._lock:
            try:
                self._forward_to(self._start + offset)
                self._fill(buffer)
                if offset + len(buffer) == self._length:
                    self._check_end()
            except decode_errors() as error:
                found = self._position
                self._drop()
                if isinstance(error, FormatError) or (isinstance(error, OSError) and error.errno is not None):
                    raise
                if isinstance(error, EOFError):
                    raise FormatError(
                        f"{self._path} is cut in the middle of its compressed stream: {self._start + self._length} bytes "
                        f"are needed, {found} were decoded before that.",
                        hint="Copy or export it again.",
                    ) from error
                raise FormatError(f"{self._path} is damaged: {error}.", hint="Restore it from its source.") from error

    def close(self) -> None:
        """Close the stream; a later read decodes it from the start."""
        with self._lock:
            self._drop()

    def __reduce__(self) -> tuple[object, ...]:
        return (StreamBytes, (self._path, self._open_stream, self._length, self._start))

    def _forward_to(self, position: int) -> None:
        if self._stream is not None and (self._pid != os.getpid() or position < self._position):
            self._drop()
            self.restarts += 1
        if self._stream is None:
            self._stream = self._open_stream(self._path)
            self._position = 0
            self._pid = os.getpid()
        scratch = memoryview(bytearray(min(SKIP_BYTES, max(0, position - self._position))))
        while self._position < position:
            self._fill(scratch[: position - self._position])

    def _fill(self, buffer: memoryview) -> None:
        assert self._stream is not None
        done = 0
        while done < len(buffer):
            count = self._stream.readinto(buffer[done : done + STREAM_PIECE_BYTES])  # type: ignore[attr-defined]
            if not count:
                raise short_data(self._path, self._start + self._length, self._position)
            done += count
            self._position += count

    def _check_end(self) -> None:
        # Reading past the last voxel makes the decoder compare its checksum; what follows the voxels is not ours.
        assert self._stream is not None
        scratch = memoryview(bytearray(SKIP_BYTES))
        while count := self._stream.readinto(scratch):  # type: ignore[attr-defined]
            self._position += count

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def decode_errors() -> tuple[type[Exception], ...]:
    """Return what decoders raise over a damaged stream; an OSError with an ``errno`` is not damage."""
    from isal import isal_zlib  # its error is no zlib.error

    return (OSError, EOFError, ValueError, zlib.error, cast("type[Exception]", isal_zlib.error))


class _Unbuffered:
    """A gzip file that decodes straight into the caller's memory.

    ``GzipFile`` has no ``readinto`` of its own: the inherited one allocates what it reads and copies it, which costs 10 % of
    the time. The buffered reader inside decodes into place; where there is none, the file itself is read.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.readinto = getattr(file, "_buffer", file).readinto
        self.read = file.read
        self.close = file.close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def open_gzip(path: Path) -> Any:
    """Open a gzip file for reading; decoded with ISA-L, about twice as fast as zlib."""
    from isal import igzip

    return _Unbuffered(igzip.open(path, "rb"))


def open_bzip2(path: Path) -> Any:
    """Open a bzip2 file for reading."""
    return bz2.open(path, "rb")


def short_data(path: Path, expected: int, found: int) -> FormatError:
    """Return the error for a file that ends before its voxels do; both counts in bytes."""
    return FormatError(
        f"{path} is too short: {expected} bytes are needed, {found} were found.", hint="Copy or export it again."
    )
