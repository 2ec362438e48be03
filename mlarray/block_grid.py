"""Where may a patch begin so that few blocks are decoded beside it?

A read decodes whole blocks, so a patch that begins where a block begins wastes least. :class:`BlockGrid` lists such origins
and draws from them; that it changes which patches a model sees is the caller's decision.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, SupportsIndex

from mlarray.chunk_grid import ChunkGrid
from mlarray.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

Extents = SupportsIndex | Sequence[SupportsIndex]


@dataclass(frozen=True, slots=True)
class _Origins:
    """Origins along one axis: those on the grid, rising from 0, and the last one, which ends with the array."""

    grid: Sequence[int]
    last: int

    @property
    def count(self) -> int:
        return len(self.grid) + (self.grid[-1] != self.last)

    def at(self, index: int) -> int:
        return self.grid[index] if index < len(self.grid) else self.last

    def nearest(self, position: int) -> int:
        after = bisect_left(self.grid, position)
        near = [self.at(index) for index in (after - 1, after) if 0 <= index < self.count]
        return min(near, key=lambda origin: (abs(origin - position), origin))


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """The origins at which a patch begins with a block, and draws from them.

    Along each axis an origin is where a block begins and leaves room for the patch, or the last position that leaves room:
    without it the end of an array whose extent is no multiple of the block would never be seen. The grid depends on the
    patch, the array and the step, not on the other axes: every combination of the axes' origins is one.

    - A ``step`` is the distance of origins along an axis: a multiple of the block, or a divisor of it for more origins at the
      price of more blocks decoded. Default: the block; where the patch is smaller, the largest divisor of the block that
      does not exceed the patch, so that no voxel is left out; 1 where a single block spans the axis, which is decoded for
      every origin alike. A step that is larger than the patch leaves voxels out.
    - Where a patch exceeds the array, its only origin is 0, and it ends beyond the array.
    - An array that is not compressed has no blocks: they count as 1 voxel, so every position is an origin.
    - Where a chunk is no multiple of its blocks, blocks begin anew with each chunk and so does the grid.

    Parameters
    ----------
    shape, chunks, blocks : tuple of int
        Extents in voxels, one per array axis, as for :class:`~mlarray.chunk_grid.ChunkGrid`.

    Raises
    ------
    LayoutError
        As for :class:`~mlarray.chunk_grid.ChunkGrid`.

    Examples
    --------
    >>> import numpy as np
    >>> grid = BlockGrid(shape=(100, 64), chunks=(64, 64), blocks=(32, 16))
    >>> grid.origins((40, 32))
    ((0, 32, 60), (0, 16, 32))
    >>> grid.origins((40, 32), step=(16, 32))
    ((0, 16, 32, 48, 60), (0, 32))
    >>> grid.snap((50, 7), (40, 32))
    (60, 0)
    >>> grid.random_origin(np.random.default_rng(3), (40, 32)) in {(a, b) for a in (0, 32, 60) for b in (0, 16, 32)}
    True
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        checked = ChunkGrid(self.shape, self.chunks, self.blocks)
        object.__setattr__(self, "chunks", checked.chunks)
        object.__setattr__(self, "blocks", checked.blocks)

    @classmethod
    def without_blocks(cls, shape: tuple[int, ...]) -> Self:
        """Return the grid of an array that is not compressed: every position."""
        return cls(shape, (1,) * len(shape), (1,) * len(shape))

    def origins(self, patch_size: Extents, *, step: Extents | None = None) -> tuple[tuple[int, ...], ...]:
        """Return the origins along each axis, rising; their combinations are the origins of patches.

        Parameters
        ----------
        patch_size : int or sequence of int
            Extent of the patch in voxels, one per array axis (channel and time too); an int counts for every axis.
        step : int or sequence of int, optional
            Distance of origins per array axis, a multiple or a divisor of the block's extent. An int counts for the axes that are
            cut into several blocks of more than one voxel; on the others it is 1. Default: see the class.

        Raises
        ------
        UsageError
            A wrong number of entries, an extent below 1, or a step that is neither multiple nor divisor.
        """
        return tuple(tuple(map(one.at, range(one.count))) for one in self._axes(patch_size, step))

    def snap(
        self, origin: Sequence[SupportsIndex], patch_size: Extents, *, step: Extents | None = None
    ) -> tuple[int, ...]:
        """Return the origin on the grid that is nearest along every axis; of two as near, the lower.

        Parameters
        ----------
        origin : sequence of int
            First voxel of the patch, one entry per array axis; may lie outside the array.
        patch_size, step
            As for :meth:`origins`.

        Raises
        ------
        UsageError
            As for :meth:`origins`, or the origin has a wrong number of entries.
        """
        wanted = self._per_axis(origin if isinstance(origin, Iterable) else (origin,), "An origin")
        axes = self._axes(patch_size, step)
        return tuple(one.nearest(position) for one, position in zip(axes, wanted, strict=True))

    def random_origin(
        self, rng: np.random.Generator, patch_size: Extents, *, step: Extents | None = None
    ) -> tuple[int, ...]:
        """Draw an origin; all are equally likely.

        Parameters
        ----------
        rng : numpy.random.Generator
            One number is drawn per axis.
        patch_size, step
            As for :meth:`origins`.

        Raises
        ------
        UsageError
            As for :meth:`origins`.
        """
        return tuple(one.at(int(rng.integers(one.count))) for one in self._axes(patch_size, step))

    def _axes(self, patch_size: Extents, step: Extents | None) -> list[_Origins]:
        patch = self._per_axis(patch_size, "A patch", least=1)
        if step is None:
            steps: tuple[int, ...] = tuple(map(_default_step, self.shape, self.blocks, patch))
        else:
            steps = self._per_axis(step, "A step", least=1)
            if not isinstance(step, Iterable):
                cut = [1 < block < extent for block, extent in zip(self.blocks, self.shape, strict=True)]
                steps = tuple(one if is_cut else 1 for one, is_cut in zip(steps, cut, strict=True))
        wrong = [axis for axis, (a, b) in enumerate(zip(steps, self.blocks, strict=True)) if a % b and b % a]
        if wrong:
            told = ", ".join(f"{steps[axis]} on axis {axis} with blocks of {self.blocks[axis]}" for axis in wrong)
            raise UsageError(
                f"A step must be a multiple or a divisor of the block's extent; got {told}.",
                hint=f"Give one step per axis that fits the blocks {self.blocks}.",
            )
        return list(map(_origins, self.shape, self.chunks, self.blocks, patch, steps))

    def _per_axis(self, value: Extents, name: str, *, least: int | None = None) -> tuple[int, ...]:
        try:
            given = tuple(value) if isinstance(value, Iterable) else (value,) * len(self.shape)
            numbers = tuple(operator.index(entry) for entry in given)
        except TypeError:
            raise UsageError(f"{name} is made of integers; got {value!r}.") from None
        if len(numbers) != len(self.shape):
            raise UsageError(
                f"{name} needs one entry per axis of the array of shape {self.shape}; got {len(numbers)}: {numbers}."
            )
        if least is not None and any(number < least for number in numbers):
            raise UsageError(f"{name} must be at least {least} along every axis; got {numbers}.")
        return numbers


def _default_step(extent: int, block: int, patch: int) -> int:
    if block >= extent:
        return 1
    if block <= patch:
        return block
    low = [divisor for divisor in range(1, math.isqrt(block) + 1) if block % divisor == 0]
    return max(step for divisor in low for step in (divisor, block // divisor) if step <= patch)


def _origins(extent: int, chunk: int, block: int, patch: int, step: int) -> _Origins:
    last = max(0, extent - patch)
    if chunk % block == 0 or chunk > last:
        return _Origins(range(0, last + 1, step), last)
    finest = min(step, block)
    begins = [corner + inner for corner in range(0, last + 1, chunk) for inner in range(0, chunk, finest)]
    return _Origins([begin for begin in begins[:: step // finest] if begin <= last], last)
