"""How does a region become byte ranges of a raw voxel block?

A raw block is an n-D array in C order on disk, its axes in any order relative to the array that users see. A region is
read as runs of consecutive bytes; runs closer than :data:`MERGE_GAP_BYTES` are read as one, because a system call costs
about as much as copying that much.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SourceBase, SourceInfo
from mlarray.sources.bytes import ByteReader
from mlarray.spec import ArraySpec

MERGE_GAP_BYTES = 32 * 1024
LONGEST_RUN_BYTES = 16 * 1024 * 1024  # bounds the scratch buffer of reads that need one


@dataclass(frozen=True, slots=True)
class RawLayout:
    """How voxels lie on disk.

    Parameters
    ----------
    shape : tuple of int
        Extents from the slowest to the fastest axis on disk.
    dtype : numpy dtype
        As stored, byte order included.
    order : tuple of int
        ``order[k]`` is the array axis that disk axis ``k`` becomes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: tuple[int, ...]

    @classmethod
    def in_order(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RawLayout:
        """Return the layout of an array stored in its own axis order."""
        return cls(shape, dtype, tuple(range(len(shape))))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Extents in array-axis order."""
        return tuple(self.shape[self.order.index(axis)] for axis in range(len(self.shape)))


class RawSource(SourceBase):
    """Voxels of a raw block.

    Parameters
    ----------
    data : ByteReader
        The block's bytes.
    layout : RawLayout
        How they lie.
    spec : ArraySpec
        Array axes, geometry and native dtype.
    access : Access
        ``REGION`` for files, ``SLAB`` for streams.
    info : SourceInfo, optional
        What the file says beyond its voxels.
    """

    def __init__(
        self, data: ByteReader, layout: RawLayout, spec: ArraySpec, *, access: Access, info: SourceInfo | None = None
    ) -> None:
        self._data = data
        self._layout = layout
        self.spec = spec
        self.access = access
        self.order = layout.order
        self.info = info if info is not None else SourceInfo()

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of ``region`` in native byte order."""
        target = self._target(region, out)
        if region.is_empty():
            return target
        disk = target.transpose(self._layout.order)
        box = region.permute(self._layout.order)
        shape, itemsize = self._layout.shape, self._layout.dtype.itemsize
        strides = [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        outer, span = _span(box, strides, itemsize)
        inner_shape, inner_strides = box.shape[outer:], strides[outer:]
        base = sum(a * s for a, s in zip(box.start[outer:], inner_strides, strict=True))
        exact = span == math.prod(inner_shape) * itemsize
        direct = exact and target.dtype == self._layout.dtype
        scratch = None if direct and disk.flags.c_contiguous else np.empty(span, np.uint8)
        for index in itertools.product(
            *(range(a, b) for a, b in zip(box.start[:outer], box.stop[:outer], strict=True))
        ):
            offset = base + sum(i * s for i, s in zip(index, strides[:outer], strict=True))
            place = disk[tuple(i - a for i, a in zip(index, box.start[:outer], strict=True))]
            if scratch is None:
                self._data.readinto(offset, place.reshape(-1).view(np.uint8).data)
                continue
            self._data.readinto(offset, scratch.data)
            place[...] = np.ndarray(inner_shape, self._layout.dtype, scratch.data, 0, inner_strides)
        return target

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self._data.close()


def _span(box: Region, strides: list[int], itemsize: int) -> tuple[int, int]:
    """Return how many outer axes to loop over, and the bytes of one consecutive read."""
    span = itemsize
    for axis in reversed(range(box.ndim)):
        extent = box.shape[axis]
        far = strides[axis] - span > MERGE_GAP_BYTES or strides[axis] * extent > LONGEST_RUN_BYTES
        if extent > 1 and far and axis < box.ndim - 1:
            return axis + 1, span
        span += (extent - 1) * strides[axis]
    return 0, span
