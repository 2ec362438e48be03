"""A part of the campaigns of benchmarks/kills.py and full_disk.py: killed, or without space, at each call that writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TIMEOUT_SECONDS = 240
KILLED, FULL, QUOTA = "0", "28", "122"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the calls of another system have other names"),
]
needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="needs a C compiler"
)


def outcomes(script: str, *arguments: str) -> dict[str, dict[str, int]]:
    """Run a campaign and return what it found, by deed."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row.pop("deed"): row for row in rows}


def test_a_process_killed_at_a_random_moment_leaves_the_old_the_new_or_says_it_is_unfinished(tmp_path: Path) -> None:
    found = outcomes("kills.py", str(tmp_path), "save", "create", "change", "Save", "--count", "8", "--seed", "3")
    assert sum(sum(states.values()) for states in found.values()) == 8


@needs_compiler
@pytest.mark.parametrize("deed", ["save", "create", "create-mapped", "change", "metadata"])
def test_a_process_killed_by_one_of_its_calls_leaves_nothing_that_reads_as_whole(tmp_path: Path, deed: str) -> None:
    found = outcomes("full_disk.py", str(tmp_path), deed, "--points", "8", "--errno", KILLED)
    assert found[deed].pop("wrong") == 0
    assert set(found[deed]) <= {"old, told", "unfinished, told", "new, told"}


@needs_compiler
@pytest.mark.parametrize("error", [FULL, QUOTA])
def test_a_full_disk_is_told_whichever_call_finds_no_space_and_the_old_file_stays(tmp_path: Path, error: str) -> None:
    deeds = (
        ["save", "change-mapped"] if error == QUOTA else ["save", "change", "metadata", "PatchWriter.nii.gz", "Save"]
    )
    found = outcomes("full_disk.py", str(tmp_path), *deeds, "--points", "4", "--errno", error)
    assert set(found) == set(deeds)
    for states in found.values():
        assert states["wrong"] == 0
        assert set(states) <= {"old, told", "absent, told", "new, told", "wrong"}


@needs_compiler
def test_a_new_file_on_a_full_disk_says_that_it_is_unfinished(tmp_path: Path) -> None:
    found = outcomes("full_disk.py", str(tmp_path), "create", "--points", "8")
    for states in found.values():
        assert states["wrong"] == 0
        assert states["unfinished, told"] >= 5


@needs_compiler
def test_a_conversion_and_a_benchmark_on_a_full_disk_end_with_one_line(tmp_path: Path) -> None:
    found = outcomes("full_disk.py", str(tmp_path), "convert.mha", "bench", "--points", "3")
    assert [states["wrong"] for states in found.values()] == [0, 0]
