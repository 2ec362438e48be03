"""How are lengths, times and anatomical directions spelled in OME-NGFF?

Units are those of UDUNITS-2 that the specification lists: an SI prefix and ``meter`` or ``second``, and a few old ones.
Anatomical directions are those of RFC-4, the proposal for axes of patients: the value of an axis says from where to where its
coordinate grows.
"""

from __future__ import annotations

from typing import Final

from mlarray.formats.text_header import millimetres

_PREFIXES: Final = {
    "yotta": 24, "zetta": 21, "exa": 18, "peta": 15, "tera": 12, "giga": 9, "mega": 6, "kilo": 3, "hecto": 2, "": 0,
    "deci": -1, "centi": -2, "milli": -3, "micro": -6, "nano": -9, "pico": -12, "femto": -15, "atto": -18,
    "zepto": -21, "yocto": -24,
}  # fmt: skip
_OLD_LENGTHS: Final = {
    "angstrom": 1e-7,
    "foot": 304.8,
    "inch": 25.4,
    "mile": 1609344.0,
    "yard": 914.4,
    "parsec": 3.0856775814913674e19,
}
_LENGTHS: Final = {f"{prefix}meter": 10.0 ** (power + 3) for prefix, power in _PREFIXES.items()} | _OLD_LENGTHS
TIMES: Final = frozenset(f"{prefix}second" for prefix in _PREFIXES) | {"day", "hour", "minute"}

# Per RFC-4 value: world axis and sign in LPS, where coordinates grow to the left, to the back and to the head.
_DIRECTIONS: Final = {
    "right-to-left": (0, 1),
    "left-to-right": (0, -1),
    "anterior-to-posterior": (1, 1),
    "posterior-to-anterior": (1, -1),
    "inferior-to-superior": (2, 1),
    "superior-to-inferior": (2, -1),
}
_VALUES: Final = {direction: value for value, direction in _DIRECTIONS.items()}


def length_mm(unit: str) -> float | None:
    """Return the length of a unit in millimetres, or None for one that is not known.

    Examples
    --------
    >>> length_mm("micrometer"), length_mm("pixel")
    (0.001, None)
    """
    return _LENGTHS.get(unit.strip().lower(), millimetres(unit))


def length_name(unit: str | None) -> str | None:
    """Return a unit of length as the specification spells it, or None for what is none.

    Examples
    --------
    >>> length_name("mm"), length_name("micrometer"), length_name("")
    ('millimeter', 'micrometer', None)
    """
    if unit is None or unit in _LENGTHS:
        return unit
    factor = length_mm(unit)
    return next((name for name, length in _LENGTHS.items() if length == factor), None)


def direction_of(value: object) -> tuple[int, int] | None:
    """Return world axis (0, 1, 2 for L, P, S) and sign of a value of RFC-4, or None for one that names neither."""
    return _DIRECTIONS.get(value) if isinstance(value, str) else None


def direction_value(world: int, sign: int) -> str:
    """Return the value of RFC-4 for a world axis of LPS and a sign."""
    return _VALUES[world, 1 if sign > 0 else -1]
