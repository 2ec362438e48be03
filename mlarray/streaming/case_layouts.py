"""How are the files of a data set named, and what do the names tell: which case, and which of its groups?

Seven ways are understood: ``CASE/GROUP.ext`` and ``GROUP/CASE.ext`` in folders of any depth; ``/GROUP/CASE`` and
``/CASE/GROUP`` in an HDF5 file; files beside each other, ``CASE_GROUP.ext`` with at most one group that has no mark
(``CASE.mla`` and ``CASE_seg.mla``, as nnU-Net preprocesses); ``imagesTr/CASE_0000.ext`` with ``labelsTr/CASE.ext`` of nnU-Net's
raw data; an HDF5 file per case with a dataset per group. Names decide; a file is opened only where it is an HDF5 file that may
hold several images, or, without a suffix, for the first bytes that tell DICOM files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mlarray.errors import UsageError
from mlarray.formats.file_names import (
    belongs_to_header,
    identity,
    is_image_folder,
    is_junk,
    is_segmentation_file,
    split_channel,
)
from mlarray.formats.nnunet_case import plain_json
from mlarray.formats.plugins import all_formats
from mlarray.formats.registry import format_of, format_of_place, is_series_file, items_of, split_suffix
from mlarray.formats.table import Format
from mlarray.storage.remote import is_remote

LABELS_GROUP = "labels"
"""Group of ``labelsTr`` in nnU-Net's raw data."""
IMAGE_GROUP, SEG_GROUP = "data", "seg"
"""Groups of a folder of files whose names tell no other: nnU-Net's own words."""
_SEPARATORS = "_-."
_RAW_FOLDERS = ("imagesTr", "imagesTs", "imagesVal")
_PREPROCESSED_LABELS = "gt_segmentations"
_SERIES_LOOKED_AT = 3
_ZARR_DOCUMENTS = frozenset(("zarr.json", ".zgroup", ".zattrs", ".zarray"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the volume of one group of a case is.

    Parameters
    ----------
    path : Path
        File, or folder of a format whose images are folders.
    item : str
        Which image of a file that holds several; ``""`` for the only one, or the full resolution.
    """

    path: Path
    item: str = ""

    def __str__(self) -> str:
        return f"{self.path}@{self.item}" if self.item else str(self.path)


@dataclass(frozen=True, slots=True)
class Entry:
    """One volume of a data set, as its name tells.

    Parameters
    ----------
    case, group : str
        Names.
    place : Place
        Where it is.
    """

    case: str
    group: str
    place: Place


@dataclass(frozen=True, slots=True)
class Kind:
    """Which files count.

    Parameters
    ----------
    suffix : str
        Only these, with the dot; ``""``: as ``row`` says.
    row : Format, optional
        Only this format; None: any.
    item : str
        Which image of each.
    """

    suffix: str = ""
    row: Format | None = None
    item: str = ""

    def takes(self, path: Path) -> bool:
        """Tell whether a file counts."""
        if self.suffix:
            return split_suffix(path.name)[1].lower() == self.suffix
        return self.row is None or format_of_place(path) == self.row

    @property
    def told(self) -> str:
        """For messages."""
        return self.suffix or (self.row.title if self.row is not None else "image")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """An image below the root: where, and the name without suffix."""

    path: Path
    parent: PurePosixPath
    stem: str

    @property
    def name(self) -> str:
        return (self.parent / self.path.name).as_posix()


def entries_of(root: Path, kind: Kind, wanted: Sequence[str] | None, found: Collection[str]) -> tuple[list[Entry], str]:
    """Return the volumes of a data set, in no particular order, and how its names were read.

    Parameters
    ----------
    root : Path
        Folder or file; it exists.
    kind : Kind
        Which files count.
    wanted : sequence of str, optional
        Groups that the caller uses; they decide where names can be read in two ways.
    found : collection of str
        Groups that other data sets have, or are named as.

    Raises
    ------
    UsageError
        When nothing is there, or names can be read in two ways; the message says which.
    """
    if is_remote(root) or not root.is_dir() or _is_image(root, kind, wanted):
        if not is_remote(root):
            format_of(root)  # or an error that says that it is none
        if _is_store(root, kind):
            return _entries_of_store(root, wanted, found)
        return _flat([_Leaf(root, PurePosixPath(), split_suffix(root.name)[0])], root, kind, wanted, found)
    raw = root if is_image_folder(root.name) and _has_channels(root) else _raw_folder(root)
    if raw is not None:
        return _raw(raw, kind, wanted)
    if (root / _PREPROCESSED_LABELS).is_dir():
        root = _configuration(root, kind, wanted)
    leaves = list(_leaves(root, kind, wanted))
    if not leaves:
        raise UsageError(
            f"{root} holds no {kind.told} files.",
            hint="`mla formats` lists what can be read. A data set is a folder of cases, or of files, or an HDF5 file.",
        )
    beside = [leaf for leaf in leaves if not leaf.parent.parts]
    below = [leaf for leaf in leaves if leaf.parent.parts]
    if beside and below:
        raise UsageError(
            f"{root} holds both images ({_some(leaf.name for leaf in beside)}) and folders of images "
            f"({_some(leaf.name for leaf in below)}): it is not clear which are the cases.",
            hint="Name the folder that holds nothing but the cases, or limit the files to a format: PATH:nii.gz.",
        )
    if beside:
        return _flat(beside, root, kind, wanted, found)
    pairs = [(leaf.parent, leaf.stem, Place(leaf.path, kind.item)) for leaf in _told_apart(below)]
    stems, folders = {leaf.stem for leaf in below}, {leaf.parent.parts[0] for leaf in below}
    if wanted and not stems.intersection(wanted) and folders.issuperset(wanted):
        split = [(parent.parts[0], PurePosixPath(*parent.parts[1:], stem).as_posix(), at) for parent, stem, at in pairs]
        return [Entry(case, group, place) for group, case, place in split], "files GROUP/CASE"
    return [Entry(parent.as_posix(), stem, place) for parent, stem, place in pairs], "files CASE/GROUP"


def kind_named(token: str) -> Kind | None:
    """Return what a format's name or suffix, perhaps with ``@item``, stands for; None for other words."""
    name, _, item = token.partition("@")
    name = name.lower().lstrip(".")
    rows = all_formats()
    if name == "dicom":
        return Kind(row=next(row for row in rows if row.series), item=item)
    if name == "omezarr" or name == "ome_zarr":
        name = "ome-zarr"
    if any(f".{name}" in row.suffixes for row in rows if not row.folders):
        return Kind(f".{name}", next(row for row in rows if f".{name}" in row.suffixes), item)
    row = next((row for row in rows if name == row.name or f".{name}" in row.suffixes), None)
    return None if row is None else Kind(row=row, item=item)


def _leaves(root: Path, kind: Kind, wanted: Sequence[str] | None) -> Iterator[_Leaf]:
    """Yield the images below a folder. Folders that are one image always count, whatever the kind."""
    pending = [(root, PurePosixPath(), frozenset([identity(root)]))]
    while pending:
        folder, parent, above = pending.pop()
        entries = [entry for entry in sorted(folder.iterdir(), key=lambda entry: entry.name) if not is_junk(entry.name)]
        names = {entry.name.lower() for entry in entries}
        for entry in entries:
            if entry.is_dir():
                if _is_image(entry, kind, wanted):
                    yield _Leaf(entry, parent, split_suffix(entry.name)[0])
                elif identity(entry) not in above:
                    pending.append((entry, parent / entry.name, above | {identity(entry)}))
                continue
            row = format_of_place(entry)
            if row is not None and not row.folders and not belongs_to_header(entry.name, names) and kind.takes(entry):
                yield _Leaf(entry, parent, split_suffix(entry.name)[0])


def _is_image(folder: Path, kind: Kind, wanted: Sequence[str] | None) -> bool:
    """Tell whether a folder is one image: an OME-Zarr, or DICOM files that are not the groups of a case."""
    row = format_of_place(folder)
    if row is not None and row.folders:
        return True
    unknown = []
    series = False
    for entry in folder.iterdir():
        if entry.name in _ZARR_DOCUMENTS:
            return True
        if is_junk(entry.name):
            continue
        stem, suffix = split_suffix(entry.name)
        if not suffix:
            unknown.append(entry)
            continue
        row = format_of_place(entry)
        if row is not None and row.series:
            if kind.suffix in row.suffixes or stem in (wanted or ()):
                return False
            series = True
    return series or any(is_series_file(entry) for entry in unknown[:_SERIES_LOOKED_AT] if entry.is_file())


def _is_store(path: Path, kind: Kind) -> bool:
    """Tell whether a file may hold the volumes of several groups or cases."""
    row = format_of_place(path)
    return row is not None and row.joins and not kind.item


def _entries_of_store(path: Path, wanted: Sequence[str] | None, found: Collection[str]) -> tuple[list[Entry], str]:
    """Return the volumes of a file that holds several."""
    names = [PurePosixPath(item.name.strip("/")) for item in items_of(path)]
    if not names:
        raise UsageError(f"{path} holds no volume.")
    places = {name: Place(path, f"/{name}") for name in names}
    deep = [name for name in names if len(name.parts) > 1]
    if not deep:
        return _shallow_store(path, names, wanted, found)
    if len(deep) < len(names):
        raise UsageError(
            f"{path} holds both volumes ({_some(str(name) for name in names if len(name.parts) == 1)}) and groups of volumes "
            f"({_some(map(str, deep))}): it is not clear which are the cases.",
            hint="A store of several cases has them as /GROUP/CASE.",
        )
    firsts, lasts = {name.parent.as_posix() for name in deep}, {name.name for name in deep}
    if wanted and lasts.issuperset(wanted):
        if firsts.issuperset(wanted):
            raise UsageError(
                f"{path} can be read as /GROUP/CASE and as /CASE/GROUP: {', '.join(wanted)} are names on both levels.",
                hint="Rename the groups or the cases.",
            )
        return [Entry(name.parent.as_posix(), name.name, places[name]) for name in deep], "datasets /CASE/GROUP"
    return [Entry(name.name, name.parent.as_posix(), places[name]) for name in deep], "datasets /GROUP/CASE"


def _shallow_store(
    path: Path, names: Sequence[PurePosixPath], wanted: Sequence[str] | None, found: Collection[str]
) -> tuple[list[Entry], str]:
    """Return the volumes of a file without groups: those of one case, or a case each where none is called as a group."""
    stem = split_suffix(path.name)[0]
    listed = [name.name for name in names]
    if len(listed) > 1 and wanted and not set(wanted).intersection(listed):
        marks = _marks(listed, wanted)
        base = _group_without_mark(path, wanted, {*found, *(group for _, group in marks.values() if group)})
        named = [(case, group or base, name) for name, (case, group) in marks.items()]
        entries = [Entry(case, group, Place(path, f"/{name}")) for case, group, name in named if group is not None]
        return entries, "datasets /CASE"
    if len(listed) == 1:
        group = _group_without_mark(path, wanted, found) or IMAGE_GROUP
        return [
            Entry(stem, group if listed[0] not in (wanted or ()) else listed[0], Place(path, f"/{listed[0]}"))
        ], "one file"
    return [Entry(stem, name, Place(path, f"/{name}")) for name in listed], "one file, datasets /GROUP"


def _flat(
    leaves: list[_Leaf], root: Path, kind: Kind, wanted: Sequence[str] | None, found: Collection[str]
) -> tuple[list[Entry], str]:
    """Return the volumes of files beside each other."""
    entries: list[Entry] = []
    rest: list[_Leaf] = []
    for leaf in _told_apart(leaves):
        if _is_store(leaf.path, kind) and len(items := items_of(leaf.path)) > 1:
            entries += [Entry(leaf.stem, one.name.strip("/"), Place(leaf.path, one.name)) for one in items]
        else:
            rest.append(leaf)
    marks = _marks([leaf.stem for leaf in rest], wanted)
    groups = {group for _, group in marks.values() if group}
    plain = [leaf for leaf in rest if not marks[leaf.stem][1]]
    base = _group_without_mark(root, wanted, {*found, *groups}) if plain else None
    for leaf in rest:
        case, group = marks[leaf.stem]
        if group or base:
            entries.append(Entry(case, group or str(base), Place(leaf.path, kind.item)))
    told = f"files CASE_{', CASE_'.join(sorted(groups))}" if groups else "files CASE"
    return entries, f"{told} and CASE" if groups and base else told


def _marks(stems: Sequence[str], wanted: Sequence[str] | None) -> dict[str, tuple[str, str]]:
    """Return case and group of each name; the group is empty where a name carries no mark.

    Every wanted group may be a mark, in any case of letters. ``seg`` is one where there is a file without it.
    """
    every = set(stems)
    found: dict[str, tuple[str, str]] = {}
    for stem in stems:
        found[stem] = (stem, "")
        for group in sorted(wanted or (), key=len, reverse=True):
            case = stem[: -len(group) - 1]
            if case and stem[len(case)] in _SEPARATORS and stem[len(case) + 1 :].casefold() == group.casefold():
                found[stem] = (case, group)
                break
        else:
            case = stem[: -len(SEG_GROUP) - 1]
            if case in every and stem[len(case)] in _SEPARATORS and stem.casefold().endswith(SEG_GROUP):
                found[stem] = (case, SEG_GROUP)
    return found


def _group_without_mark(root: Path, wanted: Sequence[str] | None, found: Collection[str]) -> str | None:
    """Return the group of names that carry no mark; None where no wanted group is left for them."""
    name = split_suffix(root.name)[0]
    if wanted is None:
        return IMAGE_GROUP
    if name in wanted and name not in found:
        return name
    left = [group for group in wanted if group not in found]
    if len(left) > 1:
        others = f" Found by name: {', '.join(sorted(found))}." if found else ""
        raise UsageError(
            f"The names in {root} tell no group, and {len(left)} are wanted: {', '.join(left)}.{others}",
            hint="Name files CASE_GROUP.ext, or put them in a folder for each case: CASE/GROUP.ext.",
        )
    return left[0] if left else None


def _raw(images: Path, kind: Kind, wanted: Sequence[str] | None) -> tuple[list[Entry], str]:
    """Return the volumes of nnU-Net's raw data: a group for each channel, named as ``dataset.json`` does, and the labels."""
    leaves = [leaf for leaf in _leaves(images, kind, wanted) if not leaf.parent.parts]
    if not leaves:
        raise UsageError(f"{images} holds no {kind.told} files.")
    names = _channel_names(images.parent / "dataset.json")
    left = [group for group in wanted or () if group != LABELS_GROUP]
    only = left[0] if len(left) == 1 else names.get("0000", IMAGE_GROUP) if len(names) == 1 else IMAGE_GROUP
    entries = []
    for leaf in leaves:
        case, number = split_channel(leaf.stem)
        group = number if number in (wanted or ()) else names.get(number, number)
        entries.append(Entry(case, group or only, Place(leaf.path, kind.item)))
    labels = images.with_name(f"labels{images.name[len('images') :]}")
    if labels.is_dir():
        entries += [
            Entry(leaf.stem, LABELS_GROUP, Place(leaf.path, kind.item))
            for leaf in _leaves(labels, kind, wanted)
            if not leaf.parent.parts
        ]
    return entries, f"nnU-Net's {images.name}/CASE_CHANNEL" + (f" and {labels.name}/CASE" if labels.is_dir() else "")


def _channel_names(path: Path) -> dict[str, str]:
    """Return the names of channels by their four digits; without those that are not different from each other."""
    described = plain_json(path)
    named = described.get("channel_names", described.get("modality"))
    if not isinstance(named, dict):
        return {}
    counts = Counter(map(str, named.values()))
    return {
        f"{int(number):04d}": str(name)
        for number, name in named.items()
        if str(number).isdigit() and counts[str(name)] == 1 and name != LABELS_GROUP
    }


def _raw_folder(root: Path) -> Path | None:
    """Return the folder of images of nnU-Net's raw data: that for training, where there are several."""
    return next((root / name for name in _RAW_FOLDERS if (root / name).is_dir()), None)


def _has_channels(root: Path) -> bool:
    return any(split_channel(split_suffix(entry.name)[0])[1] for entry in root.iterdir() if not is_junk(entry.name))


def _configuration(root: Path, kind: Kind, wanted: Sequence[str] | None) -> Path:
    """Return the folder of the only configuration in a preprocessed data set of nnU-Net."""
    folders = [one for one in sorted(root.iterdir()) if one.is_dir() and not is_junk(one.name)]
    having = [one for one in folders if one.name != _PREPROCESSED_LABELS and any(_leaves(one, kind, wanted))]
    if len(having) > 1:
        raise UsageError(
            f"{root} holds {len(having)} configurations of nnU-Net: {', '.join(one.name for one in having)}.",
            hint=f"Name one: {having[0]}.",
        )
    return having[0] if having else root


def _told_apart(leaves: list[_Leaf]) -> list[_Leaf]:
    """Return the images with ``_seg`` in the name of a ``.seg.nrrd`` that lies beside an image of its name."""
    taken = {(leaf.parent, leaf.stem) for leaf in leaves if not is_segmentation_file(leaf.path)}
    return [
        _Leaf(leaf.path, leaf.parent, f"{leaf.stem}_{SEG_GROUP}")
        if is_segmentation_file(leaf.path) and (leaf.parent, leaf.stem) in taken
        else leaf
        for leaf in leaves
    ]


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:2]) + (", ..." if len(listed) > 2 else "")
