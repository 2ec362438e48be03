"""How will one case be converted, and what will it cost? Decided from headers alone.

The plan of a case says which tiles are copied, whether a compressed source has to be decoded into a temporary file first,
and how much memory that takes at most. What the converter then does is this plan; a dry run shows it and stops.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import MemoryLimitError
from mlarray.formats.registry import module_of
from mlarray.formats.table import Format
from mlarray.layout import Layout
from mlarray.sources.base import Access, Note, Source, SourceInfo
from mlarray.sources.raw import LONGEST_RUN_BYTES
from mlarray.sources.scaled import ScaledSource
from mlarray.sources.tiles import TilePlan, plan_tiles
from mlarray.spec import ArraySpec
from mlarray.storage.filters import sample_region
from mlarray.storage.packing import HELD_CHUNKS
from mlarray_convert.discovery import Case
from mlarray_convert.labels import is_narrow
from mlarray_convert.places import size_of
from mlarray_convert.request import CHUNK_FORMATS, Request

DECODER_BYTES = 16 * 1024 * 1024  # buffers of gzip, zlib and bzip2, and what the allocator keeps back
_PACKING_PART = 0.25  # of what is left of the limit may go into compressing chunks side by side
_MARGIN_BYTES = 3_000_000  # by how much two workers may differ that have done the same
_EXPECTED_LABEL = np.dtype(np.uint8)
_IMAGE_RATIO, _LABEL_RATIO = 0.55, 0.04  # compressed to raw size, typical of CT and MR and of segmentations


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may use.

    Parameters
    ----------
    memory_bytes : int
        Peak resident memory of the worker.
    threads : int
        Compression threads.
    base_bytes : int
        What the worker uses before it opens a file: interpreter and libraries, as measured.
    """

    memory_bytes: int
    threads: int = 1
    base_bytes: int = 120_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """What the tiles must suit.

    Parameters
    ----------
    access : Access
        ``SLAB`` when voxels must arrive in storage order.
    order : tuple of int
        Array axes from the slowest to the fastest in storage.
    chunks : tuple of int or None
        Chunk extent; None for a target without chunks.
    """

    access: Access
    order: tuple[int, ...]
    chunks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CasePlan:
    """How one case will be converted.

    Parameters
    ----------
    case : Case
        Which.
    source_spec, spec : ArraySpec
        What is read and what will be stored.
    dtype_reason : str
        Why the stored dtype is another one; empty when it is not.
    layout : Layout or None
        Chunks and blocks with the reason; None for formats without chunks.
    target : Target
        What the tiles were made for.
    tiles : TilePlan
        What is copied at a time.
    spool : bool
        Whether the source is decoded into a temporary file first.
    peak_bytes, limit_bytes : int
        Predicted peak memory of the worker, and its limit.
    bytes_in : int
        Size of the source files.
    estimated_bytes : int
        Expected size of the output.
    notes : tuple of Note
        How the source was understood, and what the target cannot keep.
    files : tuple of Path
        The source files.
    as_stored : bool
        Whether the chunks are copied as they are, without decompressing them.
    read_ahead : bool
        Whether the next tile is read while one is written.
    """

    case: Case
    source_spec: ArraySpec
    spec: ArraySpec
    dtype_reason: str
    layout: Layout | None
    target: Target
    tiles: TilePlan
    spool: bool
    peak_bytes: int
    limit_bytes: int
    bytes_in: int
    estimated_bytes: int
    notes: tuple[Note, ...]
    files: tuple[Path, ...]
    as_stored: bool = False
    read_ahead: bool = False


