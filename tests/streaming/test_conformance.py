"""The proof itself is able to fail, and the base class is proven by it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings

from mlarray.errors import TransformError
from mlarray.sources.base import NDArray
from mlarray.testing.transforms import Sample, TransformConformance, samples
from mlarray.transforms import Context, GlobalStatistic, Halo, Pointwise, Transform, Volume
from mlarray.transforms.locality import Locality
from mlarray.transforms.statistics import Moments, Statistic


@dataclass(frozen=True)
class Sum3(Transform):
    """Sum of the neighbours along the last axis: an honest halo of 1, or one that lies."""

    radius: int = 1

    def locality(self, volume: Volume) -> Locality:
        return Halo((0,) * (volume.ndim - 1) + (self.radius,))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        total = block.copy()
        total[..., 1:] += block[..., :-1]
        total[..., :-1] += block[..., 1:]
        return total


@dataclass(frozen=True)
class Centred(Transform):
    """Minus the mean of the whole, or of the block where it lies."""

    honest: bool = True

    def locality(self, volume: Volume) -> Locality:
        return GlobalStatistic() if self.honest else Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        return volume.with_(dtype=np.dtype("f8"))

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        return (Moments(),)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        return block.astype("f8") - (context.measured[Moments()].mean if self.honest else block.mean(dtype="f8"))


@dataclass(frozen=True)
class InPlace(Transform):
    def locality(self, volume: Volume) -> Locality:
        return Pointwise()

    def apply(self, block: NDArray, context: Context) -> NDArray:
        block += 1
        return block


@dataclass(frozen=True)
class Undeclared(Transform):
    """Declares nothing, and looks at everything."""

    def apply(self, block: NDArray, context: Context) -> NDArray:
        return np.flip(np.cumsum(block, axis=-1, dtype=block.dtype), axis=1)


class TestHonestHalo(TransformConformance):
    def transform(self) -> Transform:
        return Sum3()


class TestHonestStatistic(TransformConformance):
    def transform(self) -> Transform:
        return Centred()


class TestNothingDeclared(TransformConformance):
    def transform(self) -> Transform:
        return Undeclared()


RAMP = Sample(np.arange(2 * 5 * 6 * 7, dtype=np.int32).reshape(2, 5, 6, 7) ** 2 % 97)


@pytest.mark.parametrize("transform", [lambda: Sum3(radius=0), lambda: Centred(honest=False)])
def test_a_lie_is_found(transform: Callable[[], Transform]) -> None:
    with pytest.raises(AssertionError, match="voxels differ"):
        RAMP.prove([transform()], 3)


def test_a_change_of_the_input_is_an_error() -> None:
    with pytest.raises(TransformError, match=r"Stage 1 \(InPlace\) changes its input"):
        RAMP.prove([InPlace()], 3)


@settings(max_examples=60, deadline=None)
@given(samples(nan=True))
def test_chains_of_honest_transforms_are_proven_on_drawn_volumes(sample: Sample) -> None:
    with np.errstate(all="ignore"):
        sample.prove([Centred(), Sum3(), Undeclared(), Sum3(), Centred()], 4)
        sample.prove([Centred(), Sum3(), Sum3(radius=2), Centred()], (2,) * (sample.array.ndim - 1))
