"""What is a percentile of a volume that is read block by block? Exactly the one of the sorted voxels.

Voxels are mapped to unsigned keys of their own width whose order is theirs (the sign bit of integers turned; floats as in IEEE
754 total order), and the keys of the wanted ranks are found 16 bits at a time by counting: one pass over the volume for types
of up to 16 bits, two for 32, four for 64, with 512 KiB per distinct prefix and no sorting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.sources.base import NDArray
from mlarray.transforms.statistics import Blocks, refuse_empty_mask, selected

_DIGIT_BITS = 16
_DIGITS = 1 << _DIGIT_BITS


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles over channels and space, as ``numpy.percentile`` interpolates them (linear).

    Parameters
    ----------
    percentiles : tuple of float
        From 0 to 100.
    dtype : str
        Of the voxels, native.
    mask : str, optional
        Only where this group is not 0.
    """

    percentiles: tuple[float, ...]
    dtype: str
    mask: str | None = None

    @property
    def passes(self) -> int:
        """How often the volume is read."""
        return -(-8 * np.dtype(self.dtype).itemsize // _DIGIT_BITS)

    def measure(self, blocks: Blocks) -> tuple[Any, ...]:
        """Return one number per percentile; NaN where there is one.

        Of the voxels' dtype for floats, float64 for integers; a Python int for an integer that float64 would round.

        Raises
        ------
        TransformError
            The mask is 0 everywhere.
        """
        dtype = np.dtype(self.dtype)
        counts, nan = _first_pass(blocks, dtype)
        total = int(counts.sum())
        if not total:
            refuse_empty_mask(self.mask)
        if nan or not total:
            return (math.nan,) * len(self.percentiles)
        places = [(total - 1) * (percentile / 100) for percentile in self.percentiles]
        ranks = sorted(
            {rank for place in places for rank in (math.floor(place), min(math.floor(place) + 1, total - 1))}
        )
        found = dict(zip(ranks, _at_ranks(blocks, dtype, ranks, counts), strict=True))
        return tuple(
            _between(found[math.floor(place)], found[min(math.floor(place) + 1, total - 1)], place - math.floor(place))
            for place in places
        )


def _first_pass(blocks: Blocks, dtype: np.dtype[Any]) -> tuple[npt.NDArray[np.int64], bool]:
    """Return how often each value of the first 16 bits occurs, and whether there is a NaN."""
    counts, nan = np.zeros(_DIGITS, dtype=np.int64), False
    for values in selected(blocks(), None):
        nan = nan or (dtype.kind == "f" and bool(np.isnan(values).any()))
        counts += _count(_keys(values, dtype), dtype, 0)
    return counts, nan


def _at_ranks(blocks: Blocks, dtype: np.dtype[Any], ranks: Sequence[int], counts: npt.NDArray[np.int64]) -> list[Any]:
    """Return the voxels at some ranks of the sorted volume."""
    prefixes, remaining = [0] * len(ranks), list(ranks)
    tables = {0: counts}
    width = max(_DIGIT_BITS, 8 * dtype.itemsize)
    for level in range(width // _DIGIT_BITS):
        if level:
            tables = {prefix: np.zeros(_DIGITS, dtype=np.int64) for prefix in set(prefixes)}
            for values in selected(blocks(), None):
                keys = _keys(values, dtype)
                head = keys >> keys.dtype.type(width - level * _DIGIT_BITS)
                for prefix, table in tables.items():
                    table += _count(keys[head == head.dtype.type(prefix)], dtype, level)
        for index, prefix in enumerate(prefixes):
            below = np.cumsum(tables[prefix])
            digit = int(np.searchsorted(below, remaining[index], side="right"))
            remaining[index] -= int(below[digit - 1]) if digit else 0
            prefixes[index] = (prefix << _DIGIT_BITS) | digit
    return [_value(key, dtype) for key in prefixes]


def _keys(values: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return unsigned keys of at least 16 bits in the order of the values."""
    flat = np.ascontiguousarray(values, dtype=dtype).reshape(-1)
    if dtype.itemsize == 1:
        return flat.astype(np.int16).astype(np.uint16) ^ np.uint16(0x8000)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    top = unsigned.type(1 << (8 * dtype.itemsize - 1))
    bits = flat.view(unsigned)
    if dtype.kind == "u":
        return bits
    if dtype.kind == "i":
        return np.asarray(bits ^ top)
    return np.where(bits & top, ~bits, bits | top)


def _value(key: int, dtype: np.dtype[Any]) -> Any:
    if dtype.itemsize == 1:
        return dtype.type(key - 0x8000)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    top = 1 << (8 * dtype.itemsize - 1)
    if dtype.kind == "i":
        key ^= top
    elif dtype.kind == "f":
        key = key ^ top if key & top else key ^ (2 * top - 1)
    return np.array([key], dtype=unsigned).view(dtype)[0]


def _count(keys: NDArray, dtype: np.dtype[Any], level: int) -> npt.NDArray[np.int64]:
    shift = max(_DIGIT_BITS, 8 * dtype.itemsize) - (level + 1) * _DIGIT_BITS
    digits = (keys >> keys.dtype.type(shift)) & keys.dtype.type(_DIGITS - 1)
    return np.bincount(digits.astype(np.intp), minlength=_DIGITS)


def _between(low: Any, high: Any, share: float) -> Any:
    """Return the value at a share of the way, as numpy does: from the nearer end, in the voxels' float type."""
    if low.dtype.kind != "f":
        first, last = int(low), int(high)
        if not share or first == last:
            return np.float64(first) if int(float(first)) == first else first
        width = np.float64(last - first)  # a difference of its own type may overflow
        return last - width * (1.0 - share) if share >= 0.5 else first + width * share
    kind, zero = low.dtype.type, low.dtype.type(0.0)  # adding zero turns -0.0, which ranks beside 0.0, into it
    if not share or low == high:
        return low + zero
    with np.errstate(invalid="ignore", over="ignore"):
        step = high - low
        return (high - step * kind(1.0 - share) if share >= 0.5 else low + step * kind(share)) + zero
