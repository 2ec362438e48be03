"""May this chain be streamed, and if not, which stage is in the way?

Two profiles give the same voxels and differ in what they dare. The *strict* one follows five published rules to the letter. The
*extended* one streams whatever is exact in bounded memory; there only two things are in the way: a stage that needs the whole
volume, and cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from mlarray.region import Region
from mlarray.streaming.chain import Chain, Stage
from mlarray.transforms.locality import FullAxis, Halo, Kind, Regrid, WholeVolume
from mlarray.transforms.save import REGION_FORMATS, Save
from mlarray.transforms.statistics import Moments

HALO_SHARE = 0.5
"""Largest halo as a share of the patch, in the strict profile: at this share a read has 8 times the voxels of a 3-D patch."""

COST_LIMIT = 8.0
"""Most voxels that may be read for one voxel of a patch, in the extended profile.

Voxels are counted in the stored volume's type and channels on both sides, so that a cast or a choice of channels makes no patch
dearer. A line of voxels that a stage reduces to one counts as many voxels of the patch as it has: no other patch needs it.
"""


class Regime(Enum):
    """How patches are made."""

    STREAM = "stream"
    BUFFER = "buffer"


class Rule(Enum):
    """Why a chain does not stream; the first five are the published ones, by their numbers."""

    WHOLE_VOLUME = 1
    HALO = 2
    STATISTIC_AFTER_CHANGE = 3
    UNKNOWN_STATISTIC = 4
    NO_SPACING = 5
    COST = 6


@dataclass(frozen=True, slots=True)
class Verdict:
    """A regime with what decided it.

    Parameters
    ----------
    regime : Regime
        Streamed, or loaded whole.
    reason : str
        One sentence with the numbers.
    stage : int or None
        Index of the stage that stands in the way.
    rule : Rule or None
        The rule it breaks.
    remedy : str
        How to make it stream.
    cost : float
        Voxels read for each voxel of a patch, the worst of the patches looked at; see :data:`COST_LIMIT`.
    """

    regime: Regime
    reason: str
    stage: int | None = None
    rule: Rule | None = None
    remedy: str = ""
    cost: float = 1.0


def judge(chain: Chain, patch_size: Sequence[int], *, strict: bool, cost_limit: float = COST_LIMIT) -> Verdict:
    """Return the verdict on a chain.

    Parameters
    ----------
    chain : Chain
        Resolved.
    patch_size : sequence of int
        Of the result, per spatial axis; 0 is free.
    strict : bool
        Which profile.
    cost_limit : float
        For the extended profile.
    """
    cost = read_cost(chain, patch_size)
    for stage in chain.stages:
        refusal = _strict_refusal(chain, stage, patch_size) if strict else _extended_refusal(chain, stage)
        if refusal is not None:
            return replace(refusal, cost=cost)
    if not strict and chain.stages and cost > cost_limit:
        return _too_dear(chain, patch_size, cost, cost_limit)
    amount = "no more voxels than it has" if cost <= 1 else f"at most {cost:.3g} times as many voxels as it has"
    reason = f"Every stage needs a bounded region; a patch reads {amount}"
    causes = _causes(chain, patch_size) if cost >= 2 else ""
    saves = [stage.title for stage in chain.stages if isinstance(stage.transform, Save)]
    swept = f" {' and '.join(saves)} can be written in one sweep over the volume." if saves else ""
    return Verdict(Regime.STREAM, f"{reason}{causes}.{swept}", cost=cost)


def read_cost(chain: Chain, patch_size: Sequence[int]) -> float:
    """Return the most voxels read for each voxel of a patch, over patches at the corners, edges and the middle."""
    reduced = math.prod(map(_reduced, chain.stages))
    sizes = ((chain.fold(target)[0].size, target.size) for target in sample_patches(chain, patch_size))
    return max((read / (made * reduced) for read, made in sizes), default=1.0)


def sample_patches(chain: Chain, patch_size: Sequence[int]) -> Iterator[Region]:
    """Yield the first, the middle and the last patch along each axis, in all combinations."""
    extents = _extents(chain, patch_size)
    places = [sorted({0, (n - p) // 2, n - p}) for n, p in zip(chain.result.shape, extents, strict=True) if n]
    if len(places) == len(extents):
        for start in itertools.product(*places):
            yield Region.at(start, extents)


def _refused(stage: Stage, rule: Rule, told: str, remedy: str) -> Verdict:
    """Return a refusal; ``told`` follows the name of the stage."""
    published = "" if rule is Rule.COST else f" (rule {rule.value})"
    return Verdict(Regime.BUFFER, f"{stage.title} {told}{published}.", stage.number - 1, rule, remedy)


def _strict_refusal(chain: Chain, stage: Stage, patch_size: Sequence[int]) -> Verdict | None:
    kind = stage.locality.strict_kind
    if kind is Kind.WHOLE_VOLUME:
        if isinstance(stage.locality, WholeVolume):
            return _whole(chain, stage)
        if isinstance(stage.transform, Save):
            told = f"is written whole: {stage.transform.format} files as this one are not written part by part"
            remedy = (
                f"Save into {', '.join(sorted(REGION_FORMATS))} (mha: with a geometry), or use the extended profile."
            )
            return _refused(stage, Rule.WHOLE_VOLUME, told, remedy)
        told = "counts as needing the whole volume by the published rules"
        return _refused(stage, Rule.WHOLE_VOLUME, told, _EXTENDED)
    if kind is Kind.HALO and isinstance(stage.locality, (Halo, Regrid)):
        # A later stage that changes the number of axes needs the whole volume and is refused for that.
        for axis, (radius, extent) in enumerate(zip(stage.locality.radius, _extents(chain, patch_size), strict=False)):
            if radius > HALO_SHARE * extent:
                told = (
                    f"reads {radius} voxels beyond a patch on axis {axis}, more than half of the patch's {extent} there"
                )
                remedy = f"Use patches of at least {2 * radius} voxels on axis {axis}, or the extended profile (without strict)."
                return _refused(stage, Rule.HALO, told, remedy)
    if kind is Kind.GLOBAL_STAT:
        before = chain.stages[_last_save(chain, stage) : stage.index]
        changed = next((other for other in before if not other.locality.preserves_statistics), None)
        if changed is not None:
            told = f"needs a statistic of the values after {changed.label}, which is not one of the stored volume"
            remedy = f"Move it before {changed.transform.name}, give it its numbers, or use the extended profile."
            return _refused(stage, Rule.STATISTIC_AFTER_CHANGE, told, remedy)
        unknown = [one for one in stage.statistics if not isinstance(one, Moments) or one.mask is not None]
        if unknown:
            told = f"needs {unknown[0]}, which is not minimum, maximum, mean or deviation"
            return _refused(stage, Rule.UNKNOWN_STATISTIC, told, _EXTENDED)
    if kind is Kind.RESCALE and (stage.before.geometry is None or "spacing" not in stage.before.geometry.known):
        told = "resamples a volume whose spacing is not known"
        return _refused(stage, Rule.NO_SPACING, told, "State the spacing of the stored volume.")
    return None


def _extended_refusal(chain: Chain, stage: Stage) -> Verdict | None:
    return _whole(chain, stage) if isinstance(stage.locality, WholeVolume) else None


def _last_save(chain: Chain, stage: Stage) -> int:
    """Return the index behind the last ``Save`` before a stage: what is saved there will be the stored volume."""
    saves = [one.index + 1 for one in chain.stages[: stage.index] if isinstance(one.transform, Save)]
    return saves[-1] if saves else 0


def _whole(chain: Chain, stage: Stage) -> Verdict:
    assert isinstance(stage.locality, WholeVolume)
    told = f"needs the whole volume: {stage.locality.reason}"
    if any(key not in chain.stored.attributes for key in stage.transform.beforehand(chain.stored)):
        told = f"needs the whole volume as long as only its header is known: {stage.locality.reason}"
        return _refused(stage, Rule.WHOLE_VOLUME, told, "plan(..., measure=True), the default, measures that first.")
    remedy = (
        "Declare a smaller dependence if it has one" if type(stage.locality)() == stage.locality else "Correct that"
    )
    return _refused(stage, Rule.WHOLE_VOLUME, told, f"{remedy}, or store the result of this stage and plan from there.")


def _too_dear(chain: Chain, patch_size: Sequence[int], cost: float, limit: float) -> Verdict:
    targets = list(sample_patches(chain, patch_size))
    read = max((chain.fold(target)[0] for target in targets), key=lambda region: region.size)
    dearest, causes = _dearest(chain, patch_size), _causes(chain, patch_size)
    told = (
        f"multiplies what a patch reads{' most' * (',' in causes)}: {_by(read.shape)} stored voxels for "
        f"{_by(_extents(chain, patch_size))}, {cost:.3g} times as many{causes if ',' in causes else ''}; the limit is {limit:g}"
    )
    larger = _cheap_patch(chain, patch_size, limit)
    remedy = (
        "Larger patches do not help; store the result of this stage and plan from there, or raise cost_limit."
        if larger is None
        else f"Patches of {_by(larger)} stream: {read_cost(chain, larger):.3g} times as many. Or raise cost_limit."
    )
    return replace(_refused(dearest, Rule.COST, told, remedy), cost=cost)


def _cheap_patch(chain: Chain, patch_size: Sequence[int], limit: float) -> tuple[int, ...] | None:
    """Return the smallest of the patches 1.25, 1.5, 2 ... times as large that keeps to the limit."""
    extents, whole = _extents(chain, patch_size), chain.result.shape
    factor = 1.25
    while True:
        larger = tuple(min(n, math.ceil(p * factor)) for p, n in zip(extents, whole, strict=True))
        if read_cost(chain, larger) <= limit:
            return larger
        if larger == whole:
            return None
        factor = 1.5 if factor == 1.25 else 2 if factor == 1.5 else 2 * factor


def _causes(chain: Chain, patch_size: Sequence[int]) -> str:
    """Return which stages multiply the voxels of the middle patch, in brackets; nothing where none does by a half."""
    grown = list(zip(_growth(chain, patch_size), chain.stages, strict=True))
    told = [f"{stage.label} by {by:.3g}" for by, stage in sorted(grown, key=lambda one: -one[0]) if by >= 1.5]
    return f" ({', '.join(told[:3])}{' ...' if len(told) > 3 else ''})" if told else ""


def _dearest(chain: Chain, patch_size: Sequence[int]) -> Stage:
    """Return the stage that multiplies the voxels most, for the middle patch."""
    growth = _growth(chain, patch_size)
    return max(chain.stages, key=lambda stage: growth[stage.index])


def _growth(chain: Chain, patch_size: Sequence[int]) -> list[float]:
    """Return by how much each stage multiplies the voxels of the middle patch."""
    targets = list(sample_patches(chain, patch_size))
    regions = chain.fold(targets[len(targets) // 2])
    sizes = [max(1, region.size) for region in regions]
    return [sizes[one.index] / (sizes[one.index + 1] * _reduced(one)) for one in chain.stages]


def _reduced(stage: Stage) -> float:
    """Return how many voxels a stage makes one of, along lines that no other voxel needs."""
    if not isinstance(stage.locality, FullAxis):
        return 1.0
    return max(1, math.prod(stage.before.shape)) / max(1, math.prod(stage.after.shape))


def _extents(chain: Chain, patch_size: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(p, n) if p else n for p, n in zip(patch_size, chain.result.shape, strict=True))


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))


_EXTENDED = "The extended profile (without strict) streams it."
