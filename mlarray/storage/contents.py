"""What a file of ours holds beside its chunks, and how a store is filled from a source."""

from __future__ import annotations

import warnings
from pathlib import Path

from mlarray.errors import MetadataWarning
from mlarray.metadata import Meta, encode, read_metadata, update_managed
from mlarray.sources.base import Source
from mlarray.sources.copy import copy
from mlarray.sources.tiles import plan_tiles
from mlarray.storage.allocate import allocate
from mlarray.storage.blosc import BloscStore
from mlarray.storage.filters import sample_region
from mlarray.storage.frame import plain_value, read_header
from mlarray.storage.integrity import METADATA_RECORD
from mlarray.storage.options import COMPRESSION_THREADS, StorageOptions

AXES_RECORD = "mla_axes"
CONVERSION_RECORD = "mla_record"


def stored_metadata(store: BloscStore) -> Meta:
    """Return the metadata of a store, also of every older encoding.

    Metadata that cannot be read, or is refused because it could do harm, costs a warning and never the voxels.
    """
    records: dict[str, object] = {}
    if METADATA_RECORD in store.record_names():
        records[METADATA_RECORD] = store.record(METADATA_RECORD)
    raw = {} if store.path is None else read_header(store.path).metalayers
    layers = {name: decoded for name, layer in raw.items() if (decoded := plain_value(layer)) is not None}
    meta, problems = read_metadata(records, layers)
    for problem in problems:
        warnings.warn(f"{store.path or 'The array'}: {problem}", MetadataWarning, stacklevel=4)
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
    threads: int = COMPRESSION_THREADS,
) -> BloscStore:
    """Create a store, copy every voxel of ``source`` into it, and note in ``meta`` how it is stored.

    The filter is chosen by the centre of the array before anything is written, which a source that only goes forward
    (``Access.SLAB``) pays with a second decoding.
    """
    spec = source.spec
    sample = source.read(sample_region(spec.shape, options.layout(spec).chunks)) if spec.size else None
    made = allocate(spec, options, path=path, sample=sample, threads=threads)
    update_managed(meta, blosc2=made.fields)
    copy(source, made.store, plan_tiles(spec, made.layout.chunks, access=source.access, order=source.order))
    return made.store
