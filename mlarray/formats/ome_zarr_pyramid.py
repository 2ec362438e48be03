"""How are the coarser levels of a pyramid made, in bounded memory?

Each level halves axes of space of the one below, never time or channels: all of them, but those whose steps are twice the
finest or more wait until the others have caught up. Images are averaged: exactly, rounded half to even for integers.
Segmentations and bool keep the first voxel of each group, so that no value appears that was not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.formats.ome_zarr_array import boxes
from mlarray.region import Region
from mlarray.sources.base import NDArray

_MAX_LEVELS = 16
_CAUGHT_UP = 2.0


@dataclass(frozen=True, slots=True)
class PyramidLevel:
    """One level.

    Parameters
    ----------
    shape : tuple of int
        Its extents, in stored order.
    factors : tuple of int
        Per axis, how many voxels of the level below make one of this: 1 or 2.
    scale, shift : tuple of float
        Step in units of the finest level's, and the place of its first voxel there, in voxels.
    """

    shape: tuple[int, ...]
    factors: tuple[int, ...]
    scale: tuple[float, ...]
    shift: tuple[float, ...]


def plan_levels(
    shape: Sequence[int],
    spatial: Sequence[bool],
    steps: Sequence[float],
    chunks: Sequence[int],
    *,
    count: int | None,
    mean: bool,
) -> tuple[PyramidLevel, ...]:
    """Choose the levels, the full resolution first.

    Parameters
    ----------
    shape, spatial, steps, chunks
        Per stored axis: extent, whether it is one of space, step, and extent of a chunk.
    count : int or None
        How many levels; None: until one lies in a single chunk.
    mean : bool
        Whether a voxel stands for the middle of its group, or for its first voxel.

    Examples
    --------
    >>> levels = plan_levels((40, 512, 512), (True,) * 3, (5.0, 0.7, 0.7), (32, 128, 128), count=None, mean=True)
    >>> [level.shape for level in levels]
    [(40, 512, 512), (40, 256, 256), (40, 128, 128), (20, 64, 64)]
    """
    ndim = len(shape)
    levels = [PyramidLevel(tuple(shape), (1,) * ndim, (1.0,) * ndim, (0.0,) * ndim)]
    while len(levels) < (count or _MAX_LEVELS):
        last = levels[-1]
        large = [n > c for n, c, space in zip(last.shape, chunks, spatial, strict=True) if space]
        halved = [axis for axis in range(ndim) if spatial[axis] and last.shape[axis] > 1]
        if not halved or (count is None and not any(large)):
            break
        step = [abs(s) * f for s, f in zip(steps, last.scale, strict=True)]
        finest = min(step[axis] for axis in halved)
        factors = tuple(2 if axis in halved and step[axis] < _CAUGHT_UP * finest else 1 for axis in range(ndim))
        shift = tuple(
            t + (0.5 * s if f == 2 and mean else 0.0) for t, s, f in zip(last.shift, last.scale, factors, strict=True)
        )
        extents = tuple(-(-n // f) for n, f in zip(last.shape, factors, strict=True))
        levels.append(
            PyramidLevel(extents, factors, tuple(s * f for s, f in zip(last.scale, factors, strict=True)), shift)
        )
    return tuple(levels)


def fill_level(
    below: Any,
    array: Any,
    level: PyramidLevel,
    objects: Sequence[int],
    chunks: Sequence[int],
    *,
    mean: bool,
    threads: int,
) -> None:
    """Compute a level from the one below, object by object of its store.

    Parameters
    ----------
    below, array : zarr.Array
        The level below, and this one, opened for writing.
    level : PyramidLevel
        This level.
    objects, chunks : sequence of int
        Of this level: what is written whole, and what the level below was cut into.
    mean : bool
        Whether to average.
    threads : int
        Pieces that are read and reduced at once.
    """
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for region in boxes(Region.full(level.shape), objects, 1, 0) if 0 not in level.shape else ():
            block = np.empty(region.shape, array.dtype)

            def reduce(piece: Region, region: Region = region, block: NDArray = block) -> None:
                source = _below(piece, level.factors, below.shape)
                found = below[source.slices]
                block[piece.relative_to(region).slices] = (
                    mean_of(found, level.factors) if mean else first_of(found, level.factors)
                )

            for _ in pool.map(reduce, _pieces(region, level.factors, chunks)):
                pass
            array[region.slices] = block


def first_of(block: NDArray, factors: Sequence[int]) -> NDArray:
    """Return the first voxel of each group.

    Examples
    --------
    >>> first_of(np.array([1, 2, 3]), (2,))
    array([1, 3])
    """
    return block[tuple(slice(None, None, factor) for factor in factors)]


def mean_of(block: NDArray, factors: Sequence[int]) -> NDArray:
    """Return the mean of each group of voxels; a group at the end may be smaller.

    Integers are summed exactly and rounded half to even; floats are summed in float64 (complex in complex128), in the order of
    the axes, so that the result does not depend on how the array is cut.

    Examples
    --------
    >>> mean_of(np.array([1, 2, 3, 4, 7], np.uint8), (2,))
    array([2, 4, 7], dtype=uint8)
    """
    if block.dtype.kind in "iu" and block.dtype.itemsize == 8:
        return _wide_mean(block, factors)
    kind = {"f": np.float64, "c": np.complex128}.get(block.dtype.kind)
    if kind is None:
        kind = np.int32 if block.dtype.itemsize <= 2 else np.int64
    with np.errstate(invalid="ignore", over="ignore"):
        total = block
        for axis, factor in enumerate(factors):
            total = _paired(total, axis, kind) if factor == 2 else total
        result = total / _counts(block.shape, factors)
        if block.dtype.kind in "iu":
            np.rint(result, out=result)
        return result.astype(block.dtype)


def _wide_mean(block: NDArray, factors: Sequence[int]) -> NDArray:
    """Return the mean of 64-bit integers, whose sums no type holds: quotients and remainders are added apart."""
    counts = _counts(block.shape, factors).astype(np.int64)
    full = np.int64(math.prod(factors))
    share, rest = block // block.dtype.type(full), (block % block.dtype.type(full)).astype(np.int64)
    for axis, factor in enumerate(factors):
        if factor == 2:
            share, rest = _paired(share, axis, block.dtype), _paired(rest, axis, np.int64)
    # sum = full * share + rest over counts voxels; full is a multiple of counts at every border.
    times = full // counts
    share, rest = share * times.astype(block.dtype), rest
    quotient, rest = rest // counts, rest % counts
    share = share + quotient.astype(block.dtype)
    up = (2 * rest > counts) | ((2 * rest == counts) & (share % 2 != 0))
    return np.asarray(share + up.astype(block.dtype))


def _paired(block: NDArray, axis: int, kind: Any) -> NDArray:
    """Return sums of neighbours along an axis."""
    even = block[(slice(None),) * axis + (slice(0, None, 2),)].astype(kind)
    odd = block[(slice(None),) * axis + (slice(1, None, 2),)]
    even[(slice(None),) * axis + (slice(0, odd.shape[axis]),)] += odd
    return even


def _counts(shape: Sequence[int], factors: Sequence[int]) -> NDArray:
    """Return how many voxels each group has, in a shape that broadcasts."""
    counts = np.ones((1,) * len(shape))
    for axis, (extent, factor) in enumerate(zip(shape, factors, strict=True)):
        if factor == 2:
            along = np.full(-(-extent // 2), 2.0)
            along[-1:] = 1.0 if extent % 2 else 2.0
            counts = counts * along.reshape([-1 if one == axis else 1 for one in range(len(shape))])
    return counts


def _below(piece: Region, factors: Sequence[int], shape: Sequence[int]) -> Region:
    start = tuple(a * f for a, f in zip(piece.start, factors, strict=True))
    return Region(start, tuple(min(b * f, n) for b, f, n in zip(piece.stop, factors, shape, strict=True)))


def _pieces(region: Region, factors: Sequence[int], chunks: Sequence[int]) -> Iterator[Region]:
    """Yield pieces that each come from one chunk of the level below, where chunks have an even extent."""
    extents = [max(1, c // f) for c, f in zip(chunks, factors, strict=True)]
    return boxes(region, extents, 1, 0)
