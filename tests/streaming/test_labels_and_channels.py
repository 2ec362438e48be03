"""Values by hand for labels, channels and neighbourhoods; SciPy as the independent reference of dilation."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import binary_dilation

from mlarray import transforms as T
from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.testing.transforms import Sample, assert_identical, samples, source_of

from .test_intensity import line, planned, whole

NAN = np.nan
COUNTS = "number_of_channels_per_model"


def column(values: Any, dtype: str) -> np.ndarray:
    """One voxel with a channel for each value."""
    return np.asarray(values, dtype).reshape(-1, 1, 1)


def test_argmax_takes_the_first_maximum_and_marks_labels() -> None:
    scores = np.array([[[1, 5]], [[3, 5]], [[3, 2]]], "float32")
    out = planned(scores, T.Argmax())
    np.testing.assert_array_equal(out.read_whole(), np.array([[[1, 0]]], "int64"), strict=True)
    assert out.result.is_label
    np.testing.assert_array_equal(whole(column([1, NAN, 3], "float32"), T.Argmax(-3)), [[[1]]])
    along_x = planned(scores, T.Argmax(2))
    np.testing.assert_array_equal(along_x.read_whole(), [[[1]], [[1]], [[0]]])
    assert not along_x.result.is_label


def test_softmax_is_stable_and_floats_integers() -> None:
    expected = np.exp([0.0, -1.0, -2.0]) / np.exp([0.0, -1.0, -2.0]).sum()
    for dtype in ("float32", "int16", "float16"):
        out = whole(column([1000, 999, 998], dtype), T.Softmax())
        assert out.dtype == np.float32
        np.testing.assert_allclose(out.ravel(), expected, rtol=2e-7)
    wide = whole(column([2**53 + 2, 2**53], "int64"), T.Softmax())
    np.testing.assert_allclose(wide.ravel(), [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))], rtol=2e-7)
    assert whole(column([1e5, 0], "float64"), T.Softmax()).dtype == np.float64
    np.testing.assert_allclose(whole(line([0, 0, 0, 0], "uint8"), T.Softmax(-1)), np.full((1, 1, 4), 0.25))


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("uint8", [200, 100], 255),
        ("int8", [-100, -100, 127], -73),
        ("bool", [False, True, True], True),
        ("int64", [2**63 - 1, 2**63 - 1, -(2**63)], 2**62 - 2 + 2**62),
        ("int64", [-(2**63), -1], -(2**63)),
        ("int64", [2**63 - 1, 1, -5], 2**63 - 5),
        ("uint64", [2**64 - 1, 1], 2**64 - 1),
        ("uint64", [2**63, 2**62, 7], 2**63 + 2**62 + 7),
        ("float32", [0.5, 0.25, -1], -0.25),
        ("float16", [60000, 60000, -60000], 60000),
    ],
)
def test_sums_are_exact_or_saturated(dtype: str, values: list[float], expected: float) -> None:
    assert_identical(whole(column(values, dtype), T.Sum()), column([expected], dtype))


def test_a_sum_of_models_is_plain_whatever_their_counts_are() -> None:
    models = np.array([[[1, 2]], [[0, 5]]], "uint8")
    summed = planned(models, T.Sum(), attributes={COUNTS: (3, 4)})
    np.testing.assert_array_equal(summed.read_whole(), np.array([[[1, 7]]], "uint8"), strict=True)


def test_a_sum_along_a_spatial_axis_is_one_thick_voxel_in_the_middle() -> None:
    geometry = Geometry.from_parts(spacing=(3, 2, 1), origin=(10, 20, 30))
    array = np.arange(24, dtype="int32").reshape(1, 2, 3, 4)
    out = planned(array, T.Sum(-1))
    np.testing.assert_array_equal(out.read_whole(), array.sum(-1, keepdims=True))
    with_place = Sample(array, geometry).prove([T.Sum(3)], 2)
    np.testing.assert_array_equal(with_place, array.sum(-1, keepdims=True))
    from mlarray.streaming import plan

    place = plan(source_of(array, geometry), [T.Sum(3)]).result.geometry
    assert place is not None
    assert place.spacing == (3, 2, 4)
    assert place.origin == geometry.world((0, 0, 1.5))


def test_sums_over_channels_do_not_depend_on_the_extent_of_the_patch() -> None:
    # With one voxel numpy would add 64 channels in eight interleaved sums, with many voxels one after the other.
    array = np.random.default_rng(5).normal(size=(64, 3, 4, 5)).astype("float32")
    for transform in (T.Sum(), T.Softmax(), T.Variance(), T.StandardDeviation()):
        Sample(array).prove([transform], 1)
        Sample(np.moveaxis(array[:, :1, :1], 0, -1)[0]).prove([T.Softmax(-1), T.Sum(-1)], 1)


def test_labels_become_channels_and_come_back() -> None:
    labels = line([0, 2, 1], "uint8")
    hot = planned(labels, T.OneHot(3))
    np.testing.assert_array_equal(
        hot.read_whole(), np.array([[[1, 0, 0]], [[0, 0, 1]], [[0, 1, 0]]], "float32"), strict=True
    )
    back = hot.inverse(source_of(np.array([[[0.4, 0, 0.3]], [[0.4, 0, 0.9]], [[0, 1, 0.2]]], "float32")))
    np.testing.assert_array_equal(back.read_whole(), np.array([[[0, 2, 1]]], "int64"), strict=True)
    with pytest.raises(TransformError, match="3 classes has as many channels, not 1"):
        hot.inverse(source_of(labels))
    for values, dtype in (([0, 3], "uint8"), ([-1], "int16"), ([0.5], "float32"), ([NAN], "float32")):
        with pytest.raises(TransformError, match=r"Stage 1 \(OneHot\): OneHot\(3\) got the label .*0 to 2"):
            whole(line(values, dtype), T.OneHot(3))
    with pytest.raises(TransformError, match="one channel of labels, not 2"):
        planned(column([0, 1], "uint8"), T.OneHot(2))


def test_models_are_merged_and_later_ones_win() -> None:
    models = np.array([[[1, 2, 0, 0]], [[0, 5, 3, 0]]], "uint8")
    merged = planned(models, T.MergeLabels(), attributes={COUNTS: [3, 4]})
    np.testing.assert_array_equal(merged.read_whole(), np.array([[[1, 7, 5, 0]]], "uint8"), strict=True)
    assert COUNTS not in merged.attributes
    assert merged.result.is_label
    three = np.array([[[1]], [[1]], [[2]]], "int16")
    np.testing.assert_array_equal(whole(three, T.MergeLabels(), attributes={COUNTS: (3, 4, 9)}), [[[7]]])


def test_models_that_cannot_be_merged_are_refused() -> None:
    models = np.array([[[1]], [[200]]], "uint8")
    with pytest.raises(TransformError, match=r"Stage 1 \(MergeLabels\): MergeLabels needs the attribute"):
        planned(models, T.MergeLabels())
    with pytest.raises(TransformError, match=r"is \(3,\); it needs a number from 1 on for each of the 2 channels"):
        planned(models, T.MergeLabels(), attributes={COUNTS: (3,)})
    with pytest.raises(TransformError, match=r"Label 299 does not fit uint8. Put TensorCast"):
        whole(models, T.MergeLabels(), attributes={COUNTS: (100, 201)})
    with pytest.raises(TransformError, match="Label 2 does not fit bool"):
        whole(models > 0, T.MergeLabels(), attributes={COUNTS: (2, 2)})
    widened = whole(models, T.TensorCast("int32"), T.MergeLabels(), attributes={COUNTS: (100, 201)})
    np.testing.assert_array_equal(widened, np.array([[[299]]], "int32"), strict=True)


def test_labels_are_flattened_and_selected() -> None:
    labels = line([0, 1, 2, 3, 250], "uint8")
    assert_identical(whole(labels, T.FlatLabel()), line([0, 1, 1, 1, 1], "uint8"))
    assert_identical(whole(labels, T.FlatLabel([])), line([0, 1, 1, 1, 1], "uint8"))
    assert_identical(whole(labels, T.FlatLabel([0, 3, 300, -6])), line([1, 0, 0, 1, 0], "uint8"))
    assert_identical(whole(line([-1, 0, 2], "float32"), T.FlatLabel()), line([0, 0, 1], "float32"))
    assert_identical(whole(line([-1, 0, np.inf], "float16"), T.FlatLabel([1e6, -1])), line([1, 0, 0], "float16"))
    swap = T.SelectLabel(["(1,2)", "(3,1)"])
    assert_identical(whole(labels, swap), line([0, 2, 0, 1, 0], "uint8"))
    assert_identical(whole(labels, T.SelectLabel([(1, 5), ("1", "6"), "( 250 , 7 )"])), line([0, 6, 0, 0, 7], "uint8"))
    with pytest.raises(TransformError, match="gives the label 300, which uint8 cannot hold"):
        planned(labels, T.SelectLabel(["(1,300)"]))


def test_the_spread_of_members() -> None:
    members = column([1, 2, 6], "int16")
    assert_identical(whole(members, T.Variance()), column([7], "float32"))
    assert_identical(whole(members, T.StandardDeviation()), column([np.sqrt(np.float64(7))], "float32"))
    for transform in (T.Variance(), T.StandardDeviation()):
        assert_identical(whole(line([3, 4], "int16"), transform), line([0, 0], "int16"))


def test_members_disagree_by_the_share_that_does_not_vote_for_the_winner() -> None:
    votes = np.array([[[1, 0, 0, 2]], [[1, 0, 3, 3]], [[2, 0, 4, 0]]], "uint8")
    one = np.float32(1)
    assert_identical(
        whole(votes, T.SegmentationDisagreement()),
        np.array(
            [[[one - np.float32(2) / np.float32(3), 0, one - one / np.float32(3), one - one / np.float32(3)]]],
            "float32",
        ),
    )
    assert_identical(
        whole(votes, T.SegmentationDisagreement(ignore_background=True)),
        np.array([[[one - np.float32(2) / np.float32(3), 0, 0.5, 0.5]]], "float32"),
    )
    assert_identical(whole(votes[:1], T.SegmentationDisagreement()), np.zeros((1, 1, 4), "float32"))
    assert_identical(whole(line([NAN, 1], "float32"), T.SegmentationDisagreement()), line([0, 0], "float32"))


def test_a_mask_keeps_what_is_inside() -> None:
    values, mask = line([10, 20, 30], "uint8"), line([0, 2, NAN], "float32")
    assert_identical(whole(values, T.Mask("SEG", 7), groups={"SEG": mask}), line([7, 20, 30], "uint8"))
    assert_identical(whole(values, T.Mask("SEG", -3.7), groups={"SEG": mask}), line([0, 20, 30], "uint8"))
    assert_identical(whole(values, T.Mask("SEG", 1e9), groups={"SEG": mask}), line([255, 20, 30], "uint8"))
    both = np.stack([values[0], values[0] + 1])
    np.testing.assert_array_equal(whole(both, T.Mask("SEG"), groups={"SEG": mask}), [[[0, 20, 30]], [[0, 21, 31]]])
    each = np.array([[[1, 0, 0]], [[0, 0, 1]]], "uint8")
    np.testing.assert_array_equal(whole(both, T.Mask("SEG"), groups={"SEG": each}), [[[10, 0, 0]], [[0, 0, 31]]])
    with pytest.raises(TransformError, match="'SEG' has 2 channels, the array 1"):
        whole(values, T.Mask("SEG"), groups={"SEG": each})
    with pytest.raises(TransformError, match=r"Stage 1 \(Mask\): NaN cannot become uint8"):
        planned(values, T.Mask("SEG", NAN))


def test_a_mask_that_is_a_file_is_opened_once_and_serves_every_patch() -> None:
    opened: list[str] = []
    mask = np.indices((4, 6)).sum(0, keepdims=True) % 2

    def opener(path: str) -> Any:
        opened.append(path)
        return source_of(mask)

    values = np.arange(1, 25).reshape(1, 4, 6)
    plan_of = planned(values, T.Mask("masks/roi.mha", -1), patch_size=2, opener=opener)
    for patch in plan_of.grid:
        cut = (slice(None), *patch.slices)
        np.testing.assert_array_equal(plan_of.read(patch), np.where(mask, values, -1)[cut])
    assert opened == ["masks/roi.mha"]
    with pytest.raises(TransformError, match=r"no group 'roi.mha'.*opener=mlarray.open_source"):
        whole(values, T.Mask("roi.mha"))
    with pytest.raises(TransformError, match=r"no group 'SEG'; known are none"):
        planned(values, T.Mask("SEG"), opener=opener).read_whole()


def test_a_mask_elsewhere_in_space_is_refused_and_one_without_geometry_is_not() -> None:
    from mlarray.streaming import plan

    values = np.ones((1, 3, 4), "uint8")
    here, there = (Geometry.from_parts(spacing=(1, 1), origin=(x, 0)) for x in (0, 5))
    for geometry in (here, None):
        mask = source_of(values, geometry)
        np.testing.assert_array_equal(
            plan(source_of(values, here), [T.Mask("M")], groups={"M": mask}).read_whole(), values
        )
    with pytest.raises(TransformError, match=r"Stage 1 \(Mask\): group 'M' lies elsewhere in space"):
        plan(source_of(values, here), [T.Mask("M")], groups={"M": source_of(values, there)}).read_whole()


@settings(max_examples=60, deadline=None)
@given(samples(), st.integers(1, 5))
def test_dilation_is_that_of_scipy(sample: Sample, radius: int) -> None:
    cube = np.ones((2 * radius + 1,) * (sample.array.ndim - 1), bool)
    for channel, out in zip(sample.array, whole(sample.array, T.Dilate(radius)), strict=True):
        expected = binary_dilation(channel > 0, cube)
        np.testing.assert_array_equal(out, expected.astype(channel.dtype), strict=True)


def test_dilation_by_0_leaves_values_and_foreground_becomes_1() -> None:
    labels = line([0, 0, 7, 0, -3, 0], "int16")
    assert_identical(whole(labels, T.Dilate(0)), labels)
    assert_identical(whole(labels, T.Dilate(1)), line([0, 1, 1, 1, 0, 0], "int16"))
    assert_identical(whole(labels, T.Dilate(100)), line([1] * 6, "int16"))
    with pytest.raises(TransformError, match="2 or 3 spatial axes, the array has 1"):
        planned(np.zeros((1, 5)), T.Dilate())


def test_differences_are_zero_on_the_last_plane_and_never_wrap() -> None:
    array = np.array([[[0, 10, 5], [200, 0, 255]]], "uint8")
    out = whole(array, T.Gradient(per_dim=True))
    expected = np.array([[[200, 0, 250], [0, 0, 0]], [[10, 0, 0], [0, 255, 0]]], "uint8")
    assert_identical(out, expected)
    assert_identical(whole(line([-128, 127, -128], "int8"), T.Gradient(per_dim=True))[1:], line([127, -128, 0], "int8"))
    ends = [-(2**63), 2**63 - 1, -1, 0]
    assert_identical(
        whole(line(ends, "int64"), T.Gradient(per_dim=True))[1:], line([2**63 - 1, -(2**63), 1, 0], "int64")
    )
    assert_identical(
        whole(line([2**64 - 1, 0, 2**64 - 2], "uint64"), T.Gradient(per_dim=True))[1:],
        line([0, 2**64 - 2, 0], "uint64"),
    )
    assert_identical(
        whole(line([True, False, True], "bool"), T.Gradient(per_dim=True))[1:], line([False, True, False], "bool")
    )
    two = whole(np.stack([array[0], array[0] // 5]), T.Gradient(per_dim=True))
    assert_identical(two[:2], expected)
    assert two.shape == (4, 2, 3)


def test_steepness_is_the_norm_of_logistic_differences() -> None:
    for dtype in ("uint8", "float32", "float64", "bool", "int64"):
        flat = whole(np.ones((1, 2, 3, 4), dtype), T.Gradient())
        assert flat.dtype == np.float32
        np.testing.assert_allclose(flat, np.sqrt(3) / 2, rtol=1e-7)
    array = np.array([[[1, 0], [3, 3]]])
    across, along = np.array([[2, 3], [0, 0]]), np.array([[-1, 0], [0, 0]])
    expected = np.sqrt(sum((1 / (1 + np.exp(-3.0 * d))) ** 2 for d in (across, along)))
    for dtype in ("uint8", "int64", "uint64", "float16", "float64"):
        np.testing.assert_allclose(whole(array, T.Gradient(), dtype=dtype)[0], expected, rtol=3e-7)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.Argmax("0"), "Argmax takes for dim an axis"),
        (lambda: T.Sum(1.0), "Sum takes for dim an axis .* got 1.0"),
        (lambda: T.OneHot(0), "integer from 1 on, got 0"),
        (lambda: T.FlatLabel("1,2"), "a list of numbers, got '1,2'"),
        (lambda: T.FlatLabel([None]), "got \\[None\\]"),
        (lambda: T.SelectLabel([]), "a list of '\\(old,new\\)', got \\[\\]"),
        (lambda: T.SelectLabel("(1,2)"), "got '\\(1,2\\)'"),
        (lambda: T.SelectLabel(["1->2"]), "two numbers, got '1->2'"),
        (lambda: T.SelectLabel(["(a,2)"]), "got '\\(a,2\\)'"),
        (lambda: T.SelectLabel(["(1,inf)"]), "got '\\(1,inf\\)'"),
        (lambda: T.Dilate(-1), "integer from 0 on; got -1"),
        (lambda: T.Dilate(1.5), "got 1.5"),
        (lambda: T.Mask(""), "the name of a group or a path, got ''"),
        (lambda: T.Mask("A", "0"), "value_outside a number, got '0'"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_an_axis_that_is_not_there_is_refused_by_the_stage() -> None:
    for transform in (T.Argmax(3), T.Softmax(-4), T.Sum(7)):
        with pytest.raises(
            TransformError, match=rf"Stage 1 \({transform.name}\): dim=.* is no axis of the array \[1, 3, 4\]"
        ):
            planned(np.zeros((1, 3, 4)), transform)


def test_empty_volumes_have_empty_results_or_an_answer() -> None:
    empty = np.zeros((2, 0, 4), "float32")
    for transform in (
        T.Clip("percentile:1"),
        T.Normalize(),
        T.Standardize(),
        T.Gradient(per_dim=True),
        T.Dilate(),
        T.Softmax(),
    ):
        assert whole(empty, transform).shape[1:] == (0, 4)
    for transform in (T.Variance(), T.SegmentationDisagreement(), T.Argmax()):
        with pytest.raises(TransformError, match=rf"Stage 1 \({transform.name}\): .*\[0, 3, 4\]"):
            planned(np.zeros((0, 3, 4)), transform)
