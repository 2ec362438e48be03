"""What does an image of ours hold that OME-NGFF has no words for, and when may it be believed?

Under the key ``mlarray`` of its group: all that the metadata of an ``.mla`` holds, the full axes and their order, the record
of the conversion, and a checksum of each level. It counts for the geometry only as long as it agrees with what the
specification says of the image: another program may have changed that since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlarray.errors import MLArrayError
from mlarray.formats.ome_zarr_axes import StoredAxes, stored_axes
from mlarray.formats.ome_zarr_multiscale import Level, Multiscale, relation
from mlarray.formats.ome_zarr_units import direction_of
from mlarray.geometry import Geometry
from mlarray.metadata import Meta, from_jsonable, read_metadata, to_jsonable
from mlarray.metadata.codec import FREE_NAMESPACES, stored_mapping
from mlarray.metadata.spatial import spec_of
from mlarray.sources.base import Note
from mlarray.spec import ArraySpec

KEY = "mlarray"
VERSION = 1
_RTOL = 1e-9  # numbers are written in full; another program may print them with fewer digits
_METADATA_KEY = "mlarray"
_BLOSC_FIELDS = "blosc2"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept.

    Parameters
    ----------
    meta : Meta or None
        None where it cannot be read.
    spec : ArraySpec or None
        Of the finest level; None where it contradicts the rest of the metadata.
    order : tuple of int
        Array axes in stored order.
    record : mapping
        Of the conversion.
    checksums : mapping
        Of each level, by its path.
    notes : tuple of Note
        What was left out.
    """

    meta: Meta | None
    spec: ArraySpec | None
    order: tuple[int, ...]
    record: Mapping[str, object]
    checksums: Mapping[str, object]
    notes: tuple[Note, ...]


def kept_document(
    meta: Meta,
    axes: object,
    spec: ArraySpec,
    layout: StoredAxes,
    *,
    record: Mapping[str, object],
    checksums: Mapping[str, str],
) -> dict[str, Any]:
    """Return what is stored under :data:`KEY`, plain JSON values."""
    mapping = stored_mapping(meta)
    mapping[_BLOSC_FIELDS] = dict.fromkeys(mapping[_BLOSC_FIELDS])  # another container has other chunks
    return {
        "version": VERSION,
        "meta": {name: part if name in FREE_NAMESPACES else to_jsonable(part) for name, part in mapping.items()},
        "axes": axes,
        "order": list(layout.order),
        "shape": list(spec.shape),
        "dtype": spec.dtype.name,
        "record": dict(record),
        "checksums": dict(checksums),
    }


def read_kept(document: object, multiscale: Multiscale, shape: Sequence[int], dtype: np.dtype[Any]) -> Kept | None:
    """Return what was kept with an image, or None for images of others.

    Parameters
    ----------
    document : object
        What stands under :data:`KEY`.
    multiscale : Multiscale
        What the specification says of the image.
    shape : sequence of int
        Of the finest level, in stored order.
    dtype : numpy dtype
        Of the stored voxels.
    """
    if not isinstance(document, dict) or document.get("version") != VERSION:
        return None
    notes: list[Note] = []
    meta = _meta(document.get("meta"), notes)
    record, checksums = (_mapping(document.get(name)) for name in ("record", "checksums"))
    order = document.get("order")
    spec = None
    if meta is not None and isinstance(order, list) and sorted(map(str, order)) == sorted(map(str, range(len(shape)))):
        stored_order = tuple(int(str(axis)) for axis in order)
        spec = _agreed(document, meta, multiscale, shape, dtype, stored_order)
        if spec is not None:
            return Kept(meta, spec, stored_order, record, checksums, tuple(notes))
    notes.append(
        Note(
            "geometry-disagreement",
            "The image was changed since it was written: axes and place are those that the specification's metadata gives, "
            "not those that were kept beside it.",
        )
    )
    return Kept(meta, None, tuple(range(len(shape))), record, checksums, tuple(notes))


def at_level(spec: ArraySpec, order: Sequence[int], level: Level, finest: Level, shape: Sequence[int]) -> ArraySpec:
    """Return the spec of a coarser level of an image whose finest one is known; ``shape`` in stored order."""
    scale, offset = relation(level, finest, spec.ndim)
    extents = [0] * spec.ndim
    factors, shifts = np.ones(spec.ndim), np.zeros(spec.ndim)
    for position, axis in enumerate(order):
        extents[axis] = shape[position]
        factors[axis], shifts[axis] = scale[position], offset[position]
    geometry = spec.geometry
    if geometry is not None:
        spaces = list(spec.spatial)
        affine = geometry.affine.copy()
        affine[:-1, -1] = geometry.world([float(s) for s, is_space in zip(shifts, spaces, strict=True) if is_space])
        affine[:-1, :-1] = geometry.linear * factors[spaces]
        geometry = Geometry(affine, geometry.coord_system, geometry.known)
    return replace(spec, shape=tuple(extents), geometry=geometry)


def _agreed(
    document: Mapping[str, Any],
    meta: Meta,
    multiscale: Multiscale,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    order: tuple[int, ...],
) -> ArraySpec | None:
    """Return the spec that was kept when writing it again would give the present metadata."""
    extents = [0] * len(shape)
    for position, axis in enumerate(order):
        extents[axis] = shape[position]
    kind = np.dtype(bool) if document.get("dtype") == "bool" and dtype == np.uint8 else dtype
    try:
        spec = spec_of(extents, kind, meta.spatial, document.get("axes"))
        expected = stored_axes(spec, is_seg=kind != dtype)
    except MLArrayError:
        return None
    if expected.order != order or document.get("shape") != extents:
        return None
    finest = multiscale.levels[0]
    same_axes = [axis["name"] for axis in expected.axes] == [axis.name for axis in multiscale.axes]
    same_units = [axis.get("unit") for axis in expected.axes] == [axis.unit for axis in multiscale.axes]
    values = [axis.get("orientation", {}).get("value") for axis in expected.axes]
    oriented = [direction_of(value) for value in values] == [axis.direction for axis in multiscale.axes]
    same_scale = finest.scale is not None and _close(expected.scale, finest.scale)
    shift = finest.translation
    same_shift = (expected.translation is None) == (shift is None) and (
        shift is None or _close(expected.translation or (), shift)
    )
    return spec if same_axes and same_units and oriented and same_scale and same_shift else None


def _close(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=_RTOL, abs_tol=1e-12) for a, b in zip(first, second, strict=True))


def _meta(given: object, notes: list[Note]) -> Meta | None:
    if not isinstance(given, dict):
        return None
    mapping = {name: part if name in FREE_NAMESPACES else from_jsonable(part) for name, part in given.items()}
    meta, problems = read_metadata({_METADATA_KEY: mapping}, {})
    notes += [Note("metadata-unreadable", problem) for problem in problems]
    return meta


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
