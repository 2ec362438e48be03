"""How are FreeSurfer's MGH and MGZ files read?

A header of 284 bytes, which nibabel decodes, big-endian voxels with x fastest, and behind them the times of the scan. The place
in the world is RAS millimetres around the centre of the volume; without it (``goodRASFlag`` 0) nothing is known. A fourth axis
is time. Compression is told by the first bytes, not by the suffix.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import FormatError
from mlarray.formats.encoded import DEFLATE_RATIO, GZIP_MAGIC
from mlarray.formats.file_axes import checked_geometry
from mlarray.geometry import ALL_PARTS, Geometry
from mlarray.orientation import flip_frame
from mlarray.sources.base import Access, Note, Source, SourceInfo
from mlarray.sources.bytes import ByteReader, FileBytes, StreamBytes, open_gzip, short_data
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.spec import ArraySpec

HEADER_BYTES, VOXELS_AT = 90, 284
_VERSION = 1
_SCAN = struct.Struct(">4f")  # behind the voxels: TR, flip angle, TE, TI


def open_source(path: Path) -> Source:
    """Read the header of an MGH file and return its voxels as a source.

    Raises
    ------
    FormatError
        When the file is no such image, is too short, or holds a type that cannot be read.

    Notes
    -----
    What follows the voxels beside the times of the scan (tags, the command history); of a compressed file those times too.
    """
    with path.open("rb") as file:
        is_packed = file.read(2) == GZIP_MAGIC
    head = bytearray(HEADER_BYTES)
    data = _voxels(
        path, VOXELS_AT, start=0, is_packed=is_packed
    )  # a stream that is read to its end would be checked to its end
    data.readinto(0, memoryview(head))
    data.close()
    header, dims, dtype = _header(path, bytes(head))
    notes: list[Note] = []
    shape = tuple(reversed(dims if dims[3] > 1 else dims[:3]))
    layout = RawLayout.in_order(shape, dtype)
    data = _voxels(path, layout.nbytes, start=VOXELS_AT, is_packed=is_packed)
    fields = {
        name: header[name].tolist() for name in ("version", "type", "dof", "goodRASFlag", "delta", "Mdc", "Pxyz_c")
    }
    scan = {} if is_packed else _scan(path, VOXELS_AT + layout.nbytes)
    step = scan.get("tr", 0.0) / 1000
    axes = [Axis(name, unit="millimeter") for name in "zyx"]
    if dims[3] > 1:
        axes.insert(0, Axis("t", "time", "second", step) if step > 0 else Axis("t", "time"))
        if is_packed:
            notes.append(
                Note("step-unknown", "The repetition time lies behind the compressed voxels and was not read.")
            )
    geometry = _geometry(header, bytes(head), notes)
    spec = ArraySpec(layout.array_shape, dtype.newbyteorder("="), tuple(axes), geometry)
    access = Access.SLAB if is_packed else Access.REGION
    info = SourceInfo("mgh", (path,), {**fields, **scan}, tuple(notes))
    return RawSource(data, layout, spec, access=access, info=info)


def _header(path: Path, head: bytes) -> tuple[Any, tuple[int, ...], np.dtype[Any]]:
    """Return nibabel's header, the extents of the four file axes, and the stored type."""
    from nibabel.freesurfer.mghformat import MGHHeader
    from nibabel.spatialimages import HeaderDataError

    try:
        header = MGHHeader(head, check=False)  # its check prints
        if header["version"] != _VERSION:
            raise HeaderDataError(f"its version is {header['version']}, {_VERSION} can be read")
        dtype = np.dtype(header.get_data_dtype())
    except HeaderDataError as error:
        raise FormatError(f"{path} is no MGH file: {error}.") from error
    except KeyError as error:
        raise FormatError(
            f"{path} holds numbers of the MGH type {error}, which cannot be read; uint8, int16, uint16, int32 and float32 can."
        ) from error
    dims = tuple(int(extent) for extent in header["dims"])
    if any(extent < 1 for extent in dims):
        raise FormatError(f"{path} has extents {dims} in its header; they must be at least 1.")
    return header, dims, dtype


def _voxels(path: Path, nbytes: int, *, start: int, is_packed: bool) -> ByteReader:
    """Return the reader of ``nbytes`` bytes, after checking that the file can hold them."""
    found, needed = path.stat().st_size, start + nbytes
    if not is_packed:
        if found < needed:
            raise short_data(path, needed, found)
        return FileBytes(path, start)
    if needed > found * DEFLATE_RATIO:
        raise FormatError(
            f"{path} claims {needed} bytes; its {found} compressed bytes cannot hold more than {found * DEFLATE_RATIO}.",
            hint="Copy or export it again.",
        )
    return StreamBytes(path, open_gzip, nbytes, start)


def _scan(path: Path, start: int) -> dict[str, float]:
    """Return the times of the scan (milliseconds) and the flip angle (radians), where the file has them."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(_SCAN.size)
    if len(data) < _SCAN.size:
        return {}
    values = dict(zip(("tr", "flip_angle", "te", "ti"), _SCAN.unpack(data), strict=True))
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _geometry(header: Any, head: bytes, notes: list[Note]) -> Geometry | None:
    if not struct.unpack_from(">h", head, 28)[0]:  # goodRASFlag, which nibabel overwrites with its default
        notes.append(Note("geometry-unknown", "The header says that it does not know its place in the world."))
        return None
    affine = np.asarray(header.get_affine(), dtype=np.float64)
    return checked_geometry((flip_frame(3) @ affine)[:, [2, 1, 0, 3]], "LPS", ALL_PARTS)
