"""An environment of their own for packages that the test environment does not have, or has in another version."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

INSTALL_TIMEOUT_SECONDS = 300


def make_environment(folder: Path, what: str, *installed: Sequence[str], check: str = "") -> Path:
    """Make an environment and return its interpreter; skip the test where the packages cannot be had.

    Parameters
    ----------
    folder : Path
        Where to make it.
    what : str
        What is installed, for the reason of a skip.
    *installed : sequence of str
        Arguments of ``pip install``, one call each.
    check : str
        A program that must run afterwards, such as an import.
    """
    venv.create(folder, with_pip=True, symlinks=sys.platform != "win32")
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    commands = [[*pip, *arguments] for arguments in installed] + ([[python, "-c", check]] if check else [])
    try:
        for command in commands:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                timeout=INSTALL_TIMEOUT_SECONDS,
                stdin=subprocess.DEVNULL,
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{what} cannot be installed here: {str(error.stderr)[-300:]}")
    return python
