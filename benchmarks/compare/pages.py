"""How does a file come from the disk once more? Its pages leave the memory of the system."""

from __future__ import annotations

import os


def drop(path: str) -> None:
    """Drop the pages of a file, which nobody may have mapped."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
