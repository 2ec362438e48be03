"""How does a finished file get its name? Written under a temporary one, flushed to disk, renamed.

A reader therefore sees the old file or the new one, never a part, and a reader that has the old one mapped keeps its data.
Temporary names start with a dot and end in ``.part``: what a killed writer leaves is never taken for a case. An image that is a
folder is handled alike: filled under a temporary name, then exchanged for what has the final one.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mlarray.errors import UsageError
from mlarray.storage.write_lock import WriteLock, replacing

PART_SUFFIX = ".part"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_BYTES = 1 << 16  # less than this free means that the last write failed for want of space
_FLUSHES = 8
_REMOVALS = 20
# From linux/fcntl.h, linux/fs.h and macOS's sys/stdio.h.
_AT_FDCWD, _RENAME_EXCHANGE, _RENAME_SWAP = -100, 2, 2
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
        self.path = part_path(final)
        self._open = True

    def publish(self, *, by: WriteLock | None = None) -> None:
        """Flush the file and give it its final name, replacing what was there unless that is being written, other than ``by``."""
        flush_to_disk(self.path)
        with replacing(self.final, by=by):
            os.replace(self.path, self.final)
        self._open = False
        flush_folder(self.final.parent)

    def abort(self) -> None:
        """Remove what was written; a no-op once published."""
        if self._open:
            self.path.unlink(missing_ok=True)
            self._open = False


class PendingFolder:
    """A folder that is being filled and has not got its final name yet.

    Parameters
    ----------
    final : Path
        The name it will get. What has that name stays until the new folder is complete on disk, and is then exchanged for it.

    Attributes
    ----------
    path : Path
        The folder to fill: beside the final one, unique to this process. It exists.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.path = part_path(final)
        self.path.mkdir()
        self._open = True

    def publish(self) -> None:
        """Flush every file of the folder and give it its final name, replacing what was there."""
        flush_tree(self.path)
        old = _placed(self.path, self.final)
        self._open = False
        flush_folder(self.final.parent)
        if old is not None:
            remove_tree(old)

    def abort(self) -> None:
        """Remove what was written; a no-op once published."""
        if self._open:
            remove_tree(self.path)
            self._open = False


@contextlib.contextmanager
def full_disk_told(path: Path | None) -> Iterator[None]:
    """Tell that a disk may be full, or a folder read-only, where blosc2 fails to write to ``path``, for it says nothing."""
    try:
        yield
    except RuntimeError as error:
        if path is None:
            raise
        if not may_write(path.parent):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(final_path(path))) from error
        free = shutil.disk_usage(path.parent).free
        told = OSError(
            f"{final_path(path)} could not be written ({str(error) or 'blosc2 does not say why'}); {free} bytes are free there. "
            "The disk, or what this user may write to it, is full."
        )
        told.errno = errno.ENOSPC
        raise told from error


