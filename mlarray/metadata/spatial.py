"""How do a spec and the metadata of a file say the same thing?

:class:`~mlarray.spec.ArraySpec` is what code works with, ``meta.spatial`` is what a file holds. The label vocabulary of the
file says less than an :class:`~mlarray.axes.Axis` (no name of one's choice, no step of a time axis); the full axes stand in
a record of their own and count as long as they do not contradict the labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlarray.axes import Axis, axes_from_labels, parse_axes, spatial_mask
from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.metadata.model import MetaSpatial
from mlarray.spec import ArraySpec


def spatial_fields(spec: ArraySpec, *, labelled: bool = True) -> dict[str, Any]:
    """Return the fields of ``meta.spatial`` for a spec; unknown parts of the geometry are None.

    Parameters
    ----------
    spec : ArraySpec
        A sheared geometry is stored as an affine, any other as spacing, origin and direction.
    labelled : bool
        Whether the axes are known and get labels and units; an unknown unit is ``""``.
    """
    fields: dict[str, Any] = dict.fromkeys(("spacing", "origin", "direction", "affine", "coord_system"))
    fields["axis_labels"] = [axis.label for axis in spec.axes] if labelled else None
    fields["axis_units"] = [axis.unit or "" for axis in spec.axes] if labelled else None
    geometry = spec.geometry
    if geometry is None:
        return fields
    fields["coord_system"] = geometry.coord_system
    if geometry.is_sheared:
        fields["affine"] = geometry.affine.tolist()
        return fields
    parts: dict[str, Any] = {
        "spacing": list(geometry.spacing),
        "origin": list(geometry.origin),
        "direction": geometry.direction.tolist(),
    }
    return fields | {name: value for name, value in parts.items() if name in geometry.known}


def axes_of(spatial: MetaSpatial, ndim: int, record: object = None) -> tuple[Axis, ...]:
    """Return the axes of a stored array.

    Parameters
    ----------
    spatial : MetaSpatial
        Labels and units.
    ndim : int
        Number of array axes.
    record : object, optional
        The full axes as :meth:`Axis.to_dict` gives them; ignored where they contradict the labels or are malformed.
    """
    labels = None if spatial.axis_labels is None else [str(label) for label in spatial.axis_labels]
    if isinstance(record, Sequence) and not isinstance(record, (str, bytes)) and len(record) == ndim:
        try:
            full = parse_axes([entry for entry in record if isinstance(entry, Mapping)])
        except UsageError:
            full = ()
        if len(full) == ndim and labels is not None and [axis.label for axis in full] == labels:
            return full
    if labels is not None and len(labels) != ndim:
        labels = None
    return axes_from_labels(labels, spatial.axis_units, ndim)


def geometry_of(spatial: MetaSpatial, axes: Sequence[Axis]) -> Geometry | None:
    """Return the geometry that ``meta.spatial`` states, or None when it states nothing that can be used."""
    count = sum(spatial_mask(axes))
    frame = None if spatial.coord_system is None else str(spatial.coord_system)
    try:
        if spatial.affine is not None:
            return Geometry(np.asarray(spatial.affine, dtype=np.float64), frame)
        if spatial.spacing is None and spatial.origin is None and spatial.direction is None:
            return None
        geometry = Geometry.from_parts(
            spacing=spatial.spacing, origin=spatial.origin, direction=spatial.direction, coord_system=frame
        )
    except (UsageError, ValueError, TypeError):
        return None
    return geometry if geometry.ndim == count else None


def spec_of(shape: Sequence[int], dtype: np.dtype[Any], spatial: MetaSpatial, record: object = None) -> ArraySpec:
    """Return the spec of a stored array; parts of the metadata that contradict its shape are left out."""
    axes = axes_of(spatial, len(shape), record)
    geometry = geometry_of(spatial, axes)
    if geometry is not None and geometry.ndim != sum(spatial_mask(axes)):
        geometry = None
    return ArraySpec(tuple(shape), dtype, axes, geometry)
