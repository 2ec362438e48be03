"""What is read, written, read in parts and lost, per format? Collected from the rows and from the docstrings of their modules.

Each fact is stated once: names and abilities in the row, what reading leaves out in the section *Notes* of the docstring of
``open_source``, what writing leaves out in that of ``losses``. The reference page of the documentation and ``mla formats`` are
made of this.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass

from mlarray.formats.registry import module_of
from mlarray.formats.table import Format

_SECTION = re.compile(r"^(?P<name>[A-Z][A-Za-z ]+)\n-{3,}$", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?([\w]+)`")
PER_FILE = "named file by file, as notes"


@dataclass(frozen=True, slots=True)
class Guide:
    """What there is to know about one format.

    Parameters
    ----------
    row : Format
        Its row.
    about : str
        The docstring of its module, Markdown.
    not_read, not_written : str
        What reading and writing leave out; ``not_written`` is empty for a format that is not written.
    """

    row: Format
    about: str
    not_read: str
    not_written: str

    @property
    def abilities(self) -> str:
        """What can be done, in a few words."""
        return "read, write" if self.row.writes else "read"

    @property
    def several(self) -> str:
        """How several images in one file are told apart."""
        if not self.row.items:
            return "one image a file"
        return "each is a case of its own" if self.row.split else "chosen by name"


def guide_of(row: Format) -> Guide:
    """Return what there is to know about a format; its module is imported."""
    module = module_of(row)
    losses = getattr(module, "losses", None) if row.writes else None
    about = _markdown(inspect.getdoc(module) or row.title)
    return Guide(row, about, _notes_of(module.open_source), _notes_of(losses) if losses is not None else "")


def overview(rows: Iterable[Format]) -> str:
    """Return two Markdown tables: what can be done with each format, and what it leaves out."""
    guides = [guide_of(row) for row in rows]
    can = [
        [f"`{one.row.name}`", one.row.title, _suffixes(one.row), one.abilities, one.row.regions, one.several]
        for one in guides
    ]
    lost = [[f"`{one.row.name}`", one.not_read, one.not_written or "not written"] for one in guides]
    return "\n\n".join(
        (
            _table(["name", "format", "suffixes", "can", "a part without the rest", "several images"], can),
            _table(["name", "reading leaves out", "writing leaves out"], lost),
        )
    )


def _suffixes(row: Format) -> str:
    return " ".join(f"`{suffix}`" for suffix in row.suffixes)


def _notes_of(function: object) -> str:
    """Return the section *Notes* of a docstring as one line of Markdown."""
    text = inspect.getdoc(function) or ""
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    found = _markdown(" ".join(sections.get("Notes", "").split()))
    return found.replace("|", "\\|") or PER_FILE


def _markdown(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
