"""How far does a block shrink and a chunk grow for a patch? The arithmetic of nnU-Net 2.8.1's rule.

On spatial axes only, with checked numbers; :mod:`mlarray.layout` checks them, adds the other axes and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlarray.errors import LayoutError

MAX_CHUNK_BYTES = 2**31 - 1 - 32
"""Hard limit of blosc2: a chunk, padded to whole blocks, fits a signed 32-bit size together with its 32-byte header."""

MAX_BLOCK_BYTES = 536_866_816
"""Hard limit of blosc2 for one block (measured with blosc2 4.14.1: one byte more is refused)."""


def target_extent(extent: int, patch: int, factor: float) -> int:
    """Return how far a chunk may extend along an axis: the patch times the factor, within the array."""
    longest = factor * patch
    return extent if longest >= extent else max(1, math.floor(longest))


def shrunk_block(
    extent: Sequence[int], patch: Sequence[int], target: Sequence[int], *, itemsize: int, limit: int
) -> list[int]:
    """Return the block: from the power of two that covers the patch down, relatively longest axis first.

    Parameters
    ----------
    extent, patch, target : sequence of int
        Extent of the array, of the patch, and most of a chunk, per spatial axis, in voxels.
    itemsize : int
        Bytes per voxel.
    limit : int
        Largest block in bytes.

    Raises
    ------
    LayoutError
        One voxel exceeds the limit.
    """
    block = [min(1 << (p - 1).bit_length(), n) for n, p in zip(extent, patch, strict=True)]
    limit_bytes = min(limit, MAX_BLOCK_BYTES)
    while math.prod(block) * itemsize > limit_bytes:
        shrinkable = [axis for axis in range(len(block)) if block[axis] > 1]
        if not shrinkable:
            raise LayoutError(
                f"One voxel of {itemsize} bytes exceeds the limit of {limit_bytes} bytes for a block.",
                hint=f"Raise block_limit_bytes and chunk_limit_bytes to {itemsize} or more.",
            )
        longest = max(shrinkable, key=lambda axis: (block[axis] / target[axis], axis))
        block[longest] = 1 << ((block[longest] - 1).bit_length() - 1)
    return block


def grown_chunk(
    block: Sequence[int],
    extent: Sequence[int],
    patch: Sequence[int],
    target: Sequence[int],
    *,
    itemsize: int,
    limit: int,
) -> list[int]:
    """Return the chunk: from one block up, relatively shortest axis first, to at most ``limit`` bytes.

    Parameters are those of :func:`shrunk_block`.
    """
    chunk = list(block)
    growing = [axis for axis in range(len(block)) if patch[axis] != 1]
    while True:
        candidates: dict[int, list[int]] = {}
        for axis in growing:
            if chunk[axis] < target[axis]:
                candidate = [*chunk]
                candidate[axis] = min(chunk[axis] + block[axis], target[axis])
                if (
                    math.prod(candidate) * itemsize <= limit
                    and padded_bytes(candidate, block, itemsize) <= MAX_CHUNK_BYTES
                ):
                    candidates[axis] = candidate
        if not candidates:
            return chunk
        shortest = min(candidates, key=lambda axis: (chunk[axis] / target[axis], -extent[axis], axis))
        chunk = candidates[shortest]


def padded_bytes(chunk: Sequence[int], block: Sequence[int], itemsize: int) -> int:
    """Return the bytes of a chunk as whole blocks, which is what blosc2 compresses and limits, and not the payload."""
    return math.prod(-(-c // b) * b for c, b in zip(chunk, block, strict=True)) * itemsize
