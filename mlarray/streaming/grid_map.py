"""Which stored voxel is a voxel of a chain's result? Answered where the chain keeps the stored grid.

Axes may be exchanged, mirrored and cropped. A stage that samples at other places, or needs the whole volume, leaves the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mlarray.sources.base import NDArray
from mlarray.streaming.chain import Chain, Stage
from mlarray.transforms.locality import Cropping, GlobalStatistic, Halo, Orientation, Pointwise

_Index = TypeVar("_Index", int, NDArray)


@dataclass(frozen=True, slots=True)
class AxisMap:
    """Where the voxels along one axis of the result are stored.

    Parameters
    ----------
    axis : int
        Spatial axis of the stored volume.
    first : int
        Stored index of the result's voxel 0.
    step : int
        1, or -1 where the axis is mirrored.
    """

    axis: int
    first: int
    step: int

    def result_of(self, stored: _Index) -> _Index:
        """Return the index in the result of a stored index; it may lie outside."""
        return (stored - self.first) * self.step


@dataclass(frozen=True, slots=True)
class GridMap:
    """How the result of a chain lies on the stored grid.

    Parameters
    ----------
    axes : tuple of AxisMap
        Per spatial axis of the result.
    broken : Stage or None
        The first stage that leaves the grid; then ``axes`` are those of its input.
    changed : Stage or None
        The first stage after which the voxels may have other values.
    """

    axes: tuple[AxisMap, ...]
    broken: Stage | None = None
    changed: Stage | None = None

    @classmethod
    def of(cls, chain: Chain) -> GridMap:
        """Follow a chain from the stored volume to its result."""
        axes = tuple(AxisMap(axis, 0, 1) for axis in range(chain.stored.ndim))
        changed: Stage | None = None
        for stage in chain.stages:
            place = stage.locality
            if isinstance(place, Orientation):
                extents = [stage.before.shape[axis] for axis in place.order]
                turned = zip(place.order, place.mirrored, extents, strict=True)
                axes = tuple(_turned(axes[axis], n) if backwards else axes[axis] for axis, backwards, n in turned)
            elif isinstance(place, Cropping):
                axes = tuple(
                    AxisMap(one.axis, one.first + one.step * before, one.step)
                    for one, before in zip(axes, place.before, strict=True)
                )
            elif not isinstance(place, (Pointwise, GlobalStatistic, Halo)):
                return cls(axes, stage, changed or stage)
            if not isinstance(place, Cropping) and not place.preserves_statistics:
                changed = changed or stage
        return cls(axes, None, changed)

    def result_voxels(self, stored: NDArray, shape: tuple[int, ...]) -> NDArray:
        """Return the voxels ``(n, spatial)`` of the result, of ``shape``, that are stored voxels; those outside are left out."""
        moved = np.stack([one.result_of(stored[:, one.axis].astype(np.int64)) for one in self.axes], axis=1)
        inside: NDArray = np.all((moved >= 0) & (moved < shape), axis=1)
        return moved[inside]


def _turned(one: AxisMap, extent: int) -> AxisMap:
    return AxisMap(one.axis, one.first + one.step * (extent - 1), -one.step)
