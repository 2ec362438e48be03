"""The algebra of regions, against sets of voxels."""

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mlarray.region import Region
from mlarray.testing.strategies import regions, regions_within, shapes

PAIRS = st.integers(1, 3).flatmap(lambda n: st.tuples(regions(n, low=-5, high=6), regions(n, low=-5, high=6)))


def voxels(region: Region) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(a, b) for a, b in zip(region.start, region.stop, strict=True))))


def inside(shape: Sequence[int]) -> set[tuple[int, ...]]:
    return set(itertools.product(*map(range, shape)))


@given(PAIRS)
def test_the_common_part_holds_the_common_voxels(pair: tuple[Region, Region]) -> None:
    a, b = pair
    assert voxels(a.intersect(b)) == voxels(a) & voxels(b) == voxels(b.intersect(a))


@given(PAIRS)
def test_the_union_is_the_smallest_box_around_both(pair: tuple[Region, Region]) -> None:
    a, b = pair
    both = a.union(b)
    assert voxels(a) | voxels(b) <= voxels(both)
    if not both.is_empty():
        for axis in range(both.ndim):
            used = {voxel[axis] for voxel in voxels(a) | voxels(b)}
            assert (min(used), max(used) + 1) == (both.start[axis], both.stop[axis])


@given(PAIRS)
def test_containing_means_holding_every_voxel(pair: tuple[Region, Region]) -> None:
    a, b = pair
    assert a.contains(b) == (voxels(b) <= voxels(a))


@given(st.integers(1, 3).flatmap(lambda n: st.tuples(regions(n, low=-5, high=9), shapes(min_dims=n, max_dims=n))))
def test_clamping_keeps_exactly_the_voxels_of_the_array(case: tuple[Region, tuple[int, ...]]) -> None:
    region, shape = case
    clamped = region.clamp(shape)
    assert voxels(clamped) == voxels(region) & inside(shape)
    assert clamped.is_within(shape)
    assert clamped.clamp(shape) == clamped


@given(PAIRS, st.integers(0, 4), st.integers(0, 4))
def test_growing_and_shrinking_back_changes_nothing(pair: tuple[Region, Region], before: int, after: int) -> None:
    region = pair[0]
    grown = region.grow(before, after)
    assert grown.grow(-before, -after) == region
    assert grown.shape == tuple(n + before + after for n in region.shape)


@given(PAIRS)
def test_moving_there_and_back_changes_nothing(pair: tuple[Region, Region]) -> None:
    region, outer = pair
    local = region.relative_to(outer)
    assert local.shape == region.shape
    assert local.translate(outer.start) == region


@given(shapes(min_side=0, max_side=9).flatmap(regions_within), st.data())
def test_pieces_are_the_region_cut_without_gap_or_overlap(region: Region, data: st.DataObject) -> None:
    axis, extent = data.draw(st.integers(0, region.ndim - 1)), data.draw(st.integers(1, 5))
    pieces = list(region.split(axis, extent))
    assert sum(piece.size for piece in pieces) == region.size
    assert set().union(*map(voxels, pieces)) == voxels(region)
    assert all(piece.shape[axis] <= extent for piece in pieces)


@given(st.integers(1, 4).flatmap(regions), st.data())
def test_permuting_and_permuting_back_changes_nothing(region: Region, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(region.ndim)))
    assert region.permute(order).permute([order.index(axis) for axis in range(region.ndim)]) == region
