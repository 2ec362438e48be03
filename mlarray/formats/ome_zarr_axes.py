"""How are the axes of an array, and their place in the world, said in OME-NGFF 0.4 and 0.5?

The specification wants two or three axes of space last, at most one of time first, and at most one other between them. What
it has no words for (directions that are not along the axes of the body, shear, a world without a name, the order and the
names of the axes) is kept beside it, see ``ome_zarr_kept.py``; here is what every reader sees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import DTypeError, UsageError
from mlarray.formats.file_axes import SPATIAL_NAMES
from mlarray.formats.ome_zarr_multiscale import world_rows
from mlarray.formats.ome_zarr_units import TIMES, direction_value, length_name
from mlarray.geometry import Geometry
from mlarray.orientation import closest_permutation
from mlarray.sources.base import Note
from mlarray.spec import ArraySpec

_TITLE = "OME-Zarr"
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")
_ALONG = 1e-6  # cosine beside an axis of the body below which a direction counts as lying along it


@dataclass(frozen=True, slots=True)
class StoredAxes:
    """How an array is laid out in a hierarchy.

    Parameters
    ----------
    order : tuple of int
        Array axes in the order in which they are stored.
    axes : tuple of dict
        The ``axes`` of the metadata, in that order.
    scale : tuple of float
        Per stored axis.
    translation : tuple of float or None
        Per stored axis; None where no origin is known.
    spatial : tuple of bool
        Per stored axis.
    dtype : numpy dtype
        Of the stored voxels, little endian.
    notes : tuple of Note
        What is assumed, converted or kept beside the specification only.
    """

    order: tuple[int, ...]
    axes: tuple[dict[str, Any], ...]
    scale: tuple[float, ...]
    translation: tuple[float, ...] | None
    spatial: tuple[bool, ...]
    dtype: np.dtype[Any]
    notes: tuple[Note, ...]

    def shape(self, spec: ArraySpec) -> tuple[int, ...]:
        """Return the extents in stored order."""
        return tuple(spec.shape[axis] for axis in self.order)


def stored_axes(spec: ArraySpec, *, is_seg: bool = False) -> StoredAxes:
    """Choose how an array is stored.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    is_seg : bool
        Whether it is a segmentation; those are made of integers.

    Raises
    ------
    UsageError
        When its axes are none that the specification allows.
    DTypeError
        For numbers that zarr does not have.
    """
    notes: list[Note] = []
    dtype = _stored_dtype(spec.dtype, notes, is_seg=is_seg)
    order = _stored_order(spec)
    spatial = [axis for axis in order if spec.axes[axis].is_spatial]
    names = _names(spec, order, notes)
    positions = [position for position, is_space in enumerate(spec.spatial) if is_space]
    geometry = None if spec.geometry is None else spec.geometry.permuted([positions.index(axis) for axis in spatial])
    rows = world_rows([name for name, axis in zip(names, order, strict=True) if spec.axes[axis].is_spatial])
    directions, placed = _directions(geometry, rows, notes)
    axes, scale, shift = [], [], []
    for name, axis in zip(names, order, strict=True):
        known = spec.axes[axis]
        entry: dict[str, Any] = {"name": name}
        if known.is_spatial:
            place = spatial.index(axis)
            entry["type"] = "space"
            unit = _length_unit(known, geometry)
            if directions is not None:
                entry["orientation"] = {"type": "anatomical", "value": direction_value(*directions[place])}
            has_spacing = geometry is not None and "spacing" in geometry.known
            scale.append(geometry.spacing[place] if geometry is not None and has_spacing else 1.0)
            shift.append(placed[place])
        else:
            kind = {"time": "time", "channel": "channel", "components": "channel"}.get(known.type or "other")
            if kind is not None:
                entry["type"] = kind
            unit = known.unit if kind == "time" and known.unit in TIMES else None
            scale.append(known.step if kind == "time" and known.step is not None and known.step > 0 else 1.0)
            shift.append(0.0)
        if unit is not None:
            entry["unit"] = unit
        axes.append(entry)
    has_origin = geometry is not None and "origin" in geometry.known
    spaces = tuple(spec.axes[axis].is_spatial for axis in order)
    return StoredAxes(
        order, tuple(axes), tuple(scale), tuple(shift) if has_origin else None, spaces, dtype, tuple(notes)
    )


def _stored_order(spec: ArraySpec) -> tuple[int, ...]:
    times = [i for i, axis in enumerate(spec.axes) if axis.type == "time"]
    spaces = [i for i, axis in enumerate(spec.axes) if axis.is_spatial]
    others = [i for i in range(spec.ndim) if i not in (*times, *spaces)]
    if not 2 <= len(spaces) <= 3 or len(times) > 1 or len(others) > 1:
        told = ", ".join(f"{axis.name} ({axis.type})" for axis in spec.axes) or "none"
        raise UsageError(
            f"{_TITLE} has 2 or 3 axes of space, at most one of time and one other; the array has {told}.",
            hint="Keep it as .mla, or split it.",
        )
    names = [spec.axes[i].name.lower() for i in spaces]
    if set(names) <= set(SPATIAL_NAMES):
        spaces.sort(key=lambda i: SPATIAL_NAMES.index(spec.axes[i].name.lower()))
    return (*times, *others, *spaces)


def _names(spec: ArraySpec, order: Sequence[int], notes: list[Note]) -> list[str]:
    spaces = [axis for axis in order if spec.axes[axis].is_spatial]
    names = [spec.axes[axis].name.lower() for axis in spaces]
    if not set(names) <= set(SPATIAL_NAMES):
        named = SPATIAL_NAMES[-len(spaces) :]
        notes.append(Note("axes-assumed", f"The spatial axes {names} are written as {list(named)}, the slowest first."))
        names = list(named)
    result = []
    for axis in order:
        known = spec.axes[axis]
        if known.is_spatial:
            result.append(names[spaces.index(axis)])
        elif known.type == "time":
            result.append("t")
        elif known.type in ("channel", "components"):
            result.append("c")
        else:
            usable = _PLAIN_NAME.fullmatch(known.name) and known.name.lower() not in (*SPATIAL_NAMES, "t", "c")
            result.append(known.name if usable else "d")
    return result


def _directions(
    geometry: Geometry | None, rows: Sequence[int], notes: list[Note]
) -> tuple[list[tuple[int, int]] | None, list[float]]:
    """Return the directions of RFC-4 where there are, and the translation along each axis of space.

    The translation along the axis called x is the x coordinate of the first voxel, in LPS where the world is anatomical.
    """
    if geometry is None:
        return None, [0.0] * len(rows)
    anatomical = (geometry.coord_system or "").rstrip("+") in ("RAS", "LPS")
    world = geometry.in_frame("LPS") if anatomical else geometry
    shift = [world.origin[row] for row in rows]
    if "direction" not in geometry.known:
        return None, shift
    runs = list(closest_permutation(world.linear))
    along = all(abs(world.direction[row, column]) > 1 - _ALONG for column, (row, _) in enumerate(runs))
    if anatomical and along and geometry.ndim == 3:
        return runs, shift
    if not along or runs != [(row, 1) for row in rows]:
        kind = "Sheared" if geometry.is_sheared else "Oblique" if not along else "Turned"
        told = f"{kind} axes are kept in full beside what {_TITLE} can say of them: other programs see them straight."
        notes.append(Note("direction-beside", told))
    return None, shift


def _length_unit(axis: Axis, geometry: Geometry | None) -> str | None:
    if geometry is None or "spacing" not in geometry.known:
        return None
    return "millimeter" if not axis.unit else length_name(axis.unit)


def _stored_dtype(dtype: np.dtype[Any], notes: list[Note], *, is_seg: bool) -> np.dtype[Any]:
    if dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise DTypeError(f"{_TITLE} cannot hold {dtype.name}.", hint="Cast to float64 or complex128.")
    if dtype.kind == "b" and is_seg:
        notes.append(Note("dtype-converted", f"Segmentations in {_TITLE} are integers: bool is stored as uint8."))
        return np.dtype(np.uint8)
    return dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype
