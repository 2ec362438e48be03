"""What runs inside a Dask worker? A plugin that keeps the processes of one run, and the task that gives them a case.

The plugin belongs to the run: when the client removes it, or the worker closes or loses its scheduler, Dask calls ``teardown``,
and what is being converted is stopped and cleaned up.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from mlarray.limits import STALL_SECONDS
from mlarray.machine import FREE_MEMORY, SYSTEM, memory_available
from mlarray.storage.publish import this_host
from mlarray_convert.cluster.child import Child, Watch
from mlarray_convert.cluster.sight import Sight
from mlarray_convert.executor import Work, stalled

IDLE_SECONDS = 30.0  # a run that was killed cannot tell its processes to end
_REPORT_SECONDS = 1.0  # every report goes through the scheduler, which keeps it


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task.

    Parameters
    ----------
    kind : str
        ``"done"``, ``"died"`` (the process of the case), ``"misplaced"`` (this worker sees other files).
    host : str
        Where.
    result : object
        Of the work, when it is done.
    exit_code : int or None
        Of the process that died.
    told : str
        What a misplaced worker does not see, or why a process was ended.
    """

    kind: str
    host: str
    result: Any = None
    exit_code: int | None = None
    told: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a worker says about itself.

    Parameters
    ----------
    problem : str
        What it does not see; empty when all is well.
    host : str
        Its machine.
    memory_bytes : int
        Available there.
    shared_with : str
        Workers that say the same share that memory.
    """

    problem: str
    host: str
    memory_bytes: int
    shared_with: str


@dataclass(slots=True)
class _State:
    """What a plugin has on a worker and not on its way there."""

    worker: Any
    lock: threading.Lock = field(default_factory=threading.Lock)
    idle: list[tuple[float, Child]] = field(default_factory=list)
    busy: set[Child] = field(default_factory=set)
    problem: str | None = None
    stopped: bool = False


class Run(WorkerPlugin):  # type: ignore[misc]
    """The processes of one run on one Dask worker.

    Parameters
    ----------
    name : str
        Of the run; also the topic that its tasks report on.
    work : callable
        What is done with a job.
    threads : int
        Threads of one job.
    sight : Sight
        What the worker must see.
    """

    def __init__(self, name: str, work: Work[Any, Any], *, threads: int, sight: Sight) -> None:
        self.name = name
        self._work = work
        self._threads = threads
        self._sight = sight
        self._state: _State | None = None

    def setup(self, worker: Any) -> None:
        """Begin; Dask calls it on the worker."""
        self._state = _State(worker)

    async def teardown(self, worker: Any) -> None:
        """Stop what is running and wait for its end; Dask calls it on the worker."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End every process of the run, those at work included."""
        state = self._running()
        with state.lock:
            state.stopped = True
            ending = [child.close for _, child in state.idle] + [child.end for child in state.busy]
            state.idle.clear()
        threads = [threading.Thread(target=end) for end in ending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def problem(self) -> str:
        """Return what this worker does not see, found out once."""
        state = self._running()
        if state.problem is None:
            state.problem = self._sight.problem()
        return state.problem

    def carry_out(self, index: int, job: bytes) -> Answer:
        """Do a job in a process apart.

        Parameters
        ----------
        index : int
            Of the job, for its reports.
        job : bytes
            Pickled.
        """
        problem = self.problem()
        if problem:
            return Answer("misplaced", this_host(), told=problem)
        state = self._running()
        child = self._take(state)
        healthy = False
        watch = Watch(child.kill, STALL_SECONDS)
        try:
            begun = {"kind": "started", "index": index, "pid": child.pid, "host": this_host()}
            state.worker.log_event(self.name, {**begun, "address": state.worker.address})
            report = _Reporter(index, lambda message: state.worker.log_event(self.name, message))
            for kind, value in child.answers(pickle.loads(job)):
                watch.heard()
                if kind == "share":
                    report(value)
                elif kind == "result":
                    healthy = True
                    return Answer("done", this_host(), value)
        except (EOFError, OSError):
            told = stalled(STALL_SECONDS) if watch.is_over else ""
            return Answer("died", this_host(), exit_code=child.exit_code(), told=told)
        finally:
            watch.close()
            self._give_back(state, child, healthy=healthy)
        raise RuntimeError("a case ended without a result")

    def _running(self) -> _State:
        if self._state is None:
            raise RuntimeError("the plugin was not set up on this worker")
        return self._state

    def _take(self, state: _State) -> Child:
        with state.lock:
            if state.stopped:
                raise RuntimeError("the run has ended")
            child = state.idle.pop()[1] if state.idle else None
            if child is not None:
                state.busy.add(child)
                return child
        child = Child(self._work, threads=self._threads, folder=self._sight.folder)
        with state.lock:
            state.busy.add(child)
            stopped = state.stopped
        if stopped:  # meanwhile
            child.end()
        return child

    def _give_back(self, state: _State, child: Child, *, healthy: bool) -> None:
        with state.lock:
            state.busy.discard(child)
            kept = healthy and not state.stopped
            if kept:
                state.idle.append((time.monotonic(), child))
        if kept:
            loop = state.worker.loop
            loop.add_callback(loop.call_later, IDLE_SECONDS + 1, self._retire)
        else:
            child.close()

    def _retire(self) -> None:
        state = self._running()
        with state.lock:
            long_ago = time.monotonic() - IDLE_SECONDS
            old = [child for since, child in state.idle if since < long_ago]
            state.idle = [(since, child) for since, child in state.idle if since >= long_ago]
        for child in old:
            child.close()


class _Reporter:
    """Passes on shares, at most one per second."""

    def __init__(self, index: int, send: Callable[[dict[str, object]], None]) -> None:
        self._index = index
        self._send = send
        self._last = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self._last >= _REPORT_SECONDS:
            self._last = now
            self._send({"kind": "share", "index": self._index, "share": float(share)})


def carry_out(name: str, index: int, job: bytes) -> Answer:
    """Do one job of a run; the Dask task."""
    run: Run = get_worker().plugins[name]
    return run.carry_out(index, job)


async def look(name: str, dask_worker: Any) -> Seen:
    """Return what a worker sees and has; called on every worker before the first task."""
    run: Run = dask_worker.plugins[name]
    problem = await asyncio.to_thread(run.problem)
    memory, why = memory_available(os.environ, root=SYSTEM)
    # A cgroup, or a job, has its memory for itself; what is free on the machine is for all workers there.
    group = "" if why == FREE_MEMORY else _group()
    return Seen(problem, this_host(), memory, group)


def _group() -> str:
    try:
        return Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return str(os.getpid())
