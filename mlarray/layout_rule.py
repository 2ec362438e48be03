"""How far does a block shrink and a chunk grow for a patch? The arithmetic of nnU-Net 2.8.1's rule, and its limits by name.

On spatial axes only, with checked numbers; :mod:`mlarray.layout` checks them, adds the other axes and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from mlarray.errors import LayoutError

BLOCK_LIMIT_BYTES = 128 * 1024
"""Largest block, in bytes of voxels, unless the caller says otherwise."""

CHUNK_LIMIT_BYTES = 6 * 1024 * 1024
"""Largest chunk, in bytes of voxels, unless the caller says otherwise."""

CHUNK_PATCH_FACTOR = 1.5
"""Largest chunk extent per axis, as a multiple of the patch extent."""

MAX_CHUNK_BYTES = 2**31 - 1 - 32
"""Hard limit of blosc2: a chunk, padded to whole blocks, fits a signed 32-bit size together with its 32-byte header."""

MAX_BLOCK_BYTES = 536_866_816
"""Hard limit of blosc2 for one block (measured with blosc2 4.14.1: one byte more is refused)."""

LayoutName = Literal["nnunet", "small-blocks"]
"""Names for values of the rule's three limits."""

DEFAULT_LAYOUT: LayoutName = "nnunet"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a name of a layout stands for.

    Parameters
    ----------
    block_limit_bytes, chunk_limit_bytes : int
        Largest block and chunk in bytes of voxels.
    chunk_patch_factor : float
        Largest chunk extent per axis as a multiple of the patch extent.
    long_rows : bool
        Whether blocks keep their extent along the last axis where several axes could be halved.
    reason : str
        Why these values.
    """

    block_limit_bytes: int
    chunk_limit_bytes: int
    chunk_patch_factor: float
    long_rows: bool
    reason: str


NAMED_LAYOUTS: Mapping[LayoutName, Limits] = MappingProxyType(
    {
        "nnunet": Limits(
            BLOCK_LIMIT_BYTES,
            CHUNK_LIMIT_BYTES,
            CHUNK_PATCH_FACTOR,
            long_rows=False,
            reason="Files are cut as nnU-Net 2.8.1 cuts its own.",
        ),
        "small-blocks": Limits(
            16 * 1024,
            3 * 512 * 1024,
            CHUNK_PATCH_FACTOR,
            long_rows=True,
            reason="A block and what it is decoded from fit the first-level cache, a patch decodes fewer voxels beside its own, "
            "and rows stay long, which are copied in one piece: docs/explanation/performance.md.",
        ),
    }
)
"""The only table of named layouts."""


def target_extent(extent: int, patch: int, factor: float) -> int:
    """Return how far a chunk may extend along an axis: the patch times the factor, within the array."""
    longest = factor * patch
    return extent if longest >= extent else max(1, math.floor(longest))


def shrunk_block(
    extent: Sequence[int],
    patch: Sequence[int],
    target: Sequence[int],
    *,
    itemsize: int,
    limit: int,
    long_rows: bool = False,
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
    long_rows : bool
        Of axes that are equally long, shrink the first. nnU-Net's rule shrinks the last.

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
        longest = max(shrinkable, key=lambda axis: (block[axis] / target[axis], -axis if long_rows else axis))
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
