"""Which files are cases, what are they called, and where does each go?

Only names are looked at; of formats whose files are split into several cases, the list of images is read. A folder is walked for
files with a known suffix; what an operating system or an archive program leaves behind is ignored, and so is what belongs to
another file (the ``.img`` of a ``.hdr``). The tree below an input folder is kept in the output, so that two cases of the same
name stay two. An item that is named does not change the name of its case, unless several images of one source are cases: then
each is ``<name>/<item>``.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from mlarray.errors import MLArrayError, UsageError
from mlarray.formats.dicom import Survey, survey
from mlarray.formats.file_names import (
    belongs_to_case,
    belongs_to_header,
    identity,
    is_image_folder,
    is_junk,
    is_segmentation_file,
    split_channel,
)
from mlarray.formats.items import item_path, join_item, split_item
from mlarray.formats.registry import (
    format_of_name,
    format_of_place,
    is_folder_image,
    is_series_file,
    items_of,
    split_suffix,
)
from mlarray.storage.remote import is_remote
from mlarray_convert.request import Request

_LABEL_FOLDER = re.compile(r"labels?(tr|ts|val)?|gt_segmentations", re.IGNORECASE)
_LABEL_STEM = re.compile(r"(.*[-_. ])?(seg|dseg|segmentation|labels?|labelmap|mask)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Case:
    """One file to convert.

    Parameters
    ----------
    name : str
        Its path below the input, with ``/`` and without suffix: unique within a run, used in reports.
    source, output : Path
        The file and what will be written.
    is_label : bool
        Whether it is a segmentation: whole numbers, stored in the smallest integer type that holds them.
    images : tuple of Path
        The images whose grid it should share: those of a segmentation, or the first channel of a further one.
    volume : object
        What discovery read of the headers of a series, so that they are read once; None for other cases.
    every_image : bool
        Whether it must lie on all of them (channels of one case), or on any (images of one patient).
    item : str
        Which image of a source that holds several; ``""``: the only one, or the one that the format prefers.
    """

    name: str
    source: Path
    output: Path
    is_label: bool = False
    images: tuple[Path, ...] = ()
    every_image: bool = False
    item: str = ""
    volume: Any = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> Path:
        """The source with its item, as :func:`mlarray.open_source` takes both: ``data.h5@/group/ct``."""
        return join_item(self.source, self.item)


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found.

    Parameters
    ----------
    cases : tuple of Case
        In the order of their names.
    junk : int
        Hidden files, leftovers of operating systems, unfinished outputs.
    others : int
        Files that are no images, or already have the target format.
    remarks : tuple of str
        What a user should know: folder loops.
    store : Path or None
        The one file into which all cases go; None when each has a file of its own.
    """

    cases: tuple[Case, ...]
    junk: int = 0
    others: int = 0
    remarks: tuple[str, ...] = ()
    store: Path | None = None


@dataclass(slots=True)
class _Count:
    junk: int = 0
    others: int = 0
    unsure: list[Path] = field(default_factory=list)  # parts of a series, or no image: their first bytes will tell
    remarks: list[str] = field(default_factory=list)


def discover(request: Request) -> Discovery:
    """Find the cases of a request.

    Raises
    ------
    UsageError
        When an input does not exist, an output is also an input, or two cases would be written to one file; every such
        pair is listed.
    """
    inputs = [split_item(path) for path in request.inputs]
    missing = [str(path) for path, _ in inputs if not path.exists() and not path.is_symlink()]
    if missing:
        raise UsageError(f"There is no such file or folder: {', '.join(missing)}.")
    count = _Count()
    found: list[Case] = []
    parts = [place for place, item in inputs if item is None and _is_part_of_series(place)]
    if len(parts) > 1:
        inputs = [one for one in inputs if one[0] not in parts]
        found += _listed_series(parts, request, count)
    for place, item in inputs:
        if place.is_dir() and not is_folder_image(place):
            cases = list(_cases_of_folder(place, request, count))
            found += _chosen(cases, place, item or request.item) if item or _has_series(cases, request) else cases
        else:
            found += _split(_with_item(_case_of_file(place, request), item, request), request)
    found = _item_named([*dict.fromkeys(found)], request)
    chooses = any(case.item for case in found) or request.target.items
    if request.item is not None and found and not chooses:
        raise UsageError(
            f"--item {request.item!r} chooses among the images of one file; none of the inputs is of a format with several.",
            hint="Leave it out.",
        )
    cases = _apart(sorted(found, key=lambda case: (case.name, str(case.source), case.item)))
    _refuse_same_place(cases, request.store)
    _refuse_collisions(cases)
    named = tuple(_with_images(_uniquely_named(cases)))
    return Discovery(named, count.junk, count.others, tuple(count.remarks), request.store)


