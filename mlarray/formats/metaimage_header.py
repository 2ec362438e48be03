"""What does the text of a MetaImage header say?

``Key = Value`` lines up to ``ElementDataFile``, with every spelling of a field that MetaIO accepts. Nothing here reads voxels.
Facts of the format: the MetaIO documentation of ITK, checked against SimpleITK.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import FormatError
from mlarray.formats.text_header import Head, axis_count, extents, finite, floats, ints, one_int, read_head, shorten

RECORD_FIELD = "MLArrayRecord"
AXES_FIELD = "MLArrayAxes"
FRAME_FIELD = "MLArrayFrame"
LONGEST_VALUE = 30_000  # MetaIO's buffer for one value has 32768 bytes; a longer line makes the file unreadable there
OFFSET = ("Offset", "Position", "Origin")
MATRIX = ("TransformMatrix", "Rotation", "Orientation")
SPACING = ("ElementSpacing",)
_BYTE_ORDER = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")
_INTEGERS = ("NDims", "DimSize", "ElementNumberOfChannels", "HeaderSize", "CompressedDataSize")
_FLOATS = (*OFFSET, *MATRIX, *SPACING, "ElementSize", "CenterOfRotation")
# Fields that say how and where the voxels lie; a writer sets its own and takes none of them from a source.
TECHNICAL = frozenset(
    name.lower()
    for name in (
        *_INTEGERS,
        *_FLOATS,
        *_BYTE_ORDER,
        *("ObjectType", "ObjectSubType", "ElementType", "ElementNBits", "BinaryData", "CompressedData"),
        *("CompressionLevel", "AnatomicalOrientation", "DistanceUnits", "ElementMin", "ElementMax", "ElementDataFile"),
        *("ElementToIntensityFunctionSlope", "ElementToIntensityFunctionOffset", "Kinds"),
    )
)
_END = re.compile(rb"(?:\A|\n)[ \t]*ElementDataFile[ \t]*[=:][^\n]*\n", re.IGNORECASE)
_TYPES = {
    "MET_CHAR": "i1",
    "MET_ASCII_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",  # four bytes in a file, on every system
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
WRITTEN_TYPES = {code: name for name, code in _TYPES.items() if name not in ("MET_LONG", "MET_ULONG", "MET_ASCII_CHAR")}


@dataclass(frozen=True, slots=True)
class MetaHeader:
    """A parsed header.

    Parameters
    ----------
    fields : mapping of str to str
        Texts by the names of the fields, spelled as in the file.
    listed : tuple of str
        File names below ``ElementDataFile = LIST``.
    start : int
        Offset of the first byte behind the header.
    """

    fields: Mapping[str, str]
    listed: tuple[str, ...]
    start: int
    sizes: tuple[int, ...] = field(init=False)
    channels: int = field(init=False)

    def __post_init__(self) -> None:
        kind = self.text("ObjectType") or "Image"
        if kind.lower() != "image":
            raise FormatError(
                f"The MetaImage header is of an object of type {shorten(kind)!r}; only Image holds voxels."
            )
        count = axis_count("NDims", self.required("NDims"))
        object.__setattr__(self, "sizes", extents("DimSize", self.required("DimSize"), count))
        channels = one_int("ElementNumberOfChannels", self.text("ElementNumberOfChannels") or "1")
        if channels < 1:
            raise FormatError(f"ElementNumberOfChannels must be at least 1, got {channels}.")
        object.__setattr__(self, "channels", channels)

    def text(self, *names: str) -> str | None:
        """Return the text of the field that has one of several names, or None.

        Raises
        ------
        FormatError
            When two of the names are there and say different things.
        """
        wanted = [name.lower() for name in names]
        found = {name: text for name, text in self.fields.items() if name.lower() in wanted}
        if len({" ".join(text.lower().split()) for text in found.values()}) > 1:
            raise FormatError(f"The MetaImage fields {', '.join(found)} contradict each other: {found}.")
        return next(iter(found.values()), None)

    def required(self, name: str) -> str:
        """Return a field that must be there."""
        text = self.text(name)
        if text is None:
            raise FormatError(f"The MetaImage header has no field {name}, which is required.")
        return text

    def flag(self, *names: str, default: bool) -> bool:
        """Return a field that is true or false."""
        text = self.text(*names)
        if text is None:
            return default
        first = text[:1].lower()
        if first not in ("t", "1", "y", "f", "0", "n"):
            raise FormatError(f"The field {names[0]} must be True or False, got {shorten(text)!r}.")
        return first in ("t", "1", "y")

    def numbers(self, names: tuple[str, ...], count: int) -> tuple[float, ...] | None:
        """Return ``count`` finite numbers of the field that has one of several names, or None."""
        text = self.text(*names)
        return None if text is None else finite(names[0], floats(names[0], text), count)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the voxels as stored."""
        given = self.required("ElementType").upper()
        code = _TYPES.get(given.removesuffix("_ARRAY"))
        if code is None:
            raise FormatError(f"ElementType {shorten(given)!r} cannot be read; known are {', '.join(_TYPES)}.")
        if not self.flag("BinaryData", default=True):
            return np.dtype(code)
        return np.dtype(code).newbyteorder(">" if self.flag(*_BYTE_ORDER, default=False) else "<")

    @property
    def record_text(self) -> str | None:
        """The text of the conversion record, joined from as many fields as it takes."""
        parts: list[str] = []
        while (part := self.text(f"{RECORD_FIELD}{len(parts) or ''}")) is not None:
            parts.append(part)
        return "".join(parts) if parts else None

    def plain(self) -> dict[str, object]:
        """Return the header as plain values: texts as in the file, numbers parsed."""
        ours = (RECORD_FIELD.lower(), AXES_FIELD.lower(), FRAME_FIELD.lower())
        result = {name: _plain(name, text) for name, text in self.fields.items() if not name.lower().startswith(ours)}
        if self.listed:
            result["data files"] = list(self.listed)
        return result


