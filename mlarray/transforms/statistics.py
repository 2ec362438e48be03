"""What is measured over a whole volume, block by block, always in the same way?

Statistics decide voxels, so they must not depend on who measures them. A volume is cut into *fixed blocks* (boxes that its shape
alone decides, see :func:`statistic_blocks`), and a statistic folds them in order in float64. Loading a volume and streaming
it therefore give the same numbers to the last bit.

A statistic is a frozen value that can be compared, so that two stages that need the same one share a pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.sources.base import NDArray

STATISTIC_BLOCK_ELEMENTS = 1 << 20
"""Most elements of a fixed block. Part of the definition of every statistic."""

_PIECE = 1 << 14  # elements that are float64 at once: what a core has near it

REDUCTION = f"moments 1, boxes of {STATISTIC_BLOCK_ELEMENTS}"
"""Names how :class:`Moments` reduces: another name where the same voxels could give other numbers."""

Block: TypeAlias = tuple[NDArray, NDArray | None]
"""Voxels ``[C, spatial...]`` and, where the statistic has a mask, the mask ``[1 or C, spatial...]`` in the same region."""
Blocks: TypeAlias = Callable[[], Iterator[Block]]
"""Gives the fixed blocks in order; each call is another pass over the volume."""


class Statistic(Protocol):
    """A number, or several, about a whole volume."""

    @property
    def mask(self) -> str | None:
        """Name of the group whose non-zero voxels count, or None for all voxels."""

    @property
    def passes(self) -> int:
        """How often the volume is read, for the explanation."""

    def measure(self, blocks: Blocks) -> Any:
        """Return the value."""


@dataclass(frozen=True, slots=True)
class MomentValues:
    """What :class:`Moments` measures; NaN where the volume holds NaN.

    Parameters
    ----------
    count : int
        Number of voxels.
    minimum, maximum : float
        Exact: a Python int where float64 would round an integer.
    mean, std : float
        Standard deviation with ``n - 1``; 0 for fewer than two voxels. Of a constant volume exactly its value and 0.
    """

    count: int
    minimum: float
    maximum: float
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, extremes, mean and deviation over channels and space.

    Parameters
    ----------
    channels : tuple of int, optional
        Default: all.
    mask : str, optional
        Only where this group is not 0.
    """

    channels: tuple[int, ...] | None = None
    mask: str | None = None
    passes = 1

    def measure(self, blocks: Blocks) -> MomentValues:
        """Fold the blocks by the parallel-variance formula (Chan, Golub, LeVeque 1979).

        Raises
        ------
        TransformError
            The mask is 0 everywhere.
        """
        with np.errstate(all="ignore"):  # NaN and infinities come through without a warning
            return self._measure(blocks)

    def _measure(self, blocks: Blocks) -> MomentValues:
        count, mean, squares, low, high = 0, 0.0, 0.0, math.inf, -math.inf
        for values in selected(blocks(), self.channels):
            if not values.size:
                continue
            size, block_mean, block_squares = _mean_and_squares(values)
            delta, total = block_mean - mean, count + size
            mean += delta * size / total
            squares += block_squares + delta * delta * count * size / total
            count = total
            low = _least(low, _exact(values.min()))
            high = -_least(-high, -_exact(values.max()))
        if not count:
            refuse_empty_mask(self.mask)
            return MomentValues(0, math.nan, math.nan, math.nan, math.nan)
        if low == high and math.isfinite(low):
            return MomentValues(count, low, high, float(low), 0.0)
        return MomentValues(count, low, high, mean, math.sqrt(squares / (count - 1)) if count > 1 else 0.0)


def _mean_and_squares(values: NDArray) -> tuple[int, float, float]:
    """Return the size, the mean and the summed squares about it, in float64; not more than a piece is made float64 at once."""
    flat = values.ravel(order="K")
    wide = np.empty(min(flat.size, _PIECE))

    def sum_of(start: int, stop: int) -> float:
        part = wide[: stop - start]
        part[...] = flat[start:stop]
        return float(np.add.reduce(part))

    mean = _pairwise(sum_of, 0, flat.size) / flat.size

    def squares_of(start: int, stop: int) -> float:
        part = np.subtract(flat[start:stop], mean, out=wide[: stop - start], dtype=np.float64)
        return float(np.add.reduce(np.square(part, out=part)))

    return flat.size, mean, _pairwise(squares_of, 0, flat.size)


def _pairwise(sum_of: Callable[[int, int], float], start: int, stop: int) -> float:
    """Return a sum over a range in the order of numpy, which halves it (to multiples of 8) and adds the sums of both halves."""
    count = stop - start
    if count <= _PIECE:
        return sum_of(start, stop)
    middle = start + count // 2 - count // 2 % 8
    return _pairwise(sum_of, start, middle) + _pairwise(sum_of, middle, stop)


def refuse_empty_mask(mask: str | None) -> None:
    """Refuse a mask that selects no voxel.

    Raises
    ------
    TransformError
        There is a mask.
    """
    if mask is not None:
        raise TransformError(
            f"Group {mask!r} is 0 everywhere: there is no voxel to measure.", hint="Leave this case out, or the mask."
        )


def statistic_blocks(channels: int, shape: tuple[int, ...]) -> Iterator[Region]:
    """Yield the fixed blocks of a volume: boxes of at most :data:`STATISTIC_BLOCK_ELEMENTS` elements, in array order.

    The longest axis (the first of those as long) is cut to the next lower power of two until a box is small enough: boxes with
    sides as equal as the volume lets them be. A box reads little beside itself whichever way the file is stored, and however
    far the stages before it reach.
    """
    if 0 in shape:
        return
    extents = list(shape)
    while max(1, channels) * math.prod(extents) > STATISTIC_BLOCK_ELEMENTS and max(extents) > 1:
        axis = extents.index(max(extents))
        extents[axis] = 1 << (extents[axis] - 1).bit_length() - 1
    steps = [range(0, n, extent) for n, extent in zip(shape, extents, strict=True)]
    for start in itertools.product(*steps):
        stop = tuple([min(a + extent, n) for a, extent, n in zip(start, extents, shape, strict=True)])
        yield Region(start, stop)


def selected(blocks: Iterator[Block], channels: tuple[int, ...] | None) -> Iterator[NDArray]:
    """Yield the voxels that count: of some channels, where the mask is not 0 (then one-dimensional, in array order)."""
    for block, mask in blocks:
        voxels = block if channels is None else block[list(channels)]
        yield voxels if mask is None else voxels[np.broadcast_to(mask != 0, voxels.shape)]


def _exact(value: Any) -> float:
    number = float(value)
    return number if not isinstance(value, np.integer) or int(number) == int(value) else int(value)


def _least(a: float, b: float) -> float:
    return b if math.isnan(b) or b < a else a
