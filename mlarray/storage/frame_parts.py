"""Where in a frame are its chunks, and what are its records? Read without opening the frame, which a damaged one may not allow.

The index stands behind the chunks: one offset a chunk, itself a Blosc2 chunk. A negative offset is a chunk that has no bytes
of its own (all zeros, all NaN, not written). blosc2 moves what is behind a chunk whose size changes, so that the chunks of a
frame follow each other without a gap (4.14.1). The trailer at the end of the frame is msgpack; each record in it is a Blosc2
chunk again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgpack
import numpy as np
import numpy.typing as npt

from mlarray.storage.frame import FrameHeader, read_at

CHUNK_HEADER = struct.Struct("<BBBBiii")
_TRAILER_LENGTH_AT = 22  # before the end of the frame, as four bytes; FRAME_TRAILER_LEN_OFFSET of c-blosc2
Decompress = Callable[[bytes], bytes]


def read_offsets(fd: int, header: FrameHeader, decompress: Decompress, count: int) -> npt.NDArray[np.int64]:
    """Return the offset of every chunk behind the header of the frame.

    Parameters
    ----------
    fd : int
        The file, open for reading.
    header : FrameHeader
        Of the file.
    decompress : callable
        ``decompress(chunk)`` returns the bytes of a Blosc2 chunk.
    count : int
        How many chunks there are.

    Raises
    ------
    ValueError, RuntimeError
        When the index cannot be read, or is of another number of chunks.
    """
    if count == 0:  # there is no index
        return np.empty(0, np.int64)
    raw = header.end
    *_, decoded, _, stored = CHUNK_HEADER.unpack(raw[: CHUNK_HEADER.size].ljust(CHUNK_HEADER.size))
    if decoded != 8 * count:  # before anything that large is made
        raise ValueError(f"the index has {decoded} bytes for {count} chunks")
    if stored > len(raw):
        raw = read_at(fd, min(stored, header.frame_bytes - header.data_end), header.data_end)
    return np.frombuffer(decompress(raw[:stored]), np.int64)


def chunk_ranges(
    header: FrameHeader, offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return first and last byte of every chunk in the file; both are equal for one that has no bytes.

    A chunk ends where the next one begins. The first begins behind the header.

    Raises
    ------
    ValueError
        When the chunks are not what stands between header and index.
    """
    stored = np.sort(offsets[offsets >= 0])
    ends = np.append(stored[1:], header.compressed_bytes) if len(stored) else stored
    first = int(stored[0]) if len(stored) else header.compressed_bytes
    if first != 0 or (ends <= stored).any():
        raise ValueError("the chunks do not follow each other")
    starts = np.maximum(offsets, 0)
    stops = np.zeros_like(starts)
    has_bytes = offsets >= 0
    stops[has_bytes] = ends[np.searchsorted(stored, offsets[has_bytes])]
    return starts + header.header_bytes, stops + header.header_bytes


def read_records(fd: int, header: FrameHeader, decompress: Decompress) -> dict[str, bytes | None]:
    """Return the records of a frame as stored (a msgpack value each), None for one that is damaged.

    Raises
    ------
    ValueError
        The trailer is damaged.
    """
    end = header.frame_bytes
    size = int.from_bytes(read_at(fd, 4, end - _TRAILER_LENGTH_AT), "big")
    *_, index_bytes = CHUNK_HEADER.unpack(read_at(fd, CHUNK_HEADER.size, header.data_end).ljust(CHUNK_HEADER.size))
    for begin in (end - size, header.data_end + index_bytes):  # both say where the trailer begins
        if not header.data_end < begin < end:
            continue
        try:
            unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
            unpacker.feed(read_at(fd, end - begin, begin))
            unpacker.read_array_header()
            _, (_, places, contents) = unpacker.unpack(), unpacker.unpack()
            names = [bytes(name).decode() for name in places]
            return dict(zip(names, (_decoded_or_none(chunk, decompress) for chunk in contents), strict=True))
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
            continue
    raise ValueError("its trailer cannot be read")


def _decoded_or_none(chunk: bytes, decompress: Decompress) -> bytes | None:
    try:
        return decompress(chunk)
    except (ValueError, RuntimeError, TypeError):
        return None
