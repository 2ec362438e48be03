"""How are TIFF, OME-TIFF and ImageJ files read?

A file holds series, each a stack of equal pages; a series is an item, named by its number, and so is every further level of a
pyramid (``0.1``: series 0, level 1). Axes come from OME-XML, ImageJ's description or tifffile's own, and otherwise from the
pages: a stack of pages that nobody named is taken as z. Samples of a pixel (RGB) and channels lead, space is last. The place and
orientation of an image in the world are never stated, and the size of voxels only where a header measures it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import FormatError
from mlarray.formats.file_axes import checked_geometry, free_name
from mlarray.formats.items import Item, pick_item
from mlarray.formats.tiff_chain import Chain, follow_chain
from mlarray.formats.tiff_library import check_codec, compression_name, opened
from mlarray.formats.tiff_ome import OmeHeader, read_ome
from mlarray.formats.tiff_scale import Scale, imagej_scale, ome_scale, plain_scale
from mlarray.formats.tiff_segments import PagedBytes, PageDecoder, PageGrid, PageTable, SegmentSource
from mlarray.geometry import Geometry
from mlarray.sources.base import Access, NDArray, Note, Source, SourceInfo
from mlarray.sources.bytes import ByteReader, FileBytes, short_data
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.spec import ArraySpec

_SPACE = "ZYX"
_UNNAMED = "IQ"  # what tifffile calls a sequence of pages that no header names
_JPEG = (6, 7, 34892, 33007)
_DESCRIPTION, _ORIENTATION, _PHOTOMETRIC = 270, 274, 262
_PALETTE, _WHITE_IS_ZERO = 3, 0
_TEXT_LIMIT = 64 * 1024
# Technical tags that are kept; those that name a person, a computer or a place are not.
_KEPT_TAGS = frozenset((254, 256, 257, 258, 259, 262, 270, 274, 277, 282, 283, 284, 296, 305, 317, 322, 323, 338, 339))


def items(path: Path) -> tuple[Item, ...]:
    """Return the series of a file, and the further levels of those that are pyramids.

    Raises
    ------
    FormatError
        For a damaged header.
    """
    chain = follow_chain(path)
    with opened(path) as file:
        found = _images(path, file, _ome_header(path, file, chain))
        return tuple(Item(name, _title(series)) for name, series in found.items())


def open_source(path: Path, *, item: str | None = None) -> Source:
    """Read the directories of a TIFF file and return one series as a source.

    Parameters
    ----------
    path : Path
        A TIFF or BigTIFF file.
    item : str, optional
        Number of the series, and level of a pyramid behind a point. Default: the only series, or the one that is not marked
        as a reduced image of another.

    Returns
    -------
    Source
        Regions are read by themselves; of pages in compressed strips of more than 1 MiB, whole planes (``Access.SLAB``).

    Raises
    ------
    FormatError
        For a file that was cut or is damaged, a set of which files are missing, numbers of a kind that cannot be read.
    MissingDependencyError
        For a compression that needs imagecodecs, where it is not installed.

    Notes
    -----
    Colour tables (a palette image keeps its indices), the turn that the orientation tag asks viewers for, stage positions, times
    of acquisition, regions of interest, names of people.
    """
    chain = follow_chain(path)
    with opened(path) as file:
        header = _ome_header(path, file, chain)
        found = _images(path, file, header)
        name = _pick(path, found, item)
        series = found[name]
        base = found[name.partition(".")[0]]
        scale, fields = _described(file, series, base, header, int(name.partition(".")[0]))
        return _source(path, series, base, scale, fields, name if len(found) > 1 else "")


def _ome_header(path: Path, file: Any, chain: Chain) -> OmeHeader | None:
    """Return the checked OME header, or None; the files it names are checked too."""
    if not file.is_ome:
        return None
    header = read_ome(file.ome_metadata, path)
    if header.first_file:
        raise FormatError(
            f"{path} is a part of an OME-TIFF data set that begins in {header.first_file}.",
            hint=f"Convert {header.first_file}: it gives the whole set.",
        )
    pages = chain.count + sum(follow_chain(other).count for other in header.files)
    for image in header.images:
        if image.planes > pages:
            raise FormatError(
                f"{path} names {image.planes} planes in its OME-XML, {pages} were found: the rest is missing.",
                hint="Copy or export it again.",
            )
    return header


def _images(path: Path, file: Any, header: OmeHeader | None) -> dict[str, Any]:
    """Return every series and further level by name."""
    series = list(file.series)
    kinds = {one.kind for one in series}
    if header is not None and (kinds != {"ome"} or len(series) != len(header.images)):
        raise FormatError(
            f"{path} has OME-XML for {len(header.images)} images, of which {len(series) if kinds == {'ome'} else 0} can be "
            "found in its pages.",
            hint="Copy or export it again.",
        )
    if header is None and file.is_imagej and kinds != {"imagej"}:
        planes = file.imagej_metadata.get("images", 1)
        needed = planes * file.pages[0].nbytes if isinstance(planes, int) else 0
        raise FormatError(
            f"{path} is too short: ImageJ's description names {planes} planes ({needed} bytes), the file has "
            f"{file.filehandle.size} bytes.",
            hint="Copy or export it again.",
        )
    found: dict[str, Any] = {}
    for number, one in enumerate(series):
        found[str(number)] = one
        found |= {f"{number}.{level}": other for level, other in enumerate(one.levels) if level > 0}
    return found


def _pick(path: Path, found: Mapping[str, Any], item: str | None) -> str:
    if item is None:
        whole = [name for name, one in found.items() if "." not in name and not one.keyframe.is_reduced]
        if len(whole) == 1:
            return whole[0]
    bases = [Item(name, _title(one)) for name, one in found.items() if item is not None or "." not in name]
    return pick_item(path, bases, item).name


def _title(series: Any) -> str:
    shape = "x".join(map(str, series.shape))
    name = f"{series.name}, " if series.name and not series.name.startswith("Level ") else ""
    return f"{name}{series.dtype or 'unknown type'}, {shape} {series.axes}"


def _described(
    file: Any, series: Any, base: Any, header: OmeHeader | None, number: int
) -> tuple[Scale, dict[str, object]]:
    """Return what the headers say of the steps along axes, for full resolution, and the header fields that are kept."""
    kept = [tag for tag in base.keyframe.tags if tag.code in _KEPT_TAGS]
    tags = {tag.code: tag.value for tag in kept}
    fields: dict[str, object] = {tag.name: plain for tag in kept if (plain := _plain(tag.value)) is not None}
    if header is not None:
        fields.pop("ImageDescription", None)  # the whole OME-XML, which may name people
        image = header.images[number]
        fields |= {"OME": {"Name": image.name, "Channels": list(image.channels), "Pixels": image.fields}}
        return ome_scale(image), fields
    if series.kind == "imagej":
        description = file.imagej_metadata
        fields |= {"ImageJ": {name: value for name, value in description.items() if _is_plain(value)}}
        fields.pop("ImageDescription", None)
        return imagej_scale(description, tags), fields
    if "<OME" not in file.pages[0].description:
        return plain_scale(tags), fields
    fields.pop("ImageDescription", None)
    scale = plain_scale(tags)
    text = (
        "The OME-XML does not end as it should and was not read: axes, voxel size and channels that it states are lost."
    )
    return dataclasses.replace(scale, notes=(*scale.notes, Note("metadata-unreadable", text))), fields


def _source(path: Path, series: Any, base: Any, scale: Scale, fields: dict[str, object], item: str) -> Source:
    if series.dtype is None or series.keyframe.dtype is None or series.transform is not None:
        page = series.keyframe
        raise FormatError(
            f"{path} holds numbers of a kind that cannot be read: sample format {page.sampleformat}, {page.bitspersample} bits"
            f"{', stored as square roots' if series.transform is not None else ''}."
        )
    if 0 in series.shape:
        raise FormatError(f"{path} holds an image without pixels: its shape is {tuple(series.shape)}.")
    notes = [*scale.notes, *_colour_notes(base.keyframe)]
    axes, order = _axes(series, scale, notes)
    shape = tuple(series.shape[order.index(axis)] for axis in range(len(order)))
    factors = {axis: base.shape[base.axes.index(axis)] / series.shape[series.axes.index(axis)]
               for axis in _SPACE if axis in series.axes and axis in base.axes}  # fmt: skip
    geometry = _geometry(axes, scale, factors, notes)
    if geometry is not None:
        axes = tuple(dataclasses.replace(axis, unit="millimeter") if axis.is_spatial else axis for axis in axes)
    dtype = np.dtype(series.dtype)
    spec = ArraySpec(shape, dtype.newbyteorder("="), axes, geometry)
    info = SourceInfo("tiff", (path,), fields, tuple(notes), item=item)
    return _voxels(path, series, order, spec, info)


def _voxels(path: Path, series: Any, order: tuple[int, ...], spec: ArraySpec, info: SourceInfo) -> Source:
    """Return the source of the voxels, after checking that the files hold them all."""
    page, stored = series.keyframe, np.dtype(series.keyframe.parent.byteorder + series.keyframe.dtype.char)
    layout = RawLayout(tuple(series.shape), stored, order)
    start = None if series.is_multifile else series.dataoffset
    if start is not None:
        found = path.stat().st_size
        if start + layout.nbytes > found:
            raise short_data(path, start + layout.nbytes, found)
        return RawSource(FileBytes(path, start), layout, spec, access=Access.REGION, info=info)
    pages = list(series)
    check_codec(path, page)
    disk = _disk_axes(path, series, len(pages))
    grid = _grid(page)
    table = _table(path, pages, 1 if page.is_final else grid.count, page.nbytes)
    _check_ends(table)
    info = dataclasses.replace(info, files=tuple(dict.fromkeys((path, *table.files))))
    if page.is_final:
        data: ByteReader = PagedBytes(table, page.nbytes)
        return RawSource(data, layout, spec, access=Access.REGION, info=info)
    empty = int((table.counts == 0).sum())
    fill = page.nodata
    if empty:
        text = f"{empty} of {table.counts.size} strips or tiles were never written; their voxels are read as {fill}."
        info = dataclasses.replace(info, notes=(*info.notes, Note("segments-missing", text)))
    return SegmentSource(table, grid, _decoder(page, pages, grid), disk=disk, order=order, spec=spec, info=info)


def _decoder(page: Any, pages: Sequence[Any], grid: PageGrid) -> PageDecoder:
    is_jpeg = int(page.compression) in _JPEG
    known: dict[bytes | None, bytes | None] = {}  # every page has the same tables, as a rule
    tables = tuple(known.setdefault(one.jpegtables, one.jpegtables) for one in pages) if is_jpeg else ()
    return PageDecoder(
        Path(page.parent.filehandle.path),
        int(page.offset),
        tuple(page.treeindex),
        compression_name(page),
        int(page.compression),
        grid.segment_size * 16,
        tables if any(tables) else (),
        page.jpegheader if is_jpeg else None,
        page.nodata,
    )


def _grid(page: Any) -> PageGrid:
    if page.is_tiled:
        return PageGrid(tuple(page.shaped), (page.tiledepth, page.tilelength, page.tilewidth))
    return PageGrid(tuple(page.shaped), (1, min(page.rowsperstrip, page.imagelength), page.imagewidth))


def _table(path: Path, pages: Sequence[Any], segments: int, page_bytes: int) -> PageTable:
    """Return the places of all segments; with one segment a page, of the pages as a whole."""
    numbers: dict[Path, int] = {}
    file = np.zeros(len(pages), np.int64)
    offsets: list[NDArray] = []
    counts: list[NDArray] = []
    for position, page in enumerate(pages):
        if page is None:
            raise FormatError(f"{path} lacks plane {position} of {len(pages)}.", hint="Copy or export it again.")
        place = Path(page.parent.filehandle.path)
        file[position] = numbers.setdefault(place, len(numbers))
        if page.keyframe.is_final and segments == 1:
            offsets.append(_whole(path, page.dataoffsets[:1]))
            counts.append(np.array([page_bytes]))
            continue
        if min(len(page.dataoffsets), len(page.databytecounts)) < segments:
            raise FormatError(
                f"{path} names {len(page.dataoffsets)} strips or tiles for plane {position}, which has {segments}.",
                hint="Copy or export it again.",
            )
        offsets.append(_whole(path, page.dataoffsets[:segments]))
        counts.append(np.where(offsets[-1] > 0, _whole(path, page.databytecounts[:segments]), 0))
    resolved = tuple(path if place.name == path.name else path.parent / place.name for place in numbers)
    return PageTable(resolved if len(numbers) == 1 else tuple(numbers), file, np.stack(offsets), np.stack(counts))


def _whole(path: Path, numbers: Sequence[Any]) -> NDArray:
    try:
        return np.fromiter(map(operator.index, numbers), np.int64, len(numbers))
    except (TypeError, OverflowError):
        raise FormatError(f"{path} has strips or tiles at places that cannot be.") from None


def _check_ends(table: PageTable) -> None:
    if (table.offsets < 0).any() or (table.counts < 0).any():
        raise FormatError(f"{table.files[0]} has strips or tiles at places that cannot be.")
    for path, end in table.ends:
        found = path.stat().st_size
        if end > found:
            raise short_data(path, end, found)


def _disk_axes(path: Path, series: Any, pages: int) -> tuple[tuple[int, int | None], ...]:
    """Return, per axis of the series, its extent and which axis of a page it is."""
    inner = [(axis, extent) for axis, extent in enumerate(series.keyframe.shaped) if extent > 1]
    result: list[tuple[int, int | None]] = []
    for extent in reversed(series.shape):
        if inner and inner[-1][1] == extent:
            result.append((extent, inner.pop()[0]))
        elif inner and extent != 1:
            break
        else:
            result.append((extent, None))
    outer = math.prod(extent for extent, axis in result if axis is None)
    if inner or len(result) != len(series.shape) or outer != pages:
        raise FormatError(
            f"{path} has {pages} pages of shape {tuple(series.keyframe.shape)}, which do not make up its shape "
            f"{tuple(series.shape)}.",
            hint="Copy or export it again.",
        )
    return tuple(reversed(result))


def _axes(series: Any, scale: Scale, notes: list[Note]) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    """Return the axes in array order and, per axis of the series, the array axis it becomes."""
    codes = list(series.axes)
    unnamed = [position for position, code in enumerate(codes) if code in _UNNAMED]
    if unnamed and "Z" not in codes:
        codes[unnamed[-1]] = "Z"
        notes.append(Note("axes-assumed", "The file does not say along what its pages follow each other: z was taken."))
    named: list[Axis] = []
    for code in codes:
        taken = {axis.name for axis in named}
        if code in _SPACE and code.lower() not in taken:
            named.append(Axis(code.lower()))
        elif code == "T":
            named.append(Axis(free_name("time", "", taken), "time", scale.time_unit, scale.time_step))
        elif code in "CS":
            named.append(Axis(free_name("channel", "", taken), "channel"))
        else:
            named.append(Axis(free_name("other", "" if code in _UNNAMED else code.lower(), taken), "other"))
    place = sorted(range(len(named)), key=lambda position: _rank(named[position]))
    order = tuple(place.index(position) for position in range(len(named)))
    return tuple(named[position] for position in place), order


def _rank(axis: Axis) -> int:
    return 1 + "zyx".index(axis.name) if axis.is_spatial else 0


def _geometry(axes: Sequence[Axis], scale: Scale, factors: Mapping[str, float], notes: list[Note]) -> Geometry | None:
    spatial = [axis.name.upper() for axis in axes if axis.is_spatial]
    steps = {axis: scale.spacing_mm[axis] * factors.get(axis, 1.0) for axis in spatial if axis in scale.spacing_mm}
    missing = [axis for axis in spatial if axis not in steps]
    if missing and steps:
        told = ", ".join(f"{axis.lower()} {step:g} mm" for axis, step in steps.items())
        lacking = ", ".join(missing).lower()
        notes.append(
            Note("spacing-unknown", f"The step along {lacking} is not stated ({told}): the spacing is unknown.")
        )
    if missing or not spatial:
        return None
    return checked_geometry(np.diag([*(steps[axis] for axis in spatial), 1.0]), None, frozenset({"spacing"}))


def _colour_notes(page: Any) -> list[Note]:
    notes = []
    photometric, orientation = int(page.photometric or 0), page.tags.valueof(_ORIENTATION, 1)
    if page.tags.get(_PHOTOMETRIC) is not None and photometric == _WHITE_IS_ZERO:
        notes.append(Note("white-is-zero", "The file shows 0 as white; the numbers were kept as they are."))
    if photometric == _PALETTE:
        notes.append(Note("palette-dropped", "The numbers of a palette image were kept, its colour table was not."))
    if isinstance(orientation, int) and orientation != 1:
        text = f"The file asks viewers to turn the image (orientation {int(orientation)}); rows and columns were kept."
        notes.append(Note("orientation-tag-ignored", text))
    return notes


def _plain(value: object) -> object:
    """Return a tag value as JSON can hold it, or None."""
    if isinstance(value, bytes):
        return None
    if isinstance(value, tuple):
        return [int(one) if isinstance(one, int) else one for one in value] if len(value) <= 64 else None
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value)
    return value if isinstance(value, str) and len(value) <= _TEXT_LIMIT else None


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _TEXT_LIMIT)
