"""Which of the cases are meant? By name, by place in their order, by a file, by lot."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from mlarray.errors import UsageError
from mlarray.limits import CASE_LIST_BYTES
from mlarray.transforms.augmentations.drawing import key_of

Choice: TypeAlias = str | int | slice | Sequence[str | int] | None
_SLICE = re.compile(r"(-?\d*):(-?\d*)(?::(-?\d*))?")
_SHOWN = 5


def chosen(names: Sequence[str], choice: Choice) -> list[str]:
    """Return the names that a choice means, in their own order.

    Parameters
    ----------
    names : sequence of str
        All, sorted.
    choice : optional
        As ``subset`` of :func:`mlarray.streaming.find_cases`.

    Raises
    ------
    UsageError
        A name or number that does not exist, or another form.

    Examples
    --------
    >>> chosen(["a", "b", "c"], "~b"), chosen(["a", "b", "c"], "0:2"), chosen(["a", "b", "c"], ["c", 0])
    (['a', 'c'], ['a', 'b'], ['a', 'c'])
    """
    if choice is None:
        return list(names)
    alone = isinstance(choice, (str, slice)) or not isinstance(choice, Iterable)
    parts: list[object] = [choice] if alone else list(choice)  # type: ignore[arg-type]
    taken: set[str] = set()
    left_out: set[str] = set()
    for part in parts:
        if isinstance(part, str) and part.startswith("~") and part not in names:
            left_out.update(_meant(names, part[1:]))
        else:
            taken.update(_meant(names, part))
    if left_out and len(parts) == sum(isinstance(part, str) and part.startswith("~") for part in parts):
        taken.update(names)
    return [name for name in names if name in taken and name not in left_out]


def _meant(names: Sequence[str], part: object) -> Sequence[str]:
    if isinstance(part, slice):
        return names[part]
    if isinstance(part, int) and not isinstance(part, bool):
        if not -len(names) <= part < len(names):
            raise UsageError(f"There is no case number {part}: there are {len(names)}, counted from 0.")
        return [names[part]]
    if not isinstance(part, str):
        raise UsageError(
            f"A subset is made of names, numbers, 'first:last' and '~name', got {part!r}.", hint="See find_cases."
        )
    if part in names:
        return [part]
    match = _SLICE.fullmatch(part)
    if match is not None:
        bounds = [int(one) if one else None for one in match.groups()]
        if bounds[2] == 0:
            raise UsageError(f"The step of {part!r} is 0.")
        return names[slice(*bounds)]
    path = Path(part)
    if path.is_file():
        return _named_in(path, names)
    near = difflib.get_close_matches(part, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"There are {listed(names)}."
    raise UsageError(f"There is no case {part!r}, and no file of that name.", hint=hint)


def _named_in(path: Path, names: Sequence[str]) -> list[str]:
    """Return the names in the lines of a file; empty lines and those that begin with # do not count."""
    with path.open("rb") as file:
        content = file.read(CASE_LIST_BYTES + 1)
    if len(content) > CASE_LIST_BYTES:
        raise UsageError(
            f"{path} is larger than {CASE_LIST_BYTES} bytes, which no list of cases is.", hint=CASE_LIST_BYTES.hint
        )
    try:
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text file with a case in each line.") from None
    given = [line for line in lines if line and not line.startswith("#")]
    known = set(names)
    unknown = [line for line in given if line not in known]
    if unknown:
        raise UsageError(
            f"{path} names {len(unknown)} {cases_told(len(unknown))} that do not exist: {listed(unknown)}.",
            hint=f"There are {listed(names)}.",
        )
    return given


def drawn(names: Sequence[str], validation: float, seed: int) -> list[str]:
    """Return a share of the names, or a number of them: those with the lowest hash of seed and name.

    Raises
    ------
    UsageError
        A share or number that takes none, or all.
    """
    if isinstance(validation, float):
        if not 0 < validation < 1:
            raise UsageError(f"A share of cases lies between 0 and 1, got {validation}.")
        count = max(1, math.floor(validation * len(names) + 0.5))
    else:
        count = validation
    if not 0 < count < len(names):
        raise UsageError(f"validation={validation} of {len(names)} {cases_told(len(names))} leaves none on one side.")
    return sorted(names, key=lambda name: (key_of("validation", seed, name), name))[:count]


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Return the first names for a message, and how many there are besides."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return separator.join(names[:_SHOWN]) + more


def cases_told(count: int) -> str:
    """Return the word for a number of cases."""
    return "case" if count == 1 else "cases"
