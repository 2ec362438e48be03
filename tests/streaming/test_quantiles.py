"""Percentiles by counting are those of numpy's sort, for every dtype, block by block."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray.errors import TransformError
from mlarray.sources.base import NDArray
from mlarray.testing.transforms import SAMPLE_DTYPES, Sample, samples
from mlarray.transforms.quantiles import Percentiles
from mlarray.transforms.statistics import Block, Moments

WANTED = (0.0, 0.5, 5.0, 25.0, 33.3, 50.0, 66.67, 99.0, 99.95, 100.0)


def blocks_of(array: NDArray, mask: NDArray | None = None, *, planes: int = 2) -> Iterator[Block]:
    for start in range(0, array.shape[1], planes):
        cut = (slice(None), slice(start, start + planes))
        yield array[cut], None if mask is None else mask[cut]


def measured(array: NDArray, mask: NDArray | None = None, wanted: tuple[float, ...] = WANTED) -> list[float]:
    statistic = Percentiles(wanted, array.dtype.name, None if mask is None else "MASK")
    return [float(value) for value in statistic.measure(lambda: blocks_of(array, mask))]


def sorted_by_numpy(values: NDArray) -> list[float]:
    # Narrow integers are widened: numpy takes the difference of two ranks in their own type, where it can overflow.
    wide = values.astype(np.int64) if values.dtype.kind in "iub" and values.dtype.itemsize < 8 else values
    return [float(np.percentile(wide, one)) for one in WANTED]


@settings(max_examples=300, deadline=None)
@given(samples(dtypes=("?", "i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "f8")), st.integers(1, 3))
def test_percentiles_are_those_of_numpy(sample: Sample, planes: int) -> None:
    statistic = Percentiles(WANTED, sample.array.dtype.name)
    found = [float(value) for value in statistic.measure(lambda: blocks_of(sample.array, planes=planes))]
    assert found == sorted_by_numpy(sample.array)


@settings(max_examples=100, deadline=None)
@given(samples(dtypes=SAMPLE_DTYPES, channels=(1, 2)))
def test_only_voxels_of_the_mask_count(sample: Sample) -> None:
    mask = sample.groups["MASK"]
    if not mask.any():
        with pytest.raises(TransformError, match="'MASK' is 0 everywhere"):
            measured(sample.array, mask)
        return
    chosen = sample.array[np.broadcast_to(mask != 0, sample.array.shape)]
    assert measured(sample.array, mask) == measured(chosen.reshape(1, -1, 1))


@pytest.mark.parametrize(
    ("dtype", "passes"),
    [("uint8", 1), ("float16", 1), ("int16", 1), ("float32", 2), ("uint32", 2), ("float64", 4), ("int64", 4)],
)
def test_a_type_of_n_bits_takes_a_pass_for_every_16(dtype: str, passes: int) -> None:
    array = np.random.default_rng(1).integers(0, 99, (1, 7, 5, 4)).astype(dtype)
    asked = []

    def blocks() -> Iterator[Block]:
        asked.append(1)
        return blocks_of(array)

    statistic = Percentiles(WANTED, dtype)
    statistic.measure(blocks)
    assert len(asked) == statistic.passes == passes


def test_integers_beyond_float64_stay_exact() -> None:
    array = (np.arange(9, dtype=np.int64) + 2**62 + 1).reshape(1, 9, 1)
    low, middle, high = Percentiles((0.0, 50.0, 100.0), "int64").measure(lambda: blocks_of(array))
    assert (low, middle, high) == (2**62 + 1, 2**62 + 5, 2**62 + 9)
    moments = Moments().measure(lambda: blocks_of(array))
    assert (moments.minimum, moments.maximum) == (2**62 + 1, 2**62 + 9)


def test_the_widest_difference_does_not_overflow() -> None:
    for dtype in ("int8", "int16", "int32"):
        limits = np.iinfo(dtype)
        ends = np.array([[[limits.min, limits.max]]], dtype)
        assert measured(ends, wanted=(50.0,)) == [-0.5]


def test_nan_anywhere_is_the_answer_and_infinities_are_not() -> None:
    array = np.array([[[1, np.inf, 3, -np.inf, 2]]], np.float32)
    assert measured(array, wanted=(0.0, 25.0, 50.0, 75.0, 100.0)) == [-np.inf, 1, 2, 3, np.inf]
    array[0, 0, 1] = np.nan
    assert np.isnan(measured(array)).all()
    array[0, 0, 1] = np.copysign(np.nan, -1)
    assert np.isnan(measured(array)).all()


def test_negative_numbers_and_both_zeros_are_in_order() -> None:
    array = np.array([[[-0.0, 0.0, -1.5, 2.5, -np.finfo(np.float64).tiny]]])
    assert measured(array, wanted=(0.0, 25.0, 50.0, 75.0, 100.0)) == [-1.5, -np.finfo(np.float64).tiny, 0.0, 0.0, 2.5]
    (zero,) = Percentiles((50.0,), "float64").measure(lambda: blocks_of(array))
    assert not np.signbit(zero)


def test_moments_of_a_constant_volume_are_its_value_and_exactly_0() -> None:
    for value in (0.1, 1 / 3, 1e300, -7.0):
        array = np.full((1, 1000, 7), value)
        moments = Moments().measure(lambda array=array: blocks_of(array, planes=33))
        assert (moments.mean, moments.std, moments.count) == (value, 0.0, 7000)
