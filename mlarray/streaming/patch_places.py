"""Where is a patch of a stream? What a sampler needs of a case: its extents, where its labels are, where blocks begin."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mlarray.region import Region
from mlarray.streaming.case_plans import CasePlans
from mlarray.streaming.class_locations import ClassLocations, locations_of
from mlarray.streaming.forward import voxel_of_result
from mlarray.streaming.kept import Kept
from mlarray.streaming.samplers import Sampler, block_origins
from mlarray.transforms.augmentations.drawing import key_of

_LOCATIONS_HELD = 16
"""Cases whose locations are held where they can be read again: those of many labels take megabytes."""


class PatchPlaces:
    """The places of patches in one epoch after the other. All groups of a case share them; the first one is asked.

    Parameters
    ----------
    plans : CasePlans
        Of the cases.
    sampler : Sampler
        Which patches.
    seed : int
        Of the draws.
    kept : Kept, optional
        Where locations of labels are kept.
    """

    def __init__(self, plans: CasePlans, sampler: Sampler, *, seed: int, kept: Kept | None) -> None:
        self._plans, self._sampler, self._seed, self._kept = plans, sampler, seed, kept
        self._first, *_ = plans.settings.chains
        self._epoch = self._draws = 0
        self._shapes: dict[tuple[int, int], tuple[int, ...]] = {}
        self._origins: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
        self._locations: dict[int, ClassLocations] = {}

    def set_epoch(self, epoch: int, *, draws: int) -> None:
        """Go to an epoch, in which the copies of epoch ``draws`` are met."""
        if draws != self._draws:
            self._shapes.clear()
            self._origins.clear()
        self._epoch, self._draws = epoch, draws

    def counts(self, cases: Sequence[int], copies: int) -> list[list[int]]:
        """Return how many patches each copy of each case gives."""
        size = self._plans.settings.patch_size
        return [[self._sampler.count(self._shape(case, copy), size) for copy in range(copies)] for case in cases]

    def region(self, case: int, copy: int, number: int, *, forced: bool) -> Region:
        """Return where a patch of a copy of a case lies.

        Parameters
        ----------
        case, copy, number : int
            Which patch.
        forced : bool
            Whether it must hold a label.
        """
        return self._sampler.region(
            self._shape(case, copy),
            self._plans.settings.patch_size,
            number,
            key=key_of("patches", self._seed, self._epoch, self._plans.cases[case].name, copy),
            locations=self.locations(case) if forced else None,
            forced=forced,
            origins=self._block_origins(case, copy) if self._sampler.aligned else None,
            carry=partial(self._carried, case, copy) if copy else None,
        )

    def locations(self, case: int) -> ClassLocations | None:
        """Return where the labels of a case are, on the grid of its results without augmentations."""
        group = self._sampler.group
        if group is None:
            return None
        if case not in self._locations:
            while self._kept is not None and len(self._locations) >= _LOCATIONS_HELD:
                del self._locations[next(iter(self._locations))]
            self._plans.write(case, group)
            base = self._plans.base(case, group)
            others = (other for other in self._plans.settings.chains if other != group)
            beside = [self._plans.base(case, other).source.info for other in others]
            self._locations[case] = locations_of(base, store=self._kept, beside=beside)
            base.release()
        return self._locations[case]

    def _carried(self, case: int, copy: int, voxel: tuple[int, ...]) -> tuple[int, ...]:
        """Return the voxel of a copy for one of the case."""
        base = self._plans.base(case, self._first)
        plan = self._plans.copy_plan(case, self._first, copy, self._draws)
        return voxel_of_result(plan, voxel, stages=len(base.chain.stages))

    def _block_origins(self, case: int, copy: int) -> tuple[tuple[int, ...], ...]:
        key = (case, copy)
        if key not in self._origins:
            self._plans.write(case, self._first)  # its blocks are known when it is there
            plan = self._plans.copy_plan(case, self._first, copy, self._draws)
            self._origins[key] = block_origins(plan, self._plans.settings.patch_size)
        return self._origins[key]

    def _shape(self, case: int, copy: int) -> tuple[int, ...]:
        key = (case, copy)
        if key not in self._shapes:
            self._shapes[key] = self._plans.copy_plan(case, self._first, copy, self._draws).result.shape
        return self._shapes[key]
