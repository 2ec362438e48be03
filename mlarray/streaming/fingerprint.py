"""When is what was measured still true? While its *fingerprint* is the same.

That is a hash of the files it comes from (names, sizes, times of the last change), of what was known of the case beforehand, of
the stages with their parameters, and of the version of this package.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path, PurePath
from types import CodeType
from typing import Any

import numpy as np

from mlarray import __version__
from mlarray.sources.base import SourceInfo
from mlarray.storage.remote import is_remote
from mlarray.streaming.arguments import instance, path_of, whole
from mlarray.streaming.plan import Plan
from mlarray.transforms.base import Transform

RULE = 1
"""Raised when the same files and stages would be measured otherwise."""


def fingerprint(plan: Plan, *, stages: int | None = None, root: Path | None = None) -> str | None:
    """Return what tells one result of a chain from another: its files, what is known beforehand, and the stages.

    Parameters
    ----------
    plan : Plan
        Its source, groups and attributes count.
    stages : int, optional
        How many stages from the first; default: all.
    root : Path, optional
        Files below it are named relative to it, others by their full names.

    Returns
    -------
    str or None
        None where it cannot be told: an array in memory, files on a remote store, a transform with parameters of an unknown kind.
        What is measured then cannot be kept. Of transforms that are not of this package, the code of the class counts too, but
        not that of functions it calls.
    """
    instance("plan", plan, Plan, "stream.plan(case, group) is one.")
    root = None if root is None else path_of("root", root)
    used = plan.chain.stages[: None if stages is None else whole("stages", stages, 0)]
    names = sorted(
        {
            name
            for stage in used
            for name in (*stage.transform.groups(stage.before), *stage.transform.references(stage.before))
        }
    )
    infos = [plan.source.info]
    loose: list[Path] = []
    for name in names:
        if name in plan.groups:
            infos.append(plan.groups[name].info)
        else:
            loose.append(Path(name))  # opened by the plan when it is needed
    try:
        words: list[object] = [RULE, __version__, names, *(_identity(info, root) for info in infos)]
        words += [_version(path, root) for path in loose]
        words.append({key: list(stack) for key, stack in plan.chain.stored.attributes.stacks.items()})
        words += [_described(stage.transform) for stage in used]
        text = json.dumps(_plain(words), sort_keys=True, allow_nan=True)
    except (_UnknownError, OSError):
        return None
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class _UnknownError(Exception):
    """A value that has no text of its own."""


def _identity(info: SourceInfo, root: Path | None) -> list[object]:
    if not info.files or any(is_remote(path) for path in info.files):
        raise _UnknownError
    return [info.format, info.item, [_version(path, root) for path in info.files]]


def _version(path: Path, root: Path | None) -> list[object]:
    """Return name, size in bytes and time of the last change in ns of a file; of a folder, of all files in it."""
    place = path.absolute()
    name = place.relative_to(root).as_posix() if root is not None and place.is_relative_to(root) else str(place)
    if not place.is_dir():
        status = place.stat()
        return [name, status.st_size, status.st_mtime_ns]
    state = hashlib.blake2b(digest_size=16)
    for folder, folders, files in os.walk(place):
        folders.sort()
        for file in sorted(files):
            status = os.stat(os.path.join(folder, file))
            inner = os.path.relpath(os.path.join(folder, file), place)
            state.update(f"{inner}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return [name, "folder", state.hexdigest()]


def _described(transform: Transform) -> list[object]:
    """Return name and parameters of a transform, and of one that is not of this package also its code."""
    kind = type(transform)
    if not dataclasses.is_dataclass(transform):
        if vars(transform):
            raise _UnknownError  # its parameters cannot be told from what it only remembers
        fields: dict[str, object] = {}
    else:
        fields = {one.name: getattr(transform, one.name) for one in dataclasses.fields(transform)}
    own = [one for one in kind.__mro__ if one.__module__.split(".")[0] not in ("mlarray", "builtins", "typing")]
    return [f"{kind.__module__}.{kind.__qualname__}", fields, [_code_of(one) for one in own]]


def _code_of(kind: type) -> str:
    """Return a checksum of the functions of a class as they are compiled, so that a change of them is seen."""
    state = hashlib.blake2b(digest_size=16)
    for name, value in sorted(vars(kind).items()):
        function = getattr(value, "__func__", getattr(value, "fget", value))
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            _add_code(state, name, code)
    return state.hexdigest()


def _add_code(state: Any, name: str, code: CodeType) -> None:
    state.update(f"{name}\0{code.co_names}\0".encode("utf-8", "surrogateescape") + code.co_code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(state, constant.co_name, constant)
        elif isinstance(constant, frozenset):
            state.update(repr(sorted(map(repr, constant))).encode("utf-8", "surrogateescape"))
        else:
            state.update(f"{constant!r}\0".encode("utf-8", "surrogateescape"))


def _plain(value: object) -> object:
    """Return a value as plain JSON values that are the same in every process."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return [type(value).__qualname__, value.name]
    if isinstance(value, np.generic):
        return [value.dtype.str, _plain(value.item())]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [
            "array",
            value.dtype.str,
            list(value.shape),
            hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest(),
        ]
    if isinstance(value, (PurePath, np.dtype)):
        return [type(value).__name__ if isinstance(value, np.dtype) else "path", str(value)]
    if isinstance(value, type):
        return ["type", f"{value.__module__}.{value.__qualname__}"]
    if isinstance(value, Mapping):
        return ["mapping", sorted(([_plain(key), _plain(one)] for key, one in value.items()), key=repr)]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted((_plain(one) for one in value), key=repr)]
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, Transform):
        return _plain(_described(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, _plain([getattr(value, one.name) for one in dataclasses.fields(value)])]
    raise _UnknownError
