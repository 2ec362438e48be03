"""``MLArray``: an array, its geometry and its metadata, in memory or in a file.

A handle that ties a store to its metadata. Indexing is where numpy's dialect becomes regions; everything else about voxels
is the store's business, everything else about metadata the model's.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from mlarray.axes import AxesLike, Axis, are_labelled, parse_axes
from mlarray.creation import Constructors, Verification, metadata_from, numeric, target_path
from mlarray.errors import MetadataError, UsageError
from mlarray.layout import DEFAULT_LAYOUT, Layout, LayoutName
from mlarray.metadata import Meta, decode, encode, update_managed
from mlarray.metadata.spatial import spec_of
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source
from mlarray.sources.memory import ArraySource
from mlarray.spatial_view import SpatialView
from mlarray.spec import ArraySpec
from mlarray.storage import integrity
from mlarray.storage.allocate import LAYOUT_RECORD, allocate, layout_of, refuse_without_axes
from mlarray.storage.blosc import BloscStore, MapMode, store_from_frame
from mlarray.storage.contents import (
    CONVERSION_RECORD,
    LOCATIONS_RECORD,
    METADATA_VERSION,
    array_records,
    filled_store,
    merged,
    source_metadata,
    stored_axes,
    stored_metadata,
)
from mlarray.storage.copies import copy_store
from mlarray.storage.leftovers import remove_old_leftovers
from mlarray.storage.memory import ArrayStore
from mlarray.storage.options import LimitKwargs, Params, PatchSize, SizeLike, StorageKwargs, StorageOptions
from mlarray.storage.publish import PendingFile, refuse_unchangeable
from mlarray.storage.session import WriteSession
from mlarray.storage.write_lock import WriteLock, replacing
from mlarray.voxel_view import VoxelView

KEPT_RECORDS = (LAYOUT_RECORD, CONVERSION_RECORD, LOCATIONS_RECORD, *integrity.RECORDS_OF_VOXELS)
_DEFAULTS = StorageOptions()


class MLArray(VoxelView, SpatialView, Constructors):
    """An N-D array with geometry and metadata.

    Parameters
    ----------
    array : array_like, str or Path, optional
        Voxels, or an ``.mla`` file to read into memory. Without it the object holds metadata only.
    spacing, origin : sequence of float, optional
        One entry per spatial axis, in array-axis order.
    direction : array_like, shape (n, n), optional
        Column ``i`` is the direction of spatial array axis ``i``.
    affine : array_like, shape (n + 1, n + 1), optional
        Instead of spacing, origin and direction.
    meta : mapping or Meta, optional
        A mapping is taken as ``meta.source``; a :class:`~mlarray.metadata.Meta` is used as it is.
    axis_labels : sequence of str, optional
        Labels of the ``.mla`` vocabulary (``"channel"``, ``"spatial_z"`` ...), one per array axis.
    copy : MLArray, optional
        Metadata to take over where nothing else is given.
    patch_size, chunk_size, block_size, cparams, dparams
        See :class:`~mlarray.storage.options.StorageOptions`.
    compressed : bool
        Compress the voxels (default), or keep them as a numpy array.
    axes : str or sequence, optional
        Axes by name, as OME-NGFF dictionaries or :class:`~mlarray.axes.Axis`; instead of ``axis_labels``.
    layout, **limits
        The limits of the layout rule, by name and one by one, see :class:`~mlarray.storage.options.StorageOptions`.

    Raises
    ------
    UsageError
        Arguments that exclude each other, or sizes that cannot be stored.
    MetadataError
        Geometry or metadata that does not fit the array; lists all problems.

    Examples
    --------
    >>> import numpy as np
    >>> image = MLArray(np.zeros((2, 4, 4), np.float32), spacing=(3, 1, 1), axes="zyx")
    >>> image[0, 1:3, ::2].shape, image.affine[0]
    ((2, 2), [3.0, 0.0, 0.0, 0.0])
    """

    _meta: Any
    _axes_record: Any

    def __init__(
        self,
        array: npt.ArrayLike | str | Path | None = None,
        spacing: Sequence[float] | NDArray | None = None,
        origin: Sequence[float] | NDArray | None = None,
        direction: Sequence[Sequence[float]] | NDArray | None = None,
        affine: Sequence[Sequence[float]] | NDArray | None = None,
        meta: Mapping[str, Any] | Meta | None = None,
        axis_labels: Sequence[Any] | None = None,
        copy: MLArray | None = None,
        patch_size: PatchSize = "default",
        chunk_size: SizeLike = None,
        block_size: SizeLike = None,
        cparams: Params = None,
        dparams: Params = None,
        compressed: bool = True,
        *,
        axes: AxesLike | None = None,
        layout: LayoutName = DEFAULT_LAYOUT,
        **limits: Unpack[LimitKwargs],
    ) -> None:
        self._reset()
        stated = {
            "spacing": spacing,
            "origin": origin,
            "direction": direction,
            "affine": affine,
            "axis_labels": axis_labels,
        }
        storage: StorageKwargs = {
            "patch_size": patch_size,
            "chunk_size": chunk_size,
            "block_size": block_size,
            "cparams": cparams,
            "dparams": dparams,
            "layout": layout,
            **limits,
        }
        options = StorageOptions.from_keywords(storage, others=(*stated, "meta", "copy", "compressed", "axes"))
        if isinstance(array, (str, Path)):
            given = [
                name
                for name, value in (*stated.items(), ("meta", meta), ("copy", copy), ("axes", axes))
                if value is not None
            ]
            if given or options != StorageOptions(dparams=dparams):
                raise UsageError(
                    "A file brings its own metadata and layout; arguments beside its path are not allowed"
                    f"{': ' + ', '.join(given) if given else ''}.",
                    hint="Load it first, then set the attributes, or pass its voxels: MLArray(loaded.to_numpy(), ...).",
                )
            self._become(type(self).load(array, dparams, compressed=compressed))
            return
        new = metadata_from(meta)
        parsed = _axes_argument(axes, axis_labels)
        if parsed is not None:
            stated["axis_labels"] = [axis.label for axis in parsed]
            new.spatial.axis_units = [axis.unit or "" for axis in parsed]
            self._axes_record = [axis.to_dict() for axis in parsed]
        for name, value in stated.items():
            if value is not None:
                setattr(new.spatial, name, value)
        if copy is not None and copy.meta is not None:
            new.copy_from(copy.meta)
            self._axes_record = self._axes_record or copy._axes_record
        self._meta = new
        if array is None:
            update_managed(new, has_array=False, mlarray_version=METADATA_VERSION)
            return
        values = numeric(array)
        spec = spec_of(values.shape, values.dtype, new.spatial, self._axes_record)
        self._fill(ArraySource(values, spec), options, compressed=compressed)

    # -- the array ---------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> ArraySpec:
        """Shape, dtype, axes and geometry as one value."""
        store = self._array()
        return spec_of(store.shape, store.dtype.newbyteorder("="), self.meta.spatial, self._axes_record)

    @property
    def meta(self) -> Any:
        """The metadata (:class:`~mlarray.metadata.Meta`), read on first use; None after :meth:`close`."""
        if self._meta is None and isinstance(self._store, BloscStore):
            self._meta = stored_metadata(self._store)
            self._axes_record = stored_axes(self._store)
        return self._meta

    @property
    def layout(self) -> Layout | None:
        """Chunks and blocks with the reason they were chosen, or None for an uncompressed array."""
        if not isinstance(self._store, BloscStore):
            return None
        return layout_of(self._store, self.meta.blosc2.patch_size)

    def __repr__(self) -> str:
        if self._store is None:
            return f"<{type(self).__name__} without an array>"
        where = self.filepath or ("compressed in memory" if isinstance(self._store, BloscStore) else "in memory")
        return f"<{type(self).__name__} shape={self.shape} dtype={self.dtype} spacing={self.spacing} {where}>"

    def compress(
        self,
        patch_size: PatchSize = "default",
        chunk_size: SizeLike = None,
        block_size: SizeLike = None,
        cparams: Params = None,
        dparams: Params = None,
        *,
        layout: LayoutName = DEFAULT_LAYOUT,
    ) -> None:
        """Compress the voxels in memory, with a new layout; detaches from a file. Parameters as for the class."""
        options = StorageOptions(patch_size, chunk_size, block_size, cparams, dparams, layout=layout)
        self._detach(options, compressed=True)

    def decompress(self) -> None:
        """Hold the voxels as a numpy array; detaches from a file and forgets the layout."""
        self._detach(StorageOptions(), compressed=False)
        update_managed(self.meta, blosc2=None)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, filepath: str | Path) -> None:
        """Write array and metadata to a file, replacing an existing one in one step.

        A compressed array keeps its chunks as they are. The file appears under its name complete or not at all, also when it
        is the one this array was opened from.

        Parameters
        ----------
        filepath : str or Path
            Ends in ``.mla``.

        Raises
        ------
        UsageError
            Another suffix, no such folder, or the file is being written.
        MetadataError
            Metadata that is not valid; lists all problems, and nothing is written.
        """
        target = target_path(filepath)
        if self.meta is None:
            raise UsageError("This array is closed; there is nothing to save.", hint="Save it first, or open it again.")
        records = array_records(self.meta, self._axes_record)
        remove_old_leftovers(target.parent)
        own = None if self._session is None else self._session.lock
        with replacing(target, by=own):  # tells before anything is written
            pending = PendingFile(target)
        try:
            store = self._written_to(pending.path)
            if isinstance(self._store, ArrayStore):  # its layout was chosen just now
                records = array_records(self.meta, self._axes_record)
            for name, value in records.items():
                store.put_record(name, value)
            integrity.finish(store)
            store.close()
            pending.publish(by=own)
        except BaseException:
            pending.abort()
            raise
        if self._store is not None and self._store.path is not None and self._store.path.resolve() == target.resolve():
            self._reopen(target)

    def close(self) -> None:
        """Release the array and, in a writable file, store changes and checksums first.

        Raises
        ------
        MetadataError
            Metadata that is not valid; the array then stays open, so that it can be corrected.
        OSError
            What was changed cannot be written; a file that existed stays as it was, a new one unfinished.
        """
        records = {} if self._session is None else array_records(self.meta, self._axes_record)
        try:
            if self._session is not None:
                self._session.finish(records)
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._session is not None and self._session.fail():
            self._release()
            return
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        store = self._store
        if store is not None and store.path is not None and self._session is None and self.mmap_mode != "c":
            # The absolute path: the other process may work in another folder.
            opened = partial(type(self).open, verify=self._verify)
            return (opened, (str(store.path.absolute()), self.mode, self.mmap_mode, self._options.dparams))
        if self._session is not None:
            raise UsageError(
                f"{self.filepath} is open for writing and cannot be sent to another process.", hint="Close it first."
            )
        content = store.frame_bytes() if isinstance(store, BloscStore) else None if store is None else store.array
        return (_rebuilt, (type(self), content, encode(self.meta), self._axes_record, self._options, self._kept_layout))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self.filepath: str | None = None
        self.mode: str | None = None
        self.mmap_mode: str | None = None
        self._meta = None
        self._axes_record = None
        self._store: BloscStore | ArrayStore | None = None
        self._session: WriteSession | None = None
        self._options = _DEFAULTS
        self._verify: Verification = None
        self._kept_layout: Layout | None = None  # of a file that was loaded without compression
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def _release(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._store is not None:
            self._store.close()
        if self._session is not None:
            self._session.lock.release()
        self._reset()

    def _become(self, other: Self) -> None:
        """Take over the state of ``other``, which must not be used afterwards."""
        if other._finalizer is not None:
            other._finalizer.detach()
        state = {name: getattr(other, name) for name in vars(other) if name != "_finalizer"}
        for name, value in state.items():
            setattr(self, name, value)
        self._watch()

    def _write(self, region: Region, block: NDArray) -> None:
        store = self._array()
        if self._session is None:
            store.write(region, block)
        elif region.size:
            self._session.write(region, lambda: store.write(region, block))

    def _fill(self, source: Source, options: StorageOptions, *, compressed: bool, sampled: bool = True) -> None:
        """Become an array in memory with the voxels of ``source``; the metadata is there already."""
        spec = source.spec
        self._options = options
        refuse_without_axes(spec)
        if compressed:
            self._store = filled_store(source, options, self._meta, sampled=sampled)
        else:
            self._store = ArrayStore(source.read(spec.region))
        update_managed(self._meta, shape=spec.shape, has_array=True, mlarray_version=METADATA_VERSION)

    def _detach(self, options: StorageOptions, *, compressed: bool) -> None:
        voxels = ArraySource(self.to_numpy(), self.spec)
        meta, record = self._meta, self._axes_record
        self.close()
        self._meta, self._axes_record = meta, record
        self._fill(voxels, options, compressed=compressed)

    def _written_to(self, path: Path) -> BloscStore:
        """Return a new store at ``path`` with the voxels."""
        if isinstance(self._store, BloscStore):
            return copy_store(self._store, path, records=KEPT_RECORDS)
        if self._store is None:
            return allocate(ArraySpec((0,), np.dtype(np.float64)), StorageOptions(patch_size=None), path=path).store
        source = ArraySource(self._store.array, self.spec)
        return filled_store(source, self._options, self._meta, path=path, layout=self._kept_layout)

    def _watch(self) -> None:
        """Let a writable file be finished when this object goes away without :meth:`close`."""
        if self._session is not None:
            self._finalizer = weakref.finalize(
                self, self._session.abandon, partial(array_records, self.meta, self._axes_record)
            )

    def _reopen(self, path: Path) -> None:
        mode, mmap_mode = self.mode or "r", self.mmap_mode
        if self.mode == "w":  # a created file goes on as one opened for writing
            mode, mmap_mode = "a", "r+" if self.mmap_mode else None
        if self._session is not None:
            self._session.drop()
        fresh = type(self)._opened(path, mode, mmap_mode, self._options.dparams, verify=self._verify)  # type: ignore[arg-type]
        meta, record = self._meta, self._axes_record
        self._release()
        self._become(fresh)
        self._meta, self._axes_record = meta, record
        self._watch()

    @classmethod
    def _opened(cls, path: Path, mode: str, mmap_mode: MapMode, dparams: Params, *, verify: Verification) -> Self:
        changes = mmap_mode == "r+" or (mmap_mode is None and mode == "a")
        if changes:
            refuse_unchangeable(path)
        lock = WriteLock(path) if changes else None
        try:
            store = integrity.open_verified(
                path, verify, mmap_mode="r" if mmap_mode == "r+" else mmap_mode, dparams=dparams
            )
            image = cls._of(store)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        image.filepath, image.mode, image.mmap_mode, image._verify = str(path), mode, mmap_mode, verify
        if dparams is not None:
            image._options = StorageOptions(dparams=dparams)
        if lock is not None:
            try:
                before = array_records(image.meta, image._axes_record)
            except MetadataError:  # of another writer; it has to be corrected before it can be written again
                before = {}
            image._session = WriteSession(store, lock=lock, before=before)
            image._watch()
        return image

    @classmethod
    def _loaded(cls, path: Path, dparams: Params, *, compressed: bool, verify: Verification) -> Self:
        store = integrity.open_verified(path, "full" if verify == "lazy" else verify, mmap_mode="r", dparams=dparams)
        image = cls._of(store)
        image.filepath = str(path)
        if image.meta is None or image._store is None:
            return image
        if compressed:
            image._store = copy_store(store, None, dparams=dparams, records=KEPT_RECORDS)
        else:
            image._kept_layout = image.layout
            image._store = ArrayStore(store.read(Region.full(store.shape)))
        return image

    @classmethod
    def _of(cls, store: BloscStore) -> Self:
        image = cls.__new__(cls)  # no metadata is made here: opening a file must not cost more than the read needs
        image._reset()
        image._store = store
        if store.shape == (0,) and not image.meta._has_array.has_array:
            image._store = None
        return image

    @classmethod
    def _allocated(cls, path: Path, spec: ArraySpec, options: StorageOptions, meta: Any, mmap_mode: MapMode) -> Self:
        image = cls(meta=meta, axes=spec.axes if are_labelled(spec.axes) else None)
        spec = spec_of(spec.shape, spec.dtype, image._meta.spatial, image._axes_record)
        update_managed(image._meta, shape=spec.shape, has_array=True)
        remove_old_leftovers(path.parent)
        pending = PendingFile(path.absolute())
        try:
            made = allocate(spec, options, path=pending.path)
            image._session = WriteSession(made.store, lock=WriteLock(pending.path), created=pending)
        except BaseException:
            pending.abort()
            raise
        update_managed(image._meta, blosc2=made.fields)
        image._store, image._options = made.store, options
        image.filepath, image.mode, image.mmap_mode = str(path), "w", mmap_mode
        image._watch()
        return image

    @classmethod
    def _filled(
        cls, source: Source, options: StorageOptions, meta: Any, *, compressed: bool, sampled: bool = True
    ) -> Self:
        image = cls()
        theirs, axes = source_metadata(source.spec, source.info)
        image._meta = theirs if meta is None else merged(metadata_from(meta), theirs)
        image._axes_record = axes
        image._fill(source, options, compressed=compressed, sampled=sampled)
        return image


def _axes_argument(axes: AxesLike | None, axis_labels: Sequence[Any] | None) -> tuple[Axis, ...] | None:
    if axes is None:
        return None
    if axis_labels is not None:
        raise UsageError("axes and axis_labels say the same thing; give one of them.")
    return parse_axes(axes)


def _rebuilt(
    kind: type[MLArray],
    content: bytes | NDArray | None,
    payload: bytes,
    axes_record: Any,
    options: StorageOptions,
    kept_layout: Layout | None,
) -> MLArray:
    image = kind(meta=Meta.from_mapping(decode(payload)))
    image._axes_record, image._options, image._kept_layout = axes_record, options, kept_layout
    if content is not None:
        image._store = store_from_frame(content) if isinstance(content, bytes) else ArrayStore(content)
        update_managed(image._meta, has_array=True)
    return image
