"""The same results by other libraries: SimpleITK as the independent reference for everything that samples a volume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk

from mlarray.geometry import Geometry
from mlarray.streaming import plan
from mlarray.testing.transforms import source_of
from mlarray.transforms import Transform, Volume
from mlarray.transforms.augmentations import Augmentation, AugmentationList

Array = npt.NDArray[Any]

OBLIQUE = np.array([[0.8, -0.36, 0.48], [0.6, 0.48, -0.64], [0.0, 0.8, 0.6]])
"""A rotation with short decimals."""


def grid(
    spacing: Sequence[float] = (2.0, 1.75, 1.5),
    origin: Sequence[float] = (-3.0, 5.0, 11.0),
    direction_xyz: Array | None = None,
) -> Geometry:
    """A geometry given as ITK gives it: the direction's columns are x, y, z. Spacing in array order."""
    direction = np.eye(len(spacing)) if direction_xyz is None else direction_xyz
    return Geometry.from_parts(spacing=spacing, origin=origin, direction=direction[:, ::-1])


def image_of(array: Array, geometry: Geometry) -> sitk.Image:
    """One channel as an ITK image."""
    image = sitk.GetImageFromArray(array)
    image.SetSpacing(geometry.spacing[::-1])
    image.SetOrigin(geometry.origin)
    image.SetDirection(geometry.direction[:, ::-1].ravel().tolist())
    return image


def resampled_by_itk(array: Array, geometry: Geometry, result: Volume, *, linear: bool = True) -> tuple[Array, Array]:
    """What ITK finds at the places where the result's geometry says its voxels are, and whether these lie within the volume."""
    target = result.geometry
    assert target is not None
    reference = image_of(np.zeros(result.shape, dtype=np.uint8), target)
    found = sitk.Resample(
        image_of(array, geometry),
        reference,
        sitk.Transform(),
        sitk.sitkLinear if linear else sitk.sitkNearestNeighbor,
        0.0,
        sitk.sitkFloat64,
    )
    places = places_of(result, geometry)
    last = np.array(array.shape).reshape(-1, 1, 1, 1) - 1
    return sitk.GetArrayFromImage(found), ((places >= -1e-9) & (places <= last + 1e-9)).all(axis=0)


def places_of(result: Volume, geometry: Geometry) -> Array:
    """Continuous indices, within a volume of ``geometry``, of the voxels of a result: by the worlds of both."""
    assert result.geometry is not None
    back = np.linalg.inv(geometry.affine) @ result.geometry.affine
    index = np.indices(result.shape).reshape(len(result.shape), -1)
    return (back[:-1, :-1] @ index + back[:-1, -1:]).reshape(len(result.shape), *result.shape)


def whole(
    array: Array, chain: Sequence[Transform], geometry: Geometry | None = None, *, is_label: bool = False
) -> tuple[Array, Volume]:
    """The whole result of a chain on an array ``[C, spatial...]``, and its volume."""
    planned = plan(source_of(array, geometry, is_label=is_label), chain)
    return planned.read_whole(), planned.result


def drawn(
    augmentation: Augmentation, array: Array, geometry: Geometry | None = None, *, seed: int = 0, is_label: bool = False
) -> list[Transform]:
    """The transforms that an augmentation draws for copy 1."""
    planned = plan(
        source_of(array, geometry, is_label=is_label),
        [],
        augmentations=[AugmentationList([augmentation], nb=1)],
        copy=1,
        seed=seed,
    )
    return [stage.transform for stage in planned.chain.stages]
