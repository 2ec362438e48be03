"""How is MetaImage read and written?

Reads ``.mha`` and ``.mhd``; writes ``.mha``, compressed with zlib. Positions are LPS millimetres, as ITK has it; a row of
``TransformMatrix`` is the direction of one file axis. The format does not name its axes. The first three are x, y, z; a fourth
is time, as ITK users have it, unless the matrix mixes it with space; channels are interleaved and become a leading axis ``c``;
an ultrasound sequence (fields ``Seq_Frame...``) has its frames as the last file axis. Files of this package name their axes in a
field of their own.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlarray.axes import Axis, AxisType, parse_axes
from mlarray.errors import FormatError, UsageError
from mlarray.formats.detached import check_count, expand_pattern, resolve_beside
from mlarray.formats.encoded import Block, Encoding, ZlibWriter, open_blocks, wrong_size
from mlarray.formats.file_axes import SPATIAL_NAMES, array_order, file_axes, free_name, place
from mlarray.formats.metaimage_header import (
    AXES_FIELD,
    FRAME_FIELD,
    MATRIX,
    OFFSET,
    SPACING,
    MetaHeader,
    read_meta_header,
)
from mlarray.formats.metaimage_write import channel_axis, header_bytes, lost_parts
from mlarray.formats.raw_sink import RawSink
from mlarray.formats.text_header import millimetres, one_int, parse_record
from mlarray.geometry import Geometry, Part
from mlarray.orientation import Matrix, axis_codes
from mlarray.sources.base import Note, Sink, SinkOptions, Source, SourceInfo
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.spec import ArraySpec

_FRAME_FIELD = re.compile(r"Seq_Frame\d+_")
_OPPOSITE = str.maketrans("LRAPSI", "RLPAIS")
_STEP_RTOL = 1e-3  # time stamps of a steady recording are printed with about this precision


def open_source(path: Path) -> Source:
    """Read the header of a MetaImage file and return its voxels as a source.

    Raises
    ------
    FormatError
        For a damaged or contradictory header, voxel files that are missing or outside the header's folder, or data of the
        wrong size.

    Notes
    -----
    ``ElementToIntensityFunction`` is not applied, ``AnatomicalOrientation`` gives way to the matrix; both are kept as text.
    """
    header = read_meta_header(path)
    notes: list[Note] = []
    axes = _file_axes(header, notes)
    spatial = [axis for axis, entry in enumerate(axes[: len(header.sizes)]) if entry.is_spatial]
    geometry, unit = _geometry(header, spatial, notes)
    interleaved = len(axes) > len(header.sizes)
    disk_axes = [*reversed(axes[: len(header.sizes)]), *axes[len(header.sizes) :]]
    disk_shape = (*reversed(header.sizes), *((header.channels,) if interleaved else ()))
    order = array_order([axis.is_spatial for axis in disk_axes])
    layout = RawLayout(disk_shape, header.dtype, order)
    placed = [axis for _, axis in sorted(zip(order, disk_axes, strict=True), key=lambda pair: pair[0])]
    named = tuple(dataclasses.replace(axis, unit=unit or axis.unit) if axis.is_spatial else axis for axis in placed)
    blocks, encoding = _data_blocks(path, header, layout, notes)
    data, access = open_blocks(blocks, encoding, layout.dtype, header=path)
    spec = ArraySpec(layout.array_shape, layout.dtype.newbyteorder("="), named, geometry)
    return RawSource(data, layout, spec, access=access, info=_info(path, header, blocks, notes))


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what a ``.mha`` cannot keep of an array.

    Raises
    ------
    UsageError, DTypeError
        When it cannot hold the array at all.

    Notes
    -----
    Names and types of axes, and a world frame other than LPS, stand in fields that other readers do not know; unknown parts of
    the geometry are taken as neutral by them. bool becomes uint8, float16 float32; complex numbers are refused.
    """
    plan = file_axes(spec, "MetaImage")
    return plan.notes + lost_parts(spec, plan)


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> Sink:
    """Create a ``.mha`` file that takes voxels in storage order; see :func:`losses` for what it cannot hold.

    The storage argument ``codec="none"`` leaves voxels as they are, so that parts can be read. The size of compressed data is
    known at the end only: the header keeps room for it, and it is filled in then.
    """
    if path.suffix.lower() == ".mhd":
        raise UsageError(f"Detached headers are read, not written: got {path}.", hint="Write a .mha file.")
    plan = file_axes(spec, "MetaImage")
    channel = channel_axis(spec, plan)
    dimensions = (*(axis for axis in plan.others if axis != channel), *plan.spatial)
    order = dimensions if channel is None else (*dimensions, channel)
    layout = RawLayout(tuple(spec.shape[axis] for axis in order), plan.dtype, order)
    stored = dataclasses.replace(spec, dtype=plan.dtype.newbyteorder("="))
    compressed = options.storage.get("codec") != "none"
    header, patch = header_bytes(spec, plan, dimensions, channel, info, options.record, compressed=compressed)
    return RawSink(path, stored, layout, header, compress=ZlibWriter if compressed else None, patch=patch)


