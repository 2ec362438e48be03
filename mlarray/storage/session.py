"""Who is writing this file, what has been written, and when is it finished?

A file that is created or changed in place carries the mark of its writer until the writer closes it. A program that forgets
to close (and many do: the handle just goes out of scope) still gets a finished file, provided that every chunk was written;
a half-written file stays marked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping

from mlarray.errors import MetadataError, MetadataWarning, UsageError
from mlarray.layout import ChunkGrid
from mlarray.region import Region
from mlarray.storage import integrity
from mlarray.storage.blosc import BloscStore


class WriteSession:
    """The writing of one file, in place under its own name.

    Parameters
    ----------
    store : BloscStore
        Opened for writing, backed by a file.
    created : bool
        Whether the file is new, so that all of it has to be written.
    before : mapping, optional
        The records as the program read them; those that are still the same at the end are not written again.
    """

    def __init__(self, store: BloscStore, *, created: bool, before: Mapping[str, object] | None = None) -> None:
        self.store = store
        self._created = created
        self._before = before or {}
        self._checksums_hold = not created and integrity.is_current(store)
        self._grid: ChunkGrid = store.grid
        self._written: set[int] = set()
        self._marked = created
        self._pid = os.getpid()
        self._open = True
        if created:
            integrity.mark_unfinished(store)
            store.gather_writes()

    @property
    def changed(self) -> bool:
        """Whether any voxel was written."""
        return bool(self._written)

    def write(self, region: Region, write: Callable[[], None]) -> None:
        """Do ``write`` and note which chunks it changes; the mark is set before the first change."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"{self.store.path} is being written by process {self._pid}, this is process {os.getpid()}.",
                hint="Open the file again in this process.",
            )
        if not self._marked:
            integrity.mark_unfinished(self.store)
            self._marked = True
        self._written.update(self._grid.chunks_touched(region.start, region.stop))
        write()

    def finish(self, records: dict[str, object]) -> None:
        """Store ``records``, the checksums, and take the mark away. A second call does nothing."""
        if not self._open:
            return
        self.store.flush()
        changed = {name: value for name, value in records.items() if self._before.get(name) != value}
        for name, value in changed.items():
            self.store.put_record(name, value)
        if self._created or self._written or changed:
            integrity.finish(self.store, sorted(self._written) if self._checksums_hold else None)
        self._open = False

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
        """Forget the file without finishing it: another one has taken its name."""
        self._open = False
