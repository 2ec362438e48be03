"""How do the encoded bytes behind a header become voxels?

A data block lies in one file or in several, each raw, compressed (gzip, bzip2, zlib) or written as text. Raw bytes are read
where they are needed, a compressed stream forward, and text is parsed as a whole. Each kind refuses a block that holds more or
fewer bytes than the header says.
"""

from __future__ import annotations

import bz2
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np

from mlarray.errors import FormatError
from mlarray.limits import VOXEL_TEXT_BYTES
from mlarray.locks import ForkSafeLock
from mlarray.sources.base import Access
from mlarray.sources.bytes import ByteReader, FileBytes, JoinedBytes, StreamBytes, short_data

Encoding: TypeAlias = Literal["raw", "gzip", "bzip2", "zlib", "text", "hex"]

GZIP_MAGIC = b"\x1f\x8b"
DEFLATE_RATIO = 1032  # the most that deflate can compress (zlib's technical notes); bzip2 has no such bound
_DEFLATE_SLACK = 64 * 1024
_PIECE = 256 * 1024
_LONGEST_NUMBER = 4096


@dataclass(frozen=True, slots=True)
class Block:
    """One part of the voxels.

    Parameters
    ----------
    path : Path
        The file.
    start : int
        Offset in the file of its first (encoded) byte.
    nbytes : int
        Decoded bytes of the part.
    skip : int
        Decoded bytes before it.
    """

    path: Path
    start: int
    nbytes: int
    skip: int = 0

    @property
    def stored(self) -> int:
        """Bytes of the file from ``start`` on."""
        return max(0, self.path.stat().st_size - self.start)

    def head(self, count: int) -> bytes:
        """Return the first encoded bytes."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(count)


def open_blocks(
    blocks: Sequence[Block], encoding: Encoding, dtype: np.dtype[Any], *, header: Path
) -> tuple[ByteReader, Access]:
    """Return a reader of the voxels of all blocks in a row, and what a partial read costs.

    Raises
    ------
    FormatError
        When the size of a file cannot be right.
    """
    readers = [(_open_block(block, encoding, dtype, header), block.nbytes) for block in blocks]
    access = {"raw": Access.REGION, "text": Access.WHOLE, "hex": Access.WHOLE}.get(encoding, Access.SLAB)
    return (readers[0][0] if len(readers) == 1 else JoinedBytes(readers)), access


def _open_block(block: Block, encoding: Encoding, dtype: np.dtype[Any], header: Path) -> ByteReader:
    if encoding == "raw":
        found = block.stored - block.skip
        if found != block.nbytes:
            raise wrong_size(header, block, max(0, found))
        return FileBytes(block.path, block.start + block.skip)
    if encoding in ("text", "hex"):
        if block.stored > VOXEL_TEXT_BYTES:
            raise FormatError(
                f"{block.path} holds {block.stored} bytes of voxels as text; at most {VOXEL_TEXT_BYTES} are parsed.",
                hint=f"Store the voxels as raw bytes. {VOXEL_TEXT_BYTES.hint}",
            )
        return ParsedBytes(block, dtype, "text" if encoding == "text" else "hex")
    if encoding != "bzip2" and block.nbytes > block.stored * DEFLATE_RATIO + _DEFLATE_SLACK:
        raise FormatError(
            f"{header} promises {block.nbytes} bytes of voxels; the {block.stored} compressed bytes in {block.path} "
            f"can hold {block.stored * DEFLATE_RATIO} at most.",
            hint="The header or the data are damaged: copy or export the image again.",
        )
    opener = partial(_open_stream, start=block.start, encoding=encoding, length=block.skip + block.nbytes)
    return StreamBytes(block.path, opener, block.nbytes, block.skip)


def wrong_size(header: Path, block: Block, found: int) -> FormatError:
    """Return the error for a raw block that is too short or too long; both counts in bytes."""
    kind = "too short" if found < block.nbytes else "too long"
    where = f"{header}" if header == block.path else f"{header}: the data file {block.path}"
    hint = "Copy or export it again, or correct the sizes, type or skipped bytes in the header."
    if block.head(2) == GZIP_MAGIC:
        hint = "The data look compressed with gzip: say so in the header."
    return FormatError(
        f"{where} is {kind}: {block.nbytes} bytes of voxels are expected, {found} were found.", hint=hint
    )


class _ExactStream(io.RawIOBase):
    """A decoded stream that refuses to be longer than ``length`` and closes its file."""

    def __init__(self, decoder: Any, file: BinaryIO, length: int) -> None:
        self._decoder = decoder
        self._file = file
        self._length = length
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._decoder.readinto(buffer))
        self._done += count
        if self._done > self._length:
            raise FormatError(
                f"{self._file.name} is too long: {self._length} decoded bytes are expected, more were found.",
                hint="Correct the sizes or the type in the header, or export the image again.",
            )
        return count

    def close(self) -> None:
        if not self.closed:
            self._decoder.close()
            self._file.close()
        super().close()


class _ZlibStream(io.RawIOBase):
    """Decodes one zlib or gzip stream with ISA-L; what follows it in the file is left alone."""

    def __init__(self, file: BinaryIO) -> None:
        from isal import igzip_lib

        self._file = file
        head = file.read(2)
        file.seek(-len(head), os.SEEK_CUR)
        kind = igzip_lib.DECOMP_GZIP if head == GZIP_MAGIC else igzip_lib.DECOMP_ZLIB
        self._decoder = igzip_lib.IgzipDecompressor(flag=kind)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        while not self._decoder.eof and len(target):
            piece = self._file.read(_PIECE) if self._decoder.needs_input else b""
            if not piece and self._decoder.needs_input:
                raise EOFError("the compressed stream ends before its end mark")
            data = self._decoder.decompress(piece, min(len(target), _PIECE))
            if data:
                target[: len(data)] = data
                return len(data)
        return 0


def _open_stream(path: Path, *, start: int, encoding: Encoding, length: int) -> _ExactStream:
    file = path.open("rb")
    try:
        file.seek(start)
        decoder: Any
        if encoding == "gzip":
            from isal import igzip

            decoder = igzip.IGzipFile(fileobj=file, mode="rb")
        elif encoding == "bzip2":
            decoder = bz2.BZ2File(file)
        else:
            decoder = _ZlibStream(file)
    except BaseException:
        file.close()
        raise
    return _ExactStream(decoder, file, length)


class ParsedBytes:
    """Voxels written as text, parsed on first use and kept.

    Parameters
    ----------
    block : Block
        Where the text is, and how many bytes of voxels it stands for.
    dtype : numpy dtype
        Of the voxels (numbers in text) or of the bytes that the digits spell (hex).
    kind : {"text", "hex"}
        Numbers between white space, or two hexadecimal digits a byte.
    """

    def __init__(self, block: Block, dtype: np.dtype[Any], kind: Literal["text", "hex"]) -> None:
        self._block = block
        self._dtype = dtype
        self._kind: Literal["text", "hex"] = kind
        self._lock = ForkSafeLock()
        self._data: memoryview | None = None

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset``."""
        with self._lock:
            if self._data is None:
                parse = _parse_text if self._kind == "text" else _parse_hex
                self._data = memoryview(parse(self._block, self._dtype)).cast("B")
            buffer[:] = self._data[offset : offset + len(buffer)]

    def close(self) -> None:
        """Forget the parsed voxels; a later read parses them again."""
        with self._lock:
            self._data = None

    def __reduce__(self) -> tuple[object, ...]:
        return (ParsedBytes, (self._block, self._dtype, self._kind))


