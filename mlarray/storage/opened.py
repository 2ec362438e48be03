"""Is the file under this name still the one that was opened, and is all of it there?

blosc2 reads a memory map in C: where another program has cut the file, the process dies of SIGBUS. It writes by name: where
another file has taken the name, that one would be changed. Both are looked at before each call, which takes a microsecond and
leaves only the moment between the look and the call.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from mlarray.errors import FormatError


class OpenedFile(NamedTuple):
    """A file as it was when it was opened.

    Parameters
    ----------
    path : Path
        Its name then.
    device, inode : int
        Which file that was.
    nbytes : int
        How much of it is needed.
    """

    path: Path
    device: int
    inode: int
    nbytes: int

    @classmethod
    def of(cls, path: Path) -> OpenedFile:
        """Return what tells the file that has a name now."""
        status = os.stat(path)
        return cls(path, status.st_dev, status.st_ino, status.st_size)

    def refuse_shortened(self) -> None:
        """Raise when the file lost bytes that are needed.

        A file that was removed or replaced keeps its bytes as long as it is mapped.

        Raises
        ------
        FormatError
            With both sizes.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return
        if status.st_size < self.nbytes and (status.st_dev, status.st_ino) == (self.device, self.inode):
            raise FormatError(
                f"{self.path} was cut by another program after it was opened: {self.nbytes} bytes are needed, it has "
                f"{status.st_size}.",
                hint="Restore a copy, and let programs replace files instead of writing over them.",
            )

    def refuse_other(self) -> None:
        """Raise when the name is that of another file now, or of none.

        Raises
        ------
        FormatError
            Nothing may be written there.
        """
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != (self.device, self.inode):
            raise FormatError(
                f"{self.path} was replaced or removed while it was written.",
                hint="Find the other program that writes it, and make the file again.",
            )
