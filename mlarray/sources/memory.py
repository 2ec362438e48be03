"""Sources without a file: numpy arrays, and arrays that are computed as they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SourceBase, SourceInfo
from mlarray.spec import ArraySpec


class ArraySource(SourceBase):
    """A numpy array (or a memory map) as a source.

    Parameters
    ----------
    array : ndarray
        Any layout, any byte order; never copied as a whole.
    spec : ArraySpec, optional
        Axes and geometry; default: nothing known.
    info : SourceInfo, optional
        What is known beyond the voxels.
    """

    access = Access.REGION

    def __init__(self, array: NDArray, spec: ArraySpec | None = None, info: SourceInfo | None = None) -> None:
        self._array = array
        self.spec = spec if spec is not None else ArraySpec(array.shape, array.dtype)
        self.order = tuple(range(array.ndim))
        self.info = info if info is not None else SourceInfo()

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return a copy of the voxels of ``region``."""
        target = self._target(region, out)
        target[...] = self._array[region.slices]
        return target


class GeneratedSource(SourceBase):
    """An array that is computed where it is read, so that it is never held as a whole.

    Parameters
    ----------
    spec : ArraySpec
        What the array is.
    fill : callable
        ``fill(region, target)`` writes the values of ``region`` into ``target``.
    """

    access = Access.REGION

    def __init__(self, spec: ArraySpec, fill: Callable[[Region, NDArray], None]) -> None:
        self.spec = spec
        self.order = tuple(range(spec.ndim))
        self.info = SourceInfo()
        self._fill = fill

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the values of ``region``."""
        target = self._target(region, out)
        self._fill(region, target)
        return target


def flat_index(region: Region, shape: Sequence[int]) -> NDArray:
    """Return the C-order position in an array of ``shape`` of every voxel of ``region`` (int64, shape of the region)."""
    index = np.zeros((1,) * region.ndim, dtype=np.int64)
    stride = 1
    for axis in reversed(range(region.ndim)):
        line = np.arange(region.start[axis], region.stop[axis], dtype=np.int64) * stride
        index = index + line.reshape([-1 if i == axis else 1 for i in range(region.ndim)])
        stride *= shape[axis]
    return np.broadcast_to(index, region.shape)
