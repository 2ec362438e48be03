"""Where do the planes of a stack lie, and is it a regular one?

World positions are LPS millimetres, as DICOM has them (PS3.3, C.7.6.2.1.1). A voxel ``(k, j, i)`` of the array lies at::

    position_0 + k * step + j * spacing[0] * column + i * spacing[1] * row

``row`` and ``column`` are the two halves of ImageOrientationPatient, ``spacing`` is PixelSpacing (between rows, then between
columns), and ``step`` is the mean vector from one plane to the next: a tilted gantry makes it stand oblique on the plane, and
it is kept so. No other field places a slice: SpacingBetweenSlices and SliceThickness are often wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import FormatError, UsageError
from mlarray.formats.dicom_frames import Frame
from mlarray.formats.series import SeriesOptions
from mlarray.geometry import ALL_PARTS, Geometry
from mlarray.sources.base import Note

Vector = npt.NDArray[np.float64]
SAME_PLACE_MM = 1e-3  # what is nearer is one position: what rounding to text does
_ORTHOGONAL = 1e-3
_GAPS_TOLD = 4


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a stack lies.

    Parameters
    ----------
    geometry : Geometry or None
        In array order (slices, rows, columns); of two axes for a picture without position; None when nothing is known.
    notes : tuple of Note
        What was assumed or is unusual.
    offsets : tuple of float
        Position of every slice along the normal, millimetres from the first; only where the steps are uneven.
    """

    geometry: Geometry | None
    notes: tuple[Note, ...] = ()
    offsets: tuple[float, ...] = ()


def normal_of(orientation: Vector) -> Vector:
    """Return the unit normal of a plane: row direction cross column direction."""
    normal = np.cross(orientation[:3], orientation[3:])
    return np.asarray(normal / np.linalg.norm(normal), dtype=np.float64)


def check_orientation(frame: Frame) -> str | None:
    """Tell what is wrong with the direction cosines of a frame; None where they are a right-angled pair of unit vectors."""
    if frame.orientation is None:
        return None
    row, column = np.array(frame.orientation[:3]), np.array(frame.orientation[3:])
    lengths = [float(np.linalg.norm(row)), float(np.linalg.norm(column))]
    if any(abs(length - 1) > _ORTHOGONAL for length in lengths) or abs(float(row @ column)) > _ORTHOGONAL:
        return "ImageOrientationPatient is no pair of unit vectors at a right angle"
    return None


def levels_of(frames: Sequence[Frame]) -> tuple[list[int], int]:
    """Return the number of the plane that each frame lies in, counted along the normal, and how many there are.

    Frames of one orientation. Two lie in one plane when they are nearer than 1 % of the median step, but at least 1e-3 mm.
    """
    distances = distances_of(frames)
    order = np.argsort(distances, kind="stable")
    steps = np.diff(distances[order])
    real = steps[steps > SAME_PLACE_MM]
    limit = max(SAME_PLACE_MM, 0.01 * float(np.median(real))) if real.size else SAME_PLACE_MM
    numbers = np.concatenate([[0], np.cumsum(steps > limit)]).astype(int) if len(order) else order
    levels = np.empty(len(order), int)
    levels[order] = numbers
    return levels.tolist(), int(numbers[-1]) + 1 if len(order) else 0


def distances_of(frames: Sequence[Frame]) -> Vector:
    """Return the position of each frame along the common normal, millimetres."""
    normal = normal_of(mean_orientation(frames))
    return np.array([np.dot(_position(frame), normal) for frame in frames], dtype=np.float64)


def mean_orientation(frames: Sequence[Frame]) -> Vector:
    """Return the mean of the direction cosines, both halves of unit length."""
    stacked = np.array(sorted(frame.orientation for frame in frames if frame.orientation is not None))
    mean = stacked.mean(axis=0)
    row = mean[:3] / np.linalg.norm(mean[:3])
    column = mean[3:] / np.linalg.norm(mean[3:])
    return np.concatenate([row, column])


def place(frames: Sequence[Frame], options: SeriesOptions) -> Placement:
    """Return where a stack lies.

    Parameters
    ----------
    frames : sequence of Frame
        One per slice, in the order of their positions.
    options : SeriesOptions
        Tolerances.

    Raises
    ------
    FormatError
        When slices are missing or the steps are uneven; the message names the places.
    """
    first = frames[0]
    if first.position is None or first.orientation is None:
        return _unplaced(frames)
    orientation = mean_orientation(frames)
    row, column = orientation[:3], orientation[3:]
    positions = np.array([_position(frame) for frame in frames])
    notes: list[Note] = []
    spacing = first.spacing
    offsets: tuple[float, ...] = ()
    origin = positions[0]
    if len(frames) == 1:
        step = normal_of(orientation) * _assumed_step(first, notes)
    else:
        problem = uneven(positions, normal_of(orientation), options.spacing_tolerance)
        if problem is None:
            origin, step = _line(positions, normal_of(orientation), options.spacing_tolerance)
        else:
            if not options.keep_irregular:
                raise FormatError(problem, hint="--irregular-slices keep converts it with unknown slice spacing.")
            step = _median_step(positions)
            distances = (positions - positions[0]) @ normal_of(orientation)
            offsets = tuple(round(float(value), 6) for value in distances)
            notes.append(Note("slices-irregular", f"{problem} The slice spacing is marked unknown."))
    if spacing is None:
        notes.append(Note("geometry-assumed", "The header states no PixelSpacing; the voxel size is marked unknown."))
    rows, columns = spacing or (1.0, 1.0)
    affine = np.eye(4)
    affine[:3, :3] = np.column_stack([step, column * rows, row * columns])
    affine[:3, 3] = origin
    known = ALL_PARTS if spacing is not None and not offsets else frozenset({"origin", "direction"})
    try:
        geometry = Geometry(affine, "LPS", known)  # type: ignore[arg-type]
    except UsageError as error:
        raise FormatError(f"The slices do not span a volume: {error.message}") from error
    if geometry.is_sheared:
        angle = math.degrees(
            math.acos(min(1.0, abs(float(step @ normal_of(orientation)) / float(np.linalg.norm(step)))))
        )
        text = f"The stack is sheared by {angle:.3g} degrees (a tilted gantry); the affine keeps that, some formats cannot."
        notes.append(Note("gantry-tilt", text))
    return Placement(geometry, tuple(notes), offsets)


