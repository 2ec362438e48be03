"""Which patches come when? The order of an epoch as data, a function of counts, seed, epoch and window alone.

Entries (case, copy, patch) are numbered in that order. A shuffle gives each number a random key and sorts the keys: SplitMix64
numbers and a sort of distinct integers are the same on every machine and with every numpy. Ten million entries take a second,
40 MiB, and 120 MiB while they are sorted. Who computes a batch has no part in it; ranks and lanes take contiguous pieces of the
one order, so that each reads few cases at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from mlarray.errors import UsageError
from mlarray.transforms.augmentations.drawing import key_of, numbers

Counts: TypeAlias = Sequence[Sequence[int]]  # case -> copy -> patches
Entries: TypeAlias = npt.NDArray[np.int64]  # (n, 3): case, copy, patch
Positions: TypeAlias = npt.NDArray[np.int64]

_PIECE = 1 << 18  # keys are made 2 MiB at a time


@dataclass(frozen=True, slots=True, eq=False)
class EpochOrder:
    """The entries of an epoch in the order they come; 4 bytes are held for each, 8 from 2**32 entries on.

    Parameters
    ----------
    slots : ndarray, shape (s, 2), int64
        Case and copy, one row per pair that has patches or not.
    ends : ndarray, shape (s,), int64
        Number of the entry after the last of each slot.
    numbers : ndarray, shape (n,), unsigned
        Number of the entry at each position.

    Examples
    --------
    >>> order = epoch_order([[2, 1], [3]], seed=0, epoch=0, shuffle=False)
    >>> len(order), order[2:5].tolist()
    (6, [[0, 1, 0], [1, 0, 0], [1, 0, 1]])
    """

    slots: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.unsignedinteger[Any]]

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, positions: int) -> npt.NDArray[np.int64]: ...
    @overload
    def __getitem__(self, positions: slice | Positions | Sequence[int]) -> Entries: ...
    def __getitem__(self, positions: int | slice | Positions | Sequence[int]) -> npt.NDArray[np.int64]:
        """Return (case, copy, patch) of a position, shape (3,), or of several, shape (m, 3)."""
        wanted = np.asarray(self.numbers[positions]).astype(np.int64)
        slot = np.searchsorted(self.ends, wanted, side="right")
        before = np.where(slot > 0, self.ends[slot - 1], 0)
        return np.concatenate([self.slots[slot], (wanted - before)[..., None]], axis=-1)


def epoch_order(counts: Counts, *, seed: int, epoch: int, shuffle: bool, window: int | None = None) -> EpochOrder:
    """Return every patch of an epoch exactly once, in the order of the epoch.

    Parameters
    ----------
    counts : sequence of sequence of int
        ``counts[case][copy]`` patches.
    seed, epoch : int
        What the order depends on, beside the counts.
    shuffle : bool
        False: by case, copy and patch, whatever the window.
    window : int, optional
        Cases whose patches are mixed with each other: cases are shuffled and cut into windows, patches shuffled within each.
        None, 0, below, or as many as there are cases: all patches are mixed.

    Raises
    ------
    UsageError
        A count is negative.
    """
    sizes = np.array([count for copies in counts for count in copies], dtype=np.int64)
    if sizes.size and sizes.min() < 0:
        raise UsageError(f"Counts of patches are from 0 on, got {int(sizes.min())}.")
    copies = np.array([len(copies) for copies in counts], dtype=np.int64)
    first = np.cumsum(copies) - copies  # slot of the first copy of each case
    slots = np.stack([np.repeat(np.arange(len(copies)), copies), np.arange(sizes.size) - np.repeat(first, copies)], 1)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    kind: type[np.unsignedinteger[Any]] = np.uint32 if total < 1 << 32 else np.uint64
    if not shuffle:
        return EpochOrder(slots, ends, np.arange(total, dtype=kind))
    key = key_of("order of patches", seed, epoch)
    if window is None or not 0 < window < len(copies):
        return EpochOrder(slots, ends, _shuffled(key, 0, total).astype(kind))
    edges = np.concatenate([[0], ends])
    lows, highs = edges[first], edges[first + copies]
    order = _shuffled(key_of("order of cases", seed, epoch), 0, len(copies)).astype(np.int64)
    found = np.empty(total, kind)
    done = 0
    for at in range(0, len(order), window):
        cases = order[at : at + window]
        parts = [_shuffled_keys(key, int(lows[case]), int(highs[case]), total) for case in cases]
        mixed = _sorted_numbers(np.concatenate(parts), total)
        found[done : done + mixed.size] = mixed
        done += mixed.size
    return EpochOrder(slots, ends, found)


@dataclass(frozen=True, slots=True)
class Batches:
    """Positions in the order of an epoch that make the batches of one rank; made by :func:`share`.

    Indexing gives ``(positions, repeated)``: int64 positions, and which of them stand for one that another batch has too.
    """

    entries: int
    batch_size: int
    rank: int
    world_size: int
    lanes: int

    def __len__(self) -> int:
        return -(-self.entries // (self.world_size * self.batch_size))

    def __getitem__(self, index: int) -> tuple[Positions, npt.NDArray[np.bool_]]:
        rounds = len(self)
        if not -rounds <= index < rounds:
            raise IndexError(f"Batch {index} of {rounds}.")
        turn, lane = divmod(index % rounds, self.lanes)
        start = self._rank_start() + self._lane_start(lane) + turn * self.batch_size
        count = self.batch_size if index % rounds < rounds - 1 else self._last(self.rank)
        if count:
            return np.arange(start, start + count, dtype=np.int64), np.zeros(count, np.bool_)
        return np.array([start - 1 if turn else self.rank % self.entries]), np.ones(1, np.bool_)

    def __iter__(self) -> Iterator[tuple[Positions, npt.NDArray[np.bool_]]]:
        return (self[index] for index in range(len(self)))

    def _last(self, rank: int) -> int:
        """Return how many entries are left for the last batch of a rank."""
        left = self.entries - (len(self) - 1) * self.world_size * self.batch_size
        return left // self.world_size + (rank < left % self.world_size)

    def _rank_start(self) -> int:
        left = self.entries - (len(self) - 1) * self.world_size * self.batch_size
        last = self.rank * (left // self.world_size) + min(self.rank, left % self.world_size)
        return self.rank * (len(self) - 1) * self.batch_size + last

    def _lane_start(self, lane: int) -> int:
        """Return where a lane begins, counted from the first entry of the rank."""
        rounds = len(self)
        batches = sum(-(-(rounds - before) // self.lanes) for before in range(min(lane, rounds)))
        short = self.batch_size - self._last(self.rank) if (rounds - 1) % self.lanes < lane else 0
        return batches * self.batch_size - short


def share(entries: int, *, batch_size: int, rank: int = 0, world_size: int = 1, lanes: int = 1) -> Batches:
    """Return the batches of a rank: equally many on all ranks, each entry in one of them.

    The order is cut into one contiguous piece per rank, and that into one per lane; batch ``k`` is the next one of lane
    ``k % lanes``. A worker that computes every ``lanes``-th batch so walks through few cases. Only the last batch of a rank is
    short; where fewer entries than ranks are left for it, a rank without one repeats another, and marks it.

    Parameters
    ----------
    entries : int
        Of the epoch, over all ranks.
    batch_size : int
        Entries of a batch.
    rank, world_size : int
        Whose batches, among how many.
    lanes : int
        Pieces of a rank that take turns.

    Raises
    ------
    UsageError
        A size below 1, or a rank that is not among the ranks.

    Examples
    --------
    >>> [positions.tolist() for positions, repeated in share(10, batch_size=2, lanes=2)]
    [[0, 1], [6, 7], [2, 3], [8, 9], [4, 5]]
    """
    for name, value, least in (
        ("entries", entries, 0), ("batch_size", batch_size, 1), ("world_size", world_size, 1), ("lanes", lanes, 1)
    ):  # fmt: skip
        if value < least:
            raise UsageError(f"{name} is a whole number from {least} on, got {value}.")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank is one of 0 to {world_size - 1} as world_size is {world_size}, got {rank}.")
    return Batches(entries, batch_size, rank, world_size, lanes)


def _shuffled(key: int, low: int, high: int) -> npt.NDArray[np.uint64]:
    """Return the numbers from ``low`` to below ``high`` in random order."""
    return _sorted_numbers(_shuffled_keys(key, low, high, high), high)


def _shuffled_keys(key: int, low: int, high: int, total: int) -> npt.NDArray[np.uint64]:
    """Return a sortable key per number: random bits above the number itself, so that no two are equal."""
    bits = np.uint64(total.bit_length())
    keys = np.empty(high - low, np.uint64)
    for start in range(low, high, _PIECE):
        stop = min(start + _PIECE, high)
        piece = numbers(key, np.arange(start, stop, dtype=np.uint64))
        piece >>= bits
        piece <<= bits
        piece |= np.arange(start, stop, dtype=np.uint64)
        keys[start - low : stop - low] = piece
    return keys


def _sorted_numbers(keys: npt.NDArray[np.uint64], total: int) -> npt.NDArray[np.uint64]:
    keys.sort()
    keys &= np.uint64((1 << total.bit_length()) - 1)
    return keys
