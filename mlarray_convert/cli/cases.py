"""Which images of a data set are looked at, and which others belong to each?

A data set is a folder of images, a tree ``CASE/GROUP.mla`` (or ``CASE/GROUP`` for a folder of DICOM files), or one file that
holds ``/GROUP/CASE``. The groups of a case are what lies beside an image under the same case.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlarray.errors import FormatError, MLArrayError, UsageError
from mlarray.formats.items import join_item, split_item
from mlarray.formats.registry import (
    format_of,
    format_of_name,
    is_folder_image,
    is_series_file,
    items_of,
    open_source,
    split_suffix,
)
from mlarray_convert.cli.arguments import images_in

_SHOWN = 10
_LOOKED_AT = 10


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a data set.

    Parameters
    ----------
    place : Path
        As :func:`mlarray.open_source` takes it, with the item of a file that holds several.
    case, group : str
        Of which case it is which volume, by the names of folders and files.
    """

    place: Path
    case: str
    group: str

    def beside(self, group: str) -> Path | None:
        """Return where a group of the case is, or None."""
        file, item = split_item(self.place)
        if item is None:
            found = (path for path in sorted(file.parent.iterdir()) if _name(path) == group)
            return next(filter(_is_image, found), None)
        rest = item.strip("/").split("/")[1:]
        wanted = "/".join([group, *rest])
        return next((join_item(file, one.name) for one in items_of(file) if one.name.strip("/") == wanted), None)


def images_of(paths: Sequence[Path], *, group: str | None = None) -> list[Image]:
    """Return the images that paths stand for, of one group or of all.

    Raises
    ------
    UsageError
        There is no such file or folder, or no image of that group.
    """
    every = [_image(place) for path in paths for file in _files_in(path) for place in _places_in(file)]
    kept = [one for one in every if group in (None, one.group)]
    if every and not kept:
        names = sorted({one.group for one in every})
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UsageError(f"There is no group {group!r}; found are {', '.join(names[:_SHOWN])}{more}.")
    return kept


def _files_in(path: Path) -> Iterator[Path]:
    if path.is_dir() and not is_folder_image(path):
        folders = sorted({path, *(one for one in path.rglob("*") if one.is_dir() and not one.is_symlink())})
        series = [one for one in folders if _is_series(one)]
        yield from sorted([*series, *(file for file in images_in(path) if file.parent not in series)])
    else:
        yield from images_in(path)


def _is_series(folder: Path) -> bool:
    """Tell whether a folder itself holds slices, by the first bytes of its first files that could be one."""
    if folder.name.startswith(".") or any(map(is_folder_image, (folder, *folder.parents))):
        return False
    slices = filter(_may_be_slice, sorted(folder.iterdir()))
    return any(is_series_file(file) for file in itertools.islice(slices, _LOOKED_AT))


def _may_be_slice(file: Path) -> bool:
    named = format_of_name(file)
    return file.is_file() and not file.name.startswith(".") and (named is None or named.series)


def _places_in(file: Path) -> Iterator[Path]:
    """Yield a file, or each image of one that holds several and prefers none."""
    names: list[str] = []
    try:
        several = split_item(file)[1] is None and format_of(file).items
        names = [one.name for one in items_of(file)] if several else []
        if len(names) > 1:
            open_source(file).close()
    except FormatError:
        yield from (join_item(file, name) for name in names) if names else (file,)  # planning it tells
        return
    except (MLArrayError, OSError):  # planning it tells
        pass
    yield file


def _image(place: Path) -> Image:
    file, item = split_item(place)
    if item is None:
        return Image(place, file.absolute().parent.name, _name(file))
    group, *rest = item.strip("/").split("/")
    return Image(place, "/".join(rest) or _name(file), group)


def _name(path: Path) -> str:
    return split_suffix(path.name)[0]


def _is_image(path: Path) -> bool:
    if path.is_dir():
        return is_folder_image(path) or _is_series(path)
    return format_of_name(path) is not None
