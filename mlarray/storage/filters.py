"""SHUFFLE or no filter? Whatever makes this array smaller.

One chunk-sized slab from the centre of the array is compressed both ways with the codec, level and blocks of the array.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlarray.layout import Layout
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.storage.blosc import create_store

DECISIVE_DIFFERENCE = 0.1
EASY_RATIO = 8
FEWEST_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class FilterChoice:
    """A filter with the numbers behind it.

    Parameters
    ----------
    shuffle : bool
        Whether SHUFFLE is used.
    reason : str
        Why, with the sizes that were measured.
    """

    shuffle: bool
    reason: str

    def to_record(self) -> Mapping[str, object]:
        """Return plain values to store."""
        return {"filter": "SHUFFLE" if self.shuffle else "none", "reason": self.reason}


NO_DATA = FilterChoice(shuffle=True, reason="SHUFFLE, blosc2's default: there was no data to try.")
ONE_BYTE = FilterChoice(shuffle=False, reason="No filter: SHUFFLE does nothing for one-byte values.")


def sample_region(shape: tuple[int, ...], chunks: tuple[int, ...] | None) -> Region:
    """Return the chunk-sized region around the centre of an array; without chunks, around 6 MiB of it at 4 bytes."""
    extent = tuple(min(c, n) for c, n in zip(chunks or (116,) * len(shape), shape, strict=True))
    start = tuple((n - e) // 2 for n, e in zip(shape, extent, strict=True))
    return Region.at(start, extent)


def choose_filter(sample: NDArray, layout: Layout, *, threads: int, place: str = "the centre") -> FilterChoice:
    """Compress ``sample`` with and without SHUFFLE and keep the smaller; a tie keeps no filter.

    Blocks are compressed one by one, so a quarter of them, spread over the sample, costs a quarter of the time and tells the
    same wherever the difference is clear: it decides when the sizes differ by more than 10 % on data that does not shrink
    below an eighth. Only then is the trial expensive, and in such data (every CT and MR that was tried) the difference was
    20 % and more; label maps, where blocks differ, shrink further and are tried whole.

    Parameters
    ----------
    sample : ndarray
        The voxels of :func:`sample_region`, or what could be seen of the array.
    layout : Layout
        Gives the blocks.
    threads : int
        Compression threads.
    place : str
        Where the sample comes from, for the reason.
    """
    if sample.size == 0:
        return NO_DATA
    if sample.dtype.itemsize == 1:
        return ONE_BYTE
    part = _quarter(sample, layout.blocks)
    if part is not None:
        plain, shuffled = _sizes(part, layout, threads)
        clear = abs(shuffled - plain) > DECISIVE_DIFFERENCE * max(plain, shuffled)
        if clear and min(plain, shuffled) * EASY_RATIO > part.nbytes:
            return _smaller(part, plain, shuffled, f"a quarter of the blocks of {place}")
    plain, shuffled = _sizes(sample, layout, threads)
    return _smaller(sample, plain, shuffled, place)


def _sizes(sample: NDArray, layout: Layout, threads: int) -> tuple[int, int]:
    block = np.ascontiguousarray(sample)
    plain = compressed_size(block, layout.blocks, shuffle=False, threads=threads)
    return plain, compressed_size(block, layout.blocks, shuffle=True, threads=threads)


def _smaller(sample: NDArray, plain: int, shuffled: int, place: str) -> FilterChoice:
    name = "SHUFFLE" if shuffled < plain else "No filter"
    reason = f"{name}: {sample.nbytes} bytes from {place} compress to {plain} without and {shuffled} with SHUFFLE."
    return FilterChoice(shuffle=shuffled < plain, reason=reason)


def _quarter(sample: NDArray, blocks: tuple[int, ...] | None) -> NDArray | None:
    """Return every fourth whole block of ``sample``, along all diagonals, or None where there are too few."""
    if blocks is None:
        return None
    counts = [extent // block for extent, block in zip(sample.shape, blocks, strict=True)]
    picked = [
        sample[tuple(slice(i * block, (i + 1) * block) for i, block in zip(index, blocks, strict=True))]
        for index in itertools.product(*map(range, counts))
        if sum(index) % 4 == 0
    ]
    return np.concatenate(picked) if len(picked) >= FEWEST_BLOCKS else None


def compressed_size(block: NDArray, blocks: tuple[int, ...] | None, *, shuffle: bool, threads: int) -> int:
    """Return the bytes that ``block`` takes as one chunk with the default codec, with or without SHUFFLE."""
    layout = (
        Layout(block.shape, tuple(map(min, blocks, block.shape)), None, "") if blocks else Layout(None, None, None, "")
    )
    store = create_store(block.shape, block.dtype, layout, shuffle=shuffle, threads=threads)
    store.write(Region.full(block.shape), block)
    return store.stored_bytes
