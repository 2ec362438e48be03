"""The only place where a layout is derived and a store is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlarray.errors import FormatError, UsageError
from mlarray.layout import Layout, stored_layout
from mlarray.sources.base import NDArray
from mlarray.spec import ArraySpec
from mlarray.storage.blosc import BloscStore, create_store
from mlarray.storage.filters import NO_DATA, ONE_BYTE, FilterChoice, choose_filter
from mlarray.storage.options import (
    COMPRESSION_LEVEL,
    COMPRESSION_THREADS,
    DECOMPRESSION_THREADS,
    StorageOptions,
    params_as_record,
)

LAYOUT_RECORD = "mla_layout"
_LZ4HC = 2


@dataclass(frozen=True, slots=True)
class Allocation:
    """A new store and the choices behind it.

    Parameters
    ----------
    store : BloscStore
        Empty, writable.
    layout : Layout
        Chunks and blocks, with the reason.
    filter : FilterChoice or None
        None where the caller gave compression parameters.
    fields : mapping
        For ``meta.blosc2``: sizes as stored and parameters, plain values.
    """

    store: BloscStore
    layout: Layout
    filter: FilterChoice | None
    fields: Mapping[str, Any]


def allocate(
    spec: ArraySpec,
    options: StorageOptions,
    *,
    path: Path | None = None,
    layout: Layout | None = None,
    sample: NDArray | None = None,
    place: str = "the centre",
    threads: int = COMPRESSION_THREADS,
) -> Allocation:
    """Choose layout and filter for an array and create its store.

    Parameters
    ----------
    spec : ArraySpec
        The array; its dtype is stored in native byte order.
    options : StorageOptions
        What the caller asked for.
    path : Path, optional
        As for :func:`mlarray.storage.blosc.create_store`.
    layout : Layout, optional
        Chosen already; default: what the options ask for.
    sample : ndarray, optional
        Voxels to choose the filter by, see :func:`mlarray.storage.filters.sample_region`; default: SHUFFLE,
        or none for one-byte values.
    place : str
        Where the sample comes from.
    threads : int
        Compression threads, where the caller gave no parameters.

    Raises
    ------
    LayoutError
        When the sizes asked for cannot be stored.
    """
    refuse_without_axes(spec)
    layout = layout or options.layout_for(spec)
    dtype = spec.dtype.newbyteorder("=")
    choice = None
    if options.cparams is None:
        without = ONE_BYTE if dtype.itemsize == 1 else NO_DATA
        choice = without if sample is None else choose_filter(sample, layout, threads=threads, place=place)
    store = create_store(
        spec.shape,
        dtype,
        layout,
        path=path,
        cparams=options.cparams,
        dparams=options.dparams,
        shuffle=True if choice is None else choice.shuffle,
        threads=threads,
    )
    stored = stored_layout(spec.shape, chunks=store.chunks, blocks=store.blocks)
    fields = {
        "chunk_size": list(stored.chunks or ()),
        "block_size": list(stored.blocks or ()),
        "patch_size": None if layout.patch_size is None else list(layout.patch_size),
        "cparams": compression_fields(choice) if choice is not None else params_as_record(options.cparams),
        "dparams": params_as_record(options.dparams) or {"nthreads": DECOMPRESSION_THREADS},
    }
    store.put_record(LAYOUT_RECORD, layout_record(layout, choice))
    return Allocation(store, layout, choice, fields)


def refuse_without_axes(spec: ArraySpec) -> None:
    """Raise for an array of no axes, which no chunk can hold."""
    if spec.ndim == 0:
        raise UsageError("An array without axes cannot be stored.", hint="Give it one axis: array.reshape(1).")


def compression_fields(choice: FilterChoice) -> dict[str, Any]:
    """Return the default parameters as ``meta.blosc2.cparams`` holds them, with the numbers that blosc2 gives them."""
    return {"codec": _LZ4HC, "clevel": COMPRESSION_LEVEL, "filters": [int(choice.shuffle)]}


def layout_of(store: BloscStore, patch_size: Sequence[int] | None) -> Layout:
    """Return the layout of a stored array with the reason its writer left."""
    try:
        record = store.record(LAYOUT_RECORD)
    except FormatError:  # only the reason is lost
        record = None
    reason = record.get("layout") if isinstance(record, dict) else None
    layout = stored_layout(store.shape, chunks=store.chunks, blocks=store.blocks, patch_size=patch_size)
    return replace(layout, reason=str(reason)) if reason else layout


def layout_record(layout: Layout, choice: FilterChoice | None) -> dict[str, str]:
    """Return the reasons for layout and filter, to be stored beside the array."""
    filter_reason = "Given by the caller." if choice is None else choice.reason
    return {"layout": layout.reason, "filter": filter_reason}
