"""How is the result of a plan written to a file? As any other source: tile by tile, through the one copy loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from mlarray.axes import Axis, default_axes
from mlarray.errors import UsageError
from mlarray.formats.registry import format_of_name, module_of
from mlarray.formats.table import Format
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SinkOptions, SourceBase, SourceInfo
from mlarray.sources.copy import copy
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec
from mlarray.storage.publish import no_space
from mlarray.streaming.plan import Plan

TILE_BYTES = 32 << 20
"""Most bytes of a tile that is computed and written at once, where the chunks of the file allow it."""


class PlanSource(SourceBase):
    """The result of a plan as a source.

    Parameters
    ----------
    plan : Plan
        Its result has a channel axis in front where it has several channels, and none where it has one.
    """

    access = Access.REGION

    def __init__(self, plan: Plan) -> None:
        result = plan.result
        self._plan = plan
        self._channels = result.channels > 1
        space = default_axes(result.ndim)
        axes = (Axis("c", "channel"), *space) if self._channels else space
        shape = result.array_shape if self._channels else result.shape
        self.spec = ArraySpec(shape, result.dtype, axes, result.geometry)
        self.order = tuple(range(self.spec.ndim))
        self.info = SourceInfo(is_seg=result.is_label)

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Compute the voxels of ``region``."""
        target = self._target(region, out)
        if self._channels:
            values = self._plan.read(Region(region.start[1:], region.stop[1:]))[region.start[0] : region.stop[0]]
        else:
            values = self._plan.read(region)[0]
        target[...] = values
        return target

    def close(self) -> None:
        """Close the files of the plan."""
        self._plan.close()


def format_to_write(path: Path) -> Format:
    """Return the format that a file will have.

    Raises
    ------
    UsageError
        No format that can be written has such a suffix, or a folder is there where a file has to be.
    """
    row = format_of_name(path)
    if row is None or not row.writes:
        raise UsageError(
            f"{path.name} has no suffix of a format that can be written.", hint="Use .mla, .mha or .nii.gz."
        )
    if path.is_dir() and not row.folders:
        raise UsageError(f"{path} is a folder, and a {row.title} image is a file.", hint="Name a file.")
    return row


def check_writing(plan: Plan, path: Path, scratch: Path, *, storage: Mapping[str, object] | None = None) -> None:
    """Refuse what :func:`write_result` would refuse, without a voxel: by opening such a file in a folder, and leaving it.

    Raises
    ------
    MLArrayError
        The format cannot hold the result, or does not take the storage arguments.
    """
    if storage is not None and not isinstance(storage, Mapping):
        raise UsageError(
            f"storage is a mapping of storage arguments, got {storage!r}.", hint='Like {"patch_size": 64}.'
        )
    source, module = PlanSource(plan), module_of(format_to_write(path))
    module.losses(source.spec, source.info)
    module.open_sink(scratch / path.name, source.spec, source.info, SinkOptions(storage or {})).abort()


def write_result(
    plan: Plan,
    path: Path,
    *,
    storage: Mapping[str, object] | None = None,
    record: Mapping[str, object] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the whole result of a plan to a file of any format that is written, computing one tile at a time.

    Parameters
    ----------
    plan : Plan
        What to write. Where its patches do not stream, its result is held in memory as a whole.
    path : Path
        The suffix names the format. What is there is replaced once the new file is complete; nothing is left after an error.
    storage : mapping, optional
        Storage arguments of the format: ``patch_size``, ``cparams`` ...
    record : mapping, optional
        Plain values to keep in the file.
    progress : callable, optional
        Called with the number of bytes after each tile.

    Raises
    ------
    UsageError
        No format that can be written has such a suffix.
    """
    source = PlanSource(plan)
    module = module_of(format_to_write(path))
    module.losses(source.spec, source.info)  # raises where the format cannot hold it at all
    path.parent.mkdir(parents=True, exist_ok=True)
    plan.measure()
    sink = None
    try:
        sink = module.open_sink(
            path, source.spec, source.info, SinkOptions(storage or {}, record or {}, hold_bytes=TILE_BYTES)
        )
        tiles = plan_tiles(source.spec, sink.chunks, access=sink.access, order=sink.order)
        copy(source, sink, tiles, progress=progress)
        sink.publish()
    except BaseException as error:
        told = no_space(error, path)
        if sink is not None:
            with contextlib.suppress(*() if told is None else (Exception,)):  # closing a library's file fails again
                sink.abort()
        if told is not None:
            raise told from error
        raise
    finally:
        plan.release()
