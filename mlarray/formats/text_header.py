"""How is a small text header read without trusting it?

NRRD and MetaImage begin with lines of text. They are read up to their end mark and never beyond :data:`TEXT_HEADER_BYTES`,
bytes that are no UTF-8 are taken as latin-1, and numbers are parsed with the field's name in the message. What a field means
is left to the format modules.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlarray.errors import FormatError
from mlarray.limits import CONVERSION_RECORD_BYTES, TEXT_HEADER_BYTES
from mlarray.sources.base import Note

LARGEST_AXIS_COUNT = 16  # NRRD's own limit; MetaImage readers stop at 10
_FIRST_READ = 64 * 1024
# Factors to millimetres, by the spellings that headers use.
_MILLIMETRES = {
    "nm": 1e-6,
    "nanometer": 1e-6,
    "um": 1e-3,
    "µm": 1e-3,
    "μm": 1e-3,
    "micron": 1e-3,
    "microns": 1e-3,
    "micrometer": 1e-3,
    "mm": 1.0,
    "millimeter": 1.0,
    "cm": 10.0,
    "centimeter": 10.0,
    "m": 1000.0,
    "meter": 1000.0,
}
_TIME_UNITS = {
    "s": "second",
    "sec": "second",
    "second": "second",
    "seconds": "second",
    "ms": "millisecond",
    "millisecond": "millisecond",
    "us": "microsecond",
    "µs": "microsecond",
    "microsecond": "microsecond",
    "min": "minute",
    "minute": "minute",
    "h": "hour",
    "hour": "hour",
}


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a file, up to the end of its header.

    Parameters
    ----------
    text : bytes
        The header, its end mark included.
    start : int
        Offset of the first byte behind it.
    ended : bool
        Whether the end mark was found; without it the header is the whole file.
    """

    text: bytes
    start: int
    ended: bool

    def lines(self) -> list[str]:
        """Return the lines, decoded, without line ends."""
        return [decode(line.rstrip(b"\r")) for line in self.text.split(b"\n")]


def read_head(path: Path, end: re.Pattern[bytes]) -> Head:
    """Read a header up to the end of the first match of ``end``.

    Raises
    ------
    FormatError
        When more than :data:`TEXT_HEADER_BYTES` bytes hold no match.
    """
    buffer = bytearray()
    want = _FIRST_READ
    with path.open("rb") as file:
        while True:
            piece = file.read(want)
            searched = max(0, buffer.rfind(b"\n") - 2)
            buffer += piece
            match = end.search(buffer, searched)
            if match is not None:
                return Head(bytes(buffer[: match.end()]), match.end(), ended=True)
            if len(piece) < want:
                return Head(bytes(buffer), len(buffer), ended=False)
            if len(buffer) >= TEXT_HEADER_BYTES:
                raise FormatError(
                    f"{path} has no end of header within {len(buffer)} bytes; at most {TEXT_HEADER_BYTES} are read.",
                    hint=f"Check that the file is what its name says. {TEXT_HEADER_BYTES.hint}",
                )
            want = min(len(buffer), TEXT_HEADER_BYTES)  # doubling keeps the search linear


def decode(raw: bytes) -> str:
    """Return text, read as UTF-8 or else as latin-1, which takes any byte."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def floats(field: str, text: str) -> tuple[float, ...]:
    """Return the numbers of ``text``; ``nan`` and ``inf`` are numbers here."""
    try:
        return tuple(float(token) for token in text.replace(",", " ").split())
    except ValueError:
        raise FormatError(f"The field {field!r} must hold numbers, got {shorten(text)!r}.") from None


def ints(field: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of ``text``."""
    try:
        return tuple(int(token) for token in text.split())
    except ValueError:
        raise FormatError(f"The field {field!r} must hold whole numbers, got {shorten(text)!r}.") from None


def one_int(field: str, text: str) -> int:
    """Return the one whole number of ``text``."""
    found = ints(field, text)
    if len(found) != 1:
        raise FormatError(f"The field {field!r} must hold one whole number, got {shorten(text)!r}.")
    return found[0]


def axis_count(field: str, text: str) -> int:
    """Return a number of axes, between 1 and :data:`LARGEST_AXIS_COUNT`."""
    count = one_int(field, text)
    if not 1 <= count <= LARGEST_AXIS_COUNT:
        raise FormatError(f"{field!r} says {count} axes; 1 to {LARGEST_AXIS_COUNT} can be read.")
    return count


def extents(field: str, text: str, count: int) -> tuple[int, ...]:
    """Return one extent per axis, each at least 1."""
    found = ints(field, text)
    if len(found) != count or any(extent < 1 for extent in found):
        raise FormatError(f"The field {field!r} must hold {count} numbers of at least 1, got {shorten(text)!r}.")
    return found


def finite(field: str, values: Sequence[float], count: int) -> tuple[float, ...]:
    """Return ``values`` after checking that there are ``count`` of them, all finite."""
    if len(values) != count or not all(map(math.isfinite, values)):
        raise FormatError(f"The field {field!r} must hold {count} finite numbers, got {list(values)[:20]}.")
    return tuple(values)


def plain_numbers(values: Sequence[float]) -> list[float | None]:
    """Return numbers as JSON can hold them: ``nan``, which stands for "not stated", becomes None."""
    return [None if math.isnan(value) else value for value in values]


def millimetres(unit: str) -> float | None:
    """Return the length of ``unit`` in millimetres, or None for a unit that is not known."""
    return _MILLIMETRES.get(unit.strip().lower())


def time_unit(unit: str) -> str | None:
    """Return the OME-NGFF name of a unit of time, or None for any other."""
    return _TIME_UNITS.get(unit.strip().lower())


def parse_record(text: str) -> tuple[Mapping[str, object], tuple[Note, ...]]:
    """Return the conversion record that ``text`` holds; one that cannot be read is empty, with a note."""
    try:
        if len(text) > CONVERSION_RECORD_BYTES:
            raise ValueError(f"it has {len(text)} characters, at most {CONVERSION_RECORD_BYTES} are read")
        record = json.loads(text, parse_constant=_refuse_constant)
        if not isinstance(record, dict):
            raise ValueError("it is no JSON object")
    except (ValueError, RecursionError) as error:
        return {}, (Note("record-unreadable", f"The conversion record in the header is ignored: {error}."),)
    return record, ()


def dump_record(record: Mapping[str, object]) -> str:
    """Return the record as one line of ASCII."""
    return json.dumps(dict(record), allow_nan=False, separators=(",", ":"))


def shorten(text: str, length: int = 80) -> str:
    """Return ``text``, cut to what a message can show."""
    return text if len(text) <= length else f"{text[:length]}..."


def number_text(value: float) -> str:
    """Return the shortest text that reads back as the same float64; whole numbers without a fraction."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
