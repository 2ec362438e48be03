"""What stands in the header of a MetaImage file that is written?

Channels are interleaved, the fastest in the file; other axes that are not spatial are dimensions behind z. A part of the
geometry that nobody stated has no field, which other readers take as 1 mm, origin 0 and no rotation. A sheared matrix is
written as it is: ITK reads it. Names of axes and of a frame other than LPS stand in fields of this package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlarray.errors import UsageError
from mlarray.formats.file_axes import FileAxes, is_lps, unknown_parts
from mlarray.formats.metaimage_header import (
    AXES_FIELD,
    FRAME_FIELD,
    LONGEST_VALUE,
    RECORD_FIELD,
    TECHNICAL,
    WRITTEN_TYPES,
)
from mlarray.formats.text_header import dump_record, number_text
from mlarray.sources.base import Note, SourceInfo
from mlarray.spec import ArraySpec

MOST_DIMENSIONS = 10  # of MetaIO
_SIZE_DIGITS = 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,250}")


def channel_axis(spec: ArraySpec, plan: FileAxes) -> int | None:
    """Return the array axis that is interleaved: the last one of channels or components."""
    found = [axis for axis in plan.others if spec.axes[axis].type in ("channel", "components")]
    if len(plan.others) + len(plan.spatial) - bool(found) > MOST_DIMENSIONS:
        raise UsageError(f"MetaImage holds up to {MOST_DIMENSIONS} dimensions, got shape {spec.shape}.")
    return found[-1] if found else None


def lost_parts(spec: ArraySpec, plan: FileAxes) -> tuple[Note, ...]:
    """Name what other readers of a MetaImage will take for something else."""
    notes = []
    channel = channel_axis(spec, plan)
    extra = [spec.axes[axis] for axis in plan.others if axis != channel]
    if extra and (len(plan.spatial) < 3 or len(extra) > 1 or extra[0].type != "time"):
        names = [axis.name for axis in extra]
        notes.append(Note("axes-unnamed", f"MetaImage does not name axes: others will take {names} for space or time."))
    unknown = unknown_parts(plan.geometry)
    if unknown:
        notes.append(
            Note("geometry-assumed", f"Other readers take the unknown {', '.join(unknown)} as neutral values.")
        )
    geometry = plan.geometry
    if geometry is not None and geometry.known != {"spacing"} and not is_lps(geometry):
        notes.append(
            Note("frame-assumed", f"Other readers take positions for LPS; their frame is {geometry.coord_system!r}.")
        )
    if geometry is not None and geometry.is_sheared:
        notes.append(Note("sheared", "The axes are not at right angles: some readers refuse such a MetaImage."))
    return tuple(notes)


def header_bytes(
    spec: ArraySpec,
    plan: FileAxes,
    dimensions: Sequence[int],
    channel: int | None,
    info: SourceInfo,
    record: Mapping[str, object],
    *,
    compressed: bool = True,
) -> tuple[bytes, Callable[[int], tuple[int, bytes]] | None]:
    """Return the header and, for compressed data, the function that fills in their size."""
    lines = [
        "ObjectType = Image",
        f"NDims = {len(dimensions)}",
        "BinaryData = True",
        "BinaryDataByteOrderMSB = False",
        f"CompressedData = {compressed}",
        *([f"CompressedDataSize = {'0':<{_SIZE_DIGITS}}"] if compressed else []),
        *_place_lines(spec, plan, dimensions),
        f"DimSize = {' '.join(str(spec.shape[axis]) for axis in reversed(dimensions))}",
    ]
    if channel is not None:
        lines.append(f"ElementNumberOfChannels = {spec.shape[channel]}")
    lines.append(f"ElementType = {WRITTEN_TYPES[plan.dtype.str[1:]]}")
    lines += _restored(info.header, spec)
    if plan.others:
        lines.append(f"{AXES_FIELD} = {_axes_text(spec, plan, dimensions, channel)}")
    lines += _record_lines(record)
    lines.append("ElementDataFile = LOCAL")
    text = ("\n".join(lines) + "\n").encode("utf-8", errors="replace")
    if not compressed:
        return text, None
    position = text.index(b"CompressedDataSize = ") + len(b"CompressedDataSize = ")
    return text, _SizePatch(position)


class _SizePatch:
    """Says where the size of the compressed data goes."""

    def __init__(self, position: int) -> None:
        self._position = position

    def __call__(self, stored: int) -> tuple[int, bytes]:
        return self._position, f"{stored:<{_SIZE_DIGITS}}".encode("ascii")


def _place_lines(spec: ArraySpec, plan: FileAxes, dimensions: Sequence[int]) -> list[str]:
    geometry = plan.geometry
    if geometry is None:
        return []
    count, spatial = len(dimensions), len(plan.spatial)
    extra = [spec.axes[axis].step for axis in reversed(dimensions[: count - spatial])]
    lines = []
    spacing = [1.0] * spatial
    if "direction" in geometry.known:
        matrix = np.eye(count)
        matrix[:spatial, :spatial] = geometry.direction[:, ::-1].T
        lines.append(f"TransformMatrix = {_numbers(matrix.ravel())}")
    if "origin" in geometry.known:
        lines.append(f"Offset = {_numbers([*geometry.origin, *([0.0] * (count - spatial))])}")
    if "spacing" in geometry.known:
        spacing = list(reversed(geometry.spacing))
        lines.append(f"ElementSpacing = {_numbers([*spacing, *(1.0 if step is None else step for step in extra)])}")
    if geometry.known != {"spacing"} and not is_lps(geometry):
        lines.append(f"{FRAME_FIELD} = {' '.join((geometry.coord_system or 'unknown').split())}")
    return lines


def _axes_text(spec: ArraySpec, plan: FileAxes, dimensions: Sequence[int], channel: int | None) -> str:
    """Return the axes in file order, the fastest first, the channels at the end."""
    names = dict(zip(reversed(plan.spatial), "xyz", strict=False))
    entries = []
    for axis in (*reversed(dimensions), *(() if channel is None else (channel,))):
        entry = spec.axes[axis].to_dict()
        entries.append({**entry, "name": names[axis]} if axis in names else entry)
    return json.dumps(entries, separators=(",", ":"))


def _restored(header: Mapping[str, object], spec: ArraySpec) -> list[str]:
    """Return the free fields of a source that was a MetaImage itself."""
    if not {"NDims", "DimSize", "ElementType"} <= set(header):
        return []
    timed = any(axis.type == "time" for axis in spec.axes)
    lines = []
    for name, value in header.items():
        if not isinstance(value, str) or not _NAME.fullmatch(name) or name.lower() in TECHNICAL:
            continue
        text = " ".join(value.splitlines())
        if len(text.encode("utf-8", errors="replace")) <= LONGEST_VALUE and (timed or not name.startswith("Seq_")):
            lines.append(f"{name} = {text}")
    return lines


def _record_lines(record: Mapping[str, object]) -> list[str]:
    if not record:
        return []
    # Readers strip the space around a value: with spaces escaped, a long record can be cut anywhere.
    text = dump_record(record).replace(" ", "\\u0020")
    parts = [text[low : low + LONGEST_VALUE] for low in range(0, len(text), LONGEST_VALUE)]
    return [f"{RECORD_FIELD}{number or ''} = {part}" for number, part in enumerate(parts)]


def _numbers(values: Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    return " ".join(number_text(float(value)) for value in values)
