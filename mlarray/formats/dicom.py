"""DICOM: files, folders and series as sources.

A folder of DICOM files, at any depth and whatever they are called, holds volumes; each is an item of the folder, called after
its series number. A single file holds a slice, or the frames of an enhanced object. Headers are read once, without pixels,
into values that a converter hands to its workers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mlarray.errors import FormatError
from mlarray.formats.dicom_file import HEADER_BYTES, Instance, NotImage, class_name, looks_like_dicom, read_instance
from mlarray.formats.dicom_frames import frames_of, is_mosaic, plain_frame
from mlarray.formats.dicom_group import Broken, Read, Volume, volumes_of
from mlarray.formats.dicom_pixels import DEFLATE_LIMIT, holds_frames
from mlarray.formats.dicom_source import DicomSource
from mlarray.formats.items import Item, listed, pick_item
from mlarray.formats.registry import format_of_name
from mlarray.formats.series import SeriesOptions
from mlarray.sources.base import Note

_TILED_CLASSES = ("1.2.840.10008.5.1.4.1.1.77.1.6",)
_SEGMENTATIONS = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.5")


@dataclass(frozen=True, slots=True)
class Survey:
    """What a pass over the headers of files found.

    Parameters
    ----------
    volumes : tuple of Volume
        Images; those that cannot be read have a problem.
    skipped : tuple of (str, int)
        DICOM objects that hold no image: their kind, and how many.
    damaged : tuple of (Path, str)
        Files whose header cannot be read, and why.
    strangers : int
        Files that are no DICOM.
    """

    volumes: tuple[Volume, ...] = ()
    skipped: tuple[tuple[str, int], ...] = ()
    damaged: tuple[tuple[Path, str], ...] = ()
    strangers: int = 0


def open_source(path: Path, *, item: str | None = None) -> DicomSource:
    """Open a volume of a folder, or what a single file holds.

    Parameters
    ----------
    path : Path
        A folder or a file.
    item : str, optional
        Name of the volume. Default: the only one that can be read.

    Raises
    ------
    FormatError
        When there is no volume, several and no name, or the volume cannot be read; the message lists or says it.

    Notes
    -----
    Colour images, Siemens mosaics, segmentation objects, whole-slide images and series with missing slices are refused; header
    fields that identify a person are not kept. Values go through slope and intercept, not through windows or lookup tables.
    """
    found = survey(files_below(path) if path.is_dir() else [path])
    named = _named_from(path, found)
    if item is None:
        usable = {name: volume for name, volume in named.items() if not volume.problem}
        if len(usable) == 1 and not found.damaged:
            ((name, volume),) = usable.items()
            others = [f"{other} ({named[other].problem})" for other in named if other != name]
            if others:
                text = f"The folder holds {len(others)} series more that cannot be read: {' '.join(others[:3])}"
                volume = replace(volume, notes=(*volume.notes, Note("series-left-out", text)))
            return DicomSource(replace(volume, name=name))
        _refuse_none(path, found, named)
    name = pick_item(path, _items(named), item).name
    return DicomSource(replace(named[name], name=name))


def items(path: Path) -> tuple[Item, ...]:
    """Return the volumes of a folder or file."""
    found = survey(files_below(path) if path.is_dir() else [path])
    return _items(_named_from(path, found))


def open_volume(volume: Volume) -> DicomSource:
    """Open a volume that a survey found; no header is read again."""
    return DicomSource(volume)


def survey(paths: Iterable[Path], options: SeriesOptions | None = None) -> Survey:
    """Read the headers of files, once each and without pixels, and return what they form.

    Parameters
    ----------
    paths : iterable of Path
        Files; those that are no DICOM are counted.
    options : SeriesOptions, optional
        How strictly slices have to form a volume, and what of the headers is kept.
    """
    settings = options if options is not None else SeriesOptions()
    reads: list[Read] = []
    broken: list[Broken] = []
    others: list[NotImage] = []
    strangers: list[Path] = []
    damaged: dict[Path, str] = {}
    for path in paths:
        try:
            if not _is_candidate(path):
                strangers.append(path)
                continue
            read = _read(path, keep_private=settings.keep_private)
        except (FormatError, OSError) as error:
            damaged[path] = str(error)
            continue
        if isinstance(read, Broken):
            broken.append(read)
        elif isinstance(read, NotImage):
            others.append(read)
        else:
            reads.append(read)
    known = {read.instance.series for read in reads if read.instance.series[2]}
    damaged |= {one.path: one.why for one in broken if one.series not in known}
    damaged |= _remains(reads, strangers)
    kinds = Counter(other.kind for other in others)
    count = sum(path not in damaged for path in strangers)
    volumes = tuple(volumes_of(reads, settings, broken))
    return Survey(volumes, tuple(sorted(kinds.items())), tuple(sorted(damaged.items())), count)


def _remains(reads: list[Read], strangers: list[Path]) -> dict[Path, str]:
    """Return files without a suffix that lie beside images and are too short to have a header: copies that broke off."""
    folders = {read.instance.path.parent for read in reads}
    found: dict[Path, str] = {}
    for path in strangers:
        has_suffix = path.suffix not in ("", ".") and not path.suffix[1:].isdigit()
        if path.parent in folders and not has_suffix and path.stat().st_size < HEADER_BYTES:
            found[path] = f"{path} lies among DICOM files and is too short to be one: {path.stat().st_size} bytes."
    return found


def _is_candidate(path: Path) -> bool:
    """Tell whether a file is to be read: by its suffix, or without a known one by its first bytes."""
    row = format_of_name(path)
    return row.series if row is not None else looks_like_dicom(path)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders; hidden ones, and links that lead in circles, are left out."""
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and path.is_file():
                yield path


