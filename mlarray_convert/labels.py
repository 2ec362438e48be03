"""What is the smallest integer type that holds a segmentation?

Segmentations are whole numbers, whatever type a tool saved them in. The voxels are read once to find their range, and once
more, cast, to be copied. Values that are not whole are refused: rounding them would invent labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlarray.errors import DTypeError
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source, SourceBase
from mlarray.spec import ArraySpec

# Signed before unsigned at equal width above 8 bits: deep learning frameworks know few unsigned types.
_CANDIDATES = tuple(np.dtype(kind) for kind in ("u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8"))


@dataclass(frozen=True, slots=True)
class LabelRange:
    """The values of a segmentation.

    Parameters
    ----------
    low, high : int
        Smallest and largest value; both 0 for an array without voxels.
    """

    low: int
    high: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest integer type that holds the range; bool is not one.

        Examples
        --------
        >>> LabelRange(0, 117).dtype, LabelRange(-1, 3).dtype, LabelRange(0, 70000).dtype
        (dtype('uint8'), dtype('int8'), dtype('int32'))
        """
        for candidate in _CANDIDATES:
            limits = np.iinfo(candidate)
            if limits.min <= self.low and self.high <= limits.max:
                return candidate
        raise DTypeError(f"No integer type holds labels from {self.low} to {self.high}.")


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type is the smallest one already, so that the voxels need not be scanned."""
    return dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize == 1)


def scan_labels(
    source: Source, tiles: Iterable[Region], *, progress: Callable[[int], None] | None = None
) -> LabelRange:
    """Read a segmentation and return the range of its values.

    Parameters
    ----------
    source : Source
        The segmentation.
    tiles : iterable of Region
        In the order to read them.
    progress : callable, optional
        Called with the number of array bytes after each tile.

    Raises
    ------
    DTypeError
        At the first value that is not a whole number, with its place.
    """
    low, high = 0, 0
    seen = False
    for region in tiles:
        block = source.read(region)
        if block.size:
            refuse_fractions(block, region)
            least, most = int(block.min()), int(block.max())
            low, high = (min(low, least), max(high, most)) if seen else (least, most)
            seen = True
        if progress is not None:
            progress(block.nbytes)
    return LabelRange(low, high)


def refuse_fractions(block: NDArray, region: Region) -> None:
    """Raise for a block that holds a value which is not a whole number; 2**53 and above are not told apart by float64."""
    if block.dtype.kind in "biu":
        return
    if block.dtype.kind == "c":
        raise DTypeError("A segmentation is made of whole numbers; complex values were found.", hint=_HINT)
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(block) & (np.floor(block) == block) & (np.abs(block) < 2.0**63))
    if bad.any():
        place = np.unravel_index(int(bad.argmax()), block.shape)
        index = tuple(int(p) + low for p, low in zip(place, region.start, strict=True))
        raise DTypeError(
            f"A segmentation is made of whole numbers; the value at index {index} is {block[place]}.", hint=_HINT
        )


_HINT = "If this is an image, convert it with --labels none; if it was resampled, resample it with nearest neighbours."


class IntegerSource(SourceBase):
    """A segmentation in an integer type that is known to hold its values.

    Parameters
    ----------
    source : Source
        The segmentation as stored.
    dtype : numpy dtype
        An integer type.
    """

    def __init__(self, source: Source, dtype: np.dtype[Any]) -> None:
        self._source = source
        self.access = source.access
        self.order = source.order
        self.info = replace(source.info, is_seg=True)
        self.spec = ArraySpec(source.spec.shape, dtype, source.spec.axes, source.spec.geometry)

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the labels of ``region``."""
        target = self._target(region, out)
        np.copyto(target, self._source.read(region), casting="unsafe")  # checked by the scan
        return target

    def close(self) -> None:
        """Close the stored source."""
        self._source.close()
