"""OME-Zarr (OME-NGFF): images in a zarr hierarchy, as microscopes, viewers and clouds use them.

Read: versions 0.1 to 0.5, on zarr 2 and 3. Written: 0.5, and 0.4 on request. The parts: ``ome_zarr_store.py`` reads the JSON,
``ome_zarr_images.py`` finds the image, ``ome_zarr_multiscale.py`` its place, ``ome_zarr_array.py`` its voxels;
``ome_zarr_axes.py`` and ``ome_zarr_kept.py`` say what is written, ``ome_zarr_sink.py`` writes it.
"""

from __future__ import annotations

from pathlib import Path

from mlarray.formats.items import Item
from mlarray.formats.ome_zarr_images import items as _items
from mlarray.formats.ome_zarr_read import OmeZarrSource

__all__ = ["items", "open_source"]


def open_source(path: Path, *, item: str | None = None) -> OmeZarrSource:
    """Open an image of a hierarchy; only its metadata is read.

    Raises
    ------
    FormatError
        When the metadata is damaged or asks for what must not be done, or when several images are there and none is named.
    """
    return OmeZarrSource(path, item)


def items(path: Path) -> tuple[Item, ...]:
    """Return the images of a hierarchy: the one at its root (without a name), series, segmentations; not their levels."""
    return _items(path)
