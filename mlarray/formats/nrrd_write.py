"""What stands in the header of a NRRD file that is written?

Spatial axes come first (fastest), x before y before z, with their directions in left-posterior-superior; other axes follow
with direction ``none``. A part of the geometry that nobody stated is left out. Axis kinds are the ones that ITK reads as
pixels of several components: ``list`` (channels; time too, told apart by its label), ``vector`` and ``point``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from mlarray.axes import Axis, AxisType
from mlarray.formats.file_axes import FileAxes, axis_unit, is_lps, unknown_parts
from mlarray.formats.nrrd_axes import ANATOMICAL, OTHER_SPACES
from mlarray.formats.nrrd_header import RECORD_KEY, escape
from mlarray.formats.text_header import dump_record, number_text
from mlarray.geometry import Geometry
from mlarray.orientation import Matrix
from mlarray.sources.base import Note, SourceInfo
from mlarray.spec import ArraySpec

_KINDS: dict[AxisType, str] = {
    "space": "domain",
    "time": "list",
    "channel": "list",
    "components": "vector",
    "continuous": "point",
    "other": "point",
}
_TYPE_NAMES = {"f4": "float", "f8": "double"}
_EXTENT_KEYS = re.compile(r"Segment\d+_Extent|Segmentation_ReferenceImageExtentOffset")


def lost_parts(plan: FileAxes) -> tuple[Note, ...]:
    """Name the parts of the geometry that a NRRD header has no place for."""
    geometry = plan.geometry
    if geometry is None:
        return ()
    notes = []
    if not _is_placed(geometry):
        for part in ("direction", "origin"):
            if part in geometry.known:
                missing = " and ".join(p for p in unknown_parts(geometry) if p != "origin")
                notes.append(Note(f"{part}-dropped", f"NRRD has no place for the {part} while {missing} is unknown."))
    frame = geometry.coord_system
    if frame is not None and _space_line(geometry) is None:
        notes.append(Note("frame-dropped", f"NRRD has no name for the world frame {frame!r} of {geometry.ndim} axes."))
    return tuple(notes)


def header_bytes(
    spec: ArraySpec, plan: FileAxes, info: SourceInfo, record: Mapping[str, object], *, compressed: bool = True
) -> bytes:
    """Return the header, blank line included."""
    axes = [spec.axes[axis] for axis in reversed(plan.others + plan.spatial)]  # file order, fastest first
    source = info.header if str(info.header.get("magic", "")).startswith("NRRD") else {}
    lines = ["NRRD0005", *_comments(source)]
    lines.append(f"type: {_TYPE_NAMES.get(plan.dtype.str[1:], plan.dtype.name)}")
    lines.append(f"dimension: {spec.ndim}")
    lines.append(f"sizes: {' '.join(str(spec.shape[axis]) for axis in reversed(plan.others + plan.spatial))}")
    lines.append(f"kinds: {' '.join(_KINDS[axis.type or 'other'] for axis in axes)}")
    if plan.others:
        lines.append(f"labels: {_quoted(_label(axis) for axis in axes)}")
    lines += _place_lines(axes, plan, source)
    lines += ["endian: little"] if plan.dtype.itemsize > 1 else []
    lines.append(f"encoding: {'gzip' if compressed else 'raw'}")
    for name in ("content", "sample units"):
        if isinstance(source.get(name), str):
            lines.append(f"{name}: {_one_line(str(source[name]))}")
    lines += _key_lines(source, spec, plan)
    if record:
        lines.append(f"{RECORD_KEY}:={escape(dump_record(record))}")
    return ("\n".join(lines) + "\n\n").encode("utf-8", errors="replace")


def _is_placed(geometry: Geometry) -> bool:
    return {"spacing", "direction"} <= geometry.known


def _space_line(geometry: Geometry) -> str | None:
    if geometry.ndim != 3:
        return None
    if is_lps(geometry):
        return "space: left-posterior-superior"
    name = geometry.coord_system or ""
    return f"space: {name}" if name.lower() in OTHER_SPACES else None


def _place_lines(axes: list[Axis], plan: FileAxes, source: Mapping[str, object]) -> list[str]:
    geometry = plan.geometry
    steps = [axis.step for axis in axes]
    spatial = len(plan.spatial)
    units = [axis_unit(axis) for axis in axes]
    lines = []
    if geometry is not None and _is_placed(geometry):
        lines.append(_space_line(geometry) or f"space dimension: {geometry.ndim}")
        columns = geometry.linear[:, ::-1].T
        vectors = [_vector(column) for column in columns] + ["none"] * len(plan.others)
        lines.append(f"space directions: {' '.join(vectors)}")
        if "origin" in geometry.known:
            lines.append(f"space origin: {_vector(geometry.affine[:-1, -1])}")
        if any(units[:spatial]):
            lines.append(f"space units: {_quoted(units[:1] * geometry.ndim)}")
        units[:spatial] = [""] * spatial
        spacings = ["nan"] * spatial
        lines += _measurement_lines(source)
    elif geometry is not None and "spacing" in geometry.known:
        spacings = [number_text(value) for value in reversed(geometry.spacing)]
    else:
        spacings = ["nan"] * spatial
    spacings += ["nan" if step is None else number_text(step) for step in steps[spatial:]]
    if set(spacings) != {"nan"}:
        lines.append(f"spacings: {' '.join(spacings)}")
    if any(units):
        lines.append(f"units: {_quoted(units)}")
    return lines


def _measurement_lines(source: Mapping[str, object]) -> list[str]:
    """Return the measurement frame of the source, turned into LPS as the positions are.

    Its vectors are world vectors of the source's space, so they change sign with it.
    """
    signs = ANATOMICAL.get(str(source.get("space", "")).lower())
    if signs is None:
        return []
    frame = source.get("measurement frame")
    keys = source.get("key/values")
    diffusion = isinstance(keys, Mapping) and any(str(key).startswith("DWMRI_") for key in keys)
    if frame is None and diffusion and signs != (1, 1, 1):
        frame = np.eye(3).tolist()  # gradients without a frame are in the world that has just been renamed
    try:
        vectors = np.asarray(frame, dtype=np.float64)
    except (TypeError, ValueError):
        return []
    if vectors.shape != (3, 3) or not np.all(np.isfinite(vectors)):
        return []
    return [f"measurement frame: {' '.join(_vector(vector * signs) for vector in vectors)}"]


def _key_lines(source: Mapping[str, object], spec: ArraySpec, plan: FileAxes) -> list[str]:
    keys = source.get("key/values")
    if not isinstance(keys, Mapping):
        return []
    sizes = source.get("sizes")
    # Extents of segments count voxels: they hold only while the grid does.
    same_grid = isinstance(sizes, list) and sorted(map(str, sizes)) == sorted(map(str, spec.shape))
    lines = []
    for key, value in keys.items():
        usable = isinstance(value, str) and key and ":=" not in key and ": " not in key and not key.startswith("#")
        if usable and key != RECORD_KEY and (same_grid or not _EXTENT_KEYS.fullmatch(key)):
            lines.append(f"{escape(key)}:={escape(value)}")
    return lines


def _comments(source: Mapping[str, object]) -> list[str]:
    comments = source.get("comments")
    return [f"# {_one_line(str(comment))}" for comment in comments] if isinstance(comments, list) else []


def _label(axis: Axis) -> str:
    return "" if axis.is_spatial else "t" if axis.type == "time" else axis.name


def _quoted(texts: Iterable[str]) -> str:
    return " ".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)


def _vector(values: Matrix) -> str:
    return f"({','.join(number_text(float(value)) for value in values)})"


def _one_line(text: str) -> str:
    return " ".join(text.split())
