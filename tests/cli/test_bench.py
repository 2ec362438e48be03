"""``mla bench`` as people use it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from tests.cli.samples import MLA, ROOT, mla, write_nifti

QUICK = ["--patch-size", "12", "--seconds", "1.5", "--readers", "1"]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    return write_nifti(tmp_path / "case.nii.gz", rng.normal(0, 90, (30, 28, 26)).astype(np.int16))


def test_a_table_and_one_setting_are_printed(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "s").mkdir()
    options = [*QUICK, "--scratch", str(tmp_path / "s"), "--plot", str(tmp_path / "a.html")]
    assert run(["bench", str(image), *options, "--json", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    head = next(line for line in lines if line.startswith("#"))
    assert "candidate" in head
    assert "warm x 1" in head
    assert any(line.startswith(("1  nnunet LZ4HC-5", "1   nnunet LZ4HC-5")) for line in lines)
    assert any("numpy memmap" in line for line in lines)
    assert lines[-2].startswith("  Python   MLArray(array, ")
    assert lines[-1].startswith("  convert  mla")
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["data"]["volumes"][0]["name"] == "case.nii.gz"
    assert "<svg" in (tmp_path / "a.html").read_text()
    assert list((tmp_path / "s").iterdir()) == []


def test_json_on_standard_output_is_json_alone(image: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(["bench", str(image), *QUICK, "--json", "-", "--codec", "ZSTD-3"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out, parse_constant=pytest.fail)
    assert {one["codec"] for one in told["candidates"]} <= {"LZ4HC-5", "ZSTD-3"}
    assert "numpy memmap" in shown.err


def test_the_callers_layout_takes_part(image: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(["bench", str(image), *QUICK, "--chunk-size", "16", "--block-size", "8,8,8", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["candidates"][1]["layout"], told["candidates"][1]["chunks"]) == ("yours", [16, 16, 16])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "One of a file, a folder and synthetic data"),
        (["--synthetic", "ct", "--readers", "two"], "--readers takes one number or several"),
        (["--synthetic", "ct", "--chunk-size", "8"], "without block_size"),
        (["--synthetic", "ct", "--plot", "a.pdf"], "is written as .html or .png"),
        (["--synthetic", "ct", "--plot", "nowhere/a.html"], "does not exist"),
        (["--synthetic", "ct", "--json", "nowhere/a.json"], "does not exist"),
        (["--synthetic", "ct", "--codec", "LZMA"], "is no codec"),
        (["missing.nii"], "There is no file or folder"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(options: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert run(["bench", *options]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.slow
def test_several_readers_work_from_the_command_line(image: Path) -> None:
    result = mla("bench", image, "--patch-size", 12, "--seconds", 3, "--readers", "1,2", "--json", "-")
    assert result.returncode == 0, result.stderr
    assert "warm_2" in json.loads(result.stdout)["rounds"][0]["seconds_per_patch"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupted_run_leaves_nothing(image: Path, tmp_path: Path, name: str) -> None:
    scratch = tmp_path / "s"
    scratch.mkdir()
    command = [*MLA, "bench", str(image), "--scratch", str(scratch), "--seconds", "60", "--patch-size", "12"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while not list(scratch.glob("*/candidate_1_0.mla")):
            assert process.poll() is None
        process.send_signal(getattr(signal, name))
        _, error = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert error.splitlines()[-1] == "Interrupted."
    assert list(scratch.iterdir()) == []
