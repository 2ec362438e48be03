"""What did the releases before this one write, and how is it said today?

Every older layout is brought to the mapping that is written now, by pure functions on dicts:

* ``image`` or ``original`` is ``source``, ``_blosc2`` is ``blosc2``, ``_med_blosc2_version`` is ``_mlarray_version``;
* parts with one field come bare or wrapped (``True`` or ``{"is_seg": True}``), ``bbox`` as a bare list of boxes;
* ``spatial.channel_axis: k`` is a ``channel`` label at axis k, the other axes being ``spatial``.

What is not known is never an error and never lost: it moves to ``extra["mlarray_unknown"]`` under its path, and is written
again with the rest. :func:`read_metadata` is the one entry for whoever opens a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlarray.errors import FormatError
from mlarray.metadata import schema
from mlarray.metadata.codec import FREE_NAMESPACES, decode
from mlarray.metadata.model import Meta, meta_of_checked

METADATA_KEY: Final = "mlarray"
"""The vlmeta key of the metadata."""
ANCIENT_LAYER: Final = "med_blosc2"
"""The fixed metalayer that held it before the package was renamed."""
UNKNOWN: Final = "mlarray_unknown"
"""The key in ``extra`` for what a file holds and this release has no field for."""

_RENAMED: Final = (
    ("image", "source"),
    ("original", "source"),
    ("_blosc2", "blosc2"),
    ("_med_blosc2_version", "_mlarray_version"),
)


def read_metadata(vlmeta: Mapping[str, object], fixed_metalayers: Mapping[str, object]) -> tuple[Meta, list[str]]:
    """Return the metadata of a container, whatever release wrote it.

    Parameters
    ----------
    vlmeta : mapping
        Variable-length metalayers of the container by name, values as the container decodes them.
    fixed_metalayers : mapping
        Fixed metalayers, likewise; ``b2nd`` tells the number of axes.

    Returns
    -------
    Meta
        Empty when there is no metadata, or none that can be read.
    list of str
        What could not be read, one sentence each, for the caller to warn with. Never an error: broken metadata must
        not cost the voxels.
    """
    payload = vlmeta.get(METADATA_KEY)
    if payload is None:
        payload = fixed_metalayers.get(ANCIENT_LAYER)
    if payload is None:
        return Meta(), []
    try:
        mapping = decode(payload)  # type: ignore[arg-type]
    except FormatError as error:
        return Meta(), [f"the metadata cannot be read and is left out: {error}"]
    return build(upgrade(mapping, ndim=_ndim(fixed_metalayers)))


def upgrade(payload: Mapping[str, Any], *, ndim: int | None = None) -> dict[str, dict[str, Any]]:
    """Return a mapping of any release as the one written today: every namespace and field present, unset fields None.

    Parameters
    ----------
    payload : mapping
        As :func:`mlarray.metadata.codec.decode` returns it; not changed.
    ndim : int, optional
        Number of array axes; by default what the payload itself tells. Only ``channel_axis`` needs it.

    Examples
    --------
    >>> upgrade({"image": {"Modality": "MR"}, "is_seg": False, "colour": 3})["extra"]
    {'data': {'mlarray_unknown': {'colour': 3}}}
    """
    parts: dict[Any, Any] = dict(payload)
    bare = "image" in parts  # that time wrapped nothing: {"data": ...} in its dicts is a key of the user's
    for old, new in _RENAMED:
        if old in parts and parts.get(new) is None:
            parts[new] = parts.pop(old)
    unknown: dict[str, Any] = {}
    mapping = {
        namespace: _fields_of(namespace, parts.pop(namespace, None), unknown, bare=bare) for namespace in schema.FIELDS
    }
    unknown = {str(key): value for key, value in parts.items()} | unknown
    if "has_array" not in mapping["_has_array"]:
        mapping["_has_array"]["has_array"] = True  # the releases that did not say so always had one
    _label_channel(mapping, unknown, ndim)
    for namespace, fields in schema.FIELDS.items():
        mapping[namespace] = {field: mapping[namespace].get(field) for field in fields}
    for namespace in FREE_NAMESPACES:
        mapping[namespace]["data"] = mapping[namespace]["data"] or {}
    _keep(mapping, unknown)
    return mapping


def build(mapping: Mapping[str, Mapping[str, Any]]) -> tuple[Meta, list[str]]:
    """Return a :class:`Meta` of all fields that fit, the others moved to ``extra``, and a sentence for each of those.

    Parameters
    ----------
    mapping : mapping
        As :func:`upgrade` returns it; not changed.
    """
    warnings: list[str] = []
    unknown: dict[str, Any] = {}
    fitting: dict[str, dict[str, Any]] = {}
    for namespace, fields in mapping.items():
        fitting[namespace] = dict.fromkeys(fields)
        for field in _trial_order(namespace, fields):
            value, problems = fields[field], list[str]()
            if value is None:
                continue
            kept = schema.coerce(namespace, field, value, problems)
            if not problems and namespace == "spatial":
                problems = schema.spatial_problems(fitting[namespace] | {field: kept})
            if problems:
                warnings.append(f"{'; '.join(problems)}; the field is left out")
                unknown[schema.path_of(namespace, field).removeprefix("meta.")] = value
            else:
                fitting[namespace][field] = kept
    spatial = fitting["spatial"]
    spatial["_num_spatial_axes"], spatial["_num_non_spatial_axes"] = schema.axis_counts(spatial["axis_labels"])
    fitting["_has_array"]["has_array"] = bool(fitting["_has_array"]["has_array"])
    for namespace in FREE_NAMESPACES:
        fitting[namespace]["data"] = fitting[namespace]["data"] or {}
    _keep(fitting, unknown)
    return meta_of_checked(fitting), warnings


def _trial_order(namespace: str, fields: Mapping[str, Any]) -> Sequence[str]:
    # What describes the array comes first: of two spatial fields that contradict each other, the later one is left out.
    if namespace != "spatial":
        return list(fields)
    first = ("shape", "axis_labels", "affine")
    return [*first, *(field for field in fields if field not in first)]


def _fields_of(namespace: str, part: object, unknown: dict[str, Any], *, bare: bool) -> dict[str, Any]:
    """Return the known fields of a namespace, given bare or wrapped; the rest goes to `unknown`."""
    fields = schema.FIELDS[namespace]
    if part is None:
        return {}
    if len(fields) == 1:
        (only,) = fields
        wrapped = isinstance(part, Mapping) and part.keys() == {only}
        if wrapped and not (bare and namespace in FREE_NAMESPACES):
            return dict(part)  # type: ignore[call-overload,no-any-return]
        return {only: part}
    if namespace == "bbox" and isinstance(part, list):
        return {"bboxes": part}
    if not isinstance(part, Mapping):
        unknown[namespace] = part
        return {}
    known = {key: value for key, value in part.items() if key in fields or key == "channel_axis"}
    unknown.update({f"{namespace}.{key}": value for key, value in part.items() if key not in known})
    return known


def _label_channel(mapping: dict[str, dict[str, Any]], unknown: dict[str, Any], ndim: int | None) -> None:
    spatial = mapping["spatial"]
    axis = spatial.pop("channel_axis", None)
    if axis is None or spatial.get("axis_labels") is not None:
        return
    for sizes in (spatial.get("shape"), mapping["blosc2"].get("chunk_size")):
        if ndim is None and isinstance(sizes, list):
            ndim = len(sizes)
    if ndim is None or type(axis) is not int or not -ndim <= axis < ndim:
        unknown["spatial.channel_axis"] = axis
        return
    labels = ["spatial"] * ndim
    labels[axis] = "channel"
    spatial["axis_labels"] = labels
    spatial["_num_spatial_axes"], spatial["_num_non_spatial_axes"] = schema.axis_counts(labels)


def _keep(mapping: dict[str, dict[str, Any]], unknown: dict[str, Any]) -> None:
    """Put what has no field into ``extra``, beside what an earlier reading put there."""
    if not unknown:
        return
    extra = mapping["extra"]["data"]
    if not isinstance(extra, dict):
        unknown, extra = {**unknown, "extra": extra}, {}
    before = extra.get(UNKNOWN, {})
    kept = {**before, **unknown} if isinstance(before, dict) else {**unknown, f"extra.{UNKNOWN}": before}
    mapping["extra"] = {"data": {**extra, UNKNOWN: kept}}


def _ndim(fixed_metalayers: Mapping[str, object]) -> int | None:
    layer = fixed_metalayers.get("b2nd")
    if isinstance(layer, (list, tuple)) and len(layer) > 1 and type(layer[1]) is int:
        return layer[1]
    return None
