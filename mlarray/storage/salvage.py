"""What of a damaged or unfinished file is intact, and how is that kept?

Chunks are copied as stored, into a new file of the same layout. A chunk is kept when it matches its checksum. Where there is
none that counts (the writer did not finish, or another program wrote to the file), it is kept when it can be decoded. The
index says where the chunks are; where it is lost, they follow each other, and their checksums tell which is which.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.chunk_grid import ChunkGrid
from mlarray.errors import FormatError, UsageError
from mlarray.layout import Layout
from mlarray.region import Region
from mlarray.storage import integrity
from mlarray.storage.blosc import BloscStore, create_store, decoded, open_store
from mlarray.storage.chunk_proof import digest, split_digests
from mlarray.storage.copies import create_like
from mlarray.storage.frame import FrameHeader, open_to_read, plain_value, read_at, read_header
from mlarray.storage.frame_parts import CHUNK_HEADER, chunk_ranges, read_offsets, read_records
from mlarray.storage.publish import PendingFile
from mlarray.storage.seal import SealState, seal_state

_NOT_KEPT = frozenset(
    {integrity.STATE_RECORD, integrity.INTEGRITY_RECORD, integrity.STATISTICS_RECORD, integrity.SALVAGE_RECORD}
)
_MOST_CHUNKS, _INDEX_RATIO = 1_000_000, 255  # offsets that are all the same take no bytes; LZ4 compresses others so far
_LARGEST_CHUNK = (1 << 31) - 33  # BLOSC2_MAX_BUFFERSIZE
_NOTHING = "Make it again from its source, or restore a copy."


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was kept of a file.

    Parameters
    ----------
    path : Path
        The new file.
    chunk_count : int
        Chunks of the array.
    lost : tuple of Region
        Voxels of the chunks that are lost, 0 in the new file.
    unwritten : int
        Chunks that the writer, which did not finish, had not written; they are 0, too.
    lost_records : tuple of str
        What is lost beside the array: the metadata is ``"mlarray"``.
    """

    path: Path
    chunk_count: int
    lost: tuple[Region, ...]
    unwritten: int
    lost_records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Remains:
    """What can be read of a file."""

    path: Path
    header: FrameHeader
    grid: ChunkGrid
    dtype: np.dtype[Any]
    store: BloscStore | None  # None: blosc2 cannot open it
    records: Mapping[str, bytes | None]
    digests: tuple[bytes, ...]  # of every chunk; none where they are lost
    record_digests: Mapping[str, bytes]
    changed: bool  # by another program or a writer that did not finish: what differs from its checksum is not damaged

    @property
    def unfinished(self) -> bool:
        """Whether the writer did not finish."""
        return integrity.STATE_RECORD in self.records


def salvage(path: Path, target: Path) -> Salvaged:
    """Write what is intact of a damaged or unfinished ``.mla`` to a new file.

    Parameters
    ----------
    path : Path
        The file; it is only read.
    target : Path
        The new file. It must not exist.

    Raises
    ------
    UsageError
        There is something at ``target``.
    FormatError
        Nothing can be saved: the header is lost, which says what the array is, or the index, and there are no checksums to
        tell the chunks by.
    """
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists.", hint="Give the name of a new file.")
    remains = _remains(path)
    pending = PendingFile(target)
    try:
        salvaged = _copied(remains, pending.path, target)
        pending.publish()
    except BaseException:
        pending.abort()
        raise
    finally:
        if remains.store is not None:
            remains.store.close()
    return salvaged


def _remains(path: Path) -> _Remains:
    header = read_header(path, consistent=False)
    changed = seal_state(path, header) is SealState.MISSING
    grid, dtype = _described(path, header)
    records = _records(path, header)
    checksums = integrity.parsed_checksums(plain_value(records.get(integrity.INTEGRITY_RECORD) or b""))
    digests = () if checksums is None else split_digests(checksums["chunks"])
    try:
        store = open_store(path, mmap_mode=None)
    except FormatError:
        store = None
        _refuse_invented(path, header, grid, dtype, len(digests))
    return _Remains(
        path=path,
        header=header,
        grid=grid,
        dtype=dtype,
        store=store,
        records=records,
        digests=digests if len(digests) == grid.chunk_count else (),
        record_digests={} if checksums is None or changed else checksums["records"],
        changed=changed,
    )


def _records(path: Path, header: FrameHeader) -> dict[str, bytes | None]:
    fd = open_to_read(path)
    try:
        return read_records(fd, header, decoded)
    except ValueError:
        return {integrity.METADATA_RECORD: None}
    finally:
        os.close(fd)


def _described(path: Path, header: FrameHeader) -> tuple[ChunkGrid, np.dtype[Any]]:
    """Return what the header says of the array."""
    try:
        described: Any = plain_value(header.metalayers["b2nd"])
        _, _, shape, chunks, blocks, _, dtype = described
        return ChunkGrid(tuple(shape), tuple(chunks), tuple(blocks)), np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise _nothing(path) from error


