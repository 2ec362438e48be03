"""What is a path on the command line? One that was given, and a folder that stands for the images in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mlarray.errors import UsageError
from mlarray.formats.items import split_item
from mlarray.formats.registry import format_of_name, is_folder_image
from mlarray.storage.remote import as_path


class GivenPath(click.Path):
    """A path of at least one character.

    ``mla convert "$DATA"`` with ``DATA`` unset would otherwise convert the current folder, which ``Path("")`` means.
    """

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or end with a usage error."""
        if value in ("", b""):
            self.fail("the path is empty; is a variable of the shell unset?", param, ctx)
        if isinstance(value, str) and "://" in value:
            return as_path(value)
        return super().convert(value, param, ctx)


def images_in(path: Path, *, broken: bool = False) -> list[Path]:
    """Return the image that a path names, or those in a folder, sorted; hidden files are none.

    Parameters
    ----------
    path : Path
        A file or a folder.
    broken : bool
        Also what is called like an image and cannot be read as a file: pipes, and links that lead nowhere.

    Raises
    ------
    UsageError
        There is no such file or folder.
    """
    place, item = split_item(path)
    is_broken = place.is_symlink() if not place.exists() else not (place.is_file() or place.is_dir())
    if broken and is_broken:
        return [path]
    if not place.exists():
        raise UsageError(f"There is no such file or folder: {path}.")
    if item is not None or path.is_file() or is_folder_image(path):
        return [path]
    return sorted(_below(path, broken=broken))


def _below(folder: Path, *, broken: bool) -> Iterator[Path]:
    """Yield the images below a folder; an image that is a folder is not looked into, one that cannot be is yielded itself."""
    try:
        entries = list(folder.iterdir())
    except PermissionError:
        yield folder
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        is_folder = os.path.isdir(entry)
        if is_folder and not is_folder_image(entry):
            if not entry.is_symlink():
                yield from _below(entry, broken=broken)
        elif format_of_name(entry) is not None and (
            broken or is_folder or not os.path.lexists(entry) or os.path.isfile(entry)
        ):
            yield entry
