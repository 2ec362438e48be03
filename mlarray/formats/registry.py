"""Which format is this file, and how is it opened?

A known suffix decides, compared without regard to case and with compound suffixes first (``.nii.gz`` before ``.gz``); a file
without a known suffix is recognised by its first bytes. Format modules are imported on demand. Formats that other packages add
(:mod:`mlarray.formats.plugins`) are known like the built-in ones.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from mlarray.errors import FormatError, MissingDependencyError, UnknownFormatError, UsageError
from mlarray.formats.items import Item, split_item
from mlarray.formats.plugins import all_formats
from mlarray.formats.table import Format
from mlarray.sources.base import Note, Sink, SinkOptions, Source, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.remote import as_path, is_remote

MAGIC_BYTES = 512
_ZARR_DOCUMENTS = ("zarr.json", ".zgroup", ".zattrs", ".zarray")
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"NRRD000", "nrrd"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (0, b"\x93NUMPY", "npy"),
    (2, b"b2frame\x00", "mla"),
    (344, b"n+1\x00", "nifti"),
    (344, b"ni1\x00", "nifti"),
    (4, b"n+2\x00\r\n\x1a\n", "nifti"),
    (4, b"ni2\x00\r\n\x1a\n", "nifti"),
    (0, b"II*\x00", "tiff"),
    (0, b"MM\x00*", "tiff"),
    (0, b"II+\x00", "tiff"),
    (0, b"MM\x00+", "tiff"),
)


class FormatModule(Protocol):
    """What a module of a format offers."""

    def open_source(self, path: Path) -> Source:
        """Read the header and return the voxels as a source."""

    def losses(self, spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
        """Name what this format cannot keep of an array; raise where it cannot hold the array at all."""

    def open_sink(self, path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> Sink:
        """Create a file that takes the voxels."""


class MappingModule(FormatModule, Protocol):
    """A module whose sources may be memory-mapped: the row has ``maps``."""

    def open_source(self, path: Path, *, mapped: bool = True) -> Source:
        """As for :class:`FormatModule`; ``mapped=False`` reads with ordinary file calls."""


class ItemModule(FormatModule, Protocol):
    """A module whose files may hold several images: the row has ``items``."""

    def items(self, path: Path) -> tuple[Item, ...]:
        """Return the images of a file, in its order; empty when it has none."""

    def open_source(self, path: Path, *, item: str | None = None) -> Source:
        """Open the image ``item``; None: the only one, or the one that is meant by nature (the full resolution)."""


class SeriesModule(ItemModule, Protocol):
    """A module whose images may be spread over the files of a folder: the row has ``series``."""

    def holds_images(self, path: Path) -> bool:
        """Tell whether a file is one of this format, or a folder holds one, by first bytes."""


def format_named(name: str) -> Format:
    """Return the row called ``name``."""
    for row in all_formats():
        if row.name == name:
            return row
    raise UsageError(f"There is no format {name!r}; known are {', '.join(row.name for row in all_formats())}.")


def split_suffix(name: str) -> tuple[str, str]:
    """Split a file name into stem and known suffix (as written); without a known suffix the second part is empty.

    Examples
    --------
    >>> split_suffix("case.1.nii.gz")
    ('case.1', '.nii.gz')
    >>> split_suffix("11ah-1.8_roi1.txt")
    ('11ah-1.8_roi1.txt', '')
    """
    lower = name.lower()
    for suffix in _suffixes():
        if lower.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)], name[-len(suffix) :]
    return name, ""


def format_of_name(path: Path) -> Format | None:
    """Return the format that the suffix of ``path`` stands for, or None."""
    suffix = split_suffix(path.name)[1].lower()
    return next((row for row in all_formats() if suffix in row.suffixes), None)


def format_of_place(path: Path) -> Format | None:
    """Return the format of a file or folder by its name, or of a folder without a known suffix by what lies in it."""
    named = format_of_name(path)
    if named is None and (path.is_dir() if is_remote(path) else os.path.isdir(path) and os.access(path, os.X_OK)):
        found = any((path / name).exists() for name in _ZARR_DOCUMENTS) or is_remote(path)
        return format_named("ome-zarr") if found else None
    return named


def format_of(path: Path) -> Format:
    """Return the format of a file: by suffix, else by its first bytes.

    Raises
    ------
    UnknownFormatError
        When neither tells.
    FileNotFoundError
        When there is no such file.
    """
    if not path.exists():
        missing = f": it is a link to {os.readlink(path)}, which is not there" if path.is_symlink() else ""
        raise FileNotFoundError(f"There is no file {path}{missing}.")
    if not is_remote(path) and path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    named = format_of_place(path)
    if named is not None:
        return named
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(MAGIC_BYTES)
        for offset, magic, name in _MAGIC:
            if head[offset : offset + len(magic)] == magic:
                return format_named(name)
    series = _series_of(path)
    if series is not None:
        return series
    if path.is_dir():
        raise UnknownFormatError(
            f"{path} is a folder, not an image, and holds no DICOM files.", hint="`mla convert` takes folders."
        )
    raise UnknownFormatError(
        f"{path} is of no format that can be read.", hint="`mla formats` lists those that can; check the file's suffix."
    )


def module_of(row: Format) -> FormatModule:
    """Import and return the module of a format.

    Raises
    ------
    MissingDependencyError, FormatError
        When the module of a format that another package adds cannot be imported.
    """
    if not row.package:
        return cast("FormatModule", importlib.import_module(f"mlarray.formats.{row.module}"))
    try:
        return cast("FormatModule", importlib.import_module(row.module))
    except Exception as error:  # whatever it raises: this package answers for the message, not for the other
        kind = MissingDependencyError if isinstance(error, ImportError) else FormatError
        raise kind(
            f"The format {row.name!r} of the package {row.package} cannot be loaded: {type(error).__name__}: "
            f"{' '.join(str(error).split())}.",
            hint=f"Update or remove {row.package}.",
        ) from error


def companions(row: Format, path: Path, info: SourceInfo) -> tuple[Path, ...]:
    """Return the files besides ``path`` that a sink of the format makes for an array that ``info`` describes."""
    named = getattr(module_of(row), "companions", None)
    return () if named is None else named(path, info)


def open_source(
    path: str | Path, *, item: str | None = None, dataset: str | None = None, mapped: bool = True
) -> Source:
    """Open a file of any known format as a source; only its header is read.

    Parameters
    ----------
    path : str or Path
        The file; ``"data.h5@/group/ct"`` or ``"data.h5::/group/ct"`` names an item with it, where no file is called so. An
        OME-Zarr may also be on a remote store: ``"https://host/scan.zarr"``, ``"s3://bucket/scan.zarr"``.
    item : str, optional
        Which image of a file that holds several. Default: the only one, or the full resolution of a pyramid.
    dataset : str, optional
        The same, as an item of an HDF5 file is called.
    mapped : bool
        Whether the file may be mapped into memory, which is fastest for patches. Pages of a map count as memory of this
        process until the system takes them back; without it, memory stays small whatever is read.

    Returns
    -------
    Source
        Close it, or use it as a context manager.

    Raises
    ------
    UnknownFormatError
        When no format recognises the file.
    FormatError
        When its content is damaged or cannot be kept right, or when it holds several images and none was named; the message
        names the file and lists the images.
    UsageError
        When an item is named for a format that has none, or two different ones.
    """
    place, named = split_item(as_path(path))
    if item is not None and dataset is not None:
        raise UsageError("item and dataset are two names for the same; give one of them.")
    item = dataset if item is None else item
    if named is not None and item is not None and named != item:
        raise UsageError(f"{path} names the item {named!r}, and {item!r} was given besides.")
    return open_as(format_of(place), place, item=named if item is None else item, mapped=mapped)


def open_as(row: Format, path: Path, *, item: str | None = None, mapped: bool = True) -> Source:
    """Open a file as one of a given format, whatever its name. Parameters and errors as for :func:`open_source`."""
    if item is not None and not row.items:
        raise UsageError(
            f"{path} is a {row.title} file, which holds one image: there is no item {item!r} to choose.",
            hint="Leave the item out.",
        )
    if is_remote(path) and row.name != "ome-zarr":
        raise UsageError(
            f"{path} is a {row.title} file, which is read from this machine only.", hint="Download it first."
        )
    if not ((row.folders or row.series) and path.is_dir()):
        refuse_irregular(path)
    choice: dict[str, Any] = {"mapped": False} if row.maps and not mapped else {}
    if item is not None:
        choice["item"] = item
    with _naming(path), _any_numbers():
        source: Source = cast("Any", module_of(row)).open_source(path, **choice)
        return source


def items_of(path: str | Path) -> tuple[Item, ...]:
    """Return the images that a file holds.

    Returns
    -------
    tuple of Item
        Empty for a format whose files hold one image, which needs no name.

    Raises
    ------
    UnknownFormatError, FormatError
        As for :func:`open_source`.
    """
    place = as_path(path)
    row = format_of(place)
    if not row.items:
        return ()
    if not ((row.folders or row.series) and place.is_dir()):
        refuse_irregular(place)
    with _naming(place), _any_numbers():
        return cast("ItemModule", module_of(row)).items(place)


def is_series_file(path: Path) -> bool:
    """Tell by its first bytes whether a file is of a format whose images are spread over files (DICOM)."""
    return path.is_file() and _series_of(path) is not None


def is_series_folder(path: Path) -> bool:
    """Tell whether a folder holds files of a format whose images are spread over files (DICOM)."""
    return path.is_dir() and _series_of(path) is not None


def _series_of(path: Path) -> Format | None:
    """Return the format of which ``path``, a file without a known suffix or a folder, is or holds a part of a series."""
    for row in all_formats():
        if row.series and cast("SeriesModule", module_of(row)).holds_images(path):
            return row
    return None


def is_folder_image(path: Path) -> bool:
    """Tell whether a folder is one image (a ``.zarr``), not a folder of images."""
    row = format_of_place(path)
    return row is not None and row.folders and path.is_dir()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the name of the file in front of a message that lacks it."""
    try:
        yield
    except FormatError as error:
        if str(path) not in error.message:
            error.message = f"{path}: {error.message}"
        raise


def _any_numbers() -> np.errstate:
    """Let headers hold numbers that overflow: what becomes infinite is refused or noted where it is used."""
    return np.errstate(all="ignore")


def refuse_irregular(path: Path) -> None:
    """Raise where ``path`` is there and no regular file: reading a named pipe would wait for ever, a device never end.

    Also where it has no bytes: each format would call that by another name.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe, a socket or a device"
        raise FormatError(f"{path} is {kind}, not a file.", hint="Name a file that holds an image.")
    if path.exists() and path.stat().st_size == 0 and not is_remote(path):
        raise FormatError(f"{path} is empty: it has 0 bytes.", hint="Copy or export it again.")


def _suffixes() -> tuple[str, ...]:
    return _longest_first(all_formats())


@functools.cache
def _longest_first(rows: tuple[Format, ...]) -> tuple[str, ...]:
    """Return the suffixes of the rows, compound ones before their ends; names of thousands of files are split by them."""
    return tuple(sorted((suffix for row in rows for suffix in row.suffixes), key=len, reverse=True))