def group_of(case: Case, request: Request) -> str:
    """Return the group of a case in the one file into which all go: the path of its own file without suffix."""
    assert request.folder is not None
    relative = case.output.relative_to(request.folder)
    return relative.with_name(split_suffix(relative.name)[0]).as_posix()


def _case_of_file(source: Path, request: Request) -> Case:
    stem = split_suffix(source.name)[0]
    if request.output is None:
        output = source.with_name(stem + request.suffix)
    elif request.output_is_file:
        output = request.output
    else:
        output = (request.folder or request.output) / (stem + request.suffix)
    folder = source.absolute().parent.name
    return Case(stem, source, output, _is_label(PurePosixPath(folder, source.name), request.labels))


def _cases_of_folder(folder: Path, request: Request, count: _Count) -> Iterator[Case]:
    name = folder.name or folder.resolve().name
    if request.output is not None:
        several = len(request.inputs) > 1
        place = request.folder or request.output
        root = place / name if several else place
        if _same(root, folder) or _same(request.output, folder):
            raise UsageError(f"The output folder {request.output} is the input folder.", hint="Choose another with -o.")
    elif not name:
        raise UsageError(f"{folder} has no name to derive an output folder from.", hint="Choose one with -o.")
    else:
        several = len(request.inputs) > 1
        root = (
            folder.resolve().with_name(f"{name}_{request.target.name}")
            if folder.name in ("", "..")
            else (folder.with_name(f"{name}_{request.target.name}"))
        )
    for source, relative in _walk(folder, request, root, count):
        stem = split_suffix(source.name)[0]
        inner = relative.with_name(stem)
        case = Case(
            str(PurePosixPath(name, inner) if several else inner),
            source,
            root / relative.with_name(stem + request.suffix),
            _is_label(PurePosixPath(name, relative), request.labels),
        )
        yield from _split(_with_item(case, None, request), request)
    unsure, count.unsure = count.unsure, []
    for case in _series_cases(unsure, request, count, top=folder, root=root):
        yield replace(case, name=str(PurePosixPath(name, case.name))) if several else case


def _series_cases(files: list[Path], request: Request, count: _Count, *, top: Path, root: Path) -> Iterator[Case]:
    """Yield a case per volume that files form, below ``root`` as they lie below ``top``; count what is no image."""
    if not files:
        return
    found: Survey = survey(files, request.series)
    count.others += found.strangers + sum(number for _, number in found.skipped)
    if found.skipped:
        told = ", ".join(f"{number} {kind}" for kind, number in found.skipped)
        count.remarks.append(f"DICOM objects without an image were left out: {told}.")
    for volume in found.volumes:
        inner = PurePosixPath(Path(os.path.relpath(volume.folder, top)).as_posix(), volume.name)
        output = root / inner.with_name(inner.name + request.suffix)
        is_label = _is_label(PurePosixPath(top.absolute().name, inner), request.labels)
        yield Case(str(inner), volume.folder, output, is_label, item=volume.name, volume=volume)
    for path, _ in found.damaged:  # a case of its own, which fails with the reason when it is read
        inner = PurePosixPath(Path(os.path.relpath(path, top)).as_posix())
        stem = split_suffix(inner.name)[0]
        yield Case(str(inner.with_name(stem)), path, root / inner.with_name(stem + request.suffix))


def _listed_series(parts: list[Path], request: Request, count: _Count) -> list[Case]:
    """Return the volumes of files that were named one by one."""
    top = Path(os.path.commonpath([str(part.absolute().parent) for part in parts]))
    root = request.output if request.output is not None else top
    return list(_series_cases([part.absolute() for part in parts], request, count, top=top, root=root))


def _is_part_of_series(path: Path) -> bool:
    row = format_of_name(path)
    if row is not None:
        return row.series and path.is_file()
    return path.is_file() and is_series_file(path)


def _has_series(cases: list[Case], request: Request) -> bool:
    return request.item is not None and any(case.volume is not None for case in cases)


