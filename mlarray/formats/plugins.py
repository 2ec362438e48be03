"""Which formats do other packages add? Their rows come from entry points of the group ``mlarray.formats``.

An entry point names a :class:`~mlarray.formats.table.Format`. One that cannot be used, or that claims what is taken, costs a
warning that names its package, and nothing else: a broken package must not take this one down with it. The library that a format
needs is imported when a file of its kind is opened, not here.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

from mlarray.errors import FormatWarning
from mlarray.formats.table import FORMATS, Format

GROUP = "mlarray.formats"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_SUFFIX = re.compile(r"(\.[a-z0-9_-]+)+")


@functools.cache  # looking through everything that is installed takes 50 ms
def all_formats() -> tuple[Format, ...]:
    """Return the rows of this package and, behind them, those that installed packages add.

    Warns
    -----
    FormatWarning
        Once per entry point that cannot be used, and per name or suffix that is taken already.
    """
    return with_plugins(FORMATS, entry_points(group=GROUP))


def with_plugins(rows: Iterable[Format], points: Iterable[EntryPoint]) -> tuple[Format, ...]:
    """Return ``rows`` and those of the entry points; what is there first keeps its name and its suffixes.

    A row that has no suffix left is left out.
    """
    kept = list(rows)
    for point in sorted(points, key=lambda one: (_package(one), one.name)):
        try:
            row = _checked(point.load())
        except Exception as error:  # whatever a package raises as it is imported
            _warn(f"{_where(point)} cannot be used: {type(error).__name__}: {' '.join(str(error).split())}.", point)
            continue
        named = next((one for one in kept if one.name == row.name), None)
        if named is not None:
            _warn(f"{_where(point)} is left out: the name {row.name!r} is that of {_owner(named)}.", point)
            continue
        owners = {suffix: one for one in kept for suffix in one.suffixes}
        for suffix in row.suffixes:
            if suffix in owners:
                _warn(
                    f"{_where(point)} does not get the suffix {suffix}: it is that of {_owner(owners[suffix])}.", point
                )
        free = tuple(suffix for suffix in row.suffixes if suffix not in owners)
        if free:
            kept.append(replace(row, suffixes=free, package=_package(point)))
    return tuple(kept)


def _checked(row: object) -> Format:
    """Return what an entry point gave, after checking what other code relies on."""
    if not isinstance(row, Format):
        raise TypeError(f"it gives {type(row).__name__}, a mlarray.formats.table.Format is wanted")
    if not _NAME.fullmatch(row.name):
        raise ValueError(f"the name {row.name!r} is not made of small letters, digits, - and _")
    if not row.suffixes or not all(isinstance(suffix, str) and _SUFFIX.fullmatch(suffix) for suffix in row.suffixes):
        raise ValueError(f"the suffixes {row.suffixes!r} are not like '.abc', in small letters")
    return row


def _warn(text: str, point: EntryPoint) -> None:
    warnings.warn(f"{text} Update or remove {_package(point)}.", FormatWarning, stacklevel=2)


def _where(point: EntryPoint) -> str:
    return f"The format {point.name!r} of the package {_package(point)}"


def _owner(row: Format) -> str:
    return f"{row.title} of the package {row.package}" if row.package else f"{row.title}, which is built in"


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value.partition(":")[0].partition(".")[0]
