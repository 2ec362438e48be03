"""When a run on a cluster tries a case again, gives it up, or gives up all; with a cluster of which only the answers are real."""

import pickle
from collections.abc import Callable, Iterator

import pytest

from mlarray_convert.cluster import client
from mlarray_convert.cluster.client import Cluster
from mlarray_convert.cluster.worker import Answer
from mlarray_convert.executor import Advanced, Broken, Done, Lost, Started
from mlarray_convert.share import Share


class Future:
    """What the client holds of a task; the test says how it ends."""

    def __init__(self, key: str, workers: list[str] | None) -> None:
        self.key = key
        self.workers = workers
        self.status = "pending"
        self._result: object = None
        self._callbacks: list[Callable[[Future], None]] = []

    def add_done_callback(self, callback: Callable[["Future"], None]) -> None:
        self._callbacks.append(callback)

    def result(self, timeout: float) -> object:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def cancelled(self) -> bool:
        return self.status == "cancelled"

    def cancel(self) -> None:
        self.status = "cancelled"

    def end(self, result: object, status: str = "finished") -> None:
        self.status, self._result = status, result
        for callback in self._callbacks:
            callback(self)


class Session:
    """A session of a cluster with two workers; it is its own client."""

    name, place = "mla-test", "tcp://test:1"

    def __init__(self) -> None:
        self.client = self
        self.connected = True
        self.present = {"tcp://one", "tcp://two"}
        self.futures: list[Future] = []
        self.jobs: list[object] = []
        self.ended = False

    def addresses(self) -> set[str]:
        return self.present

    def end(self) -> bool:
        self.ended = True
        return self.connected

    def subscribe_topic(self, topic: str, handler: Callable[[tuple], None]) -> None:
        self.tell = lambda **message: handler((0.0, message))

    def submit(self, task: object, name: str, index: int, job: bytes, **options: object) -> Future:
        self.jobs.append(pickle.loads(job))
        self.futures.append(Future(options["key"], options["workers"]))  # type: ignore[arg-type]
        return self.futures[-1]

    def cancel(self, futures: list[Future]) -> None:
        for future in futures:
            future.cancel()

    def start(self, index: int, address: str, pid: int) -> None:
        self.tell(kind="started", index=index, address=address, host=address[6:], pid=pid)


