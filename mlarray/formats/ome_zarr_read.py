"""How does an image of a zarr hierarchy become a source?

The image that is meant is found, its axes and its place are taken from the metadata of OME-NGFF (from what this package kept
beside it, where the two agree), and its voxels are read chunk by chunk. A bare array has neither axes nor a place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlarray.axes import are_labelled, default_axes
from mlarray.errors import FormatError
from mlarray.formats.ome_zarr_array import PIECE_BYTES, ZarrVoxels
from mlarray.formats.ome_zarr_images import Image, find, level_array, level_shapes
from mlarray.formats.ome_zarr_kept import KEY, Kept, at_level, read_kept
from mlarray.formats.ome_zarr_multiscale import (
    Level,
    Multiscale,
    array_axes,
    geometry_of,
    image_attributes,
    read_multiscale,
)
from mlarray.formats.ome_zarr_store import Node, stored
from mlarray.metadata import Meta, MetaSpatial, update_managed
from mlarray.metadata.spatial import spatial_fields
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Note, SourceBase, SourceInfo
from mlarray.spec import ArraySpec

HEADER_LIMIT = 1 << 20  # characters of JSON that are kept as metadata of the source


class OmeZarrSource(SourceBase):
    """One level of an image in a zarr hierarchy; a pickled copy opens the hierarchy again.

    Parameters
    ----------
    root : Path
        The hierarchy.
    item : str, optional
        See :func:`mlarray.formats.ome_zarr_images.find`.
    """

    def __init__(self, root: Path, item: str | None = None) -> None:
        self._make = partial(OmeZarrSource, root, item)
        self._image = find(root, item)
        found = _described(root, self._image)
        self._voxels = ZarrVoxels(found.array)
        self._axes = found.order
        self.spec = found.spec
        self.info = found.info
        self.order = found.order
        layout = self._voxels.stored
        self.chunks = tuple(layout.chunks[found.order.index(axis)] for axis in range(self.spec.ndim))
        whole = all(c >= n for c, n in zip(layout.chunks, layout.shape, strict=True))
        self.access = Access.WHOLE if whole and layout.chunk_bytes > PIECE_BYTES else Access.REGION
        self.held_bytes = self._voxels.held_bytes
        self._version = f"{found.version}, zarr {found.array.version}"

    @property
    def storage_fields(self) -> dict[str, object]:
        """How the image is stored, for people; ``levels`` holds the extents of each level under what names it."""
        objects = self._in_array_order(self._voxels.stored.objects)
        return {
            "version": self._version,
            "chunks": list(self.chunks),
            "shards": objects if tuple(objects) != self.chunks else "none",
            "levels": {
                name: "cannot be read" if level is None else self._in_array_order(level)
                for name, level in level_shapes(self._image).items()
            },
        }

    def _in_array_order(self, extents: Sequence[int]) -> list[int]:
        return [extents[self._axes.index(axis)] for axis in range(self.spec.ndim)]

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of ``region``; chunks that were never written hold the fill value."""
        target = self._target(region, out)
        if not region.is_empty():
            self._voxels.read_into(region.permute(self._axes), target.transpose(self._axes))
        return target

    def close(self) -> None:
        """Release the store; a later read opens it again."""
        self._voxels.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (self._make, ())


@dataclass(frozen=True, slots=True)
class _Described:
    """The array of a level, what is known of it, and its array axes in stored order."""

    array: Node
    spec: ArraySpec
    order: tuple[int, ...]
    info: SourceInfo
    version: str


def kept_of(image: Image) -> Kept | None:
    """Return what was kept with an image of ours."""
    if image.node.kind == "array":
        return None
    multiscale = read_multiscale(image_attributes(image.node.attributes))
    layout = stored(level_array(image.node, 0))
    return read_kept(image.node.attributes.get(KEY), multiscale, layout.shape, layout.dtype)


