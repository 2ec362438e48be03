"""In which order do array axes go to a file, and file axes to an array?

Text-header formats store the fastest axis first and call it x. Arrays have z, y, x as their last axes and everything that is not
spatial in front. Both directions of that rule, and the types that such files can hold, are here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.axes import Axis, AxisType
from mlarray.errors import DTypeError, FormatError, UsageError
from mlarray.geometry import Geometry, Part
from mlarray.orientation import Matrix
from mlarray.sources.base import Note
from mlarray.spec import ArraySpec

SPATIAL_NAMES = ("z", "y", "x")
_TYPE_NAMES: dict[AxisType, str] = {"time": "t", "channel": "c", "components": "v"}
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")


@dataclass(frozen=True, slots=True)
class FileAxes:
    """How the axes of an array are laid out in a file.

    Parameters
    ----------
    spatial : tuple of int
        Array axes that are spatial, slowest in the file first.
    others : tuple of int
        The rest, in array order.
    geometry : Geometry or None
        Of the spatial axes in the order of ``spatial``, in LPS where the frame is anatomical.
    dtype : numpy dtype
        Of the stored voxels, little endian.
    notes : tuple of Note
        What is assumed or converted.
    """

    spatial: tuple[int, ...]
    others: tuple[int, ...]
    geometry: Geometry | None
    dtype: np.dtype[Any]
    notes: tuple[Note, ...]


def file_axes(spec: ArraySpec, title: str) -> FileAxes:
    """Choose how an array is laid out in a file of the format called ``title``.

    Raises
    ------
    UsageError
        For an array without elements or without spatial axes.
    DTypeError
        For numbers that the format does not have.
    """
    if spec.size == 0 or spec.ndim == 0:
        raise UsageError(f"{title} holds arrays of at least one axis and one voxel, got shape {spec.shape}.")
    notes: list[Note] = []
    dtype = _stored_dtype(spec.dtype, title, notes)
    spatial = [position for position, is_space in enumerate(spec.spatial) if is_space]
    others = tuple(position for position, is_space in enumerate(spec.spatial) if not is_space)
    if not 1 <= len(spatial) <= 3:
        raise UsageError(
            f"{title} is written with 1 to 3 spatial axes, got {len(spatial)} in {[axis.name for axis in spec.axes]}.",
            hint="Name the axes: those called x, y and z are spatial.",
        )
    names = [spec.axes[position].name.lower() for position in spatial]
    if set(names) <= set(SPATIAL_NAMES):
        spatial.sort(key=lambda position: SPATIAL_NAMES.index(spec.axes[position].name.lower()))
    else:
        named = SPATIAL_NAMES[-len(spatial) :]
        notes.append(Note("axes-assumed", f"The spatial axes {names} are written as {list(named)}, the slowest first."))
    return FileAxes(tuple(spatial), others, _file_geometry(spec, spatial), dtype, tuple(notes))


def array_order(spatial: Sequence[bool]) -> tuple[int, ...]:
    """Return, per disk axis (slowest first), the array axis it becomes: the spatial ones last, both groups in disk order.

    Examples
    --------
    >>> array_order((True, True, True, False))
    (1, 2, 3, 0)
    """
    others = [position for position, is_space in enumerate(spatial) if not is_space]
    placed = [*others, *(position for position, is_space in enumerate(spatial) if is_space)]
    return tuple(placed.index(position) for position in range(len(placed)))


def free_name(kind: AxisType, label: str, taken: set[str]) -> str:
    """Return a name for an axis that is not spatial: by its type, else its label, made unique by a number."""
    usable = _PLAIN_NAME.fullmatch(label) and label.lower() not in SPATIAL_NAMES
    name = _TYPE_NAMES.get(kind) or (label if usable else "d")
    number = 0
    while (unique := f"{name}{number or ''}") in taken:
        number += 1
    return unique


def place(
    columns: Matrix, origin: Matrix | None, frame: str | None, known: frozenset[Part], notes: list[Note]
) -> Geometry:
    """Return the geometry, in array order, of steps given in file order.

    Parameters
    ----------
    columns : ndarray, shape (world, n)
        Step of each spatial file axis, the fastest first, in a world of at least ``n`` axes.
    origin : ndarray, shape (world,), optional
        Position of the first voxel.
    frame : str or None
        Name of the world.
    known : frozenset of {"spacing", "origin", "direction"}
        What the header states.
    notes : list of Note
        Gets a note for what a plane in a larger world loses.
    """
    count = columns.shape[1]
    if np.any(columns[count:]):
        notes.append(
            Note("geometry-reduced", f"A plane of {count} axes that is oblique in space: only its spacing is kept.")
        )
        spacing = np.linalg.norm(columns, axis=0)[::-1]
        return checked_geometry(np.diag([*spacing, 1.0]), None, known & {"spacing"})
    affine = np.eye(count + 1)
    if "direction" in known:
        affine[:-1, :-1] = columns[:count, ::-1]
    else:  # neutral is the identity in array order, as everywhere
        affine[:-1, :-1] = np.diag(np.linalg.norm(columns, axis=0)[::-1])
    if origin is not None:
        affine[:-1, -1] = origin[:count]
        if np.any(origin[count:]):
            notes.append(Note("geometry-reduced", f"Of the origin {origin.tolist()}, {count} numbers are kept."))
    return checked_geometry(affine, frame, known)


def checked_geometry(affine: Matrix, frame: str | None, known: frozenset[Part]) -> Geometry:
    """Return the geometry; one that cannot be is a damaged header."""
    try:
        return Geometry(affine, frame, known)
    except UsageError as error:
        raise FormatError(f"The header gives a geometry that cannot be: {error.message}") from error


def unknown_parts(geometry: Geometry | None) -> tuple[str, ...]:
    """Return the parts of a geometry that nobody stated."""
    known = frozenset() if geometry is None else geometry.known
    return tuple(part for part in ("spacing", "origin", "direction") if part not in known)


def is_lps(geometry: Geometry | None) -> bool:
    """Tell whether world positions are known to be LPS."""
    return geometry is not None and (geometry.coord_system or "").rstrip("+") == "LPS"


def axis_unit(axis: Axis) -> str:
    """Return the short spelling of an axis unit that headers use, or an empty string."""
    unit = axis.unit or ""
    return {"millimeter": "mm", "second": "s", "millisecond": "ms", "microsecond": "us"}.get(unit, unit)


def _file_geometry(spec: ArraySpec, spatial: Sequence[int]) -> Geometry | None:
    geometry = spec.geometry
    if geometry is None:
        return None
    positions = [position for position, is_space in enumerate(spec.spatial) if is_space]
    moved = geometry.permuted([positions.index(position) for position in spatial])
    return moved.in_frame("LPS") if (moved.coord_system or "").rstrip("+") in ("LPS", "RAS") else moved


def _stored_dtype(dtype: np.dtype[Any], title: str, notes: list[Note]) -> np.dtype[Any]:
    if dtype.kind == "b":
        notes.append(Note("dtype-converted", f"{title} has no bool: stored as uint8, 0 and 1."))
        return np.dtype(np.uint8)
    if dtype == np.float16:
        notes.append(Note("dtype-converted", f"{title} has no float16: stored as float32, every value kept."))
        return np.dtype("<f4")
    if dtype.kind == "c" or dtype.itemsize > 8:
        raise DTypeError(
            f"{title} cannot hold {dtype.name}; it holds integers of 8 to 64 bits, float32 and float64.",
            hint="Split real and imaginary parts into a components axis." if dtype.kind == "c" else "Cast to float64.",
        )
    return dtype.newbyteorder("<")
