"""How does a training, prediction or evaluation script get its patches?

A :class:`PatchStream` binds a data set to chains, a sampler and an order. What a batch holds is a function of its number, the
epoch and the seed; the regime of a case (:mod:`mlarray.streaming.case_plans`), the number of worker processes and the way they
are started only decide how fast it comes and what stays in memory.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from mlarray.errors import UsageError
from mlarray.machine import this_machine
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming.arguments import flag, number, one_of, path_of, start_method, whole
from mlarray.streaming.batch import Batch, Sample, Stack
from mlarray.streaming.budget import memory_budget as read_budget
from mlarray.streaming.case_choice import Choice
from mlarray.streaming.case_plans import CasePlans, GroupChain, PlanSettings
from mlarray.streaming.case_set import CaseSet, find_cases, split
from mlarray.streaming.estimates import (
    batch_bytes,
    check_grids,
    check_kinds,
    estimates,
    patch_for_evaluation,
    whole_copies_bytes,
)
from mlarray.streaming.grid import Overlap, padded
from mlarray.streaming.handover import HELD
from mlarray.streaming.kept import kept_for
from mlarray.streaming.neighbours import read_with_neighbours
from mlarray.streaming.order import epoch_order, share
from mlarray.streaming.patch_chain import apply_patch_transforms, check_patch_transforms
from mlarray.streaming.patch_places import PatchPlaces
from mlarray.streaming.plan import Plan
from mlarray.streaming.ranks import deal, this_rank
from mlarray.streaming.regimes import MODES, CaseRegime, Decision, decide
from mlarray.streaming.rules import COST_LIMIT
from mlarray.streaming.samplers import GridPatches, Sampler
from mlarray.streaming.stream_arguments import chains_of, check_sampler, check_saves, patch_extents
from mlarray.streaming.stream_config import load_stream
from mlarray.streaming.stream_words import explained
from mlarray.transforms.augmentations.lists import Lists, wanted_groups
from mlarray.transforms.base import Transform

PARTS = ("train", "validation")
Placed: TypeAlias = tuple[int, int, Region, bool]  # case, copy, region, whether it is repeated
PREFETCH = 2
"""Batches that each worker computes ahead."""


class PatchStream:
    """Batches of preprocessed patches of a data set.

    Parameters
    ----------
    dataset : str, Path, list of them, or CaseSet
        See :func:`mlarray.streaming.find_cases`.
    groups : mapping of str to (sequence of Transform or GroupChain)
        What becomes of each group. All groups of a case must end on one grid: they share patches and draws.
    patch_size : int, sequence of int or None
        Of the result, per spatial axis in array order; 0 is free, None the whole volume (in evaluation: what the budget
        allows).
    overlap : optional
        Of the grid's patches, see :func:`mlarray.streaming.patch_grid`.
    sampler : Sampler, optional
        Which patches: :class:`GridPatches` (default), :class:`RandomPatches`, :class:`ForegroundPatches`.
    mode : str
        ``"train"``: shuffled, cached where the data set fits the budget. ``"predict"`` and ``"evaluate"``: one pass in order,
        whole cases per rank, never cached; evaluation does not pad.
    augmentations : sequence or mapping of AugmentationList
        Copies of every case beside the case itself.
    inline_augmentations : bool
        Draw the copies anew in every epoch.
    memory_budget : optional
        See :func:`mlarray.streaming.memory_budget`.
    shuffle : bool, optional
        Default: in training.
    shuffle_window : int, optional
        Shuffle among this many cases at a time, so that a buffered case is loaded once for many patches.
    lanes : int
        Parts that a rank's order is cut into, taken in turn, batch by batch. With as many lanes as workers, each worker has
        cases of its own; batches depend on lanes, never on workers.
    batch_size : int
        Patches per batch; the last batch may be smaller.
    subset, validation, part
        Which cases: see :func:`mlarray.streaming.find_cases` and :func:`mlarray.streaming.split`; ``part`` is ``"train"`` or
        ``"validation"``.
    seed : int
        Of order, positions and draws.
    rank, world_size : int, optional
        Default: those of ``torch.distributed`` where it runs, else of the environment (``RANK``, ``WORLD_SIZE``), else one.
    workers : int, optional
        Processes that :meth:`loader` starts. Default: none where all cases are cached, else one per processor, at most 4 and
        as many as the budget has room for.
    keep : Path, optional
        Folder for what is measured once. Default: ``.mlarray`` beside the data, or the user's cache folder.
    squeeze : bool
        Drop spatial axes of extent 1 from batches.
    strict, cost_limit
        See :func:`mlarray.streaming.plan`.

    Attributes
    ----------
    cases : CaseSet
        The cases of this stream.
    decision : Decision
        What is cached, streamed and buffered, and why.
    epoch : int
        The current epoch, see :meth:`set_epoch`.

    Raises
    ------
    UsageError
        Arguments that do not fit together.
    MemoryLimitError
        A budget that cannot hold what the chains need. Nothing is read but headers.
    """

    def __init__(
        self,
        dataset: str | Path | Sequence[str | Path] | CaseSet,
        groups: Mapping[str, Sequence[Transform] | GroupChain],
        *,
        patch_size: int | Sequence[int] | None,
        overlap: Overlap = None,
        sampler: Sampler | None = None,
        mode: str = "train",
        augmentations: Lists = (),
        inline_augmentations: bool = False,
        memory_budget: object = "auto",
        shuffle: bool | None = None,
        shuffle_window: int | None = None,
        lanes: int = 1,
        batch_size: int = 1,
        subset: Choice = None,
        validation: float | Choice = None,
        part: str = "train",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int | None = None,
        keep: Path | None = None,
        squeeze: bool = False,
        strict: bool = False,
        cost_limit: float = COST_LIMIT,
    ) -> None:
        one_of("mode", mode, MODES)
        one_of("part", part, PARTS)
        for name, switch in {
            "inline_augmentations": inline_augmentations,
            "squeeze": squeeze,
            "strict": strict,
        }.items():
            flag(name, switch)
        if shuffle is not None:
            flag("shuffle", shuffle)
        if workers is not None:
            workers = whole("workers", workers, 0)
        wanted_groups(augmentations)  # refuses what is no list
        cost_limit = number("cost_limit", cost_limit, "a number above 0", above=0)
        batch_size, lanes, seed = whole("batch_size", batch_size, 1), whole("lanes", lanes, 1), whole("seed", seed)
        patch_size = patch_extents(patch_size)
        if shuffle_window is not None:
            shuffle_window = whole("shuffle_window", shuffle_window, 1)
        self.mode = mode
        self.chains = chains_of(groups)
        for name, chain in self.chains.items():
            check_patch_transforms(
                chain.patch_transforms,
                where=f"groups.{name}.patch_transforms",
                mode=mode,
                case_chain=chain.transforms,
            )
        folder = None if keep is None else path_of("keep", keep)
        found = dataset if isinstance(dataset, CaseSet) else find_cases(dataset, groups=self._sources, subset=subset)
        self.cases: CaseSet = found if validation is None else split(found, validation, seed=seed)[PARTS.index(part)]
        self.rank = this_rank(rank, world_size)
        self.seed, self.batch_size, self.lanes, self.squeeze = seed, batch_size, lanes, squeeze
        self.shuffle = mode == "train" if shuffle is None else shuffle
        self.shuffle_window = shuffle_window
        self.inline_augmentations = inline_augmentations
        self.sampler: Sampler = GridPatches(overlap) if sampler is None else sampler
        check_sampler(self.sampler, self.chains)
        check_saves(self.cases.cases, self.chains)
        settings = PlanSettings(self.chains, patch_size, overlap, augmentations, seed, strict, cost_limit)
        self._plans = CasePlans(self.cases.cases, settings, capacity=batch_size + 1, root=self.cases.root)
        check_grids(self._plans)
        check_kinds(self._plans, batch_size)
        budget = read_budget(memory_budget, ranks_on_node=self.rank.on_node)
        if mode == "evaluate" and patch_size is None:
            self.sized = patch_for_evaluation(self._plans, budget)
            if self.sized.patch_size is not None:
                self._plans.close()
                settings = replace(settings, patch_size=self.sized.patch_size, overlap=0)
                self._plans = CasePlans(self.cases.cases, settings, capacity=batch_size + 1, root=self.cases.root)
        self.decision: Decision = decide(
            estimates(self._plans, self.copies),
            budget,
            mode=mode,
            world_size=self.rank.world_size,
            batch_size=batch_size,
            shuffle_window=shuffle_window,
            workers=workers,
            processors=this_machine().processors,
            batch_bytes=(PREFETCH + HELD) * batch_bytes(self._plans, batch_size)
            + whole_copies_bytes(self._plans, self.copies, places=max(batch_size + 1, shuffle_window or 0)),
        )
        self._plans.resident = self.decision.regime is CaseRegime.CACHE
        self._plans.capacity = self.decision.fifo_cases
        kept = None if self.cases.root is None else kept_for(self.cases.root, folder=folder)
        self._own_cases = self._cases_of_rank()
        self._ahead: dict[int, list[Placed]] = {}  # batches that were announced and have not been asked for
        self._places = PatchPlaces(self._plans, self.sampler, seed=seed, kept=kept)
        self.set_epoch(0)

    @classmethod
    def from_config(cls, path: str | Path, **changes: Any) -> Self:
        """Return the stream that a YAML file describes, see :mod:`mlarray.streaming.stream_config`.

        Parameters
        ----------
        path : str or Path
            The file.
        changes
            Arguments that win over those of the file.
        """
        arguments = {**load_stream(path_of("path", path)), **changes}
        return cls(arguments.pop("dataset"), arguments.pop("groups"), **arguments)

    # --- what there is -----------------------------------------------------------------------------------------------

    @property
    def copies(self) -> int:
        """How many copies every case has, itself included."""
        lists = self._plans.settings.augmentations
        return 1 + sum(one.nb for one in (lists.values() if isinstance(lists, Mapping) else lists))

    @property
    def patch_size(self) -> tuple[int, ...]:
        """Spatial extents of a patch, as declared; 0 is free."""
        return self._plans.base(0, self._first).patch_size

    @property
    def batch_bytes(self) -> int:
        """Most bytes of the arrays of a batch, if every value took 8."""
        return batch_bytes(self._plans, self.batch_size, itemsize=8)

    @property
    def patches(self) -> int:
        """How many patches the epoch has, over all ranks in training, of this rank else."""
        return len(self._order)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        return len(self._batches)

    def plan(self, case: int | str, group: str, copy: int = 0) -> Plan:
        """Return the plan that reads a group of a case in this epoch: its grid, geometry, and the way back to the stored grid.

        Parameters
        ----------
        case : int or str
            Its number or name.
        group : str
            Name of the group in batches.
        copy : int
            0 is the case itself.
        """
        return self._plans.plan(self._number(case), self._group(group), whole("copy", copy, 0), self._draw_epoch)

    def plan_as_judged(self, case: int | str, group: str, copy: int = 0) -> Plan:
        """Return the plan on the stored volume, wherever the voxels come from in the end. Reads headers only."""
        return self._plans.copy_plan(self._number(case), self._group(group), whole("copy", copy, 0), self._draw_epoch)

    def explain(self) -> str:
        """Return the decision, and for each group what is read and why. Reads headers only."""
        return explained(self)

    # --- the order of an epoch ---------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch: another order, other positions, and, with ``inline_augmentations``, other draws."""
        self.epoch, self.first = whole("An epoch", epoch, 0), 0
        self._ahead.clear()
        self._places.set_epoch(epoch, draws=self._draw_epoch)
        counts = self._places.counts(self._own_cases, self.copies)
        self._order = epoch_order(counts, seed=self.seed, epoch=epoch, shuffle=self.shuffle, window=self.shuffle_window)
        self._batches = share(len(self._order), batch_size=self.batch_size, lanes=self.lanes, **self._share)

    def state(self, done: int) -> dict[str, object]:
        """Return what :meth:`resume` needs after the first ``done`` batches of this epoch: a few plain values."""
        return {"epoch": self.epoch, "batch": whole("done", done, 0), "stream": self._identity()}

    def resume(self, state: Mapping[str, object]) -> None:
        """Go to where a run stopped; the next loader, or iteration, begins there.

        Raises
        ------
        UsageError
            The state is of another stream: other cases, chains, seed, batch size or number of ranks.
        """
        known = state if isinstance(state, Mapping) else {}
        epoch, batch = known.get("epoch"), known.get("batch")
        if not isinstance(epoch, int) or not isinstance(batch, int) or known.get("stream") != self._identity():
            raise UsageError(
                f"The state {state!r} is not of this stream.",
                hint="Resume with the cases, chains, seed, batch size and number of ranks of the run that stopped.",
            )
        self.set_epoch(epoch)
        if not 0 <= batch <= len(self):
            raise UsageError(f"The state begins with batch {batch} of an epoch that has {len(self)}.")
        self.first = batch

    # --- patches -----------------------------------------------------------------------------------------------------

    def batch(self, index: int, *, stack: Stack = np.stack) -> Batch:
        """Return a batch of this epoch, whoever asks and whatever was asked before.

        Parameters
        ----------
        index : int
            0 to ``len(stream) - 1``.
        stack : callable
            Where the arrays of a group go, see :meth:`Batch.of`.
        """
        index = whole("The number of a batch", index, 0)
        placed = self._ahead.pop(index, None) or self._announced(index)
        return Batch.of([self._sample(*one) for one in placed], stack=stack)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of this epoch from where the stream stands, computed in this process."""
        for index in range(self.first, len(self)):
            if index + 1 < len(self):
                self.announce(index + 1)
            yield self.batch(index)

    def announce(self, index: int) -> None:
        """Tell storage which regions a batch will read, so that they load while something else is computed."""
        index = whole("The number of a batch", index, 0)
        self._ahead[index] = self._announced(index)

    def prepare(self) -> None:
        """Measure what patches need, once per case, and in the cache regime load every case: before workers are started."""
        for case in self._own_cases:
            for group in self.chains:
                if self._plans.resident:
                    self._plans.hold(case, group)
                else:
                    self._plans.measure(case, group)
            self._places.locations(case)

    def close(self) -> None:
        """Close all files and let go of everything in memory; a later read begins anew."""
        self._plans.close()

    def loader(
        self,
        workers: int | None = None,
        *,
        pin_memory: bool = False,
        context: str | None = None,
        prefetch: int = PREFETCH,
        torch: bool | None = None,
    ) -> Any:
        """Return an iterable over the batches of the current epoch, computed by worker processes.

        Parameters
        ----------
        workers : int, optional
            0 computes in this process. Default: ``decision.workers``.
        pin_memory : bool
            Page-locked tensors, for copies to a GPU; with torch only.
        context : str, optional
            ``"fork"``, ``"spawn"`` or ``"forkserver"``. Default: the platform's.
        prefetch : int
            Batches per worker that are computed ahead.
        torch : bool, optional
            Tensors from a ``torch.utils.data.DataLoader`` (True), or numpy arrays from processes without torch (False).
            Default: with torch where it is installed.
        """
        count = self.decision.workers if workers is None else whole("workers", workers, 0)
        prefetch, pin_memory = whole("prefetch", prefetch, 1), flag("pin_memory", pin_memory)
        context = start_method(context)
        if torch is not None:
            flag("torch", torch)
        self.prepare()
        if torch is None:
            torch = importlib.util.find_spec("torch") is not None
        if torch:
            from mlarray.integrations.torch import torch_loader

            return torch_loader(self, workers=count, pin_memory=pin_memory, context=context, prefetch=prefetch)
        if pin_memory:
            raise UsageError("pin_memory needs torch.", hint="Install it, or leave pin_memory out.")
        from mlarray.streaming.loader import WorkerLoader

        return WorkerLoader(self, workers=count, context=context, prefetch=prefetch)

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _first(self) -> str:
        return next(iter(self.chains))

    @property
    def _sources(self) -> list[str]:
        return list(dict.fromkeys(chain.source or name for name, chain in self.chains.items()))

    @property
    def _draw_epoch(self) -> int:
        return self.epoch if self.inline_augmentations else 0

    def _number(self, case: int | str) -> int:
        if isinstance(case, str) and case in self.cases.names:
            return self.cases.names.index(case)
        if isinstance(case, (int, np.integer)) and not isinstance(case, bool) and 0 <= case < len(self.cases):
            return int(case)
        count = len(self.cases)
        raise UsageError(
            f"There is no case {case!r} in this stream.", hint=f"Give its name, or a number below {count}."
        )

    def _group(self, group: str) -> str:
        if not isinstance(group, str) or group not in self.chains:
            known = ", ".join(map(repr, self.chains))
            raise UsageError(f"There is no group {group!r} in this stream; there are {known}.")
        return group

    def _announced(self, index: int) -> list[Placed]:
        """Return the places of a batch's patches, after telling storage about them: they load side by side."""
        positions, repeated = self._batches[index]
        placed = [
            self._place(entry, place, bool(again))
            for place, (entry, again) in enumerate(zip(self._order[positions], repeated, strict=True))
        ]
        for case, copy, region, _ in placed if not self._plans.resident else ():
            for group in self.chains:
                plan = self._plans.copy_plan(case, group, copy, self._draw_epoch)
                if plan.streams:
                    plan.prefetch([region])
        return placed

    def _sample(self, case: int, copy: int, region: Region, repeated: bool) -> Sample:  # noqa: FBT001
        arrays, geometry = {}, {}
        for group, chain in self.chains.items():
            plan = self._plans.plan(case, group, copy, self._draw_epoch)
            patch = read_with_neighbours(plan, region, chain.extend_slice) if chain.extend_slice else plan.read(region)
            if self.mode != "evaluate":
                patch = padded(patch, plan.patch_size)
            if chain.patch_transforms:
                patch = apply_patch_transforms(chain.patch_transforms, patch, plan.measured_result)
            if self.squeeze:
                patch = patch.reshape(patch.shape[0], *(n for n in patch.shape[1:] if n != 1))
            arrays[group], geometry[group] = patch, plan.geometry(region)
        return Sample(arrays, self.cases.cases[case].name, copy, region, geometry, repeated)

    def _place(self, entry: NDArray, place: int, repeated: bool) -> Placed:  # noqa: FBT001
        """Return where the patch of an entry lies that stands at a place of its batch."""
        own, copy, number = (int(value) for value in entry)
        case = self._own_cases[own]
        forced = self.sampler.forced(place, self.batch_size)
        return case, copy, self._places.region(case, copy, number, forced=forced), repeated

    def _identity(self) -> str:
        """Return a mark of everything that decides batches."""
        parts = (
            self.cases.names,
            sorted((name, repr(chain)) for name, chain in self.chains.items()),
            repr(replace(self._plans.settings, chains={})),
            repr(self.sampler),
            (self.mode, self.shuffle, self.shuffle_window, self.lanes, self.batch_size, self.inline_augmentations),
            (self.rank.rank, self.rank.world_size),
        )
        return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

    @property
    def _share(self) -> dict[str, int]:
        """The share of this rank: of the order of all cases in training, of its own cases else."""
        if self.mode == "train":
            return {"rank": self.rank.rank, "world_size": self.rank.world_size}
        return {"rank": 0, "world_size": 1}

    def _cases_of_rank(self) -> tuple[int, ...]:
        """Return the cases whose patches this rank may get: all in training; else whole cases, the largest dealt first."""
        everyone = range(len(self.cases.cases))
        if self.mode == "train" or self.rank.world_size == 1:
            return tuple(everyone)
        sizes = [math.prod(self._plans.base(case, self._first).result.shape) for case in everyone]
        return deal(sizes, self.rank.world_size)[self.rank.rank]
