"""Mirroring and exchanging axes, and the canonical orientation."""

import math
from itertools import permutations, product

import numpy as np
import pytest

from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.streaming import plan
from mlarray.testing.transforms import Sample, TransformConformance, source_of
from mlarray.transforms import Canonical, Flip, Permute, ResampleToResolution, Transform, Volume
from mlarray.transforms.orientation import signed_permutation

from .references import OBLIQUE, grid, places_of, resampled_by_itk, whole

CANONICAL = np.diag([-1.0, -1.0, 1.0])
CT = np.random.default_rng(3).normal(size=(1, 9, 10, 11)).astype("f4") * 450


def volume(shape: tuple[int, ...] = (9, 10, 11), geometry: Geometry | None = None) -> Volume:
    return Volume(1, shape, np.dtype("f4"), geometry)


def test_a_flip_reverses_the_axes_it_names_and_moves_the_origin_to_the_far_corner() -> None:
    result, after = whole(CT, [Flip("0|2")], grid())
    np.testing.assert_array_equal(result, CT[:, ::-1, :, ::-1])
    assert after.geometry is not None
    assert after.geometry.origin == (-3 + 10 * 1.5, 5.0, 11 + 8 * 2.0)
    np.testing.assert_array_equal(after.geometry.direction[:, ::-1], np.diag([-1.0, 1.0, -1.0]))


def test_a_permutation_puts_input_axis_dims_k_at_output_axis_k() -> None:
    result, after = whole(CT, [Permute("2|0|1")], grid())
    np.testing.assert_array_equal(result, CT.transpose(0, 3, 1, 2))
    assert after.shape == (11, 9, 10)
    assert after.geometry is not None
    assert after.geometry.spacing == (1.5, 2.0, 1.75)


def test_a_resolution_after_a_permutation_finds_the_axis_that_has_moved() -> None:
    # Spacing x, y, z = 1.5, 1.5, 2 with x and z exchanged: x is 2 mm then, z 1.5 mm.
    source = source_of(np.zeros((1, 24, 30, 36), "f4"), grid((2.0, 1.5, 1.5)))
    assert plan(source, [Permute("2|1|0"), ResampleToResolution([3, 1.5, 2])]).result.shape == (27, 30, 16)


@pytest.mark.parametrize("dims", ["3", "0|0", "x", "", "-1", "0,1"])
def test_axes_that_do_not_exist_are_refused(dims: str) -> None:
    with pytest.raises(UsageError):
        Flip(dims).outcome(volume())
    with pytest.raises(UsageError):
        Permute(dims).outcome(volume())


def test_the_default_flip_is_for_three_axes() -> None:
    np.testing.assert_array_equal(whole(CT, [Flip()])[0], CT[:, ::-1, ::-1, ::-1])
    with pytest.raises(TransformError, match="2 spatial axes"):
        Flip().outcome(volume((5, 6)))


VECTORS = [
    # direction (columns x, y, z), axes read, output axes mirrored, shape, spacing x y z, origin
    (np.eye(3), (0, 1, 2), (1, 2), (9, 10, 11), (1.5, 1.75, 2.0), (12.0, 20.75, 11.0)),
    (
        np.array([[0.0, 0, 1], [0, 1, 0], [1, 0, 0]]),
        (2, 1, 0),
        (1, 2),
        (11, 10, 9),
        (2.0, 1.75, 1.5),
        (13.0, 20.75, 11.0),
    ),
    (CANONICAL, (0, 1, 2), (), (9, 10, 11), (1.5, 1.75, 2.0), (-3.0, 5.0, 11.0)),
]


@pytest.mark.parametrize(("direction", "order", "mirrored", "shape", "spacing", "origin"), VECTORS)
def test_canonical_exchanges_and_mirrors_axes_that_are_anatomical(
    direction: np.ndarray, order: tuple[int, ...], mirrored: tuple[int, ...], shape, spacing, origin
) -> None:
    result, after = whole(CT, [Canonical()], grid(direction_xyz=direction))
    expected = np.flip(CT.transpose(0, *(axis + 1 for axis in order)), [axis + 1 for axis in mirrored])
    np.testing.assert_array_equal(result, expected)
    assert after.shape == shape
    assert after.geometry is not None
    assert after.geometry.spacing[::-1] == spacing
    assert after.geometry.origin == origin
    np.testing.assert_array_equal(after.geometry.direction[:, ::-1], CANONICAL)


