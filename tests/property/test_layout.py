"""What holds for every layout and every chunk grid, whatever the shape."""

import math
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlarray.layout import (
    BLOCK_LIMIT_BYTES,
    CHUNK_LIMIT_BYTES,
    CHUNK_PATCH_FACTOR,
    ChunkGrid,
    Layout,
    layout_for_patch,
    resolve_layout,
)

EXTENTS = st.one_of(st.integers(0, 3), st.integers(1, 70), st.integers(1, 2000))
PATCHES = st.one_of(st.just(1), st.integers(1, 70), st.integers(1, 700))
ITEMSIZES = st.sampled_from((1, 2, 4, 8, 16))


@st.composite
def requests(draw: st.DrawFn, *, axes: int = 5) -> dict[str, Any]:
    """Arguments of layout_for_patch with at least one spatial axis and a full or shorter patch."""
    shape = draw(st.lists(EXTENTS, min_size=1, max_size=axes))
    spatial = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)).filter(any))
    patch = draw(st.lists(PATCHES, min_size=1, max_size=sum(spatial)))
    return {"shape": shape, "itemsize": draw(ITEMSIZES), "patch_size": patch, "spatial": spatial}


def lay_out(request: dict[str, Any], **changes: Any) -> Layout:
    arguments = {**request, **changes}
    return layout_for_patch(arguments.pop("shape"), arguments.pop("itemsize"), **arguments)


def full_patch(request: dict[str, Any]) -> list[int]:
    return [1] * (sum(request["spatial"]) - len(request["patch_size"])) + request["patch_size"]


@given(requests())
def test_one_is_at_most_block_is_at_most_chunk_is_at_most_shape(request: dict[str, Any]) -> None:
    layout = lay_out(request)
    for block, chunk, extent in zip(layout.blocks, layout.chunks, request["shape"], strict=True):
        assert 1 <= block <= chunk <= max(1, extent)
        assert type(block) is type(chunk) is int


@given(requests(), st.integers(16, 2**20), st.integers(16, 2**24), st.sampled_from((0.5, 1.0, 1.5, 3.0)))
def test_both_byte_limits_and_the_limit_per_axis_are_kept(
    request: dict[str, Any], block_limit: int, chunk_limit: int, factor: float
) -> None:
    layout = lay_out(request, block_limit_bytes=block_limit, chunk_limit_bytes=chunk_limit, chunk_patch_factor=factor)
    assert math.prod(layout.blocks) * request["itemsize"] <= min(block_limit, chunk_limit)
    assert math.prod(layout.chunks) * request["itemsize"] <= chunk_limit
    spatial_sizes = [
        (block, chunk)
        for block, chunk, spatial in zip(layout.blocks, layout.chunks, request["spatial"], strict=True)
        if spatial
    ]
    for (block, chunk), patch in zip(spatial_sizes, full_patch(request), strict=True):
        assert chunk <= max(block, factor * patch)


@given(requests())
def test_the_same_request_always_gives_the_same_layout(request: dict[str, Any]) -> None:
    assert lay_out(request) == lay_out(request)
    assert lay_out(request) == resolve_layout(
        request["shape"], request["itemsize"], spatial=request["spatial"], patch_size=tuple(request["patch_size"])
    )


@given(requests())
def test_axes_that_are_not_spatial_have_block_and_chunk_one(request: dict[str, Any]) -> None:
    layout = lay_out(request)
    for block, chunk, spatial in zip(layout.blocks, layout.chunks, request["spatial"], strict=True):
        assert spatial or (block, chunk) == (1, 1)


@given(requests())
def test_a_short_patch_means_leading_ones_and_those_axes_stay_at_one(request: dict[str, Any]) -> None:
    patch = full_patch(request)
    layout = lay_out(request)
    assert layout == lay_out(request, patch_size=patch)
    assert layout.patch_size == tuple(patch)
    chunks = [chunk for chunk, spatial in zip(layout.chunks, request["spatial"], strict=True) if spatial]
    assert all(chunk == 1 for chunk, extent in zip(chunks, patch, strict=True) if extent == 1)


