"""Values by hand for casts, bounds and common scales, and the errors of wrong arguments."""

import pickle
from typing import Any

import numpy as np
import pytest

from mlarray import transforms as T
from mlarray.errors import MLArrayError, TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.streaming import Plan, plan
from mlarray.testing.transforms import assert_identical, source_of


def planned(array: Any, *chain: T.Transform, dtype: str | None = None, **more: Any) -> Plan:
    array = np.asarray(array, dtype)
    groups = {name: source_of(np.asarray(one)) for name, one in more.pop("groups", {}).items()}
    return plan(source_of(array), chain, groups=groups, **more)


def whole(array: Any, *chain: T.Transform, dtype: str | None = None, **more: Any) -> NDArray:
    return planned(array, *chain, dtype=dtype, **more).read_whole()


def line(values: Any, dtype: str) -> NDArray:
    return np.asarray(values, dtype).reshape(1, 1, -1)


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("dtype", "values", "target", "expected"),
    [
        ("float32", [1.9, -1.9, 2.5, -0.4], "int16", [1, -1, 2, 0]),
        ("float32", [1e9, -1e9, INF, -INF], "int16", [32767, -32768, 32767, -32768]),
        ("float64", [1e30, -1e30], "int64", [2**63 - 1, -(2**63)]),
        ("float16", [60000, -3], "uint8", [255, 0]),
        ("float16", [60000, -INF], "int64", [60000, -(2**63)]),
        ("int16", [300, -5, 17], "uint8", [255, 0, 17]),
        ("uint64", [2**64 - 1, 3], "int64", [2**63 - 1, 3]),
        ("int64", [-1, 2**40], "uint32", [0, 2**32 - 1]),
        ("int8", [-128, 127], "uint64", [0, 127]),
        ("float32", [0.0, -0.0, 0.25, NAN], "bool", [False, False, True, True]),
        ("bool", [True, False], "float16", [1.0, 0.0]),
        ("float64", [1e6, 1.0], "float16", [INF, 1.0]),
        ("uint8", [200, 3], "float32", [200.0, 3.0]),
    ],
)
def test_casts_truncate_and_saturate(dtype: str, values: list[float], target: str, expected: list[float]) -> None:
    assert_identical(whole(line(values, dtype), T.TensorCast(target)), line(expected, target))


@pytest.mark.filterwarnings("ignore:.*voxels are not finite")
def test_nan_for_an_integer_is_an_error_that_names_the_stage_and_the_case() -> None:
    with pytest.raises(TransformError, match=r"Stage 2 \(TensorCast\), case 'A7': NaN cannot become int16"):
        whole(line([1, NAN], "float32"), T.Statistics(), T.TensorCast("int16"), case="A7")


def test_a_cast_notes_the_type_and_its_inverse_rounds_to_it() -> None:
    cast = planned(line([1, 2, 3], "int16"), T.TensorCast("float32"))
    assert cast.attributes["dtype"] == "int16"
    back = cast.inverse(source_of(line([0.5, 1.5, 1e9], "float32")))
    assert_identical(back.read_whole(), line([0, 2, 32767], "int16"))
    assert "dtype" not in back.attributes
    kept = planned(line([1, 2, 3], "int16"), T.TensorCast("float32", inverse=False))
    assert kept.inverse(source_of(line([0.5, 1.5, 3], "float32"))).result.dtype == np.float32


@pytest.mark.parametrize(
    ("target", "stored", "kept"),
    [
        ("float32", "uint8 int8 int16 uint16 float16 bool float32", True),
        ("float32", "int32 uint32 int64 uint64 float64", False),
        ("float64", "uint8 int16 int32 uint32 float32 float64", True),
        ("float64", "int64 uint64", False),
        ("float16", "uint8 float16", False),
        ("int32", "uint8 int32", False),
    ],
)
def test_a_cast_preserves_statistics_where_it_holds_every_value(target: str, stored: str, kept: bool) -> None:
    for name in stored.split():
        assert T.TensorCast(target).locality(T.Volume(1, (4, 4), np.dtype(name))).preserves_statistics is kept, name


