"""Where do the voxels of patches come from, and does that fit in memory? Decided from headers, before anything starts.

A training set whose transformed cases fit the budget is *cached*: every case stays in memory. Otherwise, and always for
prediction and evaluation, which go through the data once, a patch is computed from its region of the file (*stream*), or, where
the chain does not allow that, cut from the whole result, which waits in a queue of a few cases (*buffer*). The voxels are the
same.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mlarray.errors import MemoryLimitError, UsageError
from mlarray.streaming.arguments import instance, listed, mapping, one_of, whole
from mlarray.streaming.budget import Budget, gib
from mlarray.streaming.grid import extents_of
from mlarray.streaming.rules import Regime

MOST_WORKERS = 4
"""Workers that are started by default where cases are not in memory, if there are as many processors."""

LINE_WIDTH = 80
MODES = ("train", "predict", "evaluate")

EVALUATION_SHARE = 0.8
"""Of the budget, for the arrays of an evaluation."""

EVALUATION_COPIES = 3.0
"""What a voxel and channel takes in units of a float32: itself, and twice that for what is computed of it."""

_FLOAT_BYTES = 4


class CaseRegime(StrEnum):
    """Where the patches of one copy of one group of a case come from."""

    CACHE = "cache"
    STREAM = Regime.STREAM.value
    BUFFER = Regime.BUFFER.value


@dataclass(frozen=True, slots=True)
class CaseEstimate:
    """What a case takes, as its headers say.

    Parameters
    ----------
    case : str
        Name.
    stored_bytes : int
        Of its groups, decompressed.
    resident_bytes : int
        Of the results of the chains of its groups, without copies.
    streams : mapping of str to tuple of bool
        Per group and copy (0 is the case itself), whether patches are computed from regions of the file. False also for a file
        that cannot be read in parts.
    peak_bytes : int
        Most that one process holds at once while it computes a sample, beside results that are kept.
    buffered_bytes : int, optional
        Of the results that are kept while the case is in the queue. Default: all, where anything does not stream.
    """

    case: str
    stored_bytes: int
    resident_bytes: int
    streams: Mapping[str, tuple[bool, ...]]
    peak_bytes: int
    buffered_bytes: int | None = None

    @property
    def all_stream(self) -> bool:
        """Whether nothing of the case has to be computed as a whole."""
        return all(all(copies) for copies in self.streams.values())

    @property
    def queued_bytes(self) -> int:
        """What the case takes in a queue."""
        if self.all_stream:
            return 0
        return self.resident_bytes if self.buffered_bytes is None else self.buffered_bytes


@dataclass(frozen=True, slots=True)
class Decision:
    """What :func:`decide` returns; ``str()`` gives ``line``.

    Parameters
    ----------
    regime : CaseRegime
        Of the data set: cached; streamed; or buffered, where anything in it is.
    streams : mapping of str to (mapping of str to tuple of bool)
        Per case, what :class:`CaseEstimate` says.
    fifo_cases : int
        Places of the queue of each process; the case that was loaded first goes first.
    workers : int
        Processes that make patches; 0: the process that asks for them.
    predicted_peak_bytes : int
        Of all processes of a rank together, at most.
    line : str
        The decision in words, with its numbers, in lines of at most 80 characters.
    """

    regime: CaseRegime
    streams: Mapping[str, Mapping[str, tuple[bool, ...]]]
    fifo_cases: int
    workers: int
    predicted_peak_bytes: int
    line: str

    def of(self, case: str, copy: int, group: str) -> CaseRegime:
        """Return where the patches of a copy of a group of a case come from."""
        if self.regime is CaseRegime.CACHE:
            return CaseRegime.CACHE
        return CaseRegime.STREAM if self.streams[case][group][copy] else CaseRegime.BUFFER

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True, slots=True)
class _Load:
    """What the cases take that are not cached."""

    cases: int
    queued: tuple[int, ...]  # bytes of the cases that do not stream, the largest first
    places: int
    sample_bytes: int  # that a process needs beside its queue

    @property
    def queue_bytes(self) -> int:
        return sum(self.queued[: self.places])

    def peak(self, workers: int) -> int:
        return max(1, workers) * (self.sample_bytes + self.queue_bytes)


def decide(
    estimates: Sequence[CaseEstimate],
    budget: Budget,
    *,
    mode: str = "train",
    world_size: int = 1,
    batch_size: int = 1,
    shuffle_window: int | None = None,
    workers: int | None = None,
    processors: int = 1,
    batch_bytes: int = 0,
) -> Decision:
    """Decide where patches come from, and check that it fits.

    Parameters
    ----------
    estimates : sequence of CaseEstimate
        Of all cases; each rank meets each of them.
    budget : Budget
        Of each rank.
    mode : str
        ``"train"``, ``"predict"`` or ``"evaluate"``; only training caches.
    world_size : int
        Ranks, for the line.
    batch_size, shuffle_window
        The queue of a process has ``max(batch_size + 1, shuffle_window)`` places; the window counts in training only.
    workers : int, optional
        Processes. Default: none for a cache, else one per processor, at most 4 and as many as fit.
    processors : int
        That this rank may use.
    batch_bytes : int
        Of the finished batches that one process holds.

    Raises
    ------
    UsageError
        An unknown mode, or counts below their least.
    MemoryLimitError
        What the cases need is more than the budget; names the numbers and what can be done.
    """
    instance("budget", budget, Budget, "memory_budget(24) is one.")
    listed("estimates", estimates, CaseEstimate, "A CaseEstimate for each case.")
    batch_bytes = whole("batch_bytes", batch_bytes, 0)
    _checked(mode, world_size=world_size, batch_size=batch_size, processors=processors)
    if workers is not None:
        workers = whole("workers", workers, 0)
    if shuffle_window is not None:
        shuffle_window = whole("shuffle_window", shuffle_window)
    sample = max((one.peak_bytes for one in estimates), default=0) + batch_bytes
    resident = sum(one.resident_bytes for one in estimates)
    streams = {one.case: dict(one.streams) for one in estimates}
    window = min(shuffle_window or 0, len(estimates)) if mode == "train" else 0
    places = max(batch_size + 1, window)
    told = _numbers(estimates, budget, resident, world_size)
    cached = resident + max(1, workers or 0) * sample
    if mode == "train" and cached <= budget.bytes:
        said = f"every case stays in memory, {_processes(workers or 0)}, at most {gib(cached)} in all"
        line = _lines({**told, "cache": said})
        return Decision(CaseRegime.CACHE, streams, places, workers or 0, cached, line)
    queued = sorted((one.queued_bytes for one in estimates if not one.all_stream), reverse=True)
    load = _Load(len(estimates), tuple(queued), places, sample)
    count = _workers(load, budget, workers, processors)
    peak = load.peak(count)
    if peak > budget.bytes:
        raise _too_much(load, budget, count, mode=mode, window=window, batch_size=batch_size, batch_bytes=batch_bytes)
    why = _why(mode, cached)
    if not queued:
        said = f"{why}; every case streams, {_processes(count)}, at most {gib(peak)} in all"
        return Decision(CaseRegime.STREAM, streams, places, count, peak, _lines({**told, "stream": said}))
    said = (
        f"{why}; {len(queued)} of {_counted(len(estimates), 'case')} cannot stream: {_queue(load)}, per process, "
        f"{_processes(count)}, at most {gib(peak)} in all"
    )
    fits = _fitting_places(load, budget, count, len(queued))
    if mode == "train" and fits > places:
        said += f". shuffle_window={fits} fits too, and computes a case less often"
    return Decision(CaseRegime.BUFFER, streams, places, count, peak, _lines({**told, "buffer": said}))


@dataclass(frozen=True, slots=True)
class EvaluationPatch:
    """What :func:`evaluation_patch` returns; ``str()`` gives ``line``.

    Parameters
    ----------
    patch_size : tuple of int or None
        Per spatial axis; patches of it are disjoint and not padded. None: whole volumes.
    line : str
        The decision in words, with its numbers, in lines of at most 80 characters.
    """

    patch_size: tuple[int, ...] | None
    line: str

    def __str__(self) -> str:
        return self.line


def evaluation_patch(
    shapes: Mapping[str, Sequence[int]],
    channels: Mapping[str, int],
    budget: Budget,
    *,
    fixed: Sequence[int] = (),
) -> EvaluationPatch:
    """Return the largest patch that an evaluation fits in the budget with; 12 bytes are counted per voxel and channel.

    Parameters
    ----------
    shapes : mapping of str to sequence of int
        Spatial extents of each case.
    channels : mapping of str to int
        Of each case, all groups together.
    budget : Budget
        Of this rank; four fifths of it are used.
    fixed : sequence of int
        Per spatial axis an extent that must be kept, 0 where it may be chosen. Default: all may.

    Raises
    ------
    UsageError
        ``fixed`` of another length than the shapes, or with negative extents.
    MemoryLimitError
        The extents that must be kept are too many already.

    Examples
    --------
    >>> evaluation_patch({"a": (64, 512, 512)}, {"a": 2}, Budget(64 << 20, "given")).patch_size
    (32, 261, 261)
    """
    instance("budget", budget, Budget, "memory_budget(24) is one.")
    remedy = "Like {case: (64, 512, 512)} and {case: 2}."
    for case, extents in mapping("shapes", shapes, remedy).items():
        extents_of(f"The shape of {case!r}", extents)
        whole(f"The channels of {case!r}", mapping("channels", channels, remedy).get(case), 1)
    fixed = [whole("An extent of fixed", one) for one in listed("fixed", fixed, object, "Like (0, 512, 512).")]
    if not shapes:
        return EvaluationPatch(None, _lines({"evaluation": "no case"}))
    case = max(shapes, key=lambda name: channels[name] * math.prod(shapes[name]))
    shape = tuple(shapes[case])
    kept = tuple(fixed) or (0,) * len(shape)
    if len(kept) != len(shape) or min(kept) < 0:
        raise UsageError(f"fixed has an extent from 0 on for each of the {len(shape)} spatial axes, got {kept}.")
    each = EVALUATION_COPIES * _FLOAT_BYTES * channels[case]
    cap = EVALUATION_SHARE * budget.bytes / each
    worst = f"case {case!r}, {_counted(channels[case], 'channel')} of {_by(shape)}"
    of_budget = f"{EVALUATION_SHARE:.0%} of {gib(budget.bytes)} at {each:g} bytes per voxel"
    most = [min(one, n) if one else n for one, n in zip(kept, shape, strict=True)]
    if math.prod(most) <= cap:
        patch = tuple(most) if any(kept) else None
        said = f"{'whole volumes' if patch is None else f'patches of {_by(patch)}'} fit in {of_budget}; the largest is {worst}"
        return EvaluationPatch(patch, _lines({"evaluation": said}))
    least = math.prod(n for one, n in zip(kept, most, strict=True) if one)
    if least > cap:
        extents = f"the extents {_by([n for one, n in zip(kept, most, strict=True) if one])}, which must be kept, are"
        raise MemoryLimitError(
            f"Evaluation: {extents if any(kept) else 'one voxel is'} more than the {int(cap)} voxels that fit in {of_budget} "
            f"({worst}).",
            hint="Raise memory_budget, let more axes be cut, or evaluate fewer groups or channels at a time.",
        )
    patch = _shrunk(most, [not one for one in kept], cap)
    said = f"disjoint patches of {_by(patch)} fit in {of_budget}; the largest is {worst}"
    return EvaluationPatch(patch, _lines({"evaluation": said}))


def _shrunk(shape: Sequence[int], free: Sequence[bool], cap: float) -> tuple[int, ...]:
    """Return the shape with its free axes shrunk by one factor to at most ``cap`` voxels; an axis that would vanish keeps one."""
    extents = list(shape)
    axes = [axis for axis, flag in enumerate(free) if flag]
    while axes:
        room = cap / math.prod(extents[axis] for axis in range(len(extents)) if axis not in axes)
        factor = (room / math.prod(shape[axis] for axis in axes)) ** (1 / len(axes))
        thin = [axis for axis in axes if shape[axis] * factor < 1]
        for axis in thin or axes:
            extents[axis] = max(1, int(shape[axis] * factor))
        axes = [axis for axis in axes if axis not in thin] if thin else []
    return tuple(extents)


def _checked(mode: str, **counts: int) -> None:
    one_of("mode", mode, MODES)
    for name, count in counts.items():
        whole(name, count, 1)


def _workers(load: _Load, budget: Budget, asked: int | None, processors: int) -> int:
    if asked is not None:
        return asked
    most = max(1, min(processors, MOST_WORKERS))
    return next((count for count in range(most, 1, -1) if load.peak(count) <= budget.bytes), 1)


def _too_much(
    load: _Load, budget: Budget, workers: int, *, mode: str, window: int, batch_size: int, batch_bytes: int
) -> MemoryLimitError:
    remedies = ["Raise memory_budget"]
    fitting = _largest(lambda count: load.peak(count) <= budget.bytes, workers)
    if fitting:
        remedies.append(f"use {_counted(fitting, 'worker')}")
    kept = window
    if load.queued:
        fits = _fitting_places(load, budget, workers, load.places)
        if window > batch_size + 1:
            remedies.append(f"lower shuffle_window to {fits}" if fits > batch_size else "drop shuffle_window")
        kept = window if fits > batch_size else 0
    smaller = _largest(
        lambda size: _with_batches(load, size, batch_size, batch_bytes, kept).peak(workers) <= budget.bytes, batch_size
    )
    if 0 < smaller < batch_size:
        remedies.append(f"lower batch_size to {smaller}")
    if load.queued:
        remedies.append("let the stages that cannot stream write their result once (Save)")
    else:
        remedies.append("use a smaller patch")
    needs = f"a process needs {gib(load.sample_bytes)} for a sample and its batches (batch_size={batch_size})"
    if load.queued:
        needs += f" and {_queue(load)}"
    verb = {"train": "Training", "predict": "Prediction", "evaluate": "Evaluation"}[mode]
    return MemoryLimitError(
        f"{verb} does not fit: {needs}; with {_processes(workers)} that is {gib(load.peak(workers))}, the budget is "
        f"{gib(budget.bytes)} per rank ({budget.told}).",
        hint=f"{', '.join(remedies[:-1])} or {remedies[-1]}.",
    )


def _with_batches(load: _Load, size: int, batch_size: int, batch_bytes: int, window: int) -> _Load:
    """Return the load with batches of another size."""
    saved = batch_bytes - batch_bytes * size // batch_size
    return replace(load, places=max(size + 1, window), sample_bytes=load.sample_bytes - saved)


def _fitting_places(load: _Load, budget: Budget, workers: int, most: int) -> int:
    """Return how many places the queue of each process may have at most."""
    return _largest(lambda places: replace(load, places=places).peak(workers) <= budget.bytes, most)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to ``most`` that fits, 0 where none does; what fits is smaller than what does not."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _numbers(estimates: Sequence[CaseEstimate], budget: Budget, resident: int, world_size: int) -> dict[str, str]:
    stored = sum(one.stored_bytes for one in estimates)
    where = f", on each of {world_size} ranks" if world_size > 1 else ""
    return {
        "data set": f"{_counted(len(estimates), 'case')}, {gib(stored)} stored, {gib(resident)} transformed{where}",
        "budget": f"{gib(budget.bytes)} per rank ({budget.told})",
    }


def _why(mode: str, cached: int) -> str:
    if mode == "train":
        return f"to hold every case would take {gib(cached)}"
    return f"{'a prediction' if mode == 'predict' else 'an evaluation'} goes through the data once"


def _queue(load: _Load) -> str:
    count = min(load.places, len(load.queued))
    average = sum(load.queued) / len(load.queued)
    return f"a queue of {count} x {gib(average)} on average = {gib(count * average)}, at most {gib(load.queue_bytes)}"


def _processes(workers: int) -> str:
    return _counted(workers, "worker") if workers else "no worker processes"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))


def _lines(told: Mapping[str, str]) -> str:
    """Return what is told, each with its word in front, wrapped between words but never within an amount."""
    width = max(map(len, told)) + 2
    wrapped = (
        textwrap.fill(
            re.sub(r" (?=[GM]iB)| (?=x )|(?<= x) ", "\N{NO-BREAK SPACE}", f"{text}."),
            LINE_WIDTH,
            initial_indent=word.ljust(width),
            subsequent_indent=" " * width,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for word, text in told.items()
    )
    return "\n".join(wrapped).replace("\N{NO-BREAK SPACE}", " ")
