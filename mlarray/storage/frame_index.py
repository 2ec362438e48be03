"""Where in a frame does each chunk lie? The index of a frame, read without opening the frame.

The index stands behind the chunks: one offset a chunk, itself a Blosc2 chunk. A negative offset is a chunk that has no bytes
of its own (all zeros, all NaN, not written). blosc2 moves what is behind a chunk whose size changes, so that the chunks of a
frame follow each other without a gap (4.14.1).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mlarray.storage.frame import FrameHeader, read_at

CHUNK_HEADER = struct.Struct("<BBBBiii")
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
    ValueError
        When the index is of another number of chunks.
    struct.error, RuntimeError
        When it cannot be read.
    """
    begin = header.data_end
    raw = read_at(fd, header.frame_bytes - begin, begin)
    *_, decoded, _, stored = CHUNK_HEADER.unpack_from(raw)
    if decoded != 8 * count:  # before anything that large is made
        raise ValueError(f"the index has {decoded} bytes for {count} chunks")
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