@pytest.mark.parametrize(
    ("dtype", "values", "clip", "expected"),
    [
        ("float32", [-5, 3, 50], T.Clip(-1, 10.5), [-1, 3, 10.5]),
        ("int16", [-5, 0, 10, 11, 50], T.Clip(-0.5, 10.7), [0, 0, 10, 10, 10]),
        ("uint8", [0, 7, 255], T.Clip(-1024, 1024), [0, 7, 255]),
        ("int8", [-128, 127], T.Clip(-INF, 5), [-128, 5]),
        ("float16", [-60000, 3, INF], T.Clip(-1e6, 1e6), [-60000, 3, 65504]),
        ("float32", [NAN, -3, 3], T.Clip(0, 1), [NAN, 0, 1]),
        ("float32", [-0.0, -3, 3], T.Clip(0, 1), [0, 0, 1]),
        ("float32", [-0.0, -3, 3], T.Clip(-5, 0), [0, -3, 0]),
        ("float32", [-0.0, -3, 3], T.Clip(-5, 1), [-0.0, -3, 1]),
        ("float32", [1, 2, 3], T.Clip(NAN, 2), [1, 2, 2]),
        ("bool", [False, True], T.Clip(0.5, 7), [True, True]),
        ("bool", [False, True], T.Clip(-3, 0.5), [False, False]),
        ("float32", [200, 300], T.Clip("min", 100), [100, 100]),
        ("float32", [100, 300], T.Clip(500, "max"), [300, 300]),
        ("int64", [2**62 + 1, 2**62 + 3], T.Clip("min", "max", save_clip_max=True), [2**62 + 1, 2**62 + 3]),
        ("int32", [0, 10, 20, 30, 1000], T.Clip("percentile:25", "percentile:75"), [10, 10, 20, 30, 30]),
        ("int32", [0, 1, 2, 9], T.Clip("percentile:50", "percentile:50"), [1, 1, 1, 1]),
    ],
)
def test_values_are_clipped(dtype: str, values: list[float], clip: T.Transform, expected: list[float]) -> None:
    assert_identical(whole(line(values, dtype), clip), line(expected, dtype))


def test_percentile_bounds_are_saved_as_they_were_used() -> None:
    clip = T.Clip("min", "percentile:90", save_clip_min=True, save_clip_max=True)
    ramp = np.arange(100.0).reshape(1, 10, 10)
    bounds = planned(ramp, clip)
    assert (bounds.attributes["Min"], bounds.attributes["Max"]) == (0.0, np.percentile(ramp, 90))
    assert bounds.read_whole().max() == pytest.approx(89.1, abs=1e-13)
    whole_numbers = planned(ramp, clip, dtype="int16")
    assert (whole_numbers.attributes["Max"], whole_numbers.read_whole().max()) == (89.0, 89)


def test_bounds_within_a_mask_clip_everywhere() -> None:
    values, mask = line([1, 5, 7, 100], "int16"), line([0, 3, 1, 0], "uint8")
    assert_identical(whole(values, T.Clip("min", "max", mask="SEG"), groups={"SEG": mask}), line([5, 5, 7, 7], "int16"))
    with pytest.raises(TransformError, match=r"Stage 1 \(Clip\).* has no group 'SEG'"):
        whole(values, T.Clip(mask="SEG"))
    with pytest.raises(TransformError, match=r"Stage 1 \(Clip\), case 'A': Group 'SEG' is 0 everywhere"):
        whole(values, T.Clip("min", "max", mask="SEG"), groups={"SEG": mask * 0}, case="A")
    with pytest.raises(TransformError, match="has the shape"):
        whole(values, T.Clip(mask="SEG"), groups={"SEG": mask[..., :3]})


def test_sixteen_values_are_normalized_as_in_the_formula() -> None:
    ramp = np.arange(16).reshape(1, 4, 4)
    for dtype, kind in (
        ("int16", "f4"),
        ("uint8", "f4"),
        ("float16", "f4"),
        ("float32", "f4"),
        ("float64", "f8"),
        ("int64", "f4"),
    ):
        out = planned(ramp, T.Normalize(), dtype=dtype)
        assert out.result.dtype == np.dtype(kind)
        np.testing.assert_allclose(out.read_whole(), 2 * ramp / 15 - 1, rtol=0, atol=6e-8)
        assert (out.attributes["Min"], out.attributes["Max"]) == (0.0, 15.0)


