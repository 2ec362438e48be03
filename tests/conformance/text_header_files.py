"""Small NRRD and MetaImage files, written by hand, and what tests ask of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mlarray.formats.registry import open_source
from mlarray.region import Region
from mlarray.sources.base import NDArray, Sink, Source

RAMP = np.arange(24, dtype="<i2").tobytes()  # sizes 2 3 4: the value at file index (x, y, z) is x + 2 y + 6 z
NRRD_BASE = {"type": "int16", "dimension": "3", "sizes": "2 3 4", "endian": "little", "encoding": "raw"}
PLACED = {
    "space": "left-posterior-superior",
    "space directions": "(2,0,0) (0,3,0) (0,0,4)",
    "space origin": "(10,20,30)",
}
META_BASE = {"ObjectType": "Image", "NDims": "3", "DimSize": "2 3 4", "ElementType": "MET_SHORT"}


def write_nrrd(
    path: Path,
    fields: dict[str, str],
    data: bytes = RAMP,
    *,
    keys: str = "",
    newline: str = "\n",
    magic: str = "NRRD0004",
) -> Path:
    """Write a NRRD file; fields of None are left out."""
    lines = [magic, *(f"{name}: {text}" for name, text in fields.items() if text is not None)]
    text = newline.join(lines) + newline + keys + newline
    path.write_bytes(text.encode("utf-8") + data)
    return path


def write_meta(
    path: Path, fields: dict[str, str], data: bytes = RAMP, *, newline: str = "\n", file: str = "LOCAL"
) -> Path:
    """Write a MetaImage file."""
    lines = [*(f"{name} = {text}" for name, text in fields.items()), f"ElementDataFile = {file}"]
    path.write_bytes((newline.join(lines) + newline).encode("utf-8") + data)
    return path


def load(path: Path) -> tuple[NDArray, Source]:
    """Open a file by its suffix and read all of it."""
    source = open_source(path)
    return source.read(source.spec.region), source


def notes(source: Source) -> set[str]:
    """Return the codes of the notes of a source."""
    return {note.code for note in source.info.notes}


def position(source: Source, array: NDArray, value: Any) -> tuple[float, ...]:
    """Return the world position of the one voxel that holds ``value`` (index 0 of axes that are not spatial)."""
    (index,) = np.argwhere(array == value).tolist()
    assert source.spec.geometry is not None
    spatial = [i for i, axis in zip(index, source.spec.axes, strict=True) if axis.is_spatial]
    return tuple(round(float(number), 6) for number in source.spec.geometry.world(spatial))


def names(source: Source) -> str:
    """Return the axis names of a source in one string."""
    return "".join(axis.name for axis in source.spec.axes)


def fill(sink: Sink, array: NDArray) -> None:
    """Write an array into a sink, one step of its slowest axis at a time, and publish it."""
    slowest = sink.order[0]
    for part in Region.full(array.shape).split(slowest, 1):
        sink.write(part, array[part.slices])
    sink.publish()