def _nothing(path: Path) -> FormatError:
    return FormatError(f"Nothing can be saved of {path}: its header is damaged.", hint=_NOTHING)


def _refuse_invented(path: Path, header: FrameHeader, grid: ChunkGrid, dtype: np.dtype[Any], checksums: int) -> None:
    """Raise where only a damaged description says how many chunks there are, and how large: memory would be taken for them.

    The checksums, the index and the size of all chunks together say it, too.
    """
    count = grid.chunk_count
    blocks = zip(grid.chunks, grid.blocks, strict=True)
    chunk_bytes = math.prod(-(-chunk // block) * block for chunk, block in blocks) * dtype.itemsize
    *_, index_bytes, _, _ = CHUNK_HEADER.unpack(header.end[: CHUNK_HEADER.size].ljust(CHUNK_HEADER.size))
    behind = header.frame_bytes - header.data_end
    if (
        count not in (checksums, index_bytes // 8, header.data_bytes // max(1, chunk_bytes))
        or count > max(_MOST_CHUNKS, behind * _INDEX_RATIO // 8)
        or not 0 < chunk_bytes <= _LARGEST_CHUNK
    ):
        raise _nothing(path)


def _copied(remains: _Remains, part: Path, target: Path) -> Salvaged:
    grid = remains.grid
    if remains.store is None:
        made = create_store(grid.shape, remains.dtype, Layout(grid.chunks, grid.blocks, None, ""), path=part)
    else:
        made = create_like(remains.store, part)
    integrity.mark_unfinished(made)
    missing = set(range(grid.chunk_count))
    unwritten = 0
    try:
        for index, data in _stored(remains):
            if data is None:
                unwritten += remains.unfinished
            elif _is_intact(remains, index, data):
                made.put_chunk_bytes(index, data)
            else:
                continue
            missing.discard(index)
        lost = tuple(Region(*grid.chunk_region(index)) for index in sorted(missing))
        lost_records = _copy_records(remains, made)
        made.put_record(
            integrity.SALVAGE_RECORD, {"lost": [[list(region.start), list(region.stop)] for region in lost]}
        )
        integrity.finish(made)
    finally:
        made.close()
    return Salvaged(target, grid.chunk_count, lost, unwritten, lost_records)


def _stored(remains: _Remains) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and bytes of every chunk that is found; None for one that has no bytes because it is all zeros."""
    fd = open_to_read(remains.path)
    try:
        try:
            offsets = read_offsets(fd, remains.header, decoded, remains.grid.chunk_count)
            starts, stops = chunk_ranges(remains.header, offsets)
        except (ValueError, RuntimeError):
            yield from _without_index(remains, fd)
            return
        for index, (begin, end) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            yield index, read_at(fd, end - begin, begin) if end > begin else _without_bytes(remains, index)
    finally:
        os.close(fd)


def _without_bytes(remains: _Remains, index: int) -> bytes | None:
    """Return a chunk of one value, for which the index stands, or None for zeros."""
    if remains.store is None:
        return None
    data = remains.store.chunk_bytes(index)
    return data if any(decoded(data)) else None


def _without_index(remains: _Remains, fd: int) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks that follow each other behind the header and have a checksum."""
    numbers: dict[bytes, list[int]] = {}
    for index, checksum in enumerate(remains.digests):
        numbers.setdefault(checksum, []).append(index)
    if not numbers:
        raise FormatError(
            f"Nothing can be saved of {remains.path}: its index is lost, and it has no checksums to tell the chunks by.",
            hint=_NOTHING,
        )
    place = remains.header.header_bytes
    while place < remains.header.data_end:
        head = read_at(fd, CHUNK_HEADER.size, place)
        size = CHUNK_HEADER.unpack(head)[-1] if len(head) == CHUNK_HEADER.size else 0
        if size < CHUNK_HEADER.size:
            return
        data = read_at(fd, size, place)
        for index in numbers.get(digest(data), ()):
            yield index, data
        place += size


def _is_intact(remains: _Remains, index: int, data: bytes) -> bool:
    if remains.digests and digest(data) == remains.digests[index]:
        return True
    if remains.digests and not remains.changed:
        return False
    try:
        size = len(decoded(data))
    except (RuntimeError, ValueError):
        return False
    blocks = (-(-chunk // block) * block for chunk, block in zip(remains.grid.chunks, remains.grid.blocks, strict=True))
    return size == int(np.prod([remains.dtype.itemsize, *blocks]))


def _copy_records(remains: _Remains, made: BloscStore) -> tuple[str, ...]:
    """Copy what is beside the array and return the names of what is lost."""
    lost = []
    for name in sorted({*remains.records, *remains.record_digests} - _NOT_KEPT):
        raw = remains.records.get(name)
        value = None if raw is None else plain_value(raw)
        if raw is None or value is None or digest(raw) != remains.record_digests.get(name, digest(raw)):
            lost.append(name)
        else:
            made.put_record(name, value)
    return tuple(lost)
