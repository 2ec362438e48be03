"""What is the value between voxels, and beyond the last one?

Coordinates are float64 functions of *global* voxel indices, computed element by element in a fixed order, so that a voxel of a
patch gets the same coordinate, the same weights and the same sum as within the whole volume. numpy and Python floats follow
IEEE 754 alike, and rounding keeps order: the least and the greatest coordinate of a box of output voxels are those of its
corners, computed by the same operations. Windows made from them are exact, not estimates.

Axes are sampled one after another where the map allows it (:func:`along_axes`); an affine map that mixes axes takes eight
voxels for each output voxel (:mod:`mlarray.transforms.affine`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mlarray.errors import UsageError
from mlarray.region import Region, trusted_region
from mlarray.sources.base import NDArray
from mlarray.transforms.base import rounded_to
from mlarray.transforms.volume import Volume

Coordinates: TypeAlias = npt.NDArray[np.float64]
Interpolation: TypeAlias = Literal["linear", "nearest"]
Shape: TypeAlias = tuple[int, ...]


def check_interpolation(interpolation: str | None) -> None:
    """Raise for anything but ``"linear"``, ``"nearest"`` and None."""
    if interpolation not in (None, "linear", "nearest"):
        raise UsageError(f"interpolation is 'linear', 'nearest' or None (by the dtype), got {interpolation!r}.")


def is_linear(volume: Volume, interpolation: str | None, *, integers: bool) -> bool:
    """Tell whether values are interpolated; otherwise the nearest voxel is taken.

    Parameters
    ----------
    volume : Volume
        What is sampled.
    interpolation : str or None
        ``"linear"`` or ``"nearest"`` decides; None leaves it to the dtype: bool, uint8 and labels are never interpolated.
    integers : bool
        Whether other integers are, too: by resampling, not by random rotations and the like.
    """
    if interpolation is not None:
        return interpolation == "linear"
    if volume.is_label or volume.dtype in (np.bool_, np.uint8):
        return False
    return integers or volume.dtype.kind not in "iu"


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that values are blended in: float32 where it holds every value, float64 or complex else."""
    if dtype.kind == "c":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 or dtype == np.float32 else np.float64)


