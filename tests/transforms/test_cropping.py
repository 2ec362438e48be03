"""The box of the foreground, exact percentiles, and padding."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray.errors import TransformError, UsageError
from mlarray.region import Region
from mlarray.streaming import plan
from mlarray.testing.transforms import Sample, TransformConformance, samples, source_of
from mlarray.transforms import Crop, Flip, Padding, Permute, ResampleToShape, Transform, Volume
from mlarray.transforms.cropping import Cut
from mlarray.transforms.quantiles import Percentiles
from mlarray.transforms.statistics import STATISTIC_BLOCK_ELEMENTS

from .references import grid, whole

BOX = ((2, 1), (1, 3), (3, 2))
"""Different margins everywhere."""


def scan(dtype: str = "i2") -> np.ndarray:
    """Values from 50 on in the box that BOX cuts out of (9, 10, 11); all around it is 1."""
    array = np.ones((1, 9, 10, 11), dtype)
    array[:, 2:8, 1:7, 3:9] = np.random.default_rng(1).integers(50, 100, (6, 6, 6))
    return array


def test_the_box_holds_every_voxel_above_the_5th_percentile_the_last_plane_included() -> None:
    array = scan()
    planned = plan(source_of(array, grid()), [Crop()])
    assert planned.attributes["box"] == BOX
    np.testing.assert_array_equal(planned.read_whole(), array[:, 2:8, 1:7, 3:9])
    assert planned.result.geometry == grid().cropped(Region((2, 1, 3), (8, 7, 9)))


def test_a_voxel_equal_to_the_percentile_is_background() -> None:
    array = np.zeros((1, 10, 10), "i2")
    array[0, 4, 3] = 1
    planned = plan(source_of(array), [Crop()])
    assert planned.result.shape == (1, 1)
    assert planned.attributes["box"] == ((4, 5), (3, 6))


def test_foreground_in_any_channel_counts() -> None:
    array = np.zeros((2, 8, 9), "f4")
    array[0, 2, 2] = array[1, 5, 7] = 5
    assert plan(source_of(array), [Crop()]).attributes["box"] == ((2, 2), (2, 1))


def test_a_given_box_is_used_and_nothing_is_measured() -> None:
    source = source_of(np.zeros((1, 10, 20, 30), "f4"), grid((4.0, 2.0, 1.0)))
    planned = plan(source, [Crop()], attributes={"box": [[2, 3], [1, 1], [4, 2]]})
    assert planned.result.shape == (5, 18, 24)
    assert planned.result.geometry is not None
    assert planned.result.geometry.origin == (-3 + 4 * 1.0, 5 + 1 * 2.0, 11 + 2 * 4.0)
    assert planned.source.reads == 0


@pytest.mark.parametrize(
    "box", [[[0, 0]], 7, "all", [[1, 2, 3]] * 3, [[5, 5], [0, 0], [0, 0]], [[-1, 0], [0, 0], [0, 0]]]
)
def test_a_box_that_leaves_nothing_is_refused(box: list[list[int]]) -> None:
    with pytest.raises(TransformError):
        plan(source_of(np.zeros((1, 10, 20, 30), "f4")), [Crop()], attributes={"box": box})


@pytest.mark.parametrize("value", [3.0, np.nan])
def test_a_volume_without_foreground_is_kept_whole_with_a_warning(value: float) -> None:
    array = np.full((1, 4, 5), value, "f4")
    with pytest.warns(UserWarning, match="Nothing is cropped"):
        planned = plan(source_of(array), [Crop()])
    assert planned.result.shape == (4, 5)


def test_axes_that_are_mirrored_and_exchanged_before_carry_the_box_along() -> None:
    array = scan()
    for chain in ([Flip("0|2")], [Permute("2|0|1")], [Permute("1|0|2"), Flip("1"), Permute("2|1|0")]):
        carried = whole(array, [*chain, Crop()], grid())
        expected = whole(array[:, 2:8, 1:7, 3:9], chain, grid().cropped(Region((2, 1, 3), (8, 7, 9))))
        np.testing.assert_array_equal(carried[0], expected[0])
        assert carried[1].geometry is not None
        assert expected[1].geometry is not None
        np.testing.assert_allclose(carried[1].geometry.affine, expected[1].geometry.affine, atol=1e-12)


@pytest.mark.parametrize("before", [ResampleToShape([4, 4, 4]), Padding([1] * 6), Crop()])
def test_a_box_after_a_change_of_the_grid_is_refused(before: Transform) -> None:
    with pytest.raises(TransformError, match=r"Stage 2 .*stored grid"):
        plan(source_of(scan()), [before, Crop()])


def test_without_measuring_the_box_is_unknown_and_the_case_is_loaded() -> None:
    planned = plan(source_of(scan()), [Crop()], patch_size=4, measure=False)
    assert planned.regime == "buffer"
    assert "box" in planned.verdict.reason
    with pytest.raises(TransformError, match="does not know its box"):
        planned.read(Region((0, 0, 0), (4, 4, 4)))


def test_a_crop_is_undone_by_repeating_the_border_voxels() -> None:
    array = scan()
    forward = plan(source_of(array, grid()), [Crop()])
    inner = np.random.default_rng(2).normal(size=(2, 6, 6, 6)).astype("f4")
    back = forward.inverse(source_of(inner), patch_size=4)
    expected = np.pad(inner, [(0, 0), *BOX], mode="edge")
    np.testing.assert_array_equal(back.read_whole(), expected)
    assert back.result.geometry == grid()
    for patch in back.grid:
        np.testing.assert_array_equal(back.read(patch), expected[(slice(None), *patch.slices)])


class TestCrop(TransformConformance):
    def transform(self) -> Transform:
        return Crop()

    def samples(self) -> list[Sample]:
        return [Sample(scan(dtype), grid()) for dtype in ("i2", "f4", "u1", "f8")]


# --- percentiles -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    sample=samples(nan=True, dtypes=["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]),
    percentiles=st.lists(st.floats(0, 100), min_size=1, max_size=4),
)
def test_percentiles_are_those_of_numpy(sample: Sample, percentiles: list[float]) -> None:
    array = sample.array
    blocks = [(part, None) for part in np.array_split(array, 3, axis=1)]
    measured = Percentiles(tuple(percentiles), array.dtype.str).measure(lambda: iter(blocks))
    with warnings.catch_warnings(action="ignore"):  # infinities
        expected = [np.percentile(array, percentile) for percentile in percentiles]
    if np.isfinite(array).all():
        # numpy interpolates float32 in float32, with the weight rounded before or after: one rounding of the step between two.
        np.testing.assert_allclose(measured, expected, rtol=2e-7 if array.dtype == "f4" else 1e-14, atol=1e-4)
    elif np.isnan(array).any():
        assert np.isnan(measured).all()


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_percentiles_at_a_rank_are_voxels_to_the_last_bit(dtype: str) -> None:
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype)
    raw = rng.integers(0, 256, (1, 11, 101 * kind.itemsize), dtype=np.uint8)
    array = (raw % 2 == 1) if dtype == "?" else raw.view(kind)
    array = np.where(np.isfinite(array), array, 0).astype(kind)
    ordered = np.sort(array.ravel())
    ranks = [0, 1, 55, 500, 1109, 1110]
    wanted = tuple(100 * rank / 1110 for rank in ranks)
    measured = Percentiles(wanted, kind.str).measure(lambda: iter([(array[:, :4], None), (array[:, 4:], None)]))
    for rank, value in zip(ranks, measured, strict=True):
        step = max(abs(float(ordered[min(rank + 1, 1110)]) - float(ordered[rank])), 1e-300)
        assert abs(float(value) - float(ordered[rank])) <= 1e-12 * step + 1e-15 * abs(float(ordered[rank])), (
            rank,
            value,
        )


def test_percentiles_count_only_what_the_mask_shows() -> None:
    array = np.arange(24, dtype="i4").reshape(1, 4, 6)
    mask = (array % 2).astype("u1") * 3
    (half,) = Percentiles((50.0,), "<i4", "MASK").measure(lambda: iter([(array, mask)]))
    assert half == 12.0


def test_the_box_of_a_volume_of_several_statistic_blocks_is_found() -> None:
    rows = 2 * STATISTIC_BLOCK_ELEMENTS // 4096 + 5
    array = np.zeros((1, rows, 4096), "u1")
    array[0, rows - 3, 17] = array[0, 9, 4000] = 2
    assert plan(source_of(array), [Crop()]).attributes["box"] == ((9, 2), (17, 95))


# --- padding ---------------------------------------------------------------------------------------------------------------


def test_padding_names_the_last_axis_first_and_keeps_voxels_in_place() -> None:
    array = np.random.default_rng(0).normal(size=(1, 5, 5, 5)).astype("f4")
    geometry = grid((4.0, 2.0, 1.0), (10.0, 20.0, 30.0))
    result, after = whole(array, [Padding([1, 0, 2, 0, 3, 0])], geometry)
    assert after.shape == (8, 7, 6)
    assert after.geometry is not None
    assert after.geometry.origin == (9.0, 16.0, 18.0)
    np.testing.assert_array_equal(result, np.pad(array, [(0, 0), (3, 0), (2, 0), (1, 0)]))
    _, other = whole(array, [Padding([0, 2, 0, 0, 0, 1])], geometry)
    assert other.shape == (6, 5, 7)
    assert other.geometry == geometry


@pytest.mark.parametrize(
    ("mode", "numpy_mode"),
    [("constant", "constant"), ("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")],
)
@pytest.mark.parametrize("dtype", ["i2", "f4", "u1", "?"])
def test_padding_is_that_of_numpy_in_every_mode_and_beyond_one_period(mode: str, numpy_mode: str, dtype: str) -> None:
    array = (np.random.default_rng(0).normal(size=(2, 3, 1, 4)) * 20).astype(dtype)
    result, _ = whole(array, [Padding([9, 3, 1, 2, 0, 7], mode)])
    expected = np.pad(array, [(0, 0), (0, 7), (1, 2), (9, 3)], mode=numpy_mode)  # type: ignore[call-overload]
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == array.dtype


def test_a_constant_is_truncated_and_saturated_in_integers() -> None:
    array = np.ones((1, 2), "u1")
    for mode, value in (("constant:7.9", 7), ("constant:-3", 0), ("constant:1e9", 255), ("constant:-0.5", 0)):
        assert whole(array, [Padding([1, 0], mode)])[0][0, 0] == value
    assert np.isnan(whole(array.astype("f4"), [Padding([1, 0], "constant:nan")])[0][0, 0])
    with pytest.raises(TransformError, match=r"Stage 1 .*NaN"):
        whole(array, [Padding([1, 0], "constant:nan")])


@pytest.mark.parametrize("padding", [[1], [1, -1], [0.5, 1], "12", None])
def test_odd_negative_and_broken_paddings_are_refused(padding: object) -> None:
    with pytest.raises(UsageError, match="padding"):
        Padding(padding)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["mirror", "constant:x", "constant:", "reflect:1", ""])
def test_modes_that_do_not_exist_are_refused(mode: str) -> None:
    with pytest.raises(UsageError, match="mode"):
        Padding([1, 1], mode)


def test_padding_of_more_axes_than_there_are_is_refused_and_zeros_are_ignored() -> None:
    assert Padding([1, 1, 0, 0, 0, 0]).outcome(Volume(1, (4, 5), np.dtype("f4"))).shape == (4, 7)
    with pytest.raises(TransformError, match="more axes"):
        Padding([1, 1, 0, 0, 2, 0]).outcome(Volume(1, (4, 5), np.dtype("f4")))


def test_a_patch_in_the_padding_reads_one_voxel() -> None:
    planned = plan(source_of(np.ones((1, 20, 20, 20), "f4")), [Padding([0, 0, 0, 0, 30, 0])], patch_size=8)
    target = Region((0, 0, 0), (8, 8, 8))
    assert planned.fold(target).size == 1
    assert not planned.read(target).any()


def test_padding_is_undone_by_cutting_it_off() -> None:
    array = np.random.default_rng(0).normal(size=(1, 5, 6, 7)).astype("f4")
    for mode in ("constant:9", "reflect", "replicate", "circular"):
        forward = plan(source_of(array, grid()), [Padding([1, 2, 3, 4, 5, 6], mode)])
        back = forward.inverse(source_of(forward.read_whole()))
        np.testing.assert_array_equal(back.read_whole(), array)
        assert back.result.geometry == grid()


def test_a_cut_needs_something_left() -> None:
    with pytest.raises(TransformError, match="leave nothing"):
        Cut((2, 0), (2, 0)).outcome(Volume(1, (4, 5), np.dtype("f4")))


class TestPaddingReflect(TransformConformance):
    def transform(self) -> Transform:
        return Padding([5, 3, 2, 0], "reflect")


class TestPaddingCircular(TransformConformance):
    def transform(self) -> Transform:
        return Padding([5, 3, 20, 0], "circular")


class TestPaddingReplicate(TransformConformance):
    def transform(self) -> Transform:
        return Padding([5, 3, 20, 0], "replicate")


class TestPaddingConstant(TransformConformance):
    def transform(self) -> Transform:
        return Padding([5, 3, 20, 0], "constant:-7.5")
