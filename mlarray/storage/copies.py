"""How is a store copied? Chunk by chunk as stored, without decoding."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mlarray.errors import FormatError, UsageError
from mlarray.layout import Layout
from mlarray.region import Region
from mlarray.storage.blosc import BloscStore, create_store, open_store
from mlarray.storage.frame import replaced
from mlarray.storage.options import Params
from mlarray.storage.publish import final_path


def create_like(source: BloscStore, path: Path | None, *, dparams: Params = None) -> BloscStore:
    """Create a store that takes the chunks of another as they are: :func:`create_store` with all that it was made with."""
    layout = Layout(tuple(max(1, c) for c in source.chunks), tuple(max(1, b) for b in source.blocks), None, "")
    params = source.cparams
    return create_store(source.shape, source.dtype, layout, path=path, cparams=params, dparams=dparams)


def copy_store(
    source: BloscStore, path: Path | None, *, dparams: Params = None, records: tuple[str, ...] = ()
) -> BloscStore:
    """Copy a store chunk by chunk, without decoding.

    Parameters
    ----------
    source : BloscStore
        Of any kind.
    path : Path or None
        File to create, or None for memory.
    dparams : mapping or blosc2.DParams, optional
        Of the copy.
    records : tuple of str
        Records that are copied too.
    """
    source.flush()
    copied = create_like(source, path, dparams=dparams)
    for index in range(source.chunk_count):
        try:
            copied.put_chunk_bytes(index, source.chunk_bytes(index))
        except (RuntimeError, OSError):
            source.read(Region(*source.grid.chunk_region(index)))  # tells when the chunk itself is what is wrong
            raise
    for name in sorted(set(records) & set(source.record_names())):
        with suppress(FormatError):  # a damaged record is not copied; who needs it asks the source and is told
            copied.put_record(name, source.record(name))
    return copied


def store_of_parent(store: BloscStore, parent: int) -> BloscStore:
    """Return a store for this process with the content of one that the process ``parent`` made before it forked.

    Raises
    ------
    UsageError
        The store is a file that is being written: what is in it already cannot be told.
    FormatError
        The file has been replaced.
    """
    if store.path is None or store.mmap_mode == "c":
        return copy_store(store, None, records=store.record_names())
    if store.writable:
        raise UsageError(
            f"{final_path(store.path)} is being written by process {parent}, this is process {os.getpid()}.",
            hint="Close it there, then open the file again in this process.",
        )
    own = open_store(store.path, mmap_mode=store.mmap_mode)
    if own.opened_version != store.opened_version:
        raise replaced(store.path)
    return own
