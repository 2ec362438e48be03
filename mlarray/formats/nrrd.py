"""How is NRRD read and written?

Reads ``.nrrd`` and ``.nhdr`` with every encoding of the format; writes ``.nrrd``, compressed with gzip. Positions are LPS
millimetres where the header names an anatomical space. What the axes mean is decided in ``nrrd_axes.py``; a complex kind
stays an axis of two components.
"""

from __future__ import annotations

import dataclasses
import math
import re
from functools import partial
from pathlib import Path

from mlarray.errors import FormatError, UsageError
from mlarray.formats.detached import check_count, expand_pattern, resolve_beside
from mlarray.formats.encoded import GZIP_MAGIC, Block, Encoding, gzip_writer, open_blocks, wrong_size
from mlarray.formats.file_axes import file_axes
from mlarray.formats.nrrd_axes import AxisReading, read_axes
from mlarray.formats.nrrd_header import RECORD_KEY, NrrdHeader, read_nrrd_header
from mlarray.formats.nrrd_write import header_bytes, lost_parts
from mlarray.formats.raw_sink import RawSink
from mlarray.formats.text_header import one_int, parse_record, shorten
from mlarray.sources.base import Note, Sink, SinkOptions, Source, SourceInfo
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.spec import ArraySpec

_RANGE = re.compile(r"(.*%.*?)\s+(-?\d{1,18})\s+(-?\d{1,18})\s+(-?\d{1,18})(?:\s+(\d{1,3}))?")
_SEGMENT_KEY = re.compile(r"Segment\d+_")
_MAGICS: dict[Encoding, bytes] = {"gzip": GZIP_MAGIC, "bzip2": b"BZh"}
_SKIP_PIECE = 1 << 20


