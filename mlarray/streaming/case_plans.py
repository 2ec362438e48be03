"""Which plan serves a patch of a case, and what of the case stays in memory for it?

Where the voxels of a patch come from never changes them. A case is *resident* (the cache: its result is held, for good), it
*streams* (a patch is computed from its region of the file), or it is *buffered*: its result is held in a queue of a few cases,
the oldest of which goes first. Copies of a resident or buffered case are drawn from the result that is held, by the same
planner with the array in memory as its source, so that only copies that need the whole volume are computed as a whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import UsageError
from mlarray.locks import ForkSafeLock
from mlarray.sources.base import NDArray
from mlarray.streaming.arguments import listed, whole
from mlarray.streaming.case_layouts import Place
from mlarray.streaming.case_set import CaseFiles, open_place
from mlarray.streaming.chain import resolve
from mlarray.streaming.grid import Overlap
from mlarray.streaming.plan import Plan
from mlarray.streaming.planning import plan
from mlarray.streaming.rules import COST_LIMIT, Regime, judge
from mlarray.streaming.saving import PromisedVolume, Saving
from mlarray.transforms.augmentations.lists import Lists, draw, wanted_groups
from mlarray.transforms.base import Transform
from mlarray.transforms.statistics import statistic_blocks
from mlarray.transforms.volume import Volume

OPEN_FILES = 64
"""Most files that a process keeps open between patches."""


@dataclass(frozen=True, slots=True)
class GroupChain:
    """What becomes of one group of every case.

    Parameters
    ----------
    transforms : sequence of Transform
        Done to the case.
    patch_transforms : sequence of Transform
        Done to each patch; pointwise ones and statistics.
    source : str, optional
        Name of the stored group. Default: the name under which the chain stands.
    extend_slice : int
        With patches of one slice: how many neighbours come with it as further channels, half of them (rounded down) below.
    """

    transforms: Sequence[Transform] = ()
    patch_transforms: Sequence[Transform] = ()
    source: str | None = None
    extend_slice: int = 0

    def __post_init__(self) -> None:
        for name in ("transforms", "patch_transforms"):
            object.__setattr__(
                self, name, listed(name, getattr(self, name), object, "Write GroupChain([Canonical()]).")
            )
        whole("extend_slice", self.extend_slice, 0)
        if self.source is not None and not isinstance(self.source, str):
            raise UsageError(f"source is the name of a stored group, got {self.source!r}.")


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What all plans of a stream have in common.

    Parameters
    ----------
    chains : mapping of str to GroupChain
        By the name of the group in batches.
    patch_size, overlap, strict, cost_limit
        See :func:`mlarray.streaming.plan`.
    augmentations : sequence or mapping of AugmentationList
        See :func:`mlarray.transforms.augmentations.draw`.
    seed : int
        Of all draws.
    """

    chains: Mapping[str, GroupChain]
    patch_size: int | Sequence[int] | None
    overlap: Overlap = None
    augmentations: Lists = ()
    seed: int = 0
    strict: bool = False
    cost_limit: float = COST_LIMIT

    @property
    def saved_patch_size(self) -> tuple[int, ...] | int | None:
        """Patch size for the layout of what is written: the declared one, where every axis has an extent."""
        size = self.patch_size
        if size is None or isinstance(size, int):
            return size or None
        return tuple(size) if all(size) else None

    def draws(self, case: str, group: str, result: Volume, copy: int, epoch: int, groups: Any) -> tuple[Transform, ...]:
        """Return the transforms of a copy of a case."""
        return draw(
            self.augmentations, result, copy=copy, seed=self.seed, epoch=epoch, case=case, group=group, groups=groups
        )


@dataclass(slots=True)
class _Held:
    """The result of one group of a case in memory, and plans of copies drawn from it."""

    plan: Plan
    copies: dict[tuple[int, int], Plan] = field(default_factory=dict)