def _chosen(cases: list[Case], place: Path, item: str | None) -> list[Case]:
    """Return the case of a folder that is the item."""
    chosen = [case for case in cases if case.volume is not None and item in (case.name, case.item)]
    if not chosen:
        names = ", ".join(case.name for case in cases if case.volume is not None)
        has = f"it has {names}" if names else "it is a folder of files"
        raise UsageError(f"{place} has no item {item!r}: {has}.")
    return chosen


def _with_item(case: Case, named: str | None, request: Request) -> Case:
    """Return the case with the item that its path names, or that was asked for where its format has items."""
    row = format_of_place(case.source)
    if named is not None and request.item is not None and named != request.item:
        raise UsageError(f"{case.source} is given with the item {named!r} and with --item {request.item!r}.")
    item = named if named is not None or (row is not None and not row.items) else request.item
    return _itself(case, item, request) if item else case


def _itself(case: Case, item: str, request: Request) -> Case:
    """Return the case as one item of its source, which may be called like a segmentation (``/group/labels``)."""
    return replace(case, item=item, is_label=case.is_label or _is_label(item_path(item), request.labels))


def _split(case: Case, request: Request) -> list[Case]:
    """Return a case per image where the format says that each is one, or where a pattern names several.

    A source that cannot be listed fails when it is read.
    """
    row = format_of_place(case.source)
    pattern = case.item if any(mark in case.item for mark in "*?[") else ""
    if (row is None or not row.split or case.item) and not pattern:
        return [case]
    try:
        items = items_of(case.source)
    except (MLArrayError, OSError):
        items = ()
    if pattern and all(one.name != pattern for one in items):
        items = tuple(one for one in items if fnmatchcase(one.name.strip("/"), pattern.strip("/")))
    elif pattern:
        return [case]
    return [_itself(case, "" if one.preferred else one.name, request) for one in items] or [case]


def _item_named(cases: list[Case], request: Request) -> list[Case]:
    """Put the item into the name of a case where one source has several: ``scan/1``, written to ``scan/1.mla``."""
    counts = Counter(case.source for case in cases if case.volume is None)
    if request.output_is_file and len(cases) == 1 and request.output is not None:
        return [replace(cases[0], output=request.output)]
    if request.output_is_file and len(cases) > 1:
        raise UsageError(
            f"{cases[0].source} holds {len(cases)} images, which cannot all be written to {request.output}.",
            hint="Name a folder with -o, or choose one image with --item.",
        )
    return [_below(case) if case.item and counts[case.source] > 1 else case for case in cases]


def _below(case: Case) -> Case:
    inner = item_path(case.item)
    stem, suffix = split_suffix(case.output.name)
    folder = case.output.with_name(stem) / inner.parent
    return replace(case, name=f"{case.name}/{inner}", output=folder / (inner.name + suffix))


def _walk(folder: Path, request: Request, root: Path, count: _Count) -> Iterator[tuple[Path, PurePosixPath]]:
    """Yield every input below ``folder`` with its relative path."""
    outputs = {identity(place) for place in (root, request.folder) if place is not None and place.exists()}
    pending: list[tuple[Path, PurePosixPath, frozenset[object]]] = [
        (folder, PurePosixPath(), frozenset([identity(folder)]))
    ]
    while pending:
        place, relative, above = pending.pop()
        try:
            entries = sorted(place.iterdir(), key=lambda entry: entry.name)
        except PermissionError:
            if place == folder:
                raise
            yield place, relative  # a case of its own, which fails with the reason when it is read
            continue
        names = {entry.name.lower() for entry in entries}
        for entry in entries:
            inner = relative / entry.name
            if is_junk(entry.name):
                count.junk += 1
                continue
            row = format_of_place(entry)
            if os.path.isdir(entry) and not (row is not None and row.folders):
                itself = identity(entry)
                if itself in above:
                    count.remarks.append(f"{entry} leads back to a folder above it and was not followed.")
                elif itself not in outputs:
                    pending.append((entry, inner, above | {itself}))
            elif belongs_to_case(entry.name, names):
                continue  # read with the arrays of its case
            elif (row is None or row.series) and os.path.isfile(entry):
                count.unsure.append(entry)
            elif row is None or row.name == request.target.name or belongs_to_header(entry.name, names):
                count.others += 1
            else:
                yield entry, inner


