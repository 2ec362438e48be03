"""What does the text of a NRRD header say?

Fields, key/value pairs and comments, after the NRRD format definition (teem, versions NRRD0001 to NRRD0005). Nothing here
reads voxels or decides what an axis means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import FormatError
from mlarray.formats.encoded import Encoding
from mlarray.formats.text_header import axis_count, extents, floats, plain_numbers, read_head, shorten

RECORD_KEY = "mlarray_record"
_END = re.compile(rb"\r?\n\r?\n")
_MAGIC = re.compile(r"NRRD000[1-5]")
_SPELLINGS = {
    "datafile": "data file",
    "lineskip": "line skip",
    "byteskip": "byte skip",
    "oldmin": "old min",
    "oldmax": "old max",
    "sampleunits": "sample units",
    "blocksize": "block size",
    "axismins": "axis mins",
    "axismaxs": "axis maxs",
    "centerings": "centers",
}
_NUMBER_LISTS = ("sizes", "spacings", "thicknesses", "axis mins", "axis maxs", "old min", "old max", "min", "max")
_VECTORS = ("space directions", "space origin", "measurement frame")
_QUOTED = ("labels", "units", "space units")
_KNOWN = frozenset(
    (
        *_SPELLINGS.values(),
        *_NUMBER_LISTS,
        *_VECTORS,
        *_QUOTED,
        *("dimension", "type", "encoding", "endian", "content", "number", "kinds", "space", "space dimension"),
    )
)
_TYPES: dict[str, tuple[str, ...]] = {
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": (
        *("longlong", "long long", "long long int", "signed long long", "signed long long int"),
        *("int64", "int64_t"),
    ),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
_ENCODINGS: dict[str, Encoding] = {
    "raw": "raw",
    "txt": "text",
    "text": "text",
    "ascii": "text",
    "hex": "hex",
    "gz": "gzip",
    "gzip": "gzip",
    "bz2": "bzip2",
    "bzip2": "bzip2",
}


@dataclass(frozen=True, slots=True)
class NrrdHeader:
    """A parsed header.

    Parameters
    ----------
    magic : str
        ``"NRRD0004"``.
    fields : mapping of str to str
        Texts by the canonical names of the fields, lower case.
    keys : mapping of str to str
        Key/value pairs, escapes resolved.
    comments : tuple of str
        Without the ``#``.
    listed : tuple of str
        File names below ``data file: LIST``.
    start : int
        Offset of the first byte behind the header.
    unknown : tuple of str
        Names of fields that the format does not define.
    """

    magic: str
    fields: Mapping[str, str]
    keys: Mapping[str, str]
    comments: tuple[str, ...]
    listed: tuple[str, ...]
    start: int
    unknown: tuple[str, ...]
    sizes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        count = axis_count("dimension", self.required("dimension"))
        object.__setattr__(self, "sizes", extents("sizes", self.required("sizes"), count))

    def required(self, name: str) -> str:
        """Return a field that must be there."""
        if name not in self.fields:
            raise FormatError(f"The NRRD header has no field {name!r}, which is required.")
        return self.fields[name]

    @property
    def encoding(self) -> Encoding:
        """How the voxels are encoded."""
        given = self.required("encoding").lower()
        if given not in _ENCODINGS:
            raise FormatError(f"The NRRD encoding {shorten(given)!r} is unknown; known are {', '.join(_ENCODINGS)}.")
        return _ENCODINGS[given]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the voxels as stored."""
        given = " ".join(self.required("type").lower().split())
        code = next((code for code, names in _TYPES.items() if given in names), None)
        if code is None:
            why = "blocks of bytes are no numbers" if given == "block" else "it is not defined"
            raise FormatError(f"The NRRD type {shorten(given)!r} cannot be read: {why}.")
        dtype = np.dtype(code)
        if dtype.itemsize == 1 or self.encoding == "text":
            return dtype
        endian = self.fields.get("endian", "").lower()
        if endian not in ("little", "big"):
            raise FormatError(
                f"The NRRD header says endian {endian!r} for {given}; little or big is needed.",
                hint="Add the line 'endian: little' or 'endian: big' to the header.",
            )
        return dtype.newbyteorder("<" if endian == "little" else ">")

    def vectors(self, name: str) -> tuple[tuple[float, ...] | None, ...]:
        """Return the vectors of a field; ``none`` and vectors of nothing but ``nan`` are None."""
        text = self.fields[name]
        tokens = re.findall(r"\([^()]*\)|[^\s()]+", text)
        parsed: list[tuple[float, ...] | None] = []
        for token in tokens:
            if token.lower() == "none":
                parsed.append(None)
                continue
            if not token.startswith("("):
                raise FormatError(f"The field {name!r} must hold vectors such as (1,0,0), got {shorten(text)!r}.")
            vector = floats(name, token[1:-1])
            parsed.append(None if all(entry != entry for entry in vector) else vector)
        return tuple(parsed)

    def quoted(self, name: str, count: int) -> tuple[str, ...]:
        """Return ``count`` quoted strings; empty where the field is missing."""
        text = self.fields.get(name)
        if text is None:
            return ("",) * count
        found = [re.sub(r"\\(.)", r"\1", part) for part in re.findall(r'"((?:[^"\\]|\\.)*)"', text)]
        found = found if '"' in text else text.split()
        if len(found) != count:
            raise FormatError(f"The field {name!r} must hold {count} strings, got {shorten(text)!r}.")
        return tuple(found)

    def per_axis(self, name: str) -> tuple[float, ...] | None:
        """Return one number per axis, or None where the field is missing."""
        if name not in self.fields:
            return None
        values = floats(name, self.fields[name])
        if len(values) != len(self.sizes):
            raise FormatError(f"The field {name!r} must hold {len(self.sizes)} numbers, got {len(values)}.")
        return values

    def plain(self) -> dict[str, object]:
        """Return the header as plain values: texts as in the file, lists of numbers and vectors parsed."""
        result: dict[str, object] = {"magic": self.magic}
        for name, text in self.fields.items():
            result[name] = self._plain_field(name, text)
        if self.listed:
            result["data files"] = list(self.listed)
        keys = {key: value for key, value in self.keys.items() if key != RECORD_KEY}
        if keys:
            result["key/values"] = keys
        if self.comments:
            result["comments"] = list(self.comments)
        return result

    def _plain_field(self, name: str, text: str) -> object:
        try:
            if name in _NUMBER_LISTS:
                values: list[float | None] = [*plain_numbers(floats(name, text))]
                whole = [int(value) if name == "sizes" and value is not None else value for value in values]
                return text if float("inf") in map(abs, (v for v in values if v is not None)) else whole
            if name in _VECTORS:
                vectors = [None if vector is None else plain_numbers(vector) for vector in self.vectors(name)]
                return text if "inf" in text.lower() else vectors
        except FormatError:
            return text
        if name in _QUOTED and text.count('"') >= 2:
            return self.quoted(name, len(re.findall(r'"((?:[^"\\]|\\.)*)"', text)))
        return text


