"""A patch as other packages look at it: axes x, y, z, and an affine to RAS+ millimetres."""

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.integrations.patch_volumes import ras_affine, xyz_volume
from mlarray.region import Region
from mlarray.streaming.batch import Sample


def sample(frame: str | None = "LPS", shape: tuple[int, ...] = (2, 3, 4), squeezed: tuple[int, ...] = ()) -> Sample:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(1, *shape)
    spacing, origin = (3.0, 2.0, 1.0)[-len(shape) :], (10.0, 20.0, 30.0)[: len(shape)]
    direction = np.eye(len(shape))[::-1]  # z, y, x axes along world z, y, x
    geometry = Geometry.from_parts(spacing=spacing, origin=origin, direction=direction, coord_system=frame)
    arrays = {"CT": array.squeeze(squeezed) if squeezed else array}
    return Sample(arrays, "case_1", 0, Region((0,) * len(shape), shape), {"CT": geometry})


def test_axes_are_turned_to_x_y_z_as_a_view() -> None:
    one = sample()
    volume = xyz_volume(one, "CT")
    assert volume.shape == (1, 4, 3, 2)
    assert volume[0, 3, 1, 0] == one.arrays["CT"][0, 0, 1, 3]
    assert np.shares_memory(volume, one.arrays["CT"])


@pytest.mark.parametrize(
    ("frame", "given", "expected"),
    [
        ("LPS", None, [[-1, 0, 0, -10], [0, -2, 0, -20], [0, 0, 3, 30], [0, 0, 0, 1]]),
        ("RAS", None, [[1, 0, 0, 10], [0, 2, 0, 20], [0, 0, 3, 30], [0, 0, 0, 1]]),
        ("RAS+", "LPS", [[1, 0, 0, 10], [0, 2, 0, 20], [0, 0, 3, 30], [0, 0, 0, 1]]),
        (None, "LPS", [[-1, 0, 0, -10], [0, -2, 0, -20], [0, 0, 3, 30], [0, 0, 0, 1]]),
        (None, "RAS", [[1, 0, 0, 10], [0, 2, 0, 20], [0, 0, 3, 30], [0, 0, 0, 1]]),
    ],
)
def test_the_affine_leads_from_x_y_z_to_ras(frame: str | None, given: str | None, expected: list[list[float]]) -> None:
    affine = ras_affine(sample(frame), "CT", frame=given)  # type: ignore[arg-type]
    assert affine is not None
    assert affine.tolist() == expected


def test_a_frame_that_nobody_states_is_not_guessed() -> None:
    with pytest.raises(UsageError, match=r"of 'CT' of case 'case_1' is None, neither RAS nor LPS.*frame=\"LPS\""):
        ras_affine(sample(None), "CT")


def test_a_case_that_lies_nowhere_has_no_affine() -> None:
    one = sample()
    assert ras_affine(Sample(one.arrays, "case_1", 0, one.region, {"CT": None}), "CT") is None


@pytest.mark.parametrize(
    ("shape", "squeezed", "expected"),
    [
        ((3, 4), (), (1, 4, 3, 1)),
        ((1, 3, 4), (1,), (1, 4, 3, 1)),
        ((2, 1, 4), (2,), (1, 4, 1, 2)),
        ((1, 3, 1), (1, 3), (1, 1, 3, 1)),
    ],
)
def test_flat_patches_become_volumes(
    shape: tuple[int, ...], squeezed: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert xyz_volume(sample(shape=shape, squeezed=squeezed), "CT").shape == expected


def test_a_group_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="has no group 'PET'; it has 'CT'"):
        xyz_volume(sample(), "PET")
