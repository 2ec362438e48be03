"""Worker processes without a framework: batches in order, nothing left behind, no death that hangs."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from mlarray.errors import UsageError, WorkerError
from mlarray.streaming import handover
from mlarray.streaming.batch import Batch
from mlarray.streaming.handover import HELD
from mlarray.streaming.loader import WorkerLoader

from . import stream_stand_ins as acts
from .stream_stand_ins import Acting, Numbers

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
FORK = "fork" if sys.platform != "win32" else "spawn"
SOON = 20.0


def values(batches: Iterable[Batch]) -> list[int]:
    return [int(batch["CT"][1, 0, 0, 0, 0]) for batch in batches]


def workers_of() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE or "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
    return found


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + SOON
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > deadline:
            return False
        os.sched_yield()
    return True


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert workers_of() == []


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_whoever_computes_them(workers: int) -> None:
    with WorkerLoader(Numbers(10), workers=workers, context=FORK) as loader:
        assert values(loader) == list(range(10))
        batches = list(loader)
    by = [batch.samples[0].copy for batch in batches]
    assert len(set(by)) == max(1, workers)
    assert all(by[k] == by[k % max(1, workers)] for k in range(10))
    assert [batch.samples[1].case for batch in batches] == [f"case_{k}" for k in range(10)]
    assert np.shares_memory(batches[4].samples[1].arrays["SEG"], batches[4]["SEG"])


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_start_in_every_way(context: str) -> None:
    if sys.platform == "win32" and context != "spawn":
        pytest.skip("no forkserver here")
    with WorkerLoader(Numbers(5), workers=2, context=context) as loader:
        assert values(loader) == [0, 1, 2, 3, 4]
    if context == "forkserver":
        from multiprocessing.forkserver import _forkserver  # type: ignore[attr-defined]

        _forkserver._stop()  # it would serve until this process ends


def test_an_epoch_that_is_set_reaches_the_workers_which_stay() -> None:
    stream = Numbers(4)
    with WorkerLoader(stream, workers=2, context=FORK) as loader:
        pids = {batch.samples[0].copy for batch in loader}
        stream.set_epoch(2)
        assert values(loader) == [2000, 2001, 2002, 2003]
        assert {batch.samples[0].copy for batch in loader} == pids


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_where_its_stream_says(workers: int) -> None:
    stream = Numbers(5)
    stream.first = 3
    with WorkerLoader(stream, workers=workers, context=FORK) as loader:
        assert values(loader) == [3, 4]
        stream.set_epoch(1)
        assert values(loader) == [1000, 1001, 1002, 1003, 1004]


def test_a_loop_that_is_left_and_begun_again_begins_at_the_beginning() -> None:
    with WorkerLoader(Numbers(20), workers=2, context=FORK, prefetch=3) as loader:
        for _ in range(3):
            for batch in loader:
                if int(batch["SEG"][0, 0, 0, 0, 0]) == 2:
                    break
        assert values(loader) == list(range(20))


def test_no_more_is_computed_ahead_than_asked_for() -> None:
    with WorkerLoader(Numbers(50), workers=2, context=FORK, prefetch=2) as loader:
        next(iter(loader))
        assert [len(worker.asked) for worker in loader._team] == [2, 2]


def test_a_batch_may_be_changed_and_outlives_its_loader() -> None:
    loader = WorkerLoader(Numbers(3), workers=1, context=FORK)
    first, *_ = loader
    loader.close()
    voxels = first["CT"]
    voxels += 1
    assert (first["CT"] == 1).all()
    assert first.samples[0].arrays["CT"].flags.writeable


@linux
def test_memory_of_a_batch_is_used_again_once_its_last_array_is_gone() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("mlarray-batch")

    addresses = set()
    with WorkerLoader(Numbers(40), workers=1, context=FORK, prefetch=2) as loader:
        for index, batch in enumerate(loader):
            addresses.add(batch["CT"].ctypes.data)
            if index == 2:
                view = batch.samples[1].arrays["SEG"][0, 1:3]
        assert len(addresses) <= 2 + HELD
        del batch
    assert (view == 2).all()
    assert mapped() == 1
    del view, loader
    gc.collect()
    assert mapped() == 0


@linux
def test_a_hoard_of_batches_does_not_use_up_the_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with WorkerLoader(Numbers(200), workers=2, context=FORK) as loader:
        batches = list(loader)
        assert len(os.listdir("/proc/self/fd")) - before < 100
    assert [int(batch["CT"][0, 0, 5, 5, 5]) for batch in batches] == list(range(200))


def test_without_room_for_shared_memory_arrays_go_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(handover, "_anonymous", full)
    with WorkerLoader(Numbers(6), workers=2, context=FORK) as loader:
        assert values(loader) == list(range(6))


@pytest.mark.parametrize("room", [0, 100_000])
def test_arrays_that_are_larger_than_expected_go_through_the_pipe(room: int) -> None:
    stream = Numbers(6)
    stream.batch_bytes = room
    with WorkerLoader(stream, workers=2, context=FORK) as loader:
        batches = list(loader)
    assert values(batches) == list(range(6))
    assert all((batch["SEG"] == index).all() for index, batch in enumerate(batches))
    batches[0]["CT"][...] = 7


@posix
@pytest.mark.parametrize(
    ("action", "ending"),
    [
        (acts.kill, r"exit code -9 \(SIGKILL\).*The system does so when memory runs out"),
        (acts.crash, r"exit code -11 \(SIGSEGV\).*With workers=0"),
        (acts.leave, "exit code 7"),
    ],
)
def test_a_worker_that_dies_is_an_error_that_names_it(action: Callable[[], None], ending: str) -> None:
    loader = WorkerLoader(Acting(action), workers=2, context=FORK)
    begun = time.monotonic()
    with pytest.raises(WorkerError, match=rf"Worker 1 of 2 \(process \d+\) ended with {ending}") as caught:
        list(loader)
    assert "at batch 3 of epoch 0" in str(caught.value) or "at batch 1 of epoch 0" in str(caught.value)
    assert time.monotonic() - begun < SOON
    loader.stream = Numbers(3)
    assert values(loader) == [0, 1, 2], "new workers start"


@posix
def test_a_sibling_that_dies_is_seen_while_another_one_computes_for_ever() -> None:
    loader = WorkerLoader(Acting(acts.wait_for_ever, 9), workers=2, context=FORK, prefetch=1)
    batches = iter(loader)
    for _ in range(3):
        next(batches)  # batch 3 is asked of worker 1, which will not answer
    loader._team[0].process.kill()
    with pytest.raises(WorkerError, match=r"Worker 0 of 2 .*exit code -9"):
        next(batches)


def test_an_exception_in_a_worker_is_raised_with_its_message_and_place() -> None:
    with WorkerLoader(Acting(acts.fail), workers=2, context=FORK) as loader:
        with pytest.raises(UsageError, match=r"The patch is too large\. Take a smaller one\.") as caught:
            list(loader)
        (note,) = caught.value.__notes__
        assert note.startswith("In worker 1 of 2 (process ")
        assert "at batch 3 of epoch 0:" in note
        assert "stream_stand_ins.py" in note
        loader.stream.set_epoch(1)
        assert int(next(iter(loader))["CT"][0, 0, 0, 0, 0]) == 1000, "the workers go on"


@pytest.mark.parametrize("action", [acts.fail_unpicklably, acts.fail_in_a_way_that_does_not_come_back])
def test_an_exception_that_does_not_pickle_is_told_by_its_text(action: Callable[[], None]) -> None:
    with (
        WorkerLoader(Acting(action), workers=2, context=FORK) as loader,
        pytest.raises(WorkerError, match=r"Batch 3 of epoch 0 failed: .*voxels are missing"),
    ):
        list(loader)


def test_in_place_an_exception_is_the_one_that_was_raised() -> None:
    with pytest.raises(UsageError, match="too large"):
        list(WorkerLoader(Acting(acts.fail), workers=0))


def test_two_iterations_at_once_are_refused() -> None:
    with WorkerLoader(Numbers(4), workers=1, context=FORK) as loader:
        first, second = iter(loader), iter(loader)
        assert values(batch for _, batch in zip(range(2), second, strict=False)) == [0, 1]
        assert values(batch for _, batch in zip(range(1), first, strict=False)) == [0]
        with pytest.raises(UsageError, match="iterated anew"):
            list(second)
        assert values(first) == [1, 2, 3]
        third = iter(loader)
        next(third)
    with pytest.raises(UsageError, match="was closed"):
        next(third)


def test_a_loader_that_is_no_longer_used_ends_its_workers() -> None:
    loader = WorkerLoader(Numbers(40), workers=2, context=FORK)
    for _ in loader:
        break
    pids = [one.pid for one in workers_of()]
    assert len(pids) == 2
    del loader, _
    gc.collect()
    assert gone(pids)


def test_an_exception_of_the_consumer_leaves_no_worker() -> None:
    def train() -> None:
        for batch in WorkerLoader(Numbers(40), workers=2, context=FORK):
            raise ZeroDivisionError(str(batch))

    with pytest.raises(ZeroDivisionError):
        train()


PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
from mlarray.streaming.loader import WorkerLoader
from tests.streaming.stream_stand_ins import Numbers, Acting, wait_for_ever

if __name__ == "__main__":
    loader = WorkerLoader({stream}, workers=2, context={context!r})
    batches = iter(loader)
    next(batches)
    print(*(worker.process.pid for worker in loader._team), flush=True)
    {then}
"""


