"""Which voxels? A half-open box in array-axis order.

A :class:`Region` is the one word for "a box of voxels" in this project: a patch, a tile of the copy loop, a chunk and the
area around a patch that a filter needs are all regions. Coordinates are literal: a negative start is a place outside the
array, it never wraps, and nothing is clamped unless asked. numpy's dialect (negative indices, steps, ellipsis) is turned
into regions in one place only, ``mlarray/indexing.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import eq, le, sub

from mlarray.errors import UsageError


@dataclass(frozen=True, slots=True)
class Region:
    """A half-open integer box ``start <= index < stop``.

    Parameters
    ----------
    start, stop : sequence of int
        One entry per array axis, in array-axis order. ``stop`` may equal ``start`` (an empty region) but not be below it.

    Raises
    ------
    UsageError
        When lengths differ, an entry is not an integer, or a stop is below its start.

    Examples
    --------
    >>> patch = Region((10, 20, 30), (12, 24, 38))
    >>> patch.shape
    (2, 4, 8)
    >>> patch.grow(1).clamp((12, 100, 100))
    Region(start=(9, 19, 29), stop=(12, 25, 39))
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            start = tuple(map(int.__index__, self.start))
            stop = tuple(map(int.__index__, self.stop))
        except TypeError:
            start, stop = _as_ints(self.start), _as_ints(self.stop)
        if len(start) != len(stop):
            raise UsageError(f"A region needs as many starts as stops, got {len(start)} and {len(stop)}.")
        for low, high in zip(start, stop, strict=True):
            if high < low:
                raise UsageError(f"A region must not end before it starts, got start {start} and stop {stop}.")
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "stop", stop)

    @classmethod
    def full(cls, shape: Sequence[int]) -> Region:
        """Return the region that covers a whole array of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @classmethod
    def at(cls, start: Sequence[int], shape: Sequence[int]) -> Region:
        """Return the region of extent ``shape`` whose first voxel is ``start``."""
        return cls(tuple(start), tuple(a + n for a, n in zip(start, shape, strict=True)))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.start)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent per axis."""
        return tuple(map(sub, self.stop, self.start))

    @property
    def size(self) -> int:
        """Number of voxels."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The same box as slices; only meaningful inside an array that contains it."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def is_empty(self) -> bool:
        """Tell whether the region holds no voxel."""
        return any(map(eq, self.start, self.stop))

    def is_within(self, shape: Sequence[int]) -> bool:
        """Tell whether the region lies inside an array of ``shape``."""
        if len(shape) != len(self.start):
            raise ValueError(f"A region of {self.ndim} axes cannot lie in an array of shape {tuple(shape)}.")
        return min(self.start, default=0) >= 0 and all(map(le, self.stop, shape))

    def contains(self, other: Region) -> bool:
        """Tell whether every voxel of ``other`` is also one of this region."""
        if other.is_empty():
            return True
        return all(a <= c and d <= b for a, b, c, d in zip(self.start, self.stop, other.start, other.stop, strict=True))

    def translate(self, offset: Sequence[int]) -> Region:
        """Return the region moved by ``offset`` voxels per axis."""
        return Region(
            tuple(a + o for a, o in zip(self.start, offset, strict=True)),
            tuple(b + o for b, o in zip(self.stop, offset, strict=True)),
        )

    def relative_to(self, outer: Region) -> Region:
        """Return this region in the coordinates of ``outer``, whose first voxel becomes the origin."""
        start, stop = tuple(map(sub, self.start, outer.start)), tuple(map(sub, self.stop, outer.start))
        return trusted_region(start, stop)

    def grow(self, before: int | Sequence[int], after: int | Sequence[int] | None = None) -> Region:
        """Return the region with a margin added.

        Parameters
        ----------
        before, after : int or sequence of int
            Voxels added below and above, per axis or for all axes; ``after`` defaults to ``before``.
        """
        low = _per_axis(before, self.ndim)
        high = low if after is None else _per_axis(after, self.ndim)
        return Region(
            tuple(a - m for a, m in zip(self.start, low, strict=True)),
            tuple(b + m for b, m in zip(self.stop, high, strict=True)),
        )

    def intersect(self, other: Region) -> Region:
        """Return the common part; where there is none, an empty region at the nearer border."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(max(a, min(b, d)) for a, b, d in zip(start, self.stop, other.stop, strict=True))
        return Region(start, stop)

    def clamp(self, shape: Sequence[int]) -> Region:
        """Return the part inside an array of ``shape``; a region wholly outside becomes empty at the border."""
        start = tuple(min(max(a, 0), n) for a, n in zip(self.start, shape, strict=True))
        stop = tuple(min(max(b, a), n) for b, a, n in zip(self.stop, start, shape, strict=True))
        return Region(start, stop)

    def union(self, other: Region) -> Region:
        """Return the smallest region that contains both; an empty region adds nothing."""
        if self.is_empty():
            return other
        if other.is_empty():
            return self
        return Region(
            tuple(min(a, c) for a, c in zip(self.start, other.start, strict=True)),
            tuple(max(b, d) for b, d in zip(self.stop, other.stop, strict=True)),
        )

    def permute(self, order: Sequence[int]) -> Region:
        """Return the region with its axes in another order: entry ``i`` of the result is axis ``order[i]``."""
        return Region(tuple(self.start[i] for i in order), tuple(self.stop[i] for i in order))

    def split(self, axis: int, extent: int) -> Iterator[Region]:
        """Yield consecutive pieces of at most ``extent`` voxels along ``axis``."""
        if extent < 1:
            raise UsageError(f"A region is split into pieces of at least 1 voxel, got {extent}.")
        for low in range(self.start[axis], self.stop[axis], extent):
            high = min(low + extent, self.stop[axis])
            yield Region(
                (*self.start[:axis], low, *self.start[axis + 1 :]), (*self.stop[:axis], high, *self.stop[axis + 1 :])
            )


def _per_axis(margin: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    return tuple(margin) if isinstance(margin, Iterable) else (margin,) * ndim


def _as_ints(values: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(value.__index__() for value in values)
    except (AttributeError, TypeError):
        raise UsageError(f"A region is made of integers, got {tuple(values)!r}.") from None


def trusted_region(start: tuple[int, ...], stop: tuple[int, ...]) -> Region:
    """Return the region of two tuples known to be right (integers, as many, in order): where checking them takes longest."""
    region = object.__new__(Region)
    object.__setattr__(region, "start", start)
    object.__setattr__(region, "stop", stop)
    return region
