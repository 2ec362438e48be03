"""Which datasets does an HDF5 file hold, and is it safe to read one?

Nothing but the named file is opened: a name is resolved link by link, links and storage that lead to other files are refused,
and so are files whose writer did not end. Handles are opened without a lock, so that a file on a read-only or network mount can
be read and a reader never stops a writer.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import FormatError, MissingDependencyError, MLArrayError
from mlarray.formats.hdf5_chunks import refuse_large_chunks
from mlarray.formats.items import Item, listed
from mlarray.limits import HDF5_LINKS, HDF5_OBJECTS

LEAST_AXES, MOST_AXES = 2, 5
_TRUNCATED = re.compile(r"eof = (\d+).*stored_eof = (\d+)")
# Registered filters that the package hdf5plugin brings (https://portal.hdfgroup.org: registered filter plugins).
_IN_HDF5PLUGIN = {
    307: "bzip2",
    32001: "Blosc",
    32004: "LZ4",
    32008: "Bitshuffle",
    32013: "ZFP",
    32015: "Zstandard",
    32017: "SZ",
    32018: "FCIDECOMP",
    32024: "SZ3",
    32026: "Blosc2",
    32028: "SPERR",
    32033: "HTJ2K",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dataset that is an array of numbers.

    Parameters
    ----------
    name : str
        Its path in the file, by hard links.
    shape : tuple of int
        Extents.
    dtype : numpy dtype
        As stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def item(self) -> Item:
        """The dataset for people."""
        return Item(self.name, f"{self.dtype.name} {' x '.join(map(str, self.shape))}")


def open_file(path: Path, **options: Any) -> Any:
    """Open an HDF5 file for reading, without a lock.

    Parameters
    ----------
    path : Path
        The file.
    **options
        Further arguments of ``h5py.File``.

    Raises
    ------
    FormatError
        When it is none, or was cut, or its writer did not end.
    OSError
        When the system refuses it.
    """
    import h5py

    with path.open("rb"):  # HDF5 tells neither a missing file nor a missing right in the words of the system
        pass
    try:
        return h5py.File(path, "r", locking=False, **options)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise _unopened(path, error) from error


@contextlib.contextmanager
def damage_told(path: Path, what: str = "") -> Iterator[None]:
    """Turn what h5py raises over a damaged file into a :class:`FormatError` that names it.

    h5py gives errors of the HDF5 library as OSError without a number, RuntimeError, KeyError and others. Errors of this package
    and those of the system pass.
    """
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
        if isinstance(error, MLArrayError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        where = f"{path}: {what}" if what else f"{path}"
        raise FormatError(
            f"{where} cannot be read: {' '.join(str(error).split())}.",
            hint="The file is damaged: restore it from its source.",
        ) from error


def _unopened(path: Path, error: Exception) -> Exception:
    told = " ".join(str(error).split())
    cut = _TRUNCATED.search(told)
    if cut is not None:
        return FormatError(
            f"{path} is cut, or its writer did not end: it should have {cut[2]} bytes and has {cut[1]}.",
            hint="Copy or export it again.",
        )
    if "signature not found" in told:
        return FormatError(f"{path} is no HDF5 file, or only a part of one.", hint="Copy or export it again.")
    if "already open for" in told or "h5clear" in told:
        return FormatError(
            f"{path} is open in a program that writes it, or its writer did not end.",
            hint="Close that program; after a crash `h5clear -s` makes the file readable, if its data are whole.",
        )
    if "lock file" in told:
        return FormatError(
            f"{path} cannot be locked on this storage, and the environment asks for it.",
            hint="Set HDF5_USE_FILE_LOCKING=FALSE, or leave it unset.",
        )
    return FormatError(f"{path} cannot be read as HDF5: {told}.", hint="Copy or export it again.")


def candidates(file: Any, path: Path) -> tuple[Candidate, ...]:
    """Return the datasets of 2 to 5 axes of numbers that can be reached by hard links, those of a group before its groups.

    Raises
    ------
    FormatError
        For a file of another format that is stored in HDF5, one with more objects than are looked at, or one whose voxels are
        all in other files.
    """
    refuse_foreign(file, path)
    found: list[Candidate] = []
    refused: list[FormatError] = []
    for name, node in datasets(file, path):
        kind = number_type(node)
        if kind is None:
            continue
        try:  # before the shape is asked for: that of a virtual dataset may be found by opening the files that it names
            _refuse_outside(file, path, name, node)
        except FormatError as error:
            refused.append(error)
            continue
        shape = tuple(node.shape or ())
        if LEAST_AXES <= len(shape) <= MOST_AXES and 0 not in shape:
            found.append(Candidate(name, shape, kind))
    if refused and not found:
        raise refused[0]
    return tuple(found)


def no_images(file: Any, path: Path) -> list[Item]:
    """Return the datasets of a file that holds no image, each with the reason."""
    return [Item(name, _why_none(node)) for name, node in datasets(file, path)]


def _why_none(dataset: Any) -> str:
    shape = dataset.shape
    if number_type(dataset) is None:
        return "no numbers"
    if not shape:
        return "empty" if shape is None else "a single value"
    if 0 in shape:
        return f"{' x '.join(map(str, shape))}, no voxel"
    return "1 axis" if len(shape) == 1 else f"{len(shape)} axes"


def refuse_foreign(file: Any, path: Path) -> None:
    """Refuse MINC 2, whose voxels mean nothing without the scales that it stores apart."""
    if link_kind(file, "minc-2.0") == "hard":
        raise FormatError(f"{path} is a MINC 2 file, not plain HDF5.", hint="Rename it to .mnc.")


def datasets(file: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield path and object of every dataset that can be reached by hard links, each once."""
    import h5py

    pending, seen, count = [("", file["/"])], set(), 0
    while pending:
        prefix, group = pending.pop()
        inner = []
        for name in sorted(group):
            count += 1
            if count > HDF5_OBJECTS:
                raise FormatError(
                    f"{path} holds more than {HDF5_OBJECTS} objects.", hint=f"Name the dataset. {HDF5_OBJECTS.hint}"
                )
            if link_kind(group, name) != "hard":
                continue
            node = _child(group, name, path)
            place = h5py.h5o.get_info(node.id)
            if (place.fileno, place.addr) in seen:
                continue
            seen.add((place.fileno, place.addr))
            if isinstance(node, h5py.Dataset):
                yield f"{prefix}/{name}", node
            elif isinstance(node, h5py.Group):
                inner.append((f"{prefix}/{name}", node))
        pending += reversed(inner)


