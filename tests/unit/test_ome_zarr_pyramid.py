"""Levels of a pyramid: which there are, and what their voxels are."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray.formats.ome_zarr_array import boxes
from mlarray.formats.ome_zarr_pyramid import first_of, mean_of, plan_levels
from mlarray.region import Region


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 2, 7), (2, 2, 2)])
def test_means_of_integers_are_exact_and_rounded_half_to_even(dtype: str, shape: tuple[int, ...]) -> None:
    limits = np.iinfo(dtype)
    array = np.random.default_rng(0).integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    array[:1] = limits.max
    for factors in itertools.product((1, 2), repeat=3):
        result = mean_of(array, factors)
        assert result.dtype == array.dtype
        for index in np.ndindex(result.shape):
            group = array[tuple(slice(i * f, (i + 1) * f) for i, f in zip(index, factors, strict=True))].ravel()
            assert result[index] == round(Fraction(sum(map(int, group)), len(group)))


@pytest.mark.parametrize(("values", "expected"), [([1, 2], 2), ([2, 3], 2), ([-1, -2], -2), ([-2, -3], -2)])
def test_halves_go_to_the_even_neighbour(values: list[int], expected: int) -> None:
    for dtype in (np.int8, np.int64):
        assert mean_of(np.array(values, dtype), (2,)).tolist() == [expected]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
def test_means_of_floats_are_taken_in_double(dtype: str) -> None:
    array: Any = np.array([1, 65504, 3, np.nan, 65504, 65504, 7], dtype)
    result = mean_of(array, (2,))
    assert result.dtype == array.dtype
    wide = np.complex128 if dtype == "c8" else np.float64
    expected = np.array([65505 / 2, np.nan, 65504, 7], wide).astype(dtype)
    np.testing.assert_array_equal(result, expected)


def test_the_first_voxel_of_each_group_stands_for_a_group_of_labels() -> None:
    array = np.arange(20).reshape(4, 5)
    assert first_of(array, (2, 2)).tolist() == [[0, 2, 4], [10, 12, 14]]


def test_levels_end_when_one_fits_into_a_chunk() -> None:
    levels = plan_levels((2, 100, 100), (False, True, True), (1, 1, 1), (1, 32, 32), count=None, mean=True)
    assert [level.shape for level in levels] == [(2, 100, 100), (2, 50, 50), (2, 25, 25)]
    assert levels[2].scale == (1, 4, 4)
    assert levels[2].shift == (0, 1.5, 1.5)
    labels = plan_levels((2, 100, 100), (False, True, True), (1, 1, 1), (1, 32, 32), count=None, mean=False)
    assert labels[2].shift == (0, 0, 0)


@pytest.mark.parametrize("shape", [(1, 1), (0, 5), (16, 16)])
def test_small_images_have_one_level(shape: tuple[int, ...]) -> None:
    assert len(plan_levels(shape, (True, True), (1, 1), (16, 16), count=None, mean=True)) == 1


@given(
    start=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    extent=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    chunk=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    limit=st.integers(0, 3000),
)
def test_boxes_cover_a_region_once_and_are_cut_at_chunks_only(
    start: list[int], extent: list[int], chunk: list[int], limit: int
) -> None:
    ndim = len(start)
    region, chunks = Region.at(start, extent[:ndim]), chunk[:ndim]
    seen = np.zeros(region.shape, int)
    for box in boxes(region, chunks, 2, limit):
        seen[box.relative_to(region).slices] += 1
        for low, high, c, first, last in zip(box.start, box.stop, chunks, region.start, region.stop, strict=True):
            assert low == first or low % c == 0
            assert high == last or high % c == 0
        needed = [-(-b // c) - a // c for a, b, c in zip(box.start, box.stop, chunks, strict=True)]
        assert np.prod(needed) == 1 or np.prod(needed) * np.prod(chunks) * 2 <= limit
    assert np.all(seen == 1)
