"""A sweep gives the fixed blocks, whatever it reads at once, and statistics keep every bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mlarray import transforms as T
from mlarray.region import Region
from mlarray.streaming import plan, sweep
from mlarray.testing.transforms import source_of
from mlarray.transforms import statistics
from mlarray.transforms.statistics import Moments, statistic_blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "STATISTIC_BLOCK_ELEMENTS", 500)


@pytest.mark.parametrize("most", [0, 4000, 9000, 100_000])
@pytest.mark.parametrize("shape", [(1,), (7001,), (33, 60), (9, 31, 20), (3, 4, 5, 60)])
def test_blocks_come_in_order_and_boxes_stay_within_their_bytes(
    shape: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "SWEEP_BYTES", most)
    volume = np.arange(np.prod(shape), dtype=np.int32).reshape(1, *shape)
    read: list[Region] = []

    def reading(region: Region) -> tuple[np.ndarray, np.ndarray]:
        read.append(region)
        part = volume[(slice(None), *region.slices)].copy()
        return part, part % 2

    blocks = list(sweep.swept(1, shape, reading, bytes_of=lambda region: region.size * 4))
    regions = list(statistic_blocks(1, shape))
    assert len(blocks) == len(regions)
    for (voxels, mask), region in zip(blocks, regions, strict=True):
        np.testing.assert_array_equal(voxels, volume[(slice(None), *region.slices)])
        np.testing.assert_array_equal(mask, voxels % 2)
        assert voxels.flags.c_contiguous
    largest = max(region.size for region in regions)
    assert all(4 * region.size <= max(most, 4 * largest) for region in read)
    assert sum(region.size for region in read) == volume.size
    assert most < 100_000 or len(read) == 1
    assert not [one for one in threading.enumerate() if one.name.startswith("mlarray-sweep")]


def test_an_error_while_a_box_is_read_ends_the_sweep() -> None:
    def reading(region: Region) -> tuple[np.ndarray, None]:
        if region.start[0]:
            raise OSError("the disk is gone")
        return np.zeros((1, *region.shape)), None

    with pytest.raises(OSError, match="the disk is gone"):
        list(sweep.swept(1, (4000,), reading, bytes_of=lambda region: 1 << 40))
    assert not [one for one in threading.enumerate() if one.name.startswith("mlarray-sweep")]


def reference(blocks: list[np.ndarray]) -> tuple[int, float, float]:
    """Return count, mean and deviation as they are defined: numpy's sums of whole blocks in float64, folded in order."""
    count, mean, squares = 0, 0.0, 0.0
    for values in blocks:
        wide = values.astype(np.float64)
        size, own = wide.size, float(wide.mean())
        wide -= own
        delta, total = own - mean, count + size
        mean += delta * size / total
        squares += float(np.square(wide).sum()) + delta * delta * count * size / total
        count = total
    return count, mean, float(np.sqrt(squares / (count - 1)))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_moments_are_those_of_whole_blocks_to_the_last_bit(dtype: str, order: str) -> None:
    rng = np.random.default_rng(0)
    blocks = [np.asarray(rng.normal(50, 20, (1, n, 40, 41)).astype(dtype), order=order) for n in (1, 19, 47)]
    found = Moments().measure(lambda: ((block, None) for block in blocks))
    assert (found.count, found.mean, found.std) == reference(blocks)


@pytest.mark.parametrize("most", [0, 9000])
def test_a_chain_with_a_mask_measures_the_same_however_it_is_swept(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SWEEP_BYTES", most)
    rng = np.random.default_rng(1)
    image = rng.normal(0, 300, (1, 17, 30, 20)).astype(np.float32)
    mask = rng.integers(0, 2, (1, 17, 30, 20)).astype(np.uint8)
    chain = [T.Clip(-200, 300), T.Mask("M"), T.Standardize(mask="M")]
    found = plan(source_of(image), chain, groups={"M": source_of(mask)}).attributes
    clipped = np.where(mask > 0, np.clip(image, -200, 300), 0)
    blocks = [
        clipped[(slice(None), *region.slices)][mask[(slice(None), *region.slices)] != 0]
        for region in statistic_blocks(1, (17, 30, 20))
    ]
    assert (found["Mean"], found["Std"]) == reference(blocks)[1:]
