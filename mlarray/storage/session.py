"""Who is writing this file, what has been written, and when is it finished?

A file that is created carries the mark of its writer, from its first moment under its name until the writer closes it. A program
that forgets to close (and many do: the handle just goes out of scope) still gets a finished file, provided that every chunk
was written; a half-written file stays marked.

A file that is changed is copied before the first change, and the copy takes its name when the writer closes it. blosc2 moves
everything behind a chunk that grows, so that a writer that dies would leave a ruin, and a reader that has the file mapped would
find other bytes than it was told of; and moving costs as much as the copy does.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from mlarray.errors import FormatError, MetadataError, MetadataWarning, UsageError
from mlarray.layout import ChunkGrid
from mlarray.region import Region
from mlarray.storage import integrity
from mlarray.storage.blosc import BloscStore
from mlarray.storage.leftovers import remove_old_leftovers
from mlarray.storage.opened import OpenedFile
from mlarray.storage.publish import PendingFile, copy_file, flush_to_disk
from mlarray.storage.write_lock import WriteLock


class WriteSession:
    """The writing of one file.

    Parameters
    ----------
    store : BloscStore
        Backed by a file. One that is created is written from the start, another is opened for reading and goes on in a copy when
        something is changed.
    lock : WriteLock
        On the file.
    created : PendingFile, optional
        Where the store of a new file is; it gets its name as soon as the mark is on disk. All of it has to be written.
    before : mapping, optional
        The records as the program read them; those that are still the same at the end are not written again.
    """

    def __init__(
        self,
        store: BloscStore,
        *,
        lock: WriteLock,
        created: PendingFile | None = None,
        before: Mapping[str, object] | None = None,
    ) -> None:
        self.store = store
        self.lock = lock
        self._created = created is not None
        self._before = before or {}
        self._checksums_hold = created is None and integrity.is_current(store)
        self._grid: ChunkGrid = store.grid
        self._written: set[int] = set()
        self._path = Path(store.path or "") if created is None else created.final
        self._opened = None if created is not None else OpenedFile.of(self._path)
        self._copy: PendingFile | None = None
        self._pid = os.getpid()
        self._open = True
        if created is not None:
            integrity.mark_unfinished(store)
            created.publish()
            store.continue_in(self._path)
            store.gather_writes()

    @property
    def changed(self) -> bool:
        """Whether any voxel was written."""
        return bool(self._written)

    def write(self, region: Region, write: Callable[[], None]) -> None:
        """Do ``write`` and note which chunks it changes; an existing file is copied before the first change.

        Raises
        ------
        OSError
            The disk is full, or what else the system says. A new file stays unfinished, an existing one as it was.
        """
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self.store.path} is being written by process {self._pid}, this is process {os.getpid()}.",
                hint="Open the file again in this process.",
            )
        with self.store.lock:
            if not self._open:
                raise UsageError(f"{self._path} could not be written before.", hint="Close it, and begin again.")
            try:
                self._go_on_in_copy()
                self._written.update(self._grid.chunks_touched(region.start, region.stop))
                write()
            except (OSError, FormatError):
                self.drop()
                raise

    def finish(self, records: dict[str, object]) -> None:
        """Store ``records`` and the checksums, then take the mark away or give the copy its name; once."""
        with self.store.lock:
            self._finish(records)

    def _finish(self, records: dict[str, object]) -> None:
        if not self._open:
            return
        self._open = False
        changed = {name: value for name, value in records.items() if self._before.get(name) != value}
        if not (self._created or self._written or changed):
            return
        try:
            self.store.flush()
            self._go_on_in_copy()
            for name, value in changed.items():
                self.store.put_record(name, value)
            integrity.finish(self.store, sorted(self._written) if self._checksums_hold else None)
            self.store.close()
            if self._copy is not None:
                self._copy.publish(by=self.lock)
            else:
                flush_to_disk(self._path)
        except BaseException:
            self.drop()
            raise

    def abandon(self, records: Callable[[], dict[str, object]]) -> None:
        """Finish on behalf of a program that did not close: only in the process that wrote, only if nothing is missing.

        Metadata that is not valid is left out with a warning; a new file, which has none yet, then stays unfinished.
        """
        if not self._open or os.getpid() != self._pid:
            return
        if self._created and len(self._written) < self.store.chunk_count:
            return
        try:
            self.finish(records())
        except MetadataError as error:
            fate = "the file stays unfinished" if self._created else "its old metadata is kept"
            message = f"{self.store.path} was not closed and its metadata is not valid, {fate}: {error}"
            warnings.warn(message, MetadataWarning, stacklevel=2)
            if not self._created:
                self.finish({})

    def fail(self) -> bool:
        """Note that the program failed while it was writing; return whether the file stays marked as unfinished.

        A file that is being created does. A change in place leaves whole chunks, and is finished as usual.
        """
        if self._created:
            self._open = False
        return self._created

    def drop(self) -> None:
        """Forget the file without finishing it: another one has taken its name, or it cannot be written."""
        self._open = False
        if self._copy is not None:
            self._copy.abort()

    def _go_on_in_copy(self) -> None:
        """Copy an existing file and go on there, once."""
        if self._opened is None:
            return
        self._opened.refuse_other()
        final = self._path.resolve()
        remove_old_leftovers(final.parent)
        self._copy = PendingFile(final)
        copy_file(self._path, self._copy.path)
        self.store.continue_in(self._copy.path)
        self._opened = None
