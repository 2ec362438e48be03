"""Mounting and unmounting the slow file system, and the reason where that cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

HERE = Path(__file__).parent
_SECONDS = 15


def why_no_fuse() -> str:
    """Return why nothing can be mounted here, or an empty text."""
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    if find_library("fuse") is None:
        return "libfuse 2 is not installed (Debian: apt-get install libfuse2)"
    if os.geteuid() != 0 and not shutil.which("fusermount"):
        return "fusermount is not installed (Debian: apt-get install fuse)"
    return ""


@contextmanager
def mounted(python: Path, folder: Path, mount: Path, *, delay_ms: float, parallel: int = 64) -> Iterator[Path]:
    """Show ``folder`` at ``mount`` with a delay per read request, until the block ends."""
    mount.mkdir(parents=True, exist_ok=True)
    command = [str(python), str(HERE / "slowfs.py"), str(folder), str(mount)]
    options = ["--delay-ms", str(delay_ms), "--parallel", str(parallel)]
    environment = {**os.environ, "FUSE_LIBRARY_PATH": find_library("fuse") or ""}
    server = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + _SECONDS
        while not os.path.ismount(mount):
            if server.poll() is not None or time.monotonic() > end:
                assert server.stderr is not None
                server.kill()
                raise RuntimeError(f"mounting failed: {server.stderr.read().strip()[-500:]}")
            time.sleep(0.05)
        yield mount
    finally:
        unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount", "-u", "-z"]
        subprocess.run([*unmount, str(mount)], check=False, capture_output=True)
        try:
            server.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
