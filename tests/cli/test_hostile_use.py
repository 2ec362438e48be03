"""Odd names, odd files, odd surroundings: one line that says what is wrong, and the other cases go on."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from mlarray import MLArray, open_source
from mlarray.errors import FormatError, UsageError
from mlarray.formats.table import FORMATS
from mlarray_convert import convert
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from mlarray_convert.request import parse_patch_size
from tests.cli.samples import MLA, ROOT, files_below, mla, ramp, write_nifti

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes, signals and names of Linux")


def test_a_pipe_among_the_images_is_one_failed_case(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    os.mkfifo(tmp_path / "d" / "b.nii.gz")
    done = mla("convert", tmp_path / "d")
    assert done.returncode == 4
    assert "b.nii.gz is a pipe, a socket or a device, not a file" in done.stderr
    assert files_below(tmp_path / "d_mla") == ["a.mla"]
    told = mla("info", tmp_path / "d" / "b.nii.gz")
    assert (told.returncode, told.stdout) == (4, "")


@pytest.mark.parametrize("by_name", [True, False])
def test_pipes_and_links_that_lead_nowhere_do_not_pass_and_the_others_are_verified(
    tmp_path: Path, capfd: pytest.CaptureFixture, *, by_name: bool
) -> None:
    for name in ("a.mla", "z.mla"):
        MLArray(ramp()).save(tmp_path / name)
    os.mkfifo(tmp_path / "b.mla")
    os.symlink("nowhere", tmp_path / "c.npy")
    os.symlink("d.npy", tmp_path / "d.npy")
    given = sorted(tmp_path.iterdir()) if by_name else [tmp_path]
    assert run(["verify", *map(str, given)]) == ExitCode.VERIFICATION
    told = capfd.readouterr().out
    words = [line.split()[0] for line in told.splitlines() if not line.startswith(" ")]
    assert words == ["ok", "failed", "failed", "failed", "ok"]
    assert "b.mla is a pipe" in told
    assert "c.npy is a link that leads to no file" in told


def test_a_file_of_no_known_format_does_not_pass_and_the_others_are_verified(tmp_path: Path) -> None:
    MLArray(ramp()).save(tmp_path / "a.mla")
    (tmp_path / "notes.txt").write_text("hello")
    done = mla("verify", tmp_path / "notes.txt", tmp_path / "a.mla")
    assert done.returncode == 6
    assert [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == ["failed", "ok"]
    assert "notes.txt is of no format that can be read" in done.stdout


def test_one_file_that_cannot_be_opened_does_not_end_the_verification_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.mla", "z.mla"):
        MLArray(np.zeros((3, 4))).save(tmp_path / name)
    (tmp_path / "z.mla").rename(tmp_path / "m::n.mla")
    MLArray(np.zeros((3, 4))).save(tmp_path / "z.mla")
    done = mla("verify", tmp_path)
    assert done.returncode == 6
    assert [line.split()[0] for line in done.stdout.splitlines() if ".mla  (" in line] == ["ok", "failed", "ok"]


@pytest.mark.parametrize("arguments", [["convert", ""], ["convert", "a.nii", "-o", ""], ["info", ""], ["verify", ""]])
def test_an_empty_path_is_wrong_use_and_not_the_current_folder(tmp_path: Path, arguments: list[str]) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    done = mla(*arguments, cwd=tmp_path / "d")
    assert done.returncode == 2
    assert "the path is empty" in done.stderr
    assert files_below(tmp_path) == ["d/a.nii"]


def test_an_empty_path_from_python_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="A path is empty"):
        convert("")
    with pytest.raises(UsageError, match="A path is empty"):
        convert("a.nii", "")


@pytest.mark.parametrize("text", ["²", "1,²", "٣", "1_0", "1.5", "-3", ""])
def test_a_patch_size_is_made_of_plain_digits(text: str) -> None:
    with pytest.raises(UsageError, match="is not a patch size"):
        parse_patch_size(text)


@pytest.mark.parametrize("place", ["missing/report.json", "d"])
def test_a_report_that_cannot_be_written_is_wrong_use_before_anything_is_converted(tmp_path: Path, place: str) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    done = mla("convert", "d", "--json", place, cwd=tmp_path)
    assert done.returncode == 2
    assert f"The report '{place}' cannot be written" in done.stderr
    assert files_below(tmp_path) == ["d/a.nii"]


def test_an_interrupt_while_workers_start_shows_no_traceback_of_theirs(tmp_path: Path) -> None:
    for name in "abcd":
        write_nifti(tmp_path / "d" / f"{name}.nii", ramp())
    process = subprocess.Popen(
        [*MLA, "convert", str(tmp_path / "d")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = []
    while not workers:
        assert process.poll() is None
        workers = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert "nothing to convert" not in told


def test_a_time_series_of_several_channels_is_read_back_from_nifti_as_it_was(tmp_path: Path) -> None:
    image = np.arange(2 * 3 * 4 * 5 * 6, dtype=np.int16).reshape(2, 3, 4, 5, 6)
    MLArray(image, axes="tczyx", spacing=(2, 1, 1), origin=(0, 0, 0), direction=np.eye(3)).save(tmp_path / "a.mla")
    done = mla("convert", "a.mla", "-o", "b.nii.gz", "--verify", "full", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert mla("verify", "b.nii.gz", "--against", "a.mla", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&- 2>&- <&-"])
def test_messages_that_cannot_be_shown_do_not_end_the_work(tmp_path: Path, redirection: str) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    shell = ("bash", "-c", f'exec "$@" {redirection}', "bash")
    assert mla("convert", tmp_path / "d", before=shell).returncode == 0
    assert files_below(tmp_path / "d_mla") == ["a.mla"]


def as_a_user() -> tuple[str, ...]:
    """Return what stands before a command so that permissions of files hold, also for a superuser."""
    if os.geteuid():
        return ()
    limits = "-dac_override,-dac_read_search"
    command = ("setpriv", "--bounding-set", limits, "--inh-caps", limits)
    if shutil.which("setpriv") is None or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("nothing is forbidden to this user")
    return command


def test_what_may_not_be_read_is_a_failed_case_and_the_others_go_on(tmp_path: Path) -> None:
    for name in ("a.nii", "closed/b.nii", "secret.nii"):
        write_nifti(tmp_path / "d" / name, ramp())
    MLArray(ramp()).save(tmp_path / "d" / "c.mla")
    before = as_a_user()
    (tmp_path / "d" / "secret.nii").chmod(0)
    (tmp_path / "d" / "closed").chmod(0)
    try:
        done = mla("convert", tmp_path / "d", "-o", tmp_path / "out", before=before)
        verified = mla("verify", tmp_path / "d", before=before)
    finally:
        (tmp_path / "d" / "closed").chmod(0o700)
    assert done.returncode == 4
    assert f"d/closed: Permission denied: {tmp_path}/d/closed" in done.stderr
    assert "d/secret.nii: Permission denied" in done.stderr
    assert files_below(tmp_path / "out") == ["a.mla"]
    assert verified.returncode == 6
    assert verified.stdout.count("failed") == 2
    assert verified.stdout.count("ok ") == 2


def test_a_link_that_leads_nowhere_is_a_failed_case_that_says_so(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    (tmp_path / "d" / "b.nii").symlink_to("/nowhere/b.nii")
    (tmp_path / "d" / "self.nii").symlink_to("self.nii")
    done = mla("convert", tmp_path / "d")
    assert done.returncode == 4
    assert "b.nii: it is a link to /nowhere/b.nii, which is not there." in done.stderr
    assert "1 converted" in done.stderr
    assert "2 failed" in done.stderr


def test_a_file_without_bytes_is_called_empty_in_every_format(tmp_path: Path) -> None:
    suffixes = [row.suffixes[0] for row in FORMATS if not row.folders]
    for number, suffix in enumerate(suffixes):
        (tmp_path / f"{number}{suffix}").touch()
        with pytest.raises(FormatError, match=rf"{number}{suffix} is empty: it has 0 bytes"):
            open_source(tmp_path / f"{number}{suffix}")
