"""May this chain be streamed, and if not, which stage is in the way?

Two profiles give the same voxels and differ in what they dare. The *strict* one follows five published rules to the letter. The
*extended* one streams whatever is exact in bounded memory; there only two things are in the way: a stage that needs the whole
volume, and cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from mlarray.region import Region
from mlarray.streaming.chain import Chain, Stage
from mlarray.transforms.locality import FullAxis, Halo, Kind, Regrid, WholeVolume
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
        refusal = _strict_refusal(chain, stage, patch_size) if strict else _extended_refusal(stage)
        if refusal is not None:
            rule, reason, remedy = refusal
            return Verdict(Regime.BUFFER, f"{stage.label}: {reason}", stage.index, rule, remedy, cost)
    if not strict and cost > cost_limit:
        stage = _dearest(chain, patch_size)
        return Verdict(
            Regime.BUFFER,
            f"{stage.label}: a patch of {_by(_extents(chain, patch_size))} needs {cost:.3g} voxels of the stored volume for "
            f"each of its own; the limit is {cost_limit:g}.",
            stage.index,
            Rule.COST,
            "Use larger patches, save the result of this stage and stream from there, or raise cost_limit.",
            cost,
        )
    amplified = f" A patch reads {cost:.3g} times its voxels." if cost >= 2 else ""
    return Verdict(Regime.STREAM, f"Every stage needs a bounded region.{amplified}", cost=cost)


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


def _strict_refusal(chain: Chain, stage: Stage, patch_size: Sequence[int]) -> tuple[Rule, str, str] | None:
    kind = stage.locality.strict_kind
    if kind is Kind.WHOLE_VOLUME:
        if isinstance(stage.locality, WholeVolume):
            return (Rule.WHOLE_VOLUME, f"needs the whole volume: {stage.locality.reason}.", _SAVE)
        return (Rule.WHOLE_VOLUME, "counts as needing the whole volume in the strict profile.", _EXTENDED)
    if kind is Kind.HALO and isinstance(stage.locality, (Halo, Regrid)):
        # A later stage that changes the number of axes needs the whole volume and is refused for that.
        for axis, (radius, extent) in enumerate(zip(stage.locality.radius, _extents(chain, patch_size), strict=False)):
            if radius > HALO_SHARE * extent:
                return (
                    Rule.HALO,
                    f"a halo of {radius} on axis {axis} is more than half of the patch's {extent}.",
                    f"Use patches of at least {2 * radius} there, or save its result and stream from there.",
                )
    if kind is Kind.GLOBAL_STAT:
        changed = next(
            (other for other in chain.stages[: stage.index] if not other.locality.preserves_statistics), None
        )
        if changed is not None:
            return (
                Rule.STATISTIC_AFTER_CHANGE,
                f"its statistic is of the values after {changed.label}, which no header and no pass over the stored volume has.",
                f"Move it before {changed.transform.name}, give its values, or use the extended profile.",
            )
        unknown = [one for one in stage.statistics if not isinstance(one, Moments) or one.mask is not None]
        if unknown:
            return (
                Rule.UNKNOWN_STATISTIC,
                f"needs {unknown[0]}, which is not minimum, maximum, mean or deviation.",
                _EXTENDED,
            )
    if kind is Kind.RESCALE and (stage.before.geometry is None or "spacing" not in stage.before.geometry.known):
        return (Rule.NO_SPACING, "the spacing of its input is not known.", "State the spacing of the stored volume.")
    return None


def _extended_refusal(stage: Stage) -> tuple[Rule, str, str] | None:
    if isinstance(stage.locality, WholeVolume):
        return (Rule.WHOLE_VOLUME, f"needs the whole volume: {stage.locality.reason}.", _SAVE)
    return None


def _dearest(chain: Chain, patch_size: Sequence[int]) -> Stage:
    """Return the stage that multiplies the voxels most, for the middle patch."""
    targets = list(sample_patches(chain, patch_size))
    regions = chain.fold(targets[len(targets) // 2])
    sizes = [max(1, region.size) for region in regions]
    return max(chain.stages, key=lambda stage: sizes[stage.index] / (sizes[stage.index + 1] * _reduced(stage)))


def _reduced(stage: Stage) -> float:
    """Return how many voxels a stage makes one of, along lines that no other voxel needs."""
    if not isinstance(stage.locality, FullAxis):
        return 1.0
    return max(1, math.prod(stage.before.shape)) / max(1, math.prod(stage.after.shape))


def _extents(chain: Chain, patch_size: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(p, n) if p else n for p, n in zip(patch_size, chain.result.shape, strict=True))


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))


_SAVE = "Save its result once and stream from there, or declare a smaller dependence."
_EXTENDED = "The extended profile (strict=False) streams it."
