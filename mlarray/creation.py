"""Every way to get an array: opened, loaded, created on disk, generated, copied in shape.

These are the class methods of :class:`mlarray.MLArray`. All of them end in one of three calls: open a store, load a store,
or fill a new one from a source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from mlarray.axes import AxesLike, parse_axes
from mlarray.errors import DTypeError, UsageError
from mlarray.layout import layout_for_patch
from mlarray.metadata import Meta
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source
from mlarray.sources.memory import ArraySource, GeneratedSource
from mlarray.spec import ArraySpec
from mlarray.storage.options import Params, StorageKwargs, StorageOptions

if TYPE_CHECKING:
    from mlarray.storage.blosc import MapMode

ShapeLike = int | Sequence[int] | npt.NDArray[Any]
SUFFIX = ".mla"
Verification: TypeAlias = Literal["full", "lazy"] | None
READABLE_SUFFIXES = (".mla", ".mb2nd", ".b2nd")


class Constructors:
    """Class methods that make arrays."""

    if TYPE_CHECKING:  # what the handle offers to its constructors

        @classmethod
        def _opened(
            cls, path: Path, mode: str, mmap_mode: MapMode, dparams: Params, *, verify: Verification
        ) -> Self: ...
        @classmethod
        def _loaded(cls, path: Path, dparams: Params, *, compressed: bool, verify: Verification) -> Self: ...
        @classmethod
        def _allocated(
            cls, path: Path, spec: ArraySpec, options: StorageOptions, meta: Any, mmap_mode: MapMode
        ) -> Self: ...
        @classmethod
        def _filled(
            cls, source: Source, options: StorageOptions, meta: Any, *, compressed: bool, sampled: bool = True
        ) -> Self: ...

    @classmethod
    def open(
        cls,
        filepath: str | Path,
        mode: str = "r",
        mmap_mode: MapMode = "r",
        dparams: Params = None,
        *,
        verify: Verification = None,
    ) -> Self:
        """Open a file without reading its voxels.

        Parameters
        ----------
        filepath : str or Path
            An ``.mla`` file; ``.b2nd`` and the historic ``.mb2nd`` are read too.
        mode : {"r", "a"}
            Access without a memory map: read-only, or reading and writing. Only used with ``mmap_mode=None``.
        mmap_mode : {"r", "r+", "c", None}
            Memory map: read-only (default), reading and writing, changes kept in memory only, or no map. What is written goes
            into a copy that takes the name of the file on closing: until then everybody reads the old one.
        dparams : mapping or blosc2.DParams, optional
            Decompression parameters; default 1 thread.
        verify : {"full", "lazy", None}
            Compare the file with its checksums: all of it now; what surrounds the chunks now and each chunk before it is
            decoded for the first time; or not at all (default), as a read of a patch would pay for whole chunks. A file
            without checksums is decoded from the first to the last chunk by ``"full"``; ``"lazy"`` has nothing to compare.

        Returns
        -------
        MLArray
            Close it, or use it as a context manager; in ``"r+"`` and ``"a"`` closing stores changed metadata.

        Raises
        ------
        MissingFileError
            There is no such file.
        UsageError
            Another suffix or mode.
        FormatError
            The file is damaged, was not finished, or is no array.
        IntegrityError
            The file, or a chunk that is read later, does not match its checksums.

        Examples
        --------
        >>> import numpy as np, mlarray, tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "case.mla"
        >>> mlarray.MLArray(np.arange(24).reshape(2, 3, 4), spacing=(2.5, 1, 1)).save(path)
        >>> with mlarray.MLArray.open(path) as image:
        ...     print(image[1, 0, :2], image.spacing)
        [12 13] [2.5, 1, 1]
        """
        if mmap_mode not in ("r", "r+", "c", None):
            raise UsageError(f"mmap_mode must be 'r', 'r+', 'c' or None, got {mmap_mode!r}.")
        if mode not in ("r", "a"):
            raise UsageError(
                f"mode must be 'r' or 'a', got {mode!r}.",
                hint="mmap_mode='r+' opens for writing; MLArray.create makes files.",
            )
        return cls._opened(_readable(filepath), mode, mmap_mode, dparams, verify=verify)

    @classmethod
    def load(
        cls, filepath: str | Path, dparams: Params = None, compressed: bool = True, *, verify: Verification = None
    ) -> Self:
        """Read a whole file into memory.

        Parameters
        ----------
        filepath : str or Path
            As for :meth:`open`.
        dparams : mapping or blosc2.DParams, optional
            Decompression parameters; default 1 thread.
        compressed : bool
            Keep the voxels compressed (default), or decompress them into a numpy array.
        verify : {"full", "lazy", None}
            As for :meth:`open`; both read all of the file here.
        """
        return cls._loaded(_readable(filepath), dparams, compressed=compressed, verify=verify)

    @classmethod
    def create(
        cls,
        filepath: str | Path,
        shape: ShapeLike,
        dtype: npt.DTypeLike,
        meta: Any = None,
        mode: str = "w",
        mmap_mode: MapMode = "w+",
        *,
        axes: AxesLike | None = None,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Create a file of zeros to be written part by part; it may be larger than memory.

        The file is marked as unfinished until it is closed: a reader refuses it, and a writer that dies leaves a file that
        says so. Parts that cover whole chunks (see ``image.meta.blosc2.chunk_size``) are written fastest.

        Parameters
        ----------
        filepath : str or Path
            Ends in ``.mla``. An existing file is replaced; who has it open keeps the old one.
        shape, dtype
            Of the array; stored in native byte order.
        meta : mapping or Meta, optional
            A mapping is taken as ``meta.source``.
        mode : {"w"}
            Only there to be complete.
        mmap_mode : {"w+", None}
            Both write with ordinary file calls: on a full disk, writing through a memory map would end the process.
        axes : str or sequence, optional
            What the axes mean, see :func:`mlarray.axes.parse_axes`.
        **storage
            See :class:`~mlarray.storage.options.StorageOptions`.
        """
        if mode != "w":
            raise UsageError(
                f"mode must be 'w' to create a file, got {mode!r}.", hint="Use MLArray.open for a file that exists."
            )
        if mmap_mode not in ("w+", None):
            raise UsageError(f"mmap_mode must be 'w+' or None to create a file, got {mmap_mode!r}.")
        spec = _spec(_shape(shape), np.dtype(dtype), axes)
        return cls._allocated(target_path(filepath), spec, StorageOptions.from_keywords(storage), meta, mmap_mode)

    @classmethod
    def from_source(
        cls,
        source: Source,
        meta: Any = None,
        compressed: bool = True,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Read a whole source into memory, tile by tile.

        Parameters
        ----------
        source : Source
            For example what :func:`mlarray.open_source` returns.
        meta : mapping or Meta, optional
            Default: header and geometry of the source. Geometry that ``meta`` does not state is always the source's.
        compressed, **storage
            As for :meth:`asarray`.
        """
        return cls._filled(source, StorageOptions.from_keywords(storage), meta, compressed=compressed)

    @classmethod
    def asarray(
        cls,
        array: npt.ArrayLike,
        meta: Any = None,
        *,
        compressed: bool = True,
        axes: AxesLike | None = None,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Return an array in memory with the values of a numpy array.

        Parameters
        ----------
        array : array_like
            Any numeric array.
        meta : mapping or Meta, optional
            A mapping is taken as ``meta.source``.
        compressed : bool
            Compress the voxels (default), or keep a copy as a numpy array.
        axes : str or sequence, optional
            What the axes mean.
        **storage
            See :class:`~mlarray.storage.options.StorageOptions`.
        """
        values = numeric(array)
        source = ArraySource(values, _spec(values.shape, values.dtype, axes))
        return cls._filled(source, StorageOptions.from_keywords(storage), meta, compressed=compressed)

    @classmethod
    def empty(
        cls,
        shape: ShapeLike,
        dtype: npt.DTypeLike,
        meta: Any = None,
        *,
        compressed: bool = True,
        axes: AxesLike | None = None,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Return an array in memory whose values are not defined (they are zeros). Parameters as for :meth:`zeros`."""
        return cls.full(shape, 0, dtype, meta, compressed=compressed, axes=axes, **storage)

    @classmethod
    def zeros(
        cls,
        shape: ShapeLike,
        dtype: npt.DTypeLike,
        meta: Any = None,
        *,
        compressed: bool = True,
        axes: AxesLike | None = None,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Return an array of zeros in memory.

        Parameters
        ----------
        shape, dtype
            Of the array.
        meta, compressed, axes, **storage
            As for :meth:`asarray`.
        """
        return cls.full(shape, 0, dtype, meta, compressed=compressed, axes=axes, **storage)

    @classmethod
    def ones(
        cls,
        shape: ShapeLike,
        dtype: npt.DTypeLike | None = None,
        meta: Any = None,
        *,
        compressed: bool = True,
        axes: AxesLike | None = None,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Return an array of ones in memory; ``dtype`` defaults to float64. Other parameters as for :meth:`zeros`."""
        kind = np.dtype(np.float64 if dtype is None else dtype)
        return cls.full(shape, 1, kind, meta, compressed=compressed, axes=axes, **storage)

    @classmethod
    def full(
        cls,
        shape: ShapeLike,
        fill_value: complex | bool,
        dtype: npt.DTypeLike | None = None,
        meta: Any = None,
        *,
        compressed: bool = True,
        axes: AxesLike | None = None,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Return an array in memory filled with one value; ``dtype`` defaults to that of ``fill_value``."""
        kind = np.asarray(fill_value).dtype if dtype is None else np.dtype(dtype)

        def fill(_: Region, target: NDArray) -> None:
            target.fill(fill_value)

        source = GeneratedSource(_spec(_shape(shape), kind, axes), fill)
        return cls._filled(source, StorageOptions.from_keywords(storage), meta, compressed=compressed, sampled=False)

    @classmethod
    def arange(
        cls,
        start: float,
        stop: float | None = None,
        step: float | None = 1,
        dtype: npt.DTypeLike | None = None,
        shape: ShapeLike | None = None,
        c_order: bool = True,
        meta: Any = None,
        *,
        compressed: bool = True,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Return evenly spaced values in memory, as ``numpy.arange``.

        Parameters
        ----------
        start, stop, step : number
            With one number, the range starts at 0. ``stop`` is not included.
        dtype : dtype, optional
            Default: as numpy chooses.
        shape : int or sequence of int, optional
            Default: one axis with all values. Its size must be the number of values.
        c_order : bool
            Whether values run along the last axis first; both give the same array here, which is always in C order.
        meta, compressed, **storage
            As for :meth:`asarray`; without ``patch_size`` and ``layout`` blosc2 chooses the layout.
        """
        low, high, width = (0 if stop is None else start, start if stop is None else stop, 1 if step is None else step)
        if width == 0:
            raise UsageError("A range needs a step other than 0.")
        values = np.arange(low, high, width, dtype=dtype)
        return cls._reshaped(values, shape, meta, dict(storage), compressed=compressed)

    @classmethod
    def linspace(
        cls,
        start: complex,
        stop: complex,
        num: int | None = None,
        dtype: npt.DTypeLike | None = None,
        endpoint: bool = True,
        shape: ShapeLike | None = None,
        c_order: bool = True,
        meta: Any = None,
        *,
        compressed: bool = True,
        **storage: Unpack[StorageKwargs],
    ) -> Self:
        """Return ``num`` evenly spaced samples from ``start`` to ``stop`` in memory, as ``numpy.linspace``.

        Parameters
        ----------
        start, stop : number
            First and last value; with ``endpoint=False`` the last is left out.
        num : int, optional
            Number of samples; needed without ``shape``.
        dtype : dtype, optional
            Default: float64 or complex128.
        shape, c_order, meta, compressed, **storage
            As for :meth:`arange`.
        """
        if num is None and shape is None:
            raise UsageError("linspace needs the number of samples: give num or shape.")
        count = math.prod(_shape(shape)) if num is None and shape is not None else int(num or 0)
        values = np.linspace(start, stop, count, endpoint=endpoint, dtype=dtype)
        return cls._reshaped(values, shape, meta, dict(storage), compressed=compressed)

    @classmethod
    def empty_like(cls, x: Any, dtype: npt.DTypeLike | None = None, meta: Any = None, **arguments: Any) -> Self:
        """Return :meth:`empty` with shape, dtype and (of an ``MLArray``) metadata of ``x``, where not given."""
        return cls.full_like(x, 0, dtype, meta, **arguments)

    @classmethod
    def zeros_like(cls, x: Any, dtype: npt.DTypeLike | None = None, meta: Any = None, **arguments: Any) -> Self:
        """Return :meth:`zeros` with shape, dtype and (of an ``MLArray``) metadata of ``x``, where not given."""
        return cls.full_like(x, 0, dtype, meta, **arguments)

    @classmethod
    def ones_like(cls, x: Any, dtype: npt.DTypeLike | None = None, meta: Any = None, **arguments: Any) -> Self:
        """Return :meth:`ones` with shape, dtype and (of an ``MLArray``) metadata of ``x``, where not given."""
        return cls.full_like(x, 1, dtype, meta, **arguments)

    @classmethod
    def full_like(
        cls, x: Any, fill_value: complex | bool, dtype: npt.DTypeLike | None = None, meta: Any = None, **arguments: Any
    ) -> Self:
        """Return :meth:`full` with shape, dtype and (of an ``MLArray``) metadata of ``x``, where not given."""
        if not hasattr(x, "shape") or not hasattr(x, "dtype") or x.shape is None:
            raise DTypeError(f"An array with shape and dtype is needed as a model, got {type(x).__name__}.")
        if meta is None and isinstance(x, Constructors):
            meta = deepcopy(x.meta)  # type: ignore[attr-defined]
            arguments.setdefault("axes", x.axes if meta.spatial.axis_labels else None)  # type: ignore[attr-defined]
        return cls.full(x.shape, fill_value, x.dtype if dtype is None else dtype, meta, **arguments)

    @classmethod
    def comp_blosc2_params(
        cls,
        image_size: Sequence[int],
        patch_size: Sequence[int],
        spatial_axis_mask: Sequence[bool] | None = None,
        bytes_per_pixel: int = 4,
        l1_cache_size_per_core_in_bytes: int | None = None,
        l3_cache_size_per_core_in_bytes: int | None = None,
        safety_factor: float = 0.8,
    ) -> tuple[list[int], list[int]]:
        """Return the chunk size and the block size for a patch size.

        Parameters
        ----------
        image_size : sequence of int
            Array shape.
        patch_size : sequence of int
            Per spatial axis.
        spatial_axis_mask : sequence of bool, optional
            Which axes are spatial; default: all.
        bytes_per_pixel : int
            Bytes per element.
        l1_cache_size_per_core_in_bytes, l3_cache_size_per_core_in_bytes : int, optional
            When given, ``safety_factor`` of them replace the limits for blocks (128 KiB) and chunks (6 MiB).
        safety_factor : float
            Part of a cache that may be filled.

        Returns
        -------
        chunk_size, block_size : list of int
            Per array axis.
        """
        limits: dict[str, Any] = {}
        if l1_cache_size_per_core_in_bytes is not None:
            limits["block_limit_bytes"] = int(l1_cache_size_per_core_in_bytes * safety_factor)
        if l3_cache_size_per_core_in_bytes is not None:
            limits["chunk_limit_bytes"] = int(l3_cache_size_per_core_in_bytes * safety_factor)
        layout = layout_for_patch(
            tuple(image_size), bytes_per_pixel, patch_size=patch_size, spatial=spatial_axis_mask, **limits
        )
        return list(layout.chunks or ()), list(layout.blocks or ())

    @classmethod
    def _reshaped(
        cls, values: NDArray, shape: ShapeLike | None, meta: Any, storage: dict[str, Any], *, compressed: bool
    ) -> Self:
        extent = _shape(values.size if shape is None else shape)
        if math.prod(extent) != values.size:
            raise UsageError(f"{values.size} values do not fill an array of shape {extent}.")
        if "layout" not in storage:
            storage.setdefault("patch_size", None)
        return cls.asarray(values.reshape(extent), meta, compressed=compressed, **storage)


def metadata_from(meta: Mapping[str, Any] | Meta | None) -> Meta:
    """Return the metadata that a caller gave: a mapping is the source's header, a ``Meta`` is used as it is."""
    if meta is None:
        return Meta()
    if isinstance(meta, Meta):
        return meta
    if isinstance(meta, Mapping):
        return Meta(source=dict(meta))
    raise UsageError(f"meta is a mapping or a Meta, got {type(meta).__name__}.")


def target_path(filepath: str | Path) -> Path:
    """Return the path of a file to write, which must end in ``.mla``."""
    path = Path(filepath)
    if path.suffix.lower() != SUFFIX:
        raise UsageError(f"An MLArray file ends in {SUFFIX!r}, got {path.name!r}.", hint="Other formats: mla convert.")
    return path


def numeric(array: npt.ArrayLike) -> NDArray:
    """Return an array of numbers, refusing objects and strings."""
    values = np.asarray(array)
    if values.dtype.kind not in "biufc":
        raise DTypeError(f"An array of numbers is needed, got {type(array).__name__} with dtype {values.dtype}.")
    return values


def _readable(filepath: str | Path) -> Path:
    path = Path(filepath)
    if path.suffix.lower() not in READABLE_SUFFIXES:
        raise UsageError(
            f"An MLArray file ends in {SUFFIX!r}, got {path.name!r}.",
            hint="mlarray.open_source reads other formats, mla convert converts them.",
        )
    return path


def _shape(shape: ShapeLike) -> tuple[int, ...]:
    entries = np.atleast_1d(np.asarray(shape))
    if entries.ndim != 1 or (entries.size and entries.dtype.kind not in "iu") or np.any(entries < 0):
        raise UsageError(f"A shape is made of integers from 0 on, got {shape!r}.")
    return tuple(int(extent) for extent in entries)


def _spec(shape: tuple[int, ...], dtype: np.dtype[Any], axes: AxesLike | None) -> ArraySpec:
    return ArraySpec(shape, dtype, () if axes is None else parse_axes(axes))
