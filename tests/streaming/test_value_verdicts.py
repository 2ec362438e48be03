"""The published verdicts on chains of value transforms, and what the extended profile makes of them."""

import numpy as np
import pytest

from mlarray import transforms as T
from mlarray.streaming import Regime, Rule, plan
from mlarray.testing.transforms import Sample
from mlarray.transforms.base import Transform

ARRAY = np.random.default_rng(0).normal(0, 300, (1, 24, 30, 36)).astype(np.float32)
LABELS = (np.random.default_rng(1).random((1, 24, 30, 36)) < 0.3).astype(np.uint8)
GROUPS = {"SEG": LABELS, "B": ARRAY * 2 + 7}
STATISTIC = Rule.STATISTIC_AFTER_CHANGE


def case(array: np.ndarray) -> Sample:
    return Sample(array, groups=GROUPS)


@pytest.mark.parametrize(
    ("chain", "patch_size", "rule", "stage"),
    [
        ([T.TensorCast("float32"), T.Clip(-200, 400)], 8, None, None),
        ([T.Clip(-200, 400), T.Standardize()], 8, STATISTIC, 1),
        ([T.Standardize(), T.Clip(-3, 3)], 8, None, None),
        ([T.Clip(-200, 400), T.Standardize(mean=[0], std=[30])], 8, None, None),
        ([T.Clip(-200, 400), T.Standardize(mean=[0])], 8, STATISTIC, 1),
        ([T.TensorCast("float32"), T.Standardize()], 8, None, None),
        ([T.TensorCast("float64"), T.Standardize()], 8, None, None),
        ([T.TensorCast("float16"), T.Standardize()], 8, STATISTIC, 1),
        ([T.TensorCast("uint8"), T.Standardize()], 8, STATISTIC, 1),
        ([T.TensorCast("int32"), T.Standardize()], 8, STATISTIC, 1),
        ([T.Clip("min", "max")], 8, None, None),
        ([T.Clip("min", "max"), T.Normalize()], 8, STATISTIC, 1),
        ([T.Normalize(lazy=True), T.Standardize()], 8, STATISTIC, 1),
        ([T.Clip("percentile:1", "percentile:99")], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Clip(mask="SEG")], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Clip("min", "max", mask="SEG")], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Mask("SEG")], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Standardize(mask="SEG")], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Standardize(mean=[0], std=[1], mask="SEG")], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Statistics()], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Dilate(4)], 8, None, None),
        ([T.Dilate(5)], 8, Rule.HALO, 0),
        ([T.Dilate(0), T.Normalize()], 8, STATISTIC, 1),
        ([T.Dilate(2), T.Dilate(2)], 4, None, None),
        ([T.Dilate(1), T.Gradient()], 4, None, None),
        ([T.Gradient()], (1, 30, 36), Rule.HALO, 0),
        ([T.Gradient()], (2, 30, 36), None, None),
        ([T.Gradient()], (0, 30, 36), None, None),
        ([T.HistogramMatching("B")], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Gradient(), T.Normalize()], 8, STATISTIC, 1),
        ([T.Normalize(), T.Gradient()], 8, None, None),
        ([T.Softmax(0)], 8, None, None),
        ([T.Softmax(1)], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Softmax(-1)], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Argmax(0)], 8, None, None),
        ([T.Argmax(-4)], 8, Rule.WHOLE_VOLUME, 0),
        ([T.Sum(2)], 8, Rule.WHOLE_VOLUME, 0),
    ],
    ids=repr,
)
def test_the_strict_profile_follows_the_published_rules_and_the_extended_one_streams(
    chain: list[Transform], patch_size: int | tuple[int, ...], rule: Rule | None, stage: int | None
) -> None:
    source = case(ARRAY).source
    strict = plan(source, chain, patch_size=patch_size, strict=True).verdict
    assert (strict.rule, strict.stage) == (rule, stage), strict.reason
    assert strict.regime is (Regime.STREAM if rule is None else Regime.BUFFER)
    extended = plan(source, chain, patch_size=patch_size, cost_limit=36).verdict
    assert extended.regime is Regime.STREAM, extended.reason


def test_a_thin_axis_counts_with_its_extent() -> None:
    thin = case(ARRAY[:, :5]).source
    assert plan(thin, [T.Dilate(2)], patch_size=64, strict=True).regime == "stream"
    assert plan(thin, [T.Dilate(3)], patch_size=64, strict=True).regime == "buffer"


@pytest.mark.parametrize(
    "chain",
    [
        [T.Clip(-200, 400), T.Standardize()],
        [T.Clip("percentile:0.5", "percentile:99.5", mask="SEG"), T.Normalize(), T.Dilate(1)],
        [T.HistogramMatching("B"), T.Gradient(), T.Standardize(mask="SEG"), T.Mask("SEG", -1)],
        [T.Softmax(1), T.Argmax(-1)],
    ],
    ids=repr,
)
def test_what_only_the_extended_profile_streams_has_the_voxels_of_the_whole(chain: list[Transform]) -> None:
    case(ARRAY).prove(chain, 8)
    case((ARRAY * 3).astype(np.int16)).prove(chain, (8, 16, 36))


def test_statistics_are_measured_once_for_all_patches() -> None:
    reads: list[int] = []
    source = case(ARRAY).source
    planned = plan(source, [T.Clip("percentile:1", "percentile:99"), T.Standardize()], patch_size=8)
    planned.measure()
    reads.append(planned.source.reads)
    for patch in list(planned.grid)[:5]:
        planned.read(patch)
    # 25920 voxels are one block: two passes for percentiles of float32, one for the moments.
    assert (reads[0], planned.source.reads) == (3, 8)
    rows = planned.explain().rows
    assert [row.passes for row in rows] == [2, 1]
