"""The proof itself is able to fail, and the base class is proven by it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from mlarray.errors import TransformError
from mlarray.sources.base import NDArray
from mlarray.streaming import plan
from mlarray.testing.transforms import Sample, TransformConformance, samples, source_of
from mlarray.transforms import Context, GlobalStatistic, Halo, Pointwise, Regrid, Transform, Volume
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


@pytest.mark.filterwarnings("ignore:.*voxels are not finite")
@settings(max_examples=60, deadline=None)
@given(samples(nan=True))
def test_chains_of_honest_transforms_are_proven_on_drawn_volumes(sample: Sample) -> None:
    with np.errstate(all="ignore"):
        sample.prove([Centred(), Sum3(), Undeclared(), Sum3(), Centred()], 4)
        sample.prove([Centred(), Sum3(), Sum3(radius=2), Centred()], (2,) * (sample.array.ndim - 1))


def test_a_declaration_that_opens_a_file_is_found(tmp_path: Path) -> None:
    radius = tmp_path / "radius.txt"
    radius.write_text("1", encoding="ascii")

    class Reads(Sum3):
        def locality(self, volume: Volume) -> Locality:
            return Halo((int(radius.read_text(encoding="ascii")),) * volume.ndim)

    class Case(TransformConformance):
        def transform(self) -> Transform:
            return Reads()

    with pytest.raises(AssertionError, match=r"opens .*radius\.txt"):
        Case().test_declarations_open_no_files()
    assert radius.read_text(encoding="ascii") == "1"


@pytest.mark.parametrize(
    ("locality", "message"),
    [
        (Halo((1,)), r"its locality Halo\(radius=\(1,\).* failed for the shape \(3, 4\)"),
        (
            Regrid((3, 4), lambda target, shape: target.grow(1)),
            r"reads \(-1, -1\)\.\.\(4, 5\) of an input of shape \(3, 4\)",
        ),
    ],
)
def test_maps_that_leave_the_input_are_refused_when_planned(locality: Locality, message: str) -> None:
    class Maps(Transform):
        def locality(self, volume: Volume) -> Locality:
            return locality

        def apply(self, block: NDArray, context: Context) -> NDArray:
            return block

    with pytest.raises(TransformError, match=message):
        plan(source_of(np.zeros((1, 3, 4))), [Maps()])
