"""How does a patch of one slice bring its neighbours along? As further channels (2.5D), mirrored at the ends of the volume."""

from __future__ import annotations

import numpy as np

from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming.plan import Plan


def read_with_neighbours(plan: Plan, target: Region, count: int) -> NDArray:
    """Return a patch of one slice with ``count`` neighbours, in one read.

    Parameters
    ----------
    plan : Plan
        Its source.
    target : Region
        One slice along the first axis.
    count : int
        Neighbours: ``count // 2`` below and the rest above. Slices beyond the volume are mirrored about its first or last slice.

    Returns
    -------
    ndarray, shape ((count + 1) * C, 1, ...)
        All channels of the lowest slice first.

    Raises
    ------
    UsageError
        The patch has more than one slice.
    """
    if target.shape[0] != 1:
        raise UsageError(
            f"extend_slice={count} needs patches of one slice along the first axis, these have {target.shape[0]}.",
            hint="Set the first entry of patch_size to 1.",
        )
    extent, at = plan.result.shape[0], target.start[0]
    wanted = np.array([_mirrored(i, extent) for i in range(at - count // 2, at + count - count // 2 + 1)])
    low, high = int(wanted.min()), int(wanted.max()) + 1
    block = plan.read(Region((low, *target.start[1:]), (high, *target.stop[1:])))
    slices = np.moveaxis(block[:, wanted - low], 1, 0)
    return np.ascontiguousarray(slices.reshape(-1, 1, *block.shape[2:]))


def _mirrored(index: int, extent: int) -> int:
    """Return where an index beyond the ends lands, with a period of ``2 * (extent - 1)``."""
    if extent == 1:
        return 0
    place = index % (2 * (extent - 1))
    return place if place < extent else 2 * (extent - 1) - place
