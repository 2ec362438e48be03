"""The one list of storage arguments: how an array is laid out and compressed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Literal, TypeAlias, TypedDict, cast

from mlarray.errors import UsageError
from mlarray.layout import DEFAULT_LAYOUT, Layout, LayoutName, resolve_layout
from mlarray.spec import ArraySpec

PatchSize: TypeAlias = "int | Sequence[int] | Literal['default'] | None"
SizeLike: TypeAlias = "int | Sequence[int] | None"
Params: TypeAlias = "Mapping[str, Any] | Any | None"

COMPRESSION_THREADS = 4
DECOMPRESSION_THREADS = 1
COMPRESSION_LEVEL = 5


@dataclass(frozen=True, slots=True)
class Compression:
    """How a store compresses.

    Parameters
    ----------
    codec : str
        Name of the codec, ``"LZ4HC"``.
    level : int
        Compression level.
    filters : tuple of str
        Names of the filters in use, in order.
    """

    codec: str
    level: int
    filters: tuple[str, ...]


class LimitKwargs(TypedDict, total=False):
    """The limits of the layout rule as keywords."""

    block_limit_bytes: int
    chunk_limit_bytes: int
    chunk_patch_factor: float


class StorageKwargs(LimitKwargs, total=False):
    """Keyword form of :class:`StorageOptions`."""

    patch_size: PatchSize
    chunk_size: SizeLike
    block_size: SizeLike
    cparams: Params
    dparams: Params
    layout: LayoutName


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How an array is to be stored.

    Parameters
    ----------
    patch_size : int, sequence of int, "default" or None
        The patch that will be read, per spatial axis; the layout follows from it. ``"default"`` is 192 per axis, None lets
        blosc2 choose.
    chunk_size, block_size : int or sequence of int, optional
        Explicit extents per array axis; both or none, and not together with a patch size.
    cparams : mapping or blosc2.CParams, optional
        Replaces all of LZ4HC level 5, 4 threads and the choice of the filter.
    dparams : mapping or blosc2.DParams, optional
        Replaces 1 thread.
    block_limit_bytes, chunk_limit_bytes : int, optional
        Largest block and chunk. Default: as ``layout`` says, 128 KiB and 6 MiB.
    chunk_patch_factor : float, optional
        Largest chunk extent in units of the patch extent. Default: as ``layout`` says, 1.5.
    layout : {"nnunet", "small-blocks"}
        Name of the three limits: ``"small-blocks"`` has blocks of at most 16 KiB in chunks of at most 1.5 MiB. It needs a
        patch size, which may be the default.
    """

    patch_size: PatchSize = "default"
    chunk_size: SizeLike = None
    block_size: SizeLike = None
    cparams: Params = None
    dparams: Params = None
    block_limit_bytes: int | None = None
    chunk_limit_bytes: int | None = None
    chunk_patch_factor: float | None = None
    layout: LayoutName = DEFAULT_LAYOUT

    @classmethod
    def from_keywords(cls, keywords: StorageKwargs, *, others: Sequence[str] = ()) -> StorageOptions:
        """Build options from what a caller of :class:`~mlarray.array.MLArray` gave beside the keywords ``others``.

        Raises
        ------
        TypeError
            For a keyword that is none, as Python raises it, with the name that may have been meant.
        """
        known = [field.name for field in fields(cls)]
        unknown = next((name for name in keywords if name not in known), None)
        if unknown is not None:
            near = get_close_matches(unknown, [*others, *known], n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"MLArray got an unexpected keyword argument {unknown!r}{hint}")
        return cls(**keywords)

    @classmethod
    def from_mapping(cls, arguments: Mapping[str, Any]) -> StorageOptions:
        """Build options from keyword arguments, refusing names that are none."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(arguments) - known)
        if unknown:
            raise UsageError(f"Unknown storage arguments {', '.join(unknown)}; known are {', '.join(sorted(known))}.")
        return cls(**cast("StorageKwargs", dict(arguments)))

    def layout_for(self, spec: ArraySpec) -> Layout:
        """Return the chunks and blocks for an array, with the reason."""
        return resolve_layout(
            spec.shape,
            spec.dtype.itemsize,
            spatial=spec.spatial,
            patch_size=self.patch_size,
            chunk_size=self.chunk_size,
            block_size=self.block_size,
            layout=self.layout,
            block_limit_bytes=self.block_limit_bytes,
            chunk_limit_bytes=self.chunk_limit_bytes,
            chunk_patch_factor=self.chunk_patch_factor,
        )


def params_as_record(params: Params) -> dict[str, Any]:
    """Return compression parameters as plain values that metadata can hold: numbers, lists, strings."""

    def plain(value: object) -> object:
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, (list, tuple)):
            return [plain(entry) for entry in value]
        return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)

    given: Any = params or {}
    mapping = asdict(given) if is_dataclass(given) and not isinstance(given, type) else dict(given)
    return {str(key): plain(value) for key, value in mapping.items()}