def program(tmp_path: Path, then: str, context: str = FORK, stream: str = "Numbers(100000)") -> subprocess.Popen[str]:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM).format(root=str(ROOT), context=context, then=then, stream=stream))
    return subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@posix
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("stream", ["Numbers(100000)", "Acting(wait_for_ever)"])
def test_workers_end_when_their_parent_is_killed(tmp_path: Path, context: str, stream: str) -> None:
    if stream.startswith("Acting") and context == "spawn":
        pytest.skip("as with fork")
    then = "while True: next(batches)" if stream.startswith("Numbers") else "time.sleep(60)"
    running = program(tmp_path, then, context, "Numbers(4)" if stream.startswith("Acting") else stream)
    assert running.stdout
    pids = [int(pid) for pid in running.stdout.readline().split()]
    assert len(pids) == 2
    running.kill()
    _, errors = running.communicate()
    assert gone(pids)
    assert errors == ""


@posix
def test_ctrl_c_ends_everything_with_one_traceback(tmp_path: Path) -> None:
    running = program(tmp_path, "while True: next(batches)")
    assert running.stdout
    pids = [int(pid) for pid in running.stdout.readline().split()]
    for pid in (running.pid, *pids):  # a terminal sends it to all
        os.kill(pid, signal.SIGINT)
    _, errors = running.communicate(timeout=SOON)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert gone(pids)


