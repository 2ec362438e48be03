"""Histogram matching against ITK, which is the independent reference."""

import numpy as np
import pytest
import SimpleITK as sitk

from mlarray import transforms as T
from mlarray.errors import TransformError
from mlarray.sources.base import NDArray

from .test_intensity import line, planned, whole

FLOAT_SHARE_OF_RANGE = 1e-6
"""ITK accumulates in another order and keeps float32 values: measured differences are about 1e-7 of the reference's range."""
INTEGER_LEVELS = 3
"""ITK rounds mean and upper median of integer volumes to their type."""


def by_itk(source: NDArray, reference: NDArray) -> NDArray:
    matcher = sitk.HistogramMatchingImageFilter()
    matcher.SetNumberOfHistogramLevels(256)
    matcher.SetNumberOfMatchPoints(1)
    matcher.SetThresholdAtMeanIntensity(True)
    return sitk.GetArrayFromImage(matcher.Execute(sitk.GetImageFromArray(source), sitk.GetImageFromArray(reference)))


def volumes(dtype: str, seed: int) -> tuple[NDArray, NDArray]:
    rng = np.random.default_rng(seed)
    source = rng.gamma(2.0, 40.0, (9, 10, 11)) + 30 * (rng.random((9, 10, 11)) < 0.1)
    reference = rng.normal(500, 80, (7, 12, 8))
    return source.astype(dtype), reference.astype(dtype)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_are_those_of_itk(dtype: str, seed: int) -> None:
    source, reference = volumes(dtype, seed)
    out = whole(source[None], T.HistogramMatching("B"), groups={"B": reference[None]})
    assert out.dtype == source.dtype
    bound = FLOAT_SHARE_OF_RANGE * float(np.ptp(reference))
    np.testing.assert_allclose(out[0], by_itk(source, reference), rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_integers_are_within_a_few_levels_of_itk(dtype: str) -> None:
    source, reference = volumes(dtype, 7)
    out = whole(source[None], T.HistogramMatching("B"), groups={"B": reference[None]})
    assert out.dtype == source.dtype
    assert np.abs(out[0].astype(int) - by_itk(source, reference).astype(int)).max() <= INTEGER_LEVELS


def test_a_volume_matched_with_itself_stays_and_landmarks_meet() -> None:
    source, reference = volumes("float64", 1)
    np.testing.assert_allclose(
        whole(source[None], T.HistogramMatching("B"), groups={"B": source[None]})[0], source, rtol=1e-12
    )
    out = whole(source[None], T.HistogramMatching("B"), groups={"B": reference[None]})
    assert (out.min(), out.max()) == (reference.min(), reference.max())


@pytest.mark.filterwarnings("ignore:.*voxels are not finite")
def test_a_constant_volume_becomes_the_maximum_and_nan_spreads() -> None:
    reference = line([1, 2, 9], "float32")
    np.testing.assert_array_equal(
        whole(line([5, 5], "float32"), T.HistogramMatching("B"), groups={"B": reference}), line([9, 9], "float32")
    )
    assert np.isnan(whole(line([5, np.nan], "float32"), T.HistogramMatching("B"), groups={"B": reference})).all()
    with pytest.raises(TransformError, match="NaN cannot become int16"):
        whole(line([5, 6], "int16"), T.HistogramMatching("B"), groups={"B": reference * np.nan})


def test_what_cannot_be_matched_is_refused() -> None:
    with pytest.raises(TransformError, match="a scalar volume, not one of 2 channels"):
        planned(np.zeros((2, 3, 4)), T.HistogramMatching("B"))
    with pytest.raises(TransformError, match=r"Stage 1 \(HistogramMatching\): A7 has no group 'B'"):
        whole(np.zeros((1, 3, 4)), T.HistogramMatching("B"), case="A7")
    with pytest.raises(TransformError, match=r"Group 'B' has 2 channels; HistogramMatching takes one"):
        whole(line([5, 6], "int16"), T.HistogramMatching("B"), groups={"B": np.zeros((2, 3, 4))})
