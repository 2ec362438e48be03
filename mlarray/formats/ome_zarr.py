"""OME-Zarr (OME-NGFF): images in a zarr hierarchy, as microscopes, viewers and clouds use them.

Read: versions 0.1 to 0.5, on zarr 2 and 3. Written: 0.5, and 0.4 on request. The parts: ``ome_zarr_store.py`` reads the JSON,
``ome_zarr_images.py`` finds the image, ``ome_zarr_multiscale.py`` its place, ``ome_zarr_array.py`` its voxels;
``ome_zarr_axes.py`` and ``ome_zarr_kept.py`` say what is written, ``ome_zarr_sink.py`` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlarray.formats.items import Item
from mlarray.formats.ome_zarr_axes import stored_axes
from mlarray.formats.ome_zarr_images import Image, find, images
from mlarray.formats.ome_zarr_images import items as _items
from mlarray.formats.ome_zarr_options import ZarrOptions
from mlarray.formats.ome_zarr_read import OmeZarrSource, kept_of
from mlarray.formats.ome_zarr_sink import OmeZarrSink, level_checksums, scratch_bytes
from mlarray.layout import Layout
from mlarray.sources.base import Note, SinkOptions, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.remote import is_remote

__all__ = ["check_stored", "items", "losses", "open_sink", "open_source", "plan_layout", "scratch_bytes"]


def open_source(path: Path, *, item: str | None = None) -> OmeZarrSource:
    """Open an image of a hierarchy; only its metadata is read.

    Raises
    ------
    FormatError
        When the metadata is damaged or asks for what must not be done, or when several images are there and none is named.
    """
    return OmeZarrSource(path, item)


def items(path: Path) -> tuple[Item, ...]:
    """Return the images of a hierarchy: the one at its root, series, segmentations; their titles name their levels."""
    return _items(path)


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what other readers of an OME-Zarr will not see of an array; this package reads all of it back.

    Raises
    ------
    UsageError, DTypeError
        When it cannot be held at all.
    """
    return stored_axes(spec, is_seg=bool(info.is_seg)).notes


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> OmeZarrSink:
    """Create an OME-Zarr that takes the voxels of ``spec``."""
    return OmeZarrSink(path, spec, info, options)


def plan_layout(spec: ArraySpec, storage: Mapping[str, Any]) -> Layout:
    """Return the objects of the store (as chunks) and what is decoded at a time (as blocks) for an array."""
    return ZarrOptions.from_mapping(storage).layout(spec)


def check_stored(path: Path, *, item: str | None = None) -> tuple[str, ...] | None:
    """Compare levels of images of ours with their checksums.

    Parameters
    ----------
    path : Path
        The folder.
    item : str, optional
        Only this level of this image (``""`` is the finest of the image at the root). By default every level of every image.

    Returns
    -------
    tuple of str or None
        One sentence per level that differs; None where there are no checksums.
    """
    if is_remote(path):
        return None
    if item is None:
        results = [_differing_levels(path, image) for image in images(path)]
    else:
        image = find(path, item)
        results = [_differing_levels(path, image, level=image.level)]
    known = [result for result in results if result is not None]
    return tuple(sentence for result in known for sentence in result) if known else None


def _differing_levels(root: Path, image: Image, *, level: int | None = None) -> tuple[str, ...] | None:
    kept = kept_of(image)
    if kept is None or not kept.checksums:
        return None
    folder = root / image.node.path
    levels = [str(name) for name in kept.checksums][slice(level, None if level is None else level + 1)]
    found = level_checksums(folder, [name for name in levels if (folder / name).is_dir()])
    return tuple(
        f"Level {name} of {image.node.place} does not match its checksum: it is damaged, or was changed after it was written."
        for name in levels
        if found.get(name) != kept.checksums[name]
    )
