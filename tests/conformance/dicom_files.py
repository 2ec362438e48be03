"""Small DICOM files for tests, written by pydicom: one call per slice, every field can be given."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence as Items
from pydicom.uid import (
    CTImageStorage,
    EnhancedCTImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    generate_uid,
)

from mlarray.formats import dicom
from mlarray.formats.series import SeriesOptions
from mlarray.sources.base import Source

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
OTHER_ORDERS = {"explicit": ExplicitVRLittleEndian, "implicit": ImplicitVRLittleEndian, "big": ExplicitVRBigEndian}
SERIES = "1.2.826.0.1.3680043.8.498.1"
_MADE = iter(range(1, 1_000_000))


def dataset(array: Any, *, syntax: str = ExplicitVRLittleEndian, series: str = SERIES, **fields: Any) -> Dataset:
    """Return a CT slice with these pixels; a field that is None is left out."""
    array = np.asarray(array)
    data = Dataset()
    data.file_meta = FileMetaDataset()
    stated: dict[str, Any] = {
        "SOPClassUID": CTImageStorage,
        "SOPInstanceUID": f"{series}.{next(_MADE)}",
        "SeriesInstanceUID": series,
        "StudyInstanceUID": "1.2.826.0.1.3680043.8.498.2",
        "Modality": "CT",
        "SeriesNumber": 1,
        "InstanceNumber": 1,
        "ImagePositionPatient": [0.0, 0.0, 0.0],
        "ImageOrientationPatient": list(AXIAL),
        "PixelSpacing": [1.0, 1.0],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "Rows": array.shape[-2],
        "Columns": array.shape[-1],
        "BitsAllocated": 8 * array.dtype.itemsize,
        "BitsStored": 8 * array.dtype.itemsize,
        "PixelRepresentation": int(array.dtype.kind == "i"),
    } | fields
    for name, value in stated.items():
        if value is not None:
            setattr(data, name, value)
    if "BitsStored" in data:
        data.HighBit = fields.get("HighBit", data.BitsStored - 1)
    data.file_meta.MediaStorageSOPClassUID = stated["SOPClassUID"] or CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = stated["SOPInstanceUID"] or "1.2.3"
    data.file_meta.TransferSyntaxUID = syntax
    kind = array.dtype.newbyteorder(">" if syntax == ExplicitVRBigEndian else "<")
    data.PixelData = np.ascontiguousarray(array, kind).tobytes() + b"\0" * (array.nbytes % 2)
    data["PixelData"].VR = "OW" if array.dtype.itemsize > 1 else "OB"
    return data


def write(path: Path, array: Any, **fields: Any) -> Path:
    """Write a slice and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom warns of what is written on purpose
        dataset(array, **fields).save_as(path, enforce_file_format=True)
    return path


def plane(value: int, shape: tuple[int, int] = (4, 4), dtype: str = "int16") -> Any:
    return np.full(shape, value, dtype)


def stack(folder: Path, positions: Sequence[float], names: Sequence[str] | None = None, **fields: Any) -> list[Path]:
    """Write axial slices at these z, slice k of value k; a field that is a list of that length gives one value each."""
    paths = []
    for k, z in enumerate(positions):
        own = {key: value[k] if isinstance(value, tuple) else value for key, value in fields.items()}
        name = names[k] if names is not None else f"IM{k:04d}"
        own = {"ImagePositionPatient": [0.0, 0.0, z], "InstanceNumber": k + 1} | own
        array = own.pop("array", None)
        paths.append(write(folder / name, plane(k) if array is None else array, **own))
    return paths


def enhanced(
    path: Path, arrays: Any, groups: Sequence[Mapping[str, Any]], shared: Mapping[str, Any], **fields: Any
) -> Path:
    """Write an enhanced multi-frame file; groups are given as {sequence keyword: {keyword: value}}."""
    arrays = np.asarray(arrays)
    nowhere = dict.fromkeys(("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"))
    data = dataset(arrays, **({"SOPClassUID": EnhancedCTImageStorage} | nowhere | fields), NumberOfFrames=len(arrays))
    data.SharedFunctionalGroupsSequence = Items([_group(shared)])
    data.PerFrameFunctionalGroupsSequence = Items([_group(group) for group in groups])
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def _group(macros: Mapping[str, Any]) -> Dataset:
    group = Dataset()
    for name, fields in macros.items():
        item = Dataset()
        for key, value in fields.items():
            setattr(item, key, value)
        setattr(group, name, Items([item]))
    return group


def volumes(*places: Path, **options: Any) -> list[Any]:
    """Return the volumes of files and folders."""
    files = [file for place in places for file in (dicom.files_below(place) if place.is_dir() else [place])]
    return list(dicom.survey(files, SeriesOptions(**options)).volumes)


def only(place: Path, **options: Any) -> Source:
    """Return the one volume of a folder as a source."""
    (volume,) = volumes(place, **options)
    return dicom.open_volume(volume)


def everything(source: Source) -> Any:
    return source.read(source.spec.region)


def codes(source: Source) -> set[str]:
    return {note.code for note in source.info.notes}


def world(source: Source, value: float) -> tuple[float, ...]:
    """Return the world position (LPS) of the first voxel that has a value."""
    index = np.argwhere(everything(source) == value)[0]
    assert source.spec.geometry is not None
    return source.spec.geometry.world(index[-3:])


def new_uid() -> str:
    return str(generate_uid())
