"""What do the attributes of an HDF5 dataset say about its axes and its place, and how are ours written?

HDF5 itself knows names of axes only (``DIMENSION_LABELS``). Besides, this module understands what common programs write:
``element_size_um`` (z, y, x in micrometres), ``axistags`` of ilastik and vigra, ``axes``, ``scale`` and ``translation`` as in
OME-NGFF, ``spacing``. What is not said stays unknown. Our own files hold the full metadata as JSON besides, so that nothing is
lost on the way back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlarray.axes import Axis, are_labelled, default_axes, parse_axes
from mlarray.errors import MLArrayError, UsageError
from mlarray.formats.text_header import millimetres, parse_record, shorten, time_unit
from mlarray.geometry import Geometry
from mlarray.limits import CONVERSION_RECORD_BYTES, HDF5_ATTRIBUTE_BYTES, HDF5_ATTRIBUTES, METADATA_BYTES
from mlarray.metadata import Meta, read_metadata
from mlarray.metadata.codec import stored_mapping
from mlarray.metadata.spatial import spec_of
from mlarray.metadata.values import from_jsonable, to_jsonable
from mlarray.sources.base import Note, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.contents import source_metadata
from mlarray.storage.integrity import METADATA_RECORD

METADATA, RECORD = "mla_metadata", "mla_record"
ELEMENT_SIZE = "element_size_um"
_OURS = frozenset({METADATA, RECORD, "axes", "spacing", "origin", "direction", "coord_system", "is_seg", ELEMENT_SIZE})
_LABELS = "DIMENSION_LABELS"
_STRUCTURAL = frozenset({_LABELS, "DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid"})
_MICROMETRE = 1e-3


def written_attributes(spec: ArraySpec, info: SourceInfo, record: Mapping[str, object]) -> dict[str, Any]:
    """Return the attributes of a dataset: readable ones for others, and everything for us.

    ``spacing`` (millimetres), ``origin`` and ``direction`` (column *i* is the unit step of axis *i*) stand in the order of the
    spatial array axes; parts that nobody stated are left out.

    Raises
    ------
    MetadataError
        When the metadata is not valid; lists all problems.
    """
    meta, axes = source_metadata(spec, info)
    stored = {"meta": to_jsonable(stored_mapping(meta)), "axes": axes}
    result: dict[str, Any] = {METADATA: _json(stored)}
    if record:
        result[RECORD] = _json(dict(record))
    if axes is not None:
        result["axes"] = _json(axes)
    if meta.is_seg.is_seg is not None:
        result["is_seg"] = np.bool_(meta.is_seg.is_seg)
    geometry = spec.geometry
    if geometry is None:
        return result
    if geometry.coord_system is not None and "\0" not in geometry.coord_system:  # HDF5 ends a text there
        result["coord_system"] = geometry.coord_system
    for part in ("spacing", "origin", "direction"):
        if part in geometry.known:
            result[part] = np.asarray(getattr(geometry, part), dtype=np.float64)
    names = [axis.name for axis in spec.axes if axis.is_spatial]
    if names == ["z", "y", "x"] and "spacing" in geometry.known:
        result[ELEMENT_SIZE] = np.asarray(geometry.spacing) / _MICROMETRE
    return result


def read_attributes(
    dataset: Any, shape: Sequence[int], dtype: np.dtype[Any]
) -> tuple[ArraySpec, dict[str, Any], tuple[Note, ...]]:
    """Return what the attributes of a dataset say.

    Parameters
    ----------
    dataset : h5py.Dataset
        Only attributes are read.
    shape, dtype
        Of the array.

    Returns
    -------
    ArraySpec
        Axes and geometry, as far as they are stated.
    dict
        Further fields of :class:`~mlarray.sources.base.SourceInfo`: ``header``, ``is_seg``, ``record``, ``meta``.
    tuple of Note
        What was assumed or ignored.
    """
    values, notes = _plain_attributes(dataset)
    fields: dict[str, Any] = {"header": {name: value for name, value in values.items() if name not in _OURS}}
    if isinstance(values.get(RECORD), str):
        fields["record"], told = parse_record(values[RECORD])
        notes += told
    own = _own_metadata(values.get(METADATA), notes)
    if own is not None:
        meta, axes = own
        fields |= {"meta": meta, "is_seg": meta.is_seg.is_seg, "header": dict(meta.source.data)}
        return spec_of(shape, dtype, meta.spatial, axes), fields, tuple(notes)
    fields["header"] = {name: value for name, value in values.items() if name not in (METADATA, RECORD)}
    if isinstance(values.get("is_seg"), bool):
        fields["is_seg"] = values["is_seg"]
    if {"scale_factor", "add_offset"} & values.keys():
        told_scale = [f"{name} = {values[name]}" for name in ("scale_factor", "add_offset") if name in values]
        notes.append(Note("scaling-ignored", f"The attributes {', '.join(told_scale)} are not applied to the voxels."))
    return _stated_spec(values, _labels(dataset), shape, dtype, notes), fields, tuple(notes)


def _own_metadata(text: object, notes: list[Note]) -> tuple[Meta, object] | None:
    """Return the metadata and the axes that this package wrote, or None where there are none that can be read."""
    if not isinstance(text, str):
        return None
    try:
        stored = json.loads(text)
        mapping = from_jsonable(stored["meta"])
        if not isinstance(mapping, dict):
            raise TypeError("it is no mapping")
    except (ValueError, TypeError, KeyError, RecursionError, MLArrayError) as error:
        notes.append(Note("metadata-unreadable", f"The metadata of the dataset is ignored: {error}."))
        return None
    meta, problems = read_metadata({METADATA_RECORD: mapping}, {})
    notes += [Note("metadata-unreadable", problem) for problem in problems]
    return meta, stored.get("axes")


def _stated_spec(
    values: Mapping[str, Any], labels: Sequence[str], shape: Sequence[int], dtype: np.dtype[Any], notes: list[Note]
) -> ArraySpec:
    axes, scale_units = _stated_axes(values, labels, len(shape), notes)
    spatial = [position for position, axis in enumerate(axes) if axis.is_spatial]
    spacing = _spacing(values, axes, scale_units, spatial, notes)
    origin = _scaled(values, "translation", scale_units, spatial, len(axes))
    geometry = None
    if spatial and (spacing is not None or origin is not None):
        try:
            geometry = Geometry.from_parts(spacing=spacing, origin=origin)
        except UsageError as error:
            notes.append(Note("spacing-unknown", f"The attributes give a geometry that cannot be: {error.message}"))
    if not are_labelled(axes) or geometry is None:
        missing = ["what its axes are"] if not are_labelled(axes) else []
        missing += ["where its voxels are"] if geometry is None else []
        notes.append(Note("axes-unknown", f"The dataset does not say {' or '.join(missing)}."))
    return ArraySpec(tuple(shape), dtype, axes, geometry)


def _stated_axes(
    values: Mapping[str, Any], labels: Sequence[str], ndim: int, notes: list[Note]
) -> tuple[tuple[Axis, ...], list[float | None]]:
    """Return the axes, and per axis the millimetres of the unit in which ``scale`` is given (None: not known)."""
    unknown: list[float | None] = [None] * ndim
    for source in (_entries(values.get("axes")), _tags(values.get("axistags")), list(labels)):
        if source is None or len(source) != ndim or not all(source):
            continue
        try:
            axes = parse_axes([_entry(each) for each in source])
        except UsageError as error:
            notes.append(Note("axes-unknown", f"The names of the axes are not used: {error.message}"))
            continue
        units = [millimetres(axis.unit) if axis.is_spatial and axis.unit else None for axis in axes]
        in_mm = [
            Axis(axis.name, axis.type, "millimeter") if unit is not None else axis
            for axis, unit in zip(axes, units, strict=True)
        ]
        return tuple(in_mm), units
    if ndim == 3 and _numbers(values.get(ELEMENT_SIZE), 3) is not None:
        return parse_axes("zyx"), unknown  # the attribute is defined as z, y, x
    return default_axes(ndim), unknown


def _entry(value: object) -> Any:
    """Return one axis as ``parse_axes`` takes it; one letter is a name whatever its case."""
    if isinstance(value, Mapping):
        kept = {key: value[key] for key in ("name", "type", "unit", "step") if value.get(key) is not None}
        unit = kept.get("unit")
        return kept | ({"unit": time_unit(unit) or unit} if isinstance(unit, str) else {})
    return value.lower() if isinstance(value, str) and len(value) == 1 else value


def _entries(value: object) -> list[Any] | None:
    """Return the axes in an attribute ``axes``: JSON (OME-NGFF), a list of names, or letters such as ``zyx``."""
    if isinstance(value, str):
        text = value
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return list(text) if text.isalpha() else None
    return list(value) if isinstance(value, list) else None


def _tags(value: object) -> list[Any] | None:
    """Return the names in vigra's ``axistags``, which stand in the order of the array."""
    try:
        tags = json.loads(value)["axes"] if isinstance(value, str) else []
        return [str(tag["key"]) for tag in tags] or None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _spacing(
    values: Mapping[str, Any],
    axes: Sequence[Axis],
    units: Sequence[float | None],
    spatial: Sequence[int],
    notes: list[Note],
) -> tuple[float, ...] | None:
    names = [axes[position].name for position in spatial]
    size = _numbers(values.get(ELEMENT_SIZE), 3)
    if size is not None and min(size) > 0 and set(names) <= {"z", "y", "x"}:
        return tuple(size["zyx".index(name)] * _MICROMETRE for name in names)
    scaled = _scaled(values, "scale", units, spatial, len(axes))
    if scaled is not None and min(scaled) > 0:
        return scaled
    given = values.get("spacing")
    spacing = _numbers(given, len(spatial))
    if spacing is not None and min(spacing) > 0:
        notes.append(
            Note("spacing-assumed", f"The attribute spacing {list(spacing)} is taken as millimetres, in array order.")
        )
        return spacing
    for name in (ELEMENT_SIZE, "spacing", "scale"):
        if name in values:
            notes.append(
                Note("spacing-unknown", f"The attribute {name} {shorten(str(values[name]))} does not tell the spacing.")
            )
    return None


