"""Who does the work on this machine? Worker processes, one pipe each, so that the death of one is one lost case and no more.

``multiprocessing.Pool`` hangs when the system kills a worker, and ``ProcessPoolExecutor`` gives up every other case. Here the
parent waits on the pipes and on the processes together: an answer, or a death, is seen at once. Workers are spawned, not
forked: threads of compression libraries do not survive a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic

from mlarray.errors import UsageError
from mlarray.limits import STALL_SECONDS
from mlarray.storage.publish import this_host
from mlarray_convert.executor import Advanced, Done, J, Lost, Owner, R, Started, Work, stalled
from mlarray_convert.interrupts import born_deaf_to_interrupts, deaf_to_interrupts
from mlarray_convert.serving import serve, thread_variables
from mlarray_convert.share import Share

STOP_SECONDS = 2.0
_STARTS = 3  # of a worker that the system kills before it has a job


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection[Any, Any]
    ready: bool = False
    index: int | None = None
    heard: float = 0.0
    stalled: bool = False


class Pool(Generic[J, R]):
    """Runs jobs in worker processes.

    Parameters
    ----------
    work : callable
        ``work(job, progress)`` returns the result of a job; importable by name, as it runs in another process.
    share : Share
        Processes at most, and threads that numerical libraries of each may use.
    stall_seconds : float
        How long a job may say nothing: its process is then killed, which a library that runs in a circle cannot prevent.

    Attributes
    ----------
    pids : set of int
        Every worker that was started.
    """

    def __init__(self, work: Work[J, R], share: Share, *, stall_seconds: float = STALL_SECONDS) -> None:
        self.share = share
        self._stall_seconds = stall_seconds
        self._work = work
        self._workers: list[_Worker] = []
        self._stillborn = 0
        self.pids: set[int] = set()

    @property
    def owners(self) -> frozenset[Owner]:
        """Host and process id of every worker that was started and has ended."""
        alive = {worker.process.pid for worker in self._workers}
        return frozenset((this_host(), pid) for pid in self.pids - alive)

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
        with deaf_to_interrupts():
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
        while len(self._workers) < min(self.share.workers, busy + pending):
            self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        with _environment(thread_variables(self.share.threads)), born_deaf_to_interrupts():
            process = context.Process(target=serve, args=(theirs, self._work), daemon=True)
            process.start()
        theirs.close()
        self.pids.add(process.pid or 0)
        self._workers.append(_Worker(process, ours))

    def _awaken(self) -> list[_Worker]:
        """Wait until a worker says something or dies, and return those that did."""
        handles: list[Any] = [worker.pipe for worker in self._workers]
        handles += [worker.process.sentinel for worker in self._workers]
        awake = multiprocessing.connection.wait(handles, self._kill_stalled())
        return [worker for worker in self._workers if worker.pipe in awake or worker.process.sentinel in awake]

    def _kill_stalled(self) -> float | None:
        """Kill workers that said nothing for too long; return after how many seconds to look again, None for never."""
        busy = [worker for worker in self._workers if worker.index is not None and not worker.stalled]
        now = time.monotonic()
        for worker in busy:
            if now - worker.heard > self._stall_seconds and not worker.pipe.poll():
                worker.stalled = True
                worker.process.kill()
        left = [worker.heard + self._stall_seconds - now for worker in busy if not worker.stalled]
        return max(0.01, min(left)) if left else None

    def _events(self, worker: _Worker) -> Iterator[Advanced | Done[R] | Lost]:
        try:
            while worker.pipe.poll():
                kind, value = worker.pipe.recv()
                worker.heard = time.monotonic()
                if kind == "ready":
                    worker.ready, self._stillborn = True, 0
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
            told = stalled(self._stall_seconds) if worker.stalled else ""
            yield Lost(worker.index, worker.process.exitcode, told)
        elif not worker.ready:
            self._refuse_stillborn(worker.process.exitcode)

    def _refuse_stillborn(self, exit_code: int) -> None:
        """Raise for a worker that died before it was ready; one that was killed by a signal is started again a few times."""
        if exit_code >= 0:
            raise UsageError(
                f"A worker process could not start (exit code {exit_code}).",
                hint='In a script, call the converter below `if __name__ == "__main__":`.',
            )
        self._stillborn += 1
        if self._stillborn >= _STARTS:
            raise UsageError(
                f"{_STARTS} worker processes one after the other were killed while they started (signal {-exit_code}), "
                "probably out of memory.",
                hint="Lower --workers, or free memory.",
            )

    def _give(self, worker: _Worker, index: int, jobs: Sequence[J]) -> Started:
        worker.index, worker.heard = index, time.monotonic()
        with contextlib.suppress(OSError):  # it died meanwhile; the next round sees that
            worker.pipe.send(jobs[index])
        return Started(index, worker.process.pid or 0)


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
