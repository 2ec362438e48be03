"""Windows: every voxel that is taken lies within, and they are no larger than they have to be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray.region import Region
from mlarray.testing.strategies import regions_within
from mlarray.testing.transforms import Sample
from mlarray.transforms import augmentations as A
from mlarray.transforms.affine import AffineMap
from mlarray.transforms.augmentations.spatial import Warp
from mlarray.transforms.padding import padding_window
from mlarray.transforms.sampling import AxisMap, Coordinates, reflected, reflected_range

from .references import OBLIQUE, drawn, grid

SHAPE = (7, 12, 9)
numbers = st.floats(-40, 40)


def taken(
    places: list[Coordinates], shape: tuple[int, ...], *, linear: bool, always_two: bool
) -> tuple[list[int], list[int]]:
    """The first and last voxels that are taken for coordinates, per axis."""
    if not linear:
        return [int(np.rint(c).min()) for c in places], [int(np.rint(c).max()) + 1 for c in places]
    low = [int(np.floor(c).min()) for c in places]
    upper = [np.floor(c) + 1 if always_two else np.ceil(c) for c in places]
    return low, [min(int(u.max()) + 1, n) for u, n in zip(upper, shape, strict=True)]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), linear=st.booleans())
def test_a_window_of_an_affine_map_holds_what_is_taken(data: st.DataObject, linear: bool) -> None:
    matrix = [[data.draw(st.floats(-3, 3)) for _ in range(3)] for _ in range(3)]
    placed = AffineMap.of(matrix, [data.draw(numbers) for _ in range(3)])
    target = data.draw(regions_within((8, 8, 8)).filter(lambda region: not region.is_empty()))
    window = placed.window(linear, target, SHAPE)
    start, stop = taken(placed.coordinates(target, SHAPE), SHAPE, linear=linear, always_two=True)
    assert window.is_within(SHAPE)
    assert window.contains(Region(start, stop))


def test_a_window_of_an_affine_map_within_the_volume_is_exactly_what_is_taken() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        matrix = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        placed = AffineMap.of(matrix, 30 + rng.normal(size=3))
        start = rng.integers(0, 10, 3)
        target = Region.at(start.tolist(), rng.integers(1, 8, 3).tolist())
        for linear in (True, False):
            places = placed.coordinates(target, (60, 60, 60))
            first, last = taken(places, (60, 60, 60), linear=linear, always_two=True)
            assert placed.window(linear, target, (60, 60, 60)) == Region(first, last)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), linear=st.booleans())
def test_a_window_of_an_axis_map_holds_what_is_taken(data: st.DataObject, linear: bool) -> None:
    placed = AxisMap(tuple(data.draw(st.floats(0.1, 4)) for _ in range(3)), tuple(data.draw(numbers) for _ in range(3)))
    target = data.draw(regions_within(SHAPE).filter(lambda region: not region.is_empty()))
    places = []
    for axis, (a, b, n) in enumerate(zip(target.start, target.stop, SHAPE, strict=True)):
        along = placed.coordinates(axis, a, b, n)
        places.append(np.arange(a, b, dtype=float) if along is None else along)
    window = placed.window(linear, target, SHAPE)
    assert window.is_within(SHAPE)
    assert window.contains(Region(*taken(places, SHAPE, linear=linear, always_two=False)))


def test_a_window_of_a_shift_within_the_volume_is_exactly_what_is_taken() -> None:
    for shift in (0.0, 0.25, 1.0, -2.5, 3.75, -4.0):
        placed = AxisMap((1.0,), (shift,))
        places = placed.coordinates(0, 10, 14, 30)
        places = np.arange(10.0, 14.0) if places is None else places
        assert placed.window(True, Region((10,), (14,)), (30,)) == Region(
            *taken([places], (30,), linear=True, always_two=False)
        )


@settings(max_examples=100, deadline=None)
@given(data=st.data(), seed=st.integers(0, 50), most=st.floats(0, 60))
def test_a_window_of_a_warp_holds_what_is_taken(data: st.DataObject, seed: int, most: float) -> None:
    array = np.zeros((1, *SHAPE), "f4")
    (warp,) = drawn(A.Elastix(6.0, most), array, grid(), seed=seed)
    assert isinstance(warp, Warp)
    target = data.draw(regions_within(SHAPE).filter(lambda region: not region.is_empty()))
    for linear in (True, False):
        window = warp.window(linear, target, SHAPE)
        assert window.is_within(SHAPE)
        assert window.contains(Region(*taken(warp.coordinates(target), SHAPE, linear=linear, always_two=True)))


def test_a_warp_with_equal_control_values_has_the_window_of_a_shift() -> None:
    lattice = np.full((3, 5, 5, 5), 1.5)
    warp = Warp(lattice, (30, 30, 30), "all the same")
    window = warp.window(True, Region((10, 10, 10), (14, 14, 14)), (30, 30, 30))
    assert window == Region((11, 11, 11), (16, 16, 16))
    np.testing.assert_allclose(warp.coordinates(Region((10, 0, 0), (11, 1, 1)))[0], 11.5, atol=1e-12)


@given(low=numbers, extent=st.floats(0, 30), n=st.integers(1, 9))
def test_a_reflected_interval_holds_all_its_reflected_places(low: float, extent: float, n: int) -> None:
    places = np.concatenate([np.linspace(low, low + extent, 200), [low, low + extent]])
    places = np.clip(places, low, low + extent)
    folded = reflected(places.copy(), n)
    least, most = reflected_range(low, low + extent, n)
    assert 0 <= least <= folded.min()
    assert folded.max() <= most <= n - 1
    triangle = np.abs((places + (n - 1)) % (2 * (n - 1)) - (n - 1)) if n > 1 else places * 0
    np.testing.assert_allclose(folded, triangle, atol=1e-9)


@given(data=st.data(), kind=st.sampled_from(["reflect", "replicate", "circular"]), n=st.integers(1, 9))
def test_a_window_of_a_padding_holds_what_is_shown(data: st.DataObject, kind: str, n: int) -> None:
    before, after = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))
    target = data.draw(regions_within((before + n + after,)).filter(lambda region: not region.is_empty()))
    numpy_mode = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[kind]
    shown = np.pad(np.arange(n), (before, after), mode=numpy_mode)[target.slices]  # type: ignore[call-overload]
    window = padding_window(kind, (before,), target, (n,))
    assert window.contains(Region((int(shown.min()),), (int(shown.max()) + 1,)))
    if kind != "circular":
        assert window == Region((int(shown.min()),), (int(shown.max()) + 1,))


COPIES = [
    A.Rotate(-9, 9), A.Rotate(), A.Rotate(is_quarter=True), A.Translate(-2, 2), A.Translate(), A.Scale(0.1), A.Scale(1.0),
    A.Elastix(8.0, 2.0), A.Elastix(), A.Noise(1.0), A.CutOUT(1.0, 0.4, 3.0), A.Flip([1, 0, 1]), A.Permute((1, 1)),
    A.Brightness(3.0),
]  # fmt: skip


@pytest.mark.parametrize("augmentation", COPIES, ids=repr)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u1"])
def test_patches_of_copies_are_cuts_of_the_whole_copy(augmentation: A.Augmentation, dtype: str) -> None:
    array = (np.random.default_rng(0).normal(size=(1, 17, 23, 20)) * 40 + 90).astype(dtype)
    sample = Sample(array, grid(direction_xyz=OBLIQUE))
    for seed in (0, 1):
        chain = drawn(augmentation, array, sample.geometry, seed=seed)
        sample.prove(chain, (5, 6, 4))