def _scaled(
    values: Mapping[str, Any], name: str, units: Sequence[float | None], spatial: Sequence[int], ndim: int
) -> tuple[float, ...] | None:
    """Return ``scale`` or ``translation`` along the spatial axes in millimetres; None unless every unit is stated."""
    numbers = _numbers(values.get(name), ndim)
    factors = [units[position] for position in spatial]
    if numbers is None or None in factors:
        return None
    return tuple(numbers[position] * (units[position] or 1.0) for position in spatial) or None


def _numbers(value: object, count: int) -> tuple[float, ...] | None:
    """Return ``count`` finite numbers, or None for anything else."""
    if not isinstance(value, list) or len(value) != count or count == 0:
        return None
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in value):
        return None
    return tuple(map(float, value)) if all(map(math.isfinite, value)) else None


def _labels(dataset: Any) -> tuple[str, ...]:
    """Return the names of the axes; HDF5's own call for them crashes on an attribute of another type than it writes."""
    labels = _attribute(dataset, _LABELS) if _LABELS in dataset.attrs else None
    if not isinstance(labels, list) or len(labels) != dataset.ndim or not all(isinstance(one, str) for one in labels):
        return ()
    return tuple(labels)


def _plain_attributes(dataset: Any) -> tuple[dict[str, Any], list[Note]]:
    """Return the attributes as plain values; what is no number or text, or too large, is left out and named."""
    values: dict[str, Any] = {}
    left: list[str] = []
    for position, name in enumerate(dataset.attrs):
        if name in _STRUCTURAL:
            continue
        value = _attribute(dataset, name) if position < HDF5_ATTRIBUTES else None
        if value is None:
            left.append(shorten(name))
        else:
            values[name] = value
    told = ", ".join(left[:10]) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
    return values, [Note("attributes-skipped", f"The attributes {told} are not kept.")] if left else []