def test_only_the_chosen_channels_are_normalized() -> None:
    array = np.array([[[0, 4]], [[100, 300]], [[8, 8]]], "int16")
    out = whole(array, T.Normalize(channels=[0, 2], min_value=0, max_value=10))
    np.testing.assert_array_equal(out, np.array([[[0, 5]], [[100, 300]], [[10, 10]]], "float32"), strict=True)
    with pytest.raises(TransformError, match=r"Stage 1 \(Normalize\).*has 3, counted from 0"):
        planned(array, T.Normalize(channels=[3]))


def test_a_constant_volume_becomes_the_lower_end_or_0_with_a_warning_that_names_the_case() -> None:
    flat = np.full((2, 3, 4), 7, "uint8")
    with pytest.warns(UserWarning, match=r"Case 'P1' is constant: all values are 7; Normalize makes them -1"):
        np.testing.assert_array_equal(
            whole(flat, T.Normalize(), case="P1"), np.full((2, 3, 4), -1, "float32"), strict=True
        )
    with pytest.warns(UserWarning, match=r"Case 'P1' is constant: .*Standardize divides by 1"):
        np.testing.assert_array_equal(
            whole(flat, T.Standardize(), case="P1"), np.zeros((2, 3, 4), "float32"), strict=True
        )
    with pytest.warns(UserWarning, match="is constant"):
        np.testing.assert_array_equal(
            whole(np.full((1, 999, 3), 0.1), T.Standardize()), np.zeros((1, 999, 3)), strict=True
        )
    array = np.concatenate([flat, flat + np.arange(4, dtype="uint8")])
    with pytest.warns(UserWarning, match="is constant"):
        out = whole(array, T.Normalize(channels=(0, 1)))
    np.testing.assert_array_equal(out[:2], -1)
    np.testing.assert_array_equal(out[2:], array[2:])


def test_nan_makes_all_of_a_normalized_volume_nan_with_one_warning() -> None:
    array = np.arange(24, dtype="float32").reshape(1, 2, 3, 4)
    array[0, 1, 2, 2:] = NAN, INF
    for transform in (T.Normalize(), T.Standardize()):
        out = planned(array, transform, patch_size=(1, 3, 4), case="A7")
        with pytest.warns(UserWarning, match=r"2 of 24 voxels are not finite \(1 NaN and 1 infinite\)") as told:
            patches = [out.read(region) for region in out.grid]
        assert np.isnan(patches).all()
        assert [str(one.message).split(":")[0] for one in told] == [f"Stage 1 ({transform.name}), case 'A7'"]
        assert told[0].filename == __file__


def test_standardized_values_have_the_deviation_of_n_minus_1() -> None:
    values = line([2, 4, 4, 4, 5, 5, 7, 9], "int16")
    out = planned(values, T.Standardize())
    assert (out.attributes["Mean"], out.attributes["Std"]) == (5.0, pytest.approx(np.sqrt(32 / 7), abs=1e-15))
    np.testing.assert_allclose(out.read_whole(), (values - 5) / np.sqrt(32 / 7), rtol=0, atol=2e-7)
    assert out.result.dtype == np.float32


def test_given_values_are_for_all_channels_or_for_each() -> None:
    array = np.array([[[0, 10]], [[100, 300]]], "int16")
    np.testing.assert_array_equal(whole(array, T.Standardize(mean=10, std=[2])), [[[-5, 0]], [[45, 145]]])
    np.testing.assert_array_equal(whole(array, T.Standardize(mean=[5, 200], std=[5, 50])), [[[-1, 1]], [[-2, 2]]])
    only_std = planned(array, T.Standardize(std=[2.0]))
    assert only_std.attributes["Mean"] == 102.5
    with pytest.raises(TransformError, match=r"3 values for mean, the array 2 channels"):
        planned(array, T.Standardize(mean=[1, 2, 3]))


