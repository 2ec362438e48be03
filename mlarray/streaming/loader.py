"""Who computes the batches while the caller computes? Worker processes that need no framework.

Batch ``k`` of an epoch is computed by worker ``k % workers``, and a stream's batch is a function of its number: workers take
turns and decide nothing. They live as long as their loader, so that what they opened serves every epoch. A worker that dies, for
whatever reason, is an error that names it; workers whose parent dies end by themselves.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from mlarray.errors import UsageError, WorkerError
from mlarray.streaming.arguments import start_method, whole
from mlarray.streaming.batch import Batch, Stack
from mlarray.streaming.handover import HELD, Ring, packed, ring_for, unpacked

_STOP_SECONDS = 2.0
_LOOK_SECONDS = 1.0  # how often who waits looks whether anybody will still come
_Job: TypeAlias = tuple[int, int, int]  # iteration, epoch, batch


class BatchStream(Protocol):
    """What a loader needs of a stream. It pickles, for ``spawn``, and survives a fork."""

    @property
    def epoch(self) -> int:
        """The current epoch."""

    @property
    def first(self) -> int:
        """Which batch the current epoch begins with: above 0 where an interrupted one goes on."""

    @property
    def batch_bytes(self) -> int:
        """Most bytes of the arrays of a batch; what takes more comes as well, only slower."""

    def __len__(self) -> int:
        """Return how many batches of this rank the epoch has."""

    def set_epoch(self, epoch: int) -> None:
        """Make another epoch the current one."""

    def batch(self, index: int, *, stack: Stack = ...) -> Batch:
        """Return a batch of the current epoch, its arrays made by ``stack``, see :meth:`Batch.of`."""


def checked_stream(stream: BatchStream) -> BatchStream:
    """Return a stream of batches.

    Raises
    ------
    UsageError
        Something else.
    """
    if isinstance(stream, type) or not all(
        hasattr(stream, name) for name in ("batch", "set_epoch", "epoch", "first", "batch_bytes")
    ):
        raise UsageError(f"stream is a stream of batches, got {type(stream).__name__}.", hint="Make a PatchStream.")
    return stream


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    process: Any
    pipe: Connection[Any, Any]
    ring: Ring | None
    asked: deque[_Job] = field(default_factory=deque)
    has_answered: bool = False


class WorkerLoader:
    """Batches of a stream in their order, computed ahead by worker processes.

    Iterating gives the batches of the stream's current epoch; the next iteration those of the epoch that is current then. Workers
    start with the first iteration and serve all others. They end with :meth:`close`, at the end of a ``with`` block, when the
    loader is no longer used, and with this process.

    Parameters
    ----------
    stream : BatchStream
        Such as a :class:`PatchStream`.
    workers : int
        Processes; 0: batches are computed in this process, when they are asked for.
    prefetch : int
        Batches that each worker computes ahead; ``workers * prefetch`` are held at most, beside those in use.
    context : {"fork", "spawn", "forkserver"}, optional
        How workers start. Default: ``"fork"`` on Linux, where it shares memory, else ``"spawn"``.

    Raises
    ------
    UsageError
        A number below its least, or a way to start that this system does not have.

    Examples
    --------
    >>> import numpy as np
    >>> from mlarray import Region
    >>> from mlarray.streaming.batch import Batch, Sample
    >>> class Numbers:
    ...     epoch = first = batch_bytes = 0
    ...     def __len__(self):
    ...         return 3
    ...     def set_epoch(self, epoch):
    ...         self.epoch = epoch
    ...     def batch(self, index):
    ...         return Batch.of([Sample({"CT": np.full((1, 4), index)}, "case", 0, Region((0,), (4,)))])
    >>> with WorkerLoader(Numbers(), workers=0) as loader:
    ...     [int(batch["CT"][0, 0, 0]) for batch in loader]
    [0, 1, 2]
    """

    def __init__(self, stream: BatchStream, *, workers: int, prefetch: int = 2, context: str | None = None) -> None:
        self.stream = checked_stream(stream)
        self.workers = whole("workers", workers, 0)
        self.prefetch = whole("prefetch", prefetch, 1)
        self.context = start_method(context) or ("fork" if sys.platform == "linux" else "spawn")
        self._team: list[_Worker] = []
        self._iteration = 0
        self._finalizer = weakref.finalize(self, _stop, self._team, os.getpid())

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Batch]:
        if self.workers:
            return self._from_workers()
        return (self.stream.batch(index) for index in range(self.stream.first, len(self.stream)))

    def __enter__(self) -> WorkerLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; iterating starts new ones."""
        self._iteration += 1
        _stop(self._team, os.getpid())

    def _from_workers(self) -> Iterator[Batch]:
        self._iteration += 1
        iteration, epoch, first, stop = self._iteration, self.stream.epoch, self.stream.first, len(self.stream)
        if first < stop and not self._team:
            self._start()
        ahead = iter(range(first, stop))
        for _ in range(self.workers * self.prefetch):
            self._ask(ahead, iteration, epoch)
        for index in range(first, stop):
            yield self._answer((iteration, epoch, index), ahead)  # no name here: its memory is the caller's to free

    def _start(self) -> None:
        context = multiprocessing.get_context(self.context)
        try:
            for number in range(self.workers):
                ours, theirs = context.Pipe()
                ring = ring_for(self.prefetch + HELD, self.stream.batch_bytes)
                # A fork copies every descriptor: a worker that kept its siblings' would hide the death of the parent from them.
                foreign = [ours, *(worker.pipe for worker in self._team)] if self.context == "fork" else []
                process = context.Process(  # type: ignore[attr-defined]
                    target=_serve,
                    args=(theirs, foreign, self.stream, ring),
                    name=f"mlarray-worker-{number}",
                    daemon=True,
                )
                with _deaf_and_quiet(self.context):
                    process.start()
                theirs.close()
                self._team.append(_Worker(number, process, ours, ring))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            _stop(self._team, os.getpid())
            raise UsageError(
                f"The stream cannot be sent to worker processes that start by {self.context!r}: {error}",
                hint='Define its classes and functions at the top of a module, or use context="fork".',
            ) from error
        except BaseException:
            _stop(self._team, os.getpid())
            raise

    def _ask(self, ahead: Iterator[int], iteration: int, epoch: int) -> None:
        index = next(ahead, None)
        if index is None:
            return
        worker = self._team[index % self.workers]
        worker.asked.append((iteration, epoch, index))
        with contextlib.suppress(OSError):  # it died; waiting for its answer says so
            worker.pipe.send((iteration, epoch, index))

    def _answer(self, job: _Job, ahead: Iterator[int]) -> Batch:
        """Wait for the answer to a job, and ask for one more; what is still said about earlier iterations is dropped."""
        while True:
            worker = self._talking(job)
            try:
                answered, kind, value = unpacked(worker.pipe.recv())
            except (EOFError, OSError):
                self._raise_death(worker)
            worker.has_answered = True
            while worker.asked and worker.asked[0] <= answered:
                worker.asked.popleft()
            if answered != job:
                continue
            if kind == "batch":
                self._ask(ahead, *job[:2])
                found: Batch = value
                return found
            raise self._rebuilt(worker, job, *value)

    def _talking(self, job: _Job) -> _Worker:
        """Wait until the worker of a job has something to say, and return it."""
        while self._iteration == job[0]:
            worker = self._team[job[2] % self.workers]
            ready = wait([worker.pipe, *(one.process.sentinel for one in self._team)], _LOOK_SECONDS)
            if worker.pipe in ready:
                return worker
            for one in self._team:
                if one.process.sentinel in ready:
                    self._raise_death(one)
        raise UsageError(
            "The loader was closed, or iterated anew, before this iteration was done.",
            hint="Use a loader of its own for each iteration that runs at the same time.",
        )

    def _raise_death(self, worker: _Worker) -> NoReturn:
        worker.process.join(_STOP_SECONDS)
        worker.process.kill()  # it closed its pipe and hangs on the way out
        worker.process.join()
        code, pid = worker.process.exitcode, worker.process.pid
        message = f"Worker {worker.number} of {self.workers} (process {pid}) ended with {_named(code)}"
        if worker.asked:
            _, epoch, index = worker.asked[0]
            message += f" at batch {index} of epoch {epoch}"
        hint = "With workers=0 the batch is computed in this process, where a crash can be looked at."
        if code == -getattr(signal, "SIGKILL", 9):
            hint = (
                "The system does so when memory runs out: fewer workers, a smaller prefetch or memory budget need less."
            )
        elif not worker.has_answered and self.context != "fork":
            hint = 'In a script, iterate below `if __name__ == "__main__":`. ' + hint
        self.close()
        raise WorkerError(f"{message}.", hint=hint)

    def _rebuilt(self, worker: _Worker, job: _Job, text: bytes | None, trace: str) -> BaseException:
        """Return the exception that a worker met, with its traceback as a note."""
        _, epoch, index = job
        error: object = None
        if text is not None:
            with contextlib.suppress(Exception):
                error = pickle.loads(text)
        if not isinstance(error, Exception):
            error = WorkerError(f"Batch {index} of epoch {epoch} failed: {trace.strip().splitlines()[-1]}")
        place = f"worker {worker.number} of {self.workers} (process {worker.process.pid})"
        error.add_note(f"In {place}, at batch {index} of epoch {epoch}:\n{trace}")
        return error


