"""How is a machine divided among workers? So many that each has memory enough, with the processors left as threads."""

from __future__ import annotations

from dataclasses import dataclass

from mlarray.machine import MEMORY_SHARE, Machine

COMFORTABLE_WORKER_BYTES = 1_000_000_000  # below this per worker, fewer workers are started


@dataclass(frozen=True, slots=True)
class Share:
    """What each worker gets.

    Parameters
    ----------
    workers : int
        Processes.
    threads : int
        Compression threads of each; workers times threads is at most the number of processors.
    memory_bytes : int
        Memory limit of each.
    reason : str
        How they were chosen.
    place : str
        Where the workers are; empty for this machine.
    """

    workers: int
    threads: int
    memory_bytes: int
    reason: str
    place: str = ""


def share_out(machine: Machine, *, cases: int, workers: int | None = None, memory_bytes: int | None = None) -> Share:
    """Divide a machine among workers.

    Parameters
    ----------
    machine : Machine
        What there is.
    cases : int
        More workers than cases are of no use.
    workers : int, optional
        As asked for. Default: one per processor, fewer when each would get less than 1 GB.
    memory_bytes : int, optional
        Limit of each worker, as asked for. Default: 80 % of what is available, divided by the workers.
    """
    usable = int(machine.memory_bytes * MEMORY_SHARE)
    fitting = max(1, usable // (memory_bytes or COMFORTABLE_WORKER_BYTES))
    wanted = min(machine.processors, fitting) if workers is None else workers
    count = max(1, min(wanted, cases))
    return Share(count, max(1, machine.processors // count), memory_bytes or usable // count, machine.reason)
