"""Parsers of what a caller writes: axes, and numpy keys, whose results are compared with numpy's."""

from __future__ import annotations

import json
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mlarray import MLArray
from mlarray.axes import axes_from_labels, parse_axes
from mlarray.errors import MLArrayError
from mlarray.region import Region
from tests.fuzz.inputs import Files
from tests.fuzz.mutations import JSON
from tests.fuzz.parser import Parser


def _axes_seeds(folder: Path) -> list[Files]:
    axes = [
        {"name": "t", "type": "time", "unit": "second", "step": 2.5},
        {"name": "z", "unit": "mm"},
        "y",
        "spatial_x",
        "spatial",
    ]
    return [
        {"a.json": json.dumps(one).encode()}
        for one in (axes, "tzyx", ["spatial_z", "channel", None], ["d0", "d1", "spatial"])
    ]


def _read_axes(folder: Path, files: Files) -> Hashable:
    text = files["a.json"].decode("utf-8", "surrogateescape")
    told: list[Hashable] = []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    calls = [lambda: parse_axes(text[:40]), lambda: parse_axes(value)]
    if isinstance(value, list) and all(one is None or isinstance(one, str) for one in value):
        calls += [lambda: axes_from_labels(value, None, len(value)), lambda: axes_from_labels(value, value, len(value))]
    for call in calls:
        try:
            axes = call()
            told.append((len(axes), sum(axis.is_spatial for axis in axes)))
            assert parse_axes([axis.to_dict() for axis in axes]) == axes
            assert len({axis.name for axis in axes}) == len(axes)
        except MLArrayError as error:
            told.append(error.message.split("'")[0][:30])
    return tuple(told)


_SHAPES = ((7,), (5, 4), (6, 1, 5), (3, 4, 2, 5), (1,), (8, 9))