def _is_label(relative: PurePosixPath, pattern: str) -> bool:
    if pattern == "none":
        return False
    if pattern != "auto":
        return (
            fnmatch(relative.name, pattern)
            or fnmatch(str(relative), pattern)
            or fnmatch(str(PurePosixPath(*relative.parts[1:])), pattern)
        )
    stem = split_suffix(relative.name)[0]
    in_folder = any(_LABEL_FOLDER.fullmatch(part) for part in relative.parts[:-1])
    return in_folder or is_segmentation_file(relative) or _LABEL_STEM.fullmatch(stem) is not None


def _with_images(cases: list[Case]) -> Iterator[Case]:
    """Yield the cases with the images that each should lie on the grid of."""
    images: dict[tuple[Path, str], list[Path]] = {}
    beside: dict[Path, list[Path]] = {}
    within: dict[Path, list[Path]] = {}
    named: dict[tuple[Path, str], list[Path]] = {}
    for case in cases:
        if not case.is_label:
            named.setdefault((case.source.parent, _stem(case)), []).append(case.place)
            images.setdefault((case.source.parent, split_channel(_stem(case))[0]), []).append(case.place)
            beside.setdefault(case.source.parent, []).append(case.place)
            within.setdefault(case.source, []).append(case.place)
    for case in cases:
        folder, stem = case.source.parent, _stem(case)
        if case.is_label and case.item and case.source in within:
            yield replace(case, images=tuple(within[case.source]), every_image=False)
            continue
        if not case.is_label:
            first = images[folder, split_channel(stem)[0]][0]
            is_channel = is_image_folder(folder.name) and split_channel(stem)[1] != ""
            yield replace(case, images=(first,), every_image=True) if is_channel and first != case.place else case
            continue
        match = _LABEL_FOLDER.fullmatch(folder.name)
        if match is not None:
            key = (folder.with_name(f"images{match.group(1) or ''}"), stem)
            yield replace(case, images=tuple(images.get(key, ())), every_image=True)
            continue
        marked = _LABEL_STEM.fullmatch(stem)
        prefix = (marked.group(1) or "")[:-1] if marked is not None else stem
        if prefix:
            key = (folder, prefix)  # a name that looks like that of a channel may be that of a case
            yield replace(case, images=tuple(named.get(key, images.get(key, []))), every_image=True)
        else:
            yield replace(case, images=tuple(beside.get(folder, ())), every_image=False)


def _stem(case: Case) -> str:
    return _stem_of(case.source)


def _stem_of(path: Path) -> str:
    return split_suffix(path.name)[0]


def _apart(cases: list[Case]) -> list[Case]:
    """Keep ``.seg`` in the name of a segmentation that lies beside an image of its name, as 3D Slicer saves the two."""
    taken = {case.output for case in cases if not is_segmentation_file(case.source)}
    return [
        replace(case, output=case.output.with_name(f"{_stem(case)}.seg{split_suffix(case.output.name)[1]}"))
        if is_segmentation_file(case.source) and case.output in taken
        else case
        for case in cases
    ]


def _uniquely_named(cases: list[Case]) -> list[Case]:
    counts: dict[str, int] = {}
    for case in cases:
        counts[case.name] = counts.get(case.name, 0) + 1
    return [case if counts[case.name] == 1 else replace(case, name=str(case.place)) for case in cases]


def _refuse_same_place(cases: list[Case], store: Path | None) -> None:
    inputs = {identity(case.source) for case in cases if is_remote(case.source) or os.path.exists(case.source)}
    if store is not None and store.exists() and identity(store) in inputs:
        raise UsageError(f"The output {store} is also an input.", hint="Choose another place with -o.")
    over = [case for case in cases if case.output.exists() and identity(case.output) in inputs]
    if over:
        listed = "; ".join(f"{case.place} -> {case.output}" for case in over)
        raise UsageError(f"An output would replace an input: {listed}.", hint="Choose another place with -o.")


def _refuse_collisions(cases: list[Case]) -> None:
    """Refuse two cases for one file, also where only a file system that ignores case would take them for one."""
    sources: dict[str, list[Case]] = {}
    for case in cases:
        key = unicodedata.normalize("NFC", os.path.normpath(str(case.output))).casefold()
        sources.setdefault(key, []).append(case)
    groups = [group for group in sources.values() if len(group) > 1]
    if groups:
        listed = "; ".join(
            f"{' and '.join(str(case.place) for case in group)} -> {group[0].output}" for group in groups
        )
        raise UsageError(
            f"Several inputs would be written to one file: {listed}.",
            hint="Rename them or convert them into different folders; nothing was written.",
        )


def _same(first: Path, second: Path) -> bool:
    return first.exists() and identity(first) == identity(second)
