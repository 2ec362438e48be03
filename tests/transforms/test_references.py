"""Whole volumes against libraries that share no code with this one: ITK, SciPy and numpy. Each bound says where it comes from."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from scipy import ndimage, special, stats

from mlarray import transforms as T
from mlarray.geometry import Geometry
from mlarray.streaming import plan
from mlarray.testing.transforms import source_of
from mlarray.transforms import augmentations as A
from mlarray.transforms.augmentations.color import ColorTransform
from mlarray.transforms.canonical import Sampled

from .references import OBLIQUE, drawn, grid, image_of, whole

RNG = np.random.default_rng(17)
CT = (RNG.normal(size=(1, 9, 10, 11)) * 450).astype("f4")
MEMBERS = (RNG.normal(size=(5, 6, 7, 8)) * 20).astype("f4")
LABELS = RNG.integers(0, 4, (5, 6, 7, 8)).astype("u1")
MASK = (RNG.random((1, 9, 10, 11)) < 0.3).astype("u1")

ROUNDING = float(np.finfo("f4").eps) / 2
"""Of one operation in float32, as a share of its result."""
PEAK = float(np.abs(CT).max())


def close(ours: Any, theirs: Any, *, operations: int, size: float = 1.0) -> None:
    """Assert that values differ by at most so many roundings in float32 of numbers of a size."""
    np.testing.assert_allclose(np.asarray(ours, "f8"), theirs, rtol=0, atol=operations * ROUNDING * size)


# --- the grid --------------------------------------------------------------------------------------------------------------


def oriented_by_itk(image: sitk.Image, result: np.ndarray, geometry: Geometry | None) -> None:
    """Assert the same voxels, and the same origin, spacing and direction: to the rounding of float64 products."""
    assert geometry is not None
    np.testing.assert_array_equal(result[0], sitk.GetArrayFromImage(image))
    np.testing.assert_allclose(geometry.spacing[::-1], image.GetSpacing(), rtol=1e-14)
    np.testing.assert_allclose(geometry.origin, image.GetOrigin(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(geometry.direction[:, ::-1].ravel(), image.GetDirection(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("axes", [axes for n in (1, 2, 3) for axes in itertools.combinations(range(3), n)])
def test_flips_are_those_of_itk(axes: tuple[int, ...]) -> None:
    geometry = grid(direction_xyz=OBLIQUE)
    result, after = whole(CT, [T.Flip(axes)], geometry)
    # Not about the origin: ITK's other meaning mirrors the world.
    image = sitk.Flip(image_of(CT[0], geometry), [2 - axis in axes for axis in range(3)], False)
    oriented_by_itk(image, result, after.geometry)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_permutations_are_those_of_itk(order: tuple[int, ...]) -> None:
    geometry = grid(direction_xyz=OBLIQUE)
    result, after = whole(CT, [T.Permute(order)], geometry)
    image = sitk.PermuteAxes(image_of(CT[0], geometry), [2 - axis for axis in order[::-1]])
    oriented_by_itk(image, result, after.geometry)


def test_canonical_is_what_itk_calls_ras_in_all_48_orientations() -> None:
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((-1.0, 1.0), repeat=3):
            geometry = grid(direction_xyz=np.eye(3)[:, order] * signs)
            result, after = whole(CT, [T.Canonical()], geometry)
            # ITK names where an axis comes from, direction diag(-1, -1, 1) is where it runs to: R A S.
            oriented_by_itk(sitk.DICOMOrient(image_of(CT[0], geometry), "RAS"), result, after.geometry)


def test_the_box_is_that_of_scipy() -> None:
    for seed in range(5):
        array = ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=(9, 14, 12)), 2)
        array = np.where(array > np.quantile(array, 0.97), array, 0)[None].astype("f4")
        result, _ = whole(array, [T.Crop()])
        (box,) = ndimage.find_objects((array[0] > np.percentile(array, 5)).astype("i4"))
        np.testing.assert_array_equal(result[0], array[0][box], strict=True)


# --- sampling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 20, 11), (18, 7, 33), (9, 10, 40), (2, 3, 4), (27, 30, 33)])
def test_rescaling_is_the_zoom_of_scipy_up_to_the_border(shape: tuple[int, ...]) -> None:
    """Three blends of up to three roundings each in float32; SciPy works in float64 and clamps at the border as we do."""
    factors = np.array(shape) / CT.shape[1:]
    theirs = ndimage.zoom(CT[0].astype("f8"), factors, order=1, mode="nearest", grid_mode=True)
    result, _ = whole(CT, [T.ResampleToShape(shape)])
    close(result[0], theirs, operations=9, size=PEAK)
    exact, _ = whole(CT.astype("f8"), [T.ResampleToShape(shape)])
    np.testing.assert_allclose(exact[0], theirs, rtol=0, atol=1e-12 * PEAK)  # coordinates to 1e-14 of 40 voxels


@pytest.mark.parametrize(
    "augmentation",
    [A.Rotate(10, 80), A.Rotate(-5, 5), A.Scale(0.7), A.Translate(-25, 25), A.Translate(-2, 2)],
    ids=repr,
)
@pytest.mark.parametrize("seed", range(3))
def test_copies_and_oblique_volumes_are_those_of_scipy_beyond_the_border_too(
    augmentation: A.Augmentation, seed: int
) -> None:
    """Reflection about the border voxels is SciPy's ``mirror``; nine roundings of float32, coordinates to about 1e-13."""
    geometry = grid(direction_xyz=OBLIQUE)
    (transform,) = drawn(augmentation, CT, geometry, seed=seed)
    matrix, offset = (
        (np.array(transform.placed.matrix), transform.placed.offset)
        if isinstance(transform, Sampled)
        else (np.diag(transform.placed.step), transform.placed.offset)  # type: ignore[attr-defined]
    )
    result, _ = whole(CT, [transform], geometry)
    theirs = ndimage.affine_transform(CT[0].astype("f8"), matrix, offset, order=1, mode="mirror")
    close(result[0], theirs, operations=9, size=PEAK)


