"""How is a file made cold? Its pages are dropped from the page cache, and whether that worked is looked up.

``posix_fadvise(DONTNEED)`` drops pages that are clean and that no process has mapped, so a file is flushed to disk first and
must not be open anywhere. Where the system has no such call (macOS, Windows) or keeps pages all the same (tmpfs, whose files
are nowhere else), there are no cold reads to measure.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

MOST_LEFT = 0.05  # a page or two of a small file may be read again at once by others


def flush(path: Path) -> None:
    """Write the pages of a file to its storage, so that they can be dropped."""
    descriptor = os.open(path, os.O_RDONLY if sys.platform != "win32" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def evict(path: Path) -> bool:
    """Drop the pages of a file from the page cache; return False where the system has no call for that."""
    if sys.platform != "linux":
        return False
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return True


def why_not_cold(path: Path) -> str:
    """Try to make a file cold and return why that did not work, or an empty text."""
    if sys.platform != "linux":
        return f"{sys.platform} has no call that drops a file from the page cache"
    flush(path)
    evict(path)
    left = cached_share(path)
    if left is None:
        return "this system does not tell which pages of a file are in memory"
    if left > MOST_LEFT:
        return f"{left:.0%} of a file stayed in memory after it was dropped, as on a file system that is held in memory"
    return ""


def cached_share(path: Path) -> float | None:
    """Return the share of the pages of a file that are in memory, from 0 to 1; None where the system does not tell."""
    size = path.stat().st_size
    if size == 0 or sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            return None
        try:
            if library.mincore(address, size, flags) != 0:
                return None
        finally:
            library.munmap(address, size)
    finally:
        os.close(descriptor)
    return sum(flag & 1 for flag in flags) / pages
