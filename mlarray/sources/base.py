"""What can yield voxels, and what can take them?

Everything that holds voxels speaks one protocol, :class:`Source`: a spec and ``read(region)``. The constructors of
``MLArray``, the converter and the streaming planner are three users of it. Its counterpart is the :class:`Sink`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from mlarray.region import Region
from mlarray.spec import ArraySpec

NDArray: TypeAlias = npt.NDArray[Any]


class Access(Enum):
    """What a partial read costs.

    ``REGION``: only the bytes needed are read. ``SLAB``: whole planes, cheap only in storage order (a compressed stream).
    ``WHOLE``: any read decodes everything.
    """

    REGION = "region"
    SLAB = "slab"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Note:
    """Something a user should know about how an input was understood.

    Parameters
    ----------
    code : str
        Short and stable, in kebab case: ``"geometry-assumed"``, ``"scaling-ignored"``.
    message : str
        One sentence with the values concerned.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What a file says beyond its voxels.

    Parameters
    ----------
    format : str
        Name of the format row that opened it, ``""`` for arrays in memory.
    files : tuple of Path
        Every file the voxels or the header come from, the one that was named first.
    header : mapping
        Technical header fields, plain values, kept in ``meta.source`` of the output.
    notes : tuple of Note
        What was assumed, repaired or ignored.
    is_seg : bool or None
        Whether the voxels are labels, when the file says so.
    record : mapping
        The conversion record that this package stored in the file: identity of its source, settings, version. Empty for
        files of others.
    meta : object
        The full metadata (:class:`mlarray.metadata.Meta`) of a source that has one, else None.
    item : str
        Which image of a file that holds several; ``""`` for other files.
    locations : object
        What a chunked file keeps beside its metadata about where labels lie, plain values; None where there is nothing.
    """

    format: str = ""
    files: tuple[Path, ...] = ()
    header: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    is_seg: bool | None = None
    record: Mapping[str, object] = field(default_factory=dict)
    meta: object | None = None
    item: str = ""
    locations: object | None = None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How a file is to be written, beyond what it holds.

    Parameters
    ----------
    storage : mapping
        Storage arguments of ``MLArray`` (``patch_size``, ``chunk_size``, ``cparams`` ...); formats without chunks ignore it.
    record : mapping
        The conversion record to store inside the file, plain JSON values.
    threads : int
        Threads that compression may use.
    sample : ndarray, optional
        Voxels from the centre of the array, for choices that depend on the data; see the format's ``sample_region``.
    hold_bytes : int
        Without a sample: how much of what is written first the sink may hold in memory until the centre has been seen.
    item : str
        Name of the image in a file that may hold several; ``""``: the format's usual one.
    kept : Source, optional
        A source with chunks whose stored bytes are taken as they are, by :meth:`ChunkSink.take_chunks`, in place of `write`.
    at_once : int
        Chunks that may be compressed side by side, see :class:`~mlarray.storage.packing.ChunkPacker`.
    """

    storage: Mapping[str, object] = field(default_factory=dict)
    record: Mapping[str, object] = field(default_factory=dict)
    threads: int = 1
    sample: NDArray | None = None
    hold_bytes: int = 0
    item: str = ""
    kept: Source | None = None
    at_once: int = 1


@runtime_checkable
class Source(Protocol):
    """Something that yields voxels.

    ``read`` returns exactly the voxels of a region that lies within the array, in C order and in native byte order; it reads
    nothing it can avoid, is safe from several threads, and survives fork and pickling by reopening.
    """

    @property
    def spec(self) -> ArraySpec:
        """Shape, dtype, axes and geometry of what ``read`` returns."""

    @property
    def access(self) -> Access:
        """What a partial read costs."""

    @property
    def order(self) -> tuple[int, ...]:
        """Array axes from the slowest to the fastest in storage."""

    @property
    def info(self) -> SourceInfo:
        """What the file says beyond its voxels."""

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of ``region``, written into ``out`` (shape of the region) where it is given."""

    def close(self) -> None:
        """Release files; reading afterwards reopens them."""

    def __enter__(self) -> Self:
        """Return the source itself."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the source."""


class Writer(Protocol):
    """Something that stores blocks of voxels."""

    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block`` at ``region``."""


class Sink(Writer, Protocol):
    """Something that takes voxels. Nothing is visible under the final name before ``publish``.

    A sink is finished in two steps, so that a file can be checked before anybody sees it: ``finish`` completes it under its
    temporary name ``path``, ``publish`` renames it.
    """

    @property
    def spec(self) -> ArraySpec:
        """What will be stored."""

    @property
    def access(self) -> Access:
        """``REGION`` when regions may arrive in any order, ``SLAB`` when they must follow storage order."""

    @property
    def order(self) -> tuple[int, ...]:
        """Array axes from the slowest to the fastest in storage."""

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Chunk extent per array axis, or None for a target without chunks."""

    @property
    def path(self) -> Path:
        """Where the file is before it is published: a temporary name in the folder of the final one."""

    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block`` at ``region``. Regions arrive in the order that the tile plan gives."""

    def finish(self) -> None:
        """Complete and close the file under its temporary name, where it can be opened as a source. Safe to call twice."""

    def publish(self) -> None:
        """Finish the file unless that is done, flush it to disk and rename it to its final name."""

    def abort(self) -> None:
        """Remove everything written so far. Safe to call twice, and after ``publish`` a no-op."""


class ChunkSink(Sink, Protocol):
    """A sink that can take over stored chunks, where its options name the source of them."""

    def take_chunks(self, *, checked: bool = True, progress: Callable[[int], None] | None = None) -> None:
        """Copy every chunk as it is stored.

        Parameters
        ----------
        checked : bool
            Whether each chunk is compared with its checksum, or decoded where it has none, before it is copied.
        progress : callable, optional
            Called with the number of array bytes after each chunk.

        Raises
        ------
        FormatError
            When a chunk of the source is damaged.
        """


class SourceBase:
    """What sources share: context management and the check of a region and its output buffer."""

    spec: ArraySpec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release files; by default there are none."""

    def _target(self, region: Region, out: NDArray | None) -> NDArray:
        """Return the buffer to fill, after checking that ``region`` and ``out`` fit the array."""
        if not region.is_within(self.spec.shape):
            raise IndexError(f"Region {region.start}..{region.stop} is not within an array of shape {self.spec.shape}.")
        dtype = self.spec.dtype.newbyteorder("=")
        if out is None:
            return np.empty(region.shape, dtype)
        if out.shape != region.shape or out.dtype != dtype:
            raise ValueError(
                f"The output buffer has shape {out.shape} and dtype {out.dtype}; the region needs {region.shape} and {dtype}."
            )
        return out
