"""What is a path on the command line? One that was given, and a folder that stands for the images in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlarray.errors import UsageError
from mlarray.formats.registry import format_of_name


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
        return super().convert(value, param, ctx)


def images_in(path: Path) -> list[Path]:
    """Return the image that a path names, or those in a folder, sorted; hidden files are none.

    Raises
    ------
    UsageError
        There is no such file or folder.
    """
    if not path.exists():
        raise UsageError(f"There is no such file or folder: {path}.")
    row = format_of_name(path)
    if path.is_file() or (row is not None and row.folders):
        return [path]
    found = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    return sorted(file for file in found if format_of_name(file) is not None)
