"""Is an argument of the kind that it has to be? Each answer is the argument, or one error that names it and what it may be."""

from __future__ import annotations

import math
import multiprocessing
import operator
import os
from collections.abc import Collection, Iterable, Mapping
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
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


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
        raise UsageError(f"{name} is one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def start_method(context: object) -> str | None:
    """Return how worker processes start, None for the default.

    Raises
    ------
    UsageError
        A way that this platform does not have.
    """
    known = multiprocessing.get_all_start_methods()
    if context is not None and not (isinstance(context, str) and context in known):
        raise UsageError(f"Workers start by {', '.join(map(repr, known))}, got {context!r}.")
    return context


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


def source_of(name: str, value: Any) -> Any:
    """Return a source, whatever its class: it has a spec, and is read.

    Raises
    ------
    UsageError
        Anything else.
    """
    if isinstance(value, type) or not all(hasattr(value, part) for part in ("spec", "read", "info")):
        raise UsageError(
            f"{name} is a source, got {type(value).__name__}.", hint="mlarray.open_source(path) returns one."
        )
    return value


def listed(name: str, value: Any, kind: type[_Kind], remedy: str) -> tuple[_Kind, ...]:
    """Return objects of a class.

    Raises
    ------
    UsageError
        No list, or something else in it.
    """
    if isinstance(value, (str, bytes, Mapping, type)) or not isinstance(value, Iterable):
        raise UsageError(f"{name} is a list, got {value!r}.", hint=remedy)
    return tuple(instance(f"An entry of {name}", one, kind, remedy) for one in value)


def mapping(name: str, value: Any, remedy: str) -> Mapping[Any, Any]:
    """Return a mapping.

    Raises
    ------
    UsageError
        Anything else.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is a mapping, got {value!r}.", hint=remedy)
    return value
