"""The script that a bare machine runs does what the README tells a person to do."""

import os
import re
import shutil
import subprocess

import pytest

from .tree import ROOT

SCRIPT = ROOT / ".ci" / "run"


def test_the_script_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"-m (pytest[^<\n]*)", SCRIPT.read_text(encoding="utf-8"))
    assert len(commands) == 1
    assert commands[0].strip() in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for machines with bash")
def test_the_script_is_executable_and_parses() -> None:
    assert os.access(SCRIPT, os.X_OK)
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for machines with bash")
def test_without_a_recent_python_the_script_says_so(tmp_path: object) -> None:
    environment = {"PATH": str(tmp_path), "PYTHON": ""}
    result = subprocess.run(
        [str(shutil.which("bash")), str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "Python 3.11 or newer" in result.stderr
