"""Which cases does a data set hold, where is each group of a case, and which of them train?

A *case* has *groups*, a volume each (CT, SEG). What a stream reads is found by names alone, before any header; how names are
read is in :mod:`mlarray.streaming.case_layouts`. Cases are in the order of their names. A validation split is a function of
the seed and of each case's own name, so that a case that is added moves no other.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from mlarray.errors import MissingFileError, UsageError
from mlarray.formats.plugins import all_formats
from mlarray.formats.registry import open_source, split_suffix
from mlarray.sources.base import Source
from mlarray.storage.remote import as_path, is_remote
from mlarray.streaming.arguments import flag, instance, whole
from mlarray.streaming.arguments import listed as listed_of
from mlarray.streaming.case_choice import Choice, cases_told, chosen, drawn, listed
from mlarray.streaming.case_layouts import Entry, Kind, Place, entries_of, kind_named

__all__ = ["CaseFiles", "CaseSet", "Place", "find_cases", "open_place", "split"]
_DATASET = "Give a folder or a file, or a list of them."
Datasets: TypeAlias = str | Path | Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """A case and where its groups are.

    Parameters
    ----------
    name : str
        Unique in its set; ``/`` where it lies in folders of folders.
    places : mapping of str to Place
        By group.
    """

    name: str
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class CaseSet:
    """The cases of a data set.

    Parameters
    ----------
    cases : tuple of CaseFiles
        In the order of their names.
    groups : tuple of str
        That every case has.
    told : str
        What was found and how its names were read, in a sentence.
    root : Path, optional
        The data set, the first of several: what is measured on it is kept there.
    """

    cases: tuple[CaseFiles, ...]
    groups: tuple[str, ...]
    told: str
    root: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the cases."""
        return tuple(case.name for case in self.cases)

    def __len__(self) -> int:
        return len(self.cases)

    def __iter__(self) -> Iterator[CaseFiles]:
        return iter(self.cases)


@dataclass(frozen=True, slots=True)
class _Given:
    """A data set as it was given: where, which files of it, and whether it adds cases or narrows them down."""

    path: Path
    kind: Kind
    narrows: bool


def find_cases(dataset: Datasets, *, groups: Sequence[str] | None = None, subset: Choice = None) -> CaseSet:
    """Find the cases of a data set by the names of its files.

    Parameters
    ----------
    dataset : str, Path or sequence of them
        Folder or file. Text may end in a flag and a format, ``"images:a:nii.gz"``. The format limits which files count
        (``"omezarr@1"`` also names an image of each). Of several data sets, one with the flag ``a`` (the default) adds its cases,
        one with ``i`` leaves only those that it has too; cases of one name are one case. Where two have the same group of a
        case, that is an error with ``a``; with ``i`` the earlier counts.
    groups : sequence of str, optional
        Which every case must have. Default: those that every case has.
    subset : optional
        Which cases: a name, ``"0:10"`` (of the sorted names), a text file with a name in each line, any of these after ``"~"`` to
        leave cases out, or a list of these. Default: all.

    Raises
    ------
    UsageError
        Nothing is found, names can be read in several ways, two files are the same group of a case, or a case lacks a group; the
        message lists them.
    MissingFileError
        There is no such folder or file.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from mlarray import MLArray
    >>> root = Path(tempfile.mkdtemp())
    >>> for case in ("p1", "p2"):
    ...     (root / case).mkdir()
    ...     for group in ("CT", "SEG"):
    ...         MLArray(np.zeros((4, 4, 4), np.uint8)).save(root / case / f"{group}.mla")
    >>> found = find_cases(root, groups=["CT", "SEG"])
    >>> found.names, found.cases[0].places["CT"].path.name
    (('p1', 'p2'), 'CT.mla')
    """
    wanted = None if groups is None else tuple(dict.fromkeys(listed_of("groups", groups, str, 'Like groups=["CT"].')))
    if wanted == ():
        raise UsageError("No group is wanted.", hint="Name at least one, like groups=['CT'].")
    given = _given(dataset)
    cases: dict[str, dict[str, Place]] = {}
    told = []
    for index, one in enumerate(given):
        elsewhere = {group for places in cases.values() for group in places}
        elsewhere.update(split_suffix(other.path.name)[0] for other in given if other is not one)
        entries, form = entries_of(one.path, one.kind, wanted, elsewhere)
        new = _by_case(entries)
        told.append(f"{one.path}: {len(new)} {cases_told(len(new))}, {form}")
        if one.narrows and index:
            cases = {name: {**new[name], **places} for name, places in cases.items() if name in new}
        else:
            _refuse_doubles(cases, new)
            for name, places in new.items():
                cases.setdefault(name, {}).update(places)
    if not cases:
        raise UsageError(
            f"The data sets have no case in common: {'; '.join(told)}.", hint="Compare the names of their files."
        )
    names = chosen(sorted(cases), subset)
    if not names:
        raise UsageError(f"The subset {subset!r} leaves none of {len(cases)} {cases_told(len(cases))}.")
    kept = {name: cases[name] for name in names}
    used = _shared(kept) if wanted is None else wanted
    _refuse_missing(kept, used)
    if not used:
        raise UsageError(
            f"No group is in each of the {len(kept)} cases; there are {listed(_counts(kept))}.",
            hint="Say which are wanted: groups=[...].",
        )
    found = tuple(CaseFiles(name, places) for name, places in kept.items())
    sentence = f"{'; '.join(told)}. {len(found)} {cases_told(len(found))} with {', '.join(used)}."
    return CaseSet(found, tuple(used), sentence, given[0].path)


