"""How are numpy's own files read?

A ``.npy`` file is a small header and a raw block in C or Fortran order; a ``.npz`` file is a zip archive of those, each of which
is an item. Members that are stored are read by regions, compressed ones forward. Pickles are never loaded. Neither says what the
axes are, or where a voxel is.
"""

from __future__ import annotations

import ast
import io
import lzma
import math
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from mlarray.errors import FormatError
from mlarray.formats.encoded import Block, wrong_size
from mlarray.formats.items import Item, pick_item
from mlarray.limits import LZMA_DICTIONARY_BYTES, NPY_HEADER_BYTES, NPZ_MEMBERS
from mlarray.sources.base import Access, Note, SourceInfo
from mlarray.sources.bytes import FileBytes, StreamBytes
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.spec import ArraySpec

_SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY"
_ZIP_LOCAL, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_LONG = re.compile(r"\b(\d+)L\b")  # as Python 2 wrote large extents
_LOCAL_HEADER = 30  # bytes before the name; APPNOTE.TXT 4.3.7
_DEFLATE_RATIO, _DEFLATE_SLACK = 1032, 64 * 1024  # the most that deflate can compress (zlib's technical notes)
_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
)  # what zipfile raises, and its codecs
_UNSTATED = Note("axes-unknown", "A numpy file does not say what its axes are or where its voxels are.")


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before the voxels: how they lie, and how many bytes it takes itself."""

    layout: RawLayout
    start: int

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.layout.array_shape, self.layout.dtype.newbyteorder("="))


def open_source(path: Path, *, item: str | None = None) -> RawSource:
    """Open a ``.npy`` file, or a member of a ``.npz`` file; only headers are read.

    Raises
    ------
    FormatError
        For damage, Python objects, structures and texts, and several members where none was chosen.
    """
    if zipfile.is_zipfile(path):
        return _open_member(path, item)
    if item is not None:
        raise FormatError(f"{path} holds one array: there is no item {item!r} to choose.")
    with path.open("rb") as file:
        header = _read_header(file, str(path))
    found = path.stat().st_size - header.start
    if found != header.layout.nbytes:
        raise wrong_size(path, Block(path, header.start, header.layout.nbytes), max(0, found))
    info = SourceInfo(format="npy", files=(path,), notes=(_UNSTATED,))
    return RawSource(FileBytes(path, header.start), header.layout, header.spec, access=Access.REGION, info=info)


def items(path: Path) -> tuple[Item, ...]:
    """Return the arrays of numbers in a ``.npz`` file; a ``.npy`` file has one, which needs no name."""
    if not zipfile.is_zipfile(path):
        return ()
    with _archive(path) as archive:
        return tuple(_listed(archive, path)[0])


def _listed(archive: zipfile.ZipFile, path: Path) -> tuple[list[Item], list[Item]]:
    """Return the members that are arrays of numbers, and the others, whose titles say why they are none."""
    found, others = [], []
    for member in _members(archive, path):
        name = _name(member)
        try:
            spec = _member_header(archive, member, path).spec
        except FormatError as error:
            others.append(Item(name, error.message.removeprefix(f"{path}: {name} ").removesuffix(".")))
            continue
        found.append(Item(name, f"{spec.dtype.name} {' x '.join(map(str, spec.shape))}"))
    return found, others


def _open_member(path: Path, item: str | None) -> RawSource:
    with _archive(path) as archive:
        members = {_name(member): member for member in _members(archive, path)}
        name = next(iter(members), "") if item is None and len(members) == 1 else (item or "").removesuffix(_SUFFIX)
        if name not in members:
            found, others = _listed(archive, path)
            name = pick_item(path, found, item, others=others).name
        member = members[name]
        header = _member_header(archive, member, path)
        stored_at = _data_start(path, member)
    info = SourceInfo(format="npz", files=(path,), notes=(_UNSTATED,), item=name)
    if member.compress_type == zipfile.ZIP_STORED:
        data: FileBytes | StreamBytes = FileBytes(path, stored_at + header.start)
        access = Access.REGION
    else:
        opener = partial(_MemberStream, name=member.filename)
        data, access = StreamBytes(path, opener, header.layout.nbytes, header.start), Access.SLAB
    return RawSource(data, header.layout, header.spec, access=access, info=info)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (*_DAMAGE, zipfile.LargeZipFile, RuntimeError, UnicodeDecodeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is damaged: {error}.", hint="Copy or export it again.") from error


def _members(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    members = [member for member in archive.infolist() if member.filename.endswith(_SUFFIX)]
    if len(members) > NPZ_MEMBERS:
        raise FormatError(
            f"{path} holds {len(members)} arrays; at most {NPZ_MEMBERS} are looked at.", hint=NPZ_MEMBERS.hint
        )
    return members


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(_SUFFIX)


def _member_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> _Header:
    """Return the header of a member whose size is what the header promises."""
    what = f"{path}: {_name(member)}"
    if member.flag_bits & 1:
        raise FormatError(f"{what} is encrypted.", hint="Save it again without a password.")
    if member.compress_type not in _READABLE:
        raise FormatError(f"{what} is compressed by a method ({member.compress_type}) that is not known.")
    if member.compress_type == zipfile.ZIP_LZMA:
        _refuse_large_dictionary(path, member, what)
    try:
        with archive.open(member) as file:
            header = _read_header(file, what)
    except (*_DAMAGE, OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{what} is damaged: {error}.", hint="Copy or export it again.") from error
    expected = header.start + header.layout.nbytes
    if member.file_size != expected:
        kind = "short" if member.file_size < expected else "long"
        raise FormatError(f"{what} is too {kind}: {expected} bytes are expected, {member.file_size} were found.")
    if (
        member.compress_type == zipfile.ZIP_DEFLATED
        and expected > member.compress_size * _DEFLATE_RATIO + _DEFLATE_SLACK
    ):
        raise FormatError(f"{what} promises {expected} bytes; {member.compress_size} compressed ones cannot hold them.")
    return header


def _read_header(file: Any, what: str) -> _Header:
    head = file.read(8)
    if head[:4] in (_ZIP_LOCAL, _ZIP_END):
        raise FormatError(
            f"{what} is a numpy archive that was cut, or whose writer did not end: the directory at its end is missing.",
            hint="Copy or export it again.",
        )
    if len(head) < 8 and _MAGIC.startswith(head[:6]):
        raise FormatError(
            f"{what} is a numpy file that was cut after {len(head)} bytes.", hint="Copy or export it again."
        )
    if len(head) < 8 or head[:6] != _MAGIC:
        raise FormatError(f"{what} is no numpy file: it begins with {head[:6]!r}.", hint="Check what wrote it.")
    version = (head[6], head[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise FormatError(f"{what} is a numpy file of version {version}; 1.0 to 3.0 can be read.")
    count = 2 if version == (1, 0) else 4
    length = file.read(count)
    size = int.from_bytes(length, "little")
    if size > NPY_HEADER_BYTES:
        raise FormatError(
            f"{what} has a header of {size} bytes; at most {NPY_HEADER_BYTES} are read.", hint=NPY_HEADER_BYTES.hint
        )
    raw = file.read(size)
    try:
        shape, fortran, dtype = _parse(
            raw.decode("latin-1" if version < (3, 0) else "utf-8"), complete=len(raw) == size
        )
    except (ValueError, TypeError, SyntaxError, KeyError, RecursionError, MemoryError) as error:
        told = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{what} has a header that cannot be read: {told}.", hint="Copy or export it again."
        ) from error
    _refuse_type(dtype, what)
    if not shape:
        raise FormatError(f"{what} is a single value, not an array.")
    if math.prod(shape) > 2**62:
        raise FormatError(f"{what} has the shape {shape}, which cannot be.")
    order = tuple(range(len(shape)))[:: -1 if fortran else 1]
    return _Header(RawLayout(tuple(shape)[:: -1 if fortran else 1], dtype, order), 8 + count + size)


def _parse(text: str, *, complete: bool) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether the order is Fortran's, and dtype; the text is a dict of literals and is not run."""
    if not complete:
        raise ValueError("it is cut")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in texts
        fields = ast.literal_eval(_LONG.sub(r"\1", text).strip())
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("it does not hold descr, fortran_order and shape")
    shape, fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError(f"the shape is {shape!r}")
    if not isinstance(fortran, bool):
        raise ValueError(f"fortran_order is {fortran!r}")
    return shape, fortran, np.lib.format.descr_to_dtype(fields["descr"])