def uneven(positions: Any, normal: Vector, tolerance: float) -> str | None:
    """Tell what is irregular in a stack of positions, shape (n, 3), in order; None where nothing is.

    A stack is even when every step is near the median step, or every position near its place on an even line: the second is
    what scanners give that round positions. Steps are vectors, so that a slice that is shifted within its plane counts too.
    """
    steps = np.diff(positions, axis=0)
    median = _median_step(positions)
    length = float(np.linalg.norm(median))
    if _distance(positions, *_fitted_line(positions)) <= tolerance * length:
        return None
    errors = np.linalg.norm(steps - median, axis=1)
    wrong = np.flatnonzero(errors > tolerance * length)
    if not wrong.size:
        return None
    along = positions @ normal
    gaps = []
    for index in wrong:
        factor = float(along[index + 1] - along[index]) / float(median @ normal)
        missing = round(factor) - 1
        if missing > 0 and abs(factor - round(factor)) <= tolerance * max(1, round(factor)):
            count = "one slice is" if missing == 1 else f"{missing} slices are"
            gaps.append(f"{count} missing between {along[index]:.6g} and {along[index + 1]:.6g} mm")
    if len(gaps) == wrong.size:
        more = f", and at {len(gaps) - _GAPS_TOLD} more places" if len(gaps) > _GAPS_TOLD else ""
        told = ", ".join(gaps[:_GAPS_TOLD])
        return f"{told[0].upper()}{told[1:]}{more} along the slice normal, where the step is {length:.6g} mm."
    lengths = np.linalg.norm(steps, axis=1)
    worst = int(errors.argmax())
    return (
        f"The steps between slices are uneven: from {lengths.min():.6g} to {lengths.max():.6g} mm with a median of {length:.6g}; "
        f"the worst is from {along[worst]:.6g} to {along[worst + 1]:.6g} mm along the slice normal."
    )


def _line(positions: Any, normal: Vector, tolerance: float) -> tuple[Vector, Vector]:
    """Return the place of the first slice and the step, of an even stack.

    Positions that lie on an even line are taken as they are. Where they are rounded, the line is fitted; and it is at right
    angles to the slices where that fits as well, for a shear of a hundredth of a degree would be made of rounding.
    """
    origin, step = positions[0], (positions[-1] - positions[0]) / (len(positions) - 1)
    if _distance(positions, origin, step) <= SAME_PLACE_MM:
        return origin, step
    origin, step = _fitted_line(positions)
    straight = normal * float(step @ normal)
    centre = origin + step * (len(positions) - 1) / 2
    start = centre - straight * (len(positions) - 1) / 2
    if _distance(positions, start, straight) <= tolerance * float(np.linalg.norm(step)):
        return start, straight
    return origin, step


def _fitted_line(positions: Any) -> tuple[Vector, Vector]:
    """Return origin and step of the even line that is nearest to the positions, by least squares."""
    numbers = np.arange(len(positions)) - (len(positions) - 1) / 2
    step = numbers @ positions / float(numbers @ numbers)
    return positions.mean(axis=0) + numbers[0] * step, step


def _distance(positions: Any, origin: Vector, step: Vector) -> float:
    """Return how far the farthest position is from its place on an even line."""
    places = origin + np.arange(len(positions))[:, None] * step
    return float(np.linalg.norm(positions - places, axis=1).max())


def _median_step(positions: Any) -> Vector:
    """Return the step of median length; of two in the middle the shorter, as gaps are what makes steps longer."""
    steps = np.diff(positions, axis=0)
    order = np.argsort(np.linalg.norm(steps, axis=1), kind="stable")
    return np.asarray(steps[order[(len(order) - 1) // 2]], dtype=np.float64)


def _assumed_step(frame: Frame, notes: list[Note]) -> float:
    """Return the step of a single slice, which no position can tell."""
    for name in ("SpacingBetweenSlices", "SliceThickness"):
        value = frame.instance.kept.get(name)
        if isinstance(value, (int, float)) and value > 0:
            notes.append(Note("geometry-assumed", f"A single slice: its thickness {value:g} mm is that of {name}."))
            return float(value)
    notes.append(Note("geometry-assumed", "A single slice of unknown thickness: 1 mm was assumed."))
    return 1.0


def _unplaced(frames: Sequence[Frame]) -> Placement:
    """Return what is known of frames without positions: for a picture its pixel size, for a stack nothing."""
    missing = "position" if frames[0].position is None else "orientation"
    if len(frames) == 1:
        spacing = frames[0].spacing
        note = Note("geometry-unknown", f"The header states no {missing}: where the image lies is unknown.")
        return Placement(None if spacing is None else Geometry.from_parts(spacing=spacing), (note,))
    text = (
        f"No slice states a {missing}: the geometry is unknown, and the {len(frames)} slices are in the order of their "
        "instance numbers, which may not be that in space."
    )
    return Placement(None, (Note("geometry-unknown", text),))


def _position(frame: Frame) -> tuple[float, float, float]:
    assert frame.position is not None
    return frame.position