def split(case_set: CaseSet, validation: float | Choice, *, seed: int = 0) -> tuple[CaseSet, CaseSet]:
    """Return the cases that train and those that validate.

    Parameters
    ----------
    case_set : CaseSet
        All.
    validation : optional
        A share of the cases (a float between 0 and 1; at least one case), how many (an int), or which: as ``subset`` of
        :func:`find_cases`. None: none.
    seed : int
        Decides which, where a share or a number is given: the cases with the lowest hash of seed and name.

    Raises
    ------
    UsageError
        A share or number that leaves no case to one of them, or names that do not exist.

    Examples
    --------
    >>> cases = CaseSet(tuple(CaseFiles(f"p{i}", {}) for i in range(10)), ("CT",), "")
    >>> train, validation = split(cases, 0.2)
    >>> len(train), validation.names
    (8, ('p4', 'p9'))
    """
    instance("case_set", case_set, CaseSet, "find_cases(...) returns one.")
    whole("seed", seed)
    if validation is None:
        return case_set, replace(case_set, cases=())
    if isinstance(validation, bool):
        raise UsageError(f"validation is a share, a number or names, got {validation}.")
    if isinstance(validation, (int, float)):
        names = set(drawn(case_set.names, validation, seed))
    else:
        names = set(chosen(case_set.names, validation))
    train = tuple(case for case in case_set.cases if case.name not in names)
    held = tuple(case for case in case_set.cases if case.name in names)
    if not train or not held:
        which = "training" if not train else "validation"
        raise UsageError(
            f"validation={validation!r} leaves none of {len(case_set)} {cases_told(len(case_set))} for {which}."
        )
    return replace(case_set, cases=train), replace(case_set, cases=held)


def open_place(place: Place, *, mapped: bool = True) -> Source:
    """Open the volume of a group; only its header is read. Parameters and errors as for :func:`mlarray.open_source`."""
    flag("mapped", mapped)
    instance("place", place, Place, "A case of find_cases(...) has them: case.places[group].")
    return open_source(place.path, item=place.item or None, mapped=mapped)


def _given(dataset: Datasets) -> list[_Given]:
    datasets = [dataset] if isinstance(dataset, (str, Path)) else listed_of("dataset", dataset, object, _DATASET)
    if not datasets:
        raise UsageError("No data set is given.", hint="Give a folder or a file.")
    for one in datasets:
        if not isinstance(one, (str, Path)):
            raise UsageError(f"A data set is a path, got {one!r}.", hint=_DATASET)
    return [_parsed(one) for one in datasets]  # type: ignore[arg-type]


