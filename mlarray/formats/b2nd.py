"""``.b2nd`` files, as nnU-Net writes them: the container of an ``.mla``, without its metadata.

nnU-Net keeps arrays as (c, z, y, x); an array of four axes without labels is read so.
"""

from __future__ import annotations

from pathlib import Path

from mlarray.axes import parse_axes
from mlarray.formats import mla
from mlarray.sources.base import Note, SinkOptions, SourceInfo
from mlarray.spec import ArraySpec

_NNUNET_AXES = parse_axes("czyx")


def open_source(path: Path, *, mapped: bool = True) -> mla.MlaSource:
    """Open a ``.b2nd`` file; only its header and metadata are read.

    Notes
    -----
    Nothing; what nnU-Net knows of the geometry is in a file of its own, beside it.
    """
    return mla.MlaSource(path, "b2nd", _NNUNET_AXES, mapped=mapped)


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> mla.MlaSink:
    """Create a ``.b2nd`` file that takes the voxels of ``spec``."""
    return mla.MlaSink(path, spec, info, options)


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what nnU-Net would miss.

    Notes
    -----
    Nothing; nnU-Net itself wants four axes (c, z, y, x).
    """
    if spec.ndim == 4:
        return ()
    return (Note("axes-not-nnunet", f"nnU-Net reads arrays of four axes (c, z, y, x); this one has {spec.ndim}."),)
