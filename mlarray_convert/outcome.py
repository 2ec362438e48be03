"""How did a case end? What a worker is given, what it answers, and what stands for the answer of one that died."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from mlarray_convert.discovery import Case
from mlarray_convert.plan import CasePlan
from mlarray_convert.request import Request


class Status(Enum):
    """How a case ended; ``WARNED`` was converted, with something the user should read."""

    OK = "ok"
    WARNED = "warned"
    SKIPPED = "skipped"
    FAILED = "failed"


class Failure(Enum):
    """Why a case failed."""

    NONE = ""
    INPUT = "input"
    VERIFICATION = "verification"
    WORKER = "worker"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class Job:
    """One case for a worker.

    Parameters
    ----------
    case, request
        What and how.
    memory_bytes : int
        Limit of the worker.
    threads : int
        Compression threads.
    """

    case: Case
    request: Request
    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended.

    Parameters
    ----------
    case : Case
        Which.
    status : Status
        How.
    reason : str
        Why it was skipped, redone or failed.
    warnings : tuple of str
        What the user should know: assumptions, repairs, losses, grids that differ.
    notes : tuple of str
        What was done and changes nothing: a unit that was converted, an axis of one voxel that was dropped.
    dtype : str
        Type of the stored voxels.
    shape : tuple of int
        Shape of the array.
    seconds : float
        Time taken.
    bytes_in, bytes_out : int
        Sizes of the source files and of the output.
    checksum : str
        ``xxh3:`` and the XXH3-64 checksum of the output file.
    failure : Failure
        Kind of failure.
    trace : str
        Traceback of an unexpected error.
    plan : CasePlan or None
        Of a dry run.
    """

    case: Case
    status: Status
    reason: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dtype: str = ""
    shape: tuple[int, ...] = ()
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    checksum: str = ""
    failure: Failure = Failure.NONE
    trace: str = ""
    plan: CasePlan | None = None


def died(case: Case, exit_code: int | None, told: str = "") -> Outcome:
    """Return the outcome of a case whose worker ended without an answer.

    Parameters
    ----------
    case : Case
        Which.
    exit_code : int or None
        Of the worker, negative for a signal.
    told : str
        What happened, where the exit code does not say it.
    """
    if told:
        return failed(case, told, Failure.WORKER)
    if exit_code is not None and -exit_code in _CRASHES:
        why = (
            f"crashed ({signal.Signals(-exit_code).name}): its file is damaged, or a library that reads it is at fault."
        )
        return failed(case, f"Its worker process {why} Try to open the file with other software.", Failure.WORKER)
    how = f"signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
    return failed(case, f"Its worker process died ({how}), probably out of memory. {LOWER}", Failure.WORKER)


_CRASHES = frozenset(
    getattr(signal, name) for name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE") if hasattr(signal, name)
)
LOWER = "Lower --workers or --memory."


def failed(case: Case, reason: str, failure: Failure) -> Outcome:
    """Return the outcome of a case that failed."""
    return Outcome(case, Status.FAILED, reason, failure=failure)
