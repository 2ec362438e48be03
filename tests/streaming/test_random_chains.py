"""Patches of any chain on any volume are what a program makes that loads everything, to the last bit, from one bounded read."""

from __future__ import annotations

import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming import Plan, plan
from mlarray.streaming.chain import Stage
from mlarray.testing.transforms import WatchedSource, assert_identical, source_of
from mlarray.transforms import Padding, TensorCast, statistics
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.casting import holds_all
from mlarray.transforms.locality import Kind

from .drawn import MAKERS, Case, Maker, drawn_case, drawn_values
from .eager import eager

Proof: TypeAlias = Callable[[Case, np.random.Generator], None]

EXAMPLES = 5000
"""Random chains that every run of the tests tries, in :data:`PARTS` tests that run side by side."""

INVERSES = 500
"""Random chains whose inverse is tried."""

STAGES = 6
"""Most stages of a chain; every number of them is as probable."""

PARTS = 10
PATCHES = 4
"""Of each example."""

REFUSED = re.compile(r"NaN cannot become|got the label|does not fit|is 0 everywhere")
"""What only voxels can tell: NaN for an integer, a label without a class."""


class Refused(Exception):
    """The voxels do not fit the chain."""


@contextmanager
def may_refuse() -> Iterator[None]:
    """Tell what only voxels can tell from an error."""
    try:
        yield
    except TransformError as error:
        if REFUSED.search(error.message):
            raise Refused from error
        raise


class Weighed(Transform):
    """A stage that notes how many bytes it holds: those of its input and of its output."""

    def __init__(self, inner: Transform, note: Callable[[int], None]) -> None:
        self._inner, self._note = inner, note

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__
        return own(self, name) if name in ("apply", "__class__") else getattr(own(self, "_inner"), name)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        result = object.__getattribute__(self, "_inner").apply(block, context)
        object.__getattribute__(self, "_note")(block.nbytes + result.nbytes)
        return result


def chosen(planned: Plan, rng: np.random.Generator) -> Iterator[Region]:
    """Patches of the grid, its last one, and a region that no grid has."""
    count = len(planned.grid)
    for index in {count - 1, *rng.integers(0, count, PATCHES - 2).tolist()}:
        yield planned.grid[index]
    ends = [sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in planned.result.shape]
    yield Region(tuple(a for a, _ in ends), tuple(b for _, b in ends))


def prove(case: Case, rng: np.random.Generator) -> None:
    """Prove one example."""
    before = case.array.copy()
    with may_refuse():
        whole, volume = eager(case.array, case.stored, case.chain, case.groups)
    patch_size = [int(rng.integers(0, n + 4)) for n in whole.shape[1:]]
    weights: list[int] = []
    watched = WatchedSource(case.source)

    def planned(chain: list[Transform], **more: Any) -> Plan:
        arguments = {"groups": case.groups, "attributes": case.attributes, "case": "drawn", "cost_limit": math.inf}
        return plan(watched, chain, patch_size=patch_size, **{**arguments, **more})

    streamed = planned([Weighed(one, weights.append) for one in case.chain])
    streamed.measure()
    assert (streamed.result.array_shape, streamed.result.dtype) == (whole.shape, whole.dtype)
    assert streamed.result.geometry == volume.geometry
    assert repr(streamed.attributes.stacks) == repr(volume.attributes.stacks)
    bounded = streamed.regime == "stream"
    for target in chosen(streamed, rng):
        source, cut = streamed.fold(target), whole[(slice(None), *target.slices)]
        watched.regions.clear()
        weights.clear()
        read = streamed.source.bytes_read
        assert_identical(streamed.read(target), cut)
        if bounded:
            assert [region.shape[1:] for region in watched.regions] == [source.shape]
            assert streamed.source.bytes_read - read == streamed.chain.stored.bytes_of(source)
            assert max(weights, default=0) <= streamed.peak_bytes(target)
        if volume.geometry is not None:
            assert streamed.geometry(target) == volume.geometry.cropped(target)
    other = planned(case.chain, strict=True) if rng.random() < 0.5 else pickle.loads(pickle.dumps(planned(case.chain)))
    target = other.grid[int(rng.integers(len(other.grid)))]
    assert_identical(other.read(target), whole[(slice(None), *target.slices)])
    assert repr(other.attributes.stacks) == repr(volume.attributes.stacks)
    assert_identical(other.read_whole(), whole)
    assert_identical(case.array, before, "the input was changed")


