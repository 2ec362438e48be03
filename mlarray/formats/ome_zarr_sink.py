"""How is an OME-Zarr written?

The voxels go into the finest level as they arrive, whole objects of the store at a time. Once all are there, each coarser level
is computed from the one below, the checksums are taken, and the metadata of the group is written last: a hierarchy whose
writer died has none. On this machine everything happens in a folder with a temporary name that is exchanged for the final one;
a remote store has no such exchange.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from mlarray.errors import UsageError
from mlarray.formats.ome_zarr_array import write_objects
from mlarray.formats.ome_zarr_axes import StoredAxes, stored_axes
from mlarray.formats.ome_zarr_kept import KEY, kept_document
from mlarray.formats.ome_zarr_options import ZarrOptions
from mlarray.formats.ome_zarr_pyramid import PyramidLevel, fill_level, plan_levels
from mlarray.formats.ome_zarr_window import Windows, omero
from mlarray.formats.registry import split_suffix
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SinkOptions, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.contents import source_metadata
from mlarray.storage.publish import PendingFolder
from mlarray.storage.remote import RemotePath, filesystem, is_remote

_CODEC_LEVELS = {"zstd": 1, "lz4": 5}
_PIECE = 1 << 22


class OmeZarrSink:
    """Writes an image with its pyramid.

    Parameters
    ----------
    path : Path
        The final name: a folder of this machine, or a place of a remote store.
    spec : ArraySpec
        What is written.
    info : SourceInfo
        What else is known of it.
    options : SinkOptions
        Whose storage arguments are those of :class:`~mlarray.formats.ome_zarr_options.ZarrOptions`.
    """

    access = Access.REGION

    def __init__(self, path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> None:
        self.spec = spec
        self.order = tuple(range(spec.ndim))
        self._info, self._options = info, options
        self._how = ZarrOptions.from_mapping(options.storage)
        self._is_seg = bool(info.is_seg)
        self._layout = stored_axes(spec, is_seg=self._is_seg)
        sizes = self._how.layout(spec)
        assert sizes.chunks is not None
        assert sizes.blocks is not None
        self.chunks: tuple[int, ...] | None = sizes.chunks
        self._objects, self._blocks = (
            tuple(extents[axis] for axis in self._layout.order) for extents in (sizes.chunks, sizes.blocks)
        )
        self._levels = self._planned()
        self._windows = self._counter()
        self._name = split_suffix(path.name)[0]
        self._done = False
        self._pending: _Remote | PendingFolder = _Remote(path) if isinstance(path, RemotePath) else PendingFolder(path)
        self.path = self._pending.path
        try:
            self._finest = self._created(0)
        except BaseException:
            self._pending.abort()
            raise

    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block``, which covers whole chunks (whole shards, where there are) except at the border, at ``region``."""
        order = self._layout.order
        moved = block.transpose(order)
        if self._windows is not None:
            self._windows.see(region.permute(order), moved)
        if moved.dtype != self._layout.dtype:
            moved = moved.astype(self._layout.dtype)
        write_objects(self._finest, region.permute(order), moved, self._objects, self._options.threads)

    def finish(self) -> None:
        """Compute the coarser levels and write the metadata."""
        if self._done:
            return
        mean = self._averages
        below = self._finest
        for number, level in enumerate(self._levels[1:], 1):
            array = self._created(number)
            objects, blocks = (self._clipped(extents, level) for extents in (self._objects, self._blocks))
            fill_level(below, array, level, objects, blocks, mean=mean, threads=self._options.threads)
            below = array
        checksums = {} if is_remote(self.path) else level_checksums(self.path, self._paths)
        for name, document in self._documents(checksums):
            self._put(name, document)
        self._done = True

    def publish(self) -> None:
        """Finish the image and give it its final name."""
        self.finish()
        self._pending.publish()

    def abort(self) -> None:
        """Remove what was written."""
        self._done = True
        self._pending.abort()

    @property
    def _averages(self) -> bool:
        return not self._is_seg and self.spec.dtype.kind != "b"

    @property
    def _paths(self) -> list[str]:
        return [str(number) for number in range(len(self._levels))]

    def _planned(self) -> tuple[PyramidLevel, ...]:
        layout = self._layout
        shape = layout.shape(self.spec)
        return plan_levels(
            shape, layout.spatial, layout.scale, self._blocks, count=self._how.levels, mean=self._averages
        )

    def _counter(self) -> Windows | None:
        if self._is_seg:
            return None
        axis = self._channel_axis
        channels = 1 if axis is None else self._layout.shape(self.spec)[axis]
        return Windows(self.spec.dtype, channels, axis)

    @property
    def _channel_axis(self) -> int | None:
        kinds = [axis.get("type") for axis in self._layout.axes]
        return kinds.index("channel") if "channel" in kinds else None

    def _clipped(self, extents: tuple[int, ...], level: PyramidLevel) -> tuple[int, ...]:
        """Return the extents of chunks or shards for a level: no chunk larger than the level, whole chunks in a shard."""
        chunks = tuple(min(c, max(1, n)) for c, n in zip(self._blocks, level.shape, strict=True))
        if extents == self._blocks:
            return chunks
        counts = [-(-max(1, n) // c) for n, c in zip(level.shape, chunks, strict=True)]
        ratio = [s // b for s, b in zip(extents, self._blocks, strict=True)]
        return tuple(c * min(r, n) for c, r, n in zip(chunks, ratio, counts, strict=True))

    def _created(self, number: int) -> Any:
        """Create the array of a level."""
        import zarr
        from zarr.codecs import BloscCodec
        from zarr.storage import LocalStore

        level, name = self._levels[number], str(number)
        chunks = self._clipped(self._blocks, level)
        shards = None if self._objects == self._blocks else self._clipped(self._objects, level)
        dtype = self._layout.dtype
        shuffle = "bitshuffle" if dtype.itemsize > 1 else "noshuffle"
        codec, strength = self._how.codec, _CODEC_LEVELS[self._how.codec]
        common: dict[str, Any] = {
            # A store of its own: in one that starts at the group, zarr would make the group too, and make it look finished.
            "store": remote.store(name)
            if isinstance(remote := self._pending, _Remote)
            else LocalStore(self.path / name),
            "shape": level.shape,
            "chunks": chunks,
            "dtype": dtype,
            "fill_value": 0,
        }
        if self._how.version == "0.4":
            return zarr.create_array(
                **common,
                zarr_format=2,
                filters=None,
                compressors={
                    "id": "blosc",
                    "cname": codec,
                    "clevel": strength,
                    "shuffle": 2 if dtype.itemsize > 1 else 0,
                },
                chunk_key_encoding={"name": "v2", "separator": "/"},
            )
        return zarr.create_array(
            **common,
            zarr_format=3,
            shards=shards,
            compressors=BloscCodec(cname=codec, clevel=strength, shuffle=shuffle, typesize=dtype.itemsize),
            dimension_names=[axis["name"] for axis in self._layout.axes],
        )

    def _documents(self, checksums: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
        """Return the documents of the group, in the order in which they are written."""
        version = self._how.version
        ome = self._ome(version)
        meta, axes = source_metadata(self.spec, self._info)
        kept = kept_document(meta, axes, self.spec, self._layout, record=self._options.record, checksums=checksums)
        if version == "0.4":
            return [(".zattrs", ome | {KEY: kept}), (".zgroup", {"zarr_format": 2})]
        attributes = {"ome": {"version": version} | ome, KEY: kept}
        return [("zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": attributes})]

    def _ome(self, version: str) -> dict[str, Any]:
        own = {} if version != "0.4" else {"version": version}
        datasets = [
            {"path": path, "coordinateTransformations": _transformations(self._layout, level)}
            for path, level in zip(self._paths, self._levels, strict=True)
        ]
        method = "mean of each group of voxels" if self._averages else "first voxel of each group"
        multiscale = {
            "name": self._name,
            **own,
            "axes": list(self._layout.axes),
            "datasets": datasets,
            "type": "mean" if self._averages else "nearest",
            "metadata": {"description": method},
        }
        ome: dict[str, Any] = {"multiscales": [multiscale]}
        if self._is_seg and self._layout.dtype.kind in "iu":
            ome["image-label"] = dict(own)
        windows = None if self._windows is None else self._windows.channels()
        if windows:
            names = [f"channel {number}" for number in range(len(windows))] if len(windows) > 1 else [self._name]
            ome["omero"] = omero(windows, names, self._info.header.get("omero")) | own
        return ome

    def _put(self, name: str, document: Mapping[str, Any]) -> None:
        data = json.dumps(document, allow_nan=False, indent=2).encode()
        if isinstance(self._pending, _Remote):
            self._pending.put(name, data)
        else:
            Path(self.path, name).write_bytes(data)


class _Remote:
    """A hierarchy on a remote store, written in place: what was there goes first, the metadata of the group comes last."""

    def __init__(self, path: RemotePath) -> None:
        if not path.can_write:
            raise UsageError(
                f"{path} cannot be written: the protocol only reads.", hint="Write to s3:// or to a folder."
            )
        self.path: Path = path
        self._open = True
        self._remove()

    def store(self, name: str) -> Any:
        """Return the store that zarr writes a level to."""
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(f"{self.path}/{name}")

    def put(self, name: str, data: bytes) -> None:
        """Store a small object."""
        fs, root = filesystem(self.path)
        fs.pipe_file(f"{root}/{name}", data)

    def publish(self) -> None:
        """Keep what was written; it is complete since its metadata is there."""
        self._open = False

    def abort(self) -> None:
        """Remove what was written; a no-op once published."""
        if self._open:
            self._remove()
            self._open = False

    def _remove(self) -> None:
        fs, root = filesystem(self.path)
        for name in ("zarr.json", ".zattrs", ".zgroup"):  # first: what is left must not look like an image
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(f"{root}/{name}")
        with contextlib.suppress(FileNotFoundError):
            fs.rm(root, recursive=True)


def level_checksums(root: Path, paths: list[str]) -> dict[str, str]:
    """Return ``xxh3:`` and the XXH3-64 checksum of each level: of the names and bytes of all its objects, sorted by name."""
    return {path: _tree_checksum(root / path) for path in paths}


def _tree_checksum(folder: Path) -> str:
    state = xxhash.xxh3_64()
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    for name in sorted(files):
        state.update(f"{name}\0{files[name].stat().st_size}\0".encode("utf-8", "surrogateescape"))
        with files[name].open("rb") as file:
            while piece := file.read(_PIECE):
                state.update(piece)
    return f"xxh3:{state.hexdigest()}"


def scratch_bytes(spec: ArraySpec, storage: Mapping[str, Any], threads: int) -> int:
    """Return what writing needs beside the tile that is written: reducing chunks for the pyramid, and a shard."""
    sizes = ZarrOptions.from_mapping(storage).layout(spec)
    chunk = math.prod(sizes.blocks or ()) * spec.dtype.itemsize
    shard = math.prod(sizes.chunks or ()) * spec.dtype.itemsize
    return 5 * chunk * max(1, threads) + 2 * shard


def _transformations(layout: StoredAxes, level: PyramidLevel) -> list[dict[str, Any]]:
    scale = [s * f for s, f in zip(layout.scale, level.scale, strict=True)]
    found: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
    if layout.translation is not None or any(level.shift):
        start = layout.translation or (0.0,) * len(scale)
        shift = [t + s * v for t, s, v in zip(start, layout.scale, level.shift, strict=True)]
        found.append({"type": "translation", "translation": shift})
    return found
