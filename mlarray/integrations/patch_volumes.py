"""How do MONAI and TorchIO look at a patch? As a volume with the axes x, y, z, placed in RAS+ world space.

Patches of this package have the axes z, y, x and whatever world frame their file states. Both are turned here, by views alone.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mlarray.errors import UsageError
from mlarray.orientation import flip_frame
from mlarray.sources.base import NDArray
from mlarray.streaming.arguments import instance, one_of
from mlarray.streaming.batch import Sample

Frame: TypeAlias = Literal["RAS", "LPS"]


def xyz_volume(sample: Sample, group: str) -> NDArray:
    """Return the patch of a group as a view of shape (C, X, Y, Z); a two-dimensional one has one slice.

    Raises
    ------
    UsageError
        The sample has no such group, or the patch has another number of axes than 2 and 3.
    """
    instance("sample", sample, Sample, "batch.samples holds them.")
    if not isinstance(group, str) or group not in sample.arrays:
        raise UsageError(f"Case {sample.case!r} has no group {group!r}; it has {', '.join(map(repr, sample.arrays))}.")
    array = sample.arrays[group]
    extents = sample.region.shape
    if len(extents) not in (2, 3):
        raise UsageError(f"A volume has 2 or 3 spatial axes, {group!r} of case {sample.case!r} has {len(extents)}.")
    for axis, extent in enumerate(extents):
        if array.ndim - 1 < len(extents) and extent == 1:
            array = np.expand_dims(array, axis + 1)  # which the loader squeezed
    if array.ndim == 3:
        array = array[:, None]
    return array.transpose(0, 3, 2, 1)


def ras_affine(sample: Sample, group: str, *, frame: Frame | None = None) -> npt.NDArray[np.float64] | None:
    """Return the map from x, y, z index to RAS+ millimetres, shape (4, 4), or None where the case says nothing.

    Parameters
    ----------
    sample : Sample
        The patch.
    group : str
        Whose geometry.
    frame : {"RAS", "LPS"}, optional
        World frame of a case whose file does not say which.

    Raises
    ------
    UsageError
        The world frame is not known and ``frame`` does not say, or it is not anatomical.
    """
    instance("sample", sample, Sample, "batch.samples holds them.")
    if frame is not None:
        one_of("frame", frame, ("RAS", "LPS"))
    geometry = sample.geometry.get(group) if isinstance(group, str) else None
    if geometry is None:
        return None
    stated = (geometry.coord_system or frame or "").rstrip("+")
    if stated not in ("RAS", "LPS"):
        raise UsageError(
            f"The world frame of {group!r} of case {sample.case!r} is {geometry.coord_system!r}, neither RAS nor LPS.",
            hint='Where the file does not say, say it: frame="LPS" for data of ITK or DICOM, frame="RAS" for NIfTI.',
        )
    affine = sample.affine(group)[:, (2, 1, 0, 3)]
    return affine if stated == "RAS" else np.asarray(flip_frame(3) @ affine)
