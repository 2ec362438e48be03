"""How are candidates written and read, so that their times can be compared, within a given time?

Machines drift by a factor of two, so nothing is measured en bloc: a round reads the same random patches from every candidate,
in a new order each time, and what is compared are times of one round. Cold rounds come after all warm ones, because they empty
the page cache. How many patches and rounds there are follows from a first try and from the time that is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.array import MLArray
from mlarray.layout import PatchSize
from mlarray.region import Region
from mlarray.sources.memory import ArraySource
from mlarray.storage.blosc import open_store
from mlarray_convert.bench.candidates import Candidate
from mlarray_convert.bench.data import Volume, draw_patches
from mlarray_convert.bench.evict import evict, flush
from mlarray_convert.bench.readers import Patch, Readers

FLOOR = "numpy memmap"
WARM_SAMPLE_SECONDS = 0.04  # long against the 0.1 ms that starting several readers takes
COLD_SAMPLE_SECONDS = 0.1
MOST_PATCHES, MOST_ROUNDS = 64, 60
TARGET_ROUNDS, FEWEST_ROUNDS = 9, 5
FEWEST_ENTRIES = 3
USUAL_EXCESS = 1.2  # of a round over the median one
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Mode:
    """How patches are read.

    Parameters
    ----------
    cold : bool
        Whether the pages of the file are dropped before, and opening counts.
    readers : int
        Processes that read at the same time.

    Examples
    --------
    >>> Mode(cold=True, readers=4).key
    'cold_4'
    """

    cold: bool
    readers: int

    @property
    def key(self) -> str:
        """Short name."""
        return f"{'cold' if self.cold else 'warm'}_{self.readers}"


@dataclass(frozen=True, slots=True)
class Stored:
    """A candidate on disk.

    Parameters
    ----------
    candidate : Candidate
        What was asked for.
    paths : tuple of Path
        One file per volume.
    chunks, blocks : tuple of int
        Of the first file.
    filters : tuple of str
        In use in the first file.
    stored_bytes : int
        Of all files.
    write_seconds : float
        To choose the filter, compress, write and flush all of them.
    """

    candidate: Candidate
    paths: tuple[Path, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    filters: tuple[str, ...]
    stored_bytes: int
    write_seconds: float


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that is read in every round: a candidate, or the floor.

    Parameters
    ----------
    name : str
        Of the candidate, or :data:`FLOOR`.
    paths : tuple of Path
        One file per volume.
    """

    name: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was measured.

    Parameters
    ----------
    seconds : mapping
        Of the key of a mode to a mapping of the name of an entry to seconds per patch, one value per round; with several
        readers the time until all are done, divided by the patches of all. Value ``i`` of all entries is of the same patches.
    patches : mapping
        Of the key of a mode to the patches per reader in one round.
    dropped : tuple of str
        Entries that were left out because the time would not have been enough for all.
    """

    seconds: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    patches: Mapping[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


class Clock:
    """The time there is.

    Parameters
    ----------
    seconds : float
        From now on.
    on_progress : callable, optional
        Called with what is being done and the share of the time that has passed.
    """

    def __init__(self, seconds: float, on_progress: Progress | None = None) -> None:
        self.seconds = seconds
        self._began = time.monotonic()
        self._prepared = 0.0
        self._on_progress = on_progress

    @property
    def passed(self) -> float:
        """Seconds that have passed."""
        return time.monotonic() - self._began

    def prepared(self) -> None:
        """Let shares count from now on: what is left is divided, however long the data took."""
        self._prepared = min(self.passed, self.seconds)

    def left_until(self, share: float) -> float:
        """Return the seconds until a share of the time has passed; negative afterwards."""
        return self._prepared + (self.seconds - self._prepared) * share - self.passed

    def tell(self, what: str) -> None:
        """Report progress."""
        if self._on_progress is not None:
            self._on_progress(what, min(1.0, self.passed / self.seconds))


def write_candidate(candidate: Candidate, volumes: Sequence[Volume], folder: Path, number: int) -> Stored:
    """Store every volume as a candidate asks, in the way ``MLArray`` does, and flush the files to disk."""
    arguments: dict[str, Any] = dict(candidate.arguments)
    paths, seconds = [], 0.0
    for index, volume in enumerate(volumes):
        path = folder / f"candidate_{number}_{index}.mla"
        source = ArraySource(volume.voxels(), volume.spec)
        began = time.perf_counter()
        MLArray.from_source(source, **arguments).save(path)
        flush(path)
        seconds += time.perf_counter() - began
        paths.append(path)
    store = open_store(paths[0])
    try:
        chunks, blocks, filters = store.chunks, store.blocks, store.compression.filters
    finally:
        store.close()
    total = sum(path.stat().st_size for path in paths)
    return Stored(candidate, tuple(paths), chunks, blocks, filters, total, seconds)


def write_candidates(
    candidates: Sequence[Candidate], volumes: Sequence[Volume], folder: Path, *, clock: Clock, until: float
) -> tuple[tuple[Stored, ...], tuple[str, ...]]:
    """Write candidates until a share of the time has passed.

    The first two are written whatever it takes: with fewer there is nothing to compare.

    Returns
    -------
    stored : tuple of Stored
        In the order of the candidates.
    left_out : tuple of str
        Names of those there was no time for.
    """
    stored: list[Stored] = []
    for number, candidate in enumerate(candidates):
        longest = max((one.write_seconds for one in stored), default=0.0)
        if len(stored) >= 2 and clock.left_until(until) < longest / 2:
            return tuple(stored), tuple(one.name for one in candidates[number:])
        clock.tell(f"writing {number + 1} of {len(candidates)}: {candidate.name}")
        stored.append(write_candidate(candidate, volumes, folder, number))
    if clock.left_until(until) > stored[0].write_seconds:
        # The first write of a process is slower than all others: it starts threads and loads code.
        again = write_candidate(candidates[0], volumes, folder, 0)
        stored[0] = replace(again, write_seconds=min(again.write_seconds, stored[0].write_seconds))
    return tuple(stored), ()


def load_pages(entries: Sequence[Entry]) -> None:
    """Read every file once, so that it is in the page cache."""
    for entry in entries:
        for path in entry.paths:
            with path.open("rb", buffering=0) as file:
                while file.read(2**22):
                    pass


class Measurement:
    """Reads of one set of volumes.

    Parameters
    ----------
    volumes : sequence of Volume
        Where patches are drawn.
    patch_size : int, sequence of int or "default"
        Extent of every read.
    readers : Readers
        As many as the largest mode needs.
    clock : Clock
        The time there is.
    """

    def __init__(self, volumes: Sequence[Volume], patch_size: PatchSize, readers: Readers, clock: Clock) -> None:
        self._volumes = volumes
        self._patch_size = patch_size
        self._readers = readers
        self._clock = clock

    def rounds(self, entries: Sequence[Entry], modes: Sequence[Mode], *, until: float, seed: int, what: str) -> Rounds:
        """Measure rounds until a share of the time has passed; at least one.

        Parameters
        ----------
        entries : sequence of Entry
            The default first; where there is no time for five rounds with all of them, those at the end are left out, down
            to three.
        modes : sequence of Mode
            All warm or all cold.
        until : float
            Share of the time, from 0 to 1.
        seed : int
            Of the random patches and orders.
        what : str
            For the progress.
        """
        rng = np.random.default_rng(seed)
        if not modes[0].cold:
            load_pages(entries)
        self._clock.tell(f"{what}: trying")
        counts, cost = self._tried(entries[0], modes, rng)
        left = max(0.0, self._clock.left_until(until))
        while cost * len(entries) * TARGET_ROUNDS > left and max(counts.values()) > 1:
            counts = {mode: max(1, count // 2) for mode, count in counts.items()}
            cost /= 2
        affordable = int(left / (cost * FEWEST_ROUNDS)) if cost else len(entries)
        kept = list(entries[: max(FEWEST_ENTRIES, affordable)])
        found: dict[str, dict[str, list[float]]] = {mode.key: {entry.name: [] for entry in kept} for mode in modes}
        durations: list[float] = []
        while not durations or (
            len(durations) < MOST_ROUNDS and self._clock.left_until(until) > USUAL_EXCESS * float(np.median(durations))
        ):
            began = self._clock.passed
            self._clock.tell(f"{what}: round {len(durations) + 1}")
            for mode in modes:
                times = self._round(kept, mode, counts[mode], rng)
                for name, value in times.items():
                    found[mode.key][name].append(value)
            durations.append(self._clock.passed - began)
            if len(durations) == 1:
                kept = kept[: self._lasting(len(kept), durations[0], until)]
        names = [entry.name for entry in kept]
        return Rounds(
            {key: {name: tuple(times[name]) for name in names} for key, times in found.items()},
            {mode.key: counts[mode] for mode in modes},
            tuple(entry.name for entry in entries[len(kept) :]),
        )

    def _lasting(self, entries: int, seconds: float, until: float) -> int:
        """Return how many entries there is time for in all rounds, after a first one that took ``seconds``."""
        rounds = max(0.0, self._clock.left_until(until)) / (USUAL_EXCESS * max(seconds, 1e-6))
        share = min(1.0, rounds / (FEWEST_ROUNDS - 1))
        return max(min(entries, FEWEST_ENTRIES), int(entries * share))

    def _tried(self, entry: Entry, modes: Sequence[Mode], rng: np.random.Generator) -> tuple[dict[Mode, int], float]:
        """Return how many patches each reader reads per round, and what an entry then costs in one round."""
        counts, cost = {}, 0.0
        for mode in modes:
            self._sample(entry, mode, self._draw(mode, 1, rng))  # the first read of a process pays for imports
            began = time.perf_counter()
            per_patch = self._sample(entry, mode, self._draw(mode, 1, rng)) * mode.readers
            extra = max(0.0, time.perf_counter() - began - per_patch)
            aim = COLD_SAMPLE_SECONDS if mode.cold else WARM_SAMPLE_SECONDS
            counts[mode] = max(1, min(MOST_PATCHES, round(aim / max(per_patch, 1e-6))))
            cost += per_patch * counts[mode] + extra
        return counts, cost

    def _round(self, entries: Sequence[Entry], mode: Mode, count: int, rng: np.random.Generator) -> dict[str, float]:
        drawn = self._draw(mode, count, rng)
        order = rng.permutation(len(entries))
        return {entries[index].name: self._sample(entries[index], mode, drawn) for index in order}

    def _draw(self, mode: Mode, count: int, rng: np.random.Generator) -> list[list[tuple[int, Region]]]:
        return [list(draw_patches(self._volumes, self._patch_size, count, rng)) for _ in range(mode.readers)]

    def _sample(self, entry: Entry, mode: Mode, drawn: Sequence[Sequence[tuple[int, Region]]]) -> float:
        """Return seconds per patch."""
        if mode.cold:
            for path in entry.paths:
                evict(path)
        shares = [[Patch(str(entry.paths[number]), region) for number, region in share] for share in drawn]
        return self._readers.seconds(shares, cold=mode.cold) / sum(map(len, shares))