class KilledWorker(Exception):
    """Named like Dask's own."""


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def cluster(session: Session, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(client, "_TICK_SECONDS", 0.001)
    monkeypatch.setattr(client, "_LOOK_SECONDS", 0.0)
    return Cluster(session, Share(2, 1, 10**9, "test"))  # type: ignore[arg-type]


def begun(cluster: Cluster, session: Session, *jobs: str) -> Iterator[object]:
    """Return what happens, with the first job at work on the first worker."""
    happenings = cluster.run(list(jobs))
    session.tell = lambda **message: None
    waiting = iter(happenings)
    original = session.subscribe_topic

    def subscribe(topic: str, handler: Callable[[tuple], None]) -> None:
        original(topic, handler)
        session.start(0, "tcp://one", 11)

    session.subscribe_topic = subscribe  # type: ignore[method-assign]
    assert next(waiting) == Started(0, 11, "one")
    return waiting


def test_jobs_are_submitted_and_their_answers_come_back(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a")
    session.tell(kind="share", index=0, share=0.5)
    assert next(waiting) == Advanced(0, 0.5)
    session.futures[0].end(Answer("done", "one", "result"))
    assert list(waiting) == [Done(0, "result")]
    assert session.jobs == ["a"]
    assert session.ended


def test_a_case_whose_process_died_is_tried_once_on_another_worker(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a")
    session.futures[0].end(Answer("died", "one", exit_code=-9))
    session_started(session, waiting, "tcp://two", 12)
    assert session.futures[1].workers == ["tcp://two"]
    session.futures[1].end(Answer("died", "two", exit_code=-9))
    (lost,) = waiting
    assert lost == Lost(
        0,
        -9,
        "Its process died twice (signal 9; on one and two), probably out of memory. "
        "Give the workers more memory, or fewer threads each, or lower --memory.",
    )
    assert cluster.owners == {("one", 11), ("two", 12)}


def session_started(session: Session, waiting: Iterator[object], address: str, pid: int) -> None:
    """Let the case start on another worker once it was submitted again."""
    submit = session.submit

    def submitting(*arguments: object, **options: object) -> Future:
        future = submit(*arguments, **options)  # type: ignore[arg-type]
        session.start(0, address, pid)
        return future

    session.submit = submitting  # type: ignore[method-assign]
    assert next(waiting) == Started(0, pid, address[6:])
    session.submit = submit  # type: ignore[method-assign]


def test_a_worker_that_vanishes_is_left_to_dask_once_and_reported_the_second_time(
    cluster: Cluster, session: Session
) -> None:
    waiting = begun(cluster, session, "a")
    session.present = {"tcp://two"}
    session.start(0, "tcp://two", 12)
    assert next(waiting) == Started(0, 12, "two")
    session.present = {"tcp://three"}
    (lost,) = waiting
    assert isinstance(lost, Lost)
    assert "Its Dask worker was lost twice (on one and two)." in lost.told
    assert session.futures[0].cancelled()
    assert len(session.futures) == 1
    assert cluster.owners == {("one", 11), ("two", 12)}


def test_a_worker_that_is_counted_as_lost_is_not_counted_again_by_what_dask_says(
    cluster: Cluster, session: Session
) -> None:
    waiting = begun(cluster, session, "a")
    session.present = {"tcp://two"}
    session.tell(kind="share", index=0, share=0.25)
    assert next(waiting) == Advanced(0, 0.25)
    session.futures[0].end(KilledWorker("a", "tcp://one"), "error")
    session_started(session, waiting, "tcp://two", 12)
    session.futures[1].end(Answer("done", "two", "result"))
    assert list(waiting) == [Done(0, "result")]


def test_a_worker_that_sees_other_files_and_comes_late_costs_a_try(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a")
    session.futures[0].end(Answer("misplaced", "one", told="cannot read x"))
    session_started(session, waiting, "tcp://two", 12)
    session.futures[1].end(Answer("misplaced", "two", told="cannot read x"))
    assert list(waiting) == [Lost(0, None, "The Dask worker on two cannot read x.")]


def test_an_error_of_dask_is_told_in_one_line(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a")
    session.futures[0].end(ValueError("no\nway"), "error")
    session_started(session, waiting, "tcp://two", 12)
    session.futures[1].end(ValueError("no\nway"), "error")
    assert list(waiting) == [Lost(0, None, "Dask could not run the case: ValueError: no way")]


def test_a_result_that_was_lost_with_its_worker_is_waited_for(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a")
    session.futures[0].end(TimeoutError(), "pending")
    session.start(0, "tcp://two", 12)
    assert next(waiting) == Started(0, 12, "two")
    session.futures[0].end(Answer("done", "two", "result"))
    assert Done(0, "result") in list(waiting)


def test_a_lost_scheduler_ends_the_run_and_declares_nobody_dead(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a", "b")
    session.connected = False
    assert list(waiting) == [Broken("The Dask scheduler at tcp://test:1 is gone.")]
    assert cluster.owners == frozenset()
    assert not session.futures[0].cancelled()


def test_work_that_somebody_else_cancels_ends_the_run(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a")
    session.futures[0].end(RuntimeError("cancelled"), "cancelled")
    assert list(waiting) == [Broken("The Dask scheduler at tcp://test:1 has dropped the work.")]


def test_a_cluster_without_workers_for_too_long_ends_the_run(
    cluster: Cluster, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "NO_WORKERS_SECONDS", 0.0)
    waiting = begun(cluster, session, "a")
    session.present = set()
    assert list(waiting)[-1] == Broken("The Dask scheduler at tcp://test:1 has had no worker for 0 seconds.")


def test_leaving_early_cancels_what_is_left_and_knows_who_is_dead(cluster: Cluster, session: Session) -> None:
    waiting = begun(cluster, session, "a", "b")
    waiting.close()  # type: ignore[attr-defined]
    assert [future.cancelled() for future in session.futures] == [True, True]
    assert session.ended
    assert cluster.owners == {("one", 11)}


def test_jobs_are_submitted_in_the_order_that_is_asked_for(cluster: Cluster, session: Session) -> None:
    happenings = cluster.run(["a", "b", "c"], [2, 0, 1])
    session.connected = False
    assert len(list(happenings)) == 1
    assert session.jobs == ["c", "a", "b"]