def gzip_writer(file: BinaryIO, *, threads: int) -> Any:
    """Return a stream that writes one gzip member into ``file``, without name or date, at ISA-L's default level."""
    from isal import igzip, igzip_threaded

    if threads > 1:
        return igzip_threaded.open(file, "wb", threads=threads)
    return igzip.IGzipFile(filename="", mode="wb", fileobj=file, mtime=0)


class ZlibWriter:
    """Writes one zlib stream into ``file``, at ISA-L's default level."""

    def __init__(self, file: BinaryIO) -> None:
        from isal import isal_zlib

        self._file = file
        self._compressor: Any = isal_zlib.compressobj()

    def write(self, data: Any) -> int:
        """Compress ``data``."""
        self._file.write(self._compressor.compress(data))
        return len(data)

    def close(self) -> None:
        """End the stream; the file stays open. Safe to call twice."""
        if self._compressor is not None:
            self._file.write(self._compressor.flush())
            self._compressor = None


def _parse_text(block: Block, dtype: np.dtype[Any]) -> Any:
    count = block.nbytes // dtype.itemsize
    if count > (block.stored + 1) // 2:  # a number takes a digit and a separator
        raise short_data(block.path, 2 * count - 1, block.stored)
    result = np.empty(count, dtype)
    convert: Callable[[bytes], float | int] = int if dtype.kind in "iu" else float
    done, rest = 0, b""
    with block.path.open("rb") as file:
        file.seek(block.start)
        while piece := file.read(_PIECE):
            tokens = (rest + piece).replace(b",", b" ").split()
            rest = tokens.pop() if tokens and not piece[-1:].isspace() else b""
            if len(rest) > _LONGEST_NUMBER:
                raise FormatError(f"{block.path} holds {len(rest)} bytes of text without a separator: no number.")
            done = _store(result, done, tokens, convert, block)
        done = _store(result, done, [rest] if rest else [], convert, block)
    if done != count:
        raise FormatError(f"{block.path} is too short: {count} numbers are expected, {done} were found.")
    return result


def _store(result: Any, done: int, tokens: list[bytes], convert: Callable[[bytes], float | int], block: Block) -> int:
    if done + len(tokens) > result.size:
        raise FormatError(f"{block.path} is too long: {result.size} numbers are expected, more were found.")
    try:
        with np.errstate(over="ignore"):
            result[done : done + len(tokens)] = np.array([convert(token) for token in tokens], dtype=result.dtype)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{block.path} holds text that is no {result.dtype.name}: {error}.") from error
    return done + len(tokens)


def _parse_hex(block: Block, dtype: np.dtype[Any]) -> bytes:
    with block.path.open("rb") as file:
        file.seek(block.start)
        text = file.read(VOXEL_TEXT_BYTES + 1)
    try:
        data = bytes.fromhex(text.decode("ascii"))
    except ValueError as error:
        raise FormatError(f"{block.path} holds text that is not hexadecimal: {error}.") from error
    if len(data) != block.nbytes:
        raise wrong_size(block.path, block, len(data))
    return data
