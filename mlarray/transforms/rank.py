"""What becomes of the axes that carry nothing, or that are summed up? Transforms that change how many axes there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from mlarray.errors import TransformError
from mlarray.region import Region, trusted_region
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform, float_of
from mlarray.transforms.locality import FullAxis, Locality, Pointwise, Regrid, WholeVolume
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Squeeze(Transform):
    """Drop an axis of extent 1; an axis of another extent stays. The channel axis always stays.

    What is left has no geometry: a plane within space is none that two axes could say.

    Parameters
    ----------
    dim : int
        Axis of ``[C, spatial...]``; negative from the end.
    """

    dim: int

    def locality(self, volume: Volume) -> Locality:
        """Return the index remap."""
        axis = self._axis(volume)
        if axis is None:
            return Pointwise(preserves_statistics=True)
        return Regrid(_without(volume.shape, axis), partial(_with_axis, axis))

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume without the axis."""
        if not -volume.ndim - 1 <= self.dim <= volume.ndim:
            raise TransformError(f"There is no axis {self.dim} in the shape {volume.array_shape}.")
        axis = self._axis(volume)
        if axis is None:
            return volume
        return volume.with_(shape=_without(volume.shape, axis), geometry=None, on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Drop the axis."""
        axis = self._axis(context.before)
        return block if axis is None else np.squeeze(block, axis + 1)

    def _axis(self, volume: Volume) -> int | None:
        axis = self.dim - 1 if self.dim >= 0 else self.dim + volume.ndim
        return axis if 0 <= axis < volume.ndim and volume.ndim > 1 and volume.shape[axis] == 1 else None


@dataclass(frozen=True, slots=True)
class Flatten(Transform):
    """Put all values, channel by channel, into one line: ``[1, C * voxels]``."""

    def locality(self, volume: Volume) -> Locality:
        """Return the whole volume."""
        return WholeVolume("a part of the line is no box", (volume.channels * math.prod(volume.shape),))

    def outcome(self, volume: Volume) -> Volume:
        """Return the line."""
        count = volume.channels * math.prod(volume.shape)
        return volume.with_(channels=1, shape=(count,), geometry=None, on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Lay out the values."""
        return block.reshape(1, -1)


@dataclass(frozen=True, slots=True)
class Norm(Transform):
    """Euclidean norm over the last axis, which goes away; float32, float64 for float64."""

    def locality(self, volume: Volume) -> Locality:
        """Return that lines along the last axis are read."""
        if volume.ndim < 2:
            return WholeVolume("its only axis goes away")
        return FullAxis((volume.ndim - 1,), volume.shape[:-1])

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume without its last axis."""
        if volume.ndim < 2:
            raise TransformError(
                f"Norm takes the last of at least two spatial axes, the shape is {volume.array_shape}."
            )
        return volume.with_(shape=volume.shape[:-1], dtype=float_of(volume.dtype), geometry=None, on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Sum up the squares, plane after plane: a sum over the axis itself would depend on how memory is laid out."""
        squares = np.zeros(block.shape[:-1])
        with np.errstate(over="ignore"):
            for index in range(block.shape[-1]):
                squares += np.square(block[..., index], dtype=np.float64)
            return np.sqrt(squares).astype(context.after.dtype)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _with_axis(axis: int, target: Region, shape: tuple[int, ...]) -> Region:
    start = (*target.start[:axis], 0, *target.start[axis:])
    return trusted_region(start, (*target.stop[:axis], 1, *target.stop[axis:]))
