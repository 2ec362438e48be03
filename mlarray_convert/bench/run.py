"""How does a whole benchmark go? Prepare data, write candidates, read them warm and cold, confirm the best, clean up."""

from __future__ import annotations

import math
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mlarray.array import MLArray
from mlarray.errors import UsageError
from mlarray.layout import PatchSize
from mlarray.machine import this_machine
from mlarray.region import Region
from mlarray.sources.memory import ArraySource
from mlarray.spec import ArraySpec
from mlarray.storage.filters import choose_filter, sample_region
from mlarray.storage.options import COMPRESSION_THREADS, SizeLike, StorageOptions
from mlarray_convert.bench.candidates import Candidate, Codec, make_candidates, parse_codec
from mlarray_convert.bench.data import (
    Origin,
    Volume,
    close_all,
    find_origins,
    fitted_shape,
    patch_extent,
    store_volumes,
)
from mlarray_convert.bench.evict import flush, why_not_cold
from mlarray_convert.bench.measure import (
    FLOOR,
    Clock,
    Entry,
    Measurement,
    Mode,
    Progress,
    Rounds,
    Stored,
    write_candidates,
)
from mlarray_convert.bench.readers import Readers
from mlarray_convert.bench.recommend import best_candidate, recommend
from mlarray_convert.bench.report import BenchReport
from mlarray_convert.request import parse_patch_size

DEFAULT_SECONDS = 60.0
DEFAULT_READERS = (1, 4)
# Shares of the time after the data is prepared at which a phase ends; the rest is for cleaning up.
_WRITTEN, _WARM, _COLD, _CONFIRMED_WARM, _CONFIRMED = 0.35, 0.6, 0.81, 0.87, 0.94
_WRITING_SHARE = 0.3  # of the time, for the size of the data; phases before and slower codecs take the rest
_PROBE_BYTES = 4 * 2**20
_MOST_BYTES = 400 * 2**20
# Small data sits in the caches of the processor, and files are nothing like real ones: rather fewer candidates than that.
_FEWEST_BYTES_PER_SECOND, _ENOUGH_BYTES = 2**19, 64 * 2**20
_CACHE_SHARE = 0.4  # of free memory, for all files together: warm reads must come from the page cache
_MOST_READERS = 64
_SPACE_SHARE = 0.9  # of the free space of the scratch folder


