"""Which chains of grids and copies stream, in both profiles: the published table."""

import numpy as np
import pytest

from mlarray.errors import TransformError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming import Rule, plan
from mlarray.testing.transforms import source_of
from mlarray.transforms import (
    Canonical,
    Context,
    Crop,
    Flip,
    GlobalStatistic,
    Padding,
    Permute,
    ResampleToResolution,
    ResampleToShape,
    Transform,
    Volume,
)
from mlarray.transforms import augmentations as A
from mlarray.transforms.locality import Locality
from mlarray.transforms.statistics import Moments, Statistic

from .references import OBLIQUE, grid

SCAN = np.random.default_rng(0).normal(size=(1, 24, 30, 36)).astype("f4")


class Centred(Transform):
    """A stage with a statistic."""

    def locality(self, volume: Volume) -> Locality:
        return GlobalStatistic()

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        return (Moments(),)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        return (block - np.float32(context.measured[Moments()].mean)).astype(block.dtype)


def verdicts(
    chain: list[Transform],
    *,
    geometry: Geometry | None,
    augmentation: A.Augmentation | None = None,
    patch: int | tuple[int, ...] = 8,
) -> tuple[tuple[str, Rule | None], tuple[str, Rule | None]]:
    lists = [A.AugmentationList([augmentation], nb=1)] if augmentation else []
    found = []
    for strict in (True, False):
        planned = plan(
            source_of(SCAN, geometry),
            chain,
            patch_size=patch,
            augmentations=lists,
            copy=len(lists),
            strict=strict,
        )
        found.append((planned.regime, planned.verdict.rule))
    return found[0], found[1]


STREAM = ("stream", None)
PLAIN = grid((2.0, 1.5, 1.5))
TURNED = grid((2.0, 1.5, 1.5), direction_xyz=np.array([[0.0, 0, 1], [0, 1, 0], [1, 0, 0]]))
TILTED = grid((2.0, 1.5, 1.5), direction_xyz=OBLIQUE)

TABLE = [
    ([Canonical(), Centred()], PLAIN, STREAM),
    ([Canonical(), Centred()], TURNED, STREAM),
    ([Canonical()], TILTED, ("buffer", Rule.WHOLE_VOLUME)),
    ([Canonical(), Permute("2|1|0")], TURNED, STREAM),
    ([Flip("0"), ResampleToShape([12, 9, 8]), Permute("1|0|2")], PLAIN, STREAM),
    ([Canonical(), ResampleToResolution([2, 1, 3]), Padding([1] * 6)], PLAIN, STREAM),
    ([Crop()], PLAIN, STREAM),
    ([Crop(), Centred()], PLAIN, ("buffer", Rule.STATISTIC_AFTER_CHANGE)),
    ([Centred(), Crop()], PLAIN, STREAM),
    ([Flip("0"), Centred(), Crop()], PLAIN, STREAM),
    ([Padding([1] * 6), Centred()], PLAIN, ("buffer", Rule.STATISTIC_AFTER_CHANGE)),
    ([ResampleToShape([12, 15, 18])], None, ("buffer", Rule.NO_SPACING)),
    ([ResampleToShape([12, 15, 18]), Centred()], PLAIN, ("buffer", Rule.STATISTIC_AFTER_CHANGE)),
]


@pytest.mark.parametrize(("chain", "geometry", "published"), TABLE, ids=lambda one: str(one)[:60])
def test_the_strict_profile_gives_the_published_verdict_and_the_extended_one_streams(
    chain: list[Transform], geometry: Geometry | None, published: tuple[str, Rule | None]
) -> None:
    strict, extended = verdicts(chain, geometry=geometry)
    assert strict == published
    assert extended in (STREAM, ("buffer", Rule.COST))
    costly = isinstance(chain[-1], Permute) and len(chain) == 3  # 4.5 input voxels per axis and output voxel
    assert (extended[1] is Rule.COST) == costly


COPIES = [
    (A.Flip([1, 0, 1]), 8, "stream"),
    (A.Flip([1, 0, 1], vector_field=True), 8, "stream"),  # one channel is no vector
    (A.Rotate(is_quarter=True), 8, "stream"),
    (A.Rotate(90, 90), 8, "stream"),
    (A.Rotate(10, 10), 8, "buffer"),
    (A.Permute((1, 1)), 8, "stream"),
    (A.Translate(1, 1), 4, "stream"),
    (A.Translate(-1, -1), 4, "stream"),
    (A.Translate(3, 3), 8, "stream"),
    (A.Translate(3.01, 3.01), 8, "buffer"),
    (A.Translate(10, 10), 4, "buffer"),
    (A.Translate(0, 0), (1, 30, 36), "buffer"),
    (A.Scale(prob=0.0), 8, "stream"),
    (A.Scale(), 8, "buffer"),
    (A.Elastix(), 8, "buffer"),
    (A.Noise(1.0), 8, "buffer"),
    (A.CutOUT(1.0, 0.5, 0.0), 8, "buffer"),
    (A.Brightness(1.0), 8, "stream"),
    (A.HUE(0.5), 8, "stream"),
]


@pytest.mark.parametrize(("augmentation", "patch", "published"), COPIES, ids=lambda one: str(one)[:60])
def test_copies_are_judged_by_what_they_drew(augmentation: A.Augmentation, patch: int, published: str) -> None:
    strict, extended = verdicts([], geometry=PLAIN, augmentation=augmentation, patch=patch)
    assert strict[0] == published
    if published == "buffer":
        assert strict[1] is (Rule.HALO if isinstance(augmentation, A.Translate) else Rule.WHOLE_VOLUME)
    costly = isinstance(augmentation, A.Elastix)  # displacements of 16 mm around patches of 12 mm
    assert extended == (("buffer", Rule.COST) if costly else STREAM)


def test_a_flipped_vector_field_loads_the_volume_in_the_strict_profile() -> None:
    field = np.repeat(SCAN, 3, axis=0)
    lists = [A.AugmentationList([A.Flip([1, 1, 1], vector_field=True)], nb=1)]
    regimes = [
        plan(source_of(field), [], patch_size=8, augmentations=lists, copy=1, strict=strict).regime
        for strict in (True, False)
    ]
    assert regimes == ["buffer", "stream"]


def test_a_copy_follows_the_chain_in_one_read() -> None:
    for chain in ([Centred()], [ResampleToResolution([2, 2, 2])]):
        strict, extended = verdicts(chain, geometry=PLAIN, augmentation=A.Flip([1, 1, 1]))
        assert strict == extended == STREAM


def test_a_resolution_without_a_spacing_is_an_error_that_names_the_stage() -> None:
    with pytest.raises(TransformError, match=r"Stage 1 .*spacing"):
        plan(source_of(SCAN), [ResampleToResolution([1, 1, 1])])


def test_the_worked_fold_of_a_flip_and_a_rescale() -> None:
    planned = plan(source_of(SCAN, PLAIN), [Flip("0|2"), ResampleToShape([12, 30, 36])], patch_size=8)
    # Scale 2 in z: outputs 4 to 7 lie at 8.5 to 14.5; y and x are copied. Mirrored: 24 - 16 to 24 - 8.
    assert planned.fold(Region((4, 8, 0), (8, 16, 8))) == Region((8, 8, 28), (16, 16, 36))
