"""How are MINC files read? Version 1 (NetCDF) and 2 (HDF5), headers through nibabel.

Voxels are stored as integers of a valid range that stand for the range between the image minimum and maximum of their slice.
Dimensions have names: those that end in ``space`` are spatial, their cosines and starts are in RAS millimetres; ``time`` is time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.axes import Axis
from mlarray.errors import FormatError, MLArrayError
from mlarray.formats.file_axes import checked_geometry, free_name
from mlarray.formats.text_header import millimetres, time_unit
from mlarray.geometry import Geometry, Part
from mlarray.locks import ForkSafeLock
from mlarray.orientation import flip_frame
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Note, Source, SourceBase, SourceInfo
from mlarray.sources.bytes import FileBytes, short_data
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.sources.scaled import scaled_dtype
from mlarray.spec import ArraySpec

_HDF5_MAGIC = b"\x89HDF"
_IMAGE = "minc-2.0/image/0/image"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a MINC image: its name, and step, start and unit where the file states them."""

    name: str
    extent: int
    step: float | None
    start: float | None
    unit: str | None

    @property
    def is_spatial(self) -> bool:
        """Whether it is one of space."""
        return self.name.endswith("space")


@dataclass(frozen=True, slots=True, eq=False)
class MincHeader:
    """What a MINC header says.

    Parameters
    ----------
    dimensions : tuple of Dimension
        In storage order.
    dtype : numpy dtype
        As stored.
    affine : ndarray, shape (4, 4)
        From the spatial dimensions, in storage order, to RAS millimetres.
    start : int
        First byte of the voxels; -1 where they are a dataset.
    valid : (float, float)
        Range of the stored integers.
    low, high : ndarray
        The real range that they stand for, over the leading dimensions.
    """

    dimensions: tuple[Dimension, ...]
    dtype: np.dtype[Any]
    affine: npt.NDArray[np.float64]
    start: int
    valid: tuple[float, float]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent per dimension."""
        return tuple(dimension.extent for dimension in self.dimensions)


def open_source(path: Path) -> Source:
    """Read the header of a MINC file and return its real values as a source.

    Raises
    ------
    FormatError
        When the file is no such image, is damaged, or has irregular or vector dimensions.

    Notes
    -----
    The history, and attributes of the patient, the study and the acquisition.
    """
    with path.open("rb") as file:
        is_hdf5 = file.read(4) == _HDF5_MAGIC
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a misspelled spacing is taken as regular
            header = _read_hdf5(path) if is_hdf5 else _read_netcdf(path)
    except (MLArrayError, OSError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise FormatError(f"{path} is damaged: {' '.join(str(error).split())}.") from error
        raise
    except Exception as error:  # the readers of both containers raise what they meet
        told = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(
            f"{path} is no MINC file that can be read: {told}.", hint="Make a NIfTI of it with mnc2nii."
        ) from error
    notes: list[Note] = []
    axes, order = _axes(header)
    geometry = _geometry(header, axes, notes)
    shape = tuple(header.shape[order.index(axis)] for axis in range(len(order)))
    info = SourceInfo("minc", (path,), _fields(header, is_hdf5=is_hdf5), tuple(notes))
    raw: Source
    if is_hdf5:
        raw = _Dataset(path, ArraySpec(header.shape, header.dtype.newbyteorder("=")))
    else:
        layout = RawLayout.in_order(header.shape, header.dtype)
        found = path.stat().st_size
        if header.start + layout.nbytes > found:
            raise short_data(path, header.start + layout.nbytes, found)
        raw_spec = ArraySpec(header.shape, header.dtype.newbyteorder("="))
        raw = RawSource(FileBytes(path, header.start), layout, raw_spec, access=Access.REGION)
    return MincSource(raw, header, order, ArraySpec(shape, _value_dtype(path, header), axes, geometry), info)


class MincSource(SourceBase):
    """The real values of a MINC image: ``(stored - least) * slope + low`` of the slice, computed in float64, rounded once.

    Parameters
    ----------
    raw : Source
        The stored numbers, in storage order.
    header : MincHeader
        The ranges.
    order : tuple of int
        Per stored axis, the array axis it becomes.
    spec : ArraySpec
        What ``read`` returns.
    info : SourceInfo
        What the file says beyond its voxels.
    """

    access = Access.REGION

    def __init__(
        self, raw: Source, header: MincHeader, order: tuple[int, ...], spec: ArraySpec, info: SourceInfo
    ) -> None:
        self._raw, self._header = raw, header
        self.order, self.spec, self.info = order, spec, info

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the values of ``region``."""
        target = self._target(region, out)
        if region.is_empty():
            return target
        box = region.permute(self.order)
        disk = target.transpose(self.order)
        stored = self._raw.read(box)
        if self._header.dtype.kind == "f":
            disk[...] = stored
            return target
        slope, shift = _scales(self._header)
        count = slope.ndim
        inner = (...,) + (None,) * (box.ndim - count)
        part = box.slices[:count]
        # In the order of operations of MINC's own formula, as nibabel has it, so that values are equal to the last bit.
        values = np.clip(stored, *self._header.valid) * slope[part][inner]
        values += shift[part][inner]
        disk[...] = np.rint(values) if self.spec.dtype.kind in "iu" else values
        return target

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        self._raw.close()


