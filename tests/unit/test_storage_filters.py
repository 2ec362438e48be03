"""The filter that makes the centre of the array smaller is used; a tie uses none."""

from __future__ import annotations

import numpy as np
import pytest

from mlarray import MLArray
from mlarray.layout import Layout
from mlarray.spec import ArraySpec
from mlarray.storage.allocate import allocate
from mlarray.storage.filters import NO_DATA, choose_filter, compressed_size, sample_region
from mlarray.storage.options import StorageOptions

RAMP = np.arange(64**3, dtype=np.int32).reshape(64, 64, 64)
LAYOUT = Layout((64, 64, 64), (16, 32, 32), None, "")


def test_a_ramp_is_smaller_with_shuffle() -> None:
    choice = choose_filter(RAMP, LAYOUT, threads=1)
    assert choice.shuffle
    assert choice.reason.startswith("SHUFFLE: ")


def test_the_choice_is_the_smaller_of_both_sizes() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (4, 4, 4)).repeat(16, 0).repeat(16, 1).repeat(16, 2).astype(np.int32) * 77_777
    for voxels in (RAMP, labels, rng.integers(0, 2**31, (64, 64, 64), np.int32), RAMP.astype(np.float32)):
        sizes = [compressed_size(voxels, LAYOUT.blocks, shuffle=shuffle, threads=1) for shuffle in (False, True)]
        assert choose_filter(voxels, LAYOUT, threads=1).shuffle == (sizes[1] < sizes[0])


def test_a_tie_uses_no_filter() -> None:
    choice = choose_filter(np.zeros((64, 64, 64), np.float32), LAYOUT, threads=1)
    assert not choice.shuffle
    assert choice.reason.startswith("No filter: ")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
def test_one_byte_values_use_no_filter(dtype: type) -> None:
    choice = choose_filter(RAMP.astype(dtype), LAYOUT, threads=1)
    assert (choice.shuffle, choice.reason) == (False, "No filter: SHUFFLE does nothing for one-byte values.")
    assert MLArray(RAMP.astype(dtype)).meta.blosc2.cparams["filters"] == [0]


def test_without_voxels_shuffle_is_used() -> None:
    assert choose_filter(np.zeros((0, 4), np.float32), LAYOUT, threads=1) == NO_DATA
    assert allocate(ArraySpec((64,), np.dtype("f4")), StorageOptions()).filter == NO_DATA
    assert MLArray(np.zeros((0, 4), np.float32)).meta.blosc2.cparams["filters"] == [1]


@pytest.mark.parametrize(("dtype", "filters"), [("uint8", [0]), ("bool", [0]), ("int16", [1])])
def test_one_byte_values_use_no_filter_also_where_there_is_nothing_to_try(dtype: str, filters: list[int]) -> None:
    with MLArray.zeros((8, 8, 8), dtype) as image:
        assert image.meta.blosc2.cparams["filters"] == filters


def test_the_sample_lies_in_the_centre_and_is_one_chunk() -> None:
    region = sample_region((100, 10, 7), (20, 16, 7))
    assert (region.start, region.stop) == ((40, 0, 0), (60, 10, 7))
    assert sample_region((500, 4), None).shape == (116, 4)


def test_the_centre_decides_not_the_border() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2**31, (96, 64, 64), np.int32)
    noise[32:64] = RAMP[:32]
    image = MLArray(noise, chunk_size=(32, 64, 64), block_size=(16, 32, 32))
    assert image.meta.blosc2.cparams == {"codec": 2, "clevel": 5, "filters": [1]}


def test_parameters_of_the_caller_replace_the_choice() -> None:
    made = allocate(ArraySpec((64,), np.dtype("f4")), StorageOptions(cparams={"clevel": 1}), sample=RAMP.ravel()[:64])
    assert made.filter is None
    assert made.fields["cparams"] == {"clevel": 1}
