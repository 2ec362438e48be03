"""How is a whole volume gone through for a statistic? In boxes of several fixed blocks, the next of which is computed ahead.

Which blocks there are, and in which order they come, is part of a statistic (see
:func:`~mlarray.transforms.statistics.statistic_blocks`); how they are read is not. Blocks that stand in a row make one box, so
that a row of the stored volume is read once and not for each block that holds a part of it. While one box is measured, a thread
computes the next.
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mlarray.region import Region
from mlarray.transforms.statistics import Block, statistic_blocks

SWEEP_BYTES = 24 << 20
"""What is held of a volume that is swept; more only where a single block needs it."""


def swept(
    channels: int, shape: tuple[int, ...], read: Callable[[Region], Block], *, bytes_of: Callable[[Region], int]
) -> Iterator[Block]:
    """Yield the fixed blocks of a volume in order, each in an array of its own.

    Parameters
    ----------
    channels : int
        Of the volume.
    shape : tuple of int
        Its spatial extents.
    read : callable
        Returns the voxels of a spatial region, and the mask or None. Called in another thread, one call at a time.
    bytes_of : callable
        Most bytes that are held for a region: while it is computed, and of the box before it.
    """
    block = next(statistic_blocks(channels, shape), None)
    if block is None:
        return
    boxes = list(_cut(Region.full(shape), _box(shape, block.shape, bytes_of)))
    if len(boxes) == 1:
        yield from _blocks(read(boxes[0]), boxes[0], block.shape)
        return
    with ThreadPoolExecutor(1, "mlarray-sweep") as pool:
        ahead = pool.submit(contextvars.copy_context().run, read, boxes[0])
        for box, following in itertools.pairwise([*boxes, None]):
            values = ahead.result()
            if following is not None:
                ahead = pool.submit(contextvars.copy_context().run, read, following)
            yield from _blocks(values, box, block.shape)  # type: ignore[arg-type]
            del values


def _box(shape: Sequence[int], block: Sequence[int], bytes_of: Callable[[Region], int]) -> tuple[int, ...]:
    """Return the extents of a box: as many blocks along the last axis as fit, then along the one before it where all did."""
    box = list(block)
    for axis in reversed(range(len(shape))):
        wider = list(box)
        while box[axis] < shape[axis]:
            wider[axis] = min(shape[axis], box[axis] + block[axis])
            if bytes_of(Region.full(wider)) > SWEEP_BYTES:
                return tuple(box)
            box = list(wider)
    return tuple(box)


def _cut(region: Region, extents: Sequence[int]) -> Iterator[Region]:
    """Yield the boxes of some extents that a region consists of, last axis fastest."""
    lines = [range(a, b, n) for a, b, n in zip(region.start, region.stop, extents, strict=True)]
    for start in itertools.product(*lines):
        stop = (min(a + n, b) for a, n, b in zip(start, extents, region.stop, strict=True))
        yield Region(start, tuple(stop))


def _blocks(values: Block, box: Region, extents: Sequence[int]) -> Iterator[Block]:
    """Yield the blocks of a box, as they would have been read one by one."""
    voxels, mask = values
    for region in _cut(box, extents):
        inside = (slice(None), *region.relative_to(box).slices)
        yield (voxels, mask) if region == box else (np.array(voxels[inside]), None if mask is None else mask[inside])
