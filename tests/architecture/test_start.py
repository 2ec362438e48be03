"""Starting is cheap: neither the import of the library nor the help of its command loads what reads files."""

import json
import subprocess
import sys

import pytest

from .tree import NOT_LOADED_BY_IMPORT

LIST_MODULES = "import json, sys; sys.stderr.write(chr(10) + json.dumps(sorted(sys.modules)))"
IMPORT = f"import mlarray\n{LIST_MODULES}"
COMMAND_HELP = f"""
import sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="mla")
sys.argv = ["mla", "--help"]
try:
    command.load()()
except SystemExit as done:
    assert not done.code, done.code
{LIST_MODULES}
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def loaded_by(program: str) -> set[str]:
    result = run(program)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stderr.splitlines()[-1]))


@pytest.mark.parametrize("program", [IMPORT, COMMAND_HELP], ids=["import mlarray", "mla --help"])
def test_nothing_that_reads_files_is_loaded(program: str) -> None:
    loaded = loaded_by(program)
    assert loaded & {"mlarray", "mlarray_convert"}
    assert {name.partition(".")[0] for name in loaded} & NOT_LOADED_BY_IMPORT == set()


def test_the_help_is_printed() -> None:
    assert "Usage: mla" in run(COMMAND_HELP).stdout


@pytest.mark.parametrize("library", ["blosc2", "nibabel", "h5py"])
def test_a_library_that_is_loaded_would_be_seen(library: str) -> None:
    assert library in loaded_by(f"import {library}\n{IMPORT}")
