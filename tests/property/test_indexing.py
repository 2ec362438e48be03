"""Indexing gives what numpy gives, for reading and for writing, whatever the shape, the blocks and the kind of store."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray import MLArray
from mlarray.indexing import parse_key, read_selection, write_selection
from mlarray.region import Region
from mlarray.testing.strategies import dtypes, layouts, shapes

from ..unit.array_stores import ALL, WRITABLE


@st.composite
def keys(draw: st.DrawFn, shape: Sequence[int]) -> Any:
    """Keys as people write them: integers, slices, ellipsis, new axes, index arrays and masks."""
    entries: list[Any] = []
    axis = 0
    while axis < len(shape):
        n = shape[axis]
        kinds = ["slice", "slice", "slice", "stop"] + (["int", "array"] if n else [])
        kind = draw(st.sampled_from([*kinds, "mask", "new", "many"]))
        if kind == "stop":
            break
        if kind == "new":
            entries.append(None)
            continue
        if kind == "int":
            entries.append(draw(st.integers(-n, n - 1) | st.integers(-n, n - 1).map(np.int64)))
        elif kind == "slice":
            bound = st.none() | st.integers(-n - 2, n + 2)
            entries.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(-4, 4).filter(bool))))
        elif kind == "array":
            size = draw(shapes(min_dims=1, max_dims=2, min_side=0, max_side=3))
            flat = draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(size)), max_size=int(np.prod(size))))
            entries.append(np.array(flat, dtype=draw(st.sampled_from([np.int64, np.int8]))).reshape(size))
        else:
            count = draw(st.integers(1, len(shape) - axis)) if kind == "many" else 1
            extent = shape[axis : axis + count]
            bits = draw(st.lists(st.booleans(), min_size=int(np.prod(extent)), max_size=int(np.prod(extent))))
            entries.append(np.array(bits, dtype=bool).reshape(extent))
            axis += count - 1
        axis += 1
    if draw(st.booleans()):
        at = draw(st.integers(0, len(entries)))
        covered = sum(e.ndim if isinstance(e, np.ndarray) and e.dtype == bool else e is not None for e in entries)
        if at == len(entries) or covered == len(shape):
            entries.insert(at, Ellipsis)
    return entries[0] if len(entries) == 1 and draw(st.booleans()) else tuple(entries)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, Any]:
    shape = draw(shapes(max_dims=4, max_side=7))
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape), draw(keys(shape))


def outcome(voxels: np.ndarray, key: Any) -> np.ndarray | type[Exception]:
    try:
        return voxels[key]
    except IndexError:
        return IndexError


def allowed_keys(shape: Sequence[int]) -> st.SearchStrategy[Any]:
    voxels = np.empty(shape)
    return keys(shape).filter(lambda key: outcome(voxels, key) is not IndexError)


@settings(max_examples=400)
@given(cases(), st.data())
def test_any_key_selects_what_numpy_selects_however_reads_are_joined(
    case: tuple[np.ndarray, Any], data: st.DataObject
) -> None:
    voxels, key = case
    merge = data.draw(st.none() | st.lists(st.integers(0, 4), min_size=voxels.ndim, max_size=voxels.ndim))
    expected = outcome(voxels, key)

    def read() -> Any:
        selection = parse_key(key, voxels.shape, merge)
        return read_selection(selection, lambda region, _: voxels[region.slices].copy(), voxels.dtype)

    if expected is IndexError:
        with pytest.raises(IndexError):
            read()
        return
    found = read()
    np.testing.assert_array_equal(found, expected)
    assert np.shape(found) == np.shape(expected)


@settings(max_examples=400)
@given(cases(), st.data())
def test_any_key_assigns_what_numpy_assigns_however_reads_are_joined(
    case: tuple[np.ndarray, Any], data: st.DataObject
) -> None:
    voxels, key = case
    merge = data.draw(st.none() | st.lists(st.integers(0, 4), min_size=voxels.ndim, max_size=voxels.ndim))
    target = outcome(voxels, key)
    if target is IndexError:
        return
    shape = np.shape(target)
    kept = data.draw(st.integers(0, len(shape)))
    # One value, rows to be broadcast, or a full block with leading axes of extent 1, which numpy ignores.
    value = -1 - np.arange(np.prod(shape[kept:]), dtype=np.int32).reshape(shape[kept:])
    value = value.reshape((1,) * (kept + data.draw(st.integers(0, 1))) + value.shape) if kept == 0 else value
    expected, actual = voxels.copy(), voxels.copy()
    try:
        expected[key] = value
    except TypeError:  # numpy takes no leading axes for a mask alone, this does
        return

    def write(region: Region, block: np.ndarray) -> None:
        actual[region.slices] = block

    selection = parse_key(key, voxels.shape, merge)
    write_selection(selection, value, lambda region, _: actual[region.slices].copy(), write, voxels.dtype)
    np.testing.assert_array_equal(actual, expected)


@settings(max_examples=60)
@given(st.data())
def test_any_array_of_any_layout_reads_back_whole_and_by_slices(data: st.DataObject) -> None:
    shape = data.draw(shapes(max_dims=4, min_side=1, max_side=11))
    kind = data.draw(dtypes())
    layout = data.draw(layouts(shape))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    voxels = rng.integers(0, 100, shape).astype(kind)
    voxels[tuple(slice(0, c) for c in layout.chunks or ())] = 0  # an all-zero chunk is stored in a way of its own
    image = MLArray(voxels, chunk_size=layout.chunks, block_size=layout.blocks)
    np.testing.assert_array_equal(image[...], voxels, strict=True)
    for _ in range(5):
        key = data.draw(allowed_keys(shape))
        np.testing.assert_array_equal(image[key], voxels[key])


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=10)
@given(st.data())
def test_every_kind_of_store_reads_as_numpy(kind: str, data: st.DataObject) -> None:
    shape = data.draw(shapes(max_dims=3, min_side=1, max_side=8))
    layout = data.draw(layouts(shape))
    voxels = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    with tempfile.TemporaryDirectory() as folder:
        image = ALL[kind](Path(folder), voxels, chunk_size=layout.chunks, block_size=layout.blocks)
        for _ in range(4):
            key = data.draw(allowed_keys(shape))
            np.testing.assert_array_equal(image[key], voxels[key])
        image.close()


@pytest.mark.parametrize("kind", WRITABLE)
@settings(max_examples=10)
@given(st.data())
def test_every_kind_of_store_is_written_as_numpy(kind: str, data: st.DataObject) -> None:
    shape = data.draw(shapes(max_dims=3, min_side=1, max_side=8))
    layout = data.draw(layouts(shape))
    expected = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    with tempfile.TemporaryDirectory() as folder:
        image = WRITABLE[kind](Path(folder), expected, chunk_size=layout.chunks, block_size=layout.blocks)
        for number in range(4):
            key = data.draw(allowed_keys(shape))
            value = -np.arange(expected[key].size, dtype=np.int16).reshape(np.shape(expected[key])) - number
            image[key] = value
            expected[key] = value
        np.testing.assert_array_equal(image[...], expected)
        path = image.filepath
        image.close()
        if path is not None and kind != "mapped c":
            with MLArray.open(path) as again:
                np.testing.assert_array_equal(again[...], expected)
