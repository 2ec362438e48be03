"""What was measured over the voxels of a file, tied to the chunks it was measured over.

The record is the caller's, a map of plain values; this module adds the checksum of the chunks and takes care that it is
believed only while they are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlarray.errors import FormatError
from mlarray.storage import integrity
from mlarray.storage.blosc import BloscStore, open_store
from mlarray.storage.integrity import STATISTICS_RECORD
from mlarray.storage.leftovers import remove_old_leftovers
from mlarray.storage.publish import PendingFile, copy_file, is_part

_CHUNKS = "chunks"


def statistics_of(store: BloscStore, *, proven: bool) -> Mapping[str, Any] | None:
    """Return the record of a store, or None where there is none that is of its present voxels.

    Parameters
    ----------
    store : BloscStore
        To be read.
    proven : bool
        Compare each stored chunk with its checksum, which reads the file and decodes nothing. False: believe the header, which
        cannot tell that another program has written a chunk of the same size.
    """
    try:
        record = store.record(STATISTICS_RECORD)
        if not isinstance(record, Mapping):
            return None
        if proven:
            checksum = integrity.proven_checksum(store)
        else:
            checksum = integrity.content_checksum(store) if integrity.is_current(store) else None
    except FormatError:
        return None
    return record if checksum is not None and record.get(_CHUNKS) == checksum else None


def refuse_unproven(store: BloscStore) -> None:
    """Raise where the chunks do not match their checksums; a store that has none passes.

    Raises
    ------
    FormatError
        What would be measured could be something else than what was written.
    """
    if integrity.content_checksum(store) is not None and integrity.proven_checksum(store) is None:
        raise FormatError(
            f"{store.path} does not match its checksums.",
            hint="Look at it with `mla verify`. Make it again; if another program changed it on purpose, save it again.",
        )


def keep_statistics(path: Path, record: Mapping[str, object]) -> None:
    """Store a record in a file, which is replaced in one step; one under a temporary name is changed in place."""
    final = path.resolve()
    if is_part(final.name):
        _put(final, record)
        return
    remove_old_leftovers(final.parent)
    pending = PendingFile(final)
    try:
        copy_file(final, pending.path)
        _put(pending.path, record)
        pending.publish()
    except BaseException:
        pending.abort()
        raise


def _put(path: Path, record: Mapping[str, object]) -> None:
    store = open_store(path, mode="a", mmap_mode=None)
    try:
        checksum = integrity.content_checksum(store)
        if checksum is None:  # of a program that keeps none
            integrity.finish(store)
            checksum = integrity.content_checksum(store)
        store.put_record(STATISTICS_RECORD, {_CHUNKS: checksum, **record})
        integrity.finish(store, ())
    finally:
        store.close()
