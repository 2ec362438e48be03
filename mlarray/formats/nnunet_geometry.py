"""Where in the world are the voxels that nnU-Net has preprocessed?

nnU-Net reads an image, puts its axes into another order (``transpose_forward`` of the plans), crops it to what is not zero
and resamples the crop. The properties of a case tell all but the order: the position of the image as its reader saw it, the
box of the crop and the shape before resampling. The shape after it is that of the array.

Resampling aligns the outer edges of the voxels, not their centres, along every axis of *m* voxels that become *n*: voxel *i*
of the array lies at ``(i + 1/2) m/n - 1/2`` of the crop. The spacing is therefore ``m/n`` of the old one, which the target
spacing of the plans is only up to the rounding of the shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlarray.axes import Axis, parse_axes
from mlarray.errors import UsageError
from mlarray.geometry import SPACING_RTOL, Geometry
from mlarray.sources.base import NDArray, Note

IMAGE_AXES = "zyx"  # in which every reader of nnU-Net delivers an image
_CROPPED = "shape_after_cropping_and_before_resampling"
_PLACEHOLDER = 999.0  # times the spacing within the plane, along the axis that a 2D image does not have


@dataclass(frozen=True, slots=True)
class Placement:
    """What is known of the axes and the position of a preprocessed array.

    Parameters
    ----------
    axes : tuple of Axis
        Of the array, the channel first.
    geometry : Geometry or None
        None where nothing is known.
    notes : tuple of Note
        What is not known, and why.
    """

    axes: tuple[Axis, ...]
    geometry: Geometry | None
    notes: tuple[Note, ...] = ()


def placed(properties: Mapping[str, object], shape: Sequence[int], transpose: Sequence[int] | None) -> Placement:
    """Return axes and geometry of a preprocessed array.

    Parameters
    ----------
    properties : mapping
        As nnU-Net keeps them for the case.
    shape : sequence of int
        Of the array (channel, then three spatial axes).
    transpose : sequence of int or None
        ``transpose_forward`` of the plans; None when they are not at hand.

    Returns
    -------
    Placement
        In LPS where the world frame is known.
    """
    axes = parse_axes(f"c{IMAGE_AXES}")
    if transpose is None:
        told = f"The plans of nnU-Net are not beside the folder, which tell the order of the axes: c{IMAGE_AXES} is assumed."
        return Placement(axes, None, (Note("axes-assumed", told), _unknown("the plans are missing")))
    names = [IMAGE_AXES[axis] for axis in transpose]
    axes = parse_axes(["c", *names])
    try:
        image = image_geometry(properties)
        return Placement(axes, _preprocessed(image, properties, shape[1:], transpose))
    except (UsageError, ValueError, TypeError, IndexError, KeyError, np.linalg.LinAlgError) as error:
        return Placement(axes, None, (_unknown(_reason(error)),))


def image_geometry(properties: Mapping[str, object]) -> Geometry:
    """Return where the image lay that nnU-Net read, array axes z, y, x.

    Raises
    ------
    ValueError
        When the properties do not tell; the message says why.
    """
    spacing = _numbers(properties["spacing"], 3)
    itk, nibabel = properties.get("sitk_stuff"), properties.get("nibabel_stuff")
    if isinstance(itk, Mapping):
        return _of_itk(itk, spacing)
    if isinstance(nibabel, Mapping):
        matrix = nibabel.get("reoriented_affine", nibabel.get("original_affine"))
        affine = np.asarray(matrix, dtype=np.float64)
        if affine.shape != (4, 4):
            raise ValueError("the affine is no matrix of 4 by 4")
        return Geometry(affine[:, [2, 1, 0, 3]], "RAS").in_frame("LPS")
    if spacing[0] >= _PLACEHOLDER or np.all(spacing == 1.0):
        raise ValueError("the reader of the images knew no voxel size")
    return Geometry.from_parts(spacing=spacing.tolist())


def _of_itk(itk: Mapping[str, object], spacing: NDArray) -> Geometry:
    """Return the geometry of an image that SimpleITK read: its parts are in x, y, z order, LPS."""
    steps = np.asarray(itk["spacing"], dtype=np.float64)
    count = len(steps)
    if count == 2:
        raise ValueError("the image has two axes")
    direction = np.asarray(itk["direction"], dtype=np.float64).reshape(count, count)
    origin = np.asarray(itk["origin"], dtype=np.float64)
    if origin.shape != (count,) or count not in (3, 4):
        raise ValueError("the header that SimpleITK read is not that of an image of three axes")
    if count == 4 and (np.any(direction[3, :3]) or np.any(direction[:3, 3])):
        raise ValueError("the fourth axis of the image is mixed with space")
    if not np.allclose(np.abs(steps[2::-1]), spacing, rtol=SPACING_RTOL, atol=0):
        raise ValueError("the spacing stands in the properties twice and differs")
    affine = np.eye(4)
    affine[:3, :3] = (direction[:3, :3] * steps[:3])[:, ::-1]
    affine[:3, 3] = origin[:3]
    return Geometry(affine, "LPS")


def _preprocessed(
    image: Geometry, properties: Mapping[str, object], shape: Sequence[int], transpose: Sequence[int]
) -> Geometry:
    """Return the geometry after transposing, cropping and resampling."""
    box = np.asarray(properties["bbox_used_for_cropping"], dtype=np.float64)
    cropped = _numbers(properties[_CROPPED], 3)
    whole = _numbers(properties["shape_before_cropping"], 3)
    if box.shape != (3, 2) or np.any(box[:, 1] - box[:, 0] != cropped):
        raise ValueError("the box of the crop does not fit the shape after it")
    if np.any(box[:, 0] < 0) or np.any(box[:, 1] > whole) or np.any(cropped < 1) or min(shape) < 1:
        raise ValueError("the box of the crop is empty or outside the image")
    turned = image.permuted(transpose)
    ratio = cropped / np.asarray(shape, dtype=np.float64)
    if "origin" in image.known:
        affine = turned.affine.copy()
        affine[:3, 3] = turned.world((box[:, 0] + (ratio - 1.0) / 2.0).tolist())
        turned = Geometry(affine, image.coord_system, image.known)
    return turned.rescaled(ratio.tolist())


def _numbers(value: object, count: int) -> NDArray:
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.shape != (count,) or not np.all(np.isfinite(numbers)):
        raise ValueError(f"{count} numbers were expected, not {str(value)[:40]}")
    return numbers


def _unknown(why: str) -> Note:
    return Note("geometry-unknown", f"The position of the preprocessed voxels is not known: {why}.")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the properties have no {error.args[0]}"
    return (error.message if isinstance(error, UsageError) else str(error)).rstrip(".")