def _info(path: Path, header: MetaHeader, blocks: Sequence[Block], notes: list[Note]) -> SourceInfo:
    text = header.record_text
    record, record_notes = parse_record(text) if text is not None else ({}, ())
    slope = header.text("ElementToIntensityFunctionSlope") or "1"
    offset = header.text("ElementToIntensityFunctionOffset") or "0"
    if (slope, offset) != ("1", "0"):
        notes.append(
            Note("scaling-ignored", f"ElementToIntensityFunction (slope {slope}, offset {offset}) is not applied.")
        )
    return SourceInfo(
        format="metaimage",
        files=tuple(dict.fromkeys((path, *(block.path for block in blocks)))),
        header=header.plain(),
        notes=(*notes, *record_notes),
        record=record,
    )


def _file_axes(header: MetaHeader, notes: list[Note]) -> tuple[Axis, ...]:
    """Return the axes of the file, the fastest first, and the channels, if there are any, at the end."""
    stated = _stated_axes(header, notes)
    if stated is not None:
        return stated
    count = len(header.sizes)
    types: list[AxisType] = ["space" if axis < 3 else "other" for axis in range(count)]
    if count > 1 and any(map(_FRAME_FIELD.match, header.fields)):
        types[-1] = "time"
    elif count > 3 and not _mixes(header, 3):
        types[3] = "time"
        notes.append(Note("axes-assumed", "The fourth axis of this MetaImage is taken as time."))
    axes: list[Axis] = []
    for axis, kind in enumerate(types):
        if kind == "space":
            axes.append(Axis(SPATIAL_NAMES[2 - axis], "space"))
            continue
        unit, step = _time_step(header, axis) if kind == "time" else (None, None)
        axes.append(Axis(free_name(kind, "", {entry.name for entry in axes}), kind, unit, step))
    if header.channels > 1:
        axes.append(Axis("c", "channel"))
    return tuple(axes)


def _stated_axes(header: MetaHeader, notes: list[Note]) -> tuple[Axis, ...] | None:
    """Return the axes that a file of this package names, or None."""
    text = header.text(AXES_FIELD)
    if text is None:
        return None
    count = len(header.sizes)
    try:
        axes = parse_axes(json.loads(text))
        names = [axis.name for axis in axes[:count] if axis.is_spatial]
        if len(axes) not in (count, count + 1) or (len(axes) == count and header.channels > 1):
            raise ValueError(f"{len(axes)} axes for {count} dimensions and {header.channels} channels")
        if names != ["x", "y", "z"][: len(names)] or not names or any(axis.is_spatial for axis in axes[count:]):
            raise ValueError(f"spatial axes {names}")
    except (ValueError, TypeError, RecursionError) as error:
        notes.append(Note("axes-unreadable", f"The field {AXES_FIELD} is ignored: {error}."))
        return None
    return axes


