"""Does a worker see the files that the command sees? Asked before any work starts, and again of workers that come later.

A worker on a machine without the shared file system would fail at every case, or worse: write into a folder of the same name
that nobody looks into. The command therefore leaves a small file in every output folder and tells the workers what is in it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlarray.storage.publish import PendingFile

_SAMPLES = 8
_PATIENCE_SECONDS = 3.0  # network file systems show a new file a little later on other machines
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run reads and writes.

    Parameters
    ----------
    sources : tuple of Path
        Files that are read.
    folders : tuple of Path
        Existing folders that outputs are written into, or below.
    dry_run : bool
        Whether nothing may be written.
    """

    sources: tuple[Path, ...]
    folders: tuple[Path, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """What a worker must see.

    Parameters
    ----------
    folder : str
        The working directory, which relative paths start from; empty when there are none.
    sources : tuple of (str, int)
        Files with their size in bytes; the size of a folder is -1.
    marks : tuple of str
        Small files in the output folders.
    token : str
        What they hold.
    """

    folder: str
    sources: tuple[tuple[str, int], ...]
    marks: tuple[str, ...]
    token: str

    def problem(self) -> str:
        """Return what is not as it should be, as the end of a sentence that begins with the worker; empty when all is."""
        if self.folder and not Path(self.folder).is_dir():
            return f"has no folder {self.folder}, where the command was started"
        until = time.monotonic() + _PATIENCE_SECONDS
        while (found := self._problem()) and time.monotonic() < until:
            time.sleep(_AGAIN_SECONDS)
        return found

    def _problem(self) -> str:
        for name, size in self.sources:
            path = Path(self.folder, name)
            try:
                found = _size(path)
            except OSError as error:
                return f"cannot read {path} ({error.strerror or error})"
            if found != size:
                return f"has another file under the name {path} ({found} bytes instead of {size})"
        for name in self.marks:
            path = Path(self.folder, name)
            try:
                token = path.read_text(encoding="ascii")
            except OSError:
                token = ""
            if token != self.token:
                return f"does not see what this command writes into {path.parent}"
            if not os.access(path.parent, os.W_OK | os.X_OK):
                return f"may not write into {path.parent}"
        return ""


@contextlib.contextmanager
def marked(places: Places, token: str) -> Iterator[Sight]:
    """Leave a mark in every output folder while the block runs, and yield what workers must see.

    The marks are named like unfinished files: should this process be killed, the next run removes them.
    """
    marks: list[PendingFile] = []
    try:
        for folder in () if places.dry_run else _outermost(places.folders):
            mark = PendingFile(folder / "any")
            marks.append(mark)
            mark.path.write_text(token, encoding="ascii")
        relative = any(not path.is_absolute() for path in (*places.sources, *places.folders))
        yield Sight(
            os.getcwd() if relative else "",
            tuple(_sampled(places.sources)),
            tuple(str(mark.path) for mark in marks),
            token,
        )
    finally:
        for mark in marks:
            mark.abort()


def _sampled(sources: tuple[Path, ...]) -> Iterator[tuple[str, int]]:
    """Yield a few files from the first to the last, with their sizes; those that cannot be read here are left out."""
    step = max(1, len(sources) // _SAMPLES)
    for path in sources[::step]:
        with contextlib.suppress(OSError):
            yield str(path), _size(path)


def _size(path: Path) -> int:
    return -1 if path.is_dir() else path.stat().st_size


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that lie in no other of them."""
    wanted = set(folders)
    return sorted(folder for folder in wanted if wanted.isdisjoint(folder.parents))