def plan_case(
    case: Case, request: Request, source: Source, limits: Limits, *, dtype: np.dtype[Any] | None = None
) -> CasePlan:
    """Plan the conversion of one case.

    Parameters
    ----------
    case, request
        What and how.
    source : Source
        The opened case.
    limits : Limits
        Memory and threads.
    dtype : numpy dtype, optional
        Type of a segmentation whose values are known. Default: that of the source; for segmentations in a wide type the
        expected one, uint8.

    Returns
    -------
    CasePlan
        Whose ``peak_bytes`` is at most the limit.

    Raises
    ------
    MemoryLimitError
        When not even one chunk fits into the limit; the message has both figures.
    MLArrayError
        When the target cannot hold the array.
    """
    kept = kept_layout(case, request, source)
    kind, why = _stored_dtype(case, source.spec.dtype, source.spec.dtype if kept is not None else dtype)
    spec = replace(source.spec, dtype=kind)
    info = info_for(case, source)
    losses = module_of(request.target).losses(spec, info)
    layout = kept if kept is not None else planned_layout(request.target, spec, request.storage)
    # Whether a header-and-block format compresses is known once its file is made; storage order suits both.
    access = Access.SLAB if layout is None and not _is_plain(request) else Access.REGION
    target = Target(access, tuple(range(spec.ndim)), layout.chunks if layout is not None else None)
    memory = Memory.of(source, spec, target, request, limits)
    tiles, spool = choose_tiles(source, spec, target, memory)
    memory = memory.after_spooling() if spool else memory
    bytes_in = sum(map(size_of, source.info.files))
    peak = memory.peak_bytes(tiles)
    ahead = not spool and is_one_pass(source) and len(tiles) > 1 and peak + tiles.tile_bytes <= limits.memory_bytes
    return CasePlan(
        case,
        source.spec,
        spec,
        why,
        layout,
        target,
        tiles,
        spool,
        peak + (tiles.tile_bytes if ahead else 0),
        limits.memory_bytes,
        bytes_in,
        bytes_in if kept is not None else _estimate(case, request, spec, source.spec.nbytes, bytes_in),
        source.info.notes + tuple(losses),
        source.info.files,
        kept is not None,
        ahead and kept is None,
    )


def is_one_pass(source: Source) -> bool:
    """Tell whether a source is slow enough that a voxel should be read once, and while others are compressed."""
    return bool(getattr(source, "one_pass", False))


