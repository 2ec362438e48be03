"""What does each array axis mean? Name, type, unit and, off the spatial axes, sampling step.

The vocabulary is OME-NGFF's (``space``, ``time``, ``channel``) plus the two roles that the axis labels of ``.mla`` files
know beside them (``components``, ``continuous``). Spatial steps live in :class:`mlarray.geometry.Geometry`; an
:class:`Axis` carries a step only where geometry has no place for it, such as the repetition time of a time axis.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from mlarray.errors import UsageError

AxisType: TypeAlias = Literal["space", "time", "channel", "components", "continuous", "other"]
AxesLike: TypeAlias = "str | Sequence[str | Axis | Mapping[str, object]]"

_TYPES: tuple[AxisType, ...] = ("space", "time", "channel", "components", "continuous", "other")
# The labels that 0.0.x files use, and the type each stands for. Any other label is a non-spatial axis there.
_LABEL_TYPES: dict[str, AxisType] = {
    "spatial": "space",
    "spatial_x": "space",
    "spatial_y": "space",
    "spatial_z": "space",
    "temporal": "time",
    "channel": "channel",
    "components": "components",
    "continuous": "continuous",
    "non_spatial": "other",
}
_TYPE_LABELS: dict[AxisType, str] = {
    "time": "temporal",
    "channel": "channel",
    "components": "components",
    "continuous": "continuous",
    "other": "non_spatial",
}
_MOST_AXES = 64  # numpy's own limit
_NAME_TYPES: dict[str, AxisType] = {"x": "space", "y": "space", "z": "space", "t": "time", "c": "channel"}


@dataclass(frozen=True, slots=True)
class Axis:
    """One array axis.

    Parameters
    ----------
    name : str
        A short name, unique within an array: ``"z"``, ``"y"``, ``"x"``, ``"t"``, ``"c"``.
    type : {"space", "time", "channel", "components", "continuous", "other"}, optional
        Default: ``space`` for x, y and z, ``time`` for t, ``channel`` for c, else ``other``.
    unit : str, optional
        Unit of the coordinate along the axis, spelled as OME-NGFF does (``"millimeter"``, ``"second"``); None is unknown.
    step : float, optional
        Distance between neighbouring samples in ``unit``, for axes that are not spatial (a repetition time).

    Raises
    ------
    UsageError
        For an empty name, an unknown type, or a step on a spatial axis.

    Examples
    --------
    >>> Axis("t", unit="second", step=2.5).type
    'time'
    """

    name: str
    type: AxisType | None = None
    unit: str | None = None
    step: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"An axis needs a non-empty name, got {self.name!r}.")
        if self.type is None:
            object.__setattr__(self, "type", _NAME_TYPES.get(self.name.lower(), "other"))
        if self.type not in _TYPES:
            raise UsageError(f"Axis {self.name!r} has type {self.type!r}; allowed are {', '.join(_TYPES)}.")
        if self.unit is not None and not isinstance(self.unit, str):
            raise UsageError(f"The unit of axis {self.name!r} must be a string, got {self.unit!r}.")
        if self.step is not None:
            if self.is_spatial:
                raise UsageError(f"Axis {self.name!r} is spatial: its step belongs to the geometry, not to the axis.")
            object.__setattr__(self, "step", _step(self.name, self.step))

    @property
    def is_spatial(self) -> bool:
        """Whether the axis is one of space."""
        return self.type == "space"

    @property
    def label(self) -> str:
        """The label of ``.mla`` metadata for this axis: ``spatial_z``, ``channel``, ``temporal`` ..."""
        if self.is_spatial:
            return f"spatial_{self.name}" if self.name in ("x", "y", "z") else "spatial"
        return _TYPE_LABELS[self.type or "other"]

    def to_dict(self) -> dict[str, object]:
        """Return the axis in the form of OME-NGFF (``name``, ``type``, ``unit``), with ``step`` where there is one."""
        entry: dict[str, object] = {"name": self.name, "type": self.type}
        if self.unit is not None:
            entry["unit"] = self.unit
        if self.step is not None:
            entry["step"] = self.step
        return entry


def parse_axes(axes: AxesLike) -> tuple[Axis, ...]:
    """Coerce what a caller may write for axes.

    Parameters
    ----------
    axes : str or sequence
        ``"czyx"`` (one letter an axis), names, OME-NGFF dictionaries (``name``, optional ``type``, ``unit``, ``step``),
        labels of ``.mla`` metadata (``"spatial_z"``, ``"channel"``), or :class:`Axis` values, mixed at will.

    Returns
    -------
    tuple of Axis
        One per array axis.

    Raises
    ------
    UsageError
        For duplicate names or an entry of another kind.

    Examples
    --------
    >>> [axis.type for axis in parse_axes("tzyx")]
    ['time', 'space', 'space', 'space']
    """
    if not isinstance(axes, Iterable):
        raise UsageError(
            f"Axes are a word of one-letter names, or a list of names, dictionaries and Axis, got {axes!r}."
        )
    entries = list(itertools.islice(axes, _MOST_AXES + 1))
    if len(entries) > _MOST_AXES:
        raise UsageError(f"An array has at most {_MOST_AXES} axes, more were named.")
    parsed = tuple(_parse_axis(entry, position) for position, entry in enumerate(entries))
    _refuse_duplicates(parsed)
    return parsed


def axes_from_labels(labels: Sequence[str] | None, units: Sequence[str | None] | None, ndim: int) -> tuple[Axis, ...]:
    """Return the axes that ``axis_labels`` and ``axis_units`` of ``.mla`` metadata describe.

    Without labels every axis is spatial (the rule of the 0.0.x files) and nothing says which is x: the axes are then
    called ``d0``, ``d1`` ... in array order. Labels outside the vocabulary are non-spatial axes with that name.
    """
    names = [None] * ndim if labels is None else list(labels)
    if len(names) != ndim:
        raise UsageError(f"{len(names)} axis labels were given for an array of {ndim} axes.")
    unit_of = list(units) if units is not None and len(units) == ndim else [None] * ndim
    result: list[Axis] = []
    taken: set[str] = set()
    for position, (label, unit) in enumerate(zip(names, unit_of, strict=True)):
        kind: AxisType = "space" if label is None else _LABEL_TYPES.get(label, "other")
        name = _free_name(_name_of_label(label), position, taken)
        taken.add(name)
        result.append(Axis(name, kind, unit or None))
    return tuple(result)


def default_axes(ndim: int, spatial_ndim: int | None = None) -> tuple[Axis, ...]:
    """Return axes for an array about which nothing is known: the last ``spatial_ndim`` (default: all) are spatial."""
    count = ndim if spatial_ndim is None else spatial_ndim
    return tuple(Axis(f"d{position}", "space" if position >= ndim - count else "other") for position in range(ndim))


def are_labelled(axes: Sequence[Axis]) -> bool:
    """Tell whether anything is known about the axes, that is, whether they are not those of :func:`default_axes`."""
    return tuple(axes) != default_axes(len(axes))


def spatial_mask(axes: Iterable[Axis]) -> tuple[bool, ...]:
    """Return, per axis, whether it is spatial."""
    return tuple(axis.is_spatial for axis in axes)


def _parse_axis(entry: object, position: int) -> Axis:
    if isinstance(entry, Axis):
        return entry
    if isinstance(entry, str):
        if entry in _LABEL_TYPES:
            return Axis(_free_name(_name_of_label(entry), position, set()), _LABEL_TYPES[entry])
        return Axis(entry)
    if isinstance(entry, Mapping):
        unknown = set(entry) - {"name", "type", "unit", "step"}
        if unknown or "name" not in entry:
            raise UsageError(f"An axis dictionary has the keys name, type, unit and step, got {dict(entry)!r}.")
        return Axis(
            cast("str", entry["name"]),
            cast("AxisType | None", entry.get("type")),
            cast("str | None", entry.get("unit")),
            cast("float | None", entry.get("step")),
        )
    raise UsageError(f"An axis is a name, a dictionary or an Axis, got {entry!r}.")


def _step(name: str, step: object) -> float:
    try:
        return float(cast("float", step))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"The step of axis {name!r} must be a number, got {step!r}.") from None


def _name_of_label(label: str | None) -> str | None:
    if label is None or label in ("spatial", "non_spatial"):
        return None
    short = {"spatial_x": "x", "spatial_y": "y", "spatial_z": "z", "temporal": "t", "channel": "c", "components": "v"}
    return short.get(label, label)


def _free_name(name: str | None, position: int, taken: set[str]) -> str:
    if name and name not in taken:
        return name
    stem = name or "d"
    return next(free for number in itertools.count(position) if (free := f"{stem}{number}") not in taken)


def _refuse_duplicates(axes: tuple[Axis, ...]) -> None:
    names = [axis.name for axis in axes]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise UsageError(f"Axis names must be unique, got {', '.join(twice)} more than once in {names}.")
