"""What will the cases of a stream take in memory, and do their groups lie on one grid? From headers alone."""

from __future__ import annotations

import math

import numpy as np

from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.streaming.budget import Budget
from mlarray.streaming.case_plans import CasePlans
from mlarray.streaming.patch_chain import patch_result
from mlarray.streaming.plan import Plan
from mlarray.streaming.regimes import CaseEstimate, EvaluationPatch, evaluation_patch
from mlarray.transforms.statistics import STATISTIC_BLOCK_ELEMENTS

_MEASURING_BYTES = 3 * 8 * STATISTIC_BLOCK_ELEMENTS  # a block, as float64, and what is made of it


def check_grids(plans: CasePlans) -> None:
    """Refuse cases without voxels, and cases whose groups end on different grids: they could not share patches.

    Raises
    ------
    UsageError
        Names the case, the groups, and how they differ.
    """
    first, *others = plans.settings.chains
    for number, case in enumerate(plans.cases):
        _check_extents(plans, number)
        ours = plans.base(number, first).result
        for group in others:
            theirs = plans.base(number, group).result
            if ours.shape != theirs.shape:
                raise UsageError(
                    f"Case {case.name!r}: {first!r} ends with the shape {ours.shape}, {group!r} with {theirs.shape}.",
                    hint="Groups share patches: end both chains on one grid, as with ResampleToShape or the same resampling.",
                )
            a, b = ours.geometry, theirs.geometry
            if a is not None and b is not None and a.known and b.known and not a.is_close(b):
                raise UsageError(
                    f"Case {case.name!r}: {first!r} and {group!r} have the same shape and lie elsewhere in space.",
                    hint="Begin both chains with Canonical(), or check the files.",
                )


def check_kinds(plans: CasePlans, batch_size: int) -> None:
    """Refuse batches whose patches would be of several dtypes or numbers of channels: an array has one of each.

    Raises
    ------
    UsageError
        Names the group and a case of each kind.
    """
    for group, chain in plans.settings.chains.items() if batch_size > 1 else ():
        found: dict[tuple[str, int], str] = {}
        for number, case in enumerate(plans.cases):
            result = patch_result(plans.base(number, group).result, chain.patch_transforms)
            found.setdefault((result.dtype.name, result.channels), case.name)
        if len(found) < 2:
            continue
        (dtype, channels), (other, others) = list(found)[:2]
        first, second = list(found.values())[:2]
        if dtype != other:
            told = f"{dtype} in case {first!r} and {other} in case {second!r}"
            hint = f'Append TensorCast("{np.promote_types(dtype, other).name}") to its transforms'
        else:
            told = f"{channels} and {others} channels in the cases {first!r} and {second!r}"
            hint = "End its transforms with one number of channels for all cases"
        raise UsageError(
            f"Patches of one batch have one dtype and number of channels; {group!r} has {told}.",
            hint=f"{hint}, or take batch_size=1.",
        )


def estimates(plans: CasePlans, copies: int) -> list[CaseEstimate]:
    """Return what each case takes, for :func:`mlarray.streaming.regimes.decide`."""
    return [_estimate(plans, number, copies) for number in range(len(plans.cases))]


def batch_bytes(plans: CasePlans, batch_size: int, *, itemsize: int | None = None) -> int:
    """Return the bytes of the largest batch, as its types are before transforms of patches, or with that many for each value."""
    sizes = (
        sum(
            _patch_bytes(plans.base(number, group), itemsize) * (1 + chain.extend_slice)
            for group, chain in plans.settings.chains.items()
        )
        for number in range(len(plans.cases))
    )
    return batch_size * max(sizes, default=0)


def whole_copies_bytes(plans: CasePlans, copies: int, *, places: int) -> int:
    """Return the most that is held of copies whose draws do not stream, and which are computed as wholes.

    Parameters
    ----------
    plans : CasePlans
        Of the cases.
    copies : int
        Of each case, itself included.
    places : int
        Cases whose whole copies are held at once.
    """
    groups = plans.settings.chains
    sizes = (
        sum(_bytes(plans.base(number, group)) for group in groups if plans.draws_whole(number, group, copies))
        for number in range(len(plans.cases))
    )
    return places * max(sizes, default=0)


def patch_for_evaluation(plans: CasePlans, budget: Budget) -> EvaluationPatch:
    """Return the patch that evaluation fits in a budget with."""
    shapes, channels = {}, {}
    for number, case in enumerate(plans.cases):
        results = [plans.base(number, group).result for group in plans.settings.chains]
        shapes[case.name] = results[0].shape
        channels[case.name] = sum(result.channels for result in results)
    return evaluation_patch(shapes, channels, budget)


def _check_extents(plans: CasePlans, number: int) -> None:
    for group in plans.settings.chains:
        chain = plans.base(number, group).chain
        for volume, what in ((chain.stored, "is stored with"), (chain.result, "ends with")):
            if not volume.channels or 0 in volume.shape:
                raise UsageError(
                    f"Case {plans.cases[number].name!r}: {group!r} {what} the shape {volume.array_shape}, which holds no voxel.",
                    hint="Leave the case out with subset, or repair the file."
                    if volume is chain.stored
                    else "Change the stage that leaves nothing of it.",
                )


def _estimate(plans: CasePlans, number: int, copies: int) -> CaseEstimate:
    stored = resident = buffered = peak = 0
    streams = {}
    for group in plans.settings.chains:
        base = plans.base(number, group)
        stored += base.chain.stored.bytes_of(base.chain.stored.region)
        resident += _bytes(base)
        streams[group] = tuple(plans.copy_plan(number, group, copy, 0).streams for copy in range(copies))
        peak = max(peak, _peak(base))
        if not all(streams[group]):
            buffered += _bytes(base)
    return CaseEstimate(plans.cases[number].name, stored, resident, streams, peak + _MEASURING_BYTES, buffered)


def _bytes(plan: Plan) -> int:
    """Return the bytes of the whole result."""
    return plan.result.bytes_of(plan.result.region)


def _peak(plan: Plan) -> int:
    """Return the most that computing a patch holds, or, where patches do not stream, computing the whole."""
    if not plan.streams:
        return plan.peak_bytes(plan.result.region)
    middle = plan.grid[len(plan.grid) // 2] if len(plan.grid) else Region.full(plan.result.shape)
    return plan.peak_bytes(middle)


def _patch_bytes(plan: Plan, itemsize: int | None) -> int:
    extents = (declared or n for declared, n in zip(plan.patch_size, plan.result.shape, strict=True))
    return plan.result.channels * math.prod(extents) * (itemsize or plan.result.dtype.itemsize)
