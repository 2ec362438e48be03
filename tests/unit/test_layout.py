"""Unit tests of the layout rule, its arguments and the chunk grid."""

import math
from collections.abc import Callable

import blosc2
import numpy as np
import pytest

from mlarray.errors import LayoutError, UsageError
from mlarray.layout import (
    BLOCK_LIMIT_BYTES,
    CHUNK_LIMIT_BYTES,
    MAX_BLOCK_BYTES,
    MAX_CHUNK_BYTES,
    ChunkGrid,
    Layout,
    layout_for_patch,
    resolve_layout,
    stored_layout,
)

# --- the rule -------------------------------------------------------------------------------------------------------


def test_a_ct_with_the_default_patch_gets_the_published_numbers() -> None:
    layout = layout_for_patch((128, 256, 256), 4, patch_size="default")
    assert layout.blocks == (32, 32, 32)
    assert layout.chunks == (64, 192, 128)
    assert layout.patch_size == (192, 192, 192)


def test_channel_and_time_axes_have_extent_one_wherever_they_stand() -> None:
    layout = layout_for_patch((3, 128, 256, 7, 256), 4, patch_size=192, spatial=(False, True, True, False, True))
    assert layout.blocks == (1, 32, 32, 1, 32)
    assert layout.chunks == (1, 64, 192, 1, 128)


def test_a_2d_patch_on_a_3d_image_reads_slices() -> None:
    layout = layout_for_patch((40, 512, 512), 2, patch_size=(256, 256))
    assert layout.patch_size == (1, 256, 256)
    assert layout.blocks == (1, 256, 256)
    assert layout.chunks == (1, 384, 384)


def test_a_2d_image_gets_the_numbers_of_the_same_image_with_a_leading_one() -> None:
    flat = layout_for_patch((1024, 1024), 1, patch_size=512)
    assert (flat.blocks, flat.chunks) == ((512, 256), (768, 768))


@pytest.mark.parametrize("patch_size", [(16, 16), 192, "default"])
@pytest.mark.parametrize("shape", [(1, 1, 11, 9), (1, 1, 5, 5), (1, 1, 16, 5), (7, 3), (1, 2)])
def test_a_patch_larger_than_a_small_image_stores_it_in_one_block(shape: tuple[int, ...], patch_size: object) -> None:
    spatial = (False,) * (len(shape) - 2) + (True, True)
    layout = layout_for_patch(shape, 4, patch_size=patch_size, spatial=spatial)
    assert layout.blocks == layout.chunks == shape


def test_one_voxel_is_one_block() -> None:
    layout = layout_for_patch((1,), 8, patch_size="default")
    assert (layout.blocks, layout.chunks) == ((1,), (1,))


