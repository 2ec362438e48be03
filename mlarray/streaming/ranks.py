"""Which of how many processes that train together is this one?"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlarray.errors import UsageError
from mlarray.streaming.arguments import whole


@dataclass(frozen=True, slots=True)
class Rank:
    """A process among those that train together.

    Parameters
    ----------
    rank, world_size : int
        Which one, of how many.
    on_node : int
        How many of them share the memory of this machine.
    """

    rank: int = 0
    world_size: int = 1
    on_node: int = 1


def this_rank(
    rank: int | None = None, world_size: int | None = None, *, environment: Mapping[str, str] = os.environ
) -> Rank:
    """Return which process this is.

    Parameters
    ----------
    rank, world_size : int, optional
        As the caller says. Default: those of ``torch.distributed`` where it has been initialised, else ``RANK`` and
        ``WORLD_SIZE`` of the environment, as ``torchrun`` sets them, else the only one.
    environment : mapping
        Where to look; ``LOCAL_WORLD_SIZE`` says how many share the machine. Default: all of them.

    Raises
    ------
    UsageError
        A rank that is not among the ranks.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank and world_size come together, got {rank} and {world_size}.")
    if rank is None or world_size is None:
        rank, world_size = _of_torch() or (_number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1))
    rank, world_size = whole("rank", rank, 0), whole("world_size", world_size, 1)
    if not 0 <= rank < world_size:
        raise UsageError(f"rank is one of 0 to {world_size - 1} as world_size is {world_size}, got {rank}.")
    return Rank(rank, world_size, min(world_size, max(1, _number(environment, "LOCAL_WORLD_SIZE", world_size))))


def deal(sizes: Sequence[int], ranks: int) -> list[tuple[int, ...]]:
    """Return which items each rank gets: the largest first, each to the rank that has least.

    Examples
    --------
    >>> deal([5, 3, 3, 1], 2)
    [(0, 3), (1, 2)]
    """
    loads = [0] * ranks
    dealt: list[list[int]] = [[] for _ in loads]
    for item in sorted(range(len(sizes)), key=lambda one: (-sizes[one], one)):
        rank = loads.index(min(loads))
        loads[rank] += sizes[item]
        dealt[rank].append(item)
    return [tuple(sorted(items)) for items in dealt]


def _of_torch() -> tuple[int, int] | None:
    """Return what ``torch.distributed`` says, without importing torch for it."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() else default
