"""The parts of the executor for clusters that need no cluster: what is refused, what is seen, a process apart."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from mlarray.errors import UsageError
from mlarray_convert.cluster.child import Child
from mlarray_convert.cluster.connection import address_of, refuse_misplaced, refuse_other_versions, share_of
from mlarray_convert.cluster.sight import Places, marked
from tests.cli.samples import ROOT, files_below
from tests.unit import pool_work

# --- a process apart ------------------------------------------------------------------------------------------------


@pytest.fixture
def child(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Child]:
    made = Child(getattr(pool_work, request.param), threads=3, folder=str(tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("child", ["square"], indirect=True)
def test_a_process_does_one_job_after_the_other(child: Child) -> None:
    assert [list(child.answers(job)) for job in (2, 3)] == [
        [("ready", None), ("share", 0.5), ("result", 4)],
        [("share", 0.5), ("result", 9)],
    ]
    child.close()
    assert not psutil.pid_exists(child.pid)


@pytest.mark.parametrize("child", ["thread_settings"], indirect=True)
def test_numerical_libraries_of_a_process_are_told_their_threads(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(child.answers(0))[-1] == ("result", os.environ.get("OPENBLAS_NUM_THREADS", "3"))


@pytest.mark.parametrize(
    ("child", "code"), [("square_or_die", -9), ("crash", -11), ("exit_quietly", 7)], indirect=["child"]
)
def test_a_process_that_dies_says_how(child: Child, code: int) -> None:
    with pytest.raises((EOFError, OSError)):
        list(child.answers(2))
    assert child.exit_code() == code


@pytest.mark.parametrize("child", ["touch_and_wait"], indirect=True)
def test_a_process_at_work_is_ended_by_an_exception_in_it(child: Child, tmp_path: Path) -> None:
    answers = child.answers(str(tmp_path / "begun"))
    assert next(answers) == ("ready", None)
    while not (tmp_path / "begun").exists():
        os.sched_yield()
    assert child.end() in (143, -signal.SIGTERM)
    with pytest.raises(EOFError):
        next(answers)


@pytest.mark.parametrize("child", ["print_and_answer"], indirect=True)
def test_what_a_library_prints_does_not_come_between_the_answers(child: Child) -> None:
    assert list(child.answers(1))[-1] == ("result", "in peace")


def test_a_process_whose_owner_dies_ends_too(tmp_path: Path) -> None:
    code = (
        "import os, sys; from mlarray_convert.cluster.child import Child; from tests.unit import pool_work;"
        f"child = Child(pool_work.square, threads=1, folder={str(tmp_path)!r}); print(child.pid, flush=True);"
        "list(child.answers(2)); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -9
    assert done.stderr == ""
    pid = int(done.stdout)
    if psutil.pid_exists(pid):
        psutil.wait_procs([psutil.Process(pid)], timeout=10)
    assert not psutil.pid_exists(pid)


# --- what a worker must see -----------------------------------------------------------------------------------------


def test_marks_stand_in_the_outermost_output_folders_while_the_run_lasts(tmp_path: Path) -> None:
    for name in ("out/a", "other"):
        (tmp_path / name).mkdir(parents=True)
    folders = tuple(tmp_path / name for name in ("out", "out/a", "other"))
    with marked(Places((), folders), "token") as sight:
        assert [Path(mark).parent for mark in sight.marks] == [tmp_path / "other", tmp_path / "out"]
        assert sight.problem() == ""
    assert files_below(tmp_path) == []


def test_a_dry_run_leaves_no_mark(tmp_path: Path) -> None:
    with marked(Places((), (tmp_path,), dry_run=True), "token") as sight:
        assert files_below(tmp_path) == []
        assert sight.problem() == ""


def test_what_another_machine_does_not_see_is_named(tmp_path: Path) -> None:
    source = tmp_path / "a.nii"
    source.write_bytes(b"1234")
    (tmp_path / "out").mkdir()
    with marked(Places((source, tmp_path), (tmp_path / "out",)), "token") as sight:
        assert sight.sources == ((str(source), 4), (str(tmp_path), -1))
        assert sight._problem() == ""
        assert replace(sight, token="of another run")._problem() == (
            f"does not see what this command writes into {tmp_path / 'out'}"
        )
        source.write_bytes(b"12345")
        assert sight._problem() == f"has another file under the name {source} (5 bytes instead of 4)"
        source.unlink()
        assert sight._problem() == f"cannot read {source} (No such file or directory)"
        gone = replace(sight, folder=str(tmp_path / "elsewhere"))
        assert gone.problem() == f"has no folder {tmp_path / 'elsewhere'}, where the command was started"


def test_relative_paths_start_where_the_command_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.nii").write_bytes(b"1234")
    monkeypatch.chdir(tmp_path)
    with marked(Places((Path("a.nii"),), (Path(),)), "token") as sight:
        monkeypatch.chdir("/")
        assert sight.problem() == ""
        monkeypatch.chdir(tmp_path)


# --- what is refused ------------------------------------------------------------------------------------------------


def versions(scheduler: str | None, **workers: str | None) -> SimpleNamespace:
    """A client that says what is installed where."""
    sides = {name: {"packages": {"mlarray": version}} for name, version in workers.items()}
    found = {
        "client": {"packages": {"mlarray": "1.0"}},
        "scheduler": {"packages": {"mlarray": scheduler}},
        "workers": sides,
    }
    return SimpleNamespace(get_versions=lambda packages: found)


def test_one_version_everywhere_is_fine() -> None:
    refuse_other_versions(versions("1.0", a="1.0", b="1.0"))


def test_workers_without_the_package_are_refused_by_name_with_the_command_that_helps() -> None:
    with pytest.raises(UsageError, match="cannot be imported there: worker a, worker b") as caught:
        refuse_other_versions(versions("1.0", a=None, b=None, c="1.0"))
    assert caught.value.hint == "Install it in the environment of the cluster: pip install mlarray==1.0"
    with pytest.raises(UsageError, match="cannot be imported there: the scheduler"):
        refuse_other_versions(versions(None, a="1.0"))


def test_other_versions_are_refused_and_a_long_list_is_cut() -> None:
    with pytest.raises(
        UsageError, match=r"another version of mlarray than here \(1\.0\): worker a \(0\.9\), .* and 2 more"
    ):
        refuse_other_versions(versions("1.0", **dict.fromkeys("abcde", "0.9")))


def seen(problem: str = "", *, host: str = "node1", memory: int = 10**10, group: str = "") -> SimpleNamespace:
    return SimpleNamespace(problem=problem, host=host, memory_bytes=memory, shared_with=group)


def test_a_worker_that_sees_other_files_is_refused_in_one_sentence() -> None:
    refuse_misplaced({"tcp://a": seen()})
    with pytest.raises(UsageError) as caught:
        refuse_misplaced({"tcp://a": seen(), "tcp://b": seen("cannot read x"), "tcp://c": seen("cannot read y")})
    assert (
        caught.value.message == "The Dask worker tcp://b on node1 cannot read x; the same or another problem on 1 more."
    )


@pytest.mark.parametrize("content", ["", "[]", "{}", "no json"])
def test_a_file_that_is_no_scheduler_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(UsageError, match=r"s\.json is no scheduler file"):
        address_of(str(tmp_path / "s.json"))


def test_the_address_of_a_scheduler_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"address": "tcp://a:1"}')
    assert address_of(str(tmp_path / "s.json")) == "tcp://a:1"
    assert address_of("tcp://b:2") == "tcp://b:2"


# --- memory of a case -----------------------------------------------------------------------------------------------


def share(workers: dict[str, tuple[int, int]], seen_of: dict[str, SimpleNamespace], memory: int | None = None) -> tuple:
    info = {key: {"nthreads": threads, "memory_limit": limit} for key, (threads, limit) in workers.items()}
    client = SimpleNamespace(scheduler_info=lambda: {"workers": info})
    found = share_of(seen_of, client, memory, place="tcp://x")
    return found.workers, found.threads, found.memory_bytes


def test_workers_of_one_machine_share_its_memory() -> None:
    assert share({"a": (2, 0), "b": (2, 0)}, {"a": seen(), "b": seen()}) == (4, 1, 2 * 10**9)


def test_workers_with_a_group_of_their_own_do_not() -> None:
    assert share({"a": (1, 0), "b": (1, 0)}, {"a": seen(group="x"), "b": seen(group="y")}) == (2, 1, 8 * 10**9)


def test_the_limit_that_dask_has_for_a_worker_counts_too_and_the_least_worker_decides() -> None:
    two = {"a": seen(host="node1"), "b": seen(host="node2", memory=10**11)}
    assert share({"a": (1, 10**10), "b": (4, 4 * 10**9)}, two) == (5, 1, 8 * 10**8)


def test_memory_that_is_asked_for_is_kept() -> None:
    assert share({"a": (1, 0)}, {"a": seen()}, 123) == (1, 1, 123)


# --- without Dask ---------------------------------------------------------------------------------------------------


def test_without_dask_the_command_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "a.nii").touch()
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['dask', 'distributed']));"
        f"from mlarray_convert.cli import run; sys.exit(run(['convert', {str(tmp_path / 'a.nii')!r}, '--scheduler', 'local']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "Error: --scheduler needs Dask, which is not installed. Install it: pip install 'mlarray[dask]'\n"
    )


def test_a_scheduler_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.nii").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "300ms"}
    command = [sys.executable, "-m", "tests.cli.mla", "convert", str(tmp_path / "a.nii"), "--scheduler", "127.0.0.1:9"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: No Dask scheduler answers at tcp://127.0.0.1:9: ")
    assert done.stderr.count("\n") == 1