def test_an_oblique_volume_in_canonical_orientation_is_that_of_scipy_beyond_the_border_too() -> None:
    geometry = grid(direction_xyz=OBLIQUE)
    result, after = whole(CT, [T.Canonical()], geometry)
    assert after.geometry is not None
    index = np.linalg.inv(geometry.affine) @ after.geometry.affine
    theirs = ndimage.affine_transform(
        CT[0].astype("f8"), index[:-1, :-1], index[:-1, -1], result.shape[1:], order=1, mode="mirror"
    )
    close(result[0], theirs, operations=9, size=PEAK)


# --- values ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u2", "i4"])
def test_statistics_are_those_of_itk(dtype: str) -> None:
    """Sums of a thousand float64 values in another order: 1e-12 of the peak. ITK's deviation has n - 1, too."""
    array = (CT + 2000).astype(dtype)
    found = plan(source_of(array), [T.Statistics()]).attributes
    theirs = sitk.StatisticsImageFilter()
    theirs.Execute(sitk.GetImageFromArray(array[0].astype("f8")))
    assert (found["ImageMin"], found["ImageMax"]) == (theirs.GetMinimum(), theirs.GetMaximum())
    assert found["ImageMean"] == pytest.approx(theirs.GetMean(), rel=1e-12)
    assert found["ImageStd"] == pytest.approx(theirs.GetSigma(), rel=1e-12)


def test_standardize_and_normalize_are_the_filters_of_itk() -> None:
    """Two to four roundings in float32, of differences up to twice the peak; ITK divides float64 numbers."""
    image = sitk.GetImageFromArray(CT[0].astype("f8"))
    std = float(CT.std(ddof=1))
    close(
        whole(CT, [T.Standardize()])[0][0],
        sitk.GetArrayFromImage(sitk.Normalize(image)),
        operations=4,
        size=2 * PEAK / std,
    )
    normalized = sitk.GetArrayFromImage(sitk.RescaleIntensity(image, -1, 1))
    close(whole(CT, [T.Normalize()])[0][0], normalized, operations=4, size=2)


def test_bounds_are_those_of_numpy_and_itk() -> None:
    """No arithmetic but the percentile's: the values are the same to the last bit."""
    np.testing.assert_array_equal(
        whole(CT, [T.Clip(-200, 400)])[0][0],
        sitk.GetArrayFromImage(sitk.Clamp(sitk.GetImageFromArray(CT[0]), lowerBound=-200, upperBound=400)),
    )
    bounds = np.percentile(CT, 0.5), np.percentile(CT, 99.5)  # for numbers, not arrays, numpy stays in float32
    np.testing.assert_array_equal(whole(CT, [T.Clip("percentile:0.5", "percentile:99.5")])[0], np.clip(CT, *bounds))
    inside = np.percentile(CT[MASK != 0], 5), np.percentile(CT[MASK != 0], 95)
    clip = T.Clip("percentile:5", "percentile:95", mask="SEG")
    masked = plan(source_of(CT), [clip], groups={"SEG": source_of(MASK)}).read_whole()
    np.testing.assert_array_equal(masked, np.clip(CT, *inside))


def test_a_mask_is_that_of_itk() -> None:
    ours = plan(source_of(CT), [T.Mask("SEG", -7)], groups={"SEG": source_of(MASK)}).read_whole()
    theirs = sitk.Mask(sitk.GetImageFromArray(CT[0]), sitk.GetImageFromArray(MASK[0]), outsideValue=-7)
    np.testing.assert_array_equal(ours[0], sitk.GetArrayFromImage(theirs), strict=True)


