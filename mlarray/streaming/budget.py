"""How much memory may one rank use? What was asked for, or a share of what its process may really have.

A number alone counts GiB. ``"auto"`` is 80 % of what is left to the process: of the memory of the machine, of its control groups
and those above them, or of its Slurm job, divided by the ranks on this node.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from mlarray.errors import UsageError
from mlarray.machine import MEMORY_SHARE, SYSTEM, memory_available
from mlarray.notice import notice
from mlarray.streaming.arguments import whole

GIB = 1 << 30
LARGEST_BARE_GIB = 1 << 20
"""Larger numbers without a unit are taken for bytes by mistake: 1 PiB is in no machine."""

SMALL_BUDGET_BYTES = 256 << 20
"""Below this a warning is given: torch alone takes as much."""

_FORMS = (
    'Write "auto", a number of GiB such as 24 or 1.5, or text with a unit such as "24GB" or "512 mib": '
    "b, k, m, g, t, kb, mb, gb, tb (powers of 1000), kib, mib, gib, tib (of 1024)."
)
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)")
_DECIMAL = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS = {
    "": GIB,
    "b": 1,
    **_DECIMAL,
    **{f"{unit}b": size for unit, size in _DECIMAL.items()},
    **{f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", start=1)},
}
_RANKS = (  # torchrun, Open MPI, MVAPICH, Intel MPI
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)
_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")  # the first is srun's own


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory that a rank may use.

    Parameters
    ----------
    bytes : int
        Of this rank.
    told : str
        Where the number comes from.
    """

    bytes: int
    told: str


def memory_budget(
    value: object = "auto",
    *,
    ranks_on_node: int | None = None,
    environment: Mapping[str, str] | None = None,
    root: Path = SYSTEM,
) -> Budget:
    """Return the memory budget of this rank; warns when it is below 256 MiB.

    Parameters
    ----------
    value : optional
        ``"auto"`` or None: 80 % of what is available, divided by the ranks on this node. Else an amount for each rank, see
        :func:`parse_bytes`.
    ranks_on_node : int, optional
        Default: what the launcher says, see :func:`launched_ranks`.
    environment : mapping, optional
        Variables of the process. Default: its own.
    root : Path
        Folder with ``proc`` and ``sys``.

    Raises
    ------
    UsageError
        Another form, or fewer than one rank.

    Examples
    --------
    >>> memory_budget("24GB")
    Budget(bytes=24000000000, told='given')
    """
    given = value.strip().lower() if isinstance(value, str) else value
    if given is not None and not (isinstance(given, str) and given == "auto"):
        budget = Budget(parse_bytes(value), "given")
    else:
        budget = _automatic(os.environ if environment is None else environment, root, ranks_on_node)
    if budget.bytes < SMALL_BUDGET_BYTES:
        told = f"{budget.bytes >> 20} MiB" if budget.bytes >= 1 << 20 else gib(budget.bytes)
        notice(f"The memory budget of {told} per rank ({budget.told}) is below 256 MiB: few patches fit.")
    return budget


def parse_bytes(value: object) -> int:
    """Return an amount of memory in bytes.

    Parameters
    ----------
    value : number or str
        A number counts GiB. Text is a number with a unit, in upper or lower case, perhaps with a space between: ``b``; ``k``,
        ``m``, ``g``, ``t`` or ``kb`` ... ``tb``, decimal; ``kib``, ``mib``, ``gib``, ``tib``, binary. Without one it counts GiB.

    Raises
    ------
    UsageError
        Another form, less than one byte, or a number without unit above 2^20; the message lists what is accepted.

    Examples
    --------
    >>> parse_bytes(24), parse_bytes("24 gb"), parse_bytes("512MiB"), parse_bytes(0.5)
    (25769803776, 24000000000, 536870912, 536870912)
    """
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip().lower())
        if match is None or match[2] not in _UNITS:
            raise _refused(value, "is no amount of memory")
        number, unit = float(match[1]), match[2]
    elif isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
        number, unit = float(value), ""
    else:
        raise _refused(value, "is no amount of memory")
    if number <= 0:
        raise _refused(value, "is not above 0")
    if not unit and number > LARGEST_BARE_GIB:
        raise _refused(value, "counts GiB without a unit, which makes more than 1 PiB")
    amount = number * _UNITS[unit]
    if amount < 1:
        raise _refused(value, "is less than one byte")
    if not math.isfinite(amount):
        raise _refused(value, "is no amount of memory")
    return int(amount)


def launched_ranks(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return how many ranks run on this node as far as their launcher says, and the variable that says so.

    Parameters
    ----------
    environment : mapping
        Variables of the process: torchrun's, those of MPI launchers, Slurm's.

    Returns
    -------
    count : int
        1 where nobody says anything.
    name : str
        Empty then.
    """
    for name in _RANKS:
        count = environment.get(name, "").strip()
        if count.isdecimal() and int(count) > 0:
            return int(count), name
    for name in _TASKS:
        counts = _tasks_per_node(environment.get(name, ""))
        if counts:
            node = environment.get("SLURM_NODEID", "").strip()
            known = node.isdecimal() and int(node) < len(counts)
            return counts[int(node)] if known else max(counts), name
    return 1, ""


def gib(amount: float) -> str:
    """Return an amount of bytes as people read it: GiB with two decimals, or the unit in which something is left of it."""
    if amount >= GIB / 100:
        return f"{amount / GIB:.2f} GiB"
    if amount == 0 or amount >= (1 << 20) / 100:
        return f"{amount / (1 << 20):.2f} MiB"
    return f"{amount:.0f} byte{'' if amount == 1 else 's'}"


def _automatic(environment: Mapping[str, str], root: Path, ranks: int | None) -> Budget:
    if ranks is None:
        ranks, name = launched_ranks(environment)
    else:
        ranks, name = whole("ranks_on_node", ranks, 1), ""
    available, limit = memory_available(environment, root=root, ranks=ranks)
    told = f"{MEMORY_SHARE:.0%} of {gib(available)}, {limit}"
    if ranks > 1:
        told += f", shared by {ranks} ranks" + (f" as {name} says" if name else "")
    return Budget(max(1, int(available * MEMORY_SHARE) // ranks), told)


def _tasks_per_node(text: str) -> list[int]:
    """Return the tasks of each node from Slurm's short form, ``"2(x3),1"``; nothing where it is of no such form."""
    counts: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part.strip())
        if match is None or int(match[1]) < 1:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _refused(value: object, why: str) -> UsageError:
    return UsageError(f"memory_budget {value!r} {why}.", hint=_FORMS)
