"""How is HDF5 read and written?

Any dataset of numbers can be read, by regions; it is the *item* of the file. Each process opens its own handle on first use, so a
source survives fork and pickling. Written: one dataset a file, ``/image`` unless another name is asked for, in chunks for the
patches that training reads; ``hdf5_join.py`` puts such files into one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import DTypeError, FormatError, UsageError
from mlarray.formats.hdf5_attributes import read_attributes
from mlarray.formats.hdf5_chunks import ChunkGuard
from mlarray.formats.hdf5_file import (
    LEAST_AXES,
    MOST_AXES,
    candidates,
    checked,
    damage_told,
    missing_chunks,
    no_images,
    number_type,
    open_file,
)
from mlarray.formats.hdf5_join import join, refuse_foreign_store
from mlarray.formats.hdf5_write import Hdf5Sink, chosen_codec, chosen_layout
from mlarray.formats.items import Item, pick_item
from mlarray.layout import Layout
from mlarray.locks import ForkSafeLock
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Note, SinkOptions, SourceBase, SourceInfo
from mlarray.spec import ArraySpec

__all__ = ["Hdf5Source", "items", "join", "losses", "open_sink", "open_source", "plan_layout", "refuse_foreign_store"]
CACHE_BYTES = 16 * 1024 * 1024
_LEAST_SLOTS = 521  # HDF5's own default; chunks that share a slot displace each other
_SLOTS_A_CHUNK = 10


class Hdf5Source(SourceBase):
    """A dataset of an HDF5 file; a pickled copy, or a forked process, opens the file again.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Path of the dataset.
    """

    access = Access.REGION

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._lock = ForkSafeLock()
        self._file: Any = None
        self._dataset: Any = None
        self._pid = 0
        self._cache_bytes = CACHE_BYTES
        with damage_told(path), open_file(path) as file:
            self._name, dataset = checked(file, name, path)
            dtype = number_type(dataset)
            assert dtype is not None
            shape = tuple(dataset.shape)
            self.chunks: tuple[int, ...] | None = dataset.chunks
            self.spec, fields, notes = read_attributes(dataset, shape, dtype)
            notes += _unwritten(path, self._name, dataset)
        self._guard = ChunkGuard(path, self._name)
        self.order = tuple(range(self.spec.ndim))
        self.info = SourceInfo(format="hdf5", files=(path,), notes=notes, item=self._name, **fields)

    @property
    def held_bytes(self) -> int:
        """Memory that reading takes besides the voxels: the cache of chunks, and a chunk while it is decoded."""
        return self._cache_bytes + 2 * self._chunk_bytes

    def resize_cache(self, nbytes: int) -> None:
        """Let at most ``nbytes`` of decoded chunks stay in memory; two chunks always may."""
        with self._lock:
            self._cache_bytes = max(nbytes, 2 * self._chunk_bytes)
            self.close()

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of ``region``."""
        target = self._target(region, out)
        if region.is_empty():
            return target
        direct = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)
        with damage_told(self._path, f"{self._name} from {region.start} to {region.stop}"), self._lock:
            dataset = self._opened()
            self._guard.check(dataset, region)
            dataset.read_direct(direct, region.slices)
        if direct is not target:
            target[...] = direct
        return target

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        with self._lock:
            file, self._file, self._dataset = self._file, None, None
            if file is not None and self._pid == os.getpid():
                file.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (Hdf5Source, (self._path, self._name))

    @property
    def _chunk_bytes(self) -> int:
        return math.prod(self.chunks) * self.spec.dtype.itemsize if self.chunks is not None else 0

    def _opened(self) -> Any:
        if self._dataset is None or self._pid != os.getpid():
            self._file = self._dataset = None  # what a fork left belongs to the parent
            slots = _SLOTS_A_CHUNK * self._cache_bytes // self._chunk_bytes if self.chunks is not None else 0
            whole = -(-self.spec.nbytes // max(1, self._chunk_bytes)) * self._chunk_bytes
            file = open_file(
                self._path,
                rdcc_nbytes=min(self._cache_bytes, max(whole, 2 * self._chunk_bytes)),
                rdcc_nslots=max(_LEAST_SLOTS, slots | 1),
            )
            _, dataset = checked(file, self._name, self._path)
            if tuple(dataset.shape) != self.spec.shape or number_type(dataset) != self.spec.dtype:
                file.close()
                raise FormatError(f"{self._path}: {self._name} was replaced by another dataset while it was in use.")
            self._file, self._dataset, self._pid = file, dataset, os.getpid()
        return self._dataset


def items(path: Path) -> tuple[Item, ...]:
    """Return the datasets of 2 to 5 axes of numbers, those of a group before its groups."""
    with damage_told(path), open_file(path) as file:
        return tuple(one.item for one in candidates(file, path))


def open_source(path: Path, *, item: str | None = None) -> Hdf5Source:
    """Open a dataset; by default the only one of 2 to 5 axes of numbers.

    Raises
    ------
    FormatError
        For a damaged file, voxels in other files, or several datasets and no ``item``; those are listed.
    MissingDependencyError
        When the dataset is compressed with a filter that is not installed.
    """
    return Hdf5Source(path, _only(path) if item is None else item)


def _only(path: Path) -> str:
    with damage_told(path), open_file(path) as file:
        found = [one.item for one in candidates(file, path)]
        others = [] if found else no_images(file, path)
    hint = f"An image has {LEAST_AXES} to {MOST_AXES} axes; --item NAME takes any array of numbers." if others else None
    return pick_item(path, found, None, others=others, hint=hint).name


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what an HDF5 file cannot keep: nothing.

    Raises
    ------
    UsageError, DTypeError
        For arrays without axes or voxels, and numbers that HDF5 files of others cannot be expected to hold.
    """
    if spec.ndim == 0 or spec.size == 0:
        raise UsageError(f"HDF5 is written with at least one axis and one voxel, got shape {spec.shape}.")
    if spec.ndim > 32:
        raise UsageError(f"HDF5 holds arrays of at most 32 axes, got {spec.ndim}.")
    if spec.dtype.kind in "fc" and spec.dtype.itemsize > (8 if spec.dtype.kind == "f" else 16):
        raise DTypeError(f"{spec.dtype.name} differs between computers and is not written.", hint="Cast to float64.")
    return ()


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> Hdf5Sink:
    """Create an ``.h5`` file with one dataset that takes the voxels of ``spec``."""
    losses(spec, info)
    return Hdf5Sink(path, spec, info, options)


def plan_layout(spec: ArraySpec, storage: Mapping[str, Any]) -> Layout:
    """Return the chunks that a dataset for ``spec`` would get."""
    chosen_codec(storage)
    return chosen_layout(spec, storage)


def _unwritten(path: Path, name: str, dataset: Any) -> tuple[Note, ...]:
    """Refuse voxels that nobody wrote, unless the writer said what stands for them."""
    import h5py

    missing, total = missing_chunks(dataset)
    if not missing or 0 in dataset.shape:
        return ()
    stated = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if not stated:
        raise FormatError(
            f"{path}: {missing} of {total} chunks of {name} were never written; HDF5 would give zeros for them.",
            hint="Its writer did not end? If zeros are meant, write them, or set a fill value when creating the dataset.",
        )
    told = f"{missing} of {total} chunks of {name} were never written and hold the fill value {dataset.fillvalue}."
    return (Note("chunks-unwritten", told),)
