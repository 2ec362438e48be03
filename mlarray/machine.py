"""How many processors and how much memory may this process use?

The number of cores of the machine is the wrong answer on a shared one: the affinity mask, the cgroup of a container (and
those above it) and a Slurm job each allow less. Everything is read once, at the edge; the functions take the places to look
at, so that they can be tried on other machines' files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

MEMORY_SHARE = 0.8  # of what is available; the rest is for the page cache and for the parent process
SYSTEM = Path("/")
FREE_MEMORY = "free memory of the machine"  # what limits a process that nothing else does
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use.

    Parameters
    ----------
    processors : int
        At least 1.
    memory_bytes : int
        Available now.
    reason : str
        Where the two numbers come from.
    """

    processors: int
    memory_bytes: int
    reason: str


def this_machine() -> Machine:
    """Return what this process may use now."""
    processors, why = processor_limit(os.environ, root=SYSTEM)
    memory, limit = memory_available(os.environ, root=SYSTEM)
    return Machine(processors, memory, f"{why}; {memory / 1e9:.1f} GB ({limit})")


def processor_limit(environment: Mapping[str, str], *, root: Path) -> tuple[int, str]:
    """Return the number of processors this process may use, and what limits it."""
    try:
        limits = [(len(os.sched_getaffinity(0)), "CPU affinity")]
    except AttributeError:  # macOS and Windows have no affinity mask to ask for
        limits = [(os.cpu_count() or 1, "processors of the machine")]
    quota = _cgroup_processors(root)
    if quota is not None:
        limits.append((quota, "cgroup CPU quota"))
    slurm = _slurm_processors(environment)
    if slurm is not None:
        limits.append(slurm)
    count, why = min(limits, key=lambda limit: limit[0])
    return max(1, count), f"{max(1, count)} CPUs ({why})"


def memory_available(
    environment: Mapping[str, str] = MappingProxyType({}), *, root: Path, ranks: int = 1
) -> tuple[int, str]:
    """Return the memory that is available, in bytes, and what limits it.

    A Slurm job is held to what it asked for also where no cgroup does: Slurm kills it above that.

    Parameters
    ----------
    environment : mapping
        Variables of the process.
    root : Path
        Folder with ``proc`` and ``sys``.
    ranks : int
        How many processes like this one share it: counts where a job asked for memory per processor of a task.
    """
    import psutil

    free, why = int(psutil.virtual_memory().available), FREE_MEMORY
    for folder in _cgroup_folders(root, "memory"):
        stated = (_number(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
        limit = min((number for number in stated if number), default=None)
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        if limit is None:
            continue
        left = max(0, limit - used + _reclaimable(folder))
        if left < free:
            free, why = left, "cgroup memory limit"
    slurm = _slurm_memory(environment, ranks)
    if slurm is not None and slurm[0] < free:
        free, why = slurm
    return free, why


def _slurm_processors(environment: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the processors of a Slurm task; of the job on this node when it did not ask for any number per task."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        count = _positive(environment, name)
        if count is not None:
            return count, name
    return None


def _slurm_memory(environment: Mapping[str, str], ranks: int) -> tuple[int, str] | None:
    """Return the memory of some tasks of a Slurm job on this node; the variables hold MiB (sbatch(1), output variables)."""
    whole = _positive(environment, "SLURM_MEM_PER_NODE")
    if whole is not None:
        return whole * _MIB, "SLURM_MEM_PER_NODE"
    for name, count in (
        ("SLURM_MEM_PER_CPU", _slurm_node_processors(environment, ranks)),
        ("SLURM_MEM_PER_GPU", _positive(environment, "SLURM_GPUS_ON_NODE")),
    ):
        each = _positive(environment, name)
        if each is not None:
            return each * _MIB * (count or 1), name
    return None


def _slurm_node_processors(environment: Mapping[str, str], ranks: int) -> int | None:
    """Return the processors of some tasks together: never more than the job has on this node."""
    task, node = _positive(environment, "SLURM_CPUS_PER_TASK"), _positive(environment, "SLURM_CPUS_ON_NODE")
    tasks = None if task is None else task * ranks
    return min((count for count in (tasks, node) if count is not None), default=None)


def _positive(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _cgroup_processors(root: Path) -> int | None:
    counts = []
    for folder in _cgroup_folders(root, "cpu"):
        fields = _text(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
            counts.append(int(fields[0]) / int(fields[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota and period:
            counts.append(quota / period)
    return max(1, int(min(counts))) if counts else None


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group, version 2 or 1, and of all groups above it."""
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = base
        elif controller in controllers.split(","):
            top = base / controller
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _reclaimable(folder: Path) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux, or a controller that is not there
        return ""