@pytest.mark.parametrize(("shape", "sizes"), [((0, 5), (1, 5)), ((5, 0, 3), (5, 1, 3)), ((0,), (1,)), ((0, 0), (1, 1))])
def test_a_zero_sized_axis_is_laid_out_like_one_voxel_and_blosc2_takes_it(
    shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    layout = layout_for_patch(shape, 4, patch_size=16)
    assert (layout.blocks, layout.chunks) == (sizes, sizes)
    stored = blosc2.empty(shape, dtype=np.float32, chunks=layout.chunks, blocks=layout.blocks)
    assert stored[...].shape == shape


def test_an_array_without_spatial_axes_is_left_to_blosc2() -> None:
    for shape, spatial in [((), ()), ((1000, 3), (False, False))]:
        layout = layout_for_patch(shape, 4, patch_size="default", spatial=spatial)
        assert layout.chunks is None
        assert layout.blocks is None
        assert str(shape) in layout.reason


def test_axes_of_patch_extent_one_stay_at_chunk_size_one() -> None:
    layout = layout_for_patch((40, 710, 40), 4, patch_size=(256, 1, 45))
    assert layout.blocks == (40, 1, 40)
    assert layout.chunks == (40, 1, 40)


def test_a_larger_factor_does_not_grow_axes_of_patch_extent_one() -> None:
    layout = layout_for_patch((40, 64, 64), 4, patch_size=(16, 16), chunk_patch_factor=4.0)
    assert layout.chunks == (1, 64, 64)


def test_numpy_integers_go_in_and_python_ints_come_out() -> None:
    layout = layout_for_patch(
        np.array([64, 64]), np.int64(2), patch_size=np.array([32, 32]), block_limit_bytes=np.int32(512)
    )
    explicit = resolve_layout((64, 64), 2, chunk_size=np.int64(32), block_size=np.array([16, 8]))
    for sizes in (layout.blocks, layout.chunks, layout.patch_size, explicit.blocks, explicit.chunks):
        assert [type(size) for size in sizes] == [int, int]


def test_smaller_limits_are_kept() -> None:
    layout = layout_for_patch((512, 512, 400), 2, patch_size=128, block_limit_bytes=16 * 1024, chunk_limit_bytes=2**20)
    assert math.prod(layout.blocks) * 2 == 16 * 1024
    assert 2**19 < math.prod(layout.chunks) * 2 <= 2**20


def test_the_chunk_limit_also_bounds_the_block() -> None:
    layout = layout_for_patch((512, 512), 2, patch_size=128, chunk_limit_bytes=1024)
    assert layout.blocks == layout.chunks
    assert math.prod(layout.blocks) * 2 == 1024


def test_a_voxel_above_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        LayoutError, match=r"One voxel of 8 bytes exceeds the limit of 4 bytes.* Raise block_limit_bytes"
    ):
        layout_for_patch((5, 5), 8, patch_size=3, block_limit_bytes=4)


def test_an_infinite_factor_leaves_only_the_byte_limit() -> None:
    layout = layout_for_patch((4096, 4096), 1, patch_size=16, chunk_patch_factor=math.inf)
    assert layout.chunks == (2512, 2496)
    assert CHUNK_LIMIT_BYTES - 16 * 2512 < math.prod(layout.chunks) <= CHUNK_LIMIT_BYTES


def test_raised_limits_never_exceed_what_blosc2_stores() -> None:
    layout = layout_for_patch((4096, 4096, 4096), 4, patch_size=4096, block_limit_bytes=2**40, chunk_limit_bytes=2**40)
    assert math.prod(layout.blocks) * 4 <= MAX_BLOCK_BYTES
    assert math.prod(layout.chunks) * 4 <= MAX_CHUNK_BYTES
    stored = blosc2.empty((4096, 4096, 4096), dtype=np.float32, chunks=layout.chunks, blocks=layout.blocks)
    assert stored.chunks == layout.chunks


@pytest.mark.parametrize(
    ("shape", "itemsize"), [((512, 512, 2400), 4), ((2200, 1024, 1024), 1), ((2200, 1024, 1024), 4)]
)
def test_arrays_above_two_and_four_gib_get_small_chunks_that_blosc2_takes(
    shape: tuple[int, ...], itemsize: int
) -> None:
    layout = resolve_layout(shape, itemsize)
    assert math.prod(layout.blocks) * itemsize <= BLOCK_LIMIT_BYTES
    assert math.prod(layout.chunks) * itemsize <= CHUNK_LIMIT_BYTES
    stored = blosc2.zeros(shape, dtype=f"u{itemsize}", chunks=layout.chunks, blocks=layout.blocks)
    assert stored[-1, -1, -1] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch_size": 0}, "patch_size must be at least 1"),
        ({"patch_size": -4}, "patch_size must be at least 1 .* got -4"),
        ({"patch_size": (16, 0, 16)}, "patch_size must be at least 1"),
        ({"patch_size": 16.5}, r"patch_size takes integers; got 16\.5"),
        ({"patch_size": True}, "patch_size takes integers; got True"),
        ({"patch_size": "large"}, "got 'large'"),
        ({"patch_size": (1, 16, 16, 16)}, "4 entries, but the array has 3 spatial axes"),
        ({"patch_size": 16, "spatial": (True, True)}, r"one entry per axis of shape \(40, 50, 60\); got 2"),
        ({"patch_size": 16, "chunk_patch_factor": 0}, "chunk_patch_factor must be a number above 0; got 0"),
        ({"patch_size": 16, "chunk_patch_factor": math.nan}, "chunk_patch_factor must be a number above 0; got nan"),
        ({"patch_size": 16, "block_limit_bytes": 0}, "block_limit_bytes must be at least 1"),
        ({"patch_size": 16, "chunk_limit_bytes": -1}, "chunk_limit_bytes must be at least 1"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layout_for_patch((40, 50, 60), 4, **arguments)


def test_a_negative_shape_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"no negative extents; got \(4, -1\)"):
        resolve_layout((4, -1), 4)


