"""An uncompressed array with the interface of a store."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlarray.locks import ForkSafeLock
from mlarray.region import Region
from mlarray.sources.base import NDArray


class ArrayStore:
    """A numpy array that is read and written like a :class:`~mlarray.storage.blosc.BloscStore`.

    Parameters
    ----------
    array : ndarray
        Held as it is, not copied.
    """

    path = None
    mmap_mode = None

    def __init__(self, array: NDArray) -> None:
        self.array = array
        self.lock = ForkSafeLock()
        self.shape: tuple[int, ...] = array.shape
        self.dtype: np.dtype[Any] = array.dtype

    @property
    def writable(self) -> bool:
        """Whether the array may be changed."""
        return bool(self.array.flags.writeable)

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return a copy of the voxels of ``region``, which lies within the array."""
        self._refuse_outside(region)
        if out is None:
            return self.array[region.slices].copy()
        out[...] = self.array[region.slices]
        return out

    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block`` at ``region``."""
        self._refuse_outside(region)
        self.array[region.slices] = block

    def _refuse_outside(self, region: Region) -> None:
        if not region.is_within(self.shape):  # as a slice, a negative start would count from the end
            raise IndexError(f"Region {region.start}..{region.stop} does not fit shape {self.shape}.")

    def close(self) -> None:
        """Nothing to release."""
