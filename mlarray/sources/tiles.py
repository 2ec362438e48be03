"""In which pieces is an array copied?

A tile must cover whole chunks of the target, or the same chunk is compressed again and again (3.6 to 5 times slower, as
measured), and it must follow the order in which the source can be read. Within those two rules it is as small as it can
be, because it is what a copy holds in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlarray.errors import MemoryLimitError
from mlarray.region import Region
from mlarray.sources.base import Access
from mlarray.spec import ArraySpec

COMFORTABLE_TILE_BYTES = 16 * 1024 * 1024  # below this, per-tile overhead would show


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The tiles of one copy, in the order they are read.

    Parameters
    ----------
    shape : tuple of int
        Extent of the array.
    tile : tuple of int
        Extent of a tile; tiles at the border are smaller.
    order : tuple of int
        Array axes, slowest first: tiles follow each other like this.
    itemsize : int
        Bytes per element of what is read.
    reason : str
        Why this tile.
    """

    shape: tuple[int, ...]
    tile: tuple[int, ...]
    order: tuple[int, ...]
    itemsize: int
    reason: str

    @property
    def tile_bytes(self) -> int:
        """Bytes of one full tile."""
        return math.prod(self.tile) * self.itemsize

    def __iter__(self) -> Iterator[Region]:
        if 0 in self.shape:
            return
        starts = [range(0, self.shape[axis], self.tile[axis]) for axis in self.order]
        for corner in itertools.product(*starts):
            start = [0] * len(self.shape)
            for axis, low in zip(self.order, corner, strict=True):
                start[axis] = low
            yield Region(
                tuple(start), tuple(min(a + t, n) for a, t, n in zip(start, self.tile, self.shape, strict=True))
            )

    def from_centre(self) -> Iterator[Region]:
        """Yield the tile around the centre first, then the others in order: for a sink that decides by what it sees first."""
        middle = tuple(n // 2 for n in self.shape)
        centre = next((region for region in self if region.contains(Region.at(middle, (1,) * len(middle)))), None)
        if centre is not None:
            yield centre
        yield from (region for region in self if region != centre)

    def __len__(self) -> int:
        return 0 if 0 in self.shape else math.prod(-(-n // t) for n, t in zip(self.shape, self.tile, strict=True))


def plan_tiles(
    spec: ArraySpec,
    chunks: Sequence[int] | None,
    *,
    access: Access,
    order: Sequence[int] | None = None,
    budget_bytes: int | None = None,
    grain: Sequence[int] | None = None,
) -> TilePlan:
    """Choose the tiles for copying an array into chunks.

    Parameters
    ----------
    spec : ArraySpec
        What is read.
    chunks : sequence of int or None
        Chunk extent of the target per array axis; None for a target without chunks (any tile suits it).
    access : Access
        How the source can be read. ``SLAB`` sources get tiles that follow each other in storage order.
    order : sequence of int, optional
        Array axes from the slowest to the fastest in the source's storage; default: array order.
    budget_bytes : int, optional
        Upper limit of a tile; default: none.
    grain : sequence of int, optional
        What a ``REGION`` source decodes at once, such as a compressed plane: tiles cover it where the budget allows, so that
        nothing is decoded twice.

    Returns
    -------
    TilePlan
        Whose ``tile_bytes`` stay within the budget.

    Raises
    ------
    MemoryLimitError
        When even the smallest possible tile is over the budget; the message has both figures.
    """
    axes = tuple(order) if order is not None else tuple(range(spec.ndim))
    whole = tuple(max(1, n) for n in spec.shape)
    itemsize = spec.dtype.itemsize
    chunk = tuple(min(c, n) for c, n in zip(chunks, whole, strict=True)) if chunks is not None else (1,) * spec.ndim
    if access is Access.WHOLE:
        tile, reason = list(whole), "the source decodes everything on any read"
    else:
        tile = list(chunk)
        for axis in _fastest_axes(axes, chunk, whole) if access is Access.SLAB else ():
            tile[axis] = whole[axis]
        reason = "whole chunk rows in storage order" if access is Access.SLAB else "whole chunks"
    if access is Access.REGION and grain is not None:
        covering = [min(n, -(-max(t, g) // t) * t) for t, g, n in zip(tile, grain, whole, strict=True)]
        if covering != tile and (budget_bytes is None or math.prod(covering) * itemsize <= budget_bytes):
            tile, reason = covering, "whole chunks that cover what the source decodes at once"
    smallest = math.prod(tile) * itemsize
    if budget_bytes is not None and smallest > budget_bytes:
        raise MemoryLimitError(
            f"One tile of shape {tuple(tile)} needs {smallest} bytes; the limit leaves {budget_bytes} for it.",
            hint="Raise the memory limit, lower the number of workers, or choose a smaller patch size.",
            needed_bytes=smallest,
        )
    comfortable = COMFORTABLE_TILE_BYTES if budget_bytes is None else min(COMFORTABLE_TILE_BYTES, budget_bytes)
    for axis in reversed(axes):
        while tile[axis] < whole[axis] and math.prod(tile) * itemsize < comfortable:
            wider = min(whole[axis], tile[axis] + chunk[axis])
            grown = math.prod(tile) // tile[axis] * wider * itemsize
            if grown > comfortable and axis != axes[-1]:
                break
            if budget_bytes is not None and grown > budget_bytes:
                break
            tile[axis] = wider
        if tile[axis] < whole[axis]:
            break
    return TilePlan(spec.shape, tuple(tile), axes, itemsize, reason)


def _fastest_axes(axes: Sequence[int], chunk: Sequence[int], whole: Sequence[int]) -> Sequence[int]:
    """Return the axes that a forward-only source needs complete: all behind the first that a chunk spans."""
    for position, axis in enumerate(axes):
        if chunk[axis] > 1 or position == len(axes) - 1:
            return axes[position + 1 :]
    return ()