def test_a_masked_statistic_maps_every_voxel() -> None:
    values, mask = line([1, 3, 100, 200], "float32"), line([5, 1, 0, 0], "uint8")
    out = planned(values, T.Standardize(mask="SEG"), groups={"SEG": mask})
    assert (out.attributes["Mean"], out.attributes["Std"]) == (2.0, np.sqrt(2))
    np.testing.assert_allclose(out.read_whole(), (values - 2) / np.sqrt(2), rtol=1e-6)


def test_a_lazy_stage_leaves_its_statistic_for_the_next_one_and_no_further() -> None:
    values = line([0, 50, 100], "float32")
    chain = (T.Normalize(lazy=True), T.Clip(0, 50), T.Normalize())
    np.testing.assert_array_equal(whole(values, *chain), line([-1, 0, 0], "float32"))
    # The third measures its own input, -1 to 0.
    np.testing.assert_array_equal(whole(values, *chain, T.Normalize()), line([-1, 1, 1], "float32"))
    np.testing.assert_array_equal(
        whole(values, T.Standardize(lazy=True), T.UnNormalize(-1, 1), T.Standardize()),
        line((values - 50) / 50, "float32"),
    )
    assert_identical(whole(values, T.Normalize(lazy=True)), values)


def test_each_stage_measures_its_own_input() -> None:
    values = line([0, 50, 100], "float32")
    out = planned(values, T.Normalize(), T.Clip(0, 5), T.Normalize())
    np.testing.assert_array_equal(out.read_whole(), line([-1, -1, 1], "float32"))
    assert out.attributes.stacks["Min"] == (0.0, 0.0)
    stale = planned(values, T.Normalize(), attributes={"Min": 7.0, "Max": 8.0})
    np.testing.assert_array_equal(stale.read_whole(), line([-1, 0, 1], "float32"))


def test_saved_bounds_are_what_the_next_normalize_takes() -> None:
    values = line([10, 50, 90], "float32")
    saving = T.Clip(0, 100, save_clip_min=True, save_clip_max=True)
    np.testing.assert_array_equal(whole(values, saving, T.Normalize(min_value=0)), line([0.1, 0.5, 0.9], "float32"))
    half = planned(values, T.Clip(0, 80, save_clip_min=True), T.Normalize(min_value=0))
    np.testing.assert_array_equal(half.read_whole(), line([0.125, 0.625, 1], "float32"))
    assert half.attributes.stacks["Min"] == (0.0,)


def test_what_was_left_goes_along_with_the_attributes_to_another_plan() -> None:
    case = planned(line([0, 50, 100], "float32"), T.Standardize(lazy=True))
    attributes = {key: case.attributes[key] for key in case.attributes}
    patch = planned(line([50, 100], "float32"), T.Standardize(), attributes=attributes)
    np.testing.assert_array_equal(patch.read_whole(), line([0, 1], "float32"))


@pytest.mark.parametrize(
    "chain",
    [
        [T.Normalize(min_value=0, max_value=5)],
        [T.Standardize()],
        [T.Standardize(mean=[3], std=[9])],
        [T.Normalize(lazy=True), T.Normalize(), T.Standardize(), T.Normalize()],
        [T.Clip("min", "max", save_clip_min=True), T.Normalize()],
    ],
    ids=repr,
)
def test_the_inverse_leads_back_to_a_few_roundings(chain: list[T.Transform]) -> None:
    array = np.random.default_rng(3).normal(100, 50, (1, 5, 6, 7))
    forward = planned(array, *chain)
    back = forward.inverse(source_of(forward.read_whole()), patch_size=3)
    np.testing.assert_allclose(back.read_whole(), array, rtol=1e-13, atol=1e-11)
    assert back.attributes.get("Std") is None
    for patch in back.grid:
        assert_identical(back.read(patch), back.read_whole()[(slice(None), *patch.slices)])


def test_a_constant_volume_comes_back() -> None:
    flat = np.full((1, 3, 4), 7.0, "float32")
    for transform in (T.Normalize(), T.Standardize()):
        forward = planned(flat, transform)
        with pytest.warns(UserWarning, match="is constant"):
            forward.measure()
        assert_identical(forward.inverse(source_of(forward.read_whole())).read_whole(), flat)