class CasePlans:
    """The plans of a stream in this process.

    Parameters
    ----------
    cases : sequence of CaseFiles
        In order.
    settings : PlanSettings
        How they are read.
    capacity : int
        Cases that the queue of buffered results holds, and results of copies that need their whole volume.
    resident : bool
        Whether the result of every case is held for good.
    root : Path, optional
        The data set, for fingerprints of what is written, see :func:`mlarray.streaming.fingerprint`.
    """

    def __init__(
        self,
        cases: Sequence[CaseFiles],
        settings: PlanSettings,
        *,
        capacity: int = 2,
        resident: bool = False,
        root: Path | None = None,
    ) -> None:
        self.cases = tuple(cases)
        self.settings = settings
        self.capacity = capacity
        self.resident = resident
        self.root = root
        self._base: dict[tuple[int, str], Plan] = {}
        self._results: OrderedDict[tuple[int, str], _Held] = OrderedDict()
        self._whole_copies: OrderedDict[tuple[int, str, int, int], Plan] = OrderedDict()
        self._streams: OrderedDict[tuple[int, str, int, int], Plan] = OrderedDict()
        self._open: OrderedDict[tuple[int, str], Plan] = OrderedDict()
        self._lock = ForkSafeLock()

    def base(self, case: int, group: str) -> Plan:
        """Return the plan of a group of a case without augmentations; only headers are read."""
        key = (case, group)
        with self._lock:
            if key not in self._base:
                self._base[key] = self._planned(self.cases[case], group)
            return self._touched(key)

    def plan(self, case: int, group: str, copy: int = 0, epoch: int = 0) -> Plan:
        """Return the plan that reads a copy of a group of a case, from wherever its voxels come from."""
        with self._lock:
            self.write(case, group)
            base = self.base(case, group)
            if self.resident:
                return self._drawn_from(case, group, copy, epoch)
            if base.streams:
                streamed = self._streamed(case, group, copy, epoch)
                if streamed.streams:
                    return streamed
            return self._drawn_from(case, group, copy, epoch)

    def copy_plan(self, case: int, group: str, copy: int, epoch: int) -> Plan:
        """Return the plan of a copy on the stored volume, as it is judged; reads headers only."""
        with self._lock:
            return self._streamed(case, group, copy, epoch)

    def draws_whole(self, case: int, group: str, copies: int) -> bool:
        """Tell whether a copy of a group of a case is computed as a whole from the result that it is drawn from."""
        base = self.base(case, group)
        for copy in range(1, copies):
            draws = self.settings.draws(self.cases[case].name, group, base.result, copy, 0, base.groups)
            chain = resolve(base.result, draws)
            verdict = judge(chain, base.patch_size, strict=self.settings.strict, cost_limit=self.settings.cost_limit)
            if verdict.regime is not Regime.STREAM:
                return True
        return False

    def hold(self, case: int, group: str) -> Plan:
        """Return the plan on the result of a group of a case, which is computed unless it is in memory."""
        return self._result(case, group).plan

    @property
    def held_bytes(self) -> int:
        """Bytes of all results that are in memory now."""
        with self._lock:
            results = sum(held.plan.source.held_bytes for held in self._results.values())
            return results + sum(one.held_bytes for one in self._whole_copies.values())

    def write(self, case: int, group: str) -> None:
        """Write what a ``Save`` of a group of a case has to write, unless it is there."""
        key = (case, group)
        with self._lock:
            if isinstance(self.base(case, group).source, PromisedVolume):
                saving = self._saving(self.cases[case], group)
                self._forget(key)
                self._base[key] = saving.written(self.settings.chains[group].transforms)

    def measure(self, case: int, group: str) -> None:
        """Measure what the stages of a group of a case need, unless that is done."""
        self.write(case, group)
        base = self.base(case, group)
        base.measure()
        if not base.source.in_parts:
            base.release()  # what was decoded for it

    def close(self) -> None:
        """Close all files and let go of all results; a later read begins anew."""
        with self._lock:
            for key, plan_ in list(self._base.items()):
                plan_.release()
                plan_.close()
                if plan_.origin is not None:
                    self._forget(key)
            self._results.clear()
            self._whole_copies.clear()
            self._streams.clear()
            self._open.clear()

    def _saving(self, case: CaseFiles, group: str) -> Saving:
        """Return how the chain of a group of a case is planned."""
        chain = self.settings.chains[group]
        wanted = _groups_of(chain.transforms) | set(wanted_groups(self.settings.augmentations))

        def planner(transforms: Sequence[Transform], *, saved: Any = None, measure: bool = True) -> Plan:
            return plan(
                open_place(case.places[chain.source or group]),
                transforms,
                patch_size=self.settings.patch_size,
                overlap=self.settings.overlap,
                groups={name: open_place(place) for name, place in case.places.items() if name in wanted},
                case=case.name,
                strict=self.settings.strict,
                cost_limit=self.settings.cost_limit,
                opener=_opened,
                saved=saved,
                measure=measure,
            )

        return Saving(planner, case.name, group, {"patch_size": self.settings.saved_patch_size}, self.root)

    def _planned(self, case: CaseFiles, group: str) -> Plan:
        return self._saving(case, group).plan(self.settings.chains[group].transforms)

    def _streamed(self, case: int, group: str, copy: int, epoch: int) -> Plan:
        base = self.base(case, group)
        if copy == 0:
            return base
        key = (case, group, copy, epoch)
        if key not in self._streams:
            draws = self.settings.draws(self.cases[case].name, group, base.result, copy, epoch, base.groups)
            self._streams[key] = base.extended(draws) if draws else base
            _trim(self._streams, OPEN_FILES)
        return self._streams[key]

    def _drawn_from(self, case: int, group: str, copy: int, epoch: int) -> Plan:
        held = self._result(case, group)
        if copy == 0:
            return held.plan
        key = (copy, epoch)
        if key not in held.copies:
            result = held.plan.result
            draws = self.settings.draws(self.cases[case].name, group, result, copy, epoch, held.plan.groups)
            held.copies = {known: one for known, one in held.copies.items() if known[1] == epoch}
            held.copies[key] = held.plan.extended(draws) if draws else held.plan
        drawn = held.copies[key]
        if not drawn.streams:
            self._whole_copies[case, group, copy, epoch] = drawn
            while len(self._whole_copies) > self.capacity * len(self.settings.chains):
                self._whole_copies.popitem(last=False)[1].release()
        return drawn

    def _result(self, case: int, group: str) -> _Held:
        key = (case, group)
        with self._lock:
            if key not in self._results:
                if not self.resident:
                    self._make_room(case)
                self.write(case, group)
                base = self.base(case, group)
                self._results[key] = _Held(base.held(computed(base)))
                base.release()
            return self._results[key]

    def _make_room(self, case: int) -> None:
        """Let the cases go that were loaded first, before another is."""
        while len(loaded := dict.fromkeys(one for one, _ in self._results)) >= self.capacity and case not in loaded:
            oldest = next(iter(loaded))
            for key in [key for key in self._results if key[0] == oldest]:
                del self._results[key]
            for place in [place for place in self._whole_copies if place[0] == oldest]:
                self._whole_copies.pop(place).release()

    def _touched(self, key: tuple[int, str]) -> Plan:
        """Return a plan, and close the files of the one that was not used for longest when too many are open."""
        self._open[key] = self._base[key]
        self._open.move_to_end(key)
        while len(self._open) > OPEN_FILES:
            oldest, plan_ = self._open.popitem(last=False)
            plan_.close()
            if plan_.origin is not None:
                self._forget(oldest)
        return self._base[key]

    def _forget(self, key: tuple[int, str]) -> None:
        """Plan anew at the next use: what a ``Save`` is to write is written now, or another stream wrote over it."""
        del self._base[key]
        for place in [place for place in self._streams if place[:2] == key]:
            del self._streams[place]

    def __getstate__(self) -> dict[str, Any]:
        empty: dict[str, Any] = {name: OrderedDict() for name in ("_results", "_whole_copies", "_streams", "_open")}
        lasting = {key: plan_ for key, plan_ in self._base.items() if plan_.origin is None}
        return {**self.__dict__, **empty, "_base": lasting, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ForkSafeLock()


def computed(plan_: Plan) -> NDArray:
    """Return the whole result of a plan; where its patches stream, no more than a block is held beside it."""
    if not plan_.streams:
        return plan_.read_whole()
    plan_.measure()
    array = np.empty(plan_.result.array_shape, plan_.result.dtype)
    for region in statistic_blocks(plan_.result.channels, plan_.result.shape):
        array[(slice(None), *region.slices)] = plan_.read(region)
    return array


def _trim(kept: OrderedDict[Any, Plan], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)


def _groups_of(transforms: Sequence[Transform]) -> set[str]:
    """Return every name that a parameter of a transform may mean a group by."""
    found: set[str] = set()
    for transform in transforms:
        names = getattr(transform, "__dataclass_fields__", {})
        found.update(value for name in names if isinstance(value := getattr(transform, name), str))
    return found


def _opened(path: str) -> Any:
    return open_place(Place(Path(path)))