# --- arguments of the array class -----------------------------------------------------------------------------------


def test_the_default_is_192_per_spatial_axis() -> None:
    assert resolve_layout((400, 512, 512), 2).patch_size == (192, 192, 192)
    assert resolve_layout((400, 512, 512), 2) == layout_for_patch((400, 512, 512), 2, patch_size="default")


def test_no_patch_and_no_sizes_leave_the_choice_to_blosc2() -> None:
    layout = resolve_layout((40, 50, 60), 4, patch_size=None)
    assert (layout.chunks, layout.blocks, layout.patch_size) == (None, None, None)


@pytest.mark.parametrize("patch_size", ["default", None])
def test_explicit_sizes_take_the_place_of_the_default_patch(patch_size: object) -> None:
    layout = resolve_layout((40, 50, 60), 4, patch_size=patch_size, chunk_size=(20, 30, 40), block_size=[10, 10, 8])
    assert (layout.chunks, layout.blocks, layout.patch_size) == ((20, 30, 40), (10, 10, 8), None)


def test_an_int_counts_for_every_axis_and_is_clipped_to_the_shape() -> None:
    layout = resolve_layout((2, 40, 50, 60), 4, chunk_size=48, block_size=16)
    assert layout.chunks == (2, 40, 48, 48)
    assert layout.blocks == (2, 16, 16, 16)


