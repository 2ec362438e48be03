"""What stands beside the voxels: named records, each a plain value."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlarray.errors import FormatError
from mlarray.storage.forks import in_turn
from mlarray.storage.frame import packed_value, plain_value
from mlarray.storage.guards import RecordGuard

LONG_RECORD_BYTES = 65536


class StoredRecords:
    """The records of a store, blosc2's variable-length metalayers.

    Attributes
    ----------
    record_guard : RecordGuard or None
        Of a file: which of its records must not be decoded.
    """

    path: Path | None
    lock: Any
    record_guard: RecordGuard | None

    if TYPE_CHECKING:  # what the store offers
        _schunk: Any

        def _writing(self) -> AbstractContextManager[None]: ...
        def _stored(self, what: Callable[[], str], get: Callable[[], Any]) -> Any: ...
        def _damaged(self, what: str, error: Exception) -> FormatError: ...
        def ready(self) -> None:
            """See :class:`~mlarray.storage.forks.Handle`."""

        def in_child(self, *, at_rest: bool) -> None:
            """See :class:`~mlarray.storage.forks.Handle`."""

    @in_turn
    def record_names(self) -> tuple[str, ...]:
        """Names of the records beside the array; a FormatError where one is no text."""
        try:
            return tuple(self._schunk.vlmeta)
        except UnicodeDecodeError as error:
            raise self._damaged("the name of a record", error) from error

    @in_turn
    def record_bytes(self, name: str) -> bytes | None:
        """Return a record as stored (a msgpack value), or None where there is none.

        Raises
        ------
        FormatError
            When it cannot be decompressed.
        """
        if name not in self.record_names():  # `in vlmeta` would decode the record
            return None
        return bytes(self._stored(lambda: f"record {name!r}", lambda: self._guarded_record(name)))

    def _guarded_record(self, name: str) -> bytes:
        if self.record_guard is not None:
            self.record_guard.refuse(name)
        record: bytes = self._schunk.vlmeta.get_vlmeta(name)
        return record

    def record(self, name: str) -> Any:
        """Return a decoded record, or None where there is none.

        Raises
        ------
        FormatError
            When the record is no plain value.
        """
        raw = self.record_bytes(name)
        if raw is None:
            return None
        value = plain_value(raw)
        if value is None:
            raise FormatError(f"Record {name!r} of {self.path or 'the array'} cannot be decoded.")
        return value

    @in_turn
    def put_record(self, name: str, value: object) -> None:
        """Store a plain value under a name."""
        packed = packed_value(value)
        # Long ones are tables of numbers: as bytes they take 4 times as long to read (11 ms for 2.4 MB) and 15 to write.
        typesize = 1 if len(packed) < LONG_RECORD_BYTES else 8
        with self._writing():
            self._schunk.vlmeta.set_vlmeta(name, packed, typesize=typesize)
        if self.record_guard is not None:
            self.record_guard.written(name)

    @in_turn
    def drop_record(self, name: str) -> None:
        """Remove a record; a no-op where there is none."""
        if name in self.record_names():
            with self._writing():
                del self._schunk.vlmeta[name]
