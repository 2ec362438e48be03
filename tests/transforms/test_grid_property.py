"""Random chains of grids and copies: each patch is the cut of the whole, from one read of the region that was declared."""

import math
import warnings
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mlarray.errors import TransformError
from mlarray.streaming import plan
from mlarray.testing.transforms import Sample, samples
from mlarray.transforms import (
    Canonical,
    Clip,
    Crop,
    Dilate,
    Flip,
    Gradient,
    Normalize,
    Padding,
    Permute,
    ResampleToResolution,
    ResampleToShape,
    Standardize,
    TensorCast,
    Transform,
)
from mlarray.transforms import augmentations as A

SOLID = ["u1", "i2", "u2", "i4", "i8", "u8", "?", "f4", "f8"]


VALUES: list[Transform] = [
    Clip(-20, 60),
    Clip("percentile:5", "max"),
    Dilate(1),
    Gradient(),
    Normalize(),
    Standardize(),
    TensorCast("float32"),
]
"""Stages that are pointwise, look around, or measure what they get."""


@st.composite
def stages(draw: st.DrawFn, ndim: int) -> Transform:
    """A transform of the grid that volumes of ``ndim`` axes can take."""
    axes = range(ndim)
    kind = draw(st.sampled_from(["flip", "permute", "canonical", "crop", "resolution", "shape", "padding"]))
    if kind == "flip":
        return Flip(draw(st.lists(st.sampled_from(axes), unique=True, min_size=1)))
    if kind == "permute":
        return Permute(draw(st.permutations(axes)))
    if kind == "canonical":
        return Canonical()
    if kind == "crop":
        return Crop()
    if kind == "resolution":
        return ResampleToResolution(draw(st.lists(st.floats(0.4, 4) | st.just(0.0), min_size=ndim, max_size=ndim)))
    interpolation = draw(st.sampled_from([None, None, "linear", "nearest"]))
    if kind == "shape":
        return ResampleToShape(draw(st.lists(st.integers(0, 15), min_size=ndim, max_size=ndim)), interpolation)
    mode = draw(st.sampled_from(["constant", "constant:-3.7", "reflect", "replicate", "circular"]))
    return Padding(draw(st.lists(st.integers(0, 9), min_size=2 * ndim, max_size=2 * ndim)), mode)


def augmentations(ndim: int) -> st.SearchStrategy[A.Augmentation]:
    """An augmentation for volumes of ``ndim`` axes."""
    probs = st.sampled_from([0.5, 1.0])
    made: list[st.SearchStrategy[Any]] = [
        st.builds(A.Flip, prob=probs),
        st.builds(A.Rotate, is_quarter=st.booleans(), prob=probs),
        st.builds(A.Translate, is_int=st.booleans(), prob=probs),
        st.builds(A.Scale, st.floats(0.1, 1.5), prob=probs),
        st.builds(A.Elastix, st.floats(2, 30), st.floats(0, 20), prob=probs),
        st.builds(A.Noise, st.floats(0, 9), prob=probs),
        st.builds(A.CutOUT, st.just(0.8), st.floats(0, 1.2), st.floats(-9, 9), prob=probs),
        *([st.builds(A.Permute, prob=probs)] if ndim == 3 else []),
    ]
    return st.one_of(made)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sample=samples(dtypes=SOLID, max_side=9, nan=True))
def test_patches_of_random_chains_are_cuts_of_the_whole(data: st.DataObject, sample: Sample) -> None:
    ndim = sample.array.ndim - 1
    chain = data.draw(st.lists(stages(ndim), max_size=4))
    lists = [A.AugmentationList(data.draw(st.lists(augmentations(ndim), max_size=2)), nb=1)]
    patch = data.draw(st.lists(st.integers(1, 20), min_size=ndim, max_size=ndim))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No voxel is above")
        try:
            planned = plan(sample.source, chain, augmentations=lists, copy=1, seed=data.draw(st.integers(0, 99)))
        except TransformError:
            assume(False)  # no direction, a box after a change of the grid, ...
            return
        assume(math.prod(planned.result.shape) < 20_000)
        sample.prove([stage.transform for stage in planned.chain.stages], patch)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sample=samples(dtypes=["u1", "i2", "i4", "f4", "f8"], channels=(1, 1), max_side=9))
def test_values_measured_on_changed_grids_are_the_same_in_every_regime(data: st.DataObject, sample: Sample) -> None:
    ndim = sample.array.ndim - 1
    chain = data.draw(st.lists(stages(ndim) | st.sampled_from(VALUES), min_size=2, max_size=5))
    patch = data.draw(st.lists(st.integers(1, 20), min_size=ndim, max_size=ndim))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant volumes and volumes without foreground
        try:
            planned = plan(sample.source, chain)
            assume(math.prod(planned.result.shape) < 20_000)
            planned.measure()
        except TransformError:
            assume(False)
        sample.prove(chain, patch)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sample=samples(dtypes=SOLID, max_side=9))
def test_random_chains_lead_back_to_the_stored_grid(data: st.DataObject, sample: Sample) -> None:
    ndim = sample.array.ndim - 1
    chain = data.draw(st.lists(stages(ndim), max_size=4))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No voxel is above")
        try:
            forward = plan(sample.source, chain)
        except TransformError:
            assume(False)
            return
    assume(math.prod(forward.result.shape) < 20_000)
    result = Sample(forward.read_whole(), forward.result.geometry, sample.is_label)
    back = forward.inverse(result.source, patch_size=5)
    assert back.result.shape == sample.array.shape[1:]
    assert back.result.geometry == sample.geometry
    assert [key for key in back.result.attributes if key != "box"] == []
    whole = back.read_whole()
    for patch in back.grid:
        assert back.read(patch).tobytes() == whole[(slice(None), *patch.slices)].tobytes()
