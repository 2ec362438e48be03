"""A file system that shows a folder and waits before it answers a read: a stand-in for network storage.

Runs in an environment with mfusepy, and needs libfuse and the right to mount. Reads pass through the page cache as on any
mount, so what was read once is fast; a limit on parallel requests makes a server that is busy.

    python slowfs.py FOLDER MOUNT --delay-ms 10 [--parallel 64]
"""

from __future__ import annotations

import argparse
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import mfusepy

READ_AHEAD_BYTES = 128 * 1024  # the default of NFS and FUSE mounts
PAGES_KEPT_SECONDS = 3600


class SlowFolder(mfusepy.Operations):
    """Read-only view of a folder.

    Parameters
    ----------
    folder : Path
        What is shown.
    delay_seconds : float
        Waited at every read request.
    parallel : int
        Read requests that are answered at once; more wait for their turn.
    """

    use_ns = True

    def __init__(self, folder: Path, delay_seconds: float, parallel: int) -> None:
        self._folder = str(folder)
        self._delay = delay_seconds
        self._turn = threading.Semaphore(parallel)

    def _at(self, path: str) -> str:
        return os.path.join(self._folder, path.lstrip("/"))

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        try:
            found = os.lstat(self._at(path))
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from error
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
        times = {f"st_{name}time": int(getattr(found, f"st_{name}time_ns")) for name in "amc"}
        return {name: getattr(found, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise mfusepy.FuseOSError(errno.EROFS)
        return os.open(self._at(path), flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with self._turn:
            time.sleep(self._delay)
            return os.pread(fh, size, offset)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


def main() -> None:
    """Serve until the mount is taken away."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("mount", type=Path)
    parser.add_argument("--delay-ms", type=float, required=True)
    parser.add_argument("--parallel", type=int, default=64)
    arguments = parser.parse_args()
    # The kernel sends no more than max_background announced reads at once, 12 by default; here the server sets the limit.
    mfusepy.FUSE(
        SlowFolder(arguments.folder.resolve(), arguments.delay_ms / 1000, arguments.parallel),
        str(arguments.mount),
        foreground=True,
        nothreads=False,
        ro=True,
        kernel_cache=True,
        max_readahead=READ_AHEAD_BYTES,
        max_background=256,
        congestion_threshold=256,
        attr_timeout=PAGES_KEPT_SECONDS,
        entry_timeout=PAGES_KEPT_SECONDS,
    )


if __name__ == "__main__":
    main()
