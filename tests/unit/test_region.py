"""A region is a literal box: it never wraps, and clamps only when asked."""

import pickle

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.region import Region


def test_a_region_knows_its_extent_and_its_slices() -> None:
    region = Region((1, -2), (4, 3))
    assert (region.ndim, region.shape, region.size) == (2, (3, 5), 15)
    assert region.slices == (slice(1, 4), slice(-2, 3))


def test_numpy_integers_become_python_integers() -> None:
    region = Region(np.array([1, 2]), [np.int16(3), 4])  # type: ignore[arg-type]
    assert region == Region((1, 2), (3, 4))
    assert {type(value) for value in region.start + region.stop} == {int}


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        ((1,), (2, 3), "as many starts as stops, got 1 and 2"),
        ((3,), (2,), "must not end before it starts"),
        ((0.5,), (2,), "made of integers"),
        (("a",), (2,), "made of integers"),
        ((None,), (2,), "made of integers"),
    ],
)
def test_what_is_no_box_is_refused(start: tuple[int, ...], stop: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Region(start, stop)


def test_regions_are_values() -> None:
    region = Region((0, 1), (2, 3))
    assert {region: 1}[Region((0, 1), (2, 3))] == 1
    assert pickle.loads(pickle.dumps(region)) == region
    with pytest.raises(AttributeError):
        region.start = (1, 1)  # type: ignore[misc]


def test_growing_takes_one_margin_or_one_per_side_and_axis() -> None:
    region = Region((10, 20), (12, 24))
    assert region.grow(2) == Region((8, 18), (14, 26))
    assert region.grow(1, 0) == Region((9, 19), (12, 24))
    assert region.grow((0, 1), (2, 3)) == Region((10, 19), (14, 27))
    assert region.grow(np.int64(2)) == region.grow(2)  # type: ignore[arg-type]
    assert region.grow(-1) == Region((11, 21), (11, 23))


def test_shrinking_below_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="must not end before it starts"):
        Region((0,), (3,)).grow(-2)


def test_clamping_keeps_the_part_inside_the_array() -> None:
    assert Region((-3, 2), (2, 9)).clamp((5, 5)) == Region((0, 2), (2, 5))


def test_a_region_wholly_outside_becomes_empty_at_the_border() -> None:
    assert Region((-5,), (-2,)).clamp((4,)) == Region((0,), (0,))
    assert Region((7,), (9,)).clamp((4,)) == Region((4,), (4,))


def test_regions_that_do_not_meet_have_an_empty_part_in_common() -> None:
    common = Region((0,), (3,)).intersect(Region((5,), (8,)))
    assert common.is_empty()
    assert common.start == (5,)


def test_an_empty_region_adds_nothing_to_a_union() -> None:
    region, empty = Region((2, 2), (4, 4)), Region((9, 9), (9, 12))
    assert region.union(empty) == empty.union(region) == region
    assert region.union(Region((0, 5), (1, 6))) == Region((0, 2), (4, 6))


def test_an_empty_region_is_contained_anywhere() -> None:
    assert Region((0,), (2,)).contains(Region((50,), (50,)))
    assert not Region((0,), (2,)).contains(Region((1,), (3,)))


def test_an_outer_region_gives_local_coordinates() -> None:
    assert Region((5, 6), (7, 9)).relative_to(Region((4, 4), (9, 9))) == Region((1, 2), (3, 5))


def test_splitting_yields_consecutive_pieces_the_last_one_smaller() -> None:
    pieces = list(Region((0, 3), (2, 10)).split(1, 3))
    assert [piece.slices[1] for piece in pieces] == [slice(3, 6), slice(6, 9), slice(9, 10)]
    assert all(piece.slices[0] == slice(0, 2) for piece in pieces)
    with pytest.raises(UsageError, match="at least 1 voxel"):
        next(Region((0,), (2,)).split(0, 0))


def test_regions_of_different_dimension_do_not_combine() -> None:
    for combine in (Region.intersect, Region.contains, Region.union):
        with pytest.raises(ValueError, match="zip"):
            combine(Region((0,), (2,)), Region((0, 0), (2, 2)))