def test_canonical_reaches_the_same_direction_from_all_48_orientations_without_changing_a_value() -> None:
    for order, signs in product(permutations(range(3)), product((1.0, -1.0), repeat=3)):
        direction = np.eye(3)[:, order] * signs
        result, after = whole(CT, [Canonical()], grid(direction_xyz=direction))
        assert after.geometry is not None
        np.testing.assert_array_equal(after.geometry.direction[:, ::-1], CANONICAL)
        assert sorted(result.ravel().tolist()) == sorted(CT.ravel().tolist())
        places = places_of(after, grid(direction_xyz=direction))
        np.testing.assert_allclose(places, np.round(places), atol=1e-9)
        index = tuple(np.round(places).astype(int))
        np.testing.assert_array_equal(result[0], CT[0][index])


def test_canonical_in_a_ras_world_means_the_same_anatomy() -> None:
    lps = Geometry.from_parts(spacing=(2, 1.75, 1.5), origin=(-3, 5, 11), direction=OBLIQUE, coord_system="LPS")
    ours, lps_after = whole(CT, [Canonical()], lps)
    theirs, ras_after = whole(CT, [Canonical()], lps.in_frame("RAS"))
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * 450)
    assert lps_after.geometry is not None
    assert ras_after.geometry is not None
    assert lps_after.geometry.in_frame("RAS").is_close(ras_after.geometry)
    assert ras_after.geometry.orientation == "SAR"


def test_an_oblique_volume_is_sampled_at_the_world_places_of_a_straight_grid() -> None:
    geometry = grid(direction_xyz=OBLIQUE)
    result, after = whole(CT, [Canonical()], geometry)
    assert after.geometry is not None
    np.testing.assert_allclose(after.geometry.direction[:, ::-1], CANONICAL, atol=1e-12)
    centre = geometry.world([(n - 1) / 2 for n in CT.shape[1:]])
    np.testing.assert_allclose(after.geometry.world([(n - 1) / 2 for n in after.shape]), centre, atol=1e-9)
    found, inside = resampled_by_itk(CT[0], geometry, after)
    assert 0.4 < inside.mean() < 1
    # Blended in float32, by ITK in float64: three blends of one rounding each, of values up to the peak.
    np.testing.assert_allclose(result[0][inside], found[inside], atol=4 * np.finfo("f4").eps * np.abs(CT).max())


def test_beyond_an_oblique_volume_values_are_reflected_about_the_border_voxels() -> None:
    from scipy.ndimage import map_coordinates

    geometry = grid(direction_xyz=OBLIQUE)
    result, after = whole(CT.astype("f8"), [Canonical()], geometry)
    expected = map_coordinates(CT[0].astype("f8"), places_of(after, geometry), order=1, mode="mirror")
    np.testing.assert_allclose(result[0], expected, atol=1e-9)


def test_labels_of_an_oblique_volume_stay_labels() -> None:
    labels = np.random.default_rng(5).integers(0, 4, (1, 9, 10, 11)).astype("u1") * 60
    result, after = whole(labels, [Canonical()], grid(direction_xyz=OBLIQUE))
    assert set(np.unique(result)) <= {0, 60, 120, 180}
    found, inside = resampled_by_itk(labels[0], grid(direction_xyz=OBLIQUE), after, linear=False)
    # Half way between two voxels ITK takes the upper one, we the even one.
    inside &= (np.abs(places_of(after, grid(direction_xyz=OBLIQUE)) % 1 - 0.5) > 1e-9).all(axis=0)
    assert inside.sum() > 300
    np.testing.assert_array_equal(result[0][inside], found[inside])
    wide = whole(labels.astype("i2"), [Canonical()], grid(direction_xyz=OBLIQUE), is_label=True)[0]
    np.testing.assert_array_equal(wide, result)


def test_a_grid_that_is_almost_sagittal_carries_its_extents_along() -> None:
    turn = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])
    tilt = np.array([[math.cos(0.1), -math.sin(0.1), 0], [math.sin(0.1), math.cos(0.1), 0], [0, 0, 1]])
    straight = plan(source_of(CT, grid(direction_xyz=turn)), [Canonical()]).result
    tilted = plan(source_of(CT, grid(direction_xyz=tilt @ turn)), [Canonical()]).result
    assert straight.shape == tilted.shape == (10, 11, 9)
    assert straight.geometry is not None
    assert tilted.geometry is not None
    np.testing.assert_allclose(straight.geometry.spacing, tilted.geometry.spacing, rtol=1e-12)


