"""What is left of several channels, or of a line of voxels? Reductions and what needs all of them.

Sums run term after term, never over the axis at once: numpy adds in an order that depends on extents and memory layout, and
those of a patch are not those of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform, float_of
from mlarray.transforms.casting import real, saturated_to, truncated_to
from mlarray.transforms.locality import FullAxis, Kind, Locality, Pointwise, WholeVolume
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Argmax(Transform):
    """The index of the (first) maximum along an axis, int64; the axis stays with extent 1. The first NaN counts as maximum.

    Over channels the result is marked as labels.

    Parameters
    ----------
    dim : int
        Axis of ``[C, spatial...]``; negative from the end.
    """

    dim: int = 0

    def __post_init__(self) -> None:
        _check_dim(self)

    def locality(self, volume: Volume) -> Locality:
        """Return that a voxel needs its channels, or the line through it."""
        return _line_locality(self.dim, volume, reduces=True)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume of indices."""
        after = _reduced(self.dim, volume, self.name).with_(dtype=np.dtype(np.int64))
        return after.with_(is_label=_axis(self.dim, volume) == 0)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Compare."""
        axis = _known_axis(self.dim, context.before)
        return np.asarray(np.argmax(block, axis=axis, keepdims=True), np.int64)


@dataclass(frozen=True, slots=True)
class Softmax(Transform):
    """``exp(x - max) / sum(exp(x - max))`` along an axis; float32, float64 for float64.

    Parameters
    ----------
    dim : int
        Axis of ``[C, spatial...]``; negative from the end.
    """

    dim: int = 0

    def __post_init__(self) -> None:
        _check_dim(self)

    def locality(self, volume: Volume) -> Locality:
        """Return that a voxel needs its channels, or the line through it."""
        return _line_locality(self.dim, volume, reduces=False)

    def outcome(self, volume: Volume) -> Volume:
        """Return a float volume."""
        _reduced(self.dim, volume, self.name)
        return volume.with_(dtype=float_of(volume.dtype), is_label=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Subtract the maximum, and divide by the sum."""
        axis = _known_axis(self.dim, context.before)
        kind = context.after.dtype
        exact = block.dtype.kind == "f" or block.dtype.itemsize <= 2
        values = np.array(block, kind if exact else np.float64, order="C")
        with np.errstate(all="ignore"):
            values -= values.max(axis=axis, keepdims=True)
            values = values.astype(kind, copy=False)
            np.exp(values, out=values)
            values /= _total(values, axis, kind)
        return values


@dataclass(frozen=True, slots=True)
class Sum(Transform):
    """The sum along an axis, which stays with extent 1, in the input's type: saturated for integers, "any" for bool.

    Floats are added in order of the axis, in float32 (float64 for float64).

    Parameters
    ----------
    dim : int
        Axis of ``[C, spatial...]``; negative from the end.
    """

    dim: int = 0

    def __post_init__(self) -> None:
        _check_dim(self)

    def locality(self, volume: Volume) -> Locality:
        """Return that a voxel needs its channels, or the line through it."""
        return _line_locality(self.dim, volume, reduces=True)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume with the axis summed up."""
        return _reduced(self.dim, volume, self.name)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Add up."""
        axis = _known_axis(self.dim, context.before)
        dtype = block.dtype
        if dtype.kind == "b":
            return np.asarray(block.any(axis=axis, keepdims=True))
        if dtype.kind == "f":
            with np.errstate(all="ignore"):
                return truncated_to(_total(block, axis, float_of(dtype)), dtype)
        if dtype.itemsize == 8:
            return _total_of_64_bits(block, axis)
        return saturated_to(_total(block, axis, np.dtype(np.int64)), dtype)


@dataclass(frozen=True, slots=True)
class Variance(Transform):
    """The variance over channels (members of an ensemble), with ``n - 1``: one channel, float32, computed in float64.

    Of one member it is 0, in the input's type.
    """

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return one float32 channel."""
        return _spread(volume)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Average the squared distances from the mean."""
        return _variance(block, context.after.dtype, root=False)


@dataclass(frozen=True, slots=True)
class StandardDeviation(Transform):
    """The standard deviation over channels (members of an ensemble): the root of :class:`Variance`."""

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return one float32 channel."""
        return _spread(volume)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Take the root of the variance."""
        return _variance(block, context.after.dtype, root=True)


def terms(block: NDArray, axis: int) -> Sequence[NDArray]:
    """Return the slices of an array along an axis, which stays with extent 1."""
    return [block[(slice(None),) * axis + (slice(i, i + 1),)] for i in range(block.shape[axis])]


