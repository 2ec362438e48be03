"""One affine says where a voxel is; what a header did not state stays unknown."""

import pickle

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region

OBLIQUE = np.array([[0, 0.6, -0.8, 10], [0, 0.8, 0.6, -20], [3, 0, 0, 30], [0, 0, 0, 1.0]])


def test_spacing_origin_and_direction_are_views_of_the_affine() -> None:
    geometry = Geometry(OBLIQUE, "LPS")
    assert geometry.spacing == (3.0, 1.0, 1.0)
    assert geometry.origin == (10.0, -20.0, 30.0)
    assert np.array_equal(geometry.direction, [[0, 0.6, -0.8], [0, 0.8, 0.6], [1, 0, 0]])
    assert np.array_equal(geometry.direction * geometry.spacing, geometry.linear)
    assert geometry.world((1, 0, 2)) == pytest.approx((8.4, -18.8, 33.0))


def test_parts_that_are_not_given_are_neutral_and_unknown() -> None:
    geometry = Geometry.from_parts(spacing=(3, 1, 1))
    assert geometry.known == {"spacing"}
    assert geometry.origin == (0.0, 0.0, 0.0)
    assert geometry != Geometry.from_parts(spacing=(3, 1, 1), origin=(0, 0, 0))


def test_unknown_spacing_is_not_a_spacing_of_one() -> None:
    unknown = Geometry.from_parts(ndim=3)
    assert unknown.spacing == (1.0, 1.0, 1.0)
    assert "spacing" not in unknown.known
    assert "spacing" in Geometry.from_parts(spacing=(1, 1, 1)).known


@pytest.mark.parametrize(
    ("affine", "message"),
    [
        (np.eye(3)[:2], "square matrix"),
        (np.eye(1), "square matrix"),
        (np.diag([1, np.nan, 1, 1]), "finite"),
        (np.diag([1, 1, 0, 1]), "singular"),
        ([[1, 1, 0], [1, 1, 0], [0, 0, 1]], "singular"),
        (np.diag([1, 1, 1, 2]), "last row"),
    ],
)
def test_an_affine_that_is_no_map_is_refused(affine: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Geometry(affine)  # type: ignore[arg-type]


def test_very_small_and_very_large_voxels_are_not_singular() -> None:
    assert Geometry(np.diag([1e-6, 1e-6, 1e-6, 1])).spacing == (1e-6, 1e-6, 1e-6)
    assert Geometry(np.diag([1e-5, 1e4, 1, 1])).spacing == (1e-5, 1e4, 1.0)


def test_parts_must_agree() -> None:
    with pytest.raises(UsageError, match=r"agree on the number of axes, got \[2, 3\]"):
        Geometry.from_parts(spacing=(1, 1), origin=(0, 0, 0))
    with pytest.raises(UsageError, match="agree on the number of axes"):
        Geometry.from_parts()
    with pytest.raises(UsageError, match=r"direction matrix for 2 axes has shape \(2, 2\)"):
        Geometry.from_parts(spacing=(1, 1), direction=[[1, 0, 0], [0, 1, 0]])
    with pytest.raises(UsageError, match="singular"):
        Geometry.from_parts(spacing=(1, 0))


def test_the_affine_cannot_be_changed_also_not_after_pickling() -> None:
    geometry = Geometry(OBLIQUE)
    for each in (geometry, pickle.loads(pickle.dumps(geometry))):
        assert each == geometry
        with pytest.raises(ValueError, match="read-only"):
            each.affine[0, 0] = 5
    given = np.eye(4)
    Geometry(given)
    given[0, 0] = 2  # the caller's array stays the caller's


def test_equal_geometries_have_equal_hashes_whatever_the_sign_of_zero() -> None:
    there = Geometry(np.eye(3))
    back = there.flipped(0, 5).flipped(0, 5)
    assert back == there
    assert hash(back) == hash(there)


def test_a_flip_moves_the_origin_to_the_other_end() -> None:
    flipped = Geometry(OBLIQUE).flipped(0, 11)
    assert flipped.world((0, 0, 0)) == (10.0, -20.0, 60.0)
    assert flipped.spacing == (3.0, 1.0, 1.0)


def test_rescaling_keeps_the_centre_of_the_first_voxel() -> None:
    rescaled = Geometry(OBLIQUE).rescaled((0.5, 2, 1))
    assert rescaled.spacing == (1.5, 2.0, 1.0)
    assert rescaled.origin == (10.0, -20.0, 30.0)


def test_the_frame_changes_with_the_sign_of_x_and_y() -> None:
    lps = Geometry(OBLIQUE, "LPS+")
    ras = lps.in_frame("RAS")
    assert ras.coord_system == "RAS"
    assert ras.world((1, 2, 3)) == tuple(np.array(lps.world((1, 2, 3))) * [-1, -1, 1])
    assert lps.in_frame("LPS") is lps
    assert ras.orientation == lps.orientation == "SPR"


@pytest.mark.parametrize("frame", [None, "scanner", "unknown"])
def test_a_frame_that_is_not_anatomical_is_not_guessed(frame: str | None) -> None:
    geometry = Geometry(np.eye(4), frame)
    assert geometry.orientation is None
    with pytest.raises(UsageError, match="not RAS or LPS"):
        geometry.in_frame("LPS")


def test_an_unknown_direction_has_no_orientation() -> None:
    assert Geometry.from_parts(spacing=(1, 1, 1), coord_system="LPS").orientation is None
    assert Geometry(np.eye(3), "LPS").orientation is None


def test_geometries_are_close_within_float32_headers_and_not_beyond() -> None:
    geometry = Geometry(OBLIQUE)
    shifted = OBLIQUE.copy()
    shifted[0, 3] += 0.0005
    assert geometry.is_close(Geometry(shifted))
    shifted[0, 3] += 0.01
    assert not geometry.is_close(Geometry(shifted))
    assert not geometry.is_close(geometry.rescaled((1.0001, 1, 1)))
    assert not geometry.is_close(Geometry(np.eye(3)))


def test_shear_is_seen() -> None:
    assert not Geometry(OBLIQUE).is_sheared
    tilted = OBLIQUE.copy()
    tilted[0, 0] = 0.5
    assert Geometry(tilted).is_sheared


def test_a_crop_starts_where_its_first_voxel_is() -> None:
    geometry = Geometry(OBLIQUE)
    assert geometry.cropped(Region((2, -1, 3), (5, 5, 5))).origin == geometry.world((2, -1, 3))
