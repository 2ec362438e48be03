"""``mla convert --scheduler``: what a Dask cluster does is what the workers of one machine do, also when parts of it die."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.cli.dask_cluster import DaskCluster
from tests.cli.samples import MLA, ROOT, files_below, mla, ramp, write_nifti

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc of Linux"),
]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    running = DaskCluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.close()


@pytest.fixture
def cluster(shared: DaskCluster) -> DaskCluster:
    """Two workers that live; a test may kill them."""
    return shared.with_workers(2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cases of 4 MB of noise, two small ones, and one that is no image."""
    folder = tmp_path_factory.mktemp("data") / "data"
    rng = np.random.default_rng(0)
    for name in "abc":
        write_nifti(folder / f"{name}.nii", rng.integers(-999, 999, (128, 128, 128), dtype=np.int16))
    write_nifti(folder / "imagesTr" / "x_0000.nii.gz", ramp())
    write_nifti(folder / "labelsTr" / "x.nii.gz", ramp(dtype="float32"))
    (folder / "z.nii.gz").write_text("no image")
    return folder


def started(*arguments: object, cwd: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [*MLA, *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        text=True,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def unfinished(folder: Path, process: subprocess.Popen, *, name: str = "", other_than: int = 0) -> int:
    """Wait until a case is being written and return the process id of its writer."""
    deadline = time.monotonic() + 60
    while True:
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name.endswith(".part") and path.name.startswith(f".{name}") and ".mla." in path.name:
                pid = int(path.name.split("-")[-2])
                if pid != other_than:
                    return pid
        assert process.poll() is None
        assert time.monotonic() < deadline
        os.sched_yield()


def told(path: Path) -> list[dict]:
    """Return a report without times, in the order of names."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return sorted(lines, key=lambda line: line.get("case", "~"))


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def test_two_workers_of_a_cluster_give_the_bytes_and_the_report_of_two_local_ones(
    cluster: DaskCluster, data: Path, tmp_path: Path
) -> None:
    folders = []
    for name, options in (("here", ("--workers", "2")), ("there", ("--scheduler", cluster.file))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").symlink_to(data)
        done = mla("convert", "data", "-o", "out", "--json", "report", *options, cwd=tmp_path / name)
        assert done.returncode == 4, done.stderr
        folders.append(tmp_path / name)
    here, there = folders
    assert "2 workers, 1 thread each" in done.stderr
    assert f"on {cluster.address}." in done.stderr
    assert len(contents(there / "out")) == 5
    assert contents(here / "out") == contents(there / "out")
    assert told(here / "report") == told(there / "report")
    again = mla("convert", "data", "-o", "out", *options, cwd=there)
    assert again.returncode == 4
    assert "5 skipped" in again.stderr


def test_a_worker_that_is_killed_in_the_middle_of_a_case_loses_nothing(
    cluster: DaskCluster, data: Path, tmp_path: Path
) -> None:
    process = started("convert", data, "-o", "out", "--scheduler", cluster.address, "--json", "report", cwd=tmp_path)
    writer = unfinished(tmp_path / "out", process)
    killed = psutil.Process(writer).parent()
    assert killed is not None
    assert killed.pid in [worker.pid for worker in cluster.workers]
    child = psutil.Process(writer)
    killed.kill()
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 4, shown
    lines = told(tmp_path / "report")
    assert [line["case"] for line in lines if line.get("status") == "ok"] == [
        "a",
        "b",
        "c",
        "imagesTr/x_0000",
        "labelsTr/x",
    ]
    assert lines[-1]["failed_cases"] == ["z"]
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
    assert files_below(tmp_path / "out") == ["a.mla", "b.mla", "c.mla", "imagesTr/x_0000.mla", "labelsTr/x.mla"]
    mla("convert", data, "-o", tmp_path / "whole", "--workers", 2)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_case_whose_process_is_killed_twice_is_reported_and_the_others_finish(
    cluster: DaskCluster, data: Path, tmp_path: Path
) -> None:
    process = started("convert", data, "-o", "out", "--scheduler", cluster.address, "--json", "report", cwd=tmp_path)
    killed = 0
    for _ in range(2):
        killed = unfinished(tmp_path / "out", process, name="a", other_than=killed)
        os.kill(killed, signal.SIGKILL)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 4, shown
    lines = {line.get("case", ""): line for line in told(tmp_path / "report")}
    assert "Its process died twice (signal 9;" in lines["a"]["reason"]
    assert "probably out of memory" in lines["a"]["reason"]
    assert lines["a"]["failure"] == "worker"
    assert lines[""]["failed_cases"] == ["a", "z"]
    assert files_below(tmp_path / "out") == ["b.mla", "c.mla", "imagesTr/x_0000.mla", "labelsTr/x.mla"]
    assert all(worker.poll() is None for worker in cluster.workers)


def test_ctrl_c_stops_what_the_workers_do_and_leaves_no_partial_files(
    cluster: DaskCluster, data: Path, tmp_path: Path
) -> None:
    process = started("convert", data, "-o", "out", "--scheduler", cluster.address, "--json", "report", cwd=tmp_path)
    unfinished(tmp_path / "out", process)
    children = [child for worker in cluster.workers for child in psutil.Process(worker.pid).children()]
    assert children
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert process.returncode == 130
    assert "Traceback" not in shown
    assert not any(child.is_running() for child in children)
    assert [name for name in files_below(tmp_path) if ".part" in name] == []
    assert told(tmp_path / "report")[-1]["interrupted"] is True
    assert all(worker.poll() is None for worker in cluster.workers)


def test_a_lost_scheduler_is_one_line_and_an_exit_code_of_its_own(data: Path, tmp_path: Path) -> None:
    cluster = DaskCluster(tmp_path).with_workers(1)
    try:
        process = started("convert", data, "-o", "out", "--scheduler", cluster.file, "--json", "report", cwd=tmp_path)
        writer = unfinished(tmp_path / "out", process)
        child = psutil.Process(writer)
        cluster.scheduler.kill()
        _, shown = process.communicate(timeout=60)
        assert process.returncode == 7
        (line,) = [line for line in shown.splitlines() if "Error" in line]
        assert (
            line
            == f"Error: The Dask scheduler at {cluster.address} is gone. Run the same command again for what is left."
        )
        assert "Traceback" not in shown
        summary = told(tmp_path / "report")[-1]
        assert (summary["exit_code"], summary["lost"]) == (7, f"The Dask scheduler at {cluster.address} is gone.")
        assert "c" in summary["not_started"]
        psutil.wait_procs([child], timeout=20)
        assert [name for name in files_below(tmp_path / "out") if ".part" in name] == []
    finally:
        cluster.close()


def test_a_cluster_of_this_machine_lasts_as_long_as_the_run(tmp_path: Path) -> None:
    for name in "ab":
        write_nifti(tmp_path / "d" / f"{name}.nii", ramp())
    process = started("convert", "d", "--scheduler", "local", "--workers", 2, cwd=tmp_path)
    _, shown = process.communicate(timeout=600)  # it starts six processes, which took 100 s on a busy machine
    assert process.returncode == 0, shown
    assert "2 workers, 1 thread each" in shown
    assert "2 converted" in shown
    assert len(shown.splitlines()) == 4
    assert files_below(tmp_path / "d_mla") == ["a.mla", "b.mla"]
    assert files_below(tmp_path) == ["d/a.nii", "d/b.nii", "d_mla/a.mla", "d_mla/b.mla"]


def test_a_dry_run_on_a_cluster_writes_nothing_and_keeps_the_limit_of_memory(
    cluster: DaskCluster, data: Path, tmp_path: Path
) -> None:
    options = ("-o", "out", "--scheduler", cluster.address, "--memory", "60MB", "--json", "-", "--dry-run")
    done = mla("convert", data, *options, cwd=tmp_path)
    assert done.returncode == 5
    assert done.stdout.count("limit of 60 MB is too low") == 5
    assert files_below(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="other mounts need a superuser")
def test_workers_that_see_other_files_are_refused_before_any_work(
    shared: DaskCluster, data: Path, tmp_path: Path
) -> None:
    hidden = ("unshare", "-m", "bash", "-c", f'mount -t tmpfs none "{tmp_path}/out" && exec "$@"', "bash")
    (tmp_path / "out").mkdir()
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let us mount")
    cluster = shared.with_workers(1)
    cluster.start_worker(before=hidden)
    done = mla("convert", data, "-o", tmp_path / "out", "--scheduler", cluster.address)
    cluster.end_worker()
    assert done.returncode == 2
    assert f"does not see what this command writes into {tmp_path / 'out'}." in done.stderr
    assert "on a file system that they share" in done.stderr
    assert files_below(tmp_path) == []
