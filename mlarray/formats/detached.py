"""Which file does a header mean, and may it be read?

Detached headers name their voxel files. A header may come from anywhere, so a name is followed only to a regular file in
the header's own folder or below it, symbolic links resolved: a downloaded header must not make a converter read
``/etc/passwd`` into a data set.
"""

from __future__ import annotations

import re
from pathlib import Path

from mlarray.errors import FormatError
from mlarray.limits import DETACHED_FILES

_CONVERSION = re.compile(r"%(0?)(\d{0,3})(?:\.(\d{1,3}))?([diuxX])")


def resolve_beside(header: Path, name: str, *, expected_bytes: int | None) -> Path:
    """Return the data file that ``header`` names.

    Parameters
    ----------
    header : Path
        The header file.
    name : str
        As written in it, relative to the header's folder.
    expected_bytes : int or None
        Bytes of voxels that the file should hold, where the header tells; part of the message.

    Raises
    ------
    FormatError
        When the name leads outside the header's folder, or there is no such file.
    """
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    try:
        folder = header.parent.resolve()
        place = (folder / name).resolve()
        inside = place.is_relative_to(folder) and place != folder
        exists = inside and place.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise FormatError(
            f"{header} names the data file {shown!r}, which is no usable name: {_reason(error)}."
        ) from error
    if not inside:
        raise FormatError(
            f"{header} names the data file {shown!r}, which is outside of the header's folder and is not read.",
            hint="Put the data file beside the header and name it without a path.",
        )
    if not exists:
        expected = f" ({expected_bytes} bytes expected)" if expected_bytes is not None else ""
        raise FormatError(
            f"{header} names the data file {shown!r}{expected}; there is no file {place}.",
            hint="Put the data file beside the header, under the name that the header gives.",
        )
    return header.parent / name


def _reason(error: Exception) -> str:
    """Return what is wrong, without the name again."""
    return str(getattr(error, "strerror", None) or error)[:200]


def expand_pattern(pattern: str, first: int, last: int, step: int, *, needed: int | None) -> tuple[str, ...]:
    """Return the file names of a printf pattern, such as ``slice_%03d.raw``.

    Parameters
    ----------
    pattern : str
        With exactly one conversion of a whole number.
    first, last, step : int
        The numbers to fill in, ``last`` included.
    needed : int or None
        How many files the header needs; None when any number will do.

    Raises
    ------
    FormatError
        For another pattern, a step of 0 or in the wrong direction, or another number of files than needed.
    """
    found = _CONVERSION.findall(pattern)
    rest = _CONVERSION.sub("", pattern).replace("%%", "")
    if len(found) != 1 or "%" in rest:
        raise FormatError(f"The file name pattern {pattern!r} must hold one whole-number conversion such as %03d.")
    if step == 0:
        raise FormatError(f"The file name pattern {pattern!r} has a step of 0.")
    check_count(max(0, (last - first) // step + 1), needed)
    return tuple(pattern % number for number in range(first, last + (1 if step > 0 else -1), step))


def check_count(found: int, needed: int | None) -> None:
    """Refuse a number of data files that does not fit the array."""
    if not 1 <= found <= DETACHED_FILES or (needed is not None and found != needed):
        raise FormatError(
            f"The header names {found} data files; its sizes need {'some' if needed is None else needed}, "
            f"and at most {DETACHED_FILES} are read.",
            hint=DETACHED_FILES.hint if found > DETACHED_FILES else None,
        )