def bench(
    inputs: str | Path | None = None,
    *,
    synthetic: str | None = None,
    patch_size: PatchSize | str = "default",
    scratch: str | Path | None = None,
    seconds: float = DEFAULT_SECONDS,
    readers: Sequence[int] = DEFAULT_READERS,
    codecs: Sequence[str] | None = None,
    chunk_size: SizeLike = None,
    block_size: SizeLike = None,
    on_progress: Progress | None = None,
) -> BenchReport:
    """Measure layouts, codecs and filters on data like yours, and recommend one setting.

    With several readers, processes are started: a script calls this below ``if __name__ == "__main__":``.

    Parameters
    ----------
    inputs : str or Path, optional
        An image, or a folder of images of which up to four are taken; large ones are cut around their centre.
    synthetic : {"ct", "mr", "labels"}, optional
        Made-up data instead.
    patch_size : int, sequence of int, str or "default"
        The patch that training reads, such as ``128`` or ``"64,192,192"``. Default: 192 along every axis.
    scratch : str or Path, optional
        An existing folder on the storage to be measured; a folder is made in it and always removed. Default: the system's
        folder for temporary files.
    seconds : float
        Time to take, 60 by default; size of the data, candidates and rounds follow from it.
    readers : sequence of int
        Numbers of processes that read at the same time, 1 and 4 by default.
    codecs : sequence of str, optional
        Tried beside LZ4HC-5, such as ``("LZ4-5", "ZSTD-1")``, which is the default.
    chunk_size, block_size : int or sequence of int, optional
        A layout of your own that is measured too, extents per array axis.
    on_progress : callable, optional
        Called with what is being done and the share of the time that has passed.

    Returns
    -------
    BenchReport
        Every measurement, and the recommendation.

    Raises
    ------
    UsageError
        Arguments that are not understood, data without voxels, or too little space in the scratch folder.
    LayoutError
        A layout of your own that cannot be stored.

    Examples
    --------
    >>> report = bench(synthetic="labels", patch_size=16, seconds=0.5, readers=[1])  # far too short to be of use
    >>> report.stored[0].candidate.arguments, report.recommendation.keep_default
    ({'patch_size': 16}, True)
    """
    patch = parse_patch_size(patch_size) if patch_size is not None else "default"
    counts = _checked_readers(readers)
    if not seconds > 0 or not math.isfinite(seconds):
        raise UsageError(f"A benchmark needs some time; got {seconds!r} seconds.")
    parsed = None if codecs is None else [parse_codec(text) for text in codecs]
    place = Path(scratch) if scratch is not None else Path(tempfile.gettempdir())
    if not place.is_dir():
        raise UsageError(
            f"There is no folder {place} to measure in.", hint="Create it, or choose another with scratch."
        )
    clock = Clock(seconds, on_progress)
    origins, notes = find_origins(None if inputs is None else Path(inputs), synthetic)
    try:
        for origin in origins:
            if origin.source.spec.ndim == 0 or origin.source.spec.size == 0:
                raise UsageError(f"{origin.name} has no voxels to read.")
        wishes = _Wishes(patch, chunk_size, block_size, parsed)
        proposed = wishes.candidates(origins[0].source.spec, "shuffle")
        budget = _budget(origins, patch, len(proposed), place, clock)
        with (
            tempfile.TemporaryDirectory(prefix="mla-bench-", dir=place, ignore_cleanup_errors=True) as name,
            Readers(max(counts)) as pool,
        ):
            return _measured(origins, wishes, counts, budget, Path(name), pool, clock, notes)
    finally:
        close_all(origins)


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What the caller wants to be compared."""

    patch: PatchSize
    chunk_size: SizeLike
    block_size: SizeLike
    codecs: Sequence[Codec] | None

    def candidates(self, spec: ArraySpec, chosen_filter: str) -> tuple[Candidate, ...]:
        return make_candidates(
            spec,
            self.patch,
            chosen_filter=chosen_filter,
            chunk_size=self.chunk_size,
            block_size=self.block_size,
            codecs=self.codecs,
        )


def _measured(
    origins: Sequence[Origin],
    wishes: _Wishes,
    counts: Sequence[int],
    budget: int,
    folder: Path,
    pool: Readers,
    clock: Clock,
    notes: Sequence[str],
) -> BenchReport:
    said = list(notes)
    volumes = store_volumes(
        origins,
        folder,
        wishes.patch,
        budget_bytes=budget,
        progress=lambda share: clock.tell(f"preparing data, {share:.0%}"),
    )
    for volume in volumes:
        flush(volume.path)
        if volume.spec.shape != volume.full_shape:
            said.append(
                f"{volume.name}: the central {_by(volume.spec.shape)} voxels of {_by(volume.full_shape)} were used, to "
                f"keep within {clock.seconds:g} seconds and the space there is."
            )
    spec = volumes[0].spec
    clock.prepared()
    candidates = wishes.candidates(spec, _chosen_filter(volumes[0], wishes.patch))
    stored, left_out = write_candidates(candidates, volumes, folder, clock=clock, until=_WRITTEN)
    if left_out:
        said.append(f"There was no time to write {', '.join(left_out)}; give more --seconds.")
    problem = why_not_cold(volumes[0].path)
    if problem:
        said.append(f"Cold reads were not measured: {problem}.")
    warm = [Mode(cold=False, readers=count) for count in counts]
    cold = [] if problem else [Mode(cold=True, readers=count) for count in counts]
    measurement = Measurement(volumes, wishes.patch, pool, clock)
    first = _rounds(measurement, _entries(stored, volumes), warm, cold, until=(_WARM, _COLD), seed=1, what="reading")
    for rounds in first:
        if rounds.dropped:
            kind = next(iter(rounds.seconds)).partition("_")[0]
            said.append(f"There was no time to read {', '.join(rounds.dropped)} {kind}; give more --seconds.")
    chosen = best_candidate(stored, first)
    second: tuple[Rounds, ...] = ()
    if chosen is not None:
        entries = [
            entry
            for entry in _entries(stored, volumes)
            if entry.name in (stored[0].candidate.name, chosen.candidate.name)
        ]
        second = _rounds(
            measurement, entries, warm, cold, until=(_CONFIRMED_WARM, _CONFIRMED), seed=2, what="confirming"
        )
    clock.tell("done")
    return BenchReport(
        data=_data_facts(volumes, wishes.patch),
        machine=_machine_facts(folder.parent),
        stored=stored,
        modes=(*warm, *cold),
        first=first,
        second=second,
        recommendation=recommend(stored, chosen, first, second),
        notes=tuple(said),
        seconds=clock.passed,
    )


def _rounds(
    measurement: Measurement,
    entries: Sequence[Entry],
    warm: Sequence[Mode],
    cold: Sequence[Mode],
    *,
    until: tuple[float, float],
    seed: int,
    what: str,
) -> tuple[Rounds, ...]:
    """Measure all warm modes, then all cold ones; without cold modes the warm ones get their time."""
    ends = until if cold else (until[1], until[1])
    return tuple(
        measurement.rounds(entries, modes, until=end, seed=seed, what=f"{what} {kind}")
        for modes, end, kind in ((warm, ends[0], "warm"), (cold, ends[1], "cold"))
        if modes
    )


def _entries(stored: Sequence[Stored], volumes: Sequence[Volume]) -> list[Entry]:
    """Return everything to read: the default, the floor, and the rest in the order of their promise."""
    entries = [Entry(one.candidate.name, one.paths) for one in stored]
    entries.insert(1, Entry(FLOOR, tuple(volume.path for volume in volumes)))
    return entries


def _budget(origins: Sequence[Origin], patch: PatchSize, candidates: int, place: Path, clock: Clock) -> int:
    """Return the bytes of voxels that time, memory and disk allow.

    Raises
    ------
    UsageError
        When the scratch folder has no space for the smallest volumes that make sense.
    """
    clock.tell("looking at the data")
    usable = int(shutil.disk_usage(place).free * _SPACE_SHARE)
    memory = int(this_machine().memory_bytes * _CACHE_SHARE)
    rate = _probe_rate(origins[0], place)
    by_time = int(clock.seconds * _WRITING_SHARE * rate / candidates)
    # Voxels that do not compress at all: every candidate is as large as the data.
    by_space = min(usable, memory) // (candidates + 1)
    least = min(_ENOUGH_BYTES, int(clock.seconds * _FEWEST_BYTES_PER_SECOND))
    budget = max(2**16, min(max(by_time, least), by_space, _MOST_BYTES))
    smallest = 0
    for origin in origins:
        spec = origin.source.spec
        shape = fitted_shape(spec, patch_extent(spec, patch), budget // len(origins))
        smallest += math.prod(shape) * spec.dtype.itemsize
    needed = smallest * (candidates + 1)
    if needed > usable:
        raise UsageError(
            f"{candidates} candidates of {smallest / 1e6:.0f} MB of voxels may need {needed / 1e6:.0f} MB in {place}; "
            f"{usable / 1e6:.0f} MB are free there.",
            hint="Choose another folder for the scratch files, or a smaller patch.",
        )
    return budget


def _probe_rate(origin: Origin, place: Path) -> float:
    """Return how many bytes of voxels are written per second, tried on a few megabytes from the centre."""
    spec = origin.source.spec
    extent = fitted_shape(spec, (1,) * spec.ndim, _PROBE_BYTES)
    start = tuple((n - e) // 2 for n, e in zip(spec.shape, extent, strict=True))
    voxels = origin.source.read(Region.at(start, extent))
    with tempfile.TemporaryDirectory(prefix="mla-bench-", dir=place, ignore_cleanup_errors=True) as name:
        path = Path(name) / "probe.mla"
        times = []
        for _ in range(2):  # the first use loads blosc2
            began = time.perf_counter()
            MLArray(voxels).save(path)
            flush(path)
            times.append(time.perf_counter() - began)
        return voxels.nbytes / max(1e-3, min(times))


def _chosen_filter(volume: Volume, patch: PatchSize) -> str:
    """Return the filter that the default chooses for a volume."""
    layout = StorageOptions(patch_size=patch).layout_for(volume.spec)
    region = sample_region(volume.spec.shape, layout.chunks)
    sample = ArraySource(volume.voxels(), volume.spec).read(region)
    return "shuffle" if choose_filter(sample, layout, threads=COMPRESSION_THREADS).shuffle else "none"


def _checked_readers(readers: Sequence[int]) -> tuple[int, ...]:
    counts = tuple(dict.fromkeys(readers))
    if not counts or any(isinstance(count, bool) or not 1 <= count <= _MOST_READERS for count in counts):
        raise UsageError(
            f"Numbers of readers are from 1 to {_MOST_READERS}; got {', '.join(map(str, readers)) or 'none'}."
        )
    return counts


def _data_facts(volumes: Sequence[Volume], patch: PatchSize) -> dict[str, object]:
    return {
        "volumes": [
            {"name": volume.name, "shape": list(volume.spec.shape), "full_shape": list(volume.full_shape)}
            for volume in volumes
        ],
        "dtype": str(volumes[0].spec.dtype),
        "bytes": sum(volume.spec.nbytes for volume in volumes),
        "patch_size": patch if isinstance(patch, int | str) or patch is None else list(patch),
        "patch_extent": list(patch_extent(volumes[0].spec, patch)),
    }


def _machine_facts(place: Path) -> dict[str, object]:
    machine = this_machine()
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "processors": machine.processors,
        "available": machine.reason,
        "python": platform.python_version(),
        **{name: version(name) for name in ("mlarray", "blosc2", "numpy")},
        "scratch": str(place.resolve()),
    }


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))