def _parsed(text: str | Path) -> _Given:
    """Return the parts of ``path``, ``path:flag``, ``path:format`` or ``path:flag:format``, taken from the right."""
    if isinstance(text, Path):
        return _existing(text, text, Kind(), narrows=False)
    rest, kind, narrows = text, Kind(), False
    if not _exists(rest):
        head, _, last = rest.rpartition(":")
        named = kind_named(last) if head else None
        if named is not None:
            rest, kind = head, named
        head, _, last = rest.rpartition(":")
        if head and last in ("a", "i") and not _exists(rest):
            rest, narrows = head, last == "i"
    return _existing(as_path(rest), text, kind, narrows=narrows)


def _exists(text: str) -> bool:
    path = as_path(text)
    return is_remote(path) or path.exists()


def _existing(path: Path, text: str | Path, kind: Kind, *, narrows: bool) -> _Given:
    if is_remote(path) or path.exists():
        return _Given(path, kind, narrows)
    head, _, last = str(path).rpartition(":")
    if head and Path(head).exists():
        known = ", ".join(row.name for row in all_formats())
        raise UsageError(
            f"{text}: {last!r} is neither a flag nor a format.",
            hint=f"Flags are a (add cases) and i (only these); formats are suffixes, or {known}.",
        )
    raise MissingFileError(f"There is no data set {path}.", hint="Check the path; it may end in :a, :i and a format.")


def _by_case(entries: Iterable[Entry]) -> dict[str, dict[str, Place]]:
    cases: dict[str, dict[str, Place]] = {}
    doubles: list[str] = []
    for entry in entries:
        places = cases.setdefault(entry.case, {})
        if entry.group in places:
            doubles.append(f"{entry.case}, {entry.group}: {places[entry.group]} and {entry.place}")
        places[entry.group] = entry.place
    if doubles:
        raise UsageError(
            f"{len(doubles)} times, two files are the same group of a case: {listed(doubles, '; ')}.",
            hint="Rename one, or limit the files to a format: PATH:nii.gz.",
        )
    return cases


def _refuse_doubles(cases: Mapping[str, Mapping[str, Place]], new: Mapping[str, Mapping[str, Place]]) -> None:
    doubles = [
        f"{name}, {group}: {cases[name][group]} and {place}"
        for name, places in sorted(new.items())
        for group, place in places.items()
        if group in cases.get(name, {})
    ]
    if doubles:
        raise UsageError(
            f"{len(doubles)} volumes are in two data sets: {listed(doubles, '; ')}.",
            hint="Cases of one name are one case: rename those that are not, or give the later set the flag i.",
        )


def _shared(cases: Mapping[str, Mapping[str, Place]]) -> tuple[str, ...]:
    """Return the groups that every case has, by name."""
    first, *others = cases.values()
    return tuple(sorted(group for group in first if all(group in places for places in others)))


def _counts(cases: Mapping[str, Mapping[str, Place]]) -> list[str]:
    counts: dict[str, int] = {}
    for places in cases.values():
        for group in places:
            counts[group] = counts.get(group, 0) + 1
    return [f"{group} (in {count})" for group, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))]


def _refuse_missing(cases: Mapping[str, Mapping[str, Place]], wanted: Sequence[str]) -> None:
    lacking = {name: [group for group in wanted if group not in places] for name, places in cases.items()}
    lacking = {name: missing for name, missing in lacking.items() if missing}
    if not lacking:
        return
    nowhere = [group for group in wanted if all(group not in places for places in cases.values())]
    if nowhere:
        known = sorted({group for places in cases.values() for group in places})
        near = [match for group in nowhere for match in difflib.get_close_matches(group, known, n=1)]
        raise UsageError(
            f"No case has the {'group' if len(nowhere) == 1 else 'groups'} {', '.join(nowhere)}; "
            f"there are {listed(_counts(cases))}.",
            hint=f"Did you mean {', '.join(near)}?" if near else None,
        )
    told = [f"{name} ({', '.join(missing)})" for name, missing in lacking.items()]
    raise UsageError(
        f"{len(lacking)} of {len(cases)} {cases_told(len(cases))} lack a group: {listed(told)}.",
        hint=f"Add the files, or leave the cases out: subset=['~{next(iter(lacking))}', ...].",
    )
