"""Voxels as numpy knows them: shape, dtype, indexing, conversion.

Indexing is where numpy's dialect becomes regions; ``mlarray/indexing.py`` translates, the store reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.block_grid import BlockGrid
from mlarray.errors import DTypeError
from mlarray.indexing import castable, parse_key, plain_box, read_selection, write_selection
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.storage.blosc import BloscStore
from mlarray.storage.memory import ArrayStore


class VoxelView:
    """The array as a sequence of voxels that can be read and written by region or by numpy key."""

    _store: BloscStore | ArrayStore | None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Extent per array axis, or None without an array."""
        return None if self._store is None else self._store.shape

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Dtype of the array, or None without an array."""
        return None if self._store is None else self._store.dtype

    @property
    def ndim(self) -> int | None:
        """Number of array axes, or None without an array."""
        return None if self._store is None else len(self._store.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return 0 if self._store is None else int(np.prod(self._store.shape, dtype=np.int64))

    @property
    def block_grid(self) -> BlockGrid:
        """Origins of patches that begin with a block, so that few others are decoded; without compression every position.

        Raises
        ------
        DTypeError
            There is no array.
        """
        store = self._array()
        if isinstance(store, BloscStore):
            return BlockGrid(store.shape, store.chunks, store.blocks)
        return BlockGrid.without_blocks(store.shape)

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of a region that lies within the array, written into ``out`` where it is given."""
        return self._array().read(region, out)

    def prefetch(self, regions: Iterable[Region]) -> None:
        """Announce reads to come, without waiting, so that storage works while the caller computes.

        Parameters
        ----------
        regions : iterable of Region
            What will be read soon. Nothing happens for an array in memory, in a writable file, or where the system offers no
            such call (see :func:`mlarray.read_ahead_status`).
        """
        store = self._array()
        if isinstance(store, BloscStore):
            store.prefetch(regions)

    def __getitem__(self, key: Any) -> Any:
        store = self._array()
        box = plain_box(key, store.shape)
        if box is not None:
            region, inner = box
            voxels = store.read(region)
            return voxels if inner is None else voxels[inner]
        selection = parse_key(key, store.shape, getattr(store, "blocks", None))
        return read_selection(selection, store.read, store.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        store = self._array()
        selection = parse_key(key, store.shape, getattr(store, "blocks", None))
        values = castable(value, store.dtype)
        with store.lock:  # parts of blocks are read, changed and written
            write_selection(selection, values, store.read, self._write, store.dtype)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NDArray:  # noqa: FBT001
        if isinstance(self._store, ArrayStore):
            return np.array(self._store.array, dtype=dtype, copy=copy)
        if copy is False:
            raise ValueError("A compressed array cannot be shown to numpy without a copy.")
        values = self.to_numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __len__(self) -> int:
        return 0 if not self.shape else self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        self._array()
        return (self[index] for index in range(len(self)))

    def to_numpy(self) -> NDArray:
        """Return all voxels as a numpy array; of an uncompressed array the array itself."""
        store = self._array()
        return store.array if isinstance(store, ArrayStore) else store.read(Region.full(store.shape))

    def _array(self) -> BloscStore | ArrayStore:
        if self._store is None:
            raise DTypeError("There is no array: it was closed, or the object holds metadata only.")
        return self._store

    def _write(self, region: Region, block: NDArray) -> None:
        """Store a block; a handle that keeps track of what is written does more."""
        self._array().write(region, block)
