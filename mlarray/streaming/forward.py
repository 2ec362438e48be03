"""Where does a voxel of a stage's input come out?

Localities answer the other way: which input a region of the output needs. So the output is halved, again and again, and the
half that needs the voxel is kept; a fold takes microseconds, and a volume of 512 voxels a side 27 of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlarray.region import Region
from mlarray.streaming.plan import Plan


def voxel_of_result(plan: Plan, voxel: Sequence[int], *, stages: int = 0) -> tuple[int, ...]:
    """Return a voxel of a plan's result that comes from a voxel of its stored volume.

    Parameters
    ----------
    plan : Plan
        Whose stages it goes through.
    voxel : sequence of int
        Spatial index before stage ``stages``.
    stages : int
        How many stages are behind it already.

    Returns
    -------
    tuple of int
        Exact for axes that are exchanged or mirrored; for resampled grids within the reach of the interpolation. Of a voxel
        that is not in the result, the nearest one by the boxes that are read.
    """
    region = plan.result.region
    while max(region.shape) > 1:
        axis = region.shape.index(max(region.shape))
        halves = list(region.split(axis, -(-region.shape[axis] // 2)))
        distances = [_distance(plan.chain.fold(half)[stages], voxel) for half in halves]
        region = halves[distances.index(min(distances))]
    return region.start


def _distance(region: Region, voxel: Sequence[int]) -> tuple[int, float]:
    """Return how far a voxel lies outside a region, and how far from its centre."""
    outside = sum(
        max(low - at, at - (high - 1), 0) for low, high, at in zip(region.start, region.stop, voxel, strict=True)
    )
    centre = sum(abs((low + high - 1) / 2 - at) for low, high, at in zip(region.start, region.stop, voxel, strict=True))
    return outside, centre