def link_kind(group: Any, name: str) -> str:
    """Return ``"hard"``, ``"soft"``, ``"external"``, ``"other"``, or ``""`` where there is no such link."""
    import h5py

    raw = name.encode("utf-8", "surrogateescape")
    if not group.id.links.exists(raw):
        return ""
    kinds = {h5py.h5l.TYPE_HARD: "hard", h5py.h5l.TYPE_SOFT: "soft", h5py.h5l.TYPE_EXTERNAL: "external"}
    return kinds.get(group.id.links.get_info(raw).type, "other")


def find(file: Any, name: str, path: Path) -> tuple[str, Any] | None:
    """Return a dataset and its path by hard links, or None where there is no dataset of that name.

    Raises
    ------
    FormatError
        When the name leads out of the file.
    """
    import h5py

    parts, done, group = _parts(name), list[str](), file["/"]
    links = 0
    while parts:
        if not isinstance(group, h5py.Group):
            return None
        part = parts.pop(0)
        kind = link_kind(group, part)
        if kind == "hard":
            group = _child(group, part, path)
            done.append(part)
        elif kind == "soft":
            links += 1
            if links > HDF5_LINKS:
                raise FormatError(
                    f"{path}: the links of {name!r} lead in a circle, or over more than {HDF5_LINKS} links.",
                    hint=HDF5_LINKS.hint,
                )
            target = group.get(part, getlink=True).path
            base = [] if target.startswith("/") else done
            parts, done, group = [*base, *_parts(target), *parts], [], file["/"]
        elif kind:
            raise FormatError(
                f"{path}: {name!r} is a link to another file, which is not followed.", hint="Name that file instead."
            )
        else:
            return None
    return ("/" + "/".join(done), group) if isinstance(group, h5py.Dataset) else None


