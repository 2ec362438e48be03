"""What do the axes of a NRRD file mean, and where are its voxels?

``kinds`` and ``space directions`` decide which axes are spatial. Spatial axes become the last array axes, named z, y, x from
the slowest on; the others move to the front in file order (``RawLayout.order`` keeps the order on disk). World positions are
turned into LPS millimetres where the header names an anatomical space; any other space keeps its numbers and its name. Facts
of the format: https://teem.sourceforge.net/nrrd/format.html.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlarray.axes import Axis, AxisType
from mlarray.errors import FormatError
from mlarray.formats.file_axes import SPATIAL_NAMES, array_order, checked_geometry, free_name, place
from mlarray.formats.nrrd_header import NrrdHeader
from mlarray.formats.text_header import axis_count, finite, floats, millimetres, time_unit
from mlarray.geometry import ALL_PARTS, Geometry, Part
from mlarray.orientation import Matrix
from mlarray.sources.base import Note

# Signs that turn the first world axes of a space into left, posterior, superior.
ANATOMICAL: dict[str, tuple[int, int, int]] = {
    "left-posterior-superior": (1, 1, 1),
    "lps": (1, 1, 1),
    "right-anterior-superior": (-1, -1, 1),
    "ras": (-1, -1, 1),
    "left-anterior-superior": (1, -1, 1),
    "las": (1, -1, 1),
}
OTHER_SPACES = ("scanner-xyz", "3d-right-handed", "3d-left-handed")
_TIME_SUFFIXES = {"lpst": "lps", "rast": "ras", "last": "las"}
_SPACE_KINDS = ("space", "domain")
_COLOR_KINDS = ("list", "rgb-color", "hsv-color", "xyz-color", "3-color", "rgba-color", "4-color")
_UNSTATED_KINDS = ("", "???", "none")
_TIME_LABELS = ("t", "time", "frame", "frames")


@dataclass(frozen=True, slots=True)
class AxisReading:
    """What a header says about axes and place.

    Parameters
    ----------
    order : tuple of int
        ``order[k]`` is the array axis that disk axis ``k`` (slowest first) becomes.
    axes : tuple of Axis
        In array order.
    geometry : Geometry or None
        Of the spatial axes, in array order.
    notes : tuple of Note
        What was assumed or left out.
    """

    order: tuple[int, ...]
    axes: tuple[Axis, ...]
    geometry: Geometry | None
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Space:
    """The world of the header: its name as given, its number of axes, and the signs to LPS where it is anatomical."""

    name: str | None
    dimension: int | None
    signs: tuple[int, int, int] | None


def read_axes(header: NrrdHeader) -> AxisReading:
    """Interpret the axes of a header.

    Raises
    ------
    FormatError
        When directions, spacings or units contradict the sizes or cannot be a place.
    """
    notes: list[Note] = []
    count = len(header.sizes)
    space = _read_space(header)
    directions = _directions(header, space)
    spatial, extra = _spatial_axes(header, directions, notes)
    types = {axis: _other_type(header, axis) for axis in range(count) if axis not in spatial and axis not in extra}
    for axis in extra:
        types[axis] = "time" if axis == extra[0] else "other"
    geometry, unit = _geometry(header, space, directions, spatial, extra, notes)
    axes: dict[int, Axis] = {}
    names = dict(zip(reversed(spatial), SPATIAL_NAMES[-len(spatial) :] if spatial else (), strict=True))
    taken = set(names.values())
    labels = header.quoted("labels", count)
    for axis in reversed(range(count)):
        if axis in names:
            axes[axis] = Axis(names[axis], "space", unit)
            continue
        name = free_name(types[axis], labels[axis], taken)
        taken.add(name)
        axes[axis] = Axis(name, types[axis], *_step(header, directions, axis, types[axis]))
    order = array_order([axis in names for axis in reversed(range(count))])
    placed = sorted(zip(order, reversed(range(count)), strict=True))
    return AxisReading(order, tuple(axes[axis] for _, axis in placed), geometry, tuple(notes))


def _read_space(header: NrrdHeader) -> _Space:
    name = header.fields.get("space")
    if name is None:
        text = header.fields.get("space dimension")
        return _Space(None, None if text is None else axis_count("space dimension", text), None)
    plain = name.strip().lower()
    plain = _TIME_SUFFIXES.get(plain, plain.removesuffix("-time"))
    timed = plain != name.strip().lower()
    known = plain in ANATOMICAL or plain in OTHER_SPACES
    return _Space(name, 3 + timed if known else None, ANATOMICAL.get(plain))


def _directions(header: NrrdHeader, space: _Space) -> tuple[tuple[float, ...] | None, ...] | None:
    if "space directions" not in header.fields:
        return None
    vectors = header.vectors("space directions")
    if len(vectors) != len(header.sizes):
        raise FormatError(f"'space directions' holds {len(vectors)} vectors for {len(header.sizes)} axes.")
    lengths = {len(vector) for vector in vectors if vector is not None}
    world = space.dimension if space.dimension is not None else max(lengths, default=0)
    return tuple(None if vector is None else finite("space directions", vector, world) for vector in vectors)


def _spatial_axes(
    header: NrrdHeader, directions: Sequence[tuple[float, ...] | None] | None, notes: list[Note]
) -> tuple[list[int], list[int]]:
    """Return the spatial file axes, and those with a claim to be spatial that run through time or are too many."""
    spacings = header.per_axis("spacings")
    candidates: list[int] = []
    extra: list[int] = []
    for axis, kind in enumerate(_kinds(header)):
        if kind not in _SPACE_KINDS and kind not in _UNSTATED_KINDS:
            continue
        if directions is None:
            candidates += [axis] if kind != "???" else []
        elif (vector := directions[axis]) is not None:
            (extra if _leaves_space(vector) else candidates).append(axis)
    if len(candidates) > 3 and directions is None and spacings is not None:
        stated = [axis for axis in candidates if not math.isnan(spacings[axis])]
        candidates = stated if 0 < len(stated) <= 3 else candidates
    if len(candidates) > 3:
        notes.append(
            Note(
                "axes-assumed",
                f"{len(candidates)} axes of this NRRD claim to be spatial: the first three are taken as x, y, z, the next as t.",
            )
        )
    return candidates[:3], extra + candidates[3:]


def _leaves_space(vector: Sequence[float]) -> bool:
    """Tell whether a direction runs along the fourth or a later world axis only."""
    return any(vector[3:]) and not any(vector[:3])


def _kinds(header: NrrdHeader) -> tuple[str, ...]:
    text = header.fields.get("kinds")
    if text is None:
        return ("",) * len(header.sizes)
    kinds = tuple(text.lower().split())
    if len(kinds) != len(header.sizes):
        raise FormatError(f"'kinds' holds {len(kinds)} kinds for {len(header.sizes)} axes.")
    return kinds


def _other_type(header: NrrdHeader, axis: int) -> AxisType:
    kind = _kinds(header)[axis]
    label = header.quoted("labels", len(header.sizes))[axis].lower()
    unit = header.quoted("units", len(header.sizes))[axis]
    if kind == "time":
        return "time"
    if kind in ("list", *_UNSTATED_KINDS, *_SPACE_KINDS) and (label in _TIME_LABELS or time_unit(unit) is not None):
        return "time"
    if kind in _COLOR_KINDS:
        return "channel"
    if kind in (*_UNSTATED_KINDS, *_SPACE_KINDS, "point", "stub"):
        return "other"
    return "components"  # vectors, normals, gradients, quaternions, complex numbers, matrices


def _step(
    header: NrrdHeader,
    directions: Sequence[tuple[float, ...] | None] | None,
    axis: int,
    kind: AxisType,
) -> tuple[str | None, float | None]:
    """Return unit and sampling step of an axis that is not spatial."""
    unit = header.quoted("units", len(header.sizes))[axis]
    spacings = header.per_axis("spacings")
    step = spacings[axis] if spacings is not None else math.nan
    vector = None if directions is None else directions[axis]
    if vector is not None and _leaves_space(vector):
        step = math.hypot(*vector[3:])
        unit = unit or header.quoted("space units", len(vector))[3]
    name = (time_unit(unit) if kind == "time" else None) or unit or None
    return name, step if math.isfinite(step) and step > 0 else None


def _geometry(
    header: NrrdHeader,
    space: _Space,
    directions: Sequence[tuple[float, ...] | None] | None,
    spatial: Sequence[int],
    extra: Sequence[int],
    notes: list[Note],
) -> tuple[Geometry | None, str | None]:
    """Return geometry (in array order) and the unit of the spatial axes."""
    if not spatial:
        return None, None
    if space.name is not None and space.signs is None:
        notes.append(Note("orientation-unknown", f"The space {space.name!r} is not anatomical: its numbers are kept."))
    elif space.name is None and directions is not None:
        notes.append(Note("orientation-unknown", "The header names no anatomical space for its directions."))
    if directions is None:
        return _from_spacings(header, space, spatial, notes)
    columns = np.array([directions[axis] for axis in spatial], dtype=np.float64).T
    rows, count = columns.shape
    if rows < count:
        raise FormatError(f"{count} axes have directions in a space of {rows} dimensions.")
    factors, unit = _world_factors(header, space, rows, notes)
    origin = _origin(header, rows, notes)
    if np.any(columns[3:]) or any(any((directions[axis] or ())[:3]) for axis in extra):
        notes.append(Note("geometry-reduced", "Space and further world axes are mixed: the place of index 0 is kept."))
    columns = (factors[:, None] * columns)[:3]
    if origin is not None:
        origin = (factors * origin)[:3]
    name = "LPS" if space.signs is not None else space.name
    known = ALL_PARTS if origin is not None else ALL_PARTS - {"origin"}
    return place(columns, origin, name, known, notes), unit


def _from_spacings(
    header: NrrdHeader, space: _Space, spatial: Sequence[int], notes: list[Note]
) -> tuple[Geometry | None, str | None]:
    spacings = header.per_axis("spacings")
    units = {header.quoted("units", len(header.sizes))[axis] for axis in spatial}
    if spacings is None:
        return None, None
    given = [spacings[axis] for axis in reversed(spatial)]
    if any(math.isnan(value) for value in given):
        notes.append(Note("spacing-unknown", f"The spacings {given} (slowest axis first) are not all stated."))
        return None, None
    if any(math.isinf(value) or value == 0 for value in given):
        raise FormatError(f"The field 'spacings' must hold finite numbers other than 0, got {given}.")
    factors = [millimetres(header.quoted("units", len(header.sizes))[axis]) for axis in reversed(spatial)]
    unit = units.pop() if len(units) == 1 else ""
    if all(factor is not None for factor in factors):
        given = [value * factor for value, factor in zip(given, factors, strict=True) if factor is not None]
        unit = "millimeter"
    elif unit:
        notes.append(Note("unit-unknown", f"The unit {unit!r} has no known length: spacings are kept as they are."))
    affine = np.diag([*map(abs, given), 1.0])
    known: set[Part] = {"spacing"}
    origin = _origin(header, space.dimension or len(spatial), notes)
    if origin is not None and len(origin) >= len(spatial):
        signs = np.array(space.signs or (1, 1, 1))[: len(spatial)]
        affine[:-1, -1] = origin[: len(spatial)] * signs
        known.add("origin")
    name = "LPS" if space.signs is not None else space.name
    return checked_geometry(affine, name, frozenset(known)), unit or None


def _world_factors(header: NrrdHeader, space: _Space, rows: int, notes: list[Note]) -> tuple[Matrix, str | None]:
    """Return, per world axis, what turns its numbers into LPS millimetres, and the unit of the result."""
    factors = np.ones(rows)
    if space.signs is not None:
        factors[:3] = space.signs
    units = header.quoted("space units", rows)[:3]
    if not any(units):
        return factors, "millimeter" if space.signs is not None else None
    lengths = [millimetres(unit) for unit in units]
    if any(length is None for length in lengths):
        notes.append(
            Note("unit-unknown", f"The space units {list(units)} are not all known lengths: numbers are kept.")
        )
        return factors, units[0] if len(set(units)) == 1 else None
    factors[: len(units)] *= np.array(lengths, dtype=np.float64)
    return factors, "millimeter"


def _origin(header: NrrdHeader, rows: int, notes: list[Note]) -> Matrix | None:
    text = header.fields.get("space origin")
    if text is None or text.lower() == "none":
        return None
    values = floats("space origin", text.strip().removeprefix("(").removesuffix(")"))
    if any(math.isnan(value) for value in values):
        notes.append(Note("origin-unknown", f"The space origin {text} is not stated in full."))
        return None
    return np.array(finite("space origin", values, rows))
