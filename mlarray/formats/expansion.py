"""Does a compressed piece hold what it stands for, or does it fill the memory?

A few kilobytes can be compressed gigabytes. Whoever knows how large a piece may be asks here before anybody else decodes it:
deflate, bzip2 and LZMA are decoded here and stop at the limit; Blosc, LZ4 and Zstandard state what they hold, which is compared.
"""

from __future__ import annotations

import bz2
import lzma
import struct
from collections.abc import Callable
from typing import Any

from mlarray.errors import FormatError
from mlarray.limits import LZMA_DICTIONARY_BYTES

DEFLATE_RATIO = 1032  # the most that deflate can compress (zlib's technical notes)
_GZIP_WINDOW, _ZLIB_WINDOW = 31, 15
_PIECE = 1 << 20
_ZSTD_MAGIC, _ZSTD_SKIPPED = 0xFD2FB528, range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK = 128 * 1024  # the most that one block holds (RFC 8878, 3.1.1.2.4)


def expand(codec: str, data: memoryview, most: int) -> bytes | None:
    """Return what a stream holds, or None for a codec whose own decoder may go on: it states no more than is allowed.

    Parameters
    ----------
    codec : str
        ``"zlib"``, ``"gzip"``, ``"bz2"``, ``"lzma"`` are decoded; ``"blosc"``, ``"lz4"``, ``"zstd"`` looked at. Of others nothing
        is known to expand.
    data : memoryview
        The stream, as bytes.
    most : int
        Bytes that it may hold.

    Raises
    ------
    FormatError
        When it holds more; the message names both.
    ValueError, OSError, EOFError, lzma.LZMAError
        When it is damaged, as its decoder says it.
    """
    if codec in ("zlib", "gzip"):
        return _inflated(data, _GZIP_WINDOW if codec == "gzip" else _ZLIB_WINDOW, most)
    if codec == "bz2":
        return _in_members(data, bz2.BZ2Decompressor, most)
    if codec == "lzma":
        return _in_members(data, lambda: lzma.LZMADecompressor(memlimit=LZMA_DICTIONARY_BYTES), most)
    stated = 0
    if codec == "blosc" and len(data) >= 8:
        stated = int.from_bytes(data[4:8], "little")
    elif codec == "lz4" and len(data) >= 4:
        stated = int.from_bytes(data[:4], "little")
    elif codec == "zstd":
        stated = zstd_bytes(data)
    if stated > most:
        raise too_large(len(data), most)
    return None


def inflated_bytes(pieces: Callable[[int], bytes], most: int, *, window: int = _ZLIB_WINDOW) -> int:
    """Return how many bytes a deflate stream holds, without keeping them; more than ``most`` are not decoded.

    Parameters
    ----------
    pieces : callable
        Returns up to so many further bytes of the stream, none at its end.
    most : int
        Where to stop: the result is then larger.
    window : int
        As zlib counts it: 15 with a zlib header, 31 with that of gzip, -15 with none.
    """
    from isal import isal_zlib

    stream: Any = isal_zlib.decompressobj(window)
    found, rest = 0, b""
    while not stream.eof and found <= most:
        rest = rest or pieces(_PIECE)
        if not rest:
            break
        found += len(stream.decompress(rest, _PIECE))
        rest = stream.unconsumed_tail
    return found


def zstd_bytes(data: memoryview) -> int:
    """Return how many bytes the Zstandard frames in ``data`` hold: as stated, or else at most (RFC 8878).

    What is no frame, or is cut, counts nothing: its decoder says so.
    """
    total, at = 0, 0
    while at + 5 <= len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic in _ZSTD_SKIPPED:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            break
        flags = data[at + 4]
        single = flags >> 5 & 1
        width = (single, 2, 4, 8)[flags >> 6]
        at += 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
        stated = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0) if width else None
        at += width
        held, last = 0, 0
        while not last and at + 3 <= len(data):
            head = int.from_bytes(data[at : at + 3], "little")
            last, kind, size = head & 1, head >> 1 & 3, head >> 3
            held += _ZSTD_BLOCK if kind == 2 else size
            at += 3 + (1 if kind == 1 else size)
        total += held if stated is None else stated
        at += 4 * (flags >> 2 & 1)
    return total


def too_large(found: int, most: int) -> FormatError:
    """Return the error for a stream of ``found`` bytes that holds more than ``most``."""
    return FormatError(f"{found} compressed bytes expand to more than the {most} that are expected at most.")


def _inflated(data: memoryview, window: int, most: int) -> bytes:
    from isal import isal_zlib

    return _in_members(data, lambda: isal_zlib.decompressobj(window), most, first_only=window == _ZLIB_WINDOW)


def _in_members(data: memoryview, new: Callable[[], Any], most: int, *, first_only: bool = False) -> bytes:
    """Return the content of one stream after the other; what follows the last, zeros or anything, is no content."""
    parts: list[bytes] = []
    left, rest = most, bytes(data)
    while rest and not (parts and (first_only or not rest.strip(b"\0"))):
        stream = new()
        part = stream.decompress(rest, left + 1)
        if len(part) > left:
            raise too_large(len(data), most)
        if not stream.eof:
            raise EOFError("the compressed stream ends before its end mark")
        parts.append(part)
        left, rest = left - len(part), stream.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
