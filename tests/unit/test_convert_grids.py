"""Grids that differ are told apart by both values; equal ones are matched through any order of axes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray.axes import parse_axes
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.spec import ArraySpec
from mlarray_convert.grids import axis_map, differences

AFFINE = np.array([[0, 0, -1.0, 10], [0, -1.5, 0, 20], [2, 0, 0, 30], [0, 0, 0, 1]])


def spec(affine: np.ndarray = AFFINE, shape: tuple[int, ...] = (4, 5, 6), frame: str | None = "LPS") -> ArraySpec:
    return ArraySpec(shape, np.dtype("int16"), parse_axes("zyx"), Geometry(affine, frame))


def moved(row: int, column: int, by: float) -> np.ndarray:
    affine = AFFINE.copy()
    affine[row, column] += by
    return affine


def test_a_difference_of_1e_10_is_none() -> None:
    assert differences(spec(), spec(AFFINE + 1e-10 * (AFFINE != 0) * [[1], [1], [1], [0]])) == ()


def test_another_origin_is_told_with_both_values_and_the_axis() -> None:
    assert differences(spec(), spec(moved(0, 3, 12))) == ("origin along world x is 10 and 22 mm",)


def test_another_spacing_is_told_with_both_values_and_the_axis() -> None:
    assert differences(spec(), spec(moved(2, 0, 0.5))) == ("spacing along axis z is 2 and 2.5 mm",)


def test_another_direction_is_told() -> None:
    assert "direction of axis x is (-1, 0, 0) and (1, 0, 0)" in differences(spec(), spec(moved(0, 2, 2)))


def test_another_shape_is_told_alone() -> None:
    assert differences(spec(), spec(shape=(4, 5, 7))) == ("shape is 4 x 5 x 6 and 4 x 5 x 7 voxels",)


def test_the_same_place_in_the_other_world_frame_is_the_same() -> None:
    assert differences(spec(), spec(np.diag([-1.0, -1, 1, 1]) @ AFFINE, frame="RAS")) == ()


def test_what_one_side_does_not_know_is_not_compared() -> None:
    unknown = ArraySpec((4, 5, 6), np.dtype("int16"), parse_axes("zyx"), Geometry.from_parts(spacing=(2, 1.5, 1)))
    assert differences(spec(), unknown) == ()
    assert axis_map(spec(), unknown) is not None


@given(order=st.permutations(range(3)), flips=st.tuples(*[st.booleans()] * 3))
def test_every_order_and_direction_of_axes_is_undone(order: list[int], flips: tuple[bool, ...]) -> None:
    first = spec()
    values = np.arange(first.size).reshape(first.shape)
    geometry, turned = first.geometry, values
    assert geometry is not None
    geometry, turned = geometry.permuted(order), turned.transpose(order)
    for axis, flip in enumerate(flips):
        if flip:
            geometry = geometry.flipped(axis, turned.shape[axis])
            turned = np.flip(turned, axis)
    second = ArraySpec(turned.shape, first.dtype, tuple(first.axes[i] for i in order), geometry)
    mapped = axis_map(first, second)
    assert mapped is not None
    region = Region((1, 0, 2), (3, 4, 6))
    there = mapped.region(region, second.shape)
    np.testing.assert_array_equal(mapped.back(turned[there.slices]), values[region.slices])


def test_an_axis_of_one_voxel_may_be_missing_on_one_side() -> None:
    first = ArraySpec((1, 4, 5, 6), np.dtype("int16"), parse_axes("czyx"), Geometry(AFFINE, "LPS"))
    mapped = axis_map(first, spec())
    assert mapped is not None
    region = Region((0, 1, 0, 0), (1, 2, 5, 6))
    assert mapped.region(region, (4, 5, 6)) == Region((1, 0, 0), (2, 5, 6))
    assert mapped.back(np.zeros((1, 5, 6))).shape == (1, 1, 5, 6)
    back = axis_map(spec(), first)
    assert back is not None
    assert back.region(Region((1, 0, 0), (2, 5, 6)), (1, 4, 5, 6)) == region


@pytest.mark.parametrize("affine", [moved(0, 3, 12), moved(2, 0, 0.5), moved(0, 1, 0.4)])
def test_grids_that_differ_have_no_map(affine: np.ndarray) -> None:
    assert axis_map(spec(), spec(affine)) is None


@pytest.mark.parametrize("extents", [(2, 3), (2, 2)])
def test_time_is_matched_with_time_whichever_of_time_and_channels_comes_first(extents: tuple[int, int]) -> None:
    times, channels = extents
    first = ArraySpec((times, channels, 4, 5), np.dtype("int16"), parse_axes("tcyx"))
    second = ArraySpec((channels, times, 4, 5), np.dtype("int16"), parse_axes("ctyx"))
    mapped = axis_map(first, second)
    assert mapped is not None
    values = np.arange(first.size).reshape(first.shape)
    np.testing.assert_array_equal(mapped.back(values.transpose(1, 0, 2, 3)), values)
    assert mapped.region(Region((1, 0, 0, 0), (2, 2, 4, 5)), second.shape) == Region((0, 1, 0, 0), (2, 2, 4, 5))
