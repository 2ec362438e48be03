"""Which files form which volume?

Files are of one series when patient, study and series agree; what they are called and where they lie does not matter, save
that copies in two folders stay two volumes. Within a series, frames form a volume when size, kind, pixel spacing and
orientation agree; their order is that of their positions. What cannot be a volume keeps its place in the result, with the
reason: a conversion names it and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import FormatError
from mlarray.formats.dicom_arrange import Arranged, arrange
from mlarray.formats.dicom_file import Instance, class_name
from mlarray.formats.dicom_frames import Frame
from mlarray.formats.dicom_geometry import (
    Placement,
    check_orientation,
    distances_of,
    mean_orientation,
    normal_of,
    place,
)
from mlarray.formats.dicom_pixels import holds_frames, same_pixels, stored_dtype, value_dtype
from mlarray.formats.series import SeriesOptions
from mlarray.geometry import Geometry
from mlarray.sources.base import Note

_SPACING_RTOL = 1e-4
_ODD_TOLD = 3
_PROJECTIONS = frozenset(
    f"1.2.840.10008.5.1.4.1.1.{number}"
    for number in ("1", "1.1", "1.1.1", "1.2", "1.2.1", "1.3", "1.3.1", "3.1", "6.1", "12.1", "12.2", "12.77", "20")
)  # X-ray images, ultrasound and scintigrams: single pictures are no slices of anything
_SECONDARY = "1.2.840.10008.5.1.4.1.1.7"


@dataclass(frozen=True, slots=True)
class Volume:
    """One image of a series, or what was to be one.

    Parameters
    ----------
    name : str
        Short name: ``series-3``, ``series-3-2`` where a series gives several.
    folder : Path
        The innermost folder that holds all its files.
    frames : tuple of Frame
        In C order of all axes but the last two.
    shape : tuple of int
        Of the array.
    axes : tuple of Axis
        Of the array.
    dtype : str
        Of the values.
    geometry : Geometry or None
        Of the spatial axes.
    notes : tuple of Note
        What was assumed, left out or is unusual.
    header : dict
        Technical fields.
    problem, hint : str
        Why it cannot be read, and what to do; empty where it can.
    modality : str
        Kind of scanner.
    """

    name: str
    folder: Path
    frames: tuple[Frame, ...]
    shape: tuple[int, ...] = ()
    axes: tuple[Axis, ...] = ()
    dtype: str = ""
    geometry: Geometry | None = None
    notes: tuple[Note, ...] = ()
    header: dict[str, object] = field(default_factory=dict)
    problem: str = ""
    hint: str = ""
    modality: str = "DICOM"

    @property
    def files(self) -> tuple[Path, ...]:
        """Its files, in the order of its slices."""
        return tuple(dict.fromkeys(frame.instance.path for frame in self.frames))

    @property
    def nbytes_in(self) -> int:
        """Bytes of its files."""
        return sum({frame.instance.path: frame.instance.size for frame in self.frames}.values())

    @property
    def title(self) -> str:
        """What it is, for people."""
        if self.problem:
            return f"{self.modality}, cannot be read"
        return f"{self.dtype} {' x '.join(map(str, self.shape))}, {self.modality}"


@dataclass(frozen=True, slots=True)
class Read:
    """One file after the header pass.

    Parameters
    ----------
    instance : Instance
        What it says.
    frames : tuple of Frame
        Its planes.
    problem : str
        Why they are no part of a volume; empty where they may be.
    """

    instance: Instance
    frames: tuple[Frame, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """A slice that cannot be used, and without which its volume would just be a bit shorter.

    Parameters
    ----------
    path : Path
        The file.
    series : tuple of 3 str
        As for an instance.
    why : str
        What is wrong with it.
    """

    path: Path
    series: tuple[str, ...]
    why: str


def volumes_of(reads: Iterable[Read], options: SeriesOptions, broken: Sequence[Broken] = ()) -> list[Volume]:
    """Return the volumes that files form, in the order of folders and series.

    Parameters
    ----------
    reads : iterable of Read
        In any order: the result does not depend on it, nor on the names of the files.
    options : SeriesOptions
        Tolerances.
    broken : sequence of Broken, optional
        Slices whose volumes are refused.
    """
    series: dict[tuple[str, ...], list[Read]] = {}
    for read in sorted(reads, key=_content_order):
        instance = read.instance
        key = instance.series
        if not instance.series[2]:
            key = (*key, str(instance.path.parent), str(instance.number))
        series.setdefault(key, []).append(read)
    found: list[Volume] = []
    for key in sorted(series):
        volumes = _series_volumes(series[key], options)
        found += _without_broken(volumes, [one for one in broken if one.series == key])
    return _named(found)


def _without_broken(volumes: list[Volume], broken: Sequence[Broken]) -> list[Volume]:
    """Refuse the volumes that a slice is missing from: those with files in its folder, else all of the series."""
    for lost in broken:
        near = [one for one in volumes if any(file.parent == lost.path.parent for file in one.files)] or volumes
        volumes = [replace(one, problem=lost.why, hint="") if one in near else one for one in volumes]
    return volumes


def _content_order(read: Read) -> tuple[object, ...]:
    instance, frame = read.instance, read.frames[0] if read.frames else None
    position = frame.position if frame is not None and frame.position is not None else (0.0, 0.0, 0.0)
    return (*position, instance.order, instance.uid, str(instance.path))


def _series_volumes(reads: list[Read], options: SeriesOptions) -> list[Volume]:
    """Return the volumes of a series; one that is spread over folders is one, unless they hold copies of each other."""
    folders: dict[Path, list[Read]] = {}
    for read in reads:
        folders.setdefault(read.instance.path.parent, []).append(read)
    if len(folders) == 1:
        return _built(reads, options)
    apart = [volume for folder in sorted(folders) for volume in _built(folders[folder], options)]
    homes: dict[str, set[Path]] = {}
    for read in reads:
        homes.setdefault(read.instance.uid, set()).add(read.instance.path.parent)
    if any(not uid or len(where) > 1 for uid, where in homes.items()):
        return apart
    joined = _built(reads, options)
    worse = sum(bool(volume.problem) for volume in joined) > sum(bool(volume.problem) for volume in apart)
    return apart if worse else joined


def _built(reads: Sequence[Read], options: SeriesOptions) -> list[Volume]:
    groups: dict[tuple[Any, ...], list[Read]] = {}
    for read in reads:
        groups.setdefault(_kind_key(read), []).append(read)
    found: list[Volume] = []
    for key, members in groups.items():
        frames = [frame for read in members for frame in read.frames]
        if members[0].problem:
            found.append(_refused(frames, members[0].problem))
        elif not frames[0].is_placed:
            found += _unplaced(members)
        else:
            found += _placed(members, options, [read for read in reads if _kind_key(read) != key])
    return found


def _kind_key(read: Read) -> tuple[Any, ...]:
    """Return what all frames of one volume share exactly."""
    pixels, frame = read.instance.pixels, read.frames[0]
    kind = (pixels.rows, pixels.columns, pixels.keyword, pixels.photometric)
    return (read.problem, read.instance.sop_class, *kind, frame.is_placed)


def _placed(members: Sequence[Read], options: SeriesOptions, others: Sequence[Read]) -> list[Volume]:
    """Return the volumes of frames with positions; ``others`` are files of the series that are of another kind."""
    frames = [frame for read in members for frame in read.frames]
    notes: list[Note] = []
    lost = [frame for frame in frames if not frame.is_placed]
    problem = next(filter(None, map(check_orientation, frames)), None)
    if lost or problem:
        return [_refused(frames, problem or f"{len(lost)} of {len(frames)} slices state no position")]
    frames = _without_copies(frames, notes)
    clusters = _by_orientation(frames, options)
    if len(clusters) > 1 and min(map(len, clusters)) == 1:
        kind = "a localizer" if _is_localizer(frames) else "a series"
        alone = next(cluster[0] for cluster in clusters if len(cluster) == 1).instance.path.name
        text = f"It is {kind} of {len(frames)} slices in {len(clusters)} orientations or pixel spacings, not a volume"
        text += f"; {alone} is alone in one of them" if kind == "a series" else ""
        return [_refused(frames, text)]
    found: list[Volume] = []
    for cluster in clusters:
        try:
            stacks = arrange(cluster, options)
        except FormatError as error:
            found.append(_refused(cluster, error.message, error.hint or ""))
            continue
        for stack in stacks:
            try:
                placement = place(stack.slices, options)
            except FormatError as error:
                odd = _odd_slices(stack.slices, others)
                found.append(_refused(stack.frames, f"{error.message}{odd}", error.hint or ""))
                continue
            found.append(_volume(stack, placement, tuple(notes)))
    return found


def _odd_slices(slices: Sequence[Frame], others: Sequence[Read]) -> str:
    """Name files of the series that lie among slices, or nowhere, and cannot be slices themselves, as a further sentence."""
    normal = normal_of(mean_orientation(slices))
    along = distances_of(slices)
    told = []
    for read in others:
        frame = read.frames[0] if read.frames else None
        if frame is None:
            continue
        if frame.position is not None and not along.min() < np.dot(frame.position, normal) < along.max():
            continue
        why = _difference(read, slices[0])
        told += [f"{read.instance.path.name} {why}"] if why else []
    more = f", and {len(told) - _ODD_TOLD} more files are odd" if len(told) > _ODD_TOLD else ""
    return f" In the same series {', '.join(told[:_ODD_TOLD])}{more}." if told else ""


def _difference(read: Read, slice_: Frame) -> str:
    """Tell in what a file is of another kind than a slice."""
    if read.problem:
        return f"cannot be used ({read.problem.rstrip('.')})"
    found, usual = read.instance.pixels, slice_.instance.pixels
    if (found.rows, found.columns) != (usual.rows, usual.columns):
        return f"has {found.rows} x {found.columns} pixels, not {usual.rows} x {usual.columns}"
    if not read.frames[0].is_placed:
        return "states no position"
    if found.photometric != usual.photometric:
        return f"is {found.photometric}, not {usual.photometric}"
    if read.instance.sop_class != slice_.instance.sop_class:
        return f"is a {class_name(read.instance.sop_class)}, not a {class_name(slice_.instance.sop_class)}"
    return ""


def _unplaced(members: Sequence[Read]) -> list[Volume]:
    """Return the volumes of frames without positions: pictures and films by themselves, slices as one stack."""
    singles = [read for read in members if len(read.frames) == 1 and read.instance.sop_class not in _PROJECTIONS]
    found: list[Volume] = []
    if singles:
        ordered = sorted(singles, key=lambda read: (read.instance.order, read.instance.uid, str(read.instance.path)))
        frames = tuple(frame for read in ordered for frame in read.frames)
        found.append(_volume(Arranged((), (), (), frames), place(frames, SeriesOptions()), ()))
    for read in members:
        if len(read.frames) > 1:
            found.append(_film(read))
        elif read.instance.sop_class in _PROJECTIONS:
            found.append(_volume(Arranged((), (), (), read.frames), place(read.frames, SeriesOptions()), ()))
    return found


def _film(read: Read) -> Volume:
    """Return frames that nothing places as an axis of time where they have one, else as an axis that is just their order."""
    step = read.instance.kept.get("FrameTime")
    is_timed = isinstance(step, (int, float)) and step > 0
    axis = Axis("t", unit="second", step=float(str(step)) / 1000) if is_timed else Axis("frame", "other")
    frames = read.frames
    spacing = frames[0].spacing
    what = "frames in time" if is_timed else "frames whose meaning the header does not state"
    note = Note("geometry-unknown", f"{len(frames)} {what}, without positions: where they lie is unknown.")
    pixels = read.instance.pixels
    return _finished(
        frames,
        (len(frames), pixels.rows, pixels.columns),
        (axis, Axis("y", unit="millimeter"), Axis("x", unit="millimeter")),
        None if spacing is None else Geometry.from_parts(spacing=spacing),
        (note,),
        {},
    )


def _volume(stack: Arranged, placement: Placement, notes: tuple[Note, ...]) -> Volume:
    frames, pixels = stack.frames, stack.frames[0].instance.pixels
    count = len(stack.slices)
    extra: dict[str, object] = {
        f"axis_{axis.name}": [list(value) if isinstance(value, tuple) else value for value in values]
        for axis, values in zip(stack.axes, stack.values, strict=True)
    }
    if placement.offsets:
        extra["slice_offsets_mm"] = list(placement.offsets)
    is_flat = not frames[0].is_placed and len(frames) == 1
    slices = () if is_flat else (count,)
    names = ("y", "x") if is_flat else ("z", "y", "x")
    return _finished(
        frames,
        (*stack.extents, *slices, pixels.rows, pixels.columns),
        (*stack.axes, *(Axis(name, unit="millimeter") for name in names)),
        placement.geometry,
        notes + placement.notes,
        extra,
    )


def _finished(
    frames: tuple[Frame, ...],
    shape: tuple[int, ...],
    axes: tuple[Axis, ...],
    geometry: Geometry | None,
    notes: tuple[Note, ...],
    extra: dict[str, object],
) -> Volume:
    try:
        for frame in {frame.instance.path: frame for frame in frames}.values():
            holds_frames(frame.instance)
        ranges = {
            (
                stored_dtype(f.instance.pixels),
                f.instance.pixels.stored,
                f.instance.pixels.is_signed,
                f.slope,
                f.intercept,
            )
            for f in frames
        }
        dtype = value_dtype(sorted(ranges, key=str))
    except FormatError as error:
        return _refused(frames, error.message, error.hint or "")
    told = list(notes)
    unscaled = sum(frame.is_unscaled for frame in frames)
    if unscaled:
        text = f"RescaleSlope is 0 in {unscaled} of {len(frames)} slices: their values are as stored, without RescaleIntercept."
        told.append(Note("scaling-ignored", text))
    if _is_localizer(frames):
        told.append(Note("localizer", "The series is a localizer: few slices, made to plan others."))
    if frames[0].instance.sop_class.startswith(_SECONDARY):
        told.append(Note("secondary-capture", "These are secondary captures: the pixels may be a picture of a screen."))
    if frames[0].instance.pixels.photometric == "MONOCHROME1":
        told.append(
            Note(
                "low-is-bright",
                "PhotometricInterpretation is MONOCHROME1: low values are bright; they were kept as they are.",
            )
        )
    header = {**_common(frames), **extra}
    slim, modality = _without_headers(frames), str(frames[0].instance.kept.get("Modality", "DICOM"))
    return Volume("", _home(frames), slim, shape, axes, dtype.name, geometry, tuple(told), header, modality=modality)


def _common(frames: Sequence[Frame]) -> dict[str, object]:
    """Return the technical fields that all files state alike, and the kind of object."""
    instances = list({frame.instance.path: frame.instance for frame in frames}.values())
    first = instances[0]
    common: dict[str, object] = {
        name: value for name, value in first.kept.items() if all(one.kept.get(name) == value for one in instances[1:])
    }
    common["SOPClass"] = class_name(first.sop_class)
    if first.private:
        common["private"] = {
            name: value
            for name, value in first.private.items()
            if all(one.private.get(name) == value for one in instances)
        }
    return common


def _refused(frames: Sequence[Frame], problem: str, hint: str = "") -> Volume:
    text = problem if problem.endswith(".") else f"{problem}."
    modality = str(frames[0].instance.kept.get("Modality", "DICOM"))
    return Volume("", _home(frames), _without_headers(frames), problem=text, hint=hint, modality=modality)


def _without_headers(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames with what is needed to read them: what goes to workers is small, and holds nothing of a person."""
    bare: dict[Path, Instance] = {}
    for frame in frames:
        if frame.instance.path not in bare:
            bare[frame.instance.path] = replace(frame.instance, uid="", series=(), kept={}, private={})
    return tuple(replace(frame, instance=bare[frame.instance.path], keys={}) for frame in frames)


