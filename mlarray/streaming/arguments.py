"""Is an argument of the kind that it has to be? Each answer is the argument, or one error that names it and what it may be."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mlarray.errors import UsageError

_Kind = TypeVar("_Kind")


def whole(name: str, value: object, least: int | None = None) -> int:
    """Return a whole number that is not below ``least``; numpy's integers count, bools and text do not.

    Raises
    ------
    UsageError
        Anything else.
    """
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise UsageError(f"{name} is a whole number{'' if least is None else f' from {least} on'}, got {value!r}.")
    return number


def number(name: str, value: object, wanted: str, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """Return a real number that is not NaN, above ``above`` and not below ``least``; ``wanted`` says that in words.

    Raises
    ------
    UsageError
        Anything else.
    """
    fits = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not fits or not (value > above and value >= least):  # type: ignore[operator]
        raise UsageError(f"{name} is {wanted}, got {value!r}.")
    return float(value)  # type: ignore[arg-type]


def flag(name: str, value: object) -> bool:
    """Return True or False, numpy's too.

    Raises
    ------
    UsageError
        Anything else; also numbers and text, of which ``"no"`` would count as True.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name} is True or False, got {value!r}.")
    return bool(value)


def one_of(name: str, value: object, allowed: Collection[str]) -> str:
    """Return a word that is among those that are allowed.

    Raises
    ------
    UsageError
        Anything else.
    """
    if not isinstance(value, str) or value not in allowed:
        raise UsageError(f"{name} is one of {', '.join(allowed)}, got {value!r}.")
    return value


def path_of(name: str, value: object) -> Path:
    """Return a path; text counts.

    Raises
    ------
    UsageError
        Anything else.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise UsageError(f"{name} is a path, got {value!r}.")
    return value if isinstance(value, Path) else Path(value)


def instance(name: str, value: Any, kind: type[_Kind], remedy: str) -> _Kind:
    """Return an object of a class; ``remedy`` says how one is made.

    Raises
    ------
    UsageError
        Anything else.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{name} is a {kind.__name__}, got {type(value).__name__}.", hint=remedy)
    return value
