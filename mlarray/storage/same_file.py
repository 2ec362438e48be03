"""Does a name still belong to the file that was opened?

A file that is not mapped is opened anew by blosc2, by its name, for every chunk. Had it been replaced meanwhile, a patch would
mix two files. Its name is therefore looked at after each read. Device, inode and time of change tell one file from another, but
a number that has become free is given away again, and clocks of file systems are coarse (4 ms): the file is held open, which
keeps its number taken. One that was moved away and back again shows by the time its names changed; so does one that got another
link or owner, and as the two look alike, the read is done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mlarray.errors import FormatError
from mlarray.storage.frame import FrameHeader, Version, open_to_read, read_header, replaced, version_in

ATTEMPTS = 20
_T = TypeVar("_T")


def of_one_file(path: Path, opened: Callable[[FrameHeader], _T]) -> _T:
    """Open a file that may be replaced at the same time; what is returned is of the one whose header was read.

    Parameters
    ----------
    path : Path
        Its name.
    opened : callable
        ``opened(header)`` opens it. It is called again when the file was replaced meanwhile.

    Raises
    ------
    FormatError
        What ``opened`` raises while the file stays the same, or when it never does.
    """
    seen: Version | None = None
    for _ in range(ATTEMPTS):
        try:
            header = read_header(path)
        except FormatError as error:  # also where the file grows while its header is read
            problem: FormatError | None = error
            before, seen = seen, _now(path)
            if seen == before:
                raise
            continue
        try:
            result, problem = opened(header), None
        except FormatError as error:
            problem = error
        if _now(path) == header.version:
            if problem is not None:
                raise problem
            return result
    raise problem or replaced(path)


def _now(path: Path) -> Version | None:
    try:
        return version_in(os.stat(path))
    except FileNotFoundError:
        return None


class SameFile:
    """A file that is opened by its name again and again.

    Parameters
    ----------
    path : Path
        Its name.
    version : Version
        What was opened.

    Raises
    ------
    FormatError
        It has been replaced already.
    """

    def __init__(self, path: Path, version: Version) -> None:
        self._path = path
        self._version = version
        self._fd = -1
        if os.name == "posix":  # elsewhere a file that is open cannot be replaced
            try:
                self._fd = open_to_read(path)
            except OSError as error:
                raise replaced(path) from error
        self._named_at = self._look()

    def was_left_alone(self) -> bool:
        """Tell whether the name is certain to have belonged to the file since it was looked at before.

        Raises
        ------
        FormatError
            The name is that of another file now, or of none, or the file was changed.
        """
        before, self._named_at = self._named_at, self._look()
        return before == self._named_at

    def _look(self) -> int:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            raise replaced(self._path) from None
        if version_in(status) != self._version:
            raise replaced(self._path)
        return status.st_ctime_ns

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