def _described(root: Path, image: Image) -> _Described:
    node = image.node
    if node.kind == "array":
        return _bare(root, image)
    try:
        multiscale = read_multiscale(image_attributes(node.attributes))
        level = multiscale.levels[image.level]
        array = level_array(node, image.level)
        layout = stored(array)
        if len(layout.shape) != len(multiscale.axes):
            names = [axis.name for axis in multiscale.axes]
            raise FormatError(f"Its axes are {names}, its level {level.path!r} has the shape {layout.shape}.")
        finest = layout if image.level == 0 else stored(level_array(node, 0))
        kept = read_kept(node.attributes.get(KEY), multiscale, finest.shape, finest.dtype)
        notes = multiscale.notes + (() if kept is None else kept.notes)
        if kept is not None and kept.spec is not None:
            order = kept.order
            spec = at_level(kept.spec, order, level, multiscale.levels[0], layout.shape)
        else:
            order = tuple(range(len(layout.shape)))
            axes, axis_notes = array_axes(multiscale.axes, level)
            geometry, place_notes = geometry_of(multiscale.axes, multiscale.levels[0])
            spec = ArraySpec(finest.shape, layout.dtype, axes, geometry)
            spec = at_level(spec, order, level, multiscale.levels[0], layout.shape)
            notes += axis_notes + place_notes
    except FormatError as error:
        if node.place in error.message:
            raise
        raise FormatError(f"{node.place}: {error.message}", hint=error.hint) from error
    info = _info(root, image, multiscale, level, spec, kept, notes)
    return _Described(array, spec, order, info, f"OME-NGFF {multiscale.version}")


def _bare(root: Path, image: Image) -> _Described:
    """Describe an array outside of any image, of which only the shape is known."""
    node = image.node
    layout = stored(node)
    if not layout.shape:
        raise FormatError(f"The array {node.place} has no axes.")
    names = node.document.get("dimension_names")
    told = f"its dimensions are named {names}, " if isinstance(names, list) and any(names) else ""
    note = Note(
        "axes-unknown", f"{node.place} is a plain zarr array: {told}what its axes are and where it lies is unknown."
    )
    header = _header(dict(node.attributes))
    info = SourceInfo(
        format="ome-zarr",
        files=(Path(root),),
        header=header,
        notes=(note,),
        is_seg=True if image.is_label else None,
        item=image.item,
    )
    spec = ArraySpec(layout.shape, layout.dtype, default_axes(len(layout.shape)))
    return _Described(node, spec, tuple(range(spec.ndim)), info, "no OME-NGFF")


def _info(
    root: Path,
    image: Image,
    multiscale: Multiscale,
    level: Level,
    spec: ArraySpec,
    kept: Kept | None,
    notes: tuple[Note, ...],
) -> SourceInfo:
    ome = image_attributes(image.node.attributes)
    header = {"version": multiscale.version}
    header |= {key: ome[key] for key in ("multiscales", "omero", "image-label") if key in ome}
    meta = None if kept is None else kept.meta
    if meta is not None and kept is not None and (kept.spec is None or image.level):
        meta = _moved(meta, spec)
    is_seg: bool | None = True if image.is_label else None
    if meta is not None and meta.is_seg.is_seg is not None:
        is_seg = meta.is_seg.is_seg
    item = image.item
    if image.level:
        item = f"{item}/{level.path}" if item else level.path
    return SourceInfo(
        format="ome-zarr",
        files=(root,),
        header=dict(meta.source.data) if meta is not None else _header(header),
        notes=notes,
        is_seg=is_seg,
        record={} if kept is None else kept.record,
        meta=meta,
        item=item,
    )


def _moved(meta: Meta, spec: ArraySpec) -> Meta:
    """Return metadata for another grid than the one it was written for: boxes count voxels of that one."""
    moved = deepcopy(meta)
    moved.spatial = MetaSpatial(**spatial_fields(spec, labelled=are_labelled(spec.axes)))
    moved.bbox = None
    update_managed(moved, shape=spec.shape)
    return moved


def _header(header: Mapping[str, Any]) -> dict[str, object]:
    """Return what a group says of its image, unless that is too much to keep as metadata."""
    try:
        size = len(json.dumps(header))
    except (ValueError, RecursionError):
        return {}
    return dict(header) if size <= HEADER_LIMIT else {"version": header.get("version", "")}
