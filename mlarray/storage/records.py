"""How large is a record, before blosc2 decompresses it?

A few bytes of a trailer can stand for two gigabytes. The trailer of a frame is read here without blosc2 (README_CFRAME_FORMAT of
c-blosc2): ``[version, [size, {name: offset}, [chunk, ...]], length, fingerprint]`` in msgpack, and the header of each chunk
says what it holds.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgpack

from mlarray.errors import FormatError
from mlarray.limits import RECORD_BYTES
from mlarray.storage.frame import HEAD_BYTES, refuse_foreign_codec

_FRAME_BYTES_AT = 16  # of the header: length of the frame
_LENGTH_AT = 22  # from the end of the trailer: its length


def check_record(path: Path, name: str) -> None:
    """Raise when a record of a file says that it holds more than a record may, or would load a library to be decoded.

    Raises
    ------
    FormatError
        Naming both sizes, or the codec.
    """
    head = _head(path, name)
    refuse_foreign_codec(path, head, f"record {name!r}")
    stated = int.from_bytes(head[4:8], "little")
    if stated > RECORD_BYTES:
        raise FormatError(
            f"Record {name!r} of {path} holds {stated} bytes; at most {RECORD_BYTES} are read.", hint=RECORD_BYTES.hint
        )


def _head(path: Path, name: str) -> bytes:
    """Return the first bytes of a record as stored; none where there is none, or the trailer cannot be read here."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(_FRAME_BYTES_AT)
            (end,) = struct.unpack(">Q", file.read(8))
            file.seek(end - _LENGTH_AT)
            (length,) = struct.unpack(">I", file.read(4))
            file.seek(end - length)
            _, (_, places, chunks), *_ = msgpack.unpackb(file.read(length), raw=True, strict_map_key=False)
            return bytes(chunks[list(places).index(name.encode())][:HEAD_BYTES])
    except (OSError, ValueError, TypeError, IndexError, OverflowError, struct.error, msgpack.UnpackException):
        return b""
