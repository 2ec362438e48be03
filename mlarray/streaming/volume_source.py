"""How does a stored array become the first volume of a chain? Channels first, one time point, spatial axes in order.

Where the axes are named, their roles decide; an array of four or more unnamed axes has its channels first, and one of fewer has
none (one is added). A source that cannot read regions is decoded once and kept, with a warning that names the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mlarray.errors import UsageError
from mlarray.locks import ForkSafeLock
from mlarray.notice import notice
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Source, SourceInfo
from mlarray.transforms.volume import Attributes, Volume

_warned: set[str] = set()
_NOTHING = Attributes()


@runtime_checkable
class Stored(Protocol):
    """What a plan reads: channels first, by spatial regions."""

    volume: Volume
    reads: int
    bytes_read: int

    @property
    def name(self) -> str:
        """What to call it in messages."""

    @property
    def info(self) -> SourceInfo:
        """What the file says beyond its voxels."""

    @property
    def in_parts(self) -> bool:
        """Whether a region is read without decoding the whole file."""

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept in memory."""

    @property
    def spatial_blocks(self) -> tuple[tuple[int, ...], ...] | None:
        """Extents, chunks and blocks of the stored array along the spatial axes; None where it has no blocks."""

    def bytes_of_read(self, region: Region) -> int:
        """Return how many bytes a read of a region holds at once."""

    def read(self, region: Region) -> NDArray:
        """Return the voxels of a spatial region in an array of their own."""

    def prefetch(self, regions: Iterable[Region]) -> None:
        """Announce regions."""

    def release(self) -> None:
        """Let go of what is kept in memory."""

    def close(self) -> None:
        """Close the file; a later read opens it again."""