def may_write(path: Path) -> bool:
    """Tell whether this process may write a file, or make files in a folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def refuse_unchangeable(path: Path) -> None:
    """Raise where a file that is there cannot be replaced by a changed copy.

    Raises
    ------
    PermissionError
        The file or its folder is read-only for this process.
    """
    if path.is_file() and not (may_write(path) and may_write(path.resolve().parent)):
        raise PermissionError(f"{path} cannot be changed: no permission to write it and its folder.")


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Put the name of the file into errors of the system that have none: those of writing to an open file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None or str(final_path(path)) in str(error):
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(final_path(path))) from error


def no_space(error: BaseException, path: Path) -> OSError | None:
    """Return the error that there is no space for ``path``, where that is why ``error`` was raised and it does not say so.

    C libraries report a full disk as errors of many kinds; so this is asked before what was written is removed.
    """
    if not isinstance(error, Exception):
        return None
    first: BaseException | None = error
    while first is not None:
        if isinstance(first, OSError) and first.errno in NO_SPACE:
            told = first is error and str(final_path(path)) in str(error)
            return None if told else OSError(first.errno, os.strerror(first.errno or 0), str(final_path(path)))
        first = first.__cause__ or first.__context__
    with contextlib.suppress(OSError):  # also for a remote folder, which the system does not know
        if shutil.disk_usage(path.parent).free < _FULL_BYTES:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final_path(path)))
    return None


def copy_file(source: Path, target: Path) -> None:
    """Copy bytes and permissions; errors name the file that ``target`` is to become."""
    try:
        shutil.copy(source, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(final_path(target))) from error


def write_file(final: Path, data: bytes) -> None:
    """Write a file in one step, or not at all; what is no file, such as a pipe, gets the bytes.

    Raises
    ------
    OSError
        With the name of the file.
    """
    if final.exists() and not final.is_file():
        with named_errors(final), final.open("wb") as stream:
            stream.write(data)
        return
    pending = PendingFile(final.resolve())
    try:
        with named_errors(final):
            pending.path.write_bytes(data)
            pending.publish()
    except BaseException:
        pending.abort()
        raise


def part_path(final: Path) -> Path:
    """Return a name beside ``final`` for what is not finished, unique to this process."""
    if not final.parent.is_dir():
        raise UsageError(f"The folder {final.parent} does not exist.", hint="Create it first.")
    # Host and process id make the name unique on shared storage and let a cleaner tell a dead owner from a living one.
    owner = f"{this_host()}-{os.getpid()}-{next(_counter)}"
    return final.parent / f".{_shortened(final.name)}.{owner}{PART_SUFFIX}"


def final_path(path: Path) -> Path:
    """Return the name that an unfinished file will get (the beginning of a long one), and other paths as they are."""
    if part_owner(path.name) is None:
        return path
    return path.with_name(path.name.removesuffix(PART_SUFFIX).rpartition(".")[0].removeprefix("."))


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; links are removed, not followed. Nothing there is fine.

    After an interrupt a thread may still be writing its last file into the folder: what appears meanwhile is removed too.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for left in reversed(range(_REMOVALS)):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if not path.exists():
                return
        except OSError:
            if not left:
                raise
        else:
            return


def flush_tree(folder: Path) -> None:
    """Force every file of a folder, and the folders themselves, to stable storage."""
    files = [path for path in _walk(folder) if path.is_file()]
    with ThreadPoolExecutor(_FLUSHES) as pool:  # a disk takes many flushes at once; one by one they take seconds
        for _ in pool.map(flush_to_disk, files):
            pass
    for path in (folder, *(path for path in _walk(folder) if path.is_dir())):
        flush_folder(path)


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time be in this block for a folder; the others wait.

    The lock is on the folder itself: it leaves no file behind and ends with its process. Systems and network storage that
    cannot lock a folder let everyone in.
    """
    try:
        import fcntl

        fd = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _placed(new: Path, final: Path) -> Path | None:
    """Give a folder its final name and return where the one that had it is now, or None where there was none."""
    if not os.path.lexists(final):
        try:
            os.replace(new, final)
        except OSError:
            if not os.path.lexists(final):  # else another process was faster
                raise
        else:
            return None
    return _exchanged(new, final)


def _exchanged(new: Path, old: Path) -> Path:
    """Give ``new`` the name ``old`` and return where the old one is now.

    Linux and macOS exchange two names in one step. Elsewhere, and on file systems that cannot, the old one is moved aside
    first; should the second step fail, it is moved back.
    """
    if _swap(new, old):
        return new
    aside = part_path(old)
    os.replace(old, aside)
    try:
        os.replace(new, old)
    except BaseException:
        os.replace(aside, old)
        raise
    return aside


def _swap(first: Path, second: Path) -> bool:
    """Exchange two names in one step where the system can, and say whether it did."""
    import ctypes

    names = (os.fsencode(first), os.fsencode(second))
    with contextlib.suppress(AttributeError, OSError):
        if sys.platform == "linux":
            return bool(ctypes.CDLL(None).renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
        if sys.platform == "darwin":
            return bool(ctypes.CDLL(None).renamex_np(*names, _RENAME_SWAP) == 0)
    return False


def flush_to_disk(path: Path) -> None:
    """Force the bytes of a file to stable storage."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        with named_errors(path):  # some systems tell only now that there was no space
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


def this_host() -> str:
    """Return the name of this machine as it stands in the names of unfinished files."""
    return "".join(c if c.isalnum() else "_" for c in socket.gethostname())[:32] or "host"
