"""SHUFFLE or no filter? Whatever makes this array smaller.

One chunk-sized slab from the centre of the array is compressed both ways with the codec, level and blocks of the array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlarray.layout import Layout
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.storage.blosc import compressed_size


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


def sample_region(shape: tuple[int, ...], chunks: tuple[int, ...] | None) -> Region:
    """Return the chunk-sized region around the centre of an array; without chunks, around 6 MiB of it at 4 bytes."""
    extent = tuple(min(c, n) for c, n in zip(chunks or (116,) * len(shape), shape, strict=True))
    start = tuple((n - e) // 2 for n, e in zip(shape, extent, strict=True))
    return Region.at(start, extent)


def choose_filter(sample: NDArray, layout: Layout, *, threads: int, place: str = "the centre") -> FilterChoice:
    """Compress ``sample`` with and without SHUFFLE and keep the smaller; a tie keeps no filter.

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
        return FilterChoice(shuffle=False, reason="No filter: SHUFFLE does nothing for one-byte values.")
    block = np.ascontiguousarray(sample)
    plain = compressed_size(block, layout.blocks, shuffle=False, threads=threads)
    shuffled = compressed_size(block, layout.blocks, shuffle=True, threads=threads)
    use = shuffled < plain
    name = "SHUFFLE" if use else "No filter"
    reason = f"{name}: {block.nbytes} bytes from {place} compress to {plain} without and {shuffled} with SHUFFLE."
    return FilterChoice(shuffle=use, reason=reason)