class VolumeSource:
    """A source read as ``[C, spatial...]``.

    Parameters
    ----------
    source : Source
        Any.
    case : str
        Name for messages.
    attributes : Attributes
        What is known about the case beforehand.

    Raises
    ------
    UsageError
        The array has no spatial axis, or more than one axis that could be the channels.
    """

    def __init__(self, source: Source, *, case: str = "", attributes: Attributes = _NOTHING) -> None:
        self.source = source
        spec = source.spec
        named = any(axis.type != "space" for axis in spec.axes)
        space = [i for i, flag in enumerate(spec.spatial) if flag]
        others = [i for i, flag in enumerate(spec.spatial) if not flag]
        if not named and len(space) > 3:
            others, space = space[: len(space) - 3], space[len(space) - 3 :]
        fixed = [i for i in others if spec.axes[i].type == "time" or (named and spec.shape[i] == 1 and len(others) > 1)]
        channels = [i for i in others if i not in fixed]
        if not space or len(channels) > 1:
            raise UsageError(
                f"An array of shape {spec.shape} with axes {[axis.name for axis in spec.axes]} has no single channel axis.",
                hint="Name the axes: one channel axis, and z, y, x.",
            )
        self._space, self._fixed = tuple(space), tuple(fixed)
        self._channel = channels[0] if channels else None
        geometry = spec.geometry if len(space) == sum(spec.spatial) else None
        self.volume = Volume(
            channels=1 if self._channel is None else spec.shape[self._channel],
            shape=tuple(spec.shape[i] for i in space),
            dtype=spec.dtype.newbyteorder("="),
            geometry=geometry,
            is_label=bool(source.info.is_seg),
            attributes=attributes,
            case=case,
        )
        self.reads = 0
        self.bytes_read = 0
        self._decoded: NDArray | None = None
        self._lock = ForkSafeLock()

    @property
    def name(self) -> str:
        """What to call it in messages."""
        files = self.source.info.files
        return self.volume.case or (str(files[0]) if files else "the array")

    @property
    def info(self) -> SourceInfo:
        """What the file says beyond its voxels."""
        return self.source.info

    @property
    def held_bytes(self) -> int:
        """Bytes of the decoded file that is kept in memory."""
        return 0 if self._decoded is None else self._decoded.nbytes

    @property
    def in_parts(self) -> bool:
        """Whether a region is read without decoding the whole file."""
        return self.source.access is Access.REGION

    @property
    def spatial_blocks(self) -> tuple[tuple[int, ...], ...] | None:
        """Extents, chunks and blocks of the stored array along the spatial axes; None where it has no blocks."""
        chunks = getattr(self.source, "chunks", None)
        if chunks is None:
            return None
        blocks = getattr(self.source, "blocks", None) or chunks
        return tuple(tuple(one[axis] for axis in self._space) for one in (self.source.spec.shape, chunks, blocks))

    @property
    def arrangement(self) -> dict[str, object]:
        """Which axes of the source are the channels and space, in order, and which are fixed at 0; plain values."""
        return {"channel": self._channel, "space": list(self._space), "fixed": list(self._fixed)}

    def read(self, region: Region) -> NDArray:
        """Return the voxels of a spatial region, channels first, in an array of their own."""
        inside = self._stored(region)
        self.reads += 1
        if self.source.access is not Access.REGION:
            return np.array(self._channels_first(self._whole()[inside.slices]), order="C", copy=True)
        values = self.source.read(inside, np.empty(inside.shape, self.volume.dtype))
        self.bytes_read += values.nbytes
        return np.ascontiguousarray(self._channels_first(values))

    def bytes_of_read(self, region: Region) -> int:
        """Return the bytes that a read of a spatial region holds: a second copy where axes have to be moved in memory."""
        return self.volume.bytes_of(region) * (1 if self._order == tuple(sorted(self._order)) else 2)

    def prefetch(self, regions: Iterable[Region]) -> None:
        """Announce regions to the source, where it takes that."""
        prefetch = getattr(self.source, "prefetch", None)
        if prefetch is not None:
            prefetch([self._stored(region) for region in regions])

    def release(self) -> None:
        """Let go of a decoded file that is kept in memory."""
        with self._lock:
            self._decoded = None

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self.source.close()

    @property
    def _order(self) -> tuple[int, ...]:
        return (*self._fixed, *(() if self._channel is None else (self._channel,)), *self._space)

    def _channels_first(self, values: NDArray) -> NDArray:
        moved: NDArray = values.transpose(self._order)[(0,) * len(self._fixed)]
        return moved if self._channel is not None else moved[np.newaxis]

    def _stored(self, region: Region) -> Region:
        shape = self.source.spec.shape
        start, stop = [0] * len(shape), list(shape)
        for axis in self._fixed:
            stop[axis] = 1
        for axis, low, high in zip(self._space, region.start, region.stop, strict=True):
            start[axis], stop[axis] = low, high
        return Region(tuple(start), tuple(stop))

    def _whole(self) -> NDArray:
        with self._lock:
            if self._decoded is None:
                kind = self.source.info.format or "this format"
                if kind not in _warned:
                    _warned.add(kind)
                    notice(
                        f"{self.name}: this {kind} file cannot be read in parts, as compressed files cannot. It is decoded once "
                        f"and kept in memory ({self.source.spec.nbytes / 1e6:.3g} MB), and so is each case like it; "
                        "`mla convert` makes files of which patches are read.",
                    )
                self._decoded = self.source.read(self.source.spec.region)
                self.bytes_read += self._decoded.nbytes
            return self._decoded

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoded": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ForkSafeLock()


class ResidentVolume:
    """A volume in memory, read as ``[C, spatial...]``.

    Parameters
    ----------
    array : ndarray, shape (C, spatial...)
        Not copied, and not to be changed.
    volume : Volume
        What it is.
    """

    in_parts = True
    info = SourceInfo()
    spatial_blocks: tuple[tuple[int, ...], ...] | None = None

    def __init__(self, array: NDArray, volume: Volume) -> None:
        self.array = array
        self.volume = volume
        self.reads = 0
        self.bytes_read = 0

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.volume.case or "the array"

    @property
    def held_bytes(self) -> int:
        """Bytes of the array."""
        return self.array.nbytes

    def bytes_of_read(self, region: Region) -> int:
        """Return how many bytes a read of a region holds."""
        return self.volume.bytes_of(region)

    def read(self, region: Region) -> NDArray:
        """Return the voxels of a spatial region in an array of their own."""
        self.reads += 1
        return np.array(self.array[(slice(None), *region.slices)], order="C")

    def prefetch(self, regions: Iterable[Region]) -> None:
        """Nothing has to be announced."""

    def release(self) -> None:
        """Nothing is held beside the array."""

    def close(self) -> None:
        """Nothing is open."""
