"""Is all that surrounds the chunks of a file as its writer left it?

A finished file ends with a *seal* behind its frame: a checksum of the header, the index and the records. The records hold a
checksum of every chunk, so that a seal that holds vouches for the whole file. Whoever writes to a file with blosc2 cuts the
seal off, knowingly or not (blosc2 ends the file behind its trailer). A seal that does not hold is therefore damage, while one
that is missing means that another program wrote to the file after it was finished, or that its end is lost.
"""

from __future__ import annotations

import errno
import os
import struct
from enum import Enum
from pathlib import Path

import xxhash

from mlarray.storage.frame import FrameHeader, open_to_read, read_at, read_header, with_mark
from mlarray.storage.publish import final_path, named_errors

MAGIC = b"mla-seal"
_CONTENT = struct.Struct(">8sQ16s")  # magic, length of the frame, XXH3-128 of what surrounds the chunks
_OWN_BYTES = 8  # XXH3-64 of the content
SEAL_BYTES = _CONTENT.size + _OWN_BYTES
_PIECE_BYTES = 1 << 20


class SealState(Enum):
    """What a look at the seal of a file shows."""

    HOLDS = "holds"
    BROKEN = "does not hold"
    MISSING = "missing"


def write_seal(path: Path) -> None:
    """Seal a finished file; a seal that is there is replaced.

    Raises
    ------
    OSError
        As the system says, also for a full disk.
    """
    header = read_header(path)
    with named_errors(path), path.open("r+b", buffering=0) as file:
        seal = _seal(file.fileno(), header)
        file.seek(header.frame_bytes)
        if file.write(seal) != len(seal):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final_path(path)))
        file.truncate()


def seal_state(path: Path, header: FrameHeader | None = None) -> SealState:
    """Compare header, index and records of a file with its seal.

    Raises
    ------
    FormatError, MissingFileError
        As :func:`~mlarray.storage.frame.read_header`.
    """
    header = header or read_header(path)
    fd = open_to_read(path)
    try:
        found = read_at(fd, SEAL_BYTES + 1, header.frame_bytes)
        if not found:
            return SealState.MISSING
        return SealState.HOLDS if found == _seal(fd, header) else SealState.BROKEN
    finally:
        os.close(fd)


def _seal(fd: int, header: FrameHeader) -> bytes:
    layer = header.metalayers["b2nd"]
    head = read_at(fd, header.header_bytes, 0)
    # The mark of an unfinished file goes after the seal has been written, so the seal is that of the header without it.
    surroundings = xxhash.xxh3_128(
        head.replace(layer, with_mark(layer, unfinished=False), 1) if header.is_unfinished else head
    )
    for place in range(header.data_end, header.frame_bytes, _PIECE_BYTES):
        surroundings.update(read_at(fd, min(_PIECE_BYTES, header.frame_bytes - place), place))
    content = _CONTENT.pack(MAGIC, header.frame_bytes, surroundings.digest())
    return content + xxhash.xxh3_64_digest(content)