def read_meta_header(path: Path) -> MetaHeader:
    """Read and parse the header of ``path``.

    Raises
    ------
    FormatError
        When it is not a MetaImage header, or a damaged one.
    """
    head = read_head(path, _END)
    fields: dict[str, str] = {}
    seen: set[str] = set()
    for line in head.lines():
        if not line.strip():
            continue
        name, separator, text = _split(line)
        if not separator or not name:
            raise FormatError(f"{path} has the header line {shorten(line)!r}, which is not of the form Key = Value.")
        if name.lower() in seen and name.lower() in TECHNICAL:
            raise FormatError(f"{path} has the header field {name} twice.", hint="Remove one of the two lines.")
        seen.add(name.lower())
        fields[name] = text
        if name.lower() == "elementdatafile":
            break
    else:
        raise FormatError(f"{path} has no field ElementDataFile, which ends a MetaImage header and is required.")
    listed = _list_lines(path, head.start) if fields[name].split()[:1] == ["LIST"] else ()
    return MetaHeader(fields, listed, head.start)


def _split(line: str) -> tuple[str, str, str]:
    match = re.match(r"([^=:]*)([=:])(.*)", line, re.DOTALL)
    return (match[1].strip(), match[2], match[3].strip()) if match else (line.strip(), "", "")


def _list_lines(path: Path, start: int) -> tuple[str, ...]:
    head = read_head(path, re.compile(rb"(?!)"))  # matches nothing: the list is the rest of the file
    rest = Head(head.text[start:], head.start, head.ended)
    return tuple(line.strip() for line in rest.lines() if line.strip())


def _plain(name: str, text: str) -> object:
    known = {entry.lower() for entry in _INTEGERS} | {entry.lower() for entry in _FLOATS}
    if name.lower() not in known:
        return text
    try:
        if name.lower() in {entry.lower() for entry in _INTEGERS}:
            whole = list(ints(name, text))
            return whole if name.lower() == "dimsize" or len(whole) != 1 else whole[0]
        values = floats(name, text)
        return list(finite(name, values, len(values)))
    except FormatError:
        return text
