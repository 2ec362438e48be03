"""Which fields does metadata have, and what may stand in each of them?

One table, :data:`FIELDS`: namespace -> field -> rule. A rule takes what a user assigned and returns the plain value that
is kept (list, int, float, str, bool, dict or None), adding a sentence to ``problems`` for every part that does not fit.
Rules look at one field. Whether several fields fit each other, or the array, is asked of :func:`spatial_problems` (lengths
and exclusions, which hold from the first assignment on); what only a finished file must satisfy is in ``validation.py``.

Nothing here knows the model classes: fields arrive as mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from mlarray.metadata.values import unstorable

Problems: TypeAlias = list[str]
Rule: TypeAlias = Callable[[object, str, Problems], object]
Fields: TypeAlias = Mapping[str, object]


class AxisLabelEnum(str, Enum):  # noqa: UP042 - str() and repr() stay those of 0.0.x
    """Axis labels with a meaning; any other string is allowed and counts as not spatial."""

    spatial = "spatial"
    spatial_x = "spatial_x"
    spatial_y = "spatial_y"
    spatial_z = "spatial_z"
    non_spatial = "non_spatial"
    channel = "channel"
    temporal = "temporal"
    continuous = "continuous"
    components = "components"


class CoordSystemEnum(str, Enum):  # noqa: UP042 - str() and repr() stay those of 0.0.x
    """World frames with a meaning; any other string is allowed."""

    RAS = "RAS"
    LPS = "LPS"
    RAS_PLUS = "RAS+"
    LPS_PLUS = "LPS+"
    unknown = "unknown"
    other = "other"


AxisLabel: TypeAlias = str | AxisLabelEnum
CoordSystem: TypeAlias = str | CoordSystemEnum

_SPATIAL_LABELS: Final = frozenset({"spatial", "spatial_x", "spatial_y", "spatial_z"})


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_MOST_BITS = 1023  # of a whole number that is surely a float64, too


def _scalar(value: object) -> object:
    """Return the Python scalar behind a numpy scalar, a 0-D array or an enum member; anything else as it is."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def _number(value: object, path: str, problems: Problems) -> object:
    number = _scalar(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        problems.append(f"{path} is {_shown(value)}, a number was expected")
        return value
    if isinstance(number, int) and number.bit_length() > _MOST_BITS:
        problems.append(f"{path} is {_shown(value)}, which is larger than any float")
        return value
    return int(number) if isinstance(number, int) else float(number)


def _statistic(value: object, path: str, problems: Problems) -> object:
    number = _scalar(value)  # the minimum of a bool array is a bool
    return _number(int(number) if isinstance(number, bool) else number, path, problems)


def _size(value: object, path: str, problems: Problems) -> object:
    number = _scalar(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)  # 0.0.x kept fractional patch sizes as floats
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        problems.append(f"{path} is {_shown(value)}, a whole number of voxels was expected")
        return value
    return int(number)


def _text(value: object, path: str, problems: Problems) -> object:
    text = _scalar(value)
    if not isinstance(text, str):
        problems.append(f"{path} is {_shown(value)}, text was expected")
        return value
    return str.__str__(text)


def _unit(value: object, path: str, problems: Problems) -> object:
    return None if value is None else _text(value, path, problems)


def _box_label(value: object, path: str, problems: Problems) -> object:
    label = _scalar(value)
    return _text(label, path, problems) if isinstance(label, str) else _number(label, path, problems)


def _flag(value: object, path: str, problems: Problems) -> object:
    flag = _scalar(value)
    if not isinstance(flag, bool):
        problems.append(f"{path} is {_shown(value)}, True or False was expected")
    return flag


def _list_of(rule: Rule, what: str, *, length: int | None = None) -> Rule:
    def check(value: object, path: str, problems: Problems) -> object:
        items = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(items, (list, tuple)):
            problems.append(f"{path} is {_shown(value)}, {what} was expected")
            return value
        if length is not None and len(items) != length:
            problems.append(f"{path} has {len(items)} entries, {length} were expected")
            return value
        return [rule(item, f"{path}[{index}]", problems) for index, item in enumerate(items)]

    return check


def _optional(rule: Rule) -> Rule:
    return lambda value, path, problems: None if value is None else rule(value, path, problems)


def _matrix(value: object, path: str, problems: Problems) -> object:
    rows = _list_of(_list_of(_number, "a row of numbers"), "a matrix")(value, path, problems)
    if isinstance(rows, list) and any(not isinstance(row, list) or len(row) != len(rows) for row in rows):
        problems.append(
            f"{path} is not square: {len(rows)} rows with {[len(row) for row in rows if isinstance(row, list)]}"
        )
    return rows


def _free(value: object, path: str, problems: Problems) -> object:
    if not isinstance(value, Mapping):
        problems.append(f"{path} is {_shown(value)}, a dict was expected")
        return value
    problems.extend(unstorable(value, path=path))
    return value if isinstance(value, dict) else dict(value)


def _settings(value: object, path: str, problems: Problems) -> object:
    if not isinstance(value, Mapping):
        problems.append(f"{path} is {_shown(value)}, a dict was expected")
        return value
    result = {_text(key, f"key {key!r} of {path}", problems): _plain_setting(item) for key, item in value.items()}
    problems.extend(unstorable(result, path=path))
    return result


def _plain_setting(value: object) -> object:
    value = _scalar(value)
    return [_plain_setting(item) for item in value] if isinstance(value, (list, tuple)) else value


_NUMBERS: Final = _optional(_list_of(_number, "a list of numbers"))
_SIZES: Final = _optional(_list_of(_size, "a list of sizes"))
_MATRIX: Final = _optional(_matrix)
_STATISTIC: Final = _optional(_statistic)
_BOXES: Final = _list_of(_list_of(_list_of(_number, "[min, max]", length=2), "a box"), "a list of boxes")

STATISTICS: Final = (
    "min", "max", "mean", "median", "std", "percentile_min", "percentile_max", "percentile_mean", "percentile_median",
    "percentile_std", "percentile_min_key", "percentile_max_key",
)  # fmt: skip

FIELDS: Final[Mapping[str, Mapping[str, Rule]]] = MappingProxyType(
    {
        "source": {"data": _free},
        "extra": {"data": _free},
        "spatial": {
            "spacing": _NUMBERS,
            "origin": _NUMBERS,
            "direction": _MATRIX,
            "affine": _MATRIX,
            "shape": _SIZES,
            "axis_labels": _optional(_list_of(_text, "a list of labels")),
            "coord_system": _optional(_text),
            "axis_units": _optional(_list_of(_unit, "a list of units")),
            "_num_spatial_axes": _optional(_size),
            "_num_non_spatial_axes": _optional(_size),
        },
        "stats": dict.fromkeys(STATISTICS, _STATISTIC),
        "bbox": {
            "bboxes": _optional(_BOXES),
            "scores": _optional(_list_of(_statistic, "a list of numbers")),
            "labels": _optional(_list_of(_box_label, "a list of labels")),
        },
        "is_seg": {"is_seg": _optional(_flag)},
        "blosc2": {
            "chunk_size": _SIZES,
            "block_size": _SIZES,
            "patch_size": _SIZES,
            "cparams": _optional(_settings),
            "dparams": _optional(_settings),
        },
        "_has_array": {"has_array": _flag},
        "_image_meta_format": {"image_meta_format": _optional(_text)},
        "_mlarray_version": {"mlarray_version": _optional(_text)},
    }
)
"""Every namespace and field, in the order they are written; exactly those 0.0.54 knows."""


def path_of(namespace: str, field: str) -> str:
    """Return how messages name a field: ``meta.spatial.spacing``, or ``meta.is_seg`` where there is one field only."""
    return f"meta.{namespace}" if len(FIELDS[namespace]) == 1 else f"meta.{namespace}.{field}"


def coerce(namespace: str, field: str, value: object, problems: Problems) -> object:
    """Return `value` as it is kept in a field; a value that does not fit is described in `problems`."""
    return FIELDS[namespace][field](value, path_of(namespace, field), problems)


def is_spatial(label: object) -> bool:
    """Say whether an axis with this label lies in space.

    Examples
    --------
    >>> [is_spatial(label) for label in ("spatial", "spatial_z", "channel", "lead")]
    [True, True, False, False]
    """
    return label in _SPATIAL_LABELS


def axis_counts(axis_labels: object) -> tuple[int | None, int | None]:
    """Return the numbers of spatial and of other axes, or ``(None, None)`` without labels."""
    if not isinstance(axis_labels, list):
        return None, None
    spatial = sum(is_spatial(label) for label in axis_labels)
    return spatial, len(axis_labels) - spatial


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None


def dimensions(spatial: Fields) -> tuple[int | None, int | None]:
    """Return (axes, spatial axes) as far as shape and labels tell; without labels all axes are spatial."""
    labels = _length(spatial.get("axis_labels"))
    ndim = _length(spatial.get("shape"))
    ndim = labels if ndim is None else ndim
    return ndim, ndim if labels is None else axis_counts(spatial.get("axis_labels"))[0]


def spatial_problems(spatial: Fields, *, ndim: int | None = None, spatial_ndim: int | None = None) -> Problems:
    """Return what contradicts itself in spatial fields: lengths, and an affine beside spacing, origin or direction.

    Parameters
    ----------
    spatial : mapping
        Fields as :func:`coerce` returned them.
    ndim, spatial_ndim : int, optional
        Number of axes; by default what the fields ``shape`` and ``axis_labels`` tell.
    """
    own_ndim, own_spatial = dimensions(spatial)
    if ndim is None:
        ndim = own_ndim
    if spatial_ndim is None:
        spatial_ndim = (
            own_spatial if own_spatial is not None else (ndim if spatial.get("axis_labels") is None else None)
        )
    problems: Problems = []
    for field, expected, what in (
        ("shape", ndim, "axis"),
        ("axis_labels", ndim, "axis"),
        ("axis_units", ndim, "axis"),
        ("spacing", spatial_ndim, "spatial axis"),
        ("origin", spatial_ndim, "spatial axis"),
        ("direction", spatial_ndim, "spatial axis"),
        ("affine", None if spatial_ndim is None else spatial_ndim + 1, "spatial axis and 1 more"),
    ):
        given = _length(spatial.get(field))
        if given is not None and expected is not None and given != expected:
            rows = "rows" if field in ("direction", "affine") else "entries"
            problems.append(f"meta.spatial.{field} has {given} {rows}, {expected} were expected (one per {what})")
    beside = [field for field in ("spacing", "origin", "direction") if spatial.get(field) is not None]
    if spatial.get("affine") is not None and beside:
        problems.append(f"meta.spatial.affine is set together with {', '.join(beside)}; only one of both can be stored")
    return problems
