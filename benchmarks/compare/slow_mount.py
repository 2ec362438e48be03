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
    if not shutil.which("cc"):
        return "there is no C compiler (Debian: apt-get install gcc libc6-dev)"
    if os.geteuid() != 0 and not shutil.which("fusermount"):
        return "fusermount is not installed (Debian: apt-get install fuse)"
    return ""


def compiled(folder: Path) -> Path:
    """Compile the server into ``folder``, unless a newer one is there, and return it."""
    source, server = HERE / "slowfs.c", folder / "slowfs"
    if not server.exists() or server.stat().st_mtime < source.stat().st_mtime:
        command = ["cc", "-O2", "-pthread", str(source), "-o", str(server), f"-l:{find_library('fuse')}"]
        subprocess.run(command, check=True)
    return server


@contextmanager
def mounted(server: Path, folder: Path, mount: Path, *, delay_ms: float, parallel: int = 64) -> Iterator[Path]:
    """Show ``folder`` at ``mount`` with a delay per read request, until the block ends."""
    mount.mkdir(parents=True, exist_ok=True)
    command = [str(server), str(folder), str(mount), str(delay_ms), str(parallel)]
    server_process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + _SECONDS
        while not os.path.ismount(mount):
            if server_process.poll() is not None or time.monotonic() > end:
                assert server_process.stderr is not None
                server_process.kill()
                raise RuntimeError(f"mounting failed: {server_process.stderr.read().strip()[-500:]}")
            time.sleep(0.05)
        yield mount
    finally:
        unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount", "-u", "-z"]
        subprocess.run([*unmount, str(mount)], check=False, capture_output=True)
        try:
            server_process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            server_process.kill()
            server_process.wait()