def _mixes(header: MetaHeader, axis: int) -> bool:
    """Tell whether the matrix mixes a file axis with others."""
    count = len(header.sizes)
    values = header.numbers(MATRIX, count * count)
    if values is None:
        return False
    matrix = np.array(values).reshape(count, count)
    matrix[axis, axis] = 0
    return bool(np.any(matrix[axis]) or np.any(matrix[:, axis]))


def _time_step(header: MetaHeader, axis: int) -> tuple[str | None, float | None]:
    """Return unit and step of a time axis: from even time stamps of frames, else from the spacing of a fourth axis."""
    stamps = [
        text for name, text in header.fields.items() if re.fullmatch(r"Seq_Frame\d+_Timestamp", name, re.IGNORECASE)
    ]
    if len(stamps) == header.sizes[axis] > 1:
        try:
            steps = [b - a for a, b in itertools.pairwise(map(float, stamps))]
        except ValueError:
            return None, None
        mean = sum(steps) / len(steps)
        even = math.isfinite(mean) and mean > 0 and all(abs(step - mean) <= _STEP_RTOL * mean for step in steps)
        return ("second", mean) if even else (None, None)
    spacing = header.numbers(SPACING, len(header.sizes))
    return None, spacing[axis] if spacing is not None and axis >= 3 and spacing[axis] > 0 else None


def _geometry(header: MetaHeader, spatial: Sequence[int], notes: list[Note]) -> tuple[Geometry | None, str | None]:
    """Return the geometry, in array order, and the unit of the spatial axes."""
    count = len(header.sizes)
    spacing = header.numbers(SPACING, count) or header.numbers(("ElementSize",), count)
    origin = header.numbers(OFFSET, count)
    values = header.numbers(MATRIX, count * count)
    given: dict[Part, object] = {"spacing": spacing, "origin": origin, "direction": values}
    known = frozenset(part for part, value in given.items() if value is not None)
    if not known:
        return None, None
    if spacing is not None and any(spacing[axis] == 0 for axis in spatial):
        raise FormatError(f"The field ElementSpacing must not be 0, got {spacing}.")
    matrix = np.eye(count) if values is None else np.array(values).reshape(count, count)
    columns = (matrix * np.array(spacing or (1.0,) * count)[:, None])[list(spatial)].T
    shift = None if origin is None else np.array(origin)
    units = header.text("DistanceUnits")
    factor = millimetres(units) if units is not None else None
    if units is not None and factor is None and units not in ("?", ""):
        notes.append(Note("unit-unknown", f"The distance unit {units!r} has no known length: numbers are kept."))
    if factor is not None and factor != 1.0:
        columns = columns * factor
        shift = None if shift is None else shift * factor
    stated = known & {"origin", "direction"}
    frame = _frame(header) if stated else None
    if "direction" not in known:
        notes.append(
            Note("orientation-unknown", "The header has no TransformMatrix: its axes are not known to be x, y, z.")
        )
    elif len(spatial) == 3:
        _compare_tag(header, columns, notes)
    extra = [axis for axis in range(count) if axis not in spatial]
    if np.any(columns[3:]) or any(np.any(matrix[axis][: len(spatial)]) for axis in extra):
        notes.append(
            Note("geometry-reduced", "TransformMatrix mixes space and further axes: index 0 of these is kept.")
        )
    geometry = place(columns[:3], None if shift is None else shift[:3], frame, known, notes)
    return geometry, "millimeter" if factor is not None or (stated and units is None) else None


def _frame(header: MetaHeader) -> str | None:
    text = header.text(FRAME_FIELD)
    return "LPS" if text is None else None if text == "unknown" else text


