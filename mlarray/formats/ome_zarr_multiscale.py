"""What do the ``multiscales`` of an image say: its axes, its levels, and where each level lies?

Versions 0.1 to 0.5 of OME-NGFF. A level's coordinate transformations (scale, then translation) are followed by those of the
whole image; both are composed here into one scale and one translation per axis. Axes go by their role (``type``, else the
name), never by their position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.axes import Axis, AxisType
from mlarray.errors import FormatError
from mlarray.formats.file_axes import checked_geometry
from mlarray.formats.ome_zarr_units import direction_of, length_mm
from mlarray.formats.text_header import shorten
from mlarray.geometry import Geometry, Part
from mlarray.sources.base import Note

FIRST_AXES = ("t", "c", "z", "y", "x")  # of every image before version 0.3, which named none
_ROLES: dict[str, AxisType] = {"x": "space", "y": "space", "z": "space", "t": "time", "c": "channel"}
_TYPES: dict[str, AxisType] = {"space": "space", "time": "time", "channel": "channel"}
_MAX_LEVELS = 64


@dataclass(frozen=True, slots=True)
class FileAxis:
    """One axis as the file gives it: name, role, unit, and the anatomical direction (world axis of LPS, sign)."""

    name: str
    type: AxisType
    unit: str | None = None
    direction: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution: where its array is, and per axis what an index becomes (``scale * index + translation``).

    Parameters
    ----------
    path : str
        Below the group of the image.
    scale : tuple of float or None
        None where the file states none.
    translation : tuple of float or None
        Likewise.
    """

    path: str
    scale: tuple[float, ...] | None
    translation: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Multiscale:
    """Axes and levels of an image, the finest level first."""

    version: str
    axes: tuple[FileAxis, ...]
    levels: tuple[Level, ...]
    notes: tuple[Note, ...] = ()


