"""How large is a source or an output, and which version of it is there? A file, a folder that is one image, or a remote store.

A folder counts as the sum of its files, changed when any of them was. Of a remote store only the metadata of its group is
looked at: to list its objects can take longer than to read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from mlarray.limits import ZARR_DOCUMENT_BYTES
from mlarray.storage.remote import is_remote, read_object

END_BYTES = 1 << 20
_DOCUMENTS = ("zarr.json", ".zgroup", ".zattrs", ".zarray")


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder; 0 for a remote store, whose size is not known."""
    if is_remote(path):
        return 0
    return sum(status.st_size for _, status in files_of(path)) if path.is_dir() else path.stat().st_size


def version_of(path: Path) -> tuple[int, int]:
    """Return size in bytes and time of the last change in ns; of a folder, those of all its files."""
    if is_remote(path):
        return 0, 0
    if not path.is_dir():
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    statuses = [status for _, status in files_of(path)]
    return sum(status.st_size for status in statuses), max((status.st_mtime_ns for status in statuses), default=0)


def fingerprint(path: Path) -> str:
    """Return a checksum that tells versions of a source apart without reading all of it.

    Returns
    -------
    str
        XXH3-64 of the first and the last MiB of a file; of the names and sizes of all files of a folder, with the content of its
        metadata documents; of the documents at the root of a remote store.
    """
    state = xxhash.xxh3_64()
    if is_remote(path):
        for name in _DOCUMENTS:
            state.update(read_object(path, name, ZARR_DOCUMENT_BYTES) or b"\0")
    elif path.is_dir():
        for name, status in files_of(path):
            state.update(f"{name}\0{status.st_size}\0".encode("utf-8", "surrogateescape"))
            if name.rpartition("/")[2] in _DOCUMENTS:
                state.update((path / name).read_bytes())
    else:
        with path.open("rb") as file:
            state.update(file.read(END_BYTES))
            size = os.fstat(file.fileno()).st_size
            if size > END_BYTES:
                file.seek(max(END_BYTES, size - END_BYTES))
                state.update(file.read(END_BYTES))
    return state.hexdigest()


def files_of(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file below a folder, by relative name with ``/``, sorted, and its status; links to folders are not followed."""
    found = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in files:
            path = Path(place, name)
            found.append((path.relative_to(folder).as_posix(), path))
    for name, path in sorted(found):
        yield name, path.stat()
