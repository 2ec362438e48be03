"""Which of the images in a file is meant?

Some files hold several: the datasets of an HDF5 file, the levels of a pyramid, the members of an archive. Each has a name, its
*item*. A user gives it beside the path, or in the path behind an ``@`` or ``::``; this module knows how, and what is said when it
is missing or wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mlarray.errors import FormatError

MARK = "@"
_MARKS = re.compile(r"@|::")
_LISTED = 20
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f<>:"|?*\\]')  # what some file system or other refuses


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a file that may hold several.

    Parameters
    ----------
    name : str
        What is given to choose it: a dataset's path, a level's number.
    title : str
        What it is, for people: dtype and shape, and what else helps to choose.
    preferred : bool
        Whether it is the image that is opened where none is named, of several.
    """

    name: str
    title: str
    preferred: bool = False


def split_item(path: Path) -> tuple[Path, str | None]:
    """Split ``scan.zarr@1`` or ``data.h5::/group/ct`` into the path and the item; a path that exists is never split.

    The last mark counts that has an existing path before it, so that items and folders may hold one too. Where there is none
    the path is returned as it is.

    Examples
    --------
    >>> split_item(Path("no such file@1"))[1] is None
    True
    """
    text = str(path)
    if not _MARKS.search(text) or path.exists():
        return path, None
    for mark in reversed(list(_MARKS.finditer(text))):
        head, item = text[: mark.start()], text[mark.end() :]
        if head and item and type(path)(head).exists():
            return type(path)(head), item
    return path, None


def join_item(path: Path, item: str) -> Path:
    """Return the path that :func:`split_item` splits into both; without an item the path itself."""
    return type(path)(f"{path}{MARK}{item}") if item else path


def pick_item(
    path: Path, items: Sequence[Item], item: str | None, *, others: Sequence[Item] = (), hint: str | None = None
) -> Item:
    """Return the item that is meant: the one that was named, or the only one.

    Parameters
    ----------
    path : Path
        The file, for messages.
    items : sequence of Item
        All it has.
    item : str or None
        What was given. Slashes around a name do not matter.
    others : sequence of Item
        What it holds besides; each title says why that is no image. Told where there is no image.
    hint : str, optional
        What to do then.

    Raises
    ------
    FormatError
        When there is none, none of that name, or several and no name; the message lists them.
    """
    if not items:
        raise FormatError(f"{path} holds no image{f': {listed(others)}' if others else ''}.", hint=hint)
    if item is None:
        if len(items) == 1:
            return items[0]
        raise FormatError(
            f"{path} holds {len(items)} images: {listed(items)}.",
            hint=f"Choose one: --item NAME, or {path.name}{MARK}NAME; in Python open_source(path, item=NAME).",
        )
    for one in items:
        if one.name.strip("/") == item.strip("/"):
            return one
    raise FormatError(f"{path} holds no image {item!r}; it has {listed(items)}.")


def listed(items: Sequence[Item]) -> str:
    """Return items with what they are, in one line of bounded length."""
    shown = [f"{one.name} ({one.title})" for one in items[:_LISTED]]
    more = [f"and {len(items) - _LISTED} more"] if len(items) > _LISTED else []
    return ", ".join([*shown, *more])


def item_path(item: str) -> PurePosixPath:
    """Return an item as a relative path that every file system takes and that leads nowhere else.

    Examples
    --------
    >>> item_path("/group/ct"), item_path("../a:b")
    (PurePosixPath('group/ct'), PurePosixPath('a_b'))
    """
    parts = [_NOT_IN_NAMES.sub("_", part) for part in item.split("/")]
    kept = [part for part in parts if part.strip(". ")]
    return PurePosixPath(*kept) if kept else PurePosixPath("item")
