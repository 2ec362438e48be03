"""How does a finished file get its name? Written under a temporary one, flushed to disk, renamed.

A reader therefore sees the old file or the new one, never a part, and a reader that has the old one mapped keeps its data.
Temporary names start with a dot and end in ``.part``: what a killed writer leaves is never taken for a case.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

from mlarray.errors import UsageError

PART_SUFFIX = ".part"
_counter = itertools.count()


class PendingFile:
    """A file that is being written and has not got its final name yet.

    Parameters
    ----------
    final : Path
        The name it will get. The folder must exist and be writable.

    Attributes
    ----------
    path : Path
        Where to write: in the same folder, unique to this process.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        if not final.parent.is_dir():
            raise UsageError(f"The folder {final.parent} does not exist.", hint="Create it first.")
        # Host and process id make the name unique on shared storage and let a cleaner tell a dead owner from a living one.
        owner = f"{_host()}-{os.getpid()}-{next(_counter)}"
        self.path = final.parent / f".{_shortened(final.name)}.{owner}{PART_SUFFIX}"
        self._open = True

    def publish(self) -> None:
        """Flush the file and give it its final name, replacing what was there."""
        flush_to_disk(self.path)
        os.replace(self.path, self.final)
        self._open = False
        flush_folder(self.final.parent)

    def abort(self) -> None:
        """Remove what was written; a no-op once published."""
        if self._open:
            self.path.unlink(missing_ok=True)
            self._open = False


def flush_to_disk(path: Path) -> None:
    """Force the bytes of a file to stable storage."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def flush_folder(folder: Path) -> None:
    """Force a rename in ``folder`` to stable storage, where the system allows to open a folder."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows
        return
    try:
        os.fsync(fd)
    except OSError:  # some network file systems refuse to flush folders; the rename itself has happened
        pass
    finally:
        os.close(fd)


def is_part(name: str) -> bool:
    """Tell whether a file name is that of an unfinished file of this package."""
    return name.startswith(".") and name.endswith(PART_SUFFIX)


def part_owner(name: str) -> tuple[str, int] | None:
    """Return host and process id of the writer of an unfinished file, or None for other names."""
    if not is_part(name):
        return None
    fields = name.removesuffix(PART_SUFFIX).rsplit(".", 1)[-1].rsplit("-", 2)
    if len(fields) != 3 or not fields[1].isdigit():
        return None
    return fields[0], int(fields[1])


def _shortened(name: str) -> str:
    # File systems limit a name to 255 bytes, not characters: 80 Chinese ones are 240 bytes, too many beside the owner.
    # What is not valid in a name stays: a library that cannot open the final name should fail at the temporary one.
    kept = name[:120]
    while len(os.fsencode(kept)) > 120:
        kept = kept[:-1]
    return kept


def _host() -> str:
    return "".join(c if c.isalnum() else "_" for c in socket.gethostname())[:32] or "host"
