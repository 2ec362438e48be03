"""Statistics of what a chain makes, folded over many blocks, are those of the whole array in numpy."""

import numpy as np
import pytest

from mlarray import transforms as T
from mlarray.streaming import plan
from mlarray.testing.transforms import Sample, source_of
from mlarray.transforms import statistics

ROUNDING = 1e-12
"""Of float64 sums over a few thousand values, in another order than numpy's."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Many blocks, some of them parts of a plane, from a volume that is quick to compute.
    monkeypatch.setattr(statistics, "STATISTIC_BLOCK_ELEMENTS", 50)


@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
def test_statistics_behind_a_neighbourhood_are_those_of_its_whole_result(dtype: str) -> None:
    rng = np.random.default_rng(2)
    array = rng.normal(0, 300, (1, 13, 9, 11)).astype(dtype)
    mask = (rng.random((1, 13, 9, 11)) < 0.4).astype("uint8")
    groups = {"MASK": source_of(mask)}
    prefix = [T.Clip(-250, 250), T.Gradient(per_dim=True)]
    before = plan(source_of(array), prefix).read_whole()
    inside = before[np.broadcast_to(mask != 0, before.shape)].astype("float64")

    moments = plan(source_of(array), [*prefix, T.Standardize(mask="MASK")], groups=groups).attributes
    assert moments["Mean"] == pytest.approx(inside.mean(), rel=ROUNDING, abs=ROUNDING)
    assert moments["Std"] == pytest.approx(inside.std(ddof=1), rel=ROUNDING)

    clip = T.Clip("percentile:7", "percentile:93.5", save_clip_min=True, save_clip_max=True)
    bounds = plan(source_of(array), [*prefix, clip]).attributes
    found, rounding = np.percentile(before, [7]), np.ceil if dtype == "int16" else np.asarray
    assert bounds["Min"] == rounding(found.astype(before.dtype if dtype == "float32" else "f8"))[0]


def test_patches_are_cuts_of_the_whole_behind_several_statistics() -> None:
    rng = np.random.default_rng(4)
    sample = Sample(
        rng.normal(0, 300, (1, 13, 9, 11)).astype("int16"),
        groups={"MASK": (rng.random((1, 13, 9, 11)) < 0.4).astype("uint8"), "B": rng.random((1, 30, 4, 4))},
    )
    chain = [
        T.Clip("percentile:1", "percentile:99", mask="MASK"),
        T.Normalize(min_value=0, max_value=100),
        T.Gradient(),
        T.Softmax(1),
        T.Standardize(mask="MASK"),
        T.HistogramMatching("B"),
    ]
    sample.prove(chain, 4)
    sample.prove(chain[:3], (1, 9, 5))


def test_constant_blocks_and_a_constant_volume_are_told_apart() -> None:
    steps = np.repeat(np.arange(13.0), 99).reshape(1, 13, 9, 11)
    found = plan(source_of(steps), [T.Statistics()]).attributes
    assert found["ImageMean"] == pytest.approx(6, rel=ROUNDING)
    assert found["ImageStd"] == pytest.approx(steps.std(ddof=1), rel=ROUNDING)
