"""Who else is writing this file?

Two writers of one file would lose what one of them wrote, or damage it. Who writes a file therefore holds an advisory lock on
it (``flock``). The lock leaves no file behind and ends with its process, however that ends; it hinders no reader. Who replaces
a file takes the lock for the moment of the replacement: two that replace it at once are no danger, for each file is complete.

Where there are no such locks (Windows, some network storage), writers are not kept apart.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from mlarray.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

PATIENCE_SECONDS = 0.2  # a replacement holds the lock for a moment
_STEP_SECONDS = 0.01
_TAKEN = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_LOCK_TABLE = Path("/proc/locks")


class WriteLock:
    """The right to write a file, for one writer at a time.

    Parameters
    ----------
    path : Path
        Its lock is taken, where it is a file.

    Raises
    ------
    UsageError
        Another writer has it; names it where the system tells.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        if _HAS_LOCKS:
            with contextlib.suppress(OSError):  # opening the file tells what is wrong with it
                self._fd = _locked(path, shared=False)
        if self._fd >= 0:
            _held.add(self)

    def covers(self, path: Path) -> bool:
        """Tell whether ``path`` is the name of the file that is locked."""
        try:
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), os.stat(path))
        except OSError:
            return False

    def release(self) -> None:
        """Let others write."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # also for copies of the descriptor that a fork made
        self.forget()

    def forget(self) -> None:
        """Close what a fork copied; the lock stays with the parent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.release()


@contextlib.contextmanager
def replacing(path: Path, *, by: WriteLock | None = None) -> Iterator[None]:
    """Replace a file in this block, if nobody else is writing it.

    Parameters
    ----------
    path : Path
        Of the file to be replaced, which need not exist.
    by : WriteLock, optional
        The lock of who replaces it.

    Raises
    ------
    UsageError
        It is being written.
    """
    fd = -1
    if _HAS_LOCKS and not (by is not None and by.covers(path)):
        # None is there, or it is no file, or may not be read: replacing it tells more.
        with contextlib.suppress(OSError):
            fd = _locked(path, shared=True)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _locked(path: Path, *, shared: bool) -> int:
    """Return a descriptor of the file that has the name ``path``, with the lock on it; an OSError where it cannot be locked."""
    until, collected = time.monotonic() + PATIENCE_SECONDS, False
    while True:
        fd = _opened(path, shared=shared)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except OSError as error:
            inode = os.fstat(fd).st_ino
            os.close(fd)
            if error.errno not in _TAKEN:
                raise
            if not collected and _holder(inode) == os.getpid():
                gc.collect()  # a handle that nobody can reach any more may have it
                collected = True
            elif time.monotonic() > until:
                raise _refused(path, inode) from None
            else:
                time.sleep(_STEP_SECONDS)
        else:  # it was replaced before it was locked
            os.close(fd)


def _opened(path: Path, *, shared: bool) -> int:
    flags = os.O_CLOEXEC | os.O_NONBLOCK
    if shared:
        return os.open(path, os.O_RDONLY | flags)
    try:
        return os.open(path, os.O_RDWR | flags)  # network storage locks what may be written only
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _refused(path: Path, inode: int) -> UsageError:
    pid = _holder(inode)
    who = {None: "another process", os.getpid(): "this process, with another handle"}.get(pid, f"process {pid}")
    return UsageError(
        f"{path} is being written by {who}.", hint="Wait until it is closed there, or write another file."
    )


def _holder(inode: int) -> int | None:
    """Return the process that holds the lock on a file, where Linux tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _LOCK_TABLE.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and int(fields[5].rpartition(":")[2]) == inode:
                return int(fields[4]) if int(fields[4]) > 0 else None
    return None


_held: weakref.WeakSet[WriteLock] = weakref.WeakSet()  # a fork copies their descriptors, which would keep the locks


def _forget_all() -> None:
    for lock in tuple(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
