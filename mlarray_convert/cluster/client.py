"""How does the command use a Dask cluster? It submits cases, hears what becomes of them, and yields that as the pool does.

Dask schedules: it chooses workers, and starts the task of a worker that died on another one. What is decided here is when to
give up: a case that loses two workers, or dies twice, is reported and not tried a third time; a cluster without workers, or
without its scheduler, ends the run.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from mlarray.errors import UsageError
from mlarray.storage.publish import this_host
from mlarray_convert.cluster.connection import connected, quiet, refuse_misplaced, refuse_other_versions, share_of
from mlarray_convert.cluster.sight import Places, Sight, marked
from mlarray_convert.executor import Advanced, Broken, Done, J, Lost, Owner, R, Started, Work
from mlarray_convert.interrupts import deaf_to_interrupts
from mlarray_convert.share import Share

ATTEMPTS = 2
_TICK_SECONDS = 0.5
_LOOK_SECONDS = 2.0
_RESULT_SECONDS = 30.0
NO_WORKERS_SECONDS = 60.0
_LOWER = "Give the workers more memory, or fewer threads each, or lower --memory."


@contextlib.contextmanager
def open_cluster(
    work: Work[J, R], scheduler: str, *, places: Places, local: Share | None, memory_bytes: int | None
) -> Iterator[Cluster[J, R]]:
    """Connect to a cluster, check that its workers can do the work, and leave it as it was at the end.

    Parameters
    ----------
    work : callable
        What is done with a job, importable by name.
    scheduler : str
        Address, path of a scheduler file, or ``"local"``.
    places : Places
        Where the run reads and writes.
    local : Share or None
        Workers of a local cluster.
    memory_bytes : int or None
        Limit of one job. Default: by the memory of the workers.

    Raises
    ------
    UsageError
        When Dask is not installed, no scheduler answers, there are no workers, or they lack this package or see other files.
    """
    with quiet(), connected(scheduler, local) as client:
        name = f"mla-{client.id.lower()}"
        with marked(places, name) as sight:
            threads = 1 if local is None else local.threads
            session = _Session(client, name, str(client.scheduler.address))
            try:
                seen = session.prepared(work, threads=threads, sight=sight)
                share = local if local is not None else share_of(seen, client, memory_bytes, place=session.place)
                yield Cluster(session, share)
            finally:
                session.end()


@dataclass(slots=True)
class _Job:
    """What is known of one job; ``owner`` and ``address`` while it runs."""

    future: Any = None
    failures: int = 0
    hosts: tuple[str, ...] = ()
    owner: Owner | None = None
    address: str = ""


class _Session:
    """What one run has on the cluster: a plugin on every worker, and a topic that its tasks report on."""

    def __init__(self, client: Any, name: str, place: str) -> None:
        self.client = client
        self.name = name
        self.place = place
        self.ended = False
        self._registered = False

    def prepared(self, work: Work[Any, Any], *, threads: int, sight: Sight) -> Mapping[str, Any]:
        """Return what every worker sees, once it is certain that all have this package and see what they must."""
        from mlarray_convert.cluster.worker import Run, look  # imports Dask

        try:
            refuse_other_versions(self.client)
            self._registered = True
            self.client.register_plugin(Run(self.name, work, threads=threads, sight=sight), name=self.name)
            seen: Mapping[str, Any] = self.client.run(look, self.name)
        except UsageError:
            raise
        except Exception as error:  # of any class: it may come from another machine
            raise UsageError(
                f"The Dask cluster at {self.place} could not be prepared: {type(error).__name__}: {_in_one_line(error)}.",
                hint="Its logs say more; all machines need the same environment.",
            ) from error
        refuse_misplaced(seen)
        return seen

    def addresses(self) -> set[str]:
        """Return the workers that are there."""
        return set(self.client.nthreads())

    @property
    def connected(self) -> bool:
        """Whether the scheduler still answers."""
        return bool(self.client.status == "running")

    def end(self) -> bool:
        """Stop what the workers do for this run and say whether that is certain."""
        if self.ended or not self._registered or not self.connected:
            return self.ended
        with contextlib.suppress(Exception):  # the cluster is going down at this moment; its workers stop by themselves
            self.client.unregister_worker_plugin(self.name)
            self.ended = True
        return self.ended


class Cluster(Generic[J, R]):
    """Runs jobs on a Dask cluster; made by :func:`open_cluster`."""

    def __init__(self, session: _Session, share: Share) -> None:
        self.share = share
        self._session = session
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._jobs: dict[int, _Job] = {}
        self._payloads: Sequence[J] = ()
        self._dead: set[Owner] = set()
        self._workers_seen = self._looked = 0.0

    @property
    def owners(self) -> frozenset[Owner]:
        """Host and process id of every process that did jobs and is certainly dead."""
        return frozenset(self._dead)

    def run(
        self, jobs: Sequence[J], order: Iterable[int] | None = None
    ) -> Iterator[Started | Advanced | Done[R] | Lost | Broken]:
        """Yield what happens until every job is done or lost, or the cluster is; see :class:`~.executor.Executor`."""
        client = self._session.client
        self._payloads = jobs
        self._jobs = {index: _Job() for index in (range(len(jobs)) if order is None else order)}
        self._workers_seen = self._looked = time.monotonic()
        client.subscribe_topic(self._session.name, lambda event: self._inbox.put(("event", event[1])))
        try:
            for index in self._jobs:
                self._submit(index, ())
            while self._jobs:
                for event in self._next():
                    if isinstance(event, Done | Lost):
                        del self._jobs[event.index]
                    yield event
                    if isinstance(event, Broken):
                        return
        finally:
            self._stop()

    def _submit(self, index: int, workers: Sequence[str]) -> None:
        from mlarray_convert.cluster.worker import carry_out  # imports Dask

        job = self._jobs[index]
        job.future = self._session.client.submit(
            carry_out,
            self._session.name,
            index,
            pickle.dumps(self._payloads[index]),
            key=f"{self._session.name}-{index}-{job.failures}",
            pure=False,
            workers=workers or None,
            allow_other_workers=bool(workers),
        )
        job.future.add_done_callback(lambda future: self._inbox.put(("ended", (index, future))))

    def _next(self) -> Iterator[Started | Advanced | Done[R] | Lost | Broken]:
        """Wait a little and yield what happened."""
        try:
            kind, value = self._inbox.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            kind, value = "", None
        if not self._session.connected:
            yield Broken(f"The Dask scheduler at {self._session.place} is gone.")
            return
        if kind == "event":
            yield from self._heard(value)
        elif kind == "ended":
            yield from self._ended(*value)
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            yield from self._look()

    def _heard(self, message: dict[str, Any]) -> Iterator[Started | Advanced | Lost]:
        index = message["index"]
        job = self._jobs.get(index)
        if job is None:
            return
        if message["kind"] == "share":
            yield Advanced(index, message["share"])
            return
        if job.owner is not None:  # it was running elsewhere; Dask starts it again when that worker is gone
            yield from self._lost_worker(index, job)
            if job.future is None:
                return
        job.owner, job.address = (message["host"], message["pid"]), message["address"]
        yield Started(index, message["pid"], "" if message["host"] == this_host() else message["host"])

    def _ended(self, index: int, future: Any) -> Iterator[Done[R] | Lost | Broken]:
        job = self._jobs.get(index)
        if job is None or job.future is not future:
            return
        try:
            answer = future.result(timeout=_RESULT_SECONDS)
        except Exception as error:  # of any class: it may come from another machine
            if not self._session.connected or future.cancelled():
                yield Broken(f"The Dask scheduler at {self._session.place} has dropped the work.")
            elif future.status != "error":  # its worker died before it handed over the result; Dask starts it again
                future.add_done_callback(lambda future: self._inbox.put(("ended", (index, future))))
            else:
                # A cluster may be set to give up a case with its first worker, which may have been counted already.
                job.failures -= type(error).__name__ == "KilledWorker" and job.owner is None and job.failures > 0
                told = f"Dask could not run the case: {type(error).__name__}: {_in_one_line(error)}"
                yield from self._failed(index, job, "", told, None)
            return
        if answer.kind == "done":
            yield Done(index, answer.result)
        elif answer.kind == "died":
            if job.owner is not None:
                self._dead.add(job.owner)
            yield from self._failed(index, job, answer.host, answer.told, answer.exit_code)
        else:
            yield from self._failed(index, job, answer.host, f"The Dask worker on {answer.host} {answer.told}.", None)

    def _failed(self, index: int, job: _Job, host: str, told: str, exit_code: int | None) -> Iterator[Lost]:
        """Try a job again elsewhere, or give it up."""
        address, job.address, job.owner = job.address, "", None
        job.failures += 1
        job.hosts += (host,) if host else ()
        if job.failures < ATTEMPTS:
            self._submit(index, sorted(self._session.addresses() - {address}))
            return
        yield Lost(index, exit_code, told or _killed(job, exit_code))

    def _lost_worker(self, index: int, job: _Job) -> Iterator[Lost]:
        """Count a worker that vanished; Dask has started its case elsewhere by itself, or will."""
        assert job.owner is not None
        self._dead.add(job.owner)
        job.hosts += (job.owner[0],)
        job.failures += 1
        job.owner, job.address = None, ""
        if job.failures >= ATTEMPTS:
            job.future.cancel()
            job.future = None
            yield Lost(index, None, f"Its Dask worker was lost twice (on {' and '.join(job.hosts)}). {_LOWER}")

    def _look(self) -> Iterator[Lost | Broken]:
        """Compare the workers that are there with those that should be at work."""
        self._looked = time.monotonic()
        try:
            present = self._session.addresses()
        except Exception:  # the scheduler does not answer, which the next round sees
            return
        if present:
            self._workers_seen = time.monotonic()
        elif time.monotonic() - self._workers_seen > NO_WORKERS_SECONDS:
            yield Broken(
                f"The Dask scheduler at {self._session.place} has had no worker for {NO_WORKERS_SECONDS:.0f} seconds."
            )
            return
        for index, job in list(self._jobs.items()):
            if job.owner is not None and job.address not in present:
                yield from self._lost_worker(index, job)

    def _stop(self) -> None:
        """Cancel what is left, stop what is running, and note who is dead by now."""
        with deaf_to_interrupts():
            if self._jobs and self._session.connected:
                with contextlib.suppress(Exception):  # as in _Session.end
                    self._session.client.cancel([job.future for job in self._jobs.values() if job.future is not None])
            if self._session.end():
                self._dead |= {job.owner for job in self._jobs.values() if job.owner is not None}


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _killed(job: _Job, exit_code: int | None) -> str:
    how = f"signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
    return f"Its process died twice ({how}; on {' and '.join(job.hosts)}), probably out of memory. {_LOWER}"
