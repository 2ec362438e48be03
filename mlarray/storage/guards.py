"""May blosc2 decode this? What a chunk says about itself, compared with what its frame says, before blosc2 acts on it.

The decoders of blosc2 stay within the buffers that they are given; how long those are it takes from the header of a chunk,
from the table of its blocks, and from the header of the frame. So each of the three must say the same, and ask only for
what is compiled into blosc2: a number of a codec or filter beyond would make it look for a module of that name and run it.

Chunks of voxels are checked when they are touched for the first time. The index of the chunks and the records beside them
are chunks of Blosc2, too; they are checked when a file is opened.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlarray.errors import FormatError
from mlarray.limits import RECORD_BYTES
from mlarray.region import Region
from mlarray.storage.frame import (
    RESTORE,
    FrameHeader,
    FrameSizes,
    open_to_read,
    read_at,
    unfinished,
    version_of_open,
)
from mlarray.storage.frame_parts import Decompress

# c-blosc2's README_CHUNK_FORMAT: version, version of the codec, flags, bytes of an item; of the chunk decoded, of a block,
# of the chunk as stored; filters, codec of a plugin and its parameter, parameters of the filters, two more bytes of flags.
CHUNK_HEADER_BYTES = 32
_SIZES = struct.Struct("<iii")
_SIZES_AT = 4
_OFFSET = struct.Struct("<q")
_VERSIONS = range(2, 6)  # 6: blocks of varying length, which an array does not have
_EXTENDED = 0x05  # both shuffle flags: the header has all of its 32 bytes
_COPIED = 0x02
_SPECIAL = 0x70  # all of the chunk is one value: 0x10 zero, 0x20 NaN, 0x30 the one behind the header, 0x40 not written
_ONE_VALUE, _NOT_WRITTEN = 0x30, 0x40
_LAZY_OR_INSTRUMENTED = 0x88
CODECS = frozenset({0, 1, 2, 4, 5})  # numbers of BloscLZ, LZ4, LZ4HC, zlib and Zstandard; those of plugins begin at 32
_CHUNK_CODECS = frozenset({0, 1, 3, 4})  # their formats, as chunks number them; 6 is that of a plugin
FILTERS = frozenset({0, 1, 2, 3, 4, 35, 36})  # and two that are compiled in: bytedelta and int_trunc

_FRAME = struct.Struct(
    ">26x2s20xi1xi1xi9x6s"
)  # README_CFRAME_FORMAT: kind, codec; bytes of item, block, chunk; filters
_CODEC_BITS = 0x0F

_TRAILER_END_BYTES = 23  # behind the records: a type byte, the length of the trailer, a fingerprint
_RECORDS_AT = 6  # in the trailer: array, version, array, type and size of the table of names; then the table
_BIN_BYTES = 5  # type and length, before each record
_RECORD_BYTES = 64 << 20  # what any record may claim
_RECORD_RATIO = 255  # the most that LZ4 achieves


class UndecodableError(RuntimeError):
    """What blosc2 must not be asked to decode; an error like its own, which the store tells with the name of the file."""


class Chunked(Protocol):
    """What holds the chunks."""

    writable: bool
    shape: tuple[int, ...]
    chunks: tuple[int, ...]

    def chunk_bytes(self, index: int) -> bytes:
        """Return the bytes of a chunk, checked by :func:`refuse_chunk`."""


class ChunkGuard:
    """Checks each chunk of a file the first time that something touches it.

    Parameters
    ----------
    path : Path
        The file.
    header : FrameHeader
        Of the file, as it was opened.
    sizes : FrameSizes
        How blosc2 understands it.
    offsets : bytes
        Of its chunks, from :func:`refuse_frame`.
    """

    def __init__(self, path: Path, header: FrameHeader, sizes: FrameSizes, offsets: bytes) -> None:
        self._path = path
        self._header = header
        self._sizes = sizes
        self._offsets = offsets
        self._numbers: npt.NDArray[np.int64] | None = None
        self._unknown: npt.NDArray[np.bool_] | None = None

    def before_touch(self, region: Region, store: Chunked) -> None:
        """Check the chunks of a region that have not been touched.

        Raises
        ------
        UndecodableError
            Naming the chunk. It stays unchecked: everything that touches it fails.
        """
        if self._numbers is None or self._unknown is None:
            counts = [-(-extent // chunk) for extent, chunk in zip(store.shape, store.chunks, strict=True)]
            self._numbers = np.arange(math.prod(counts)).reshape(counts)
            self._unknown = np.ones(counts, np.bool_)
        bounds = zip(region.start, region.stop, store.chunks, strict=True)
        touched = tuple([slice(low // chunk, -(-high // chunk)) for low, high, chunk in bounds])
        unknown = self._unknown[touched]
        if unknown.any():
            self._check(self._numbers[touched][unknown].tolist(), store)
            unknown[...] = False

    def _check(self, chunks: Sequence[int], store: Chunked) -> None:
        if not store.writable:  # what is written moves chunks
            with suppress(FileNotFoundError), _opened(self._path) as fd:
                if version_of_open(fd) == self._header.version:
                    self._check_in_file(chunks, fd)
                    return
        # Or the file is mapped, and another one has its name: the slow way, through all of the chunk.
        for index in chunks:
            store.chunk_bytes(index)

    def _check_in_file(self, chunks: Sequence[int], fd: int) -> None:
        length = CHUNK_HEADER_BYTES - 4 * (-self._sizes.chunk_bytes // max(1, self._sizes.block_bytes))
        places = np.frombuffer(self._offsets, np.int64)[chunks].tolist()
        if max(places) >= self._header.compressed_bytes:
            raise UndecodableError(f"chunk {chunks[places.index(max(places))]}: it lies behind all chunks")
        begin = self._header.header_bytes
        raw = [b"" if place < 0 else read_at(fd, length, place + begin) for place in places]
        if self._are_plain(raw, length):
            return
        for index, place, head in zip(chunks, places, raw, strict=True):
            if place >= 0:  # the others have no bytes of their own
                try:
                    refuse_chunk(head, self._sizes)
                except UndecodableError as error:
                    raise UndecodableError(f"chunk {index}: {error}") from None

    def _are_plain(self, raw: list[bytes], length: int) -> bool:
        """Do for many compressed chunks at once what :func:`refuse_chunk` does for one of any kind."""
        item, decoded, block = self._sizes.item_bytes, self._sizes.chunk_bytes, self._sizes.block_bytes
        if any(len(head) != length or not _is_plain(_kind(head), item) for head in raw):
            return False
        numbers = np.frombuffer(b"".join(raw), "<i4").reshape(len(raw), -1)
        starts = numbers[:, CHUNK_HEADER_BYTES // 4 :]
        same = (numbers[:, 1:3] == (decoded, block)).all()
        return bool(same and starts.min() >= length and (starts.max(axis=1) < numbers[:, 3]).all())


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = open_to_read(path)
    try:
        yield fd
    finally:
        os.close(fd)


def refuse_chunk(raw: bytes, sizes: FrameSizes) -> None:
    """Raise where a chunk of voxels cannot be decoded safely.

    Parameters
    ----------
    raw : bytes
        The chunk from its first byte to the end of the table of its blocks, or longer.
    sizes : FrameSizes
        What the frame says.

    Raises
    ------
    UndecodableError
        Saying why.
    """
    decoded, block, stored = refuse_header(raw)
    if decoded != sizes.chunk_bytes or raw[3] != sizes.item_bytes:
        raise UndecodableError(
            f"{decoded} bytes in elements of {raw[3]}, the frame says {sizes.chunk_bytes} of {sizes.item_bytes}"
        )
    if raw[31] & _SPECIAL:
        return
    if block != sizes.block_bytes:
        raise UndecodableError(f"blocks of {block} bytes, the frame says {sizes.block_bytes}")
    if raw[2] & _COPIED:
        if stored != CHUNK_HEADER_BYTES + decoded:
            raise UndecodableError(f"{stored} bytes for {decoded} that are not compressed")
        return
    count = -(-decoded // block)
    begin = CHUNK_HEADER_BYTES + 4 * count
    if len(raw) < begin:
        raise UndecodableError("the table of its blocks is cut off")
    starts = np.frombuffer(raw, "<i4", count, CHUNK_HEADER_BYTES)
    if starts.min() < begin or starts.max() >= stored:
        raise UndecodableError("a block lies outside of its chunk")


def refuse_header(raw: bytes, place: int = 0) -> tuple[int, int, int]:
    """Raise where the header of any chunk, also of the index or a record, says what blosc2 must not act on.

    Parameters
    ----------
    raw : bytes
        Holds the header.
    place : int
        Where in ``raw`` it begins.

    Returns
    -------
    tuple of int
        Bytes of the chunk decoded, of a block, and of the chunk as stored.

    Raises
    ------
    UndecodableError
        Saying why.
    """
    if not 0 <= place <= len(raw) - CHUNK_HEADER_BYTES:
        raise UndecodableError("its header is cut off")
    fault = _kind_fault(_kind(raw, place))
    if fault:
        raise UndecodableError(fault)
    decoded, block, stored = _SIZES.unpack_from(raw, place + _SIZES_AT)
    if decoded < 0 or block <= 0 or block > decoded > 0:
        raise UndecodableError(f"blocks of {block} bytes in {decoded}")
    value = raw[place + 3] if raw[place + 31] & _SPECIAL == _ONE_VALUE else 0
    if stored < CHUNK_HEADER_BYTES + value:
        raise UndecodableError(f"it has only {stored} bytes")
    return decoded, block, stored


def _kind(raw: bytes, place: int = 0) -> bytes:
    """Return all of a header but its sizes."""
    return raw[place : place + 4] + raw[place + 16 : place + CHUNK_HEADER_BYTES]


@lru_cache(maxsize=256)
def _is_plain(kind: bytes, item: int) -> bool:
    """Tell whether a chunk is compressed, with a table of blocks behind its header."""
    return _kind_fault(kind) is None and kind[3] == item and not kind[2] & _COPIED and not kind[19] & _SPECIAL


@lru_cache(maxsize=256)
def _kind_fault(kind: bytes) -> str | None:
    """Judge it; the same few occur again and again."""
    version, _, flags, item = kind[:4]
    filters, more, special = kind[4:10], kind[18], kind[19]
    if flags >> 5 not in _CHUNK_CODECS or not FILTERS.issuperset(filters):
        return "it asks for a codec or filter that is not compiled into blosc2"
    if version not in _VERSIONS or flags & _EXTENDED != _EXTENDED or more or not item:
        return "it is of a kind that arrays do not have"
    if special & _SPECIAL > _NOT_WRITTEN or special & _LAZY_OR_INSTRUMENTED:
        return "it is of a kind that files do not have"
    return None


def refuse_frame(path: Path, header: FrameHeader, decompress: Decompress) -> bytes:
    """Raise where blosc2 must not open a file: it decodes the index and looks at the first chunk.

    Returns
    -------
    bytes
        The offset of every chunk behind the header of the frame, 8 bytes each.

    Raises
    ------
    UnfinishedError
        The index is not written yet.
    FormatError
        Saying why.
    """
    kind, _, block, chunk, filters = _FRAME.unpack_from(header.head)
    if fault := _frame_fault(kind + filters):
        raise _refused(path, fault)
    if header.data_bytes <= 0:
        return b""
    try:
        if chunk <= 0:
            raise UndecodableError(f"chunks of {chunk} bytes")
        decoded, _, stored = _SIZES.unpack_from(header.end, _SIZES_AT)
        if decoded != -8 * (-header.data_bytes // chunk):  # before anything that large is made
            raise UndecodableError(f"it has {decoded} bytes for {-(-header.data_bytes // chunk)} chunks")
        offsets = decompress(_behind_chunks(path, header, stored)[:stored])
        (first,) = _OFFSET.unpack_from(offsets)
    except (RuntimeError, ValueError, struct.error) as error:
        if header.is_unfinished:
            raise unfinished(path) from error
        raise _refused(path, f"the index of its chunks cannot be decoded ({error})") from error
    place = first + header.header_bytes
    if header.header_bytes <= place < header.frame_bytes:  # else blosc2 refuses it, or chunk 0 has no bytes of its own
        head = header.head[place : place + CHUNK_HEADER_BYTES]
        if len(head) < CHUNK_HEADER_BYTES:
            with _opened(path) as fd:
                head = read_at(fd, CHUNK_HEADER_BYTES, place)
        decoded, size, _ = _SIZES.unpack_from(head.ljust(CHUNK_HEADER_BYTES), _SIZES_AT)
        if size > 0 and decoded // size > max(1, chunk // max(1, block)):  # it makes a table of so many blocks
            raise _refused(
                path, f"chunk 0 claims {decoded} bytes in blocks of {size}, not {chunk} in blocks of {block}"
            )
    return offsets


@lru_cache(maxsize=256)
def _frame_fault(kind: bytes) -> str | None:
    if kind[0] or kind[1] & _CODEC_BITS not in CODECS or not FILTERS.issuperset(kind[2:]):
        return "its header asks for a codec or filter that is not compiled into blosc2, or for other files"
    return None


def _behind_chunks(path: Path, header: FrameHeader, length: int) -> bytes:
    """Return at least ``length`` bytes from the end of the chunks on, fewer where the frame ends."""
    if length <= len(header.end):
        return header.end
    with _opened(path) as fd:
        return read_at(fd, min(length, header.frame_bytes - header.data_end), header.data_end)


class RecordGuard:
    """Knows which records of a file, as it was opened, must not be decoded.

    Parameters
    ----------
    path : Path
        The file.
    header : FrameHeader
        Of the file.
    """

    def __init__(self, path: Path, header: FrameHeader) -> None:
        self._end = _behind_chunks(path, header, header.frame_bytes - header.data_end)
        self._unsafe: dict[str, str] | None = None

    def refuse(self, name: str) -> None:
        """Raise where a record must not be decoded.

        Raises
        ------
        UndecodableError
            Its chunk is none that blosc2 may decode, or there is no telling where it lies.
        """
        if self._unsafe is None:
            try:
                self._unsafe = _unsafe_records(self._end)
            except (IndexError, UnicodeDecodeError):
                raise UndecodableError("the table of the records cannot be read") from None
            self._end = b""
        if name in self._unsafe:
            raise UndecodableError(self._unsafe[name])

    def written(self, name: str) -> None:
        """Note that a record is another one now."""
        if self._unsafe is None or name in self._unsafe:
            with suppress(UndecodableError):
                self.refuse(name)
            self._unsafe = {other: why for other, why in (self._unsafe or {}).items() if other != name}


def _unsafe_records(end: bytes) -> dict[str, str]:
    """Walk through the table of names in the trailer: for each a string and the place of its record, a chunk in a ``bin 32``.

    Returns
    -------
    dict
        Why a record must not be decoded, by its name.
    """
    begin = len(end) - int.from_bytes(end[1 - _TRAILER_END_BYTES : 5 - _TRAILER_END_BYTES], "big")
    if not 0 <= begin <= len(end) - _TRAILER_END_BYTES:
        raise IndexError(begin)
    place = begin + _RECORDS_AT + 3
    unsafe = {}
    for _ in range(int.from_bytes(end[place - 2 : place], "big")):
        after = place + 1 + (end[place] & 0x1F)
        record = begin + int.from_bytes(end[after + 1 : after + 5], "big") + _BIN_BYTES
        why = _fault_of_record(end, record)
        if why:
            unsafe[end[place + 1 : after].decode()] = why
        place = after + 5
    return unsafe


def _fault_of_record(end: bytes, record: int) -> str | None:
    try:
        decoded, _, stored = refuse_header(end, record)
    except UndecodableError as error:
        return str(error)
    if stored > len(end) - record:
        return "it does not end in its file"
    if decoded > RECORD_BYTES:
        return f"it holds {decoded} bytes; at most {RECORD_BYTES} are read. {RECORD_BYTES.hint}"
    if decoded > max(_RECORD_BYTES, _RECORD_RATIO * stored):
        return f"it claims to hold {decoded} bytes, and has {stored}"
    return None


def _refused(path: Path, what: str) -> FormatError:
    return FormatError(f"{path} is damaged or was never finished: {what}.", hint=RESTORE)