def _attribute(dataset: Any, name: str) -> Any:
    limit = {METADATA: METADATA_BYTES, RECORD: CONVERSION_RECORD_BYTES}.get(name, HDF5_ATTRIBUTE_BYTES)
    try:
        stored = dataset.attrs.get_id(name)
        if stored.get_storage_size() > limit or not _is_plain_type(stored.get_type()):
            return None
        value = dataset.attrs[name]
    except (OSError, RuntimeError, TypeError, ValueError, KeyError):
        return None
    plain = _plain(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)
    return None if isinstance(plain, str) and len(plain) > limit else plain


def _is_plain_type(kind: Any) -> bool:
    """Tell whether values of a type are numbers or text. Lists of variable length would be read from the heap of the file.

    libhdf5 (2.0) can go through a damaged heap for ever: it is asked for text only, which has to be there.
    """
    import h5py

    h5t = h5py.h5t
    plain = (h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM, h5t.COMPOUND, h5t.ARRAY, getattr(h5t, "COMPLEX", -1))
    return kind.get_class() in plain and not any(map(kind.detect_class, (h5t.VLEN, h5t.REFERENCE, h5t.OPAQUE)))


def _plain(value: object) -> Any:
    """Return numbers and texts, and lists of them, with bytes as text; None for anything else."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        parts = [_plain(each) for each in value]
        return None if any(part is None for part in parts) else parts
    return value if isinstance(value, (bool, int, float, complex, str)) else None


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
