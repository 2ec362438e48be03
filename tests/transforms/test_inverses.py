"""How near does the way back come to where a chain began? On a field that is linear in space, which sampling gives exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mlarray import transforms as T
from mlarray.errors import PlanError
from mlarray.streaming import plan
from mlarray.testing.transforms import assert_identical, source_of
from mlarray.transforms.base import Transform

from .references import OBLIQUE, grid

SHAPE = (20, 22, 24)
FIELD = (np.indices(SHAPE) * np.array([1.0, -2.0, 0.5]).reshape(3, 1, 1, 1)).sum(axis=0)[np.newaxis] + 7.0
MIDDLE = (slice(None), slice(8, 12), slice(9, 13), slice(10, 14))
"""Away from what is reflected beyond an oblique volume, and clamped within half a voxel of a resampled one."""
EVERYWHERE = (slice(None),) * 4

CHAINS: list[tuple[Sequence[Transform], tuple[slice, ...], float]] = [
    # Voxels are moved, and kept: no bound is needed.
    ([T.Flip("0|2"), T.Permute("2|0|1"), T.Padding([1, 2, 3, 4, 5, 6], "circular")], EVERYWHERE, 0.0),
    ([T.TensorCast("float64"), T.Normalize(lazy=True)], EVERYWHERE, 0.0),
    # A product, a sum, a quotient each way, of numbers up to 100: float64 has 1e-14 there.
    ([T.Normalize(), T.Standardize(), T.Standardize(mean=[3], std=[9])], EVERYWHERE, 1e-12),
    # Coordinates of 1e-14 voxels, slopes up to 2, six samplings.
    ([T.Canonical()], MIDDLE, 1e-11),
    ([T.ResampleToResolution([1, 1, 1])], MIDDLE, 1e-11),
    ([T.ResampleToShape([13, 40, 0])], MIDDLE, 1e-11),
    (
        [T.Canonical(), T.ResampleToResolution([1, 1, 1]), T.Standardize(), T.Padding([3] * 6), T.Flip("1")],
        MIDDLE,
        1e-11,
    ),
    # float32 has 24 bits: 4e-6 of numbers up to 64, three times.
    ([T.TensorCast("float32"), T.Canonical(), T.Normalize()], MIDDLE, 2e-5),
    # A box is put back; the middle lies within.
    ([T.Crop(), T.Standardize()], MIDDLE, 1e-12),
    ([T.Flip("2"), T.Crop(), T.Canonical(), T.Normalize(), T.Padding([4] * 6, "reflect")], MIDDLE, 1e-11),
]


@pytest.mark.parametrize(("chain", "where", "bound"), CHAINS, ids=lambda one: str(one)[:70])
def test_a_chain_leads_back_to_the_stored_grid_and_to_its_values(
    chain: Sequence[Transform], where: tuple[slice, ...], bound: float
) -> None:
    geometry = grid(direction_xyz=OBLIQUE)
    attributes = {"box": [[3, 2], [1, 4], [2, 2]]}
    forward = plan(source_of(FIELD, geometry), chain, attributes=attributes)
    back = forward.inverse(source_of(forward.read_whole()), patch_size=(9, 7, 24))
    carried = back.read_whole()
    assert back.result.shape == SHAPE
    assert back.result.geometry == geometry
    for patch in back.grid:
        assert_identical(back.read(patch), carried[(slice(None), *patch.slices)])
    np.testing.assert_allclose(carried[where], FIELD[where], rtol=0, atol=bound)


def test_labels_and_their_classes_come_back_as_they_were() -> None:
    """Nearest voxels of twice as many per axis, and the class with the maximum: every label is found again."""
    labels = np.random.default_rng(0).integers(0, 4, (1, 6, 7, 8)).astype("u1")
    chain = [T.Permute("2|0|1"), T.ResampleToShape([16, 12, 14]), T.OneHot(4), T.Padding([2] * 6)]
    forward = plan(source_of(labels, grid()), chain)
    back = forward.inverse(source_of(forward.read_whole()), patch_size=3)
    np.testing.assert_array_equal(back.read_whole(), labels)
    assert back.result.is_label


def test_what_changed_the_grid_for_good_is_named() -> None:
    forward = plan(source_of(FIELD), [T.Flip("0"), T.Sum(1)])
    with pytest.raises(PlanError, match=r"stage 2 \(Sum\) changed the grid and cannot be undone"):
        forward.inverse(source_of(forward.read_whole()))
