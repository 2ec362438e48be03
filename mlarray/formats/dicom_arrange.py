"""Several frames at one position: what tells them apart, and what becomes of that?

Frames of one orientation are a stack when every position holds one. Where positions hold more, a field has to say why. Time,
echo, inversion, flip angle and diffusion weighting become an array axis in front of the slices: the same positions, measured
several times. Other kinds of images (magnitude and phase) and passes over different positions become volumes of their own.
Nothing is guessed: what no field explains is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import FormatError
from mlarray.formats.dicom_frames import Frame
from mlarray.formats.dicom_geometry import distances_of, levels_of, mean_orientation, normal_of, uneven
from mlarray.formats.series import SeriesOptions

_EVEN = 0.01  # of the median: how equal the steps of a time axis have to be to be one number


@dataclass(frozen=True, slots=True)
class Arranged:
    """Frames in array order.

    Parameters
    ----------
    axes : tuple of Axis
        In front of the slices.
    extents : tuple of int
        Of those axes.
    values : tuple of tuple
        What the field of each axis says, one per index, for the header.
    frames : tuple of Frame
        In C order of ``(*extents, slices)``.
    """

    axes: tuple[Axis, ...]
    extents: tuple[int, ...]
    values: tuple[tuple[object, ...], ...]
    frames: tuple[Frame, ...]

    @property
    def slices(self) -> tuple[Frame, ...]:
        """The frames of one volume."""
        count = len(self.frames) // int(np.prod(self.extents, dtype=int))
        return self.frames[:count]


@dataclass(frozen=True, slots=True)
class _Field:
    """A field that may tell frames apart, and the axis that it is.

    ``ranked`` fields differ from slice to slice also within one volume (a time of acquisition), so that their order at each
    position counts, not their value.
    """

    key: str
    axis: str
    unit: str | None = None
    ranked: bool = False


_FIELDS = (
    _Field("TemporalPositionIdentifier", "t"),
    _Field("EchoTime", "echo", "millisecond"),
    _Field("EchoNumbers", "echo"),
    _Field("Diffusion", "b"),
    _Field("InversionTime", "inversion", "millisecond"),
    _Field("FlipAngle", "flip", "degree"),
    _Field("FrameReferenceTime", "t", "millisecond", ranked=True),
    _Field("TriggerTime", "t", "millisecond", ranked=True),
    _Field("AcquisitionNumber", "t"),
    _Field("AcquisitionTime", "t", "second", ranked=True),
)
_KINDS = ("ImageType", "ComplexImageComponent")


def arrange(frames: Sequence[Frame], options: SeriesOptions) -> list[Arranged]:
    """Return the volumes that frames of one orientation form.

    Parameters
    ----------
    frames : sequence of Frame
        With positions.
    options : SeriesOptions
        Tolerances.

    Raises
    ------
    FormatError
        When positions hold several frames that no field tells apart, or a volume of several lacks slices.
    """
    levels, count = levels_of(frames)
    if len(frames) == count:
        return _passes(frames, levels, options)
    for kind in _KINDS:
        groups = _grouped(frames, lambda frame, kind=kind: frame.keys.get(kind))  # type: ignore[misc]
        if len(groups) > 1:
            return [found for group in groups.values() for found in arrange(group, options)]
    grid = _grid(frames, levels, count)
    if grid is not None:
        return [grid]
    passes = _grouped(frames, lambda frame: frame.keys.get("AcquisitionNumber"))
    if len(passes) > 1 and all(levels_of(group)[1] == len(group) for group in passes.values()):
        return [_stack(group) for group in passes.values()]
    raise _unexplained(frames, levels, count)


def _passes(frames: Sequence[Frame], levels: Sequence[int], options: SeriesOptions) -> list[Arranged]:
    """Return one stack; or one per pass where the whole is uneven and every pass by itself is not."""
    whole = _stack(frames)
    if len(frames) < 3 or _problem(whole.frames, options) is None:
        return [whole]
    groups = _grouped(frames, lambda frame: frame.keys.get("AcquisitionNumber"))
    parts = [_stack(group) for group in groups.values()]
    if len(parts) > 1 and all(len(part.frames) > 1 and _problem(part.frames, options) is None for part in parts):
        return parts
    return [whole]


def _problem(frames: Sequence[Frame], options: SeriesOptions) -> str | None:
    positions = np.array([frame.position for frame in frames])
    return (
        uneven(positions, normal_of(mean_orientation(frames)), options.spacing_tolerance) if len(frames) > 2 else None
    )


def _stack(frames: Sequence[Frame]) -> Arranged:
    order = np.argsort(distances_of(frames), kind="stable")
    return Arranged((), (), (), tuple(frames[index] for index in order))


def _grid(frames: Sequence[Frame], levels: Sequence[int], count: int) -> Arranged | None:
    """Return the frames on the grid of one or two fields, the slices last; None where no field gives a complete one."""
    labels = {field: found for field in _FIELDS if (found := _labels(frames, levels, field)) is not None}
    for number in (1, 2):
        for fields in combinations(labels, number):
            if len({field.axis for field in fields}) < number:
                continue
            keys = list(zip(*(labels[field][0] for field in fields), levels, strict=True))
            extents = tuple(len(labels[field][1]) for field in fields)
            if len(set(keys)) == len(keys) == int(np.prod(extents)) * count:
                order = sorted(range(len(frames)), key=lambda index, keys=keys: keys[index])  # type: ignore[misc]
                values = tuple(labels[field][1] for field in fields)
                axes = tuple(_axis(field, labels[field][1], frames) for field in fields)
                return Arranged(axes, extents, values, tuple(frames[index] for index in order))
    return None


def _labels(
    frames: Sequence[Frame], levels: Sequence[int], field: _Field
) -> tuple[list[int], tuple[object, ...]] | None:
    """Return the index of every frame along a field, and what the field says at each; None where it says nothing."""
    values = [_value(frame, field.key) for frame in frames]
    if any(value is None for value in values):
        return None
    if not field.ranked:
        distinct = sorted(set(values))  # type: ignore[type-var]
        places = {value: index for index, value in enumerate(distinct)}
        return ([places[value] for value in values], tuple(distinct)) if len(distinct) > 1 else None
    at_level: dict[int, list[int]] = {}
    for index, level in enumerate(levels):
        at_level.setdefault(level, []).append(index)
    ranks = [0] * len(frames)
    firsts: list[float] = []
    for members in at_level.values():
        members.sort(key=lambda index: values[index])  # type: ignore[arg-type,return-value]
        if len({values[index] for index in members}) < len(members):
            return None
        for rank, index in enumerate(members):
            ranks[index] = rank
    longest = max(map(len, at_level.values()))
    if longest < 2:
        return None
    base = min(float(str(value)) for value in values)
    for rank in range(longest):
        firsts.append(min(float(str(v)) for v, r in zip(values, ranks, strict=True) if r == rank) - base)
    return ranks, tuple(round(first, 6) for first in firsts)


def _value(frame: Frame, key: str) -> object | None:
    if key != "Diffusion":
        return frame.keys.get(key)
    weight = frame.keys.get("DiffusionBValue")
    gradient = frame.keys.get("Gradient") or ()
    return None if weight is None else (weight, *gradient)  # type: ignore[misc]


def _axis(field: _Field, values: tuple[object, ...], frames: Sequence[Frame]) -> Axis:
    if field.axis != "t":
        return Axis(field.axis, "other", field.unit)
    kept = frames[0].instance.kept
    step = kept.get("TemporalResolution")
    if isinstance(step, (int, float)) and step > 0:
        return Axis("t", unit="second", step=float(step) / 1000)
    seconds = 0.001 if field.unit == "millisecond" else 1.0 if field.unit == "second" else None
    if seconds is not None:
        steps = np.diff(np.array(values, dtype=float))
        median = float(np.median(steps))
        if median > 0 and np.all(np.abs(steps - median) <= _EVEN * median):
            return Axis("t", unit="second", step=round(median * seconds, 9))
    return Axis("t")


def _grouped(frames: Sequence[Frame], key: Callable[[Frame], object]) -> dict[object, list[Frame]]:
    groups: dict[object, list[Frame]] = {}
    for frame in frames:
        groups.setdefault(key(frame), []).append(frame)
    return dict(sorted(groups.items(), key=lambda entry: _sortable(entry[0])))


def _sortable(value: object) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def _unexplained(frames: Sequence[Frame], levels: Sequence[int], count: int) -> FormatError:
    """Say what is wrong with frames that share positions: which volume lacks slices, or that nothing tells them apart."""
    along = distances_of(frames)
    for field in _FIELDS:
        found = None if field.ranked else _labels(frames, levels, field)
        if found is None or len(set(zip(found[0], levels, strict=True))) < len(frames):
            continue
        sizes = Counter(found[0])
        short = [index for index in sorted(sizes) if sizes[index] < count]
        told = ", ".join(
            f"{field.key} {_shown(found[1][index])} has {sizes[index]} of {count} slices" for index in short[:4]
        )
        return FormatError(
            f"The series has several volumes that are not complete: {told}.",
            hint="Export it again, or convert its complete volumes from folders of their own.",
        )
    twice = [level for level, number in Counter(levels).items() if number > 1]
    places = sorted({float(along[index]) for index, level in enumerate(levels) if level in twice})
    return FormatError(
        f"{len(twice)} of {count} positions hold several slices that no field of the header tells apart, the first at "
        f"{places[0]:.6g} mm along the slice normal.",
        hint="Keep one file per position.",
    )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{float(part):g}" for part in value) + ")"
    return f"{float(str(value)):g}"