def holds_images(path: Path) -> bool:
    """Tell whether a file, or one in a folder or below it, is a DICOM file, by its first bytes."""
    if path.is_dir():
        return any(map(_begins_like_dicom, files_below(path)))
    return path.is_file() and _begins_like_dicom(path)


def _begins_like_dicom(path: Path) -> bool:
    try:
        return looks_like_dicom(path)
    except OSError:
        return False


def _read(path: Path, *, keep_private: bool) -> Read | Broken | NotImage:
    found = read_instance(path, keep_private=keep_private)
    if isinstance(found, NotImage):
        why = f"{path.name} says it is a {found.kind} and holds no pixels: it is cut off"
        advice = "restore it, or leave it out of the folder"
        return Broken(path, found.series, f"{why}; {advice}.") if found.is_image else found
    instance, dataset = found
    problem = _problem(instance)
    if not problem and instance.pixels.frames > 1:
        problem = _too_many_frames(instance)
    if not problem and is_mosaic(instance, dataset):
        problem = "It is a Siemens mosaic, many slices as tiles of one picture; dcm2niix unfolds it"
    try:
        frames = (plain_frame(instance, dataset),) if problem else frames_of(instance, dataset)
    except FormatError as error:
        if instance.pixels.frames == 1:
            return Broken(path, instance.series, f"{path}: {error}")
        raise FormatError(f"{path}: {error.message}", hint=error.hint) from error
    return Read(instance, frames, problem)


def _too_many_frames(instance: Instance) -> str:
    """Tell whether a file states more frames than it can hold, before a value is made for each of them."""
    try:
        holds_frames(instance)
    except FormatError as error:
        return error.message
    most = instance.size if instance.pixels.length < 0 else instance.size * DEFLATE_LIMIT
    frames = instance.pixels.frames
    return (
        f"{instance.path} states {frames} frames, more than its {instance.size} bytes can hold" if frames > most else ""
    )


def _problem(instance: Instance) -> str:
    """Tell why a file cannot be part of a volume; empty where it can."""
    pixels, kind = instance.pixels, class_name(instance.sop_class)
    if pixels.samples != 1 or not pixels.photometric.startswith("MONOCHROME"):
        return f"It is a colour image ({pixels.photometric}, {kind}), which is not converted"
    if instance.sop_class in _TILED_CLASSES:
        return f"It is a {kind}, tiles of one picture, not a volume"
    if instance.sop_class in _SEGMENTATIONS:
        return f"It is a {kind} object, whose segments may overlap; it is not converted"
    if instance.has_lut:
        return "Its values go through a Modality LUT, which is not applied"
    return ""


def _named_from(path: Path, found: Survey) -> dict[str, Volume]:
    """Return volumes by the names they have seen from ``path``: with the folders between, where there are some."""
    root = path if path.is_dir() else path.parent
    named: dict[str, Volume] = {}
    for volume in found.volumes:
        inner = Path(os.path.relpath(volume.folder, root))
        named[volume.name if inner == Path() else f"{inner.as_posix()}/{volume.name}"] = volume
    return named


def _items(named: dict[str, Volume]) -> tuple[Item, ...]:
    return tuple(Item(name, volume.title) for name, volume in named.items())


def _refuse_none(path: Path, found: Survey, named: dict[str, Volume]) -> None:
    """Raise where there is nothing to choose from; say what there is instead."""
    if found.damaged and not path.is_dir():
        raise FormatError(found.damaged[0][1])
    if found.damaged:
        raise FormatError(f"{len(found.damaged)} files of {path} cannot be read, the first: {found.damaged[0][1]}")
    if not named:
        told = ", ".join(f"{number} {kind}" for kind, number in found.skipped) or "no DICOM image"
        raise FormatError(f"{path} holds no image: {told}.")
    if all(volume.problem for volume in named.values()):
        name, volume = next(iter(named.items()))
        more = f" So it is with {len(named) - 1} more: {listed(_items(named)[1:])}." if len(named) > 1 else ""
        raise FormatError(f"{path}, {name}: {volume.problem}{more}", hint=volume.hint or None)