@posix
def test_a_program_that_ends_within_its_loop_ends(tmp_path: Path) -> None:
    running = program(tmp_path, "sys.exit(3)")
    assert running.stdout
    pids = [int(pid) for pid in running.stdout.readline().split()]
    _, errors = running.communicate(timeout=SOON)
    assert (running.returncode, errors) == (3, "")
    assert gone(pids)


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from mlarray.streaming.loader import WorkerLoader\nfrom tests.streaming.stream_stand_ins import Numbers\n"
        "list(WorkerLoader(Numbers(), workers=1, context='spawn'))\n"
    )
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert 'In a script, iterate below `if __name__ == "__main__":`.' in ended.stderr


def test_a_stream_that_does_not_pickle_is_told_so_for_spawn() -> None:
    stream = Acting(lambda: None)
    with pytest.raises(UsageError, match=r"cannot be sent to worker processes that start by 'spawn'.*context=\"fork\""):
        list(WorkerLoader(stream, workers=1, context="spawn"))
    assert WorkerLoader(stream, workers=0, context=None).context in ("fork", "spawn")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": -1}, "workers is a whole number from 0 on, got -1"),
        ({"workers": 1, "prefetch": 0}, "prefetch is a whole number from 1 on, got 0"),
        ({"workers": 1, "context": "thread"}, "got 'thread'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WorkerLoader(Numbers(), **arguments)  # type: ignore[arg-type]


def test_an_epoch_without_batches_starts_no_worker() -> None:
    loader = WorkerLoader(Numbers(0), workers=2, context=FORK)
    assert list(loader) == []
    assert loader._team == []
