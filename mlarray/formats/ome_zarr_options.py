"""What may a caller say about how an OME-Zarr is stored, and which chunks and shards follow?

Chunks come from the patch that will be read, by the rule of this package. A shard is a multiple of chunks in one object of the
store: fewer objects, written whole by one task each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mlarray.errors import LayoutError, UsageError
from mlarray.layout import Layout, layout_for_patch
from mlarray.limits import CHUNK_BYTES
from mlarray.spec import ArraySpec
from mlarray.storage.options import StorageOptions

VERSIONS = ("0.5", "0.4")
CODECS = ("zstd", "lz4")
SHARD_BYTES = 64 * 1024 * 1024  # of voxels: what is held in memory until it is written
_OWN = ("ome_version", "shard_size", "codec", "levels")
_NOT_HERE = ("cparams", "dparams")


@dataclass(frozen=True, slots=True)
class ZarrOptions:
    """How an OME-Zarr is written.

    Parameters
    ----------
    chunks : StorageOptions
        Patch size, or explicit chunk size.
    version : {"0.5", "0.4"}
        Of OME-NGFF; 0.5 is kept in zarr 3, 0.4 in zarr 2.
    shard_size : "auto", int, sequence of int or None
        Extent of a shard per array axis, a multiple of the chunk; ``"auto"``: as many chunks as make 64 MiB. None: no shards.
    codec : {"zstd", "lz4"}
        Inside Blosc. zstd (level 1) needs 25 to 60 % less space than lz4 in CT, MR and segmentations, and still compresses
        faster than 250 MB/s; lz4 decodes about twice as fast.
    levels : int or None
        Number of resolutions; None: until one fits into a chunk.

    Raises
    ------
    UsageError
        For values that are none of these, or shards in version 0.4.
    """

    chunks: StorageOptions
    version: str = "0.5"
    shard_size: Any = None
    codec: str = "zstd"
    levels: int | None = None

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise UsageError(f"OME-Zarr is written in version {' or '.join(VERSIONS)}, got {self.version!r}.")
        if self.codec not in CODECS:
            raise UsageError(f"OME-Zarr is compressed with {' or '.join(CODECS)}, got {self.codec!r}.")
        if self.version == "0.4" and self.shard_size is not None:
            raise UsageError("OME-Zarr 0.4 is kept in zarr 2, which has no shards.", hint="Write version 0.5.")
        if self.levels is not None and not (type(self.levels) is int and 1 <= self.levels <= 32):
            raise UsageError(f"An OME-Zarr has 1 to 32 levels, got {self.levels!r}.")

    @classmethod
    def from_mapping(cls, arguments: Mapping[str, Any]) -> ZarrOptions:
        """Build options from storage arguments, refusing names that are none."""
        given = {name: value for name, value in arguments.items() if value is not None}
        wrong = [name for name in _NOT_HERE if name in given]
        if wrong:
            raise UsageError(f"{', '.join(wrong)} are for .mla; OME-Zarr takes codec='zstd' or 'lz4'.")
        rest = {name: value for name, value in given.items() if name not in _OWN}
        if "chunk_size" in rest:
            rest.setdefault("block_size", rest["chunk_size"])  # zarr has no blocks within chunks
        shards = given.get("shard_size")
        if isinstance(shards, Iterable) and not isinstance(shards, str):
            shards = tuple(shards)
        return cls(
            StorageOptions.from_mapping(rest),
            str(given.get("ome_version", VERSIONS[0])),
            shards,
            str(given.get("codec", CODECS[0])),
            given.get("levels"),
        )

    def layout(self, spec: ArraySpec) -> Layout:
        """Return the objects of the store (as chunks) and what is decoded at a time (as blocks), in array-axis order."""
        chosen = self.chunks.layout_for(spec)
        if chosen.chunks is None:
            chosen = layout_for_patch(spec.shape, spec.dtype.itemsize, patch_size="default")
        chunks = cast("tuple[int, ...]", chosen.chunks)
        if math.prod(chunks) * spec.dtype.itemsize > CHUNK_BYTES:
            raise LayoutError(f"A chunk of {chunks} has more than {CHUNK_BYTES} bytes.", hint="Choose smaller ones.")
        by = " x ".join(map(str, chunks))
        if self.shard_size is None:
            return Layout(
                chunks, chunks, chosen.patch_size, f"Chunks of {by}, each an object of the store. {chosen.reason}"
            )
        shards = _shards(spec, chunks, self.shard_size)
        reason = f"Chunks of {by} in shards of {' x '.join(map(str, shards))}, each an object of the store."
        return Layout(shards, chunks, chosen.patch_size, f"{reason} {chosen.reason}")


def _shards(spec: ArraySpec, chunks: Sequence[int], asked: object) -> tuple[int, ...]:
    """Return the extents of a shard."""
    counts = [-(-max(1, n) // c) for n, c in zip(spec.shape, chunks, strict=True)]
    if asked == "auto":
        shard = [1] * spec.ndim
        spatial = spec.spatial if any(spec.spatial) else (True,) * spec.ndim
        budget = SHARD_BYTES // (math.prod(chunks) * spec.dtype.itemsize)
        while True:
            growing = [a for a in range(spec.ndim) if spatial[a] and shard[a] < counts[a]]
            growing = [a for a in growing if math.prod(shard) // shard[a] * (shard[a] + 1) <= budget]
            if not growing:
                return tuple(s * c for s, c in zip(shard, chunks, strict=True))
            shard[min(growing, key=lambda axis: (shard[axis] / counts[axis], axis))] += 1
    extents = (asked,) * spec.ndim if isinstance(asked, int) else asked
    plain = isinstance(extents, tuple) and len(extents) == spec.ndim
    if not plain or any(type(n) is not int or n < 1 for n in extents):  # type: ignore[attr-defined]
        raise UsageError(f"shard_size takes 'auto' or one extent per axis of {spec.shape}, got {asked!r}.")
    whole = tuple(c * n for c, n in zip(chunks, counts, strict=True))
    clipped = tuple(min(n, w) for n, w in zip(extents, whole, strict=True))  # type: ignore[call-overload]
    if any(n % c for n, c in zip(clipped, chunks, strict=True)):
        raise UsageError(
            f"A shard holds whole chunks: {asked!r} is no multiple of the chunks {tuple(chunks)}.",
            hint="Choose multiples, or shard_size='auto'.",
        )
    return clipped