def _without_copies(frames: list[Frame], notes: list[Note]) -> list[Frame]:
    """Leave out files that are copies of another: the same instance at the same place with the same pixels."""
    seen: dict[tuple[object, ...], Frame] = {}
    kept: list[Frame] = []
    dropped = 0
    for frame in frames:
        instance = frame.instance
        key = (instance.uid or instance.order, frame.index, frame.position, tuple(sorted(map(str, frame.keys.items()))))
        other = seen.setdefault(key, frame)
        if other is not frame and same_pixels(other.instance, instance):
            dropped += 1
        else:
            kept.append(frame)
    if dropped:
        notes.append(
            Note("duplicates-dropped", f"{dropped} files are copies of others, pixel by pixel; they were left out.")
        )
    return kept


def _by_orientation(frames: Sequence[Frame], options: SeriesOptions) -> list[list[Frame]]:
    """Return frames by orientation and pixel spacing, each within tolerance of the first of its group."""
    clusters: list[list[Frame]] = []
    for frame in sorted(frames, key=lambda frame: (frame.orientation or (), frame.spacing or ())):
        for cluster in clusters:
            if _is_alike(cluster[0], frame, options):
                cluster.append(frame)
                break
        else:
            clusters.append([frame])
    return clusters


def _is_alike(one: Frame, other: Frame, options: SeriesOptions) -> bool:
    assert one.orientation is not None
    assert other.orientation is not None
    if any(abs(a - b) > options.orientation_tolerance for a, b in zip(one.orientation, other.orientation, strict=True)):
        return False
    if one.spacing is None or other.spacing is None:
        return one.spacing == other.spacing
    return all(abs(a - b) <= _SPACING_RTOL * a for a, b in zip(one.spacing, other.spacing, strict=True))


def _is_localizer(frames: Sequence[Frame]) -> bool:
    kind = frames[0].instance.kept.get("ImageType")
    return isinstance(kind, list) and "LOCALIZER" in kind


def _home(frames: Sequence[Frame]) -> Path:
    folders = {str(frame.instance.path.parent) for frame in frames}
    return Path(os.path.commonpath(folders))


def _named(volumes: list[Volume]) -> list[Volume]:
    """Give every volume its name: by series number, numbered where a folder has several of one."""
    groups: dict[tuple[Path, str], list[Volume]] = {}
    for volume in volumes:
        number = volume.frames[0].instance.number
        groups.setdefault((volume.folder, "series" if number is None else f"series-{number}"), []).append(volume)
    named: list[Volume] = []
    for (_, stem), group in sorted(groups.items(), key=lambda entry: (str(entry[0][0]), _natural(entry[0][1]))):
        several = len(group) > 1
        named += [replace(one, name=f"{stem}-{position}" if several else stem) for position, one in enumerate(group, 1)]
    return named


def _natural(name: str) -> tuple[str, int]:
    head, _, number = name.partition("-")
    return head, int(number) if number.lstrip("-").isdigit() else 0