def open_source(path: Path) -> Source:
    """Read the header of a NRRD file and return its voxels as a source.

    Raises
    ------
    FormatError
        For a damaged or contradictory header, voxel files outside the header's folder, or data of the wrong size.

    Notes
    -----
    Nothing that the header states; fields without a meaning here are kept as text.
    """
    header = read_nrrd_header(path)
    reading = read_axes(header)
    layout = RawLayout(tuple(reversed(header.sizes)), header.dtype, reading.order)
    blocks = _data_blocks(path, header, layout)
    blocks, encoding, notes = _true_encoding(path, blocks, header.encoding)
    data, access = open_blocks(blocks, encoding, layout.dtype, header=path)
    spec = ArraySpec(layout.array_shape, layout.dtype.newbyteorder("="), reading.axes, reading.geometry)
    info = _info(path, header, reading, blocks, notes)
    return RawSource(data, layout, spec, access=access, info=info)


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what a ``.nrrd`` cannot keep of an array.

    Raises
    ------
    UsageError, DTypeError
        When it cannot hold the array at all.

    Notes
    -----
    An origin or direction that is known without the other parts, world frames that NRRD has no name for, header fields of other
    formats. bool becomes uint8, float16 float32; complex numbers are refused.
    """
    plan = file_axes(spec, "NRRD")
    return plan.notes + lost_parts(plan)


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> Sink:
    """Create a ``.nrrd`` file that takes voxels in storage order; see :func:`losses` for what it cannot hold.

    The storage argument ``codec="none"`` leaves voxels as they are, so that parts can be read.
    """
    if path.suffix.lower() == ".nhdr":
        raise UsageError(f"Detached headers are read, not written: got {path}.", hint="Write a .nrrd file.")
    plan = file_axes(spec, "NRRD")
    order = plan.others + plan.spatial
    layout = RawLayout(tuple(spec.shape[axis] for axis in order), plan.dtype, order)
    stored = dataclasses.replace(spec, dtype=plan.dtype.newbyteorder("="))
    compressed = options.storage.get("codec") != "none"
    header = header_bytes(spec, plan, info, options.record, compressed=compressed)
    compress = partial(gzip_writer, threads=options.threads) if compressed else None
    return RawSink(path, stored, layout, header, compress=compress)


def _info(
    path: Path, header: NrrdHeader, reading: AxisReading, blocks: list[Block], notes: tuple[Note, ...]
) -> SourceInfo:
    record, record_notes = parse_record(header.keys[RECORD_KEY]) if RECORD_KEY in header.keys else ({}, ())
    if header.unknown:
        names = ", ".join(shorten(name) for name in header.unknown[:10])
        notes += (Note("field-unknown", f"NRRD does not define the header fields {names}: kept, but not understood."),)
    segments = path.name.lower().endswith((".seg.nrrd", ".seg.nhdr")) or any(map(_SEGMENT_KEY.match, header.keys))
    return SourceInfo(
        format="nrrd",
        files=tuple(dict.fromkeys((path, *(block.path for block in blocks)))),
        header=header.plain(),
        notes=reading.notes + notes + record_notes,
        is_seg=True if segments else None,
        record=record,
    )


def _data_blocks(path: Path, header: NrrdHeader, layout: RawLayout) -> list[Block]:
    """Return where the voxels are, one block a file."""
    named = header.fields.get("data file")
    if named is None:
        return [_skipped(path, Block(path, header.start, layout.nbytes), header)]
    names = _file_names(named, header)
    size = layout.nbytes // len(names)
    places = [resolve_beside(path, name, expected_bytes=size) for name in names]
    return [_skipped(path, Block(place, 0, size), header) for place in places]


def _file_names(named: str, header: NrrdHeader) -> tuple[str, ...]:
    """Return the data files of a detached header; each holds as many bytes as any other."""
    words = named.split()
    match = _RANGE.fullmatch(named)
    if words[:1] == ["LIST"]:
        needed = _files_needed(words[1] if len(words) > 1 else None, header)
        check_count(len(header.listed), needed)
        names = header.listed
    elif match is not None:
        needed = _files_needed(match[5], header)
        names = expand_pattern(match[1], int(match[2]), int(match[3]), int(match[4]), needed=needed)
    else:
        return (named,)
    if header.sizes[-1] % len(names) and needed is None:
        raise FormatError(f"{len(names)} data files cannot share an axis of {header.sizes[-1]} evenly.")
    return names


def _files_needed(text: str | None, header: NrrdHeader) -> int | None:
    """Return how many files the sizes need, or None where any share of the slowest axis will do."""
    count = len(header.sizes)
    dimension = max(1, count - 1) if text is None else one_int("data file", text)
    if not 1 <= dimension <= count:
        raise FormatError(f"'data file' says that each file has {dimension} axes; 1 to {count} are possible.")
    return None if dimension == count else math.prod(header.sizes[dimension:])


def _skipped(path: Path, block: Block, header: NrrdHeader) -> Block:
    """Return ``block`` behind the lines and bytes that the header says to skip."""
    lines = one_int("line skip", header.fields.get("line skip", "0"))
    count = one_int("byte skip", header.fields.get("byte skip", "0"))
    if lines < 0 or count < -1 or (count == -1 and header.encoding != "raw"):
        raise FormatError(
            f"{path}: cannot skip {lines} lines and {count} bytes of {header.encoding} data; "
            "-1 bytes, meaning the last ones, is for raw data only."
        )
    start = _after_lines(block, lines)
    if count == -1:
        found = block.path.stat().st_size - start
        if found < block.nbytes:
            raise wrong_size(path, block, found)
        return dataclasses.replace(block, start=start + found - block.nbytes)
    if header.encoding not in ("gzip", "bzip2") and start + count > block.path.stat().st_size:
        raise FormatError(f"{path}: 'byte skip' {count} skips more than {block.path} holds.")
    if header.encoding in ("gzip", "bzip2"):
        return dataclasses.replace(block, start=start, skip=count)  # lines are skipped before, bytes after decoding
    return dataclasses.replace(block, start=start + count)


def _after_lines(block: Block, lines: int) -> int:
    position = block.start
    if not lines:
        return position
    with block.path.open("rb") as file:
        file.seek(position)
        while piece := file.read(_SKIP_PIECE):
            found = piece.count(b"\n")
            if found < lines:
                lines -= found
                position += len(piece)
                continue
            for _ in range(lines):
                position += piece.index(b"\n") + 1
                piece = piece[piece.index(b"\n") + 1 :]
            return position
    raise FormatError(f"{block.path} ends before the {lines} further lines that the header says to skip.")


def _true_encoding(
    path: Path, blocks: list[Block], encoding: Encoding
) -> tuple[list[Block], Encoding, tuple[Note, ...]]:
    """Return how the data are really encoded: a header may claim a compression that never happened."""
    magic = _MAGICS.get(encoding)
    if magic is None or all(block.head(len(magic)) == magic for block in blocks):
        return blocks, encoding, ()
    wrong = next(block for block in blocks if block.head(len(magic)) != magic)
    if any(block.head(len(magic)) == magic or block.stored != block.nbytes + block.skip for block in blocks):
        raise FormatError(
            f"{path} says encoding {encoding}, but the data in {wrong.path} do not begin like {encoding}, and their "
            f"{wrong.stored} bytes are not the {wrong.nbytes + wrong.skip} bytes of the voxels either.",
            hint="Correct the encoding in the header, or export the image again.",
        )
    note = Note(
        "encoding-mismatch", f"The header says {encoding}, the data are raw and of the right size: read as raw."
    )
    return blocks, "raw", (note,)
