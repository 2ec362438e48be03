"""What is sampled where an affine map mixes the axes?

The coordinate of an output voxel along input axis ``k`` is ``((m[k][0] * o[0] + b[k]) + m[k][1] * o[1]) + m[k][2] * o[2]``, in
float64 and in this order. Each term is monotone in its index and rounding keeps order, so the extremes over a box are taken at
its corners; see :mod:`mlarray.transforms.sampling` for why that makes windows exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mlarray.geometry import Geometry
from mlarray.region import Region, trusted_region
from mlarray.sources.base import NDArray
from mlarray.transforms.sampling import Coordinates, Shape, as_dtype, reflected, reflected_range, working_dtype

SLAB_VOXELS = 1 << 16
"""Voxels computed at once: coordinates and weights of a slab stay in the cache, and a whole volume needs no more memory."""

Places: TypeAlias = Callable[[Region], list[Coordinates]]
"""Coordinates per input axis, within the volume, of the voxels of an output region."""


@dataclass(frozen=True, slots=True)
class AffineMap:
    """Output voxel ``o`` is sampled at ``matrix @ o + offset``, reflected about the border voxels.

    Parameters
    ----------
    matrix : tuple of tuple of float
        Rows per input axis, columns per output axis, array order.
    offset : tuple of float
        Voxels.
    """

    matrix: tuple[tuple[float, ...], ...]
    offset: tuple[float, ...]

    @classmethod
    def of(cls, matrix: npt.ArrayLike, offset: npt.ArrayLike) -> AffineMap:
        """Return the map of arrays."""
        rows = np.asarray(matrix, dtype=np.float64) + 0.0
        shift = np.asarray(offset, dtype=np.float64) + 0.0
        return cls(tuple(tuple(row) for row in rows.tolist()), tuple(shift.tolist()))

    def inverted(self) -> AffineMap:
        """Return the map back."""
        back = np.linalg.inv(np.array(self.matrix))
        return AffineMap.of(back, -(back @ np.array(self.offset)))

    def geometry(self, before: Geometry | None) -> Geometry | None:
        """Return the geometry of the output: each voxel lies where it was sampled."""
        if before is None:
            return None
        affine = before.affine.copy()
        affine[:-1, :-1] = before.linear @ np.array(self.matrix)
        affine[:-1, -1] = before.world(self.offset)
        return Geometry(affine, before.coord_system, before.known)

    def coordinates(self, target: Region, shape: Shape) -> list[Coordinates]:
        """Return where the voxels of ``target`` are sampled, per input axis, each of the shape of the target."""
        found = []
        for row, shift, n in zip(self.matrix, self.offset, shape, strict=True):
            total: Coordinates | None = None
            for axis, (slope, a, b) in enumerate(zip(row, target.start, target.stop, strict=True)):
                term = np.arange(a, b, dtype=np.float64)
                term *= slope
                term = term.reshape([-1 if other == axis else 1 for other in range(target.ndim)])
                total = term + shift if total is None else total + term
            assert total is not None
            found.append(reflected(total, n))
        return found

    def window(self, linear: bool, target: Region, shape: Shape) -> Region:  # noqa: FBT001 - first in functools.partial
        """Return the input region that ``target`` depends on."""
        if target.is_empty() or 0 in shape:
            return trusted_region((0,) * len(shape), (0,) * len(shape))
        start, stop = [], []
        for row, shift, n in zip(self.matrix, self.offset, shape, strict=True):
            low = high = math.nan
            for axis, (slope, a, b) in enumerate(zip(row, target.start, target.stop, strict=True)):
                first, final = (a, b - 1) if slope >= 0 else (b - 1, a)
                low = first * slope + (low if axis else shift)
                high = final * slope + (high if axis else shift)
            a, b = axis_window(*reflected_range(low, high, n), n, linear=linear)
            start.append(a)
            stop.append(b)
        return trusted_region(tuple(start), tuple(stop))


def axis_window(low: float, high: float, n: int, *, linear: bool) -> tuple[int, int]:
    """Return the voxels that :func:`sampled` takes for coordinates within ``[low, high]``, which lie within the volume."""
    if linear:
        return math.floor(low), min(math.floor(high) + 2, n)
    return round(low), round(high) + 1


def sampled(block: NDArray, source: Region, target: Region, shape: Shape, places: Places, *, linear: bool) -> NDArray:
    """Return the voxels of an output region, each sampled at its own place.

    Parameters
    ----------
    block : ndarray, shape (C, *source.shape)
        Input voxels.
    source, target : Region
        Of the input and of the output.
    shape : tuple of int
        Of the whole input.
    places : callable
        Coordinates of an output region.
    linear : bool
        Blend the two voxels around the place along each axis, else take the nearest (half to even).

    Returns
    -------
    ndarray, shape (C, *target.shape)
        In the block's dtype.
    """
    out = np.empty((block.shape[0], *target.shape), dtype=block.dtype)
    flat = np.ascontiguousarray(block).reshape(block.shape[0], -1)
    for slab in slabs(target):
        coordinates = places(slab)
        part = (_linear if linear else _nearest)(flat, coordinates, source, shape)
        out[(slice(None), *slab.relative_to(target).slices)] = as_dtype(part, block.dtype)
    return out


def slabs(target: Region) -> Iterator[Region]:
    """Yield a region in parts of at most :data:`SLAB_VOXELS`, but for lines that are longer."""
    if target.is_empty():
        return
    plane = max(1, target.size // target.shape[0])
    for slab in target.split(0, max(1, SLAB_VOXELS // plane)):
        if plane <= SLAB_VOXELS or target.ndim == 1:
            yield slab
        else:
            yield from slab.split(1, max(1, SLAB_VOXELS // max(1, plane // target.shape[1])))


def _nearest(flat: NDArray, coordinates: list[Coordinates], source: Region, shape: Shape) -> NDArray:
    place: npt.NDArray[np.intp] | None = None
    for along, start, extent in zip(coordinates, source.start, source.shape, strict=True):
        index = np.rint(along).astype(np.intp)
        index -= start
        if place is not None:
            place *= extent
            index += place
        place = index
    assert place is not None
    return np.take(flat, place, axis=1)


def _linear(flat: NDArray, coordinates: list[Coordinates], source: Region, shape: Shape) -> NDArray:
    working = working_dtype(flat.dtype)
    real = np.float32 if working in (np.float32, np.complex64) else np.float64
    corners: list[npt.NDArray[np.intp]] = []
    weights = []
    for axis, (along, start, n) in enumerate(zip(coordinates, source.start, shape, strict=True)):
        low = np.floor(along)
        weights.append((along - low).astype(real))
        index = low.astype(np.intp)
        stride = int(np.prod(source.shape[axis + 1 :], dtype=np.int64))
        upper = np.where(index < n - 1, stride, 0)  # the last voxel has none above it
        index -= start
        index *= stride
        corners = [corner + index for corner in corners] if corners else [index]
        corners = [moved for corner in corners for moved in (corner, corner + upper)]
    values = [np.take(flat, corner, axis=1).astype(working, copy=False) for corner in corners]
    with np.errstate(invalid="ignore", over="ignore"):
        for weight in reversed(weights):
            blended = []
            for lower, higher in zip(values[::2], values[1::2], strict=True):
                higher -= lower
                higher *= weight
                higher += lower
                blended.append(higher)
            values = blended
    return values[0]