class _Dataset(SourceBase):
    """The stored numbers of a MINC 2 image; the file is opened once per process."""

    access = Access.REGION

    def __init__(self, path: Path, spec: ArraySpec) -> None:
        self._path = path
        self.spec = spec
        self.order = tuple(range(spec.ndim))
        self.info = SourceInfo()
        self._file: Any = None
        self._pid = 0
        self._lock = ForkSafeLock()

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        target = self._target(region, out)
        with self._lock:
            if self._file is None or self._pid != os.getpid():
                self._file, self._pid = _open_hdf5(self._path), os.getpid()
            try:
                target[...] = self._file[_IMAGE][region.slices]
            except OSError as error:
                raise FormatError(f"{self._path} is damaged: {' '.join(str(error).split())}.") from error
        return target

    def close(self) -> None:
        with self._lock:
            if self._file is not None and self._pid == os.getpid():
                self._file.close()
            self._file = None

    def __reduce__(self) -> tuple[object, ...]:
        return (_Dataset, (self._path, self.spec))


def _open_hdf5(path: Path) -> Any:
    import h5py

    try:
        return h5py.File(path, "r", locking=False)  # read-only mounts and some network file systems know no locks
    except OSError:  # also where this process has the file open with locks: HDF5 wants the same choice again
        return h5py.File(path, "r")


def _read_hdf5(path: Path) -> MincHeader:
    from nibabel.minc2 import Minc2File

    with _open_hdf5(path) as file:
        _refuse_links(path, file)
        minc = Minc2File(file)
        return _header(minc, -1, np.asarray(minc._image_min), np.asarray(minc._image_max))


def _refuse_links(path: Path, file: Any) -> None:
    """Refuse voxels that lie in other files: a header must not make a converter read what it names."""
    import h5py

    places = ["minc-2.0", "minc-2.0/image", "minc-2.0/image/0", "minc-2.0/dimensions", _IMAGE]
    places += [f"minc-2.0/image/0/image-{end}" for end in ("min", "max")]
    places += [f"minc-2.0/dimensions/{name}" for name in file["minc-2.0/dimensions"]]
    for place in places:
        link = file.get(place, getlink=True)
        found = None if isinstance(link, h5py.ExternalLink) else file[place]
        if found is None or (isinstance(found, h5py.Dataset) and (found.external or found.is_virtual)):
            raise FormatError(
                f"{path} keeps {place} in another file, which is not read.", hint="Copy the image into one file."
            )


def _read_netcdf(path: Path) -> MincHeader:
    from nibabel.externals.netcdf import netcdf_file
    from nibabel.minc1 import Minc1File

    class Quiet(netcdf_file):  # type: ignore[misc]
        """A file that is closed without a word while arrays refer to its map, which the last of them releases."""

        def close(self) -> None:
            if hasattr(self, "fp") and not self.fp.closed:
                self.variables: dict[str, Any] = {}
                self._mm_buf = self._mm = None
                self.fp.close()

        __del__ = close

    file = Quiet(str(path), "r", mmap=True)
    try:
        minc = Minc1File(file)
        data = minc._image.data
        if minc._image.isrec or not data.flags.c_contiguous:
            raise ValueError("its voxels are records of a dimension without end")
        root = data
        while isinstance(root.base, np.ndarray):
            root = root.base
        start = int(data.__array_interface__["data"][0] - root.__array_interface__["data"][0])
        ends = [np.array(end.data, dtype=np.float64) for end in (minc._image_min, minc._image_max)]
        header = _header(minc, start, *ends)
    finally:
        file.close()
    return header