def _total(block: NDArray, axis: int, kind: np.dtype[Any]) -> NDArray:
    first, *rest = terms(block, axis)
    total = first.astype(kind)
    for term in rest:
        total += term.astype(kind, copy=False)
    return total


def _total_of_64_bits(block: NDArray, axis: int) -> NDArray:
    """Return saturated sums: of the high and the low halves, which do not overflow for fewer than 2**31 terms."""
    dtype = block.dtype
    high = _total(block >> dtype.type(32), axis, np.dtype(np.int64))
    low = _total(block & dtype.type(0xFFFFFFFF), axis, np.dtype(np.int64))
    high += low >> 32
    low &= 0xFFFFFFFF
    limits = np.iinfo(dtype)
    total: NDArray = np.bitwise_or(high.astype(dtype) << dtype.type(32), low.astype(dtype))
    total[high > (int(limits.max) >> 32)] = limits.max
    total[high < (int(limits.min) >> 32)] = limits.min
    return total


def refuse_no_channels(volume: Volume) -> None:
    """Refuse an ensemble without members.

    Raises
    ------
    TransformError
        There is no channel.
    """
    if not volume.channels:
        raise TransformError(f"There is no channel in the array {list(volume.array_shape)}.")


def _spread(volume: Volume) -> Volume:
    refuse_no_channels(volume)
    kind = volume.dtype if volume.channels == 1 else np.dtype(np.float32)
    return real(volume).with_(channels=1, dtype=kind, is_label=False)


def _variance(block: NDArray, dtype: np.dtype[Any], *, root: bool) -> NDArray:
    count = block.shape[0]
    if count == 1:
        return np.zeros(block.shape, dtype)
    wide = np.dtype(np.float64)
    with np.errstate(all="ignore"):
        mean = _total(block, 0, wide) / count
        squares = np.zeros_like(mean)
        for term in terms(block, 0):
            squares += np.square(term - mean)
        squares /= count - 1
        return np.asarray(np.sqrt(squares) if root else squares, dtype)


def _check_dim(transform: Argmax | Softmax | Sum) -> None:
    dim = transform.dim
    if not isinstance(dim, (int, np.integer)) or isinstance(dim, bool):
        raise UsageError(f"{transform.name} takes for dim an axis of [C, spatial...], 0 is the channels; got {dim!r}.")


def _axis(dim: int, volume: Volume) -> int | None:
    """Return an axis of the array counted from 0, or None where there is no such axis."""
    axis = dim if dim >= 0 else dim + volume.ndim + 1
    return axis if 0 <= axis <= volume.ndim else None


def _known_axis(dim: int, volume: Volume) -> int:
    axis = _axis(dim, volume)
    if axis is None:
        raise TransformError(f"dim={dim} is no axis of the array {list(volume.array_shape)}.")
    return axis


def _line_locality(dim: int, volume: Volume, *, reduces: bool) -> Locality:
    axis = _axis(dim, volume)
    if axis is None:
        return WholeVolume("there is no such axis")
    if axis == 0:
        # The published rules know the channels by the number 0 only, not by a negative one.
        return Pointwise(strict_kind=Kind.POINTWISE if dim == 0 else Kind.WHOLE_VOLUME)
    return FullAxis((axis - 1,), _without(volume.shape, axis - 1) if reduces else volume.shape)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _reduced(dim: int, volume: Volume, name: str) -> Volume:
    """Return the volume with an axis of extent 1.

    Raises
    ------
    TransformError
        There is no such axis, or nothing along it.
    """
    axis = _known_axis(dim, real(volume))
    if volume.array_shape[axis] == 0:
        raise TransformError(f"{name} along axis {dim} of {list(volume.array_shape)}: there is nothing along it.")
    if axis == 0:
        return volume.with_(channels=1)
    spatial = axis - 1
    if volume.shape[spatial] == 1:
        return volume
    geometry = None if volume.geometry is None else _merged(volume.geometry, spatial, volume.shape[spatial])
    return volume.with_(shape=_without(volume.shape, spatial), geometry=geometry, on_stored_grid=False)


def _merged(geometry: Geometry, axis: int, extent: int) -> Geometry:
    """Return the geometry after all voxels along an axis became one, in their middle and as thick as they are together."""
    affine = geometry.rescaled([extent if i == axis else 1 for i in range(geometry.ndim)]).affine.copy()
    affine[:-1, -1] = geometry.world([(extent - 1) / 2 if i == axis else 0 for i in range(geometry.ndim)])
    return Geometry(affine, geometry.coord_system, geometry.known)