def _serve(
    pipe: Connection[Any, Any], foreign: Sequence[Connection[Any, Any]], stream: BatchStream, ring: Ring | None
) -> None:
    """Answer jobs until nobody asks any more; runs in the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches every process of a terminal: the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in foreign:
        other.close()
    parent = os.getppid()
    jobs: deque[_Job] = deque()
    with contextlib.suppress(EOFError, OSError):
        while True:
            while not jobs or pipe.poll():
                if not pipe.poll(_LOOK_SECONDS):
                    if os.getppid() != parent:
                        return
                    continue
                jobs.append(pipe.recv())
            while jobs[0][0] < jobs[-1][0]:
                jobs.popleft()  # of an iteration that was left
            place = None if ring is None else ring.take()
            answer = _answer(stream, jobs.popleft(), np.stack if place is None else place.stack)
            pipe.send(packed(answer, place))
            del answer  # its place is the receiver's now


def _answer(stream: BatchStream, job: _Job, stack: Stack) -> tuple[_Job, str, object]:
    _, epoch, index = job
    try:
        if stream.epoch != epoch:
            stream.set_epoch(epoch)
        return job, "batch", stream.batch(index, stack=stack)
    except Exception as error:
        text = None
        with contextlib.suppress(Exception):
            text = pickle.dumps(error)
        return job, "error", (text, "".join(traceback.format_exception(error)))


def _stop(team: list[_Worker], owner: int) -> None:
    """End workers: asked first, killed when it takes longer than two seconds. A forked copy of the loader ends nobody."""
    workers, team[:] = list(team), []
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.pipe.close()
    if os.getpid() != owner:
        return
    for worker in workers:
        if worker.asked:
            worker.process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()


@contextlib.contextmanager
def _deaf_and_quiet(starts_by: str) -> Iterator[None]:
    """Start a process that does not hear Ctrl-C before it can ignore it, and do not warn that a fork copies no threads.

    Workers use none of the parent's: blosc2 gets one thread in a fork, OpenBLAS makes its own anew, read-ahead too.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        if starts_by != "fork":
            resource_tracker.ensure_running()  # would end the block when it starts itself
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _named(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"exit code {code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
