"""Which chunks and blocks an array should be stored in.

A *chunk* is the unit on disk and the unit fetched from storage; a *block* is the unit decompressed. The numbers follow
the rule that nnU-Net 2.8.1 publishes for its own Blosc2 files, here for any number of axes; every choice comes back as
a :class:`Layout` that says why. Shapes, patches and sizes are plain tuples in array-axis order: which axes are spatial
is the caller's knowledge, what a region then costs to read is the business of :class:`ChunkGrid` (re-exported from
:mod:`mlarray.chunk_grid`), and creating the store is left to :mod:`mlarray.storage`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, SupportsIndex

from mlarray.chunk_grid import ChunkGrid
from mlarray.errors import LayoutError
from mlarray.layout_rule import (
    BLOCK_LIMIT_BYTES,
    CHUNK_LIMIT_BYTES,
    CHUNK_PATCH_FACTOR,
    DEFAULT_LAYOUT,
    MAX_BLOCK_BYTES,
    MAX_CHUNK_BYTES,
    NAMED_LAYOUTS,
    LayoutName,
    Limits,
    grown_chunk,
    padded_bytes,
    shrunk_block,
    target_extent,
)

__all__ = [
    "BLOCK_LIMIT_BYTES",
    "CHUNK_LIMIT_BYTES",
    "CHUNK_PATCH_FACTOR",
    "DEFAULT_LAYOUT",
    "DEFAULT_PATCH_SIZE",
    "MAX_BLOCK_BYTES",
    "MAX_CHUNK_BYTES",
    "NAMED_LAYOUTS",
    "ChunkGrid",
    "Layout",
    "LayoutName",
    "Limits",
    "PatchSize",
    "layout_for_patch",
    "parse_layout_name",
    "resolve_layout",
    "stored_layout",
]

DEFAULT_PATCH_SIZE = 192
"""Patch extent per spatial axis that ``patch_size="default"`` stands for."""

PatchSize = int | Sequence[int] | Literal["default"]
"""What callers may give as patch size: one extent for all spatial axes, one per spatial axis, or the default."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The chosen chunks and blocks with the reason; ``1 <= block <= chunk`` on every axis.

    Parameters
    ----------
    chunks, blocks : tuple of int or None
        Extents in voxels, one per array axis. Both None: blosc2 chooses.
    patch_size : tuple of int or None
        The patch the layout was made for, one extent per spatial axis. None: it was not made for a patch.
    reason : str
        One sentence for people, with the numbers behind the choice.

    Raises
    ------
    LayoutError
        Only one of chunks and blocks is given, their lengths differ, or ``1 <= block <= chunk`` does not hold.

    Examples
    --------
    >>> Layout(chunks=(64, 64), blocks=(16, 32), patch_size=None, reason="chosen by hand").blocks
    (16, 32)
    """

    chunks: tuple[int, ...] | None
    blocks: tuple[int, ...] | None
    patch_size: tuple[int, ...] | None
    reason: str

    def __post_init__(self) -> None:
        if self.chunks is None and self.blocks is None:
            return
        if self.chunks is None or self.blocks is None:
            raise LayoutError(
                f"A layout has both chunks and blocks or neither; got chunks {self.chunks} and blocks {self.blocks}."
            )
        if len(self.chunks) != len(self.blocks):
            raise LayoutError(
                f"Chunks {self.chunks} and blocks {self.blocks} must have the same number of axes; "
                f"got {len(self.chunks)} and {len(self.blocks)}."
            )
        if not all(1 <= block <= chunk for block, chunk in zip(self.blocks, self.chunks, strict=True)):
            raise LayoutError(
                f"Every axis needs 1 <= block <= chunk; got blocks {self.blocks} in chunks {self.chunks}."
            )


def layout_for_patch(
    shape: Sequence[int],
    itemsize: int,
    *,
    patch_size: PatchSize,
    spatial: Sequence[bool] | None = None,
    block_limit_bytes: int = BLOCK_LIMIT_BYTES,
    chunk_limit_bytes: int = CHUNK_LIMIT_BYTES,
    chunk_patch_factor: float = CHUNK_PATCH_FACTOR,
    long_rows: bool = False,
) -> Layout:
    """Choose chunks and blocks for random patches of one size.

    The rule is nnU-Net 2.8.1's, for any number of axes. Blocks start at the power of two that covers the patch and lose
    the relatively longest axis until they fit; chunks grow from one block, relatively shortest axis first, until the
    patch times ``chunk_patch_factor`` or the chunk limit is reached.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array. A zero-sized axis is laid out as if it had one voxel: block and chunk 1.
    itemsize : int
        Bytes per voxel.
    patch_size : int, sequence of int, or "default"
        Patch extent in voxels. An int counts for every spatial axis, ``"default"`` is 192. A sequence shorter than the
        number of spatial axes gets leading ones: a 2D patch on a 3D image reads slices. It may exceed the image.
    spatial : sequence of bool, optional
        Whether each axis is spatial. Default: all are. Other axes get block 1 and chunk 1; without any spatial axis
        a patch has no meaning and blosc2 chooses.
    block_limit_bytes, chunk_limit_bytes : int
        Largest block and chunk in bytes of voxels. Default 128 KiB and 6 MiB.
    chunk_patch_factor : float
        Largest chunk extent per axis as a multiple of the patch extent. Default 1.5. A block that covers the patch may
        exceed it, because it is rounded up to a power of two. ``math.inf`` leaves only the byte limit.

    long_rows : bool
        Halve the first of several equally long axes of a block instead of the last, so that rows along the last axis, each
        copied in one piece, stay long.

    Returns
    -------
    Layout
        With ``1 <= block <= chunk <= max(1, shape)`` on every axis.

    Raises
    ------
    LayoutError
        A size, limit or factor is not a positive number, the patch has more entries than there are spatial axes, or
        one voxel exceeds a limit.

    Examples
    --------
    >>> layout = layout_for_patch((1, 512, 512, 400), 2, patch_size=128, spatial=(False, True, True, True))
    >>> layout.blocks, layout.chunks
    ((1, 64, 32, 32), (1, 192, 128, 128))
    """
    shape = _shape(shape)
    itemsize = _positive(itemsize, "itemsize")
    axes = [axis for axis, is_spatial in enumerate(_spatial(spatial, shape)) if is_spatial]
    patch = _patch(patch_size, len(axes))
    block_limit = _positive(block_limit_bytes, "block_limit_bytes")
    chunk_limit = _positive(chunk_limit_bytes, "chunk_limit_bytes")
    if not chunk_patch_factor > 0:
        raise LayoutError(f"chunk_patch_factor must be a number above 0; got {chunk_patch_factor!r}.")
    if not axes:
        return Layout(
            None, None, None, f"blosc2 chooses: an array of shape {shape} without spatial axes has no patches."
        )

    extent = [max(1, shape[axis]) for axis in axes]
    target = [target_extent(n, p, chunk_patch_factor) for n, p in zip(extent, patch, strict=True)]
    block = shrunk_block(
        extent, patch, target, itemsize=itemsize, limit=min(block_limit, chunk_limit), long_rows=long_rows
    )
    chunk = grown_chunk(block, extent, patch, target, itemsize=itemsize, limit=chunk_limit)

    blocks, chunks = (_on_axes(sizes, axes, len(shape)) for sizes in (block, chunk))
    named = "default patch" if isinstance(patch_size, str) else "patch"
    reason = (
        f"Made for the {named} {_by(patch)} at {itemsize} bytes per voxel: blocks of {_by(blocks)} "
        f"({_amount(math.prod(blocks) * itemsize)}, limit {_amount(block_limit)}) in chunks of {_by(chunks)} "
        f"({_amount(math.prod(chunks) * itemsize)}, limit {_amount(chunk_limit)} "
        f"and {chunk_patch_factor:g} x the patch per axis)."
    )
    return Layout(chunks, blocks, patch, reason)


def resolve_layout(
    shape: Sequence[int],
    itemsize: int,
    *,
    spatial: Sequence[bool] | None = None,
    patch_size: PatchSize | None = "default",
    chunk_size: int | Sequence[int] | None = None,
    block_size: int | Sequence[int] | None = None,
    layout: LayoutName = DEFAULT_LAYOUT,
    block_limit_bytes: int | None = None,
    chunk_limit_bytes: int | None = None,
    chunk_patch_factor: float | None = None,
) -> Layout:
    """Choose the layout that storage arguments ask for: a patch, explicit sizes, or blosc2's own choice.

    Parameters
    ----------
    shape, itemsize, spatial
        As for :func:`layout_for_patch`.
    patch_size : int, sequence of int, "default" or None
        The patch to lay out for. None without explicit sizes lets blosc2 choose. ``"default"`` gives way to explicit
        sizes; any other value excludes them.
    chunk_size, block_size : int or sequence of int, optional
        Explicit extents in voxels, one per array axis; an int counts for every axis. They come together, and are
        clipped to the shape. The three limits below do not apply to them, those of blosc2 do.
    layout : {"nnunet", "small-blocks"}
        Name of the three limits, see :data:`NAMED_LAYOUTS`. Another than the default excludes explicit sizes and
        ``patch_size=None``, and stands in the reason.
    block_limit_bytes, chunk_limit_bytes, chunk_patch_factor
        As for :func:`layout_for_patch`. Default: as the name says.

    Returns
    -------
    Layout
        With chunks and blocks None where blosc2 chooses.

    Raises
    ------
    LayoutError
        The arguments exclude each other, a size is not a positive integer or has the wrong number of entries, a block
        exceeds its chunk, or a block or chunk exceeds what blosc2 can store.

    Examples
    --------
    >>> resolve_layout((40, 50, 60), 4, chunk_size=32, block_size=(8, 16, 16)).chunks
    (32, 32, 32)
    >>> resolve_layout((40, 50, 60), 4, patch_size=None).chunks is None
    True
    """
    named = NAMED_LAYOUTS[parse_layout_name(layout)]
    if layout != DEFAULT_LAYOUT:
        _refuse_beside_name(layout, patch_size, chunk_size=chunk_size, block_size=block_size)
    if chunk_size is None and block_size is None:
        if patch_size is None:
            return Layout(
                None, None, None, "blosc2 chooses: neither a patch size nor chunk and block sizes were given."
            )
        made = layout_for_patch(
            shape,
            itemsize,
            patch_size=patch_size,
            spatial=spatial,
            block_limit_bytes=named.block_limit_bytes if block_limit_bytes is None else block_limit_bytes,
            chunk_limit_bytes=named.chunk_limit_bytes if chunk_limit_bytes is None else chunk_limit_bytes,
            chunk_patch_factor=named.chunk_patch_factor if chunk_patch_factor is None else chunk_patch_factor,
            long_rows=named.long_rows,
        )
        if layout == DEFAULT_LAYOUT or made.chunks is None:
            return made
        return replace(made, reason=f"Layout {layout}, {made.reason[0].lower()}{made.reason[1:]}")
    if chunk_size is None or block_size is None:
        given, missing = ("block_size", "chunk_size") if chunk_size is None else ("chunk_size", "block_size")
        raise LayoutError(f"{given} was given without {missing}; they must come together.", hint=f"Give {missing} too.")
    if not (patch_size is None or (isinstance(patch_size, str) and patch_size == "default")):
        raise LayoutError(
            f"patch_size={patch_size!r} excludes chunk_size={chunk_size!r} and block_size={block_size!r}.",
            hint="Give either the patch size or the chunk and block sizes.",
        )
    return _explicit_layout(_shape(shape), _positive(itemsize, "itemsize"), chunk_size, block_size)


def parse_layout_name(name: object) -> LayoutName:
    """Return the name of a layout that a text is.

    Raises
    ------
    LayoutError
        There is no layout of that name.

    Examples
    --------
    >>> parse_layout_name("small-blocks")
    'small-blocks'
    """
    for known in NAMED_LAYOUTS:
        if name == known:
            return known
    raise LayoutError(f"layout takes {' or '.join(map(repr, NAMED_LAYOUTS))}; got {name!r}.")


def stored_layout(
    shape: Sequence[int],
    *,
    chunks: Sequence[int],
    blocks: Sequence[int],
    patch_size: Sequence[int] | None = None,
) -> Layout:
    """Keep the layout of an existing array for a copy of it.

    Blosc2 itself may store extents beyond the shape, and 0 on a zero-sized axis; both are brought into bounds.

    Parameters
    ----------
    shape, chunks, blocks : sequence of int
        As stored, in array-axis order.
    patch_size : sequence of int, optional
        The patch recorded with the array, kept as it is.

    Returns
    -------
    Layout
        With ``1 <= block <= chunk <= max(1, shape)`` on every axis.

    Raises
    ------
    LayoutError
        The three do not have the same number of axes.

    Examples
    --------
    >>> stored_layout((0, 5), chunks=(0, 8), blocks=(0, 4)).chunks
    (1, 5)
    """
    shape = _shape(shape)
    clipped = _clipped(shape, _per_axis(chunks, "chunks", shape, zero_allowed=True))
    inner = _clipped(shape, _per_axis(blocks, "blocks", shape, zero_allowed=True))
    patch = None if patch_size is None else tuple(_integer(p, "patch_size") for p in patch_size)
    return Layout(clipped, inner, patch, f"Kept as stored: blocks of {_by(inner)} in chunks of {_by(clipped)}.")


def _refuse_beside_name(
    name: str,
    patch_size: PatchSize | None,
    *,
    chunk_size: int | Sequence[int] | None,
    block_size: int | Sequence[int] | None,
) -> None:
    sizes = {"chunk_size": chunk_size, "block_size": block_size}
    given = [f"{key}={value!r}" for key, value in sizes.items() if value is not None]
    if not given and patch_size is None:
        given = ["patch_size=None"]
    if given:
        raise LayoutError(
            f"layout={name!r} makes chunks and blocks for a patch, which {' and '.join(given)} excludes.",
            hint="Give a patch size, or leave the layout out.",
        )


def _explicit_layout(
    shape: tuple[int, ...], itemsize: int, chunk_size: int | Sequence[int], block_size: int | Sequence[int]
) -> Layout:
    chunks = _clipped(shape, _per_axis(chunk_size, "chunk_size", shape))
    blocks = _clipped(shape, _per_axis(block_size, "block_size", shape))
    if any(block > chunk for block, chunk in zip(blocks, chunks, strict=True)):
        raise LayoutError(
            f"block_size {blocks} exceeds chunk_size {chunks} on some axis (shape {shape}); "
            "a block lies inside one chunk.",
            hint="Make the blocks smaller or the chunks larger.",
        )
    block_bytes = math.prod(blocks) * itemsize
    if block_bytes > MAX_BLOCK_BYTES:
        raise LayoutError(
            f"Blocks of {blocks} in shape {shape} hold {block_bytes} bytes at {itemsize} bytes per voxel; "
            f"blosc2 stores at most {MAX_BLOCK_BYTES} bytes in a block.",
            hint="Choose a smaller block_size.",
        )
    padded = padded_bytes(chunks, blocks, itemsize)
    if padded > MAX_CHUNK_BYTES:
        raise LayoutError(
            f"Chunks of {chunks} in shape {shape} hold {padded} bytes in whole blocks of {blocks} at {itemsize} bytes "
            f"per voxel; blosc2 stores at most {MAX_CHUNK_BYTES} bytes in a chunk (2**31 - 1 less its 32-byte header).",
            hint="Choose a smaller chunk_size, or give a patch_size instead.",
        )
    reason = (
        f"Given by the caller: blocks of {_by(blocks)} ({_amount(block_bytes)}) in chunks of "
        f"{_by(chunks)} ({_amount(math.prod(chunks) * itemsize)})."
    )
    return Layout(chunks, blocks, None, reason)


def _integer(value: SupportsIndex, name: str) -> int:
    # bool is an int to Python, but chunk_size=True is a slip and not a size.
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise LayoutError(f"{name} takes integers; got {value!r}.")


def _positive(value: SupportsIndex, name: str) -> int:
    number = _integer(value, name)
    # Beyond 64 bits no array exists, and the float arithmetic of the rule would overflow.
    if not 1 <= number < 2**63:
        raise LayoutError(f"{name} must be at least 1 and below 2**63; got {number}.")
    return number


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    extents = tuple(_integer(n, "shape") for n in shape)
    if any(n < 0 for n in extents):
        raise LayoutError(f"A shape has no negative extents; got {extents}.")
    return extents


def _spatial(spatial: Sequence[bool] | None, shape: tuple[int, ...]) -> tuple[bool, ...]:
    if spatial is None:
        return (True,) * len(shape)
    flags = tuple(bool(flag) for flag in spatial)
    if len(flags) != len(shape):
        raise LayoutError(f"spatial needs one entry per axis of shape {shape}; got {len(flags)}: {flags}.")
    return flags


def _patch(patch_size: PatchSize, spatial_axes: int) -> tuple[int, ...]:
    if isinstance(patch_size, str):
        if patch_size != "default":
            raise LayoutError(f'patch_size takes an int, one int per spatial axis or "default"; got {patch_size!r}.')
        return (DEFAULT_PATCH_SIZE,) * spatial_axes
    patch = tuple(_positive(p, "patch_size") for p in _spread(patch_size, spatial_axes, "patch_size"))
    if len(patch) > spatial_axes:
        raise LayoutError(
            f"patch_size {patch} has {len(patch)} entries, but the array has {spatial_axes} spatial axes.",
            hint="Give one entry per spatial axis, without channel or time.",
        )
    return (1,) * (spatial_axes - len(patch)) + patch


def _spread(value: int | Sequence[int], count: int, name: str) -> tuple[int, ...]:
    if isinstance(value, Iterable):
        return tuple(_integer(entry, name) for entry in value)
    return (_integer(value, name),) * count


def _per_axis(
    sizes: int | Sequence[int], name: str, shape: tuple[int, ...], *, zero_allowed: bool = False
) -> tuple[int, ...]:
    values = _spread(sizes, len(shape), name)
    if len(values) != len(shape):
        raise LayoutError(f"{name} needs one entry per axis of shape {shape}; got {len(values)}: {values}.")
    if min(values, default=1) < (0 if zero_allowed else 1):
        raise LayoutError(f"{name} must be at least 1 on every axis; got {values}.")
    return values


def _clipped(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(size, n) if n else 1 for size, n in zip(sizes, shape, strict=True))


def _on_axes(sizes: Sequence[int], axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    placed = dict(zip(axes, sizes, strict=True))
    return tuple(placed.get(axis, 1) for axis in range(ndim))


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes)) or "1"


def _amount(count: int) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