def prove_inverse(case: Case, rng: np.random.Generator) -> None:
    """Prove one example of the way back: of the result, or of a prediction with channels and a type of its own."""
    forward = plan(case.source, case.chain, groups=case.groups, attributes=case.attributes, case="drawn")
    with may_refuse():
        array = forward.read_whole()
    if rng.random() < 0.3 and not any(one.name in ("OneHot", "Normalize", "Standardize") for one in case.chain):
        array = drawn_values(rng, (int(rng.integers(1, 3)), *array.shape[1:]), np.dtype(rng.choice(["u1", "i2", "f4"])))
    watched = WatchedSource(source_of(array, is_label=bool(rng.integers(2))))
    back = forward.inverse(watched, patch_size=[int(rng.integers(0, n + 2)) for n in case.volume.shape])
    assert back.regime == "stream"
    assert back.result.shape == case.volume.shape
    assert back.result.geometry == case.geometry
    if len(back.chain.stages) == len(forward.chain.stages):  # a lazy stage changed nothing, and what it left stays
        assert back.attributes == forward.chain.stored.attributes
    with may_refuse():
        whole, _ = eager(array, back.chain.stored, [stage.transform for stage in back.chain.stages], {})
    assert_identical(back.read_whole(), whole)
    for target in chosen(back, rng):
        watched.regions.clear()
        assert_identical(back.read(target), whole[(slice(None), *target.slices)])
        assert [region.shape[1:] for region in watched.regions] == [back.fold(target).shape]
    if all(is_exact(stage) for stage in forward.chain.stages):
        result = plan(source_of(forward.read_whole()), []).read_whole()
        assert_identical(forward.inverse(source_of(result)).read_whole(), case.array)


def is_exact(stage: Stage) -> bool:
    """Tell whether the inverse of a stage gives back every voxel to the last bit: voxels are moved, or kept in a wider type."""
    if isinstance(stage.transform, TensorCast):
        return holds_all(stage.after.dtype, stage.before.dtype)
    return stage.locality.kind is Kind.ORIENTATION or isinstance(stage.transform, Padding)


def run(part: int, count: int, makers: Mapping[str, Maker], proof: Proof) -> None:
    """Run a proof on ``count`` examples, and assert that there were so many."""
    proven = 0

    @settings(max_examples=count)
    @given(seed=st.integers(0, 2**32 - 1))
    def examples(seed: int) -> None:
        nonlocal proven
        rng = np.random.default_rng((part, seed))
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", ".*(is constant|No voxel is above|are not finite|too large to be measured)"
            )
            case = drawn_case(rng, int(rng.integers(STAGES + 1)), makers)
            try:
                proof(case, rng)
            except Refused:
                reject()
            except Exception as error:
                error.add_note(f"part {part}, seed {seed}: {case!r}")
                raise
        proven += 1

    examples()
    assert proven >= count


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_patches_of_random_chains_are_cuts_of_the_whole(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of the parts cut a volume into many statistic blocks, which else only large ones have.
    monkeypatch.setattr(statistics, "STATISTIC_BLOCK_ELEMENTS", 64 if part % 2 else 1 << 20)
    run(part, EXAMPLES // PARTS, MAKERS, prove)


INVERTIBLE = {
    name: MAKERS[name]
    for name in (
        *("Flip", "Permute", "Canonical", "Crop", "ResampleToResolution", "ResampleToShape", "Padding", "TensorCast"),
        *("Normalize", "Standardize", "OneHot", "A.Flip", "A.Permute", "A.Rotate", "A.Translate", "A.Scale"),
    )
}


@pytest.mark.slow
def test_random_chains_lead_back_to_the_stored_grid() -> None:
    run(PARTS, INVERSES, INVERTIBLE, prove_inverse)