def as_dtype(values: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return blended values in the dtype of the volume; a bool is true from one half on."""
    if values.dtype == dtype:
        return values
    if dtype == np.bool_:
        return values >= 0.5
    if dtype.kind in "iu" and dtype.itemsize <= 4:
        return np.rint(values).astype(dtype)  # between integers of this type: nothing to saturate
    return rounded_to(values, dtype)


# --- borders ---------------------------------------------------------------------------------------------------------------


def reflected(coordinates: Coordinates, n: int) -> Coordinates:
    """Return coordinates folded into ``[0, n - 1]`` by reflection about the centres of the first and the last voxel.

    The period is ``2 (n - 1)``. The array is the caller's own and may be changed.
    """
    if n == 1:
        return np.zeros_like(coordinates)
    last, period = float(n - 1), 2.0 * (n - 1)
    np.abs(coordinates, out=coordinates)
    beyond = coordinates > last
    if beyond.any():
        folded = np.mod(coordinates[beyond], period)
        coordinates[beyond] = np.minimum(folded, period - folded)
    return coordinates


def reflected_range(low: float, high: float, n: int) -> tuple[float, float]:
    """Return the least and the greatest of :func:`reflected` over ``[low, high]``."""
    if n == 1:
        return 0.0, 0.0
    last = float(n - 1)
    if low >= 0.0 and high <= last:
        return low, high
    first, final = math.floor(low / last), math.floor(high / last)
    if final - first > 1:
        return 0.0, last
    ends = _reflected_one(low, last), _reflected_one(high, last)
    if first == final:
        return min(ends), max(ends)
    turning = last if final % 2 else 0.0
    return min(*ends, turning), max(*ends, turning)


def _reflected_one(value: float, last: float) -> float:
    value = abs(value)
    if value <= last:
        return value
    folded = value % (2.0 * last)
    return min(folded, 2.0 * last - folded)


# --- one axis --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AxisMap:
    """Output index ``o`` is sampled at ``o * step + offset``, per axis, reflected about the border voxels.

    Parameters
    ----------
    step, offset : tuple of float
        Per array axis; steps above 0.
    """

    step: tuple[float, ...]
    offset: tuple[float, ...]

    def coordinates(self, axis: int, start: int, stop: int, n: int) -> Coordinates | None:
        """Return where outputs ``start <= o < stop`` are sampled, or None for an axis that stays as it is."""
        if self.step[axis] == 1.0 and self.offset[axis] == 0.0:
            return None
        places = np.arange(start, stop, dtype=np.float64)
        places *= self.step[axis]
        places += self.offset[axis]
        return reflected(places, n)

    def window(self, linear: bool, target: Region, shape: Shape) -> Region:  # noqa: FBT001 - first in functools.partial
        """Return the voxels that have a weight in ``target``."""
        start, stop = [], []
        for a, b, n, step, offset in zip(target.start, target.stop, shape, self.step, self.offset, strict=True):
            if a == b:
                low, high = 0, 0
            elif step == 1.0 and offset == 0.0:
                low, high = a, b
            else:
                first, final = reflected_range(a * step + offset, (b - 1) * step + offset, n)
                low, high = (math.floor(first), math.ceil(final)) if linear else (round(first), round(final))
                high += 1
            start.append(low)
            stop.append(high)
        return trusted_region(tuple(start), tuple(stop))


def rescaled_coordinates(start: int, stop: int, n: int, m: int) -> Coordinates | None:
    """Return where outputs ``start <= o < stop`` of ``m`` lie among ``n`` inputs: ``(o + 0.5) * n / m - 0.5``, clamped.

    None where both are as many: nothing is between voxels.
    """
    if n == m:
        return None
    places = np.arange(start, stop, dtype=np.float64)
    places += 0.5
    places *= n / m
    places -= 0.5
    return np.clip(places, 0.0, float(n - 1), out=places)


def rescaled_nearest(start: int, stop: int, n: int, m: int) -> npt.NDArray[np.intp] | None:
    """Return the nearest inputs of outputs ``start <= o < stop``: ``floor((2 o + 1) n / (2 m))``, in integers."""
    if n == m:
        return None
    places = np.arange(start, stop, dtype=np.int64)
    return ((2 * places + 1) * n // (2 * m)).astype(np.intp)


def along_axes(
    block: NDArray, start: Sequence[int], coordinates: Sequence[Coordinates | None], order: Sequence[int]
) -> NDArray:
    """Return a block sampled linearly along one axis after another.

    Parameters
    ----------
    block : ndarray, shape (C, spatial...)
        Holds every voxel that has a weight.
    start : sequence of int
        Global index of its first voxel, per spatial axis.
    coordinates : sequence of ndarray or None
        Per spatial axis, global and within the volume; None leaves the axis.
    order : sequence of int
        In which axes are sampled. Sums depend on it, so it follows from whole volumes and never from the block.

    Returns
    -------
    ndarray
        In the block's dtype: integers rounded half to even and saturated.
    """
    values, working = block, working_dtype(block.dtype)
    for axis in order:
        places = coordinates[axis]
        if places is not None:
            values = _blend(values, axis + 1, places, start[axis], working)
    return as_dtype(values, block.dtype)


def nearest_along_axes(block: NDArray, start: Sequence[int], indices: Sequence[npt.NDArray[np.intp] | None]) -> NDArray:
    """Return the voxels at global indices, per spatial axis; None leaves an axis."""
    for axis, places in enumerate(indices):
        if places is not None:
            block = np.take(block, places - start[axis], axis=axis + 1)
    return block


def reduction_first(before: Shape, after: Shape) -> list[int]:
    """Return the axes with those first that lose most voxels: later passes then have less to do."""
    return sorted(range(len(before)), key=lambda axis: (after[axis] / max(1, before[axis]), axis))


def _blend(values: NDArray, axis: int, places: Coordinates, start: int, working: np.dtype[Any]) -> NDArray:
    """Blend two planes each: the nearer one plus the difference to the other by a weight of at most one half.

    So the result lies between both, a constant stays one, and a plane that is hit exactly is copied, whatever lies beside it.
    """
    low = np.floor(places)
    upper = places - low
    lower_index = low.astype(np.intp) - start
    upper_index = lower_index + (upper > 0)
    closer_to_upper = upper > 0.5
    near_index = np.where(closer_to_upper, upper_index, lower_index)
    far_index = np.where(closer_to_upper, lower_index, upper_index)
    weight = np.where(closer_to_upper, 1.0 - upper, upper)
    near = np.take(values, near_index, axis=axis).astype(working, copy=False)
    exact = weight == 0
    if exact.all():
        return near
    copied = near[_at(axis, exact)] if exact.any() else None
    shape = [1] * values.ndim
    shape[axis] = len(weight)
    real = np.float32 if working in (np.float32, np.complex64) else np.float64
    far = np.take(values, far_index, axis=axis).astype(working, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        far -= near
        far *= weight.astype(real).reshape(shape)
        near += far
    if copied is not None:
        near[_at(axis, exact)] = copied
    return near


def _at(axis: int, chosen: npt.NDArray[np.bool_]) -> tuple[Any, ...]:
    return (*[slice(None)] * axis, chosen)
