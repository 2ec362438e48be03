"""Is this file safe to hand to blosc2? The header of a frame, read without blosc2.

blosc2 opens many kinds of objects, some of which carry code or point to other files. An ``.mla`` file is one kind: a
contiguous frame whose only fixed metalayer is ``b2nd`` (very old files: also ``med_blosc2``). Anything else is refused by
the header alone.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgpack

from mlarray.errors import FormatError, MissingFileError, UnfinishedError, UsageError
from mlarray.limits import FRAME_HEADER_BYTES

Version: TypeAlias = tuple[int, int, int]

MAGIC = b"b2frame\x00"
_FIRST_READ_BYTES = 512
_MOST_AXES = 15  # of an msgpack array with a short head
END_BYTES = 4096  # holds the index and the records of most files
_METALAYERS_AT = 87  # FRAME_HEADER_MINLEN of c-blosc2
# The fields before, as msgpack writes them: a type byte before each value. c-blosc2 reads them at fixed places, too.
_FIELDS = struct.Struct(">BB8sBiBQB4sBqBq")
_SIZES, _SIZES_AT = struct.Struct(">BiBiBi"), 47  # of an element, a block and a chunk
_FIELD_TYPES = (0x9E, 0xA8, 0xD2, 0xCF, 0xA4, 0xD3, 0xD3)
_TO_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_ALLOWED_METALAYERS = frozenset({"b2nd", "med_blosc2"})
RESTORE = (
    "Make it again from its source, or restore a copy. `mla verify --salvage OUT FILE` writes what is intact of it."
)
# In the place of the version of the layer "b2nd", which is 0 and which blosc2 does not look at.
UNFINISHED_VERSION = 0x55


class FrameHeader(NamedTuple):  # a tuple: one is made per file that is opened, and a dataclass takes four times as long
    """What the header of a frame says.

    Parameters
    ----------
    header_bytes, frame_bytes : int
        Length of the header and of the whole frame.
    data_bytes, compressed_bytes : int
        Decoded and stored size of the chunks.
    metalayers : dict
        Raw content of each fixed metalayer by name.
    version : Version
        What tells the file from one that replaces it.
    seconds : float
        How long reading it took: memory answers in microseconds, storage does not.
    head, end : bytes
        The file from its first byte on, at least ``header_bytes``; and what is behind its chunks, at most :data:`END_BYTES`.
    """

    header_bytes: int
    frame_bytes: int
    data_bytes: int
    compressed_bytes: int
    metalayers: dict[str, bytes]
    version: Version
    seconds: float
    head: bytes
    end: bytes

    @property
    def data_end(self) -> int:
        """Where the chunks end and the index begins."""
        return self.header_bytes + self.compressed_bytes

    @property
    def is_unfinished(self) -> bool:
        """Whether a writer of ours has not finished the file, see :func:`with_mark`."""
        return _is_marked(self.metalayers)


def with_mark(layer: bytes, *, unfinished: bool) -> bytes:
    """Return the fixed metalayer of an array with, or without, the mark of a writer.

    blosc2 keeps this layer in memory and writes it with every header, in one call of less than a page, and the header is what it
    writes last when it changes a chunk. Its other places (chunk, index, trailer) follow each other, and a writer that dies
    between two of them leaves an old index or the trailer of another moment.
    """
    return layer[:1] + bytes([UNFINISHED_VERSION if unfinished else 0]) + layer[2:]


def _is_marked(metalayers: Mapping[str, bytes]) -> bool:
    return metalayers.get("b2nd", b"")[1:2] == bytes([UNFINISHED_VERSION])


def unfinished(path: Path | None, writer: str = "") -> UnfinishedError:
    """Return the error for a file that says it is not finished; ``writer`` says who it was."""
    return UnfinishedError(
        f"{path} was not finished by its writer{writer}.",
        hint="Wait if that process is alive; otherwise make the file again. "
        f"`mla verify --salvage OUT {path}` keeps what is there.",
    )


def read_header(path: Path, *, consistent: bool = True) -> FrameHeader:
    """Read and check the frame header of a file.

    Parameters
    ----------
    path : Path
        An ``.mla`` or ``.b2nd`` file.
    consistent : bool
        Whether a frame whose sizes are not those of its array is refused.

    Returns
    -------
    FrameHeader
        With the fixed metalayers.

    Raises
    ------
    MissingFileError
        When there is no such file.
    UnfinishedError
        When it is shorter than its header says, and marked by its writer.
    FormatError
        When the file is not a contiguous Blosc2 frame, is shorter than its header says, or holds a metalayer that an
        array file has no use for.
    """
    try:
        descriptor = os.open(path, _TO_READ)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        raise MissingFileError(f"There is no file {path}.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise MissingFileError(f"There is no file {path}.")
        size = status.st_size
        before = time.perf_counter()
        head = os.read(descriptor, _FIRST_READ_BYTES)
        seconds = time.perf_counter() - before
        if len(head) < 16 or head[2:10] != MAGIC:
            raise FormatError(f"{path} is not an .mla file: it does not start with a Blosc2 frame.")
        length = int.from_bytes(head[11:15], "big")
        if not 16 < length <= min(size, FRAME_HEADER_BYTES):
            raise _damaged(path, f"its header claims {length} bytes, the file has {size}")
        while len(head) < length and (more := os.read(descriptor, length - len(head))):
            head += more
        frame_bytes, data_bytes, compressed_bytes, metalayers = _parse(path, head[:length])
        if frame_bytes > size and _is_marked(metalayers):
            raise unfinished(path)
        if frame_bytes > size:
            raise _damaged(path, f"its frame has {frame_bytes} bytes, the file only {size}")
        behind = frame_bytes - length - compressed_bytes
        if compressed_bytes < 0 or behind < 0:
            if _is_marked(metalayers):
                raise unfinished(path)
            raise _damaged(path, f"its chunks have {compressed_bytes} bytes in a frame of {frame_bytes}")
        end = read_at(descriptor, min(behind, END_BYTES), length + compressed_bytes)
    finally:
        os.close(descriptor)
    if "b2nd" not in metalayers or not _ALLOWED_METALAYERS.issuperset(metalayers):
        foreign = sorted(set(metalayers) - _ALLOWED_METALAYERS)
        kinds = ", ".join(repr(name) for name in foreign) or "none"
        raise FormatError(
            f"{path} is not an array file: its fixed metalayers are {kinds}, an array has only 'b2nd'.",
            hint="It may be another kind of Blosc2 object; open it with blosc2 if you trust its author.",
        )
    if consistent:
        _refuse_layer(path, head, data_bytes, metalayers["b2nd"])
    return FrameHeader(
        length, frame_bytes, data_bytes, compressed_bytes, metalayers, version_in(status), seconds, head, end
    )


def open_to_read(path: Path) -> int:
    """Open a file for :func:`read_at` and return its descriptor."""
    return os.open(path, _TO_READ)


def read_at(fd: int, count: int, place: int) -> bytes:
    """Return ``count`` bytes of a file from ``place`` on, fewer where it ends; several threads may share ``fd``."""
    if hasattr(os, "pread"):
        return os.pread(fd, count, place)
    with os.fdopen(os.dup(fd), "rb", buffering=0) as file:  # Windows
        file.seek(place)
        return file.read(count)


def version_of_open(fd: int) -> Version:
    """Return what tells an open file from one that replaces it."""
    return version_in(os.fstat(fd))


def version_in(status: os.stat_result) -> Version:
    """Return what tells a file from one that replaces it, of what the system says about it."""
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


class FrameSizes(NamedTuple):
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
    if len(shape) == len(chunks) == len(blocks) and min(*shape, *chunks, *blocks, 0) == 0:
        # numpy makes no array beyond, not even an empty one
        sized = math.prod(extent or 1 for extent in shape) * itemsize <= sys.maxsize
        if 0 in shape and frame.chunk_count == 0 and sized:
            return
        if all(shape) and all(chunks) and all(blocks):
            count, padded, block_bytes = 1, itemsize, itemsize
            for extent, chunk, block in zip(shape, chunks, blocks, strict=True):
                count *= -(-extent // chunk)
                padded *= -(-chunk // block) * block
                block_bytes *= block
            if frame == (count, padded, block_bytes, itemsize):
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


def packed_value(value: object) -> bytes:
    """Encode a plain value as :func:`plain_value` decodes it."""
    packed: bytes = msgpack.packb(value)
    return packed


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"a msgpack extension of type {code} with {len(data)} bytes")


def _parse(path: Path, head: bytes) -> tuple[int, int, int, dict[str, bytes]]:
    """Return frame size, decoded size, compressed size and the fixed metalayers."""
    try:
        array, text, _, *numbers = _FIELDS.unpack_from(head)
        length_type, _, frame_type, frame_bytes, flags, _, data_type, data_bytes, stored_type, stored = numbers
        if (array, text, length_type, frame_type, flags, data_type, stored_type) != _FIELD_TYPES:
            raise ValueError("fields of another type")
        _, index, contents = msgpack.unpackb(head[_METALAYERS_AT:], raw=True, strict_map_key=False)
        metalayers = dict(zip((bytes(name).decode() for name in index), (bytes(c) for c in contents), strict=True))
        return frame_bytes, data_bytes, stored, metalayers
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        RecursionError,
        struct.error,
        msgpack.UnpackException,
    ) as error:
        raise _damaged(path, "its header cannot be parsed") from error


def replaced(path: Path) -> FormatError:
    """Return the error for a file that is no longer the one that was opened."""
    return FormatError(f"{path} was replaced or removed after it was opened.", hint="Open it again.")


def _refuse_layer(path: Path, head: bytes, data_bytes: int, layer: bytes) -> None:
    """Raise where the description of an array is not laid out as c-blosc2 reads it, or does not fit the sizes before it.

    It finds that out itself, and leaves the file open for ever (4.14.1).
    """
    axes = layer[2] if len(layer) > 2 else 0
    if not 0 < axes <= _MOST_AXES or len(layer) < 3 + _layer_form(axes)[0].size:
        raise _damaged(path, "the description of its array cannot be parsed")
    form, types = _layer_form(axes)
    fields = form.unpack_from(layer, 3)
    length = 1 + 2 * axes  # of one of three lists: its type, then type and value of each entry
    if (
        fields[::length] + fields[1:length:2] + fields[length + 1 : 2 * length : 2] + fields[2 * length + 1 :: 2]
        != types
    ):
        raise _damaged(path, "the description of its array cannot be parsed")
    shape, chunks, blocks = (fields[begin + 2 : begin + length : 2] for begin in (0, length, 2 * length))
    _, item, _, block, _, chunk = _SIZES.unpack_from(head, _SIZES_AT)
    frame = FrameSizes(-(-data_bytes // chunk) if chunk > 0 else 0, chunk, block, item)
    refuse_contradictions(path, frame, shape=shape, chunks=chunks, blocks=blocks, itemsize=item)


@cache
def _layer_form(axes: int) -> tuple[struct.Struct, tuple[int, ...]]:
    """Return how shape, chunks and blocks of an array are laid out, and the types that stand before them and their entries."""
    form = struct.Struct(">" + "".join("B" + f"B{code}" * axes for code in "qii"))
    return form, (0x90 + axes,) * 3 + (0xD3,) * axes + (0xD2,) * 2 * axes


def _damaged(path: Path, what: str) -> FormatError:
    return FormatError(f"{path} is damaged or was never finished: {what}.", hint=RESTORE)