@given(requests(), st.data())
def test_the_position_of_axes_that_are_not_spatial_does_not_change_the_spatial_numbers(
    request: dict[str, Any], data: st.DataObject
) -> None:
    def spatial_only(layout: Layout, spatial: list[bool]) -> list[tuple[int, int]]:
        sizes = zip(layout.blocks, layout.chunks, spatial, strict=True)
        return [(block, chunk) for block, chunk, is_spatial in sizes if is_spatial]

    extents = iter([n for n, spatial in zip(request["shape"], request["spatial"], strict=True) if spatial])
    others = iter([n for n, spatial in zip(request["shape"], request["spatial"], strict=True) if not spatial])
    moved = data.draw(st.permutations(request["spatial"]))
    shape = [next(extents) if spatial else next(others) for spatial in moved]
    expected = spatial_only(lay_out(request), request["spatial"])
    assert spatial_only(lay_out(request, shape=shape, spatial=moved), moved) == expected


@given(st.lists(EXTENTS, min_size=1, max_size=4), ITEMSIZES, PATCHES)
def test_an_int_is_the_same_patch_on_every_axis(shape: list[int], itemsize: int, patch: int) -> None:
    assert layout_for_patch(shape, itemsize, patch_size=patch) == layout_for_patch(
        shape, itemsize, patch_size=[patch] * len(shape)
    )


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=4), ITEMSIZES, st.integers(2, 700))
def test_a_chunk_stops_growing_only_at_a_limit(shape: list[int], itemsize: int, patch: int) -> None:
    layout = layout_for_patch(shape, itemsize, patch_size=patch)
    for axis, (block, chunk, extent) in enumerate(zip(layout.blocks, layout.chunks, shape, strict=True)):
        target = min(extent, math.floor(CHUNK_PATCH_FACTOR * patch))
        grown = [*layout.chunks]
        grown[axis] = min(chunk + block, target)
        assert chunk >= target or math.prod(grown) * itemsize > CHUNK_LIMIT_BYTES


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=4), ITEMSIZES, st.integers(1, 700))
def test_a_block_is_at_least_an_eighth_of_the_limit_or_covers_the_patch(
    shape: list[int], itemsize: int, patch: int
) -> None:
    # One shrinking step at most halves the block, from a power of two, or from an extent n to more than n / 4.
    layout = layout_for_patch(shape, itemsize, patch_size=patch)
    covers = all(block >= min(patch, extent) for block, extent in zip(layout.blocks, shape, strict=True))
    assert covers or math.prod(layout.blocks) * itemsize > BLOCK_LIMIT_BYTES / 8


@st.composite
def grids_with_regions(draw: st.DrawFn) -> tuple[ChunkGrid, tuple[int, ...], tuple[int, ...]]:
    """A small grid and a region inside it, of up to three axes."""
    shape = draw(st.lists(st.integers(0, 14), min_size=1, max_size=3))
    chunks = [draw(st.integers(1, max(1, n))) for n in shape]
    blocks = [draw(st.integers(1, chunk)) for chunk in chunks]
    start = [draw(st.integers(0, n)) for n in shape]
    stop = [draw(st.integers(a, n)) for a, n in zip(start, shape, strict=True)]
    return ChunkGrid(tuple(shape), tuple(chunks), tuple(blocks)), tuple(start), tuple(stop)


def voxels(start: tuple[int, ...], stop: tuple[int, ...]) -> int:
    return math.prod(b - a for a, b in zip(start, stop, strict=True))


@given(grids_with_regions())
def test_the_chunks_cover_every_voxel_once(case: tuple[ChunkGrid, tuple[int, ...], tuple[int, ...]]) -> None:
    grid, _, _ = case
    regions = [grid.chunk_region(index) for index in range(grid.chunk_count)]
    assert sum(voxels(*region) for region in regions) == math.prod(grid.shape)
    assert len(set(regions)) == grid.chunk_count


@given(grids_with_regions())
def test_exactly_the_chunks_that_intersect_a_region_are_touched(
    case: tuple[ChunkGrid, tuple[int, ...], tuple[int, ...]],
) -> None:
    grid, start, stop = case
    expected = []
    for index in range(grid.chunk_count):
        low, high = grid.chunk_region(index)
        if all(max(a, c) < min(b, d) for a, b, c, d in zip(start, stop, low, high, strict=True)):
            expected.append(index)
    assert list(grid.chunks_touched(start, stop)) == expected


@given(grids_with_regions())
def test_bytes_decoded_is_the_size_of_the_blocks_touched(
    case: tuple[ChunkGrid, tuple[int, ...], tuple[int, ...]],
) -> None:
    grid, start, stop = case
    touched = list(grid.blocks_touched(start, stop))
    assert all(earlier < later for earlier, later in pairwise(touched))
    assert grid.bytes_decoded(start, stop, 2) == len(touched) * math.prod(grid.blocks) * 2
    assert grid.bytes_decoded(start, stop, 2) >= voxels(start, stop) * 2
