"""Anatomical codes and the two world frames, with values of the standards."""

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.orientation import axis_codes, closest_permutation, flip_frame, is_orthogonal


def rotation(degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def test_identity_runs_to_the_letters_of_its_frame() -> None:
    assert axis_codes(np.eye(3), frame="LPS") == "LPS"
    assert axis_codes(np.eye(3), frame="RAS") == "RAS"


def test_an_array_of_slices_from_dicom_runs_up_back_and_left() -> None:
    zyx = np.array([[0, 0, 0.7], [0, 0.7, 0], [3.0, 0, 0]])
    assert axis_codes(zyx, frame="LPS") == "SPL"
    assert axis_codes(-zyx, frame="LPS") == "IAR"
    assert axis_codes(zyx, frame="RAS") == "SAR"


def test_fewer_axes_than_the_world_has_can_be_oriented_and_more_cannot() -> None:
    assert axis_codes(np.array([[0.0, 1], [0, 0], [1, 0]]), frame="RAS") == "SR"
    with pytest.raises(UsageError, match="3 axes cannot be oriented in a world of 2"):
        closest_permutation(np.ones((2, 3)))


@pytest.mark.parametrize("degrees", [0, 30, 44, 45, 60, 90, 135])
def test_every_rotation_gives_a_permutation(degrees: float) -> None:
    found = closest_permutation(rotation(degrees))
    assert sorted(world for world, _ in found) == [0, 1, 2]


def test_at_45_degrees_the_smaller_world_axis_comes_first() -> None:
    assert [world for world, _ in closest_permutation(rotation(45))] == [0, 1, 2]


def test_the_best_assignment_as_a_whole_wins_over_the_best_axis() -> None:
    # Both columns are closest to x; the second can move to y at a smaller price than the first.
    linear = np.array([[0.9, 0.8], [0.436, 0.6]])
    assert [world for world, _ in closest_permutation(linear)] == [0, 1]
    assert [world for world, _ in closest_permutation(linear[:, ::-1])] == [1, 0]


def test_an_axis_without_a_direction_has_no_orientation() -> None:
    with pytest.raises(UsageError, match="zero column"):
        axis_codes(np.diag([1.0, 0.0, 1.0]), frame="LPS")
    assert not is_orthogonal(np.diag([1.0, 0.0, 1.0]))


def test_the_frames_differ_by_the_sign_of_x_and_y() -> None:
    assert np.array_equal(flip_frame(3), np.diag([-1.0, -1, 1, 1]))
    assert np.array_equal(flip_frame(2), np.diag([-1.0, -1, 1]))
    assert np.array_equal(flip_frame(1), np.diag([-1.0, 1]))
    assert np.array_equal(flip_frame(3) @ flip_frame(3), np.eye(4))


def test_right_angles_are_judged_within_what_float32_headers_hold() -> None:
    assert is_orthogonal(rotation(33).astype(np.float32) * [0.5, 2, 7])
    sheared = np.eye(3)
    sheared[1, 2] = 2e-4
    assert not is_orthogonal(sheared)
    assert is_orthogonal(sheared, tolerance=1e-3)
