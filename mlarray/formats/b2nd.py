"""``.b2nd`` files, as nnU-Net writes them: the container of an ``.mla``, with the properties of the case in a file beside it.

nnU-Net keeps arrays as (c, z, y, x); an array of four axes without labels is read so, in the order and at the place that the
properties and the plans tell where they are found. Written with properties, a case opens in nnU-Net again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from mlarray.axes import parse_axes
from mlarray.errors import FormatError
from mlarray.formats import mla, nnunet_case
from mlarray.formats.nnunet_geometry import placed
from mlarray.metadata import Meta, update_managed
from mlarray.metadata.spatial import spatial_fields
from mlarray.sources.base import Note, SinkOptions, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.publish import PendingFile

_NNUNET_AXES = parse_axes("czyx")
_ASSUMED = "axes-assumed"


class B2ndSource(mla.MlaSource):
    """The array in a ``.b2nd`` file, with what stands beside it where the file itself says nothing.

    Parameters
    ----------
    path : Path
        The file.
    mapped : bool
        Whether the file is mapped into memory.
    """

    def __init__(self, path: Path, *, mapped: bool = True) -> None:
        super().__init__(path, "b2nd", _NNUNET_AXES, mapped=mapped)
        self._make = partial(B2ndSource, path, mapped=mapped)
        if any(note.code == _ASSUMED for note in self.info.notes):
            self._describe(path)

    def _describe(self, path: Path) -> None:
        """Take axes, place and properties from the files beside the array."""
        beside = nnunet_case.properties_path(path)
        if not beside.is_file():
            return
        is_seg = nnunet_case.is_segmentation(path)
        try:
            properties = nnunet_case.read_properties(beside)
            header, locations = nnunet_case.header_of(properties, self.spec.shape, with_locations=not is_seg)
        except FormatError as error:
            told = f"The properties beside {path.name} are left out: {error.message.rstrip('.')}."
            self.info = replace(self.info, notes=(*self.info.notes, Note("properties-unreadable", told)))
            return
        transpose, plans = nnunet_case.transpose_of(path.parent)
        placement = placed(properties, self.spec.shape, transpose)
        self.spec = replace(self.spec, axes=placement.axes, geometry=placement.geometry)
        meta = Meta(source=header, is_seg=True if is_seg else None)
        for name, value in spatial_fields(self.spec).items():
            if value is not None:
                setattr(meta.spatial, name, value)
        update_managed(meta, image_meta_format="nnunet")
        notes = [note for note in self.info.notes if note.code != _ASSUMED]
        self.info = replace(
            self.info,
            files=(path, beside, *(() if plans is None else (plans,))),
            header=header,
            notes=(*notes, *placement.notes),
            is_seg=True if is_seg else None,
            meta=meta,
            locations=locations,
        )


class B2ndSink(mla.MlaSink):
    """Writes a ``.b2nd`` file, and the ``.pkl`` of nnU-Net beside it where the metadata holds the properties of a case.

    The properties get their name first: a ``.b2nd`` that is there has all that belongs to it.
    """

    def __init__(self, path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> None:
        self._properties = _properties(info)
        self._beside: PendingFile | None = None
        self._place = path.with_name(path.name[: -len(path.suffix)] + nnunet_case.PROPERTIES_SUFFIX)
        super().__init__(path, spec, info, options)

    def finish(self) -> None:
        """Complete both files under their temporary names."""
        super().finish()
        if self._properties is not None and self._beside is None:
            self._beside = PendingFile(self._place)
            nnunet_case.write_properties(self._beside.path, self._properties)

    def publish(self) -> None:
        """Finish both files and give them their names."""
        self.finish()
        if self._beside is not None:
            self._beside.publish()
        super().publish()

    def abort(self) -> None:
        """Remove what was written."""
        if self._beside is not None:
            self._beside.abort()
        super().abort()


def open_source(path: Path, *, mapped: bool = True) -> B2ndSource:
    """Open a ``.b2nd`` file; only its header and metadata, and what stands beside it, are read.

    Notes
    -----
    Nothing.
    """
    return B2ndSource(path, mapped=mapped)


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> B2ndSink:
    """Create a ``.b2nd`` file that takes the voxels of ``spec``."""
    return B2ndSink(path, spec, info, options)


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what nnU-Net would miss.

    Notes
    -----
    Nothing; nnU-Net itself wants four axes (c, z, y, x).
    """
    if spec.ndim == 4:
        return ()
    return (Note("axes-not-nnunet", f"nnU-Net reads arrays of four axes (c, z, y, x); this one has {spec.ndim}."),)


def companions(path: Path, info: SourceInfo) -> tuple[Path, ...]:
    """Return the further files that writing ``path`` makes, one of which may be missing while ``path`` is there."""
    if _properties(info) is None:
        return ()
    return (path.with_name(path.name[: -len(path.suffix)] + nnunet_case.PROPERTIES_SUFFIX),)


def _properties(info: SourceInfo) -> dict[str, object] | None:
    """Return the properties of a case, which stand beside its image only."""
    meta = info.meta
    header: Mapping[str, object] = meta.source.data if isinstance(meta, Meta) else info.header
    return None if info.is_seg else nnunet_case.properties_of(header, info.locations)
