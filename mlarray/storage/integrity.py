"""Are the stored bytes the ones that were written, and did the writer finish?

blosc2 does not check what it decompresses. A store of ours therefore carries a checksum (XXH3-64) of every stored chunk and
of every record beside the array, in a record of its own, and a file ends with a seal over all that is not a chunk
(``seal.py``). While a store is being written it says so in another record; a store whose writer died keeps saying it.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import xxhash

from mlarray.errors import FormatError, IntegrityError, UsageError
from mlarray.region import Region
from mlarray.storage.blosc import BloscStore, MapMode, decoded, open_store
from mlarray.storage.chunk_proof import DIGEST_BYTES, ChunkProof, FirstTouch, damaged_chunk, digest
from mlarray.storage.frame import RESTORE, read_header, replaced, unfinished
from mlarray.storage.options import Params
from mlarray.storage.publish import flush_to_disk
from mlarray.storage.seal import SealState, seal_state, write_seal

STATE_RECORD = "mla_state"
INTEGRITY_RECORD = "mla_integrity"
METADATA_RECORD = "mlarray"
STATISTICS_RECORD = "mla_statistics"  # of the voxels, see streaming/recorded.py
SALVAGE_RECORD = "mla_salvage"  # which voxels were lost, see salvage.py
RECORDS_OF_VOXELS = (STATISTICS_RECORD, SALVAGE_RECORD)  # they hold for each copy of the chunks
ALGORITHM = "xxh3_64"
_BROKEN_SEAL = "The header, the index or the records do not match the seal at its end."
_PROCESS_TOKEN = secrets.token_hex(8)  # process ids are used again, above all in containers


class IntegrityState(Enum):
    """What checking a store against its checksums showed."""

    INTACT = "intact"
    UNCHECKED = "no checksums"
    CHANGED = "changed by another program"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """Result of :func:`check`.

    Parameters
    ----------
    state : IntegrityState
        ``UNCHECKED`` and ``CHANGED`` stores were verified by decoding every chunk.
    problems : tuple of str
        What does not match, one sentence each.
    bad_chunks : tuple of int
        Chunks whose bytes do not match or cannot be decoded.
    decoded : bool
        Whether the answer comes from decoding the chunks, as their checksums are none or of other chunks.
    """

    state: IntegrityState
    problems: tuple[str, ...] = ()
    bad_chunks: tuple[int, ...] = ()
    decoded: bool = False


def mark_unfinished(store: BloscStore) -> None:
    """Write into the store, in its header and in a record, that this process is writing it."""
    store.mark(unfinished=True)
    writer = {"state": "writing", "host": socket.gethostname(), "pid": os.getpid(), "token": _PROCESS_TOKEN}
    store.put_record(STATE_RECORD, writer)


def refuse_unfinished(store: BloscStore) -> None:
    """Raise when the store says that its writer did not finish, unless that writer is this process.

    Raises
    ------
    UnfinishedError
        Naming the writer.
    """
    try:
        state = store.record(STATE_RECORD)
    except FormatError:  # the name of the writer is lost
        state = {}
    if state is None and not store.is_marked:
        return
    writer = state if isinstance(state, Mapping) else {}
    if (writer.get("token"), writer.get("pid")) == (_PROCESS_TOKEN, os.getpid()):  # a forked child inherits the token
        return
    who = f" (process {writer.get('pid')!r} on {writer.get('host')!r})" if writer else ""
    raise unfinished(store.path, who)


def open_verified(path: Path, verify: str | None, *, mmap_mode: MapMode, dparams: Params) -> BloscStore:
    """Open a finished file, compared with its checksums as far as that is asked for: ``"full"``, ``"lazy"`` or None."""
    if verify not in ("full", "lazy", None):
        raise UsageError(f"verify must be 'full', 'lazy' or None, got {verify!r}.")
    sealed = verify is not None and has_seal(path)
    store = open_store(path, mmap_mode=mmap_mode, dparams=dparams)
    refuse_unfinished(store)
    if verify == "full":
        refuse_damaged(store)
    elif verify == "lazy" and sealed:
        prove_on_first_touch(store)
    return store


def finish(store: BloscStore, changed_chunks: Iterable[int] | None = None) -> None:
    """Write the checksums, take the mark of :func:`mark_unfinished` away, and seal the file, if it is one.

    Parameters
    ----------
    store : BloscStore
        Writable.
    changed_chunks : iterable of int, optional
        Chunks written since the checksums were made; default: all.
    """
    try:
        before = stored_checksums(store)
    except FormatError:  # damaged checksums are replaced
        before = None
    digests = bytearray(before["chunks"]) if before is not None else bytearray()
    complete = len(digests) == store.chunk_count * DIGEST_BYTES
    if changed_chunks is None or not complete:
        digests = bytearray(store.chunk_count * DIGEST_BYTES)
        changed_chunks = range(store.chunk_count)
    for index in changed_chunks:
        digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES] = digest(store.chunk_bytes(index))
    _drop_stale_statistics(store, _checksum(bytes(digests)))
    store.put_record(
        INTEGRITY_RECORD,
        {
            "algorithm": ALGORITHM,
            "chunks": bytes(digests),
            "records": _record_digests(store),
            "stored_bytes": store.stored_bytes,
        },
    )
    store.drop_record(STATE_RECORD)
    if store.path is not None:
        write_seal(store.path)
    if store.is_marked:
        # The mark goes when everything else is on disk: after a loss of power no part of the file may be older than it.
        if store.path is not None:
            flush_to_disk(store.path)
        store.mark(unfinished=False)


def is_current(store: BloscStore) -> bool:
    """Tell whether nobody who keeps no checksums has written to the store since they were made, as far as can be seen."""
    try:
        integrity = stored_checksums(store)
        if store.path is not None and seal_state(store.path) is not SealState.HOLDS:
            return False
    except (FormatError, FileNotFoundError):
        return False
    return integrity is not None and _record_digests(store) == integrity["records"] and _same_size(store, integrity)


def stored_chunks(store: BloscStore, *, checked: bool = True) -> Iterator[bytes]:
    """Yield the stored bytes of every chunk.

    Parameters
    ----------
    store : BloscStore
        To be read.
    checked : bool
        Whether each chunk is compared with its checksum; where there is none that holds, it is decoded instead.

    Raises
    ------
    FormatError
        At the first chunk that is damaged.
    """
    integrity = stored_checksums(store) if checked and is_current(store) else None
    digests = integrity["chunks"] if integrity is not None and integrity["algorithm"] == ALGORITHM else b""
    has_digests = len(digests) == store.chunk_count * DIGEST_BYTES
    for index in range(store.chunk_count):
        data = store.chunk_bytes(index)
        if not checked:
            pass
        elif not has_digests:
            store.read(Region(*store.grid.chunk_region(index)))
        elif digest(data) != digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]:
            error = damaged_chunk(store.path, index)
            raise FormatError(error.message, hint=error.hint)  # of what is read; nothing that was written differs
        yield data


def content_checksum(store: BloscStore) -> str | None:
    """Return one checksum over all stored chunks, or None where the store has no checksums."""
    integrity = stored_checksums(store)
    return None if integrity is None else _checksum(integrity["chunks"])


def proven_checksum(store: BloscStore) -> str | None:
    """Return :func:`content_checksum` after comparing every stored chunk with its own, without decoding any.

    Returns
    -------
    str or None
        None where there are no checksums, or something does not match: the voxels may be others then.
    """
    try:
        integrity = stored_checksums(store) if is_current(store) else None
        if integrity is None or len(integrity["chunks"]) != store.chunk_count * DIGEST_BYTES:
            return None
        for _ in stored_chunks(store):
            pass
    except FormatError:
        return None
    return content_checksum(store)


def check(store: BloscStore) -> IntegrityReport:
    """Compare the stored bytes with the checksums; without checksums, decode every chunk.

    Returns
    -------
    IntegrityReport
        Never raises for damage: damage is the answer.
    """
    seal = SealState.MISSING if store.path is None else seal_state(store.path)
    try:
        integrity = stored_checksums(store)
    except FormatError as error:
        return IntegrityReport(IntegrityState.DAMAGED, (error.message,), _undecodable(store))
    if seal is SealState.HOLDS and integrity is not None and integrity["algorithm"] == ALGORITHM:
        return _sealed(store, integrity["chunks"])
    if seal is SealState.BROKEN:
        bad = _undecodable(store) if integrity is None else _different(store, integrity["chunks"])
        return IntegrityReport(IntegrityState.DAMAGED, (_BROKEN_SEAL, *_problems_of_chunks(store, bad)), bad)
    if integrity is None or integrity["algorithm"] != ALGORITHM:
        return _by_decoding(store, IntegrityState.UNCHECKED)
    return _without_seal(store, integrity)


def check_file(path: Path) -> IntegrityReport:
    """Check a file as :func:`check` does, and hand nothing to blosc2 that its seal does not vouch for.

    Raises
    ------
    UnfinishedError
        Its writer did not finish it.
    FormatError, MissingFileError, OSError
        It cannot be opened; damage that is found before is the answer.
    """
    if seal_state(path) is SealState.BROKEN:
        return IntegrityReport(IntegrityState.DAMAGED, (_BROKEN_SEAL,))
    store = open_store(path, mmap_mode=None)
    try:
        refuse_unfinished(store)
        return check(store)
    finally:
        store.close()


def refuse_damaged(store: BloscStore) -> None:
    """Raise when a store does not pass :func:`check`.

    Raises
    ------
    IntegrityError
        Naming what is damaged.
    """
    report = check(store)
    if report.state is IntegrityState.DAMAGED:
        raise IntegrityError(f"{store.path or 'The array'} is damaged: {' '.join(report.problems)}", hint=RESTORE)


def prove_on_first_touch(store: BloscStore) -> None:
    """Let a store whose seal holds prove each chunk when it is read for the first time."""
    integrity = stored_checksums(store)
    if integrity is not None and integrity["algorithm"] == ALGORITHM:
        store.first_touch = FirstTouch(
            _proof(store, integrity["chunks"], mapped=store.mmap_mode is not None), store.grid
        )


def has_seal(path: Path) -> bool:
    """Tell whether a file has a seal, before blosc2 sees the file.

    Raises
    ------
    IntegrityError
        Header, index or records are not what was written.
    """
    state = seal_state(path)
    if state is SealState.BROKEN:
        raise IntegrityError(f"{path} is damaged: {_BROKEN_SEAL}", hint=RESTORE)
    return state is SealState.HOLDS


def _proof(store: BloscStore, digests: bytes, *, mapped: bool = False) -> ChunkProof:
    assert store.path is not None
    header = read_header(store.path)
    if store.opened_version not in (None, header.version):
        raise replaced(store.path)
    return ChunkProof(store.path, header, digests, decoded, mapped=mapped)


def _sealed(store: BloscStore, digests: bytes) -> IntegrityReport:
    if len(digests) != store.chunk_count * DIGEST_BYTES:
        return IntegrityReport(IntegrityState.DAMAGED, (_wrong_count(store, digests),), _undecodable(store))
    try:
        proof = _proof(store, digests)
    except IntegrityError as error:
        return IntegrityReport(IntegrityState.DAMAGED, (error.message,), _undecodable(store))
    try:
        bad = tuple(index for index in range(store.chunk_count) if not proof.holds(index))
    finally:
        proof.close()
    state = IntegrityState.DAMAGED if bad else IntegrityState.INTACT
    return IntegrityReport(state, _problems_of_chunks(store, bad), bad)


def _without_seal(store: BloscStore, integrity: Mapping[str, Any]) -> IntegrityReport:
    """Tell damage from what a program wrote that knows nothing of our records."""
    found, expected = _record_digests(store), integrity["records"]
    different = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if different == [METADATA_RECORD]:
        # Only programs that know nothing of our records rewrite the metadata and leave them alone.
        return _by_decoding(store, IntegrityState.CHANGED)
    problems = [f"Record {name!r} does not match its checksum." for name in different]
    digests = integrity["chunks"]
    if len(digests) != store.chunk_count * DIGEST_BYTES:
        problems.append(_wrong_count(store, digests))
        return IntegrityReport(IntegrityState.DAMAGED, tuple(problems), _undecodable(store))
    bad = _different(store, digests)
    if bad and not problems and not _same_size(store, integrity) and not set(bad) & set(_undecodable(store)):
        # Damage does not change the sum of sizes that the frame keeps; a program that writes chunks does.
        return IntegrityReport(IntegrityState.CHANGED, decoded=True)
    problems += _problems_of_chunks(store, bad)
    if not problems and store.path is not None:
        problems.append("Its end is missing: all else matches its checksums, but the seal behind it is not there.")
    return IntegrityReport(IntegrityState.DAMAGED if problems else IntegrityState.INTACT, tuple(problems), bad)


def _different(store: BloscStore, digests: bytes) -> tuple[int, ...]:
    return tuple(
        index
        for index in range(store.chunk_count)
        if _digest_of_chunk(store, index) != digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
    )


def _problems_of_chunks(store: BloscStore, bad: tuple[int, ...]) -> tuple[str, ...]:
    return (f"{len(bad)} of {store.chunk_count} chunks do not match their checksums.",) if bad else ()


def _wrong_count(store: BloscStore, digests: bytes) -> str:
    return f"There are checksums of {len(digests) // DIGEST_BYTES} chunks for {store.chunk_count} chunks."


def _by_decoding(store: BloscStore, state: IntegrityState) -> IntegrityReport:
    bad = _undecodable(store)
    if not bad:
        return IntegrityReport(state, decoded=True)
    problem = f"{len(bad)} of {store.chunk_count} chunks cannot be decoded."
    return IntegrityReport(IntegrityState.DAMAGED, (problem,), bad, decoded=True)


def _undecodable(store: BloscStore) -> tuple[int, ...]:
    bad = []
    for index in range(store.chunk_count):
        start, stop = store.grid.chunk_region(index)
        try:
            store.read(Region(start, stop))
        except (RuntimeError, ValueError):
            bad.append(index)
    return tuple(bad)


def _digest_of_chunk(store: BloscStore, index: int) -> bytes | None:
    try:
        return digest(store.chunk_bytes(index))
    except (RuntimeError, ValueError):
        return None


def _drop_stale_statistics(store: BloscStore, checksum: str) -> None:
    """Remove statistics that were measured when the chunks were others."""
    if STATISTICS_RECORD not in store.record_names():
        return
    try:
        record = store.record(STATISTICS_RECORD)
    except FormatError:
        record = None
    if not isinstance(record, Mapping) or record.get("chunks") != checksum:
        store.drop_record(STATISTICS_RECORD)


def _checksum(digests: bytes) -> str:
    return f"xxh3:{xxhash.xxh3_128_hexdigest(digests)}"


def _same_size(store: BloscStore, integrity: Mapping[str, Any]) -> bool:
    return bool(integrity.get("stored_bytes", store.stored_bytes) == store.stored_bytes)


def _record_digests(store: BloscStore) -> dict[str, bytes]:
    names = sorted(set(store.record_names()) - {INTEGRITY_RECORD, STATE_RECORD})
    return {name: _digest_of_record(store, name) for name in names}


def _digest_of_record(store: BloscStore, name: str) -> bytes:
    try:
        return digest(store.record_bytes(name) or b"")
    except (RuntimeError, ValueError):  # it is compressed, and what was damaged may not decompress
        return b""


def stored_checksums(store: BloscStore) -> dict[str, Any] | None:
    """Return the checksums of a store: ``chunks`` (8 bytes each) and ``records`` by name; None where there are none.

    Raises
    ------
    FormatError
        They cannot be read.
    """
    record = store.record(INTEGRITY_RECORD)
    if record is None:
        return None
    checksums = parsed_checksums(record)
    if checksums is None:
        raise FormatError(f"The checksums of {store.path or 'the array'} cannot be read.")
    return checksums


def parsed_checksums(record: object) -> dict[str, Any] | None:
    """Return a record of checksums, or None where it is something else."""
    kinds = {"algorithm": str, "chunks": bytes, "records": dict}
    if isinstance(record, dict) and all(isinstance(record.get(key), kind) for key, kind in kinds.items()):
        return record
    return None