def _header(minc: Any, start: int, low: NDArray, high: NDArray) -> MincHeader:
    names = list(minc._dim_names)
    shape = minc.get_data_shape()
    dtype = np.dtype(minc.get_data_dtype())
    affine = np.array(minc.get_affine(), dtype=np.float64)
    if affine.shape != (4, 4):
        raise ValueError(f"it has the dimensions {', '.join(names)}; three of space are needed")
    if dtype.kind not in "iuf":
        raise ValueError(f"it holds {dtype}, which are no numbers")
    scales = list(minc._get_dimensions(minc._image_max))
    if list(minc._get_dimensions(minc._image_min)) != scales or names[: len(scales)] != scales or len(scales) > 2:
        raise ValueError("the dimensions of its image minima and maxima are not the first of the image")
    valid = (0.0, 1.0) if dtype.kind == "f" else tuple(float(end) for end in minc._get_valid_range())
    dimensions = tuple(
        Dimension(
            name,
            int(extent),
            _number(getattr(dimension, "step", None)),
            _number(getattr(dimension, "start", None)),
            _text(getattr(dimension, "units", None)),
        )
        for name, extent, dimension in zip(names, shape, minc._dims, strict=True)
    )
    wanted = tuple(int(extent) for extent in shape[: len(scales)])
    low, high = (np.asarray(end, dtype=np.float64).reshape(wanted) for end in (low, high))
    return MincHeader(dimensions, dtype, affine, start, (valid[0], valid[1]), low, high)


def _scales(header: MincHeader) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    slope = (header.high - header.low) / (header.valid[1] - header.valid[0])
    return np.asarray(slope), np.asarray(header.low - header.valid[0] * slope)


def _value_dtype(path: Path, header: MincHeader) -> np.dtype[Any]:
    """Return the smallest type that holds the values of every slice."""
    if header.dtype.kind == "f":
        return header.dtype.newbyteorder("=")
    if header.valid[0] >= header.valid[1]:
        raise FormatError(f"{path} has a valid range from {header.valid[0]:g} to {header.valid[1]:g}.")
    slope, shift = _scales(header)
    if not (np.isfinite(slope).all() and np.isfinite(shift).all()):
        raise FormatError(f"{path} has image minima or maxima that are not finite.")
    pairs = np.unique(np.stack([slope.reshape(-1), shift.reshape(-1)]), axis=1).T.tolist()
    return np.result_type(*(scaled_dtype(header.dtype, *pair) for pair in pairs))


def _axes(header: MincHeader) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    axes: list[Axis] = []
    for dimension in header.dimensions:
        if dimension.is_spatial:
            axes.append(Axis(_space_name(dimension), "space", "millimeter"))
            continue
        kind = "time" if dimension.name == "time" else "other"
        name = free_name("time" if kind == "time" else "other", dimension.name, {axis.name for axis in axes})
        unit = time_unit(dimension.unit or "") if kind == "time" else None
        axes.append(Axis(name, "time" if kind == "time" else "other", unit, dimension.step))
    place = sorted(range(len(axes)), key=lambda position: _rank(axes[position]))
    return tuple(axes[position] for position in place), tuple(place.index(position) for position in range(len(axes)))


def _space_name(dimension: Dimension) -> str:
    return dimension.name.removesuffix("space") or "space"


def _rank(axis: Axis) -> int:
    return 1 + "zyx".find(axis.name) if axis.is_spatial else -1


def _geometry(header: MincHeader, axes: Sequence[Axis], notes: list[Note]) -> Geometry:
    """Return the LPS geometry; a dimension without cosines runs along the axis that it is named after (MINC's default)."""
    spatial = [dimension for dimension in header.dimensions if dimension.is_spatial]
    affine = header.affine.copy()
    factors = {millimetres(dimension.unit or "mm") for dimension in spatial}
    factor = factors.pop() if len(factors) == 1 else None
    if factor is None:
        raise FormatError(f"The units {[dimension.unit for dimension in spatial]} of its dimensions are no lengths.")
    if factor != 1.0:
        notes.append(Note("unit-converted", f"Lengths in {spatial[0].unit} were turned into millimetres."))
        affine[:3] *= factor
    known: set[Part] = {"direction"}
    if all(dimension.step is not None for dimension in spatial):
        known.add("spacing")
    if all(dimension.start is not None for dimension in spatial):
        known.add("origin")
    if len(known) < 3:
        lacking = ", ".join(sorted({"spacing", "origin"} - known))
        notes.append(Note("geometry-assumed", f"The file does not state its {lacking}: MINC's default was not taken."))
    spatial_axes = [axis.name for axis in axes if axis.is_spatial]
    stored = [_space_name(dimension) for dimension in spatial]
    columns = [*(stored.index(name) for name in spatial_axes), 3]
    return checked_geometry((flip_frame(3) @ affine)[:, columns], "LPS", frozenset(known))


def _fields(header: MincHeader, *, is_hdf5: bool) -> dict[str, object]:
    return {
        "minc_version": 2 if is_hdf5 else 1,
        "dimensions": [dimension.name for dimension in header.dimensions],
        "stored_dtype": str(header.dtype.newbyteorder("=")),
        "valid_range": list(header.valid),
    }


def _number(value: object) -> float | None:
    if value is None:
        return None
    return float(np.asarray(value).reshape(-1)[0])


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("latin-1").strip("\0 ")
    return value.strip("\0 ") if isinstance(value, str) else None
