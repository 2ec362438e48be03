"""Origins of patches that begin with a block."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray import BlockGrid, MLArray
from mlarray.chunk_grid import ChunkGrid
from mlarray.errors import DTypeError, LayoutError, UsageError

GRID = BlockGrid(shape=(100, 64), chunks=(64, 64), blocks=(32, 16))


@st.composite
def lines(draw: st.DrawFn) -> tuple[BlockGrid, int]:
    """One axis and a patch on it."""
    chunk = draw(st.integers(1, 24))
    return BlockGrid((draw(st.integers(0, 60)),), (chunk,), (draw(st.integers(1, chunk)),)), draw(st.integers(1, 70))


def test_origins_are_where_blocks_begin_and_the_last_that_leaves_room() -> None:
    assert GRID.origins((40, 32)) == ((0, 32, 60), (0, 16, 32))
    assert GRID.origins((100, 64)) == ((0,), (0,))
    assert GRID.origins(36) == ((0, 32, 64), (0, 16, 28))


def test_a_step_is_a_divisor_or_a_multiple_of_the_block() -> None:
    assert GRID.origins((36, 32), step=16) == ((0, 16, 32, 48, 64), (0, 16, 32))
    assert GRID.origins((36, 32), step=(64, 1)) == ((0, 64), tuple(range(33)))
    assert GRID.origins((10, 10), step=(32, 32)) == ((0, 32, 64, 90), (0, 32, 54))


@pytest.mark.parametrize("step", [24, (32, 12), (48, 16)])
def test_a_step_that_does_not_fit_the_block_is_refused(step: object) -> None:
    with pytest.raises(UsageError, match=r"multiple or a divisor .* on axis \d with blocks of"):
        GRID.origins((36, 32), step=step)  # type: ignore[arg-type]


def test_one_number_as_step_leaves_axes_alone_that_are_not_cut_or_cut_everywhere() -> None:
    grid = BlockGrid((4, 20, 256), (1, 20, 128), (1, 20, 32))
    assert grid.origins((1, 16, 128), step=64) == ((0, 1, 2, 3), (0, 1, 2, 3, 4), (0, 64, 128))


def test_patches_smaller_than_blocks_leave_no_voxel_out() -> None:
    assert BlockGrid((64,), (64,), (32,)).origins(20) == ((0, 16, 32, 44),)
    assert BlockGrid((4, 96), (4, 96), (2, 32)).origins((1, 32)) == ((0, 1, 2, 3), (0, 32, 64))


def test_where_one_block_spans_the_axis_every_position_is_an_origin() -> None:
    grid = BlockGrid((20, 64), (20, 64), (20, 16))
    assert grid.origins((16, 16))[0] == (0, 1, 2, 3, 4)


def test_blocks_begin_anew_with_each_chunk() -> None:
    grid = BlockGrid((150,), (48,), (32,))
    assert grid.origins(32) == ((0, 32, 48, 80, 96, 118),)
    assert grid.origins(32, step=16) == ((0, 16, 32, 48, 64, 80, 96, 112, 118),)
    assert grid.origins(32, step=64) == ((0, 48, 96, 118),)


def test_a_patch_larger_than_the_array_begins_at_its_first_voxel() -> None:
    assert GRID.origins((128, 32)) == ((0,), (0, 16, 32))
    assert GRID.snap((50, 50), 500) == (0, 0)
    assert GRID.random_origin(np.random.default_rng(0), 500) == (0, 0)


def test_snap_takes_the_nearest_origin_and_of_two_the_lower() -> None:
    assert GRID.snap((15, 7), (40, 32)) == (0, 0)
    assert GRID.snap((16, 8), (40, 32)) == (0, 0)
    assert GRID.snap((17, 9), (40, 32)) == (32, 16)
    assert GRID.snap((47, 99), (40, 32)) == (60, 32)
    assert GRID.snap((-30, 24), (40, 32)) == (0, 16)
    assert GRID.snap(np.array([17, 9]), (40, 32), step=(16, 16)) == (16, 16)


def test_draws_are_uniform_over_all_origins_repeat_with_the_seed_and_are_plain_integers() -> None:
    expected = set(product(*GRID.origins((40, 32))))
    rng = np.random.default_rng(1)
    draws = [GRID.random_origin(rng, (40, 32)) for _ in range(9000)]
    counts = {origin: draws.count(origin) for origin in expected}
    assert set(draws) == expected
    # Nine origins: a count has mean 1000 and standard deviation 29.8, so the bound is 5 of them.
    assert max(abs(count - 1000) for count in counts.values()) < 149
    assert [GRID.random_origin(np.random.default_rng(5), 8) for _ in range(2)] == [
        GRID.random_origin(np.random.default_rng(5), 8)
    ] * 2
    assert all(type(entry) is int for entry in draws[0])


@given(lines(), st.integers(-80, 80))
def test_every_voxel_can_be_seen_and_every_patch_lies_within_where_it_fits(
    line: tuple[BlockGrid, int], wanted: int
) -> None:
    grid, patch = line
    (extent,) = grid.shape
    (origins,) = grid.origins(patch)
    assert list(origins) == sorted(set(origins))
    assert origins[0] == 0
    assert origins[-1] == max(0, extent - patch)
    assert {voxel for start in origins for voxel in range(start, min(start + patch, extent))} == set(range(extent))
    assert grid.snap((wanted,), patch) == (min(origins, key=lambda start: (abs(start - wanted), start)),)
    assert grid.origins(patch, step=1) in ((tuple(range(max(0, extent - patch) + 1)),), grid.origins(patch, step=(1,)))


@given(lines())
def test_all_origins_but_the_last_begin_with_a_block_unless_the_patch_is_smaller(line: tuple[BlockGrid, int]) -> None:
    grid, patch = line
    (chunk,), (block,), (extent,) = grid.chunks, grid.blocks, grid.shape
    if block <= patch and block < extent:
        assert all(start % chunk % block == 0 for start in grid.origins(patch)[0][:-1])


def test_a_compressed_array_has_the_grid_of_its_store() -> None:
    image = MLArray.zeros((2, 60, 128, 128), np.float32, axes="czyx", patch_size=48, layout="small-blocks")
    assert image.layout is not None
    assert image.block_grid == BlockGrid((2, 60, 128, 128), image.layout.chunks or (), image.layout.blocks or ())
    channel, *rest = image.block_grid.origins((1, 48, 48, 48))
    assert channel == (0, 1)
    assert math.prod(map(len, rest)) < 13 * 81 * 81


def test_whole_blocks_are_decoded_for_patches_made_of_whole_blocks() -> None:
    image = MLArray.zeros((128, 128, 128), np.float32, patch_size=64, layout="small-blocks")
    grid = image.block_grid
    cells = ChunkGrid(grid.shape, grid.chunks, grid.blocks)
    for start in product(*grid.origins(64)):
        stop = tuple(a + 64 for a in start)
        if all(a % c % b == 0 and c % b == 0 for a, b, c in zip(start, grid.blocks, grid.chunks, strict=True)):
            assert cells.bytes_decoded(start, stop, 1) == 64**3
    assert cells.bytes_decoded((1, 1, 1), (65, 65, 65), 1) > 1.5 * 64**3


def test_without_compression_every_position_is_an_origin() -> None:
    image = MLArray(np.zeros((5, 6), np.int16), compressed=False)
    assert image.block_grid.blocks == (1, 1)
    assert image.block_grid.origins((4, 6)) == ((0, 1), (0,))
    assert image.block_grid.origins((4, 6), step=7) == ((0, 1), (0,))
    assert image.block_grid.snap((3, -2), (2, 2)) == (3, 0)


def test_an_empty_axis_has_the_origin_0() -> None:
    image = MLArray(np.zeros((0, 40), np.int16))
    assert image.block_grid.origins((3, 8))[0] == (0,)


def test_without_an_array_there_is_no_grid() -> None:
    with pytest.raises(DTypeError, match="no array"):
        _ = MLArray().block_grid


@pytest.mark.parametrize(
    ("patch", "told"),
    [((8,), "one entry per axis"), ((8, 8, 8), "one entry per axis"), (0, "at least 1"), ((8, -1), "at least 1")],
)
def test_a_patch_that_is_none_is_refused(patch: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        GRID.origins(patch)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [2.5, (8, "8"), "ab", None, np.array(8.0)])
def test_only_integers_are_taken(value: object) -> None:
    with pytest.raises(UsageError, match="integers"):
        GRID.snap((0, 0), value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="integers"):
        GRID.snap(value, (8, 8))  # type: ignore[arg-type]


def test_a_grid_that_is_none_is_refused() -> None:
    with pytest.raises(LayoutError, match="1 <= block <= chunk"):
        BlockGrid((10,), (4,), (8,))
