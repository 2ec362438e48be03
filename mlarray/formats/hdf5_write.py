"""How does an array become a dataset in an HDF5 file?

Chunks are those of the layout rule. gzip chunks are encoded here, by ISA-L and several threads, and stored as they are: zlib
inside of HDF5 is single-threaded and slower; what is stored is the same kind of stream, read by every HDF5 library.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import MissingDependencyError, UsageError
from mlarray.formats.hdf5_attributes import written_attributes
from mlarray.layout import Layout
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SinkOptions, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.options import StorageOptions
from mlarray.storage.publish import PendingFile

DEFAULT_DATASET = "/image"
CODECS = ("gzip", "blosc2", "none")
_CODEC = re.compile(r"(gzip|blosc2|none)(?:-(\d))?", re.IGNORECASE)
_DEFAULT_LEVELS = {"gzip": 1, "blosc2": 5, "none": 0}
_LARGEST_CHUNK = 2**32 - 1  # bytes; a limit of the format
_ISAL_LEVELS = 3  # above, zlib does the work and compresses better
BOUNDS = ("v108", "v110")  # the first keeps attributes above 64 KiB; what is written needs HDF5 1.8 to read


@dataclass(frozen=True, slots=True)
class Codec:
    """How chunks are compressed.

    Parameters
    ----------
    name : {"gzip", "blosc2", "none"}
        Which.
    level : int
        1 to 9; 0 with ``"none"``.
    """

    name: str
    level: int


def chosen_codec(storage: Mapping[str, Any]) -> Codec:
    """Return the codec that the storage argument ``codec`` names, such as ``"gzip"`` or ``"blosc2-7"``; default gzip.

    Raises
    ------
    UsageError
        For another name or level.
    MissingDependencyError
        For Blosc2 without the package that brings it.
    """
    given = storage.get("codec", "gzip")
    match = _CODEC.fullmatch(given) if isinstance(given, str) else None
    level = int(match[2]) if match is not None and match[2] is not None else None
    if match is None or (level is not None and (level == 0 or match[1].lower() == "none")):
        raise UsageError(
            f"The codec of an HDF5 file is gzip, blosc2 or none, with a level of 1 to 9 as in gzip-6; got {given!r}."
        )
    name = match[1].lower()
    if name == "blosc2":
        try:
            import hdf5plugin  # noqa: F401  importing it registers the filter
        except ImportError as error:
            raise MissingDependencyError(
                "Blosc2 inside of HDF5 needs the package hdf5plugin.", hint="pip install mlarray[hdf5plugin]"
            ) from error
    return Codec(name, _DEFAULT_LEVELS[name] if level is None else level)


def chosen_layout(spec: ArraySpec, storage: Mapping[str, Any]) -> Layout:
    """Return the chunks for an array by the storage arguments; those about compression in blosc2 do not apply.

    Raises
    ------
    UsageError
        For storage arguments that are none.
    """
    options = StorageOptions.from_mapping({name: value for name, value in storage.items() if name != "codec"})
    if options.cparams is not None or options.dparams is not None:
        raise UsageError("cparams and dparams are for .mla files.", hint="Choose the codec of an HDF5 file with codec.")
    if options.patch_size is None and options.chunk_size is None:
        options = replace(options, patch_size="default")
    layout = options.layout_for(spec)
    return layout if options.chunk_size is not None else _evened_out(layout, spec.shape)


def _evened_out(layout: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout with as many chunks, all nearly of one size.

    HDF5 stores whole chunks, also at the border: 191 x 167 x 233 voxels in chunks of 128 x 128 x 192 take 3.4 times their size.
    """
    assert layout.chunks is not None
    assert layout.blocks is not None
    even = tuple(-(-extent // -(-extent // chunk)) for extent, chunk in zip(shape, layout.chunks, strict=True))
    if even == layout.chunks:
        return layout
    blocks = tuple(map(min, layout.blocks, even))
    reason = f"{layout.reason.rstrip('.')}; evened out over the shape, because HDF5 stores whole chunks."
    return replace(layout, chunks=even, blocks=blocks, reason=reason)


class Hdf5Sink:
    """Writes a file with one dataset.

    Parameters
    ----------
    final : Path
        Name of the finished file.
    spec, info, options
        As for ``open_sink`` of every format; ``options.item`` names the dataset.
    """

    access = Access.REGION

    def __init__(self, final: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> None:
        import h5py

        self.spec = replace(spec, dtype=spec.dtype.newbyteorder("="))
        self.order = tuple(range(spec.ndim))
        self._codec = chosen_codec(options.storage)
        chunks = chosen_layout(spec, options.storage).chunks
        assert chunks is not None
        self.chunks: tuple[int, ...] = chunks
        self._stored = spec.dtype.newbyteorder("<")
        self._encodes = self._codec.name == "gzip" and self._codec.level <= _ISAL_LEVELS
        attributes = written_attributes(self.spec, info, options.record)
        self._threads = max(1, options.threads)
        self._pool: ThreadPoolExecutor | None = None
        self._pending = PendingFile(final)
        self.path = self._pending.path
        self._file: Any = None
        try:
            self._file = h5py.File(self.path, "w", libver=BOUNDS, locking=False)
            self._dataset = self._file.create_dataset(
                dataset_name(options.item), spec.shape, self._stored, chunks=self.chunks, **self._filters()
            )
            for name, value in attributes.items():
                self._dataset.attrs[name] = value
            for dimension, axis in zip(self._dataset.dims, spec.axes, strict=True):
                dimension.label = "" if "axes" not in attributes or "\0" in axis.name else axis.name
        except BaseException:
            self.abort()
            raise

    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block``, which covers whole chunks except at the border, at ``region``."""
        if not self._encodes or not self._is_aligned(region):
            self._dataset[region.slices] = block
            return
        steps = zip(region.start, region.stop, self.chunks, strict=True)
        places = list(itertools.product(*(range(start, stop, chunk) for start, stop, chunk in steps)))
        # Few at a time: chunks that are encoded faster than they are stored would pile up.
        for batch in _batches(places, 2 * self._threads):
            for place, data in zip(batch, self._map(lambda at: self._encoded(at, region, block), batch), strict=True):
                self._dataset.id.write_direct_chunk(place, data)

    def finish(self) -> None:
        """Close the file under its temporary name."""
        self._close()

    def publish(self) -> None:
        """Finish the file and give it its final name."""
        self.finish()
        self._pending.publish()

    def abort(self) -> None:
        """Remove what was written."""
        try:
            self._close()
        finally:
            self._pending.abort()

    def _map(self, encode: Callable[[tuple[int, ...]], bytes], places: Sequence[tuple[int, ...]]) -> Iterable[bytes]:
        if self._threads == 1 or len(places) == 1:
            return map(encode, places)
        self._pool = self._pool or ThreadPoolExecutor(self._threads)
        return self._pool.map(encode, places)

    def _close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _filters(self) -> dict[str, Any]:
        wide = self._stored.itemsize > 1
        if self._codec.name == "gzip":
            return {"compression": "gzip", "compression_opts": self._codec.level, "shuffle": wide}
        if self._codec.name == "blosc2":
            import hdf5plugin

            filters = hdf5plugin.Blosc2.SHUFFLE if wide else hdf5plugin.Blosc2.NOFILTER
            return dict(hdf5plugin.Blosc2(cname="lz4hc", clevel=self._codec.level, filters=filters))
        return {"fletcher32": True}  # the other two have checksums of their own

    def _is_aligned(self, region: Region) -> bool:
        return all(
            start % chunk == 0 and (stop % chunk == 0 or stop == extent)
            for start, stop, chunk, extent in zip(region.start, region.stop, self.chunks, self.spec.shape, strict=True)
        )

    def _encoded(self, place: tuple[int, ...], region: Region, block: NDArray) -> bytes:
        """Return one chunk as the filters shuffle and deflate would store it; beyond the border it holds zeros."""
        from isal import isal_zlib

        local = tuple(
            slice(at - start, min(at - start + chunk, extent))
            for at, start, chunk, extent in zip(place, region.start, self.chunks, region.shape, strict=True)
        )
        part = block[local]
        if part.shape == self.chunks:
            chunk = np.ascontiguousarray(part, dtype=self._stored)
        else:
            chunk = np.zeros(self.chunks, self._stored)
            chunk[tuple(slice(0, extent) for extent in part.shape)] = part
        data = chunk.reshape(-1).view(np.uint8)
        if self._stored.itemsize > 1:
            data = np.ascontiguousarray(data.reshape(-1, self._stored.itemsize).T).reshape(-1)
        return bytes(isal_zlib.compress(data.data, level=self._codec.level))


def dataset_name(item: str) -> str:
    """Return the path of the dataset to write.

    Raises
    ------
    UsageError
        For a name that HDF5 cannot hold.
    """
    parts = [part for part in item.split("/") if part]
    if any(part == "." for part in parts) or "\0" in item:
        raise UsageError(f"{item!r} is no name of a dataset.", hint="Write it like /group/name.")
    return "/" + "/".join(parts) if parts else DEFAULT_DATASET


def _batches(places: Sequence[tuple[int, ...]], count: int) -> Iterator[Sequence[tuple[int, ...]]]:
    for start in range(0, len(places), count):
        yield places[start : start + count]