def read_nrrd_header(path: Path) -> NrrdHeader:
    """Read and parse the header of ``path``.

    Raises
    ------
    FormatError
        When it is not a NRRD header, or a damaged one.
    """
    head = read_head(path, _END)
    lines = head.lines()
    if not _MAGIC.fullmatch(lines[0].strip()):
        raise FormatError(f"{path} begins with {shorten(lines[0], 12)!r}; NRRD0001 to NRRD0005 can be read.")
    fields: dict[str, str] = {}
    keys: dict[str, str] = {}
    comments: list[str] = []
    unknown: list[str] = []
    for number, line in enumerate(lines[1:], start=1):
        if not line.strip():
            continue
        if line.startswith("#"):
            comments.append(line[1:].strip())
            continue
        if _take_line(path, line, fields, keys, unknown) and fields["data file"].split()[:1] == ["LIST"]:
            listed = tuple(name.strip() for name in lines[number + 1 :] if name.strip())
            break
    else:
        listed = ()
    return NrrdHeader(lines[0].strip(), fields, keys, tuple(comments), listed, head.start, tuple(unknown))


def _take_line(path: Path, line: str, fields: dict[str, str], keys: dict[str, str], unknown: list[str]) -> bool:
    """Sort one line in; tell whether it is the one that names data files."""
    prefix, separator, text = line.partition(":")
    name = " ".join(prefix.lower().split())
    name = _SPELLINGS.get(name, name)
    key, assignment, value = line.partition(":=")
    if assignment and not (name in _KNOWN and not text.startswith("=")):
        keys[_unescape(key)] = _unescape(value)
        return False
    if not separator:
        raise FormatError(f"{path} has the header line {shorten(line)!r}, which is no field, key or comment.")
    if name in fields:
        raise FormatError(f"{path} has the header field {name!r} twice.", hint="Remove one of the two lines.")
    fields[name] = text.strip()
    if name not in _KNOWN:
        unknown.append(name)
    return name == "data file"


def _unescape(text: str) -> str:
    return re.sub(r"\\([\\n])", lambda found: "\n" if found[1] == "n" else "\\", text)


def escape(text: str) -> str:
    r"""Return ``text`` for a key/value line: a line end as ``\n``, a backslash doubled."""
    return text.replace("\\", "\\\\").replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\\n")