@cache
def _arrays(shape: tuple[int, ...]) -> tuple[Any, MLArray, MLArray]:
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    sizes = {"chunk_size": tuple(max(1, n // 2) for n in shape), "block_size": tuple(max(1, n // 3) for n in shape)}
    return values, MLArray(values, **sizes), MLArray(values.copy(), compressed=False)


def _number(random: Random, extent: int) -> Any:
    value = random.choice(
        (0, -1, 1, extent, -extent, extent - 1, random.randint(-extent - 2, extent + 1), 2**31, -(2**63), 2**64)
    )
    return random.choice((int, int, int, _numpy_integer))(value)


def _numpy_integer(value: int) -> Any:
    return np.int64(value) if -(2**63) <= value < 2**63 else value


def _end(random: Random, extent: int) -> Any:
    return None if random.random() < 0.3 else _number(random, extent)


def _entry(random: Random, extents: tuple[int, ...]) -> Any:
    extent = extents[0] if extents else 3
    kind = random.randrange(14)
    if kind < 4:
        step = random.choice((None, None, 1, 2, -1, -2, 3, -3, extent, -extent, 2**63, -(2**64), 0))
        return slice(_end(random, extent), _end(random, extent), step)
    if kind < 7:
        return _number(random, extent)
    if kind == 7:
        return None
    if kind == 8:
        return Ellipsis
    if kind == 9:
        return random.choices(range(-extent, extent + (random.random() < 0.1)), k=random.randrange(5))
    if kind == 10:
        shape = random.choice(((2,), (2, 1), (1, 3), (0,), (2, 2), (1,)))
        picked = np.array(random.choices(range(-extent, extent), k=int(np.prod(shape))), np.int64)
        return picked.reshape(shape).astype(random.choice(("i8", "i1", "u1")))
    if kind == 11:
        some = extents[: random.randint(1, 2)] or (3,)
        return np.array([random.random() < 0.5 for _ in range(int(np.prod(some)))], bool).reshape(some)
    if kind == 12:
        return random.choice(
            (True, False, np.True_, 1.0, "a", b"a", [True] * extent, np.array(1), np.array(1.5), [[0, 1], [1, 0]], ())
        )
    return random.choice(
        ([], [[]], np.int8(1), np.uint64(0), slice("a"), slice(1.0), {}, object(), [1, None], np.array([1.0]))
    )


def _key(random: Random, shape: tuple[int, ...]) -> Any:
    entries, axis = [], 0
    for _ in range(random.choice((1, 1, 2, len(shape), len(shape), len(shape) + 1))):
        entries.append(_entry(random, shape[axis:]))
        axis += entries[-1] is not None and entries[-1] is not Ellipsis
    return entries[0] if len(entries) == 1 and random.random() < 0.5 else tuple(entries)


class Different(Exception):
    """Another result than numpy's."""


_REFUSALS = (IndexError, ValueError, TypeError, OverflowError)


def _read_key(folder: Path, files: Files) -> Hashable:
    """Read, and write, by a random key; the result is that of numpy, and so is whether there is one."""
    random = Random(files["key"])
    shape = random.choice(_SHAPES)
    key = _key(random, shape)
    values, compressed, plain = _arrays(shape)
    array = compressed if random.random() < 0.7 else plain
    try:
        expected = values[key]
    except _REFUSALS as error:
        expected = error
    try:
        found = array[key]
    except _REFUSALS as error:
        found = error
    _compare(key, shape, expected, found)
    if random.random() < 0.3:
        _write_key(random, key, values, array)
    if random.random() < 0.1:
        _read_region(random, values, array)
    return type(expected), np.ndim(expected) if isinstance(expected, np.ndarray) else str(expected)[:20]


def _compare(key: Any, shape: tuple[int, ...], expected: Any, found: Any) -> None:
    if isinstance(found, Exception):
        unchecked = np.size(expected) == 0 and "out of bounds" in str(found)  # numpy then looks at no index
        if not isinstance(expected, Exception) and "single boolean" not in str(found) and not unchecked:
            raise Different(f"{key!r} of {shape}: {found!r} where numpy has {np.shape(expected)}")
    elif isinstance(expected, Exception):
        raise Different(f"{key!r} of {shape}: {np.shape(found)} where numpy has {expected!r}")
    elif np.shape(found) != np.shape(expected) or not np.array_equal(found, expected) or found.dtype != expected.dtype:
        raise Different(f"{key!r} of {shape}: {found!r} where numpy has {expected!r}")


def _write_key(random: Random, key: Any, values: Any, array: MLArray) -> None:
    value: Any = random.choice(
        (7, -1, [1, 2], np.arange(3), np.ones((1, 1), np.int16), 2**40, 1.5, "a", None, np.float32(1), True)
    )
    if random.random() < 0.5:
        value = (
            np.arange(np.size(found), dtype=np.int32).reshape(np.shape(found))
            if (found := _quiet(values, key)) is not None
            else 3
        )
    copy = values.copy()
    try:
        copy[key] = value
    except _REFUSALS:
        return  # what numpy refuses may be accepted: an array of one value for one voxel
    try:
        array[key] = value
    except _REFUSALS as error:
        if not np.array_equal(array.to_numpy(), values):
            raise Different(f"{key!r} = {value!r} was refused and wrote") from error
    else:
        if not np.array_equal(array.to_numpy(), copy):
            raise Different(f"{key!r} = {value!r} of {values.shape}")
    array[...] = values


def _quiet(values: Any, key: Any) -> Any:
    try:
        return values[key]
    except _REFUSALS:
        return None


def _read_region(random: Random, values: Any, array: MLArray) -> None:
    start = tuple(_number(random, n) for n in values.shape[: random.choice((len(values.shape), 1))])
    stop = tuple(random.choice((_number(random, n), n)) for n in values.shape)
    try:
        region = Region(start, stop)
        found = array.read(region)
    except (MLArrayError, IndexError):
        return
    if not np.array_equal(found, values[region.slices]):
        raise Different(f"{region} of {values.shape}")


def _any_key(random: Random, data: bytes) -> bytes:
    return random.randbytes(8)


PARSERS = (
    Parser("axes", _read_axes, _axes_seeds, {"": JSON}, 4000, on_disk=False),
    Parser("key", _read_key, lambda folder: [{"key": bytes(8)}], {"": (_any_key,)}, 5000, on_disk=False),
)
