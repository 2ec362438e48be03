"""Reading and writing parts of an array, as numpy does it."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray import MLArray, Region
from mlarray.errors import DTypeError, UsageError
from mlarray.indexing import parse_key, plain_box, read_selection

from .array_stores import ALL, READ_ONLY, WRITABLE

CUBE = np.arange(3 * 4 * 5, dtype=np.int32).reshape(3, 4, 5)
SQUARE = np.arange(25, dtype=np.int32).reshape(5, 5)
KEYS = [
    np.s_[-1], np.s_[::2], np.s_[:, ::-1], np.s_[..., 0], np.s_[5:9], np.s_[2:1], np.s_[:], np.s_[...], np.s_[()],
    np.s_[None], np.s_[1, None, 2], np.s_[-2:, 1:-1], np.s_[::-2], [0, 2], [], np.array([True, False, True]),
    np.array([[0, 1], [2, -1]]), np.int8(1),
]  # fmt: skip


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_gives_the_shape_and_values_that_numpy_gives(tmp_path: Path, kind: str, key: object) -> None:
    image = ALL[kind](tmp_path, CUBE, chunk_size=(2, 3, 4), block_size=(1, 2, 2))
    np.testing.assert_array_equal(image[key], CUBE[key], strict=True)


def test_a_box_of_one_voxel_in_each_direction_keeps_its_axes() -> None:
    image = MLArray(SQUARE, patch_size=2)
    assert image[4:6, 4:6].shape == (1, 1)
    assert image[4:5, 4].shape == (1,)
    assert image[::2].tolist() == SQUARE[::2].tolist()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (3, "index 3 is out of bounds for axis 0 with size 3"),
        (-4, "index -4 is out of bounds"),
        ((0, 0, 0, 0), "too many indices"),
        ((..., ...), "single ellipsis"),
        (1.5, "only integers"),
        ("a", "only integers"),
        (True, "a single boolean is not an index here"),
        (np.array(True), "a single boolean is not an index here"),
        (np.ones(4, bool), "boolean index has shape"),
        ([0, 7], "out of bounds"),
        (([0, 1], [0, 1, 2]), "could not be broadcast"),
    ],
)
def test_keys_that_numpy_refuses_are_refused_as_index_errors(key: object, message: str) -> None:
    image = MLArray(CUBE)
    with pytest.raises(IndexError, match=message):
        image[key]
    with pytest.raises(IndexError, match=message):
        image[key] = 0
    np.testing.assert_array_equal(image[...], CUBE)


@pytest.mark.parametrize("kind", WRITABLE)
def test_a_part_can_be_changed_in_place(tmp_path: Path, kind: str) -> None:
    voxels = np.ones((32, 64, 8), np.float32)
    image = WRITABLE[kind](tmp_path, voxels, patch_size=16)
    image[10:20, 50:60] *= 5
    voxels[10:20, 50:60] *= 5
    np.testing.assert_array_equal(image[...], voxels)


@pytest.mark.parametrize("kind", READ_ONLY)
def test_an_array_opened_for_reading_is_not_written(tmp_path: Path, kind: str) -> None:
    image = READ_ONLY[kind](tmp_path, CUBE)
    with pytest.raises(UsageError, match="opened read-only"):
        image[0] = 1
    np.testing.assert_array_equal(image[...], CUBE)


def test_changes_of_a_private_map_stay_in_memory(tmp_path: Path) -> None:
    image = WRITABLE["mapped c"](tmp_path, CUBE)
    image[0] = -1
    image.meta.source["a"] = 1
    image.close()
    with MLArray.open(tmp_path / "opened.mla") as again:
        np.testing.assert_array_equal(again[...], CUBE)
        assert again.meta.source == {}


@pytest.mark.parametrize("kind", ["compressed in memory", "numpy", "mapped r+"])
def test_values_are_cast_within_their_kind_and_never_beyond(tmp_path: Path, kind: str) -> None:
    image = WRITABLE[kind](tmp_path, np.zeros((2, 3), np.float32))
    image[0] = np.array([1, 2, 3], np.int16)
    image[1] = np.array([0.1, 0.2, 0.3], np.float64)
    assert image[0].tolist() == [1.0, 2.0, 3.0]
    assert image[1].tolist() == np.array([0.1, 0.2, 0.3], np.float32).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DTypeError, match="complex64 cannot be assigned to an array of dtype float32"):
            image[0] = np.ones(3, np.complex64)
    assert image[0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("dtype", "value", "error"),
    [
        (np.uint8, np.array([1.0, 2.0]), DTypeError),
        (np.uint8, 1.5, DTypeError),
        (np.uint8, [1, 2.5], DTypeError),
        (np.uint8, np.array([-1, 2]), DTypeError),
        (np.uint8, 300, OverflowError),
        (np.uint8, -1, OverflowError),
        (np.uint8, [np.int64(300), np.int64(1)], OverflowError),
        (np.int16, [np.array(40000), np.array(1)], OverflowError),
        (np.float32, 1j, DTypeError),
        (bool, 2, DTypeError),
        (np.int16, "3", DTypeError),
        (np.int16, None, DTypeError),
        (np.int16, [[1], [2, 3]], ValueError),
    ],
)
def test_a_value_that_would_change_is_refused(dtype: type, value: object, error: type[Exception]) -> None:
    image = MLArray(np.zeros(2, dtype))
    with pytest.raises(error):
        image[...] = value
    assert not image[...].any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.uint8, 255), (np.uint8, True), (np.float16, 3), (np.complex64, 2.5), (np.int16, [1, -2]),
        (bool, [True, False]), (np.uint64, 2**64 - 1), (np.float32, np.float64(0.5)), (np.int16, np.int8(-3)),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_taken(dtype: type, value: object) -> None:
    image = MLArray(np.zeros(2, dtype))
    image[...] = value
    np.testing.assert_array_equal(image[...], np.broadcast_to(np.asarray(value, dtype), 2))


def test_one_array_can_be_assigned_to_another() -> None:
    image = MLArray(np.zeros((2, 3, 4, 5), np.int32))
    image[1, :, :, :] = MLArray(CUBE)[:3]
    image[0] = MLArray(CUBE)
    np.testing.assert_array_equal(image[0], CUBE)


def test_values_that_do_not_broadcast_change_nothing() -> None:
    image = MLArray(CUBE)
    for key, value in ((np.s_[0], np.zeros((5, 4), np.int32)), (np.s_[::2], np.zeros(3, np.int32))):
        with pytest.raises(ValueError, match="broadcast"):
            image[key] = value
    np.testing.assert_array_equal(image[...], CUBE)


def test_regions_are_read_literally() -> None:
    image = MLArray(CUBE, patch_size=2)
    region = Region((1, 0, 2), (3, 4, 5))
    np.testing.assert_array_equal(image.read(region), CUBE[region.slices])
    buffer = np.empty(region.shape, np.int32)
    assert image.read(region, buffer) is buffer
    with pytest.raises(IndexError, match="does not fit shape"):
        image.read(Region((-1, 0, 0), (1, 1, 1)))


@pytest.mark.parametrize("kind", ["compressed in memory", "mapped r", "opened r"])
def test_eight_threads_share_one_array(tmp_path: Path, kind: str) -> None:
    voxels = np.arange(64**3, dtype=np.int32).reshape(64, 64, 64)
    image = ALL[kind](tmp_path, voxels, patch_size=16)
    starts = np.random.default_rng(0).integers(0, 48, (400, 3))

    def patch(start: np.ndarray) -> bool:
        box = tuple(slice(a, a + 16) for a in start.tolist())
        return bool(np.array_equal(image[box], voxels[box]))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(patch, starts))


def test_small_blocks_of_four_dimensional_uint8_read_right() -> None:
    voxels = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
    image = MLArray(voxels, chunk_size=(2, 4, 1), block_size=(2, 1, 1))
    for start in range(4):
        np.testing.assert_array_equal(image[:, start:, :], voxels[:, start:, :])
        np.testing.assert_array_equal(image[1:, start : start + 1], voxels[1:, start : start + 1])


def test_a_chunk_of_zeros_before_one_of_values_reads_right() -> None:
    voxels = np.concatenate([np.zeros(7), np.arange(7)]).astype(np.float32)
    image = MLArray(voxels, chunk_size=7, block_size=7)
    mask = voxels > 0
    np.testing.assert_array_equal(image[mask], voxels[mask])
    np.testing.assert_array_equal(image[5:9], voxels[5:9])


def test_iteration_and_length_are_those_of_the_first_axis() -> None:
    image = MLArray(CUBE)
    assert len(image) == 3
    for plane, expected in zip(image, CUBE, strict=True):
        np.testing.assert_array_equal(plane, expected)


ENTRIES = st.one_of(st.integers(-6, 6), st.builds(slice, *[st.none() | st.integers(-7, 7)] * 2))


@given(st.lists(ENTRIES, max_size=4).map(tuple))
def test_the_fast_way_for_boxes_says_what_the_general_way_says(key: tuple[int | slice, ...]) -> None:
    box = plain_box(key, CUBE.shape)
    try:
        expected = CUBE[key]
    except IndexError:
        assert box is None  # the general way tells what is wrong
        return
    assert box is not None
    region, inner = box
    voxels = CUBE[region.slices] if inner is None else CUBE[region.slices][inner]
    np.testing.assert_array_equal(voxels, expected, strict=True)
    np.testing.assert_array_equal(
        voxels, read_selection(parse_key(key, CUBE.shape), lambda r, _: CUBE[r.slices], CUBE.dtype), strict=True
    )


@pytest.mark.parametrize("key", [np.s_[::2], np.s_[..., 0], None, np.int8(1), True, [0], np.s_[0, 0, 0, 0]], ids=str)
def test_other_keys_are_left_to_the_general_way(key: object) -> None:
    assert plain_box(key, CUBE.shape) is None
