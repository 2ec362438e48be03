"""``mla convert`` as a process: signals, logs, terminals, limits of the system, two at a time."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import psutil
import pytest

from mlarray import MLArray
from tests.cli.samples import AFFINE, MLA, ROOT, files_below, mla, ramp, write_nifti

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals, /proc and limits of Linux")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four cases of 64 MB of noise: some seconds of work each."""
    folder = tmp_path_factory.mktemp("large") / "data"
    rng = np.random.default_rng(0)
    noise = rng.integers(-999, 999, (256, 256, 512), dtype=np.int16)
    for name in "abcd":
        write_nifti(folder / f"{name}.nii", noise)
    return folder


def started(*arguments: object, **options: object) -> subprocess.Popen:
    return subprocess.Popen([*MLA, *map(str, arguments)], cwd=ROOT, env=ENVIRONMENT, text=True, **options)  # type: ignore[call-overload]


def wait_for_a_partial_file(folder: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not (
        folder.is_dir() and any(path.name.endswith(".part") and ".mla." in path.name for path in folder.iterdir())
    ):
        assert process.poll() is None
        assert time.monotonic() < deadline
        os.sched_yield()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_within_5_seconds_without_orphans_or_partial_files(
    large: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    process = started(
        "convert", large, "-o", out, "--json", tmp_path / "j", stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for_a_partial_file(out, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    began = time.monotonic()
    os.killpg(process.pid, number) if number is signal.SIGINT else process.send_signal(number)
    _, told = process.communicate(timeout=10)
    assert time.monotonic() - began < 5
    assert process.returncode == 130
    assert "Traceback" not in told
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert not any(".part" in name for name in files_below(out))
    summary = json.loads((tmp_path / "j").read_text().splitlines()[-1])
    assert (summary["interrupted"], summary["exit_code"]) == (True, 130)
    assert len(summary["not_started"]) + summary["ok"] == 4


@pytest.mark.slow
def test_after_a_kill_the_next_run_cleans_up_and_converts_only_what_is_missing(large: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert mla("convert", large / "a.nii", "-o", out).returncode == 0
    before = (out / "a.mla").stat().st_mtime_ns
    process = started("convert", large, "-o", out, "--workers", 1, stderr=subprocess.PIPE)
    wait_for_a_partial_file(out, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    for victim in (psutil.Process(process.pid), *workers):
        victim.kill()
    process.communicate(timeout=10)
    psutil.wait_procs(workers, timeout=10)
    assert any(".part" in name for name in files_below(out))
    second = mla("convert", large, "-o", out, "--json", "-")
    assert second.returncode == 0
    assert "left by an interrupted run" in second.stderr
    statuses = {row.get("case"): row.get("status") for row in map(json.loads, second.stdout.splitlines())}
    assert statuses["a"] == "skipped"
    assert (out / "a.mla").stat().st_mtime_ns == before
    assert files_below(out) == ["a.mla", "b.mla", "c.mla", "d.mla"]


def test_a_log_file_gets_plain_lines(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    done = mla("convert", tmp_path / "d")
    assert done.returncode == 0
    assert done.stdout == ""
    assert all(c.isprintable() or c == "\n" for c in done.stderr)
    assert done.stderr.splitlines()[1].startswith("[1/1] ok      a  5 x 6 x 7 int16")


def test_a_terminal_gets_a_bar_of_cases_and_bytes(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp((64, 64, 64)))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = started("convert", tmp_path / "d", stderr=theirs, stdout=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # Linux ends a terminal whose other side is closed with an error
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "0/1 case " in text
    assert "\r" in text
    assert "1 converted" in text


def test_the_first_line_says_where_the_outputs_go(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    one = mla("convert", tmp_path / "d" / "a.nii").stderr.splitlines()[0]
    assert f", to {tmp_path / 'd' / 'a.mla'}; " in one
    write_nifti(tmp_path / "d" / "inner" / "b.nii", ramp())
    both = mla("convert", tmp_path / "d").stderr.splitlines()[0]
    assert both.startswith("2 cases, ")
    assert f", to {tmp_path / 'd_mla'}/; " in both


def test_a_case_whose_warning_was_shown_before_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        image = nib.Nifti1Image(ramp(), AFFINE)
        image.header.set_qform(np.diag([9.0, 9.0, 9.0, 1.0]), code=1)
        (tmp_path / "d").mkdir(exist_ok=True)
        nib.save(image, tmp_path / "d" / f"{name}.nii")
    shown = mla("convert", tmp_path / "d", "--workers", "1").stderr
    assert shown.count("warning: sform and qform") == 1
    assert [line.endswith("(warnings as above)") for line in shown.splitlines() if " warned " in line] == [False, True]
    told = mla("convert", tmp_path / "d", "--workers", "1", "--if-exists", "overwrite", "-v").stderr
    assert told.count("warning: sform and qform") == 2
    assert "as above" not in told


def test_a_failure_names_its_file_once(tmp_path: Path) -> None:
    (tmp_path / "a.mgz").write_bytes(b"no image")
    (last,) = [line for line in mla("convert", tmp_path / "a.mgz").stderr.splitlines() if line.startswith("failed")]
    assert last.count(str(tmp_path / "a.mgz")) == 1


def test_nothing_to_convert_says_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert "no image was found" in mla("convert", tmp_path / "d").stderr
    for index in range(3):
        (tmp_path / "d" / f"CT.1.2.{index}").write_bytes(bytes(200))
    shown = mla("convert", tmp_path / "d").stderr
    assert "the 3 files that were found are of no format that can be read" in shown
    assert "DICOM" in shown


def test_a_log_does_not_flood_and_quiet_says_nothing(tmp_path: Path) -> None:
    for i in range(3):
        write_nifti(tmp_path / "d" / f"{i}.nii", ramp())
    assert mla("convert", tmp_path / "d", "--quiet").stderr == ""
    assert len(mla("convert", tmp_path / "d").stderr.splitlines()) == 5


def test_a_file_size_limit_ends_in_one_clear_failure(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_nifti(tmp_path / "d" / "big.nii", rng.integers(-9999, 9999, (100, 100, 100), dtype=np.int16))
    limit = ("bash", "-c", 'ulimit -f 300; exec "$@"', "bash")
    done = mla("convert", tmp_path / "d", before=limit)
    assert done.returncode in (5, 6)
    assert "Traceback" not in done.stderr
    assert files_below(tmp_path / "d_mla") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs a superuser")
def test_a_full_disk_is_told_as_such_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("this system does not let us mount")
    try:
        rng = np.random.default_rng(0)
        write_nifti(tmp_path / "d" / "big.nii", rng.integers(-9999, 9999, (120, 120, 120), dtype=np.int16))
        done = mla("convert", tmp_path / "d", "-o", disk / "out")
        assert done.returncode == 5
        assert "No space left" in done.stderr
        assert files_below(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_one_processor_means_one_worker_with_one_thread(tmp_path: Path) -> None:
    for i in range(3):
        write_nifti(tmp_path / "d" / f"{i}.nii", ramp())
    done = mla("convert", tmp_path / "d", before=("taskset", "-c", "0"))
    assert "1 worker, 1 thread each" in done.stderr
    assert "1 worker, 1 thread each" in mla("convert", tmp_path / "d", SLURM_CPUS_PER_TASK="1").stderr


@pytest.mark.slow
def test_on_one_processor_a_worker_starts_no_threads_of_its_own(large: Path, tmp_path: Path) -> None:
    process = started("convert", large / "a.nii", "-o", tmp_path, preexec_fn=lambda: os.sched_setaffinity(0, {0}))
    wait_for_a_partial_file(tmp_path, process)
    seen: list[int] = []
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            seen += [child.num_threads() for child in psutil.Process(process.pid).children(recursive=True)]
        os.sched_yield()
    # While blosc2 is imported it starts a few threads for a moment; they are gone before any work begins.
    assert sorted(seen)[int(0.9 * len(seen))] <= 2


def test_two_converters_of_the_same_case_leave_one_whole_file(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp((80, 80, 80)))
    processes = [
        started("convert", tmp_path / "d", "--if-exists", "overwrite", stderr=subprocess.PIPE) for _ in range(2)
    ]
    assert [process.communicate(timeout=60) and process.returncode for process in processes] == [0, 0]
    assert files_below(tmp_path / "d_mla") == ["a.mla"]
    assert mla("verify", tmp_path / "d_mla" / "a.mla", "--against", tmp_path / "d" / "a.nii").returncode == 0


def test_help_is_quick_and_loads_no_imaging_library() -> None:
    code = (
        "import sys; from mlarray_convert.cli import run; code = run(['--help']);"
        "heavy = {'numpy', 'blosc2', 'nibabel', 'SimpleITK', 'h5py', 'zarr', 'pydicom', 'tqdm', 'rich'};"
        "sys.exit(f'loaded {heavy & set(sys.modules)}' if heavy & set(sys.modules) else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    assert "convert" in done.stdout


def test_a_script_without_a_main_guard_is_told_what_to_do(tmp_path: Path) -> None:
    write_nifti(tmp_path / "a.nii", ramp())
    script = tmp_path / "script.py"
    script.write_text("import mlarray_convert\nmlarray_convert.convert('a.nii')\n")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 'call the converter below `if __name__ == "__main__":`' in done.stderr
    assert not (tmp_path / "a.mla").exists()


def test_a_python_script_converts_like_the_command(tmp_path: Path) -> None:
    write_nifti(tmp_path / "a.nii", ramp())
    script = tmp_path / "script.py"
    script.write_text(
        "from mlarray_convert import convert\n"
        "if __name__ == '__main__':\n"
        "    report = convert('a.nii', patch_size=4)\n"
        "    print(int(report.exit_code), report.outcomes[0].checksum[:5])\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0 xxh3:\n", "")
    with MLArray.open(tmp_path / "a.mla") as array:
        np.testing.assert_array_equal(array.to_numpy(), ramp().T)