@pytest.mark.parametrize("radius", [1, 2, 4])
def test_dilation_is_that_of_itk(radius: int) -> None:
    theirs = sitk.BinaryDilate(sitk.GetImageFromArray(MASK[0]), [radius] * 3, sitk.sitkBox, 0, 1)
    np.testing.assert_array_equal(whole(MASK, [T.Dilate(radius)])[0][0], sitk.GetArrayFromImage(theirs), strict=True)


def test_differences_are_those_of_numpy_and_their_steepness_that_of_scipy() -> None:
    """Differences are one operation, the same in numpy; steepness has about ten roundings of numbers up to 1."""
    apart, _ = whole(CT, [T.Gradient(per_dim=True)])
    diffs = np.stack([np.diff(CT[0], axis=axis, append=np.take(CT[0], [-1], axis=axis)) for axis in range(3)])
    np.testing.assert_array_equal(apart, diffs, strict=True)
    smooth = CT / np.float32(450)
    diffs = np.stack([np.diff(smooth[0], axis=axis, append=np.take(smooth[0], [-1], axis=axis)) for axis in range(3)])
    steepness = np.linalg.norm(special.expit(3.0 * diffs.astype("f8")), axis=0)
    close(whole(smooth, [T.Gradient()])[0][0], steepness, operations=20)


# --- channels and labels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_reductions_are_those_of_numpy_and_scipy(axis: int) -> None:
    """A sum of up to 8 terms has as many roundings; softmax adds an exponential of a difference up to 200, exact to 1."""
    np.testing.assert_array_equal(whole(MEMBERS, [T.Argmax(axis)])[0], MEMBERS.argmax(axis=axis, keepdims=True))
    total = MEMBERS.astype("f8").sum(axis=axis, keepdims=True)
    close(whole(MEMBERS, [T.Sum(axis)])[0], total, operations=8, size=8 * float(np.abs(MEMBERS).max()))
    counts = LABELS.astype("i8").sum(axis=axis, keepdims=True)
    np.testing.assert_array_equal(whole(LABELS.astype("i4"), [T.Sum(axis)])[0], counts)
    close(whole(MEMBERS, [T.Softmax(axis)])[0], special.softmax(MEMBERS.astype("f8"), axis=axis), operations=200)


def test_the_spread_of_members_is_that_of_numpy() -> None:
    """Computed in float64, rounded once to float32."""
    wide = MEMBERS.astype("f8")
    np.testing.assert_allclose(whole(MEMBERS, [T.Variance()])[0][0], wide.var(axis=0, ddof=1), rtol=2 * ROUNDING)
    np.testing.assert_allclose(
        whole(MEMBERS, [T.StandardDeviation()])[0][0], wide.std(axis=0, ddof=1), rtol=2 * ROUNDING
    )


def test_disagreement_is_the_complement_of_the_mode_of_scipy() -> None:
    """Two roundings in float32."""
    close(whole(LABELS, [T.SegmentationDisagreement()])[0][0], 1 - stats.mode(LABELS).count / len(LABELS), operations=2)
    voting = np.where(LABELS == 0, np.nan, LABELS.astype("f8"))
    count = stats.mode(voting, nan_policy="omit").count
    voters = (LABELS != 0).sum(axis=0)
    expected = np.where(voters == 0, 0, 1 - count / np.maximum(voters, 1))
    ours, _ = whole(LABELS, [T.SegmentationDisagreement(ignore_background=True)])
    close(ours[0], expected, operations=2)


def test_labels_are_those_of_numpy_and_itk() -> None:
    labels = LABELS[:1]
    np.testing.assert_array_equal(whole(labels, [T.OneHot(4)])[0], np.moveaxis(np.eye(4, dtype="f4")[labels[0]], -1, 0))
    changed = sitk.ChangeLabel(sitk.GetImageFromArray(labels[0]), {1: 2, 3: 1, 2: 0})
    np.testing.assert_array_equal(
        whole(labels, [T.SelectLabel(["(1,2)", "(3,1)"])])[0][0], sitk.GetArrayFromImage(changed), strict=True
    )
    np.testing.assert_array_equal(whole(labels, [T.FlatLabel([1, 3])])[0], np.isin(labels, [1, 3]).astype("u1"))


def test_norms_and_colours_are_those_of_linear_algebra() -> None:
    """A norm of 8 numbers is summed in float64; a colour is three products and three sums in float32."""
    np.testing.assert_allclose(
        whole(MEMBERS, [T.Norm()])[0], np.linalg.norm(MEMBERS.astype("f8"), axis=-1), rtol=2 * ROUNDING
    )
    matrix = RNG.normal(size=(3, 4))
    colours = MEMBERS[:3]
    expected = np.einsum("ij,j...->i...", matrix[:, :3], colours.astype("f8")) + matrix[:, 3].reshape(3, 1, 1, 1)
    size = 3 * float(np.abs(matrix).max() * np.abs(colours).max())
    close(whole(colours, [ColorTransform(matrix.tolist())])[0], expected, operations=7, size=size)