def test_explicit_sizes_on_a_zero_sized_axis_become_one() -> None:
    layout = resolve_layout((0, 5), 4, chunk_size=16, block_size=8)
    assert (layout.chunks, layout.blocks) == ((1, 5), (1, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk_size": 16}, "chunk_size was given without block_size"),
        ({"block_size": 16, "patch_size": None}, "block_size was given without chunk_size"),
        ({"patch_size": 16, "chunk_size": 16, "block_size": 8}, "patch_size=16 excludes chunk_size=16"),
        ({"patch_size": (16,) * 3, "chunk_size": 16, "block_size": 8}, "excludes"),
        ({"chunk_size": 16, "block_size": 32}, "block_size .* exceeds chunk_size"),
        ({"chunk_size": (16, 16), "block_size": 8}, "chunk_size needs one entry per axis"),
        ({"chunk_size": 16, "block_size": (8, 0, 8)}, "block_size must be at least 1 on every axis"),
        ({"chunk_size": 16.5, "block_size": 8}, r"chunk_size takes integers; got 16\.5"),
        ({"chunk_size": "16", "block_size": 8}, "chunk_size takes integers; got '1'"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        resolve_layout((40, 50, 60), 4, **arguments)


def test_a_chunk_above_two_gib_is_refused_naming_shape_chunks_and_limit() -> None:
    with pytest.raises(LayoutError) as refused:
        resolve_layout((2200, 1024, 1024), 1, chunk_size=(2200, 1024, 1024), block_size=(1, 64, 64))
    message = str(refused.value)
    assert "Chunks of (2200, 1024, 1024) in shape (2200, 1024, 1024) hold 2306867200 bytes" in message
    assert f"at most {MAX_CHUNK_BYTES} bytes" in message
    assert "2**31 - 1" in message


def store(shape: tuple[int, ...], chunk_size: tuple[int, ...], block_size: tuple[int, ...]) -> None:
    blosc2.empty(shape, dtype=np.uint8, chunks=chunk_size, blocks=block_size)


def resolve(shape: tuple[int, ...], chunk_size: tuple[int, ...], block_size: tuple[int, ...]) -> None:
    resolve_layout(shape, 1, chunk_size=chunk_size, block_size=block_size)


@pytest.mark.parametrize("build", [store, resolve])
def test_the_limits_are_those_of_blosc2_to_the_byte(build: Callable[..., None]) -> None:
    build((2**32,), (MAX_CHUNK_BYTES,), (1,))
    build((2**32,), (2**30,), (MAX_BLOCK_BYTES,))
    with pytest.raises(RuntimeError):
        build((2**32,), (MAX_CHUNK_BYTES + 1,), (1,))
    with pytest.raises(RuntimeError):
        build((2**32,), (2**30,), (MAX_BLOCK_BYTES + 1,))
    with pytest.raises(RuntimeError):  # 2047 rows are below the limit, the 2048 of whole blocks are not
        build((2048, 1024, 1024), (2047, 1024, 1024), (32, 64, 64))


def test_a_stored_layout_is_kept_with_its_patch() -> None:
    made = resolve_layout((128, 256, 256), 4, patch_size=96)
    kept = stored_layout((128, 256, 256), chunks=made.chunks, blocks=made.blocks, patch_size=made.patch_size)
    assert (kept.chunks, kept.blocks, kept.patch_size) == (made.chunks, made.blocks, made.patch_size)


def test_a_stored_layout_beyond_the_shape_is_brought_into_bounds() -> None:
    kept = stored_layout((40, 0, 5), chunks=(100, 0, 5), blocks=(64, 0, 5))
    assert (kept.chunks, kept.blocks, kept.patch_size) == ((40, 1, 5), (40, 1, 5), None)


# --- the value and its reason ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "blocks"),
    [((4, 4), None), (None, (4, 4)), ((4, 4), (4,)), ((4, 4), (8, 4)), ((4, 4), (0, 4))],
)
def test_a_layout_that_cannot_be_stored_cannot_be_built(chunks: object, blocks: object) -> None:
    with pytest.raises(LayoutError):
        Layout(chunks, blocks, None, "by hand")


def test_the_reason_names_patch_sizes_and_limits() -> None:
    assert resolve_layout((400, 512, 512), 4, patch_size=(64, 192, 160)).reason == (
        "Made for the patch 64 x 192 x 160 at 4 bytes per voxel: blocks of 16 x 64 x 32 (128 KiB, limit 128 KiB) "
        "in chunks of 64 x 192 x 128 (6 MiB, limit 6 MiB and 1.5 x the patch per axis)."
    )
    assert resolve_layout((40, 50), 1).reason.startswith("Made for the default patch 192 x 192 ")
    assert resolve_layout((40, 50), 1, chunk_size=32, block_size=8).reason == (
        "Given by the caller: blocks of 8 x 8 (64 bytes) in chunks of 32 x 32 (1 KiB)."
    )
    assert resolve_layout((40, 50), 1, patch_size=None).reason.startswith("blosc2 chooses: ")


# --- the grid -------------------------------------------------------------------------------------------------------


def test_chunks_are_numbered_in_c_order_and_cut_at_the_border() -> None:
    grid = ChunkGrid(shape=(10, 10), chunks=(8, 4), blocks=(4, 4))
    assert grid.grid_shape == (2, 3)
    assert grid.chunk_count == 6
    assert [grid.chunk_region(index) for index in (0, 2, 3, 5)] == [
        ((0, 0), (8, 4)),
        ((0, 8), (8, 10)),
        ((8, 0), (10, 4)),
        ((8, 8), (10, 10)),
    ]


@pytest.mark.parametrize("index", [-1, 6])
def test_a_chunk_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(UsageError, match=f"Chunk {index} does not exist; the array has 6 chunks"):
        ChunkGrid(shape=(10, 10), chunks=(8, 4), blocks=(4, 4)).chunk_region(index)


def test_chunks_and_blocks_are_numbered_as_blosc2_stores_them() -> None:
    values = np.arange(11 * 7 * 9, dtype=np.int32).reshape(11, 7, 9) + 1
    stored = blosc2.asarray(values, chunks=(6, 7, 5), blocks=(4, 3, 2))
    grid = ChunkGrid(shape=stored.shape, chunks=stored.chunks, blocks=stored.blocks)
    assert grid.chunk_count == stored.schunk.nchunks
    for index in range(grid.chunk_count):
        blocks = np.frombuffer(stored.schunk.decompress_chunk(index), np.int32).reshape(-1, math.prod(grid.blocks))
        start, stop = grid.chunk_region(index)
        for voxel in np.ndindex(*(b - a for a, b in zip(start, stop, strict=True))):
            at = tuple(a + offset for a, offset in zip(start, voxel, strict=True))
            ((chunk, block),) = grid.blocks_touched(at, tuple(n + 1 for n in at))
            assert chunk == index
            assert values[at] in blocks[block]


def test_a_patch_of_128_on_blocks_of_32_decodes_1_92_times_its_voxels_on_average() -> None:
    # Blocks touched per axis by an extent of 128 from offset o in blocks of 32: 4 if o is a multiple, else 5.
    grid = ChunkGrid(shape=(512,) * 3, chunks=(128,) * 3, blocks=(32,) * 3)
    per_axis = [grid.bytes_decoded((offset, 0, 0), (offset + 128, 32, 32), 1) / (128 * 32 * 32) for offset in range(32)]
    assert sum(per_axis) / 32 == pytest.approx((4 + 31 * 5) / 32 / 4)
    assert (sum(per_axis) / 32) ** 3 == pytest.approx(1.917, abs=0.001)


def test_an_aligned_region_decodes_exactly_itself() -> None:
    grid = ChunkGrid(shape=(64, 64), chunks=(32, 32), blocks=(8, 16))
    assert grid.bytes_decoded((8, 16), (40, 48), 2) == 32 * 32 * 2
    assert len(list(grid.blocks_touched((8, 16), (40, 48)))) == 8
    assert list(grid.chunks_touched((8, 16), (40, 48))) == [0, 1, 2, 3]


def test_an_empty_region_touches_nothing() -> None:
    grid = ChunkGrid(shape=(64, 64), chunks=(32, 32), blocks=(8, 16))
    assert list(grid.chunks_touched((5, 5), (5, 9))) == []
    assert list(grid.blocks_touched((5, 5), (9, 5))) == []
    assert grid.bytes_decoded((5, 5), (5, 9), 4) == 0


def test_a_grid_over_a_zero_sized_axis_has_no_chunks() -> None:
    grid = ChunkGrid(shape=(0, 5), chunks=(0, 5), blocks=(0, 5))
    assert (grid.chunks, grid.blocks) == ((1, 5), (1, 5))
    assert grid.chunk_count == 0
    assert list(grid.blocks_touched((0, 0), (0, 5))) == []
    assert grid.bytes_decoded((0, 0), (0, 5), 4) == 0


def test_a_scalar_is_one_chunk_of_one_block() -> None:
    grid = ChunkGrid(shape=(), chunks=(), blocks=())
    assert grid.chunk_count == 1
    assert list(grid.blocks_touched((), ())) == [(0, 0)]
    assert grid.bytes_decoded((), (), 8) == 8


@pytest.mark.parametrize(
    ("start", "stop"), [((-1, 0), (4, 4)), ((0, 0), (65, 4)), ((5, 5), (4, 9)), ((0,), (4,)), ((0, 0), (4,))]
)
def test_a_region_outside_the_array_is_refused(start: tuple[int, ...], stop: tuple[int, ...]) -> None:
    grid = ChunkGrid(shape=(64, 64), chunks=(32, 32), blocks=(8, 16))
    for read in (
        lambda: list(grid.chunks_touched(start, stop)),
        lambda: list(grid.blocks_touched(start, stop)),
        lambda: grid.bytes_decoded(start, stop, 1),
    ):
        with pytest.raises(UsageError, match=r"does not lie inside the array of shape \(64, 64\)"):
            read()


@pytest.mark.parametrize(
    ("chunks", "blocks"), [((32,), (8, 16)), ((32, 32), (64, 16)), ((32, 0), (8, 0)), ((32, 32), (0, 16))]
)
def test_a_grid_that_cannot_be_stored_cannot_be_built(chunks: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError):
        ChunkGrid(shape=(64, 64), chunks=chunks, blocks=blocks)
