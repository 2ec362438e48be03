"""Is this file safe to hand to blosc2? The header of a frame, read without blosc2.

blosc2 opens many kinds of objects, some of which carry code or point to other files. An ``.mla`` file is one kind: a
contiguous frame whose only fixed metalayer is ``b2nd`` (very old files: also ``med_blosc2``). Anything else is refused by
the header alone.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgpack

from mlarray.errors import FormatError, UsageError

Version: TypeAlias = tuple[int, int, int]

MAGIC = b"b2frame\x00"
HEADER_LIMIT_BYTES = 1 << 20
_FIRST_READ_BYTES = 512
_METALAYERS_AT = 87  # FRAME_HEADER_MINLEN of c-blosc2
_ALLOWED_METALAYERS = frozenset({b"b2nd", b"med_blosc2"})


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What the header of a frame says.

    Parameters
    ----------
    header_bytes, frame_bytes : int
        Length of the header and of the whole frame.
    data_bytes, compressed_bytes : int
        Decoded and stored size of the chunks.
    metalayers : dict
        Raw content of each fixed metalayer by name.
    seconds : float
        How long reading it took: memory answers in microseconds, storage does not.
    """

    header_bytes: int
    frame_bytes: int
    data_bytes: int
    compressed_bytes: int
    metalayers: dict[str, bytes]
    seconds: float = 0.0


def read_header(path: Path) -> FrameHeader:
    """Read and check the frame header of a file.

    Parameters
    ----------
    path : Path
        An ``.mla`` or ``.b2nd`` file.

    Returns
    -------
    FrameHeader
        With the fixed metalayers.

    Raises
    ------
    FormatError
        When the file is not a contiguous Blosc2 frame, is shorter than its header says, or holds a metalayer that an
        array file has no use for.
    """
    with path.open("rb", buffering=0) as file:
        before = time.perf_counter()
        head = file.read(_FIRST_READ_BYTES)
        seconds = time.perf_counter() - before
        size = file.seek(0, 2)
        if len(head) < 16 or head[2:10] != MAGIC:
            raise FormatError(f"{path} is not an .mla file: it does not start with a Blosc2 frame.")
        length = int.from_bytes(head[11:15], "big")
        if not 16 < length <= min(size, HEADER_LIMIT_BYTES):
            raise _damaged(path, f"its header claims {length} bytes, the file has {size}")
        if length > len(head):
            file.seek(0)
            head = file.read(length)
    header = _parse(path, head[:length], seconds)
    if header.frame_bytes > size:
        raise _damaged(path, f"its frame has {header.frame_bytes} bytes, the file only {size}")
    foreign = sorted(name for name in header.metalayers if name.encode() not in _ALLOWED_METALAYERS)
    if foreign or "b2nd" not in header.metalayers:
        kinds = ", ".join(repr(name) for name in foreign) or "none"
        raise FormatError(
            f"{path} is not an array file: its fixed metalayers are {kinds}, an array has only 'b2nd'.",
            hint="It may be another kind of Blosc2 object; open it with blosc2 if you trust its author.",
        )
    return header


def version_of(path: Path) -> Version | None:
    """Return what tells a file from one that replaces it, or None where there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def usable_name(path: Path) -> str:
    """Return a path as blosc2 takes it: it encodes names as UTF-8, whatever the system does, and cuts them at ``::``."""
    name, encoding = str(path), sys.getfilesystemencoding()
    if not name.isascii() and encoding != "utf-8":
        why = f"this system writes names in {encoding}, blosc2 in utf-8"
    elif name.encode(errors="replace").decode() != name:
        why = "it is not valid UTF-8"
    elif "::" in name:
        why = "it holds '::'"
    else:
        return name
    raise UsageError(f"{name} is no name that blosc2 can open: {why}.", hint="Rename the file or its folder.")


@dataclass(frozen=True, slots=True)
class FrameSizes:
    """How the bytes of an array are cut, as its frame says.

    Parameters
    ----------
    chunk_count : int
        Number of chunks.
    chunk_bytes, block_bytes : int
        Decoded bytes of one chunk and one block.
    item_bytes : int
        Decoded bytes of one element.
    """

    chunk_count: int
    chunk_bytes: int
    block_bytes: int
    item_bytes: int


def refuse_contradictions(
    path: Path, frame: FrameSizes, *, shape: Sequence[int], chunks: Sequence[int], blocks: Sequence[int], itemsize: int
) -> None:
    """Raise where shape, chunks, blocks and dtype of an array are not those that its frame was cut for.

    blosc2 believes both (4.14.1) and reads or writes outside of its buffers where they differ.

    Raises
    ------
    FormatError
        Naming both.
    """
    sizes = (*shape, *chunks, *blocks)
    possible = len(shape) == len(chunks) == len(blocks) and all(size >= 0 for size in sizes)
    if possible and 0 in shape and frame.chunk_count == 0:
        return
    if possible and all(size > 0 for size in sizes):
        count = math.prod(-(-extent // chunk) for extent, chunk in zip(shape, chunks, strict=True))
        padded = math.prod(-(-chunk // block) * block for chunk, block in zip(chunks, blocks, strict=True))
        if frame == FrameSizes(count, padded * itemsize, math.prod(blocks) * itemsize, itemsize):
            return
    raise _damaged(
        path,
        f"shape {tuple(shape)}, chunks {tuple(chunks)}, blocks {tuple(blocks)} and {itemsize} bytes per element do not fit "
        f"its {frame.chunk_count} chunks of {frame.chunk_bytes} bytes in blocks of {frame.block_bytes} bytes and elements "
        f"of {frame.item_bytes}",
    )


def plain_value(raw: bytes) -> object:
    """Decode a msgpack value that holds plain values only, or return None for anything else.

    blosc2's own decoder would follow references and evaluate expressions that such a value may hold.
    """
    try:
        return msgpack.unpackb(raw, strict_map_key=False, ext_hook=_refuse_extension, timestamp=1)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):  # TypeError: a list as key of a map
        return None


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"a msgpack extension of type {code} with {len(data)} bytes")


def _parse(path: Path, head: bytes, seconds: float) -> FrameHeader:
    try:
        unpacker = msgpack.Unpacker(raw=True, strict_map_key=False, max_ext_len=64, max_map_len=64)
        unpacker.feed(head)
        if unpacker.read_array_header() != 14:
            raise ValueError("another number of fields")
        fields = [unpacker.unpack() for _ in range(13)]
        if unpacker.tell() != _METALAYERS_AT:  # blosc2 looks here, whatever the fields before it say
            raise ValueError("fields of another length")
        _, index, contents = unpacker.unpack()
        metalayers = dict(zip((bytes(name).decode() for name in index), (bytes(c) for c in contents), strict=True))
        return FrameHeader(int(fields[1]), int(fields[2]), int(fields[4]), int(fields[5]), metalayers, seconds)
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        RecursionError,
        msgpack.UnpackException,
    ) as error:
        raise _damaged(path, "its header cannot be parsed") from error


def _damaged(path: Path, what: str) -> FormatError:
    return FormatError(
        f"{path} is damaged or was never finished: {what}.", hint="Make it again from its source, or restore a copy."
    )