@pytest.mark.parametrize(
    "matrix",
    [
        [[0.5, 0.5, 0], [0.5, -0.5, 0], [0, 0, 1]],  # columns add up to 1
        [[1, 0.001, 0], [0, 1, 0], [0, 0, 1]],
        [[1, 1, 0], [0, 0, 0], [0, 0, 1]],  # an axis twice
        [[0.99, 0, 0], [0, 1, 0], [0, 0, 1]],
    ],
)
def test_a_matrix_that_mixes_axes_is_not_taken_for_an_exchange(matrix: list[list[float]]) -> None:
    assert signed_permutation(np.array(matrix, dtype=float)) is None


def test_a_sheared_volume_is_sampled_and_its_voxels_keep_their_places() -> None:
    sheared = np.array([[1.0, 0.3, 0], [0, 1, 0.2], [0, 0, 1]])
    geometry = Geometry(np.block([[sheared * [2, 1.75, 1.5], np.ones((3, 1))], [np.zeros((1, 3)), np.ones((1, 1))]]))
    result, after = whole(CT.astype("f8"), [Canonical()], geometry)
    from scipy.ndimage import map_coordinates

    expected = map_coordinates(CT[0].astype("f8"), places_of(after, geometry), order=1, mode="mirror")
    np.testing.assert_allclose(result[0], expected, atol=1e-9)


def test_without_a_direction_there_is_no_canonical_orientation() -> None:
    for unknown in (None, Geometry.from_parts(spacing=(1, 1, 1)), Geometry.from_parts(direction=np.eye(2))):
        ndim = 3 if unknown is None else unknown.ndim
        with pytest.raises(TransformError, match="direction is not known"):
            Canonical().outcome(volume((5,) * ndim, unknown))


@pytest.mark.parametrize(
    "chain",
    [
        [Flip("0|2")],
        [Permute("2|0|1")],
        [Flip("1"), Permute("1|2|0"), Flip("0")],
        [Canonical()],
    ],
)
def test_orientations_are_undone_exactly(chain: list[Transform]) -> None:
    for direction in (np.eye(3), CANONICAL[:, [2, 0, 1]]):
        geometry = grid(direction_xyz=direction)
        forward = plan(source_of(CT, geometry), chain)
        back = forward.inverse(source_of(forward.read_whole()), patch_size=4)
        np.testing.assert_array_equal(back.read_whole(), CT)
        assert back.result.geometry == geometry
        patch = Region((2, 3, 5), (6, 7, 9))
        np.testing.assert_array_equal(back.read(patch), CT[(slice(None), *patch.slices)])


def test_an_oblique_volume_comes_back_on_its_grid() -> None:
    geometry = grid(direction_xyz=OBLIQUE)
    smooth = np.indices((20, 22, 24)).sum(axis=0)[np.newaxis].astype("f8")
    forward = plan(source_of(smooth, geometry), [Canonical()])
    back = forward.inverse(source_of(forward.read_whole()), patch_size=8)
    assert back.result.geometry == geometry
    middle = (slice(None), slice(8, 12), slice(8, 14), slice(8, 16))
    np.testing.assert_allclose(back.read_whole()[middle], smooth[middle], atol=1e-9)  # linear in space: exact


def test_a_transform_with_inverse_false_is_not_undone() -> None:
    forward = plan(source_of(CT, grid()), [Flip("0", inverse=False)])
    np.testing.assert_array_equal(forward.inverse(source_of(forward.read_whole())).read_whole(), CT[:, ::-1])


class TestFlip(TransformConformance):
    def transform(self) -> Transform:
        return Flip("0")


class TestPermute(TransformConformance):
    def transform(self) -> Transform:
        return Permute("2|0|1")


class TestCanonicalOblique(TransformConformance):
    def transform(self) -> Transform:
        return Canonical()


class TestCanonicalExchange(TransformConformance):
    def transform(self) -> Transform:
        return Canonical()

    def samples(self) -> list[Sample]:
        return [Sample(CT[:, :5, :6, :7], grid(direction_xyz=VECTORS[1][0]))]
