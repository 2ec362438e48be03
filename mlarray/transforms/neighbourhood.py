"""What does a voxel become with those around it? Dilation and differences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlarray.errors import TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.casting import real, saturated_to
from mlarray.transforms.locality import Halo, Locality, Pointwise
from mlarray.transforms.volume import Volume

STEEPNESS = 3.0
"""Factor of a difference within the logistic function of :class:`Gradient`."""


@dataclass(frozen=True, slots=True)
class Dilate(Transform):
    """1 where a voxel above 0 lies in the cube of ``2 * dilate + 1`` voxels around, else 0, in the input's type.

    Nothing lies outside of the volume. With ``dilate=0`` values stay as they are.

    Parameters
    ----------
    dilate : int
        Radius in voxels, from 0 on.
    """

    dilate: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.dilate, (int, np.integer)) or isinstance(self.dilate, bool) or self.dilate < 0:
            raise UsageError(f"Dilate takes a radius in voxels, an integer from 0 on; got {self.dilate!r}.")

    def locality(self, volume: Volume) -> Locality:
        """Return the halo."""
        return Halo((int(self.dilate),) * volume.ndim) if self.dilate else Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume."""
        if volume.ndim not in (2, 3):
            raise TransformError(f"Dilate takes 2 or 3 spatial axes, the array has {volume.ndim}.")
        return real(volume)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Widen along one axis after the other."""
        if not self.dilate:
            return block
        mask = block > 0
        for axis in range(1, mask.ndim):
            mask = _widened(mask, axis, int(self.dilate))
        return mask.astype(block.dtype)


@dataclass(frozen=True, slots=True)
class Gradient(Transform):
    """Differences ``d = x[i + 1] - x[i]`` along each spatial axis, 0 on the last plane of the volume; or their steepness.

    Parameters
    ----------
    per_dim : bool
        True: one channel per spatial axis, in their order, for each channel of the input; in its type, saturated for integers.
        False: per channel the root of the sum over the axes of ``(1 / (1 + exp(-3 d)))**2``, float32: sqrt(3) / 2 where a
        3-D volume is constant.
    """

    per_dim: bool = False

    def locality(self, volume: Volume) -> Locality:
        """Return the halo: 1 on every axis."""
        return Halo((1,) * volume.ndim)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume of differences, or of steepness."""
        if self.per_dim:
            return real(volume).with_(channels=volume.channels * volume.ndim, is_label=False)
        return real(volume).with_(dtype=np.dtype(np.float32), is_label=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Subtract neighbours."""
        axes = range(1, block.ndim)
        with np.errstate(all="ignore"):
            if self.per_dim:
                parts = np.stack([_differences(block, axis, saturated=True) for axis in axes], axis=1)
                return parts.reshape(context.after.channels, *block.shape[1:])
            squares = np.zeros(block.shape, np.float64 if block.dtype == np.float64 else np.float32)
            for axis in axes:
                steep = _differences(block, axis, saturated=False).astype(squares.dtype, order="C")
                steep *= -STEEPNESS
                np.exp(steep, out=steep)
                steep += 1.0
                np.reciprocal(steep, out=steep)
                steep *= steep
                squares += steep
            return np.sqrt(squares).astype(np.float32, copy=False)


def _widened(mask: NDArray, axis: int, radius: int) -> NDArray:
    """Return where one of ``2 radius + 1`` voxels along an axis is True: windows that double until they are wide enough."""
    extent = mask.shape[axis]
    radius = min(radius, extent)
    padding = [(0, 0)] * mask.ndim
    padding[axis] = (radius, radius)
    window, covered, wanted = np.pad(mask, padding), 1, 2 * radius + 1
    while covered < wanted:
        step = min(covered, wanted - covered)
        n = window.shape[axis]
        window = _along(window, axis, 0, n - step) | _along(window, axis, step, n)
        covered += step
    return window


def _differences(block: NDArray, axis: int, *, saturated: bool) -> NDArray:
    """Return forward differences, 0 at the end: floats in their type, integers exactly or saturated in their type."""
    dtype, n = block.dtype, block.shape[axis]
    low, high = _along(block, axis, 0, n - 1), _along(block, axis, 1, n)
    if dtype.kind == "f":
        out = np.zeros(block.shape, dtype)
        _along(out, axis, 0, n - 1)[...] = high - low
        return out
    if dtype.itemsize == 8:
        inner = _differences_of_64_bits(high, low, saturated=saturated)
    elif saturated:
        wide = np.int32 if dtype.itemsize <= 2 else np.int64
        inner = np.subtract(high, low, dtype=wide)
        inner = inner > 0 if dtype.kind == "b" else saturated_to(inner, dtype)
    else:  # in the float type that holds every difference
        inner = np.subtract(high, low, dtype=np.float32 if dtype.itemsize <= 2 else np.float64)
    out = np.zeros(block.shape, inner.dtype)
    _along(out, axis, 0, n - 1)[...] = inner
    return out


def _differences_of_64_bits(high: NDArray, low: NDArray, *, saturated: bool) -> NDArray:
    """Return differences of 64-bit integers, which no integer type holds: saturated, or in float64."""
    dtype = high.dtype
    size = np.where(high > low, high, low).view(np.uint64) - np.where(high > low, low, high).view(np.uint64)
    if not saturated:
        return np.where(high >= low, 1.0, -1.0) * size.astype(np.float64)
    if dtype.kind == "u":
        return np.where(high >= low, size, np.uint64(0))
    wrapped = high - low  # right unless the true size is above 2**63 - 1, where it saturates
    beyond = size > np.uint64(np.iinfo(np.int64).max)
    wrapped[beyond & (high > low)] = np.iinfo(np.int64).max
    wrapped[beyond & (high < low)] = np.iinfo(np.int64).min
    return wrapped


def _along(array: NDArray, axis: int, start: int, stop: int) -> NDArray:
    return array[(slice(None),) * axis + (slice(start, stop),)]
