"""``.mla`` files as source and sink: our own format, read by blocks and written in whole chunks."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import FormatError, MetadataWarning
from mlarray.layout import Layout
from mlarray.metadata import Meta, update_managed
from mlarray.metadata.spatial import spec_of
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Note, SinkOptions, SourceBase, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage import integrity
from mlarray.storage.allocate import LAYOUT_RECORD, allocate, layout_of
from mlarray.storage.blosc import BloscStore, open_store
from mlarray.storage.contents import (
    CONVERSION_RECORD,
    LOCATIONS_RECORD,
    array_records,
    source_metadata,
    stored_axes,
    stored_metadata,
)
from mlarray.storage.copies import create_like
from mlarray.storage.filters import sample_region as centred_region
from mlarray.storage.measured import keep_statistics, refuse_unproven, statistics_of
from mlarray.storage.options import DECOMPRESSION_THREADS, StorageOptions
from mlarray.storage.publish import PendingFile


class MlaSource(SourceBase):
    """The array in an ``.mla`` file; a pickled copy opens the file again.

    Parameters
    ----------
    path : Path
        The file.
    format_name : str
        Name of the format row.
    unlabelled : tuple of Axis, optional
        Axes to assume where the file says nothing and has that many axes.
    mapped : bool
        Whether the file is mapped into memory.
    """

    access = Access.REGION

    def __init__(
        self, path: Path, format_name: str = "mla", unlabelled: tuple[Axis, ...] = (), *, mapped: bool = True
    ) -> None:
        self._path, self._mapped = path, mapped
        self._make: Callable[[], MlaSource] = partial(MlaSource, path, format_name, unlabelled, mapped=mapped)
        self._store: BloscStore | None = None
        store = self._opened()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MetadataWarning)
            meta = stored_metadata(store)
        notes = [Note("metadata-unreadable", str(warning.message)) for warning in caught]
        axes_record = stored_axes(store)
        if meta.spatial.axis_labels is None and len(unlabelled) == len(store.shape):
            names = "".join(axis.name for axis in unlabelled)
            notes.append(Note("axes-assumed", f"The file does not name its axes; {names} is assumed."))
            meta.spatial.axis_labels = [axis.label for axis in unlabelled]
            axes_record = [axis.to_dict() for axis in unlabelled]
        self.spec = spec_of(store.shape, store.dtype.newbyteorder("="), meta.spatial, axes_record)
        self.order = tuple(range(self.spec.ndim))
        self.chunks, self.blocks = store.chunks, store.blocks
        self.info = SourceInfo(
            format=format_name,
            files=(path,),
            header=dict(meta.source.data),
            notes=tuple(notes),
            is_seg=meta.is_seg.is_seg,
            record=_parsed_record(store),
            meta=meta,
            locations=_record(store, LOCATIONS_RECORD),
        )
        self.patch_size = meta.blosc2.patch_size

    @property
    def kept_layout(self) -> Layout | None:
        """The layout that a copy of the stored chunks has; None where they hold another byte order than is written."""
        store = self._opened()
        patch = self.patch_size
        if patch is not None and len(patch) != sum(self.spec.spatial):  # written when more axes were taken for space
            patch = None
        return layout_of(store, patch) if store.dtype.isnative else None

    @property
    def store(self) -> BloscStore:
        """The stored chunks."""
        return self._opened()

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of ``region``."""
        return self._opened().read(region, self._target(region, out))

    def kept_statistics(self, *, proven: bool = True) -> Mapping[str, Any] | None:
        """Return what :meth:`keep_statistics` stored, where it is of the present voxels; ``proven`` compares every chunk."""
        return statistics_of(self._opened(), proven=proven)

    def keep_statistics(self, measure: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
        """Store the plain values that ``measure()`` returns of the voxels, tied to these, and return them.

        Raises
        ------
        FormatError
            The file does not match its checksums.
        """
        refuse_unproven(self._opened())
        values = measure()
        self.close()
        keep_statistics(self._path, values)
        return values

    def close(self) -> None:
        """Release the file; a later read opens it again."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (self._make, ())

    def _opened(self) -> BloscStore:
        if self._store is None:
            store = open_store(self._path, mmap_mode="r" if self._mapped else None)
            integrity.refuse_unfinished(store)
            self._store = store
        return self._store


class MlaSink:
    """Writes an ``.mla`` file.

    The filter is chosen by ``options.sample``. Without one, what arrives first is held in memory (at most
    ``options.hold_bytes``) until the centre of the array has been seen; where that is not enough, the choice falls on what
    has been seen.
    """

    access = Access.REGION

    def __init__(self, path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> None:
        self.spec = spec
        self.order = tuple(range(spec.ndim))
        self._info = info
        self._options = options
        self._storage = StorageOptions.from_mapping(options.storage)
        kept = getattr(options.kept, "kept_layout", None)
        self._layout: Layout = kept or self._storage.layout_for(spec)
        self.chunks = self._layout.chunks
        self._centre = centred_region(spec.shape, self.chunks)
        self._held: list[tuple[Region, NDArray]] = []
        self._held_bytes = 0
        self._store: BloscStore | None = None
        self._fields: Mapping[str, Any] = {}
        self._finished = False
        self._pending = PendingFile(path)
        self.path = self._pending.path
        settled = self._storage.cparams is not None or spec.dtype.itemsize == 1 or spec.size == 0
        try:
            if isinstance(options.kept, MlaSource):
                self._create_like(options.kept)
            elif options.sample is not None or settled:
                self._allocate(options.sample, "the centre")
        except BaseException:
            self.abort()
            raise

    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block``, which covers whole chunks except at the border, at ``region``."""
        if self._store is None:
            seen = [*self._held, (region, block)]
            sample = _assembled(seen, self._centre, self.spec.dtype)
            if sample is not None:
                self._release_held(sample, "the centre")
            elif self._held_bytes + block.nbytes > self._options.hold_bytes:
                self._release_held(*_middle_of(seen, self._centre.shape))
            else:
                self._held.append((region, block.copy()))
                self._held_bytes += block.nbytes
                return
        assert self._store is not None
        self._store.write(region, block)

    def take_chunks(self, *, checked: bool = True, progress: Callable[[int], None] | None = None) -> None:
        """Copy the chunks of the source that the options name as they are. See :class:`~mlarray.sources.base.ChunkSink`."""
        assert self._store is not None
        assert isinstance(self._options.kept, MlaSource)
        for index, data in enumerate(integrity.stored_chunks(self._options.kept.store, checked=checked)):
            self._store.put_chunk_bytes(index, data)
            if progress is not None:
                start, stop = self._store.grid.chunk_region(index)
                progress(Region(start, stop).size * self.spec.dtype.itemsize)

    def finish(self) -> None:
        """Store metadata, record and checksums, and close the file under its temporary name."""
        if self._finished:
            return
        if self._store is None:
            self._release_held(*_middle_of(self._held, self._centre.shape))
        assert self._store is not None
        meta, axes = source_metadata(self.spec, self._info)
        update_managed(meta, blosc2=self._fields)
        records = array_records(meta, axes)
        if self._info.locations is not None:
            records[LOCATIONS_RECORD] = self._info.locations
        for name, value in records.items():
            self._store.put_record(name, value)
        if isinstance(self._options.kept, MlaSource):  # the same chunks: what was measured, or lost, is so here
            for name in integrity.RECORDS_OF_VOXELS:
                kept = _record(self._options.kept.store, name)
                if kept is not None:
                    self._store.put_record(name, kept)
        if self._options.record:
            self._store.put_record(CONVERSION_RECORD, json.dumps(dict(self._options.record), sort_keys=True))
        integrity.finish(self._store)
        self._store.close()
        self._finished = True

    def publish(self) -> None:
        """Finish the file and give it its final name."""
        self.finish()
        self._pending.publish()

    def abort(self) -> None:
        """Remove what was written."""
        if self._store is not None:
            self._store.close()
        self._finished = True
        self._pending.abort()

    def _allocate(self, sample: NDArray | None, place: str) -> None:
        made = allocate(
            self.spec, self._storage, path=self.path, sample=sample, place=place, threads=self._options.threads
        )
        made.store.pack_chunks(self._options.at_once)
        self._store, self._fields = made.store, made.fields
        integrity.mark_unfinished(made.store)

    def _create_like(self, source: MlaSource) -> None:
        """Create the store with the layout and the compression parameters of a source, and say so."""
        self._store = create_like(source.store, self.path)
        integrity.mark_unfinished(self._store)
        reasons = _record(source.store, LAYOUT_RECORD) or {"layout": self._layout.reason, "filter": "Kept as stored."}
        self._store.put_record(LAYOUT_RECORD, reasons)
        meta = source.info.meta
        if isinstance(meta, Meta) and meta.blosc2.chunk_size is not None:
            patch = self._layout.patch_size
            self._fields = {**meta.to_mapping()["blosc2"], "patch_size": None if patch is None else list(patch)}
        else:  # how another program compressed stands in the chunks
            self._fields = {
                "chunk_size": list(source.store.chunks),
                "block_size": list(source.store.blocks),
                "dparams": {"nthreads": DECOMPRESSION_THREADS},
            }

    def _release_held(self, sample: NDArray | None, place: str) -> None:
        self._allocate(sample, place)
        held, self._held, self._held_bytes = self._held, [], 0
        assert self._store is not None
        for region, block in held:
            self._store.write(region, block)


def open_source(path: Path, *, mapped: bool = True) -> MlaSource:
    """Open an ``.mla`` file; only its header and metadata are read.

    Notes
    -----
    Nothing; metadata that would run something when it is read is refused, the voxels stay.
    """
    return MlaSource(path, mapped=mapped)


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> MlaSink:
    """Create an ``.mla`` file that takes the voxels of ``spec``."""
    return MlaSink(path, spec, info, options)


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what an ``.mla`` file cannot keep: nothing, for any array that has a spec.

    Notes
    -----
    Nothing.
    """
    return ()


def plan_layout(spec: ArraySpec, storage: Mapping[str, Any]) -> Layout:
    """Return the layout that a file for ``spec`` would get."""
    return StorageOptions.from_mapping(storage).layout_for(spec)


def sample_region(spec: ArraySpec, storage: Mapping[str, Any]) -> Region:
    """Return the region whose voxels decide the filter: one chunk around the centre."""
    return centred_region(spec.shape, plan_layout(spec, storage).chunks)


def _assembled(pieces: list[tuple[Region, NDArray]], wanted: Region, dtype: np.dtype[Any]) -> NDArray | None:
    """Return the voxels of ``wanted`` out of pieces that do not overlap, or None while some are missing."""
    common = [(region.intersect(wanted), region, block) for region, block in pieces]
    if sum(part.size for part, _, _ in common) < wanted.size:
        return None
    result = np.empty(wanted.shape, dtype)
    for part, region, block in common:
        if not part.is_empty():
            result[part.relative_to(wanted).slices] = block[part.relative_to(region).slices]
    return result


def _middle_of(pieces: list[tuple[Region, NDArray]], extent: tuple[int, ...]) -> tuple[NDArray | None, str]:
    """Return a chunk-sized sample around the middle of what has been seen, and where that is."""
    if not pieces:
        return None, ""
    region, block = pieces[len(pieces) // 2]
    local = centred_region(block.shape, extent)
    place = local.translate(region.start)
    return block[local.slices], f"{place.start} to {place.stop} (what was read first)"


def _record(store: BloscStore, name: str) -> object:
    try:
        return store.record(name)
    except FormatError:  # the voxels are no worse
        return None


def _parsed_record(store: BloscStore) -> Mapping[str, object]:
    try:
        record = store.record(CONVERSION_RECORD)
        parsed = json.loads(record) if isinstance(record, str) else None
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
