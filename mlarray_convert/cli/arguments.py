"""What kind of argument is a path? One that was given: empty text is what an unset variable of the shell leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

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
