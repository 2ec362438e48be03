"""Patches of chains of value transforms are cuts of the whole, to the last bit, for drawn volumes and chains."""

import re
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray import transforms as T
from mlarray.errors import TransformError
from mlarray.streaming import plan
from mlarray.testing.transforms import Sample, TransformConformance, samples
from mlarray.transforms.base import Transform

GROUPS = ("MASK",)
REFUSED = re.compile(r"NaN cannot become|got the label|does not fit|lies elsewhere|has the shape")
"""What only voxels can tell: NaN for an integer, a label without a class, a mask that is elsewhere by now."""

VALUES = st.one_of(
    st.builds(T.TensorCast, st.sampled_from(["float32", "float64", "float16", "int16", "uint8", "int64", "bool"])),
    st.builds(
        T.Clip,
        st.sampled_from([-50, -0.5, 0.0, "min", "percentile:5", "percentile:33.3"]),
        st.sampled_from([40, 10.7, 1e9, "max", "percentile:99", "percentile:66.6"]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([None, *GROUPS]),
    ),
    st.builds(T.Normalize, st.booleans(), st.sampled_from([None, (0,)]), st.just(-1), st.sampled_from([1, 3.5])),
    st.builds(
        T.Standardize,
        st.booleans(),
        st.sampled_from([None, 12.5]),
        st.sampled_from([None, 3]),
        st.sampled_from([None, *GROUPS]),
    ),
    st.just(T.Statistics()),
    st.just(T.UnNormalize()),
    st.builds(T.Percentage, st.sampled_from([-3.7, 250])),
    st.just(T.HistogramMatching("REFERENCE")),
    st.builds(T.FlatLabel, st.sampled_from([None, (1, 3), (300, -2)])),
    st.just(T.SelectLabel(["(1,2)", "(3,1)"])),
    st.builds(T.Mask, st.sampled_from(GROUPS), st.sampled_from([0, 7, -3.6])),
)
CHANNELS = st.one_of(
    st.builds(T.Argmax, st.integers(-4, 3)),
    st.builds(T.Softmax, st.integers(-4, 3)),
    st.builds(T.Sum, st.integers(-4, 3)),
    st.just(T.OneHot(3)),
    st.just(T.MergeLabels()),
    st.just(T.Variance()),
    st.just(T.StandardDeviation()),
    st.builds(T.SegmentationDisagreement, st.booleans()),
)
NEIGHBOURS = st.one_of(st.builds(T.Dilate, st.integers(0, 4)), st.builds(T.Gradient, st.booleans()))
CHAINS = st.lists(VALUES | NEIGHBOURS | CHANNELS, min_size=1, max_size=6)


def accepted(chain: Sequence[Transform], sample: Sample) -> list[Transform]:
    """The transforms of a chain that take what comes out of those before them."""
    kept: list[Transform] = []
    for transform in chain:
        try:
            plan(sample.source, [*kept, transform], attributes=sample.attributes)
        except TransformError:
            continue
        kept.append(transform)
    return kept


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(samples(nan=True), CHAINS, st.integers(1, 5))
def test_patches_of_any_chain_are_cuts_of_the_whole(sample: Sample, chain: list[Transform], size: int) -> None:
    channels, *shape = sample.array.shape
    rng = np.random.default_rng(size)
    groups = {**sample.groups, "REFERENCE": rng.normal(100, 30, (1, *shape)).astype(np.float32)}
    if not sample.groups["MASK"].any():
        groups["MASK"][...] = 1
    drawn = Sample(
        sample.array,
        sample.geometry,
        groups=groups,
        attributes={"number_of_channels_per_model": tuple(range(2, channels + 2))},
    )
    kept = accepted(chain, drawn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is constant")
        try:
            result = drawn.prove(kept, size)
        except TransformError as error:
            if REFUSED.search(error.message):
                return
            raise
    assert result.ndim == len(shape) + 1


SINGLE = [
    T.TensorCast("int8"),
    T.Clip(),
    T.Clip("min", "max"),
    T.Clip("percentile:1", "percentile:99"),
    T.Normalize(),
    T.Standardize(),
    T.Statistics(),
    T.UnNormalize(),
    T.Percentage(80),
    T.Argmax(0),
    T.Argmax(2),
    T.Softmax(-1),
    T.Sum(1),
    T.Variance(),
    T.StandardDeviation(),
    T.FlatLabel(),
    T.SelectLabel(["(1,2)"]),
    T.SegmentationDisagreement(),
    T.Dilate(2),
    T.Gradient(),
    T.Gradient(per_dim=True),
]


@pytest.mark.parametrize("transform", SINGLE, ids=repr)
class TestEach(TransformConformance):
    one: Transform

    @pytest.fixture(autouse=True)
    def _chosen(self, transform: Transform) -> None:
        self.one = transform

    def transform(self) -> Transform:
        return self.one
