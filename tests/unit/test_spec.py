"""A spec says everything that can be known before a voxel is read, and refuses what contradicts itself."""

import pickle

import numpy as np
import pytest

from mlarray.axes import Axis, default_axes, parse_axes
from mlarray.errors import DTypeError, UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.spec import ArraySpec


def test_a_spec_counts_voxels_and_bytes() -> None:
    spec = ArraySpec((2, 3, 4), np.dtype(np.int16))
    assert (spec.ndim, spec.size, spec.nbytes) == (3, 24, 48)
    assert spec.region == Region((0, 0, 0), (2, 3, 4))
    assert spec.axes == default_axes(3)
    assert spec.spatial_shape == (2, 3, 4)


def test_only_spatial_axes_have_a_spatial_shape() -> None:
    spec = ArraySpec((5, 3, 4), np.dtype("f4"), parse_axes("tyx"), Geometry(np.eye(3)))
    assert spec.spatial == (False, True, True)
    assert spec.spatial_shape == (3, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((-1, 2), "f4"), "negative extent"),
        (((2.5, 2), "f4"), "made of integers"),
        (((2, 2), "f4", parse_axes("x")), r"1 axes were given for an array of shape \(2, 2\)"),
        (((2, 2), "f4", (Axis("x"), Axis("x"))), "names must be unique"),
        (((2, 2), "f4", parse_axes("cx"), Geometry(np.eye(3))), "geometry has 2 axes, the array has 1 spatial"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ArraySpec(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["O", "S4", "U3", "M8[s]", [("r", "u1"), ("g", "u1")], "V3"])
def test_only_numbers_can_be_stored(dtype: object) -> None:
    with pytest.raises(DTypeError, match="cannot be stored"):
        ArraySpec((2,), np.dtype(dtype))  # type: ignore[call-overload]


def test_permuting_moves_axes_and_geometry_together() -> None:
    affine = np.diag([3.0, 2.0, 1.0, 1.0])
    spec = ArraySpec((9, 2, 3, 4), np.dtype("u1"), parse_axes("czyx"), Geometry(affine))
    permuted = spec.permuted((3, 0, 1, 2))
    assert permuted.shape == (4, 9, 2, 3)
    assert [axis.name for axis in permuted.axes] == ["x", "c", "z", "y"]
    assert permuted.geometry is not None
    assert permuted.geometry.spacing == (1.0, 3.0, 2.0)


def test_specs_are_values() -> None:
    spec = ArraySpec((2, 3), np.dtype(">i2"), parse_axes("yx"), Geometry(np.eye(3), "LPS"))
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    assert hash(copy) == hash(spec)