def test_fixed_scales() -> None:
    np.testing.assert_array_equal(
        whole(line([-1, 0, 1], "int8"), T.UnNormalize()), line([-1024, 1023.5, 3071], "float32")
    )
    np.testing.assert_array_equal(whole(line([10, 25], "uint8"), T.Percentage(50)), line([20, 50], "float32"))
    assert planned(line([1], "float64"), T.Percentage(50)).result.dtype == np.float64


def test_statistics_are_noted_and_values_stay() -> None:
    values = line([2, 4, 4, 4, 5, 5, 7, 9], "int16")
    out = planned(values, T.Statistics())
    assert_identical(out.read_whole(), values)
    noted = [out.attributes[key] for key in ("ImageMin", "ImageMax", "ImageMean", "ImageStd")]
    assert noted == [2.0, 9.0, 5.0, np.sqrt(32 / 7)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.TensorCast("bfloat16"), "bfloat16 has no numpy type; allowed are bool, int8"),
        (lambda: T.TensorCast("float"), "'float' is not a type"),
        (lambda: T.TensorCast("complex64"), "'complex64' is not a type"),
        (lambda: T.Clip(10, 10), "max_value above min_value, got 10 and 10"),
        (lambda: T.Clip("max", 3), "for min_value a number, 'min', or 'percentile:<p>'"),
        (lambda: T.Clip(0, "min"), "for max_value a number, 'max'"),
        (lambda: T.Clip(0, "percentile:101"), "p from 0 to 100; got 'percentile:101'"),
        (lambda: T.Clip("percentile:x"), "got 'percentile:x'"),
        (lambda: T.Clip(None), "got None"),
        (lambda: T.Normalize(min_value=1), "max_value above min_value, got 1 and 1"),
        (lambda: T.Normalize(min_value=-np.inf), "finite"),
        (lambda: T.Normalize(channels=[-1]), "integers from 0 on, got \\[-1\\]"),
        (lambda: T.Normalize(channels=[]), "got \\[\\]"),
        (lambda: T.Normalize(channels="0"), "got '0'"),
        (lambda: T.Standardize(std=[0.0]), "std finite numbers above 0"),
        (lambda: T.Standardize(mean=[]), "mean finite numbers, one or one per channel; got \\[\\]"),
        (lambda: T.Standardize(mean="3"), "got '3'"),
        (lambda: T.Percentage(0), "baseline other than 0, got 0"),
        (lambda: T.UnNormalize(0, NAN), "two finite numbers, got 0 and nan"),
        (lambda: T.HistogramMatching(""), "the name of a group, got ''"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


EACH = [
    *(T.TensorCast(), T.Clip(), T.Normalize(), T.Standardize(), T.Statistics(), T.UnNormalize(), T.Percentage(1)),
    *(T.HistogramMatching("B"), T.Argmax(), T.Softmax(), T.Sum(), T.OneHot(2), T.Variance(), T.StandardDeviation()),
    *(T.FlatLabel(), T.SelectLabel(["(1,2)"]), T.SegmentationDisagreement(), T.Mask("SEG"), T.Dilate(), T.Gradient()),
]


@pytest.mark.parametrize(
    "transform",
    EACH,
    ids=lambda transform: transform.name,
)
def test_complex_numbers_are_refused_by_name(transform: T.Transform) -> None:
    with pytest.raises(MLArrayError, match=rf"Stage 1 \({transform.name}\): It takes real numbers, not complex64"):
        planned(np.zeros((1, 3, 4), "complex64"), transform)


def test_plans_with_measured_and_announced_values_cross_process_borders() -> None:
    values = line([0, 50, 100], "float32")
    fresh = planned(values, T.Clip("percentile:10", "max", save_clip_min=True), T.Normalize(), T.Standardize(lazy=True))
    before = pickle.loads(pickle.dumps(fresh)).read_whole()
    fresh.measure()
    assert_identical(pickle.loads(pickle.dumps(fresh)).read_whole(), before)
