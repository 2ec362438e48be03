"""Each transform of values by itself, on what the conformance class tries."""

import pytest

from mlarray import transforms as T
from mlarray.testing.transforms import TransformConformance
from mlarray.transforms.base import Transform

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
