"""Who does the work? Worker processes, one pipe each, so that the death of one is one lost case and nothing more.

``multiprocessing.Pool`` hangs when the system kills a worker, and ``ProcessPoolExecutor`` gives up every other case. Here the
parent waits on the pipes and on the processes together: an answer, or a death, is seen at once. Workers are spawned, not
forked: threads of compression libraries do not survive a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from mlarray.errors import UsageError

STOP_SECONDS = 2.0
AGAIN_SECONDS = 0.01
_REPORT_SECONDS = 0.1
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
# Numerical libraries start one thread per processor each unless told otherwise.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
)

J = TypeVar("J")
R = TypeVar("R")
Work = Callable[[J, Callable[[float], None]], R]


@dataclass(frozen=True, slots=True)
class Started:
    """A job was given to a worker.

    Parameters
    ----------
    index : int
        Of the job.
    pid : int
        Of the worker.
    """

    index: int
    pid: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """A job reports the share that is done, from 0 to 1."""

    index: int
    share: float


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """A job has its result."""

    index: int
    result: R


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker of a job died; the exit code is negative for a signal."""

    index: int
    exit_code: int | None


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection[Any, Any]
    ready: bool = False
    index: int | None = None


class Pool(Generic[J, R]):
    """Runs jobs in worker processes.

    Parameters
    ----------
    work : callable
        ``work(job, progress)`` returns the result of a job; importable by name, as it runs in another process.
    workers : int
        Processes at most.
    threads : int
        Threads that numerical libraries of a worker may use.

    Attributes
    ----------
    pids : set of int
        Every worker that was started.
    """

    def __init__(self, work: Work[J, R], *, workers: int, threads: int = 1) -> None:
        self._work = work
        self._count = workers
        self._threads = threads
        self._workers: list[_Worker] = []
        self.pids: set[int] = set()

    def run(
        self, jobs: Sequence[J], order: Iterable[int] | None = None
    ) -> Iterator[Started | Advanced | Done[R] | Lost]:
        """Yield what happens, job by job, until all are done.

        Closing the iterator, or an exception thrown into it, stops every worker; none is left behind.

        Parameters
        ----------
        jobs : sequence
            The work.
        order : iterable of int, optional
            Indices of the jobs in the order to start them; default: as they come.

        Raises
        ------
        UsageError
            When workers cannot start, as in a script that starts them while it is being imported.
        """
        pending = deque(range(len(jobs)) if order is None else order)
        open_jobs = len(jobs)
        try:
            while open_jobs:
                self._fill(len(pending))
                for worker in self._awaken():
                    for event in self._events(worker):
                        if isinstance(event, Done | Lost):
                            open_jobs -= 1
                        yield event
                for worker in self._workers:
                    if worker.ready and worker.index is None and pending:
                        yield self._give(worker, pending.popleft(), jobs)
        finally:
            self.stop()

    def stop(self) -> None:
        """End every worker: asked first, killed when it takes longer than two seconds."""
        with _deaf_to_interrupts():
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.pipe.close()
                if worker.index is not None and worker.process.is_alive():
                    worker.process.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for worker in self._workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
                if worker.process.is_alive():
                    worker.process.kill()
                    worker.process.join()
            self._workers.clear()

    def _fill(self, pending: int) -> None:
        busy = sum(worker.index is not None for worker in self._workers)
        while len(self._workers) < min(self._count, busy + pending):
            self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        with _environment(dict.fromkeys(_THREAD_VARIABLES, str(self._threads))), _born_deaf_to_interrupts():
            process = context.Process(target=_serve, args=(theirs, self._work), daemon=True)
            process.start()
        theirs.close()
        self.pids.add(process.pid or 0)
        self._workers.append(_Worker(process, ours))

    def _awaken(self) -> list[_Worker]:
        """Wait until a worker says something or dies, and return those that did."""
        handles: list[Any] = [worker.pipe for worker in self._workers]
        handles += [worker.process.sentinel for worker in self._workers]
        awake = multiprocessing.connection.wait(handles)
        return [worker for worker in self._workers if worker.pipe in awake or worker.process.sentinel in awake]

    def _events(self, worker: _Worker) -> Iterator[Advanced | Done[R] | Lost]:
        try:
            while worker.pipe.poll():
                kind, value = worker.pipe.recv()
                if kind == "ready":
                    worker.ready = True
                elif worker.index is not None and kind == "share":
                    yield Advanced(worker.index, value)
                elif worker.index is not None:
                    index, worker.index = worker.index, None
                    yield Done(index, value)
        except (EOFError, OSError):
            worker.process.join(STOP_SECONDS)
            worker.process.kill()  # it closed its pipe and hangs on the way out
            worker.process.join()
        if worker.process.is_alive():
            return
        worker.process.join()
        self._workers.remove(worker)
        worker.pipe.close()
        if worker.index is not None:
            yield Lost(worker.index, worker.process.exitcode)
        elif not worker.ready:
            raise UsageError(
                f"A worker process could not start (exit code {worker.process.exitcode}).",
                hint='In a script, call the converter below `if __name__ == "__main__":`.',
            )

    def _give(self, worker: _Worker, index: int, jobs: Sequence[J]) -> Started:
        worker.index = index
        with contextlib.suppress(OSError):  # it died meanwhile; the next round sees that
            worker.pipe.send(jobs[index])
        return Started(index, worker.process.pid or 0)


def _serve(pipe: Connection[Any, Any], work: Work[Any, Any]) -> None:
    """Answer jobs until the parent closes the pipe; runs in the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _leave_later
    said = _say(pipe, ("ready", None))
    while said:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        said = _say(pipe, ("result", work(job, _reporter(pipe))))


def _say(pipe: Connection[Any, Any], message: object) -> bool:
    """Send to the parent; False when it is gone, which is no error of this process."""
    try:
        pipe.send(message)
    except OSError:
        return False
    return True


def _reporter(pipe: Connection[Any, Any]) -> Callable[[float], None]:
    last = [0.0]

    def report(share: float) -> None:
        now = time.monotonic()
        if now - last[0] >= _REPORT_SECONDS:
            last[0] = now
            pipe.send(("share", share))  # fails when the parent is gone, which ends this worker too

    return report


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _leave_later(dropped: sys.UnraisableHookArgs) -> None:
    """Give the order to leave again: it came while an object was being freed, where Python drops exceptions."""
    if isinstance(dropped.exc_value, SystemExit):
        threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(dropped)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextlib.contextmanager
def _born_deaf_to_interrupts() -> Iterator[None]:
    """Let a process that is started here not hear Ctrl-C while it imports: it would die with a traceback of its own.

    A new process inherits which signals are blocked. This one is not interrupted half way through the start either, which
    would leave a worker without its orders: what arrives is dealt with when the block ends.
    """
    with _interrupts_held():
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        resource_tracker.ensure_running()  # would end the block when it starts itself
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep back SIGINT and SIGTERM of this process and deliver them at the end."""
    if threading.current_thread() is not threading.main_thread():  # signals do not arrive here
        yield
        return
    held: list[int] = []
    # Blocking them is not enough: any other thread, such as those of numpy's libraries, takes them for the main one.
    before = [(number, signal.signal(number, lambda got, _: held.append(got))) for number in _INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for arrived in held[:1]:
            signal.raise_signal(arrived)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C while workers are stopped: an impatient second one must not leave them behind."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread: signals do not arrive here
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