def _compare_tag(header: MetaHeader, columns: Matrix, notes: list[Note]) -> None:
    """Note an ``AnatomicalOrientation`` that the matrix does not bear out; its letters name where an axis comes from."""
    tag = (header.text("AnatomicalOrientation") or "").upper()
    if len(tag) != 3 or not set(tag) <= set("LRAPSI") or not np.all(np.linalg.norm(columns[:3], axis=0) > 0):
        return
    expected = axis_codes(columns[:3], frame="LPS").translate(_OPPOSITE)
    if tag != expected:
        notes.append(
            Note(
                "orientation-tag-ignored",
                f"AnatomicalOrientation {tag} contradicts the matrix ({expected}), which wins.",
            )
        )


def _data_blocks(path: Path, header: MetaHeader, layout: RawLayout, notes: list[Note]) -> tuple[list[Block], Encoding]:
    """Return where the voxels are, one block a file, and how they are encoded."""
    binary = header.flag("BinaryData", default=True)
    compressed = header.flag("CompressedData", default=False)
    if compressed and not binary:
        raise FormatError(f"{path} says both that its voxels are text and that they are compressed.")
    encoding: Encoding = "zlib" if compressed else "raw" if binary else "text"
    skip = one_int("HeaderSize", header.text("HeaderSize") or "0")
    if skip < -1 or (skip == -1 and encoding != "raw"):
        raise FormatError(f"HeaderSize {skip} cannot be: it is -1 (for raw voxels at the end of a file), 0 or more.")
    named = header.required("ElementDataFile")
    if named.lower() == "local":
        if 0 < skip < header.start:
            raise FormatError(f"HeaderSize {skip} lies inside the header, which has {header.start} bytes.")
        blocks = [Block(path, header.start, layout.nbytes)]
    else:
        names = _file_names(named, header)
        size = layout.nbytes // len(names)
        blocks = [Block(resolve_beside(path, name, expected_bytes=size), 0, size) for name in names]
    if compressed and len(blocks) == 1:
        _compare_size(header, blocks[0], notes)
    return [_skipped(path, block, skip) for block in blocks], encoding


def _file_names(named: str, header: MetaHeader) -> tuple[str, ...]:
    """Return the data files of a detached header; each holds as many bytes as any other."""
    count = len(header.sizes)
    words = named.split()
    if words[:1] == ["LIST"]:
        text = re.sub(r"[dD]$", "", words[1]) if len(words) > 1 else "0"
        given = one_int("ElementDataFile", text)
        dimension = given if 0 < given <= count else max(1, count - 1)
        check_count(len(header.listed), math.prod(header.sizes[dimension:]))
        return header.listed
    if "%" not in named:
        return (named,)
    needed = header.sizes[-1] if count > 1 else 1
    numbers = [one_int("ElementDataFile", word) for word in words[1:4]]
    first = numbers[0] if numbers else 1
    last = numbers[1] if len(numbers) > 1 else first + needed - 1
    step = numbers[2] if len(numbers) > 2 else max(1, (last - first) // needed)
    return expand_pattern(words[0], first, last, step, needed=needed)


def _compare_size(header: MetaHeader, block: Block, notes: list[Note]) -> None:
    stated = header.text("CompressedDataSize")
    if stated is not None and stated != str(block.stored):
        notes.append(
            Note(
                "compressed-size-wrong",
                f"CompressedDataSize says {stated}, the file holds {block.stored} bytes: the stream is decoded to its end.",
            )
        )


def _skipped(path: Path, block: Block, skip: int) -> Block:
    if skip == -1:
        found = block.stored
        if found < block.nbytes:
            raise wrong_size(path, block, found)
        return dataclasses.replace(block, start=block.start + found - block.nbytes)
    if skip > block.path.stat().st_size:
        raise FormatError(f"{path}: HeaderSize {skip} skips more than {block.path} holds.")
    return dataclasses.replace(block, start=skip) if skip else block
