"""What a file of ours holds beside its chunks, and how a store is filled from a source."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import TypeAlias

from mlarray.axes import are_labelled
from mlarray.errors import FormatError, MetadataWarning
from mlarray.layout import Layout
from mlarray.metadata import Meta, encode, read_metadata, update_managed
from mlarray.metadata.spatial import spatial_fields
from mlarray.sources.base import Source, SourceInfo
from mlarray.sources.copy import copy
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec
from mlarray.storage.allocate import allocate
from mlarray.storage.blosc import BloscStore
from mlarray.storage.filters import sample_region
from mlarray.storage.frame import plain_value, read_header
from mlarray.storage.integrity import METADATA_RECORD
from mlarray.storage.options import COMPRESSION_THREADS, StorageOptions

METADATA_VERSION = "v0"  # what 0.0.x writes
AXES_RECORD = "mla_axes"
GEOMETRY_FIELDS = ("spacing", "origin", "direction", "affine")
CONVERSION_RECORD = "mla_record"
LOCATIONS_RECORD = "mla_locations"  # where labels lie, see formats/nnunet_case.py
AxesRecord: TypeAlias = list[dict[str, object]] | None


def stored_metadata(store: BloscStore) -> Meta:
    """Return the metadata of a store, also of every older encoding.

    Metadata that cannot be read, or is refused because it could do harm, costs a warning and never the voxels.
    """
    records: dict[str, object] = {}
    problems: list[str] = []
    try:
        if METADATA_RECORD in store.record_names():
            records[METADATA_RECORD] = store.record(METADATA_RECORD)
    except FormatError as error:
        problems.append(error.message)
    raw = {} if store.path is None else read_header(store.path).metalayers
    layers = {name: decoded for name, layer in raw.items() if (decoded := plain_value(layer)) is not None}
    meta, found = read_metadata(records, layers)
    for problem in (*problems, *found):
        warnings.warn(f"{store.path or 'The array'}: {problem}", MetadataWarning, stacklevel=4)
    return meta


def stored_axes(store: BloscStore) -> object:
    """Return the record of the full axes, or None where there is none that can be read; the labels then have to do."""
    try:
        return store.record(AXES_RECORD)
    except FormatError:
        return None


def source_metadata(spec: ArraySpec, info: SourceInfo) -> tuple[Meta, AxesRecord]:
    """Return metadata and full axes for an array made from a source."""
    labelled = are_labelled(spec.axes)
    if isinstance(info.meta, Meta):
        meta = deepcopy(info.meta)
        if info.is_seg is not None:
            meta.is_seg = info.is_seg
    else:
        meta = Meta(source=dict(info.header), is_seg=info.is_seg)
        for name, value in spatial_fields(spec, labelled=labelled).items():
            if value is not None:
                setattr(meta.spatial, name, value)
        update_managed(meta, image_meta_format=info.format or None)
    update_managed(meta, shape=spec.shape, has_array=True, mlarray_version=METADATA_VERSION)
    return meta, [axis.to_dict() for axis in spec.axes] if labelled else None


def merged(meta: Meta, source: Meta) -> Meta:
    """Return ``meta`` with what it does not state taken from the metadata of a source; geometry comes from one of both."""
    stated = any(getattr(meta.spatial, name) is not None for name in GEOMETRY_FIELDS)
    taken = deepcopy(source)
    for name in GEOMETRY_FIELDS if stated else ():
        setattr(taken.spatial, name, None)
    if meta.source.data:
        taken.source = {}
    meta.copy_from(taken)
    update_managed(meta, image_meta_format=source._image_meta_format.image_meta_format)
    return meta


def array_records(meta: Meta, axes: object) -> dict[str, object]:
    """Return what is stored beside an array: its metadata, checked and encoded, and its full axes where they are known.

    Raises
    ------
    MetadataError
        When the metadata is not valid; lists all problems.
    """
    records: dict[str, object] = {METADATA_RECORD: encode(meta)}
    return records if axes is None else records | {AXES_RECORD: axes}


def filled_store(
    source: Source,
    options: StorageOptions,
    meta: Meta,
    *,
    path: Path | None = None,
    layout: Layout | None = None,
    sampled: bool = True,
    threads: int = COMPRESSION_THREADS,
) -> BloscStore:
    """Create a store, copy every voxel of ``source`` into it, and note in ``meta`` how it is stored.

    The filter is chosen by the centre of the array before anything is written, which a source that only goes forward
    (``Access.SLAB``) pays with a second decoding. With ``sampled=False`` nothing is looked at, as for an array of zeros.
    """
    spec = source.spec
    layout = layout or options.layout_for(spec)
    sample = source.read(sample_region(spec.shape, layout.chunks)) if sampled and spec.size else None
    made = allocate(spec, options, path=path, layout=layout, sample=sample, threads=threads)
    update_managed(meta, blosc2=made.fields)
    copy(source, made.store, plan_tiles(spec, made.layout.chunks, access=source.access, order=source.order))
    return made.store
