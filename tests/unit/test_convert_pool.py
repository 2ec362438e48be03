"""Workers answer, die, and are stopped; no job is lost silently and no process is left."""

from pathlib import Path

import psutil
import pytest

from mlarray.errors import UsageError
from mlarray_convert.executor import Done, Executor, Lost, Started
from mlarray_convert.pool import Pool
from mlarray_convert.share import Share
from tests.unit import pool_work


def share(workers: int, *, threads: int = 1) -> Share:
    return Share(workers, threads, 10**9, "test")


def test_the_pool_is_an_executor() -> None:
    pool: Executor[int, int] = Pool(pool_work.square, share(1))
    assert pool.share.workers == 1
    assert pool.owners == frozenset()


def test_every_job_has_its_result() -> None:
    pool: Pool[int, int] = Pool(pool_work.square, share(2))
    events = list(pool.run([1, 2, 3, 4, 5]))
    results = {event.index: event.result for event in events if isinstance(event, Done)}
    assert results == {0: 1, 1: 4, 2: 9, 3: 16, 4: 25}
    assert len(pool.pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pool.pids)


def test_a_killed_worker_costs_its_job_and_no_other() -> None:
    pool: Pool[int, int] = Pool(pool_work.square_or_die, share(1))
    events = list(pool.run([1, 2, 3]))
    assert [(e.index, e.exit_code) for e in events if isinstance(e, Lost)] == [(1, -9)]
    assert {e.index: e.result for e in events if isinstance(e, Done)} == {0: 1, 2: 9}


def test_a_worker_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    pool: Pool[int, int] = Pool(pool_work.KilledAtStart(tmp_path, 2), share(1))
    assert [event.result for event in pool.run([2, 3]) if isinstance(event, Done)] == [4, 9]
    assert len(pool.pids) == 3


def test_workers_that_are_killed_again_and_again_while_they_start_end_the_run(tmp_path: Path) -> None:
    pool: Pool[int, int] = Pool(pool_work.KilledAtStart(tmp_path, 9), share(1))
    with pytest.raises(UsageError, match=r"3 worker processes .* killed while they started \(signal 9\).*--workers"):
        list(pool.run([2]))
    assert len(pool.pids) == 3


def test_a_worker_that_crashes_is_a_lost_job_with_its_signal() -> None:
    pool: Pool[int, int] = Pool(pool_work.crash, share(1))
    assert [(e.index, e.exit_code) for e in pool.run([1]) if isinstance(e, Lost)] == [(0, -11)]
    assert {pid for _, pid in pool.owners} == pool.pids


def test_a_worker_that_exits_by_itself_is_a_lost_job_too() -> None:
    pool: Pool[int, int] = Pool(pool_work.exit_quietly, share(2))
    assert [(e.index, e.exit_code) for e in pool.run([1]) if isinstance(e, Lost)] == [(0, 7)]


def test_numerical_libraries_of_a_worker_are_told_their_share_of_threads() -> None:
    pool: Pool[int, str] = Pool(pool_work.thread_settings, share(1, threads=3))
    assert [e.result for e in pool.run([0]) if isinstance(e, Done)] == ["3"]


def test_leaving_early_stops_a_worker_in_the_middle_of_its_job(tmp_path: Path) -> None:
    pool: Pool[str, None] = Pool(pool_work.touch_and_wait, share(1))
    events = pool.run([str(tmp_path / "begun")])
    started = next(events)
    assert isinstance(started, Started)
    process = psutil.Process(started.pid)
    events.close()  # type: ignore[attr-defined]
    assert not process.is_running()


def test_an_exception_of_the_caller_stops_the_workers(tmp_path: Path) -> None:
    pool: Pool[str, None] = Pool(pool_work.touch_and_wait, share(2))

    def interrupted() -> None:
        for event in (events := pool.run([str(tmp_path / "a"), str(tmp_path / "b")])):
            if isinstance(event, Started) and event.index == 1:
                events.throw(KeyboardInterrupt)  # type: ignore[attr-defined]

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not any(psutil.pid_exists(pid) for pid in pool.pids)


def test_a_worker_told_to_leave_while_it_frees_an_object_leaves_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pool: Pool[int, int] = Pool(pool_work.told_to_leave_while_freeing, share(1))
    assert [(e.index, e.exit_code) for e in pool.run([1]) if isinstance(e, Lost)] == [(0, 143)]
    assert capfd.readouterr().err == ""