@dataclass(frozen=True, slots=True)
class Memory:
    """What copying costs: a fixed part, and bytes for every byte of a tile.

    Parameters
    ----------
    fixed_bytes : int
        Interpreter and libraries, decoder, buffers for runs and chunks.
    per_tile_byte : float
        Buffers that grow with the tile: the tile, its stored form where that is another, and a reordered copy.
    limit_bytes : int
        What all together may be.
    hold_bytes : int
        Part of the fixed bytes: what the sink may hold back of an array that arrives in order.
    at_once : int
        Chunks that are compressed side by side; what they take is part of the fixed bytes.
    """

    fixed_bytes: int
    per_tile_byte: float
    limit_bytes: int
    hold_bytes: int = 0
    at_once: int = 1

    @classmethod
    def of(cls, source: Source, spec: ArraySpec, target: Target, request: Request, limits: Limits) -> Memory:
        """Return the cost of copying ``source`` into ``target``."""
        itemsize = spec.dtype.itemsize
        copies = 1.0
        if isinstance(getattr(source, "inner", source), ScaledSource) or source.spec.dtype != spec.dtype:
            copies += source.spec.dtype.itemsize / itemsize  # the values as stored, beside those that are kept
        chunk_bytes = 0
        if request.target.name not in CHUNK_FORMATS:
            copies += 1.0  # a file in another axis or byte order takes a reordered copy
        elif target.chunks is not None:
            chunk_bytes = math.prod(target.chunks) * itemsize
        # A chunk as it is gathered, compressed, and as the sample for the filter; the scratch of a thread is far smaller.
        fixed = limits.base_bytes + DECODER_BYTES + min(LONGEST_RUN_BYTES, spec.nbytes) + 3 * chunk_bytes
        fixed += int(getattr(source, "held_bytes", 0)) + _sink_scratch(request, spec, limits)
        hold, row = _until_centre(source, spec, target, request)
        if fixed + hold + int(row * copies) > limits.memory_bytes:
            hold = 0  # the filter is then chosen by what comes first
        spare = int((limits.memory_bytes - fixed - hold) * _PACKING_PART)
        each = HELD_CHUNKS * chunk_bytes
        at_once = max(1, min(limits.threads, spare // each)) if each else 1
        return cls(fixed + hold + (at_once - 1) * each, copies, limits.memory_bytes, hold, at_once)

    def after_spooling(self) -> Memory:
        """Return the cost once the source is a raw file: its centre can be read, so nothing is held back."""
        return replace(self, fixed_bytes=self.fixed_bytes - self.hold_bytes, hold_bytes=0)

    @property
    def tile_budget(self) -> int:
        """Largest tile, in bytes, that stays within the limit."""
        return max(0, int((self.limit_bytes - self.fixed_bytes) / self.per_tile_byte))

    def peak_bytes(self, tiles: TilePlan) -> int:
        """Return the predicted peak for copying ``tiles``."""
        whole = math.prod(tiles.shape) * tiles.itemsize
        return self.fixed_bytes + int(min(tiles.tile_bytes, whole) * self.per_tile_byte)


def _sink_scratch(request: Request, spec: ArraySpec, limits: Limits) -> int:
    """Return what the target holds beside the tile that is written, where its module says so."""
    count = getattr(module_of(request.target), "scratch_bytes", None)
    return 0 if count is None else int(count(spec, request.storage, limits.threads))


def _until_centre(source: Source, spec: ArraySpec, target: Target, request: Request) -> tuple[int, int]:
    """Return the bytes that a forward-only source yields until its centre has been seen, and those of one row of chunks.

    A sink with chunks chooses the filter by the centre; 0 where it can be read first, or where nothing depends on it.
    """
    samples = request.target.name in CHUNK_FORMATS and spec.dtype.itemsize > 1 and spec.size > 0
    if source.access is not Access.SLAB or target.chunks is None or not samples:
        return 0, 0
    axis = next((axis for axis in source.order if spec.shape[axis] > 1), source.order[-1])
    extent, chunk = spec.shape[axis], target.chunks[axis]
    stop = sample_region(spec.shape, target.chunks).stop[axis]
    seen = min(extent, -(-stop // chunk) * chunk)
    return spec.nbytes * seen // extent, spec.nbytes * chunk // extent


def choose_tiles(source: Source, spec: ArraySpec, target: Target, memory: Memory) -> tuple[TilePlan, bool]:
    """Choose the tiles, and whether the source must be decoded into a temporary file first.

    A compressed stream can only be read forward, and a compressed target only be written forward. Where the other side has
    chunks and a whole row of them does not fit into memory, or the two want different orders, the source is decoded once
    into a raw file, of which any region can then be read.

    Raises
    ------
    MemoryLimitError
        When neither way stays within the limit.
    """
    forward = target.access is Access.SLAB
    chunks = target.chunks if target.chunks is not None else getattr(source, "chunks", None)
    order = target.order if forward else source.order
    access = Access.SLAB if forward and source.access is Access.REGION else source.access
    refused: MemoryLimitError | None = None
    if source.access is not Access.SLAB or not forward or source.order == target.order:
        try:
            grain = getattr(source, "grain", None)
            budget = memory.tile_budget
            return plan_tiles(spec, chunks, access=access, order=order, budget_bytes=budget, grain=grain), False
        except MemoryLimitError as error:
            refused = error
    one_side_forward = (source.access is Access.SLAB) or (forward and source.access is Access.REGION)
    memory = memory.after_spooling()
    try:
        if refused is not None and not one_side_forward:
            raise refused
        tiles = plan_tiles(
            spec, target.chunks, access=target.access, order=target.order, budget_bytes=memory.tile_budget
        )
    except MemoryLimitError as error:
        least = error if refused is None else min(error, refused, key=lambda one: one.needed_bytes)
        raise _too_little(memory, least) from error
    return tiles, True


def spool_tiles(source: Source, memory: Memory) -> TilePlan:
    """Return the tiles for decoding a source into a raw file, which takes them in any order."""
    chunks = getattr(source, "chunks", None) if source.access is Access.REGION else None
    try:
        return plan_tiles(
            source.spec, chunks, access=source.access, order=source.order, budget_bytes=memory.tile_budget
        )
    except MemoryLimitError as error:
        raise _too_little(memory, error) from error


def kept_layout(case: Case, request: Request, source: Source) -> Layout | None:
    """Return the layout whose chunks are copied as they are, or None where the voxels are stored anew.

    Both sides must store the same kind of chunks, and nothing else be asked for: no layout, and no smaller type for the labels
    of a segmentation that is not stored in whole numbers.
    """
    if request.target.name not in CHUNK_FORMATS or request.storage:
        return None
    if case.is_label and source.spec.dtype.kind not in "biu":
        return None
    layout: Layout | None = getattr(source, "kept_layout", None)
    return layout


def planned_layout(target: Format, spec: ArraySpec, storage: Mapping[str, object]) -> Layout | None:
    """Return the chunks that a file of the target format will have, or None for formats without."""
    module: Any = importlib.import_module("mlarray.formats.mla") if target.name in CHUNK_FORMATS else module_of(target)
    layout: Layout | None = module.plan_layout(spec, storage) if hasattr(module, "plan_layout") else None
    return layout


def cache_bytes(source: Source, plan: CasePlan) -> int | None:
    """Return how large the cache of a source of chunks should be, or None for a source without one.

    Chunks that reach beyond a tile are needed again by the tiles beside it. What holds all that lie across one tile along the
    slowest axis lets each be decoded once; of that, what the limit leaves is given.
    """
    chunks = getattr(source, "chunks", None)
    if chunks is None or not hasattr(source, "resize_cache"):
        return None
    shape, slowest = source.spec.shape, source.order[0]
    across = min(shape[slowest], (-(-plan.tiles.tile[slowest] // chunks[slowest]) + 1) * chunks[slowest])
    needed = math.prod(shape) // shape[slowest] * across * source.spec.dtype.itemsize
    spare = max(0, plan.limit_bytes - plan.peak_bytes)
    held: int = getattr(source, "held_bytes", 0)
    return int(min(needed, spare + held))


def info_for(case: Case, source: Source) -> SourceInfo:
    """Return what is handed to the target beyond the voxels."""
    return replace(source.info, is_seg=True) if case.is_label else source.info


def _stored_dtype(case: Case, stored: np.dtype[Any], known: np.dtype[Any] | None) -> tuple[np.dtype[Any], str]:
    native = stored.newbyteorder("=")
    if known is not None:
        why = "" if known == native else "smallest integer type that holds the labels"
        return known, why
    if not case.is_label or is_narrow(stored):
        return native, ""
    return _EXPECTED_LABEL, "expected; the smallest integer type that holds the labels, known once they are read"


def _too_little(memory: Memory, error: MemoryLimitError) -> MemoryLimitError:
    least = memory.fixed_bytes + int(error.needed_bytes * memory.per_tile_byte)
    rounded = -(-(least + _MARGIN_BYTES) // 10_000_000) * 10  # MB
    return MemoryLimitError(
        f"The memory limit of {memory.limit_bytes / 1e6:.0f} MB is too low: {memory.fixed_bytes / 1e6:.0f} MB are used "
        f"without any voxel, and the smallest piece that can be copied needs {least / 1e6:.0f} MB in all.",
        hint=f"Give at least --memory {rounded}MB, or choose a smaller --patch-size.",
        needed_bytes=least,
    )


def _is_plain(request: Request) -> bool:
    return request.suffix.lower() == ".nii"


def _estimate(case: Case, request: Request, spec: ArraySpec, source_bytes: int, bytes_in: int) -> int:
    if _is_plain(request):
        return spec.nbytes
    if case.is_label:
        return int(spec.nbytes * _LABEL_RATIO) + 4096
    packed = bytes_in < 0.9 * source_bytes
    return min(spec.nbytes, bytes_in) if packed else int(spec.nbytes * _IMAGE_RATIO) + 4096