def _refuse_type(dtype: np.dtype[Any], what: str) -> None:
    if dtype.hasobject:
        raise FormatError(
            f"{what} holds Python objects as a pickle, which is never loaded: it could run anything.",
            hint="Save it as an array of numbers.",
        )
    if dtype.names is not None:
        raise FormatError(
            f"{what} is a structured array with the fields {', '.join(dtype.names)}.",
            hint="Save each field as an array of its own.",
        )
    if dtype.kind not in "biufc":
        raise FormatError(f"{what} holds {dtype}, not numbers.", hint="Save it as an array of numbers.")


def _refuse_large_dictionary(path: Path, member: zipfile.ZipInfo, what: str) -> None:
    """Refuse an LZMA stream that asks for more memory than any preset does (APPNOTE.TXT 5.8.8: version, size, properties)."""
    with path.open("rb") as file:
        file.seek(_data_start(path, member))
        asked = int.from_bytes(file.read(9)[5:9], "little")
    if asked > LZMA_DICTIONARY_BYTES:
        raise FormatError(
            f"{what} asks for {asked} bytes of memory to be decompressed; at most {LZMA_DICTIONARY_BYTES} are allowed.",
            hint=LZMA_DICTIONARY_BYTES.hint,
        )


def _data_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member begin: its local header may have other lengths than the directory."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        local = file.read(_LOCAL_HEADER)
    if len(local) < _LOCAL_HEADER or local[:4] != _ZIP_LOCAL:
        raise FormatError(f"{path}: {_name(member)} does not begin where the directory says.")
    lengths = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    return member.header_offset + _LOCAL_HEADER + lengths


class _MemberStream(io.RawIOBase):
    """The decoded bytes of a member, from its own handle; a wrong checksum at the end is a ValueError."""

    def __init__(self, path: Path, *, name: str) -> None:
        self._archive = zipfile.ZipFile(path)
        try:
            self._file = self._archive.open(name)
        except BaseException:
            self._archive.close()
            raise

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(cast("Any", self._file).readinto(buffer))
        except (zipfile.BadZipFile, lzma.LZMAError) as error:
            raise ValueError(str(error)) from error

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            self._archive.close()
        super().close()
