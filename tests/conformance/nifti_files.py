"""Small NIfTI files for tests: written by nibabel, then patched byte by byte where nibabel would not write such a header."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from mlarray.formats import nifti
from mlarray.region import Region
from mlarray.sources.base import SinkOptions, Source, SourceInfo
from mlarray.sources.copy import copy
from mlarray.sources.memory import ArraySource
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec

RAW = np.array([0, 1, 2, -3, 1000, 32767], dtype=np.int16).reshape(6, 1, 1)


def patch(path: Path, offset: int, layout: str, *values: float) -> Path:
    """Overwrite header bytes of an uncompressed file."""
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, offset, *values)
    path.write_bytes(bytes(data))
    return path


def scaled(path: Path, slope: float, inter: float, array: Any = RAW) -> Path:
    """Write ``array`` with these scaling fields, whatever they are."""
    nib.save(nib.Nifti1Image(array, np.eye(4)), path)
    return patch(path, 112, "<2f", slope, inter)


def gunzip_in_place(path: Path) -> Path:
    path.write_bytes(gzip.decompress(path.read_bytes()))
    return path


def everything(source: Source) -> Any:
    return source.read(Region.full(source.spec.shape))


def codes(source: Source) -> set[str]:
    return {note.code for note in source.info.notes}


def save(path: Path, array: Any, spec: ArraySpec | None = None, info: SourceInfo | None = None, **options: Any) -> Path:
    """Write an array through the sink, with the one copy loop."""
    source = ArraySource(array, spec if spec is not None else ArraySpec(array.shape, array.dtype), info)
    return save_source(path, source, **options)


def save_source(path: Path, source: Source, **options: Any) -> Path:
    sink = nifti.open_sink(path, source.spec, source.info, SinkOptions(**options))
    try:
        copy(source, sink, plan_tiles(source.spec, sink.chunks, access=sink.access, order=sink.order))
        sink.publish()
    finally:
        sink.abort()
    return path


def ras_of(source: Source, index: tuple[int, ...]) -> tuple[float, ...]:
    """World position (RAS) of a spatial array index."""
    geometry = source.spec.geometry
    assert geometry is not None
    return geometry.in_frame("RAS").world(index)


def oblique() -> Any:
    """RAS affine whose axes run P, I, R with steps 1, 2, 3 mm, turned by 20 degrees about the first world axis."""
    angle = np.deg2rad(20.0)
    turn = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    towards = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]], dtype=float)  # columns: P, I, R
    affine = np.eye(4)
    affine[:3, :3] = turn @ towards * [1.0, 2.0, 3.0]
    affine[:3, 3] = [11.0, -22.0, 33.0]
    return affine
