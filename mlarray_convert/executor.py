"""What does a batch need of whoever does the work? Jobs go in, what happens to them comes out.

Processes of this machine (:mod:`mlarray_convert.pool`) and a Dask cluster (:mod:`mlarray_convert.cluster`) are two answers to
one protocol, so that a run is told, reported and resumed in one way wherever it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from mlarray.limits import STALL_SECONDS
from mlarray_convert.share import Share

J = TypeVar("J")
R = TypeVar("R")
J_contra = TypeVar("J_contra", contravariant=True)
Work = Callable[[J, Callable[[float], None]], R]
Owner: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Started:
    """A job was given to a worker.

    Parameters
    ----------
    index : int
        Of the job.
    pid : int
        Of the process that does it.
    host : str
        Where that process is; empty for this machine.
    """

    index: int
    pid: int
    host: str = ""


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
    """A job has no result and will have none.

    Parameters
    ----------
    index : int
        Of the job.
    exit_code : int or None
        Of the process that did it, negative for a signal; None when it is not known.
    told : str
        What happened, where the exit code does not say it.
    """

    index: int
    exit_code: int | None
    told: str = ""


def stalled(seconds: float) -> str:
    """Return what is told of a job that made no progress for so long."""
    return f"It made no progress for {seconds:.0f} seconds and was ended: its file may be damaged. {STALL_SECONDS.hint}"


@dataclass(frozen=True, slots=True)
class Broken:
    """The executor cannot go on; jobs that are not decided stay so. Nothing follows.

    Parameters
    ----------
    reason : str
        One sentence.
    """

    reason: str


Happening: TypeAlias = Started | Advanced | Done[R] | Lost | Broken


class Executor(Protocol[J_contra, R]):
    """Does jobs, somewhere."""

    @property
    def share(self) -> Share:
        """Workers, and threads and memory of each."""

    @property
    def owners(self) -> frozenset[Owner]:
        """Host and process id of every process that did jobs and is certainly dead: what it left behind may go."""

    def run(
        self, jobs: Sequence[J_contra], order: Iterable[int] | None = None
    ) -> Iterator[Started | Advanced | Done[R] | Lost | Broken]:
        """Yield what happens until every job is done or lost, or the executor is broken.

        Closing the iterator, or an exception thrown into it, stops what is running; nothing is left behind.

        Parameters
        ----------
        jobs : sequence
            The work.
        order : iterable of int, optional
            Indices of the jobs in the order to start them; default: as they come.
        """