def checked(file: Any, name: str, path: Path) -> tuple[str, Any]:
    """Return a dataset that can be read: numbers in this file, filters that are installed.

    Raises
    ------
    FormatError
        When there is none of that name, or its voxels are not all in this file, or they are no numbers.
    MissingDependencyError
        When a filter is missing; the message names the package.
    """
    found = find(file, name, path)
    if found is None:
        known = listed([one.item for one in candidates(file, path)]) or listed(no_images(file, path)) or "none"
        raise FormatError(f"{path} holds no dataset {name!r}; it has {known}.")
    place, dataset = found
    kind = number_type(dataset)
    if kind is None:
        raise FormatError(
            f"{path}: the dataset {place} is no array of numbers.", hint="Only numbers, real or complex, can be read."
        )
    _refuse_outside(file, path, place, dataset)
    if not dataset.shape:
        raise FormatError(f"{path}: the dataset {place} is a single value, not an array.")
    refuse_large_chunks(path, place, dataset)
    _refuse_unreadable(path, place, dataset)
    for source in {one.dset_name for one in dataset.virtual_sources()} if dataset.is_virtual else ():
        _refuse_unreadable(path, *checked(file, source, path))
    return place, dataset


def number_type(dataset: Any) -> np.dtype[Any] | None:
    """Return the dtype of a dataset of numbers in native byte order, without HDF5's annotations; None for any other."""
    try:
        dtype = np.dtype(dataset.dtype.str) if dataset.dtype.kind in "biufc" else None
    except (TypeError, ValueError):  # a type that numpy does not have
        return None
    return None if dtype is None else dtype.newbyteorder("=")


def missing_chunks(dataset: Any) -> tuple[int, int]:
    """Return how many chunks were never written and how many there are; an array in one piece counts as one."""
    if dataset.chunks is None:
        return int(dataset.id.get_storage_size() == 0 and not dataset.is_virtual), 1
    total = 1
    for extent, chunk in zip(dataset.shape, dataset.chunks, strict=True):
        total *= -(-extent // chunk)
    return total - int(dataset.id.get_num_chunks()), total


def _leads_outside(dataset: Any) -> bool:
    if dataset.id.get_create_plist().get_external_count():
        return True
    return dataset.is_virtual and any(source.file_name != "." for source in dataset.virtual_sources())


def _refuse_outside(file: Any, path: Path, place: str, dataset: Any, depth: int = 0) -> None:
    """Refuse voxels that are kept in other files, also by the datasets that a virtual one is made of."""
    if _leads_outside(dataset) or depth > HDF5_LINKS:
        raise FormatError(
            f"{path}: the voxels of {place} are kept in other files, which are not opened.",
            hint="Copy the dataset into one file first, for example with h5repack.",
        )
    if dataset.is_virtual:
        for name in {source.dset_name for source in dataset.virtual_sources()}:
            found = find(file, name, path)
            if "%" in name or found is None:
                raise FormatError(f"{path}: the virtual dataset {place} needs {name!r}, which is not there.")
            _refuse_outside(file, path, *found, depth=depth + 1)


def _refuse_unreadable(path: Path, place: str, dataset: Any) -> None:
    import h5py

    plist = dataset.id.get_create_plist()
    for position in range(plist.get_nfilters()):
        code, _, _, label = plist.get_filter(position)
        if h5py.h5z.filter_avail(code) or (_load_plugins() and h5py.h5z.filter_avail(code)):
            continue
        name = _IN_HDF5PLUGIN.get(code) or label.decode("utf-8", "replace") or "a filter without a name"
        hint = "pip install mlarray[hdf5plugin]" if code in _IN_HDF5PLUGIN else "Install the plugin of that filter."
        raise MissingDependencyError(
            f"{path}: the dataset {place} is compressed with {name} (HDF5 filter {code}), which is not installed.",
            hint=hint,
        )


def _load_plugins() -> bool:
    """Register the filters of hdf5plugin, where it is installed."""
    try:
        import hdf5plugin  # noqa: F401  importing it registers its filters
    except ImportError:
        return False
    return True


def _child(group: Any, name: str, path: Path) -> Any:
    with damage_told(path, f"{group.name.rstrip('/')}/{name}"):
        return group[name]


def _parts(name: str) -> list[str]:
    return [part for part in name.split("/") if part not in ("", ".")]