def image_attributes(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what OME-NGFF says of a group: below ``ome`` since version 0.5, beside everything else before."""
    ome = attributes.get("ome")
    return ome if isinstance(ome, dict) else attributes


def read_multiscale(ome: Mapping[str, Any]) -> Multiscale:
    """Parse the first of the ``multiscales`` of a group.

    Raises
    ------
    FormatError
        When it is damaged, or places the image in a way that cannot be kept.
    """
    found = ome.get("multiscales")
    if not isinstance(found, list) or not found or not isinstance(found[0], dict):
        raise FormatError("Its multiscales are no list of images.")
    first: Mapping[str, Any] = found[0]
    version = str(first.get("version", ome.get("version", "unknown")))[:20]
    notes = []
    if len(found) > 1:
        notes.append(Note("multiscales-ignored", f"The group holds {len(found)} multiscales; the first is read."))
    axes = _axes(first.get("axes"))
    datasets = first.get("datasets")
    if not isinstance(datasets, list) or not 1 <= len(datasets) <= _MAX_LEVELS:
        raise FormatError(f"Its multiscales need 1 to {_MAX_LEVELS} datasets.")
    outer = first.get("coordinateTransformations")
    levels = tuple(_level(dataset, outer, len(axes)) for dataset in datasets)
    return Multiscale(version, axes, levels, tuple(notes))


def array_axes(axes: Sequence[FileAxis], level: Level) -> tuple[tuple[Axis, ...], tuple[Note, ...]]:
    """Return the axes of an array, lengths in millimetres, and what was converted or is not known."""
    result, notes = [], []
    for position, axis in enumerate(axes):
        if axis.type == "space":
            factor = None if axis.unit is None else length_mm(axis.unit)
            result.append(Axis(axis.name, "space", "millimeter" if factor is not None else axis.unit))
            continue
        step = level.scale[position] if level.scale is not None and axis.type == "time" else None
        shift = level.translation[position] if level.translation is not None else 0.0
        if shift:
            message = f"The translation {shift:g} along axis {axis.name!r}, which is not spatial, is not kept."
            notes.append(Note("translation-dropped", message))
        result.append(Axis(axis.name, axis.type, axis.unit, step))
    notes += _unit_notes(axes)
    return tuple(result), tuple(notes)


def geometry_of(axes: Sequence[FileAxis], level: Level) -> tuple[Geometry | None, tuple[Note, ...]]:
    """Return where the spatial axes lie.

    With an anatomical direction for each of three axes the world is LPS, and the translations along x, y and z are the place of
    the first voxel in it, as ngff-zarr and ITK exchange them (RFC-4 does not say). Otherwise the world is that of the file: its
    x, y and z coordinates grow along the axes of these names, and it has no anatomical name.
    """
    positions = [position for position, axis in enumerate(axes) if axis.type == "space"]
    if level.scale is None or not positions:
        told = (Note("spacing-unknown", "The file states no scale."),) if positions else ()
        return None, told
    spatial = [axes[position] for position in positions]
    scale = np.array([level.scale[position] for position in positions])
    if np.any(scale == 0):
        return None, (Note("spacing-unknown", f"A scale of 0 is no spacing: {scale.tolist()}; none is kept."),)
    factors = np.array([_factor(axis) for axis in spatial])
    shift = level.translation
    start = np.zeros(len(positions)) if shift is None else np.array([shift[position] for position in positions])
    named = world_rows([axis.name for axis in spatial])
    runs, frame = _runs(spatial, named)
    count = len(positions)
    affine = np.eye(count + 1)
    affine[:count, :count] = 0.0
    for column, (row, sign) in enumerate(runs):
        affine[row, column] = sign * scale[column] * factors[column]
        affine[named[column], count] = start[column] * factors[column]
    known: set[Part] = {"spacing", "direction"} if shift is None else {"spacing", "direction", "origin"}
    return checked_geometry(affine, frame, frozenset(known)), ()


def relation(level: Level, finest: Level, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and offset, per axis, that turn an index of a level into one of the finest level."""
    fine, own = (np.ones(ndim) if one.scale is None else np.array(one.scale) for one in (finest, level))
    first, start = (np.zeros(ndim) if one.translation is None else np.array(one.translation) for one in (finest, level))
    divisor = np.where(fine == 0, 1.0, fine)
    return own / divisor, (start - first) / divisor


def _axes(given: object) -> tuple[FileAxis, ...]:
    if given is None:
        return tuple(FileAxis(name, _ROLES[name]) for name in FIRST_AXES)
    if not isinstance(given, list) or not 1 <= len(given) <= 32:
        raise FormatError(f"Its axes {shorten(repr(given))} are no list of axes.")
    axes = tuple(_axis(entry) for entry in given)
    if len({axis.name for axis in axes}) < len(axes):
        raise FormatError(f"Its axes have names more than once: {[axis.name for axis in axes]}.")
    return axes


def _axis(entry: object) -> FileAxis:
    if isinstance(entry, str):
        entry = {"name": entry}
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(name, str) or not 1 <= len(name) <= 80:
        raise FormatError(f"{shorten(repr(entry))} is no axis.")
    given = entry.get("type")
    kind = _TYPES.get(given, "other") if isinstance(given, str) else _ROLES.get(name.lower(), "other")
    unit = entry.get("unit")
    orientation = entry.get("orientation", entry.get("anatomicalOrientation"))
    value = orientation.get("value") if isinstance(orientation, dict) else orientation
    return FileAxis(name, kind, unit if isinstance(unit, str) and unit else None, direction_of(value))


def _level(dataset: object, outer: object, ndim: int) -> Level:
    path = dataset.get("path") if isinstance(dataset, dict) else None
    if not isinstance(dataset, dict) or not isinstance(path, str):
        raise FormatError(f"{shorten(repr(dataset))} is no dataset of multiscales.")
    scale: list[float] | None = None
    shift: list[float] | None = None
    for group in (dataset.get("coordinateTransformations"), outer):
        if group is not None and (not isinstance(group, list) or len(group) > _MAX_LEVELS):
            raise FormatError(f"The coordinateTransformations of {path!r} are no list.")
        for one in group or ():
            kind, numbers = _transformation(one, path, ndim)
            if kind == "scale":
                scale = [a * b for a, b in zip(scale or [1.0] * ndim, numbers, strict=True)]
                shift = None if shift is None else [a * b for a, b in zip(shift, numbers, strict=True)]
            elif kind == "translation":
                shift = [a + b for a, b in zip(shift or [0.0] * ndim, numbers, strict=True)]
    if not all(map(math.isfinite, [*(scale or ()), *(shift or ())])):
        raise FormatError(f"The coordinateTransformations of {path!r} are not finite.")
    return Level(path, None if scale is None else tuple(scale), None if shift is None else tuple(shift))


def _transformation(one: object, path: str, ndim: int) -> tuple[str, list[float]]:
    kind = one.get("type") if isinstance(one, dict) else None
    if not isinstance(one, dict) or kind not in ("identity", "scale", "translation"):
        raise FormatError(
            f"The level {path!r} is placed by a transformation of type {shorten(repr(kind))}; "
            "identity, scale and translation can be read."
        )
    if kind == "identity":
        return kind, []
    if "path" in one and kind not in one:
        raise FormatError(
            f"The {kind} of the level {path!r} stands in a file of its own ({shorten(repr(one['path']))}), which is not read.",
            hint=f"Write its numbers into the metadata as {kind!r}.",
        )
    numbers = one.get(str(kind))
    plain = isinstance(numbers, list) and len(numbers) == ndim
    if not plain or not all(type(n) in (int, float) and abs(n) < 1e300 for n in numbers):  # type: ignore[union-attr]
        raise FormatError(f"The {kind} of the level {path!r} needs {ndim} numbers, got {shorten(repr(numbers))}.")
    return str(kind), [float(n) for n in numbers]  # type: ignore[union-attr]


def _factor(axis: FileAxis) -> float:
    factor = None if axis.unit is None else length_mm(axis.unit)
    return 1.0 if factor is None else factor


def _unit_notes(axes: Sequence[FileAxis]) -> list[Note]:
    units = {axis.unit for axis in axes if axis.type == "space"}
    notes = []
    for unit in sorted(str(unit) for unit in units if unit is not None):
        factor = length_mm(unit)
        if factor is None:
            notes.append(Note("unit-unknown", f"The unit {unit!r} has no known length: its numbers are kept."))
        elif factor != 1.0:
            notes.append(Note("unit-converted", f"Lengths in {unit} were turned into millimetres."))
    if None in units:
        notes.append(Note("unit-unknown", "The file states no unit of length: its numbers are taken as millimetres."))
    return notes


def world_rows(names: Sequence[str]) -> list[int]:
    """Return the world axis that each axis of space is named after; without such names the last is x, as everywhere here.

    Examples
    --------
    >>> world_rows(["z", "y", "x"]), world_rows(["depth", "height"])
    ([2, 1, 0], [1, 0])
    """
    rows = {"x": 0, "y": 1, "z": 2}
    wanted = [rows.get(name.lower(), -1) for name in names]
    return wanted if sorted(wanted) == list(range(len(names))) else list(reversed(range(len(names))))


def _runs(spatial: Sequence[FileAxis], named: Sequence[int]) -> tuple[list[tuple[int, int]], str | None]:
    """Return, per axis of space, the world axis along which it runs and the sign; and the name of that world."""
    anatomical = [axis.direction for axis in spatial if axis.direction is not None]
    if len(spatial) == 3 and len({world for world, _ in anatomical}) == 3:
        return anatomical, "LPS"
    return [(row, 1) for row in named], None
