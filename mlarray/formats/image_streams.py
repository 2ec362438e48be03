"""How large is the image in a compressed frame or tile, as the stream itself says?

JPEG, JPEG-LS, JPEG 2000 and PNG state it in their first bytes. It is read here before a decoder makes room for it.
"""

from __future__ import annotations

import struct

_START, _SCAN = 0xD8, 0xDA
# SOF0 to SOF15 without DHT, JPG and DAC (ITU-T T.81, table B.1), and SOF55 of JPEG-LS (ITU-T T.87).
_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC} | {0xF7})
_ALONE = frozenset({0x01, *range(0xD0, 0xD8), _START})  # markers without a length
_CODESTREAM = b"\xff\x4f\xff\x51"  # SOC and SIZ (ITU-T T.800, A.4.1 and A.5.1)
_PNG = b"\x89PNG\r\n\x1a\n"
_BOXES = b"\0\0\0\x0cjP  "


def stated_size(stream: bytes) -> tuple[int, int, int] | None:
    """Return rows, columns and samples of an image; None for a stream of another kind, or one that is cut before it says so.

    Examples
    --------
    >>> stated_size(bytes.fromhex("ffd8 ffc0 000b 08 0010 0020 01 011100"))
    (16, 32, 1)
    """
    try:
        if stream.startswith(_BOXES):
            stream = _in_boxes(stream)
        if stream.startswith(_CODESTREAM):
            right, lower, left, upper = struct.unpack_from(">4I", stream, 8)
            return lower - upper, right - left, struct.unpack_from(">H", stream, 40)[0]
        if stream.startswith(_PNG):  # IHDR comes first (ISO/IEC 15948, 11.2.1)
            columns, rows, _, colour = struct.unpack_from(">IIBB", stream, 16)
            return rows, columns, {2: 3, 4: 2, 6: 4}.get(colour, 1)
        return _jpeg_size(stream) if stream[:2] == b"\xff\xd8" else None
    except (struct.error, IndexError):
        return None


def _jpeg_size(stream: bytes) -> tuple[int, int, int] | None:
    at = 2
    while stream[at] == 0xFF:
        marker = stream[at + 1]
        if marker == 0xFF or marker in _ALONE:  # filled up with FF
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _SIZES:
            rows, columns, samples = struct.unpack_from(">HHB", stream, at + 5)
            return rows, columns, samples
        if marker == _SCAN:
            return None
        at += 2 + struct.unpack_from(">H", stream, at + 2)[0]
    return None


def _in_boxes(stream: bytes) -> bytes:
    """Return the codestream of a JP2 file (ITU-T T.800, I.4): from the first box of that name on."""
    at = 0
    while True:
        length, name = struct.unpack_from(">I4s", stream, at)
        head = 16 if length == 1 else 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", stream, at + 8)
        if name == b"jp2c":
            return stream[at + head :]
        if length < head:
            return b""
        at += length
