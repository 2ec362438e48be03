"""Where does each array axis go in a NIfTI file, and what is lost on the way? The plan of a file and its header bytes.

Private to :mod:`mlarray.formats.nifti`. File axes are numbered 1 to 7 as in ``dim``: x, y, z, time, components, two more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import DTypeError, UsageError
from mlarray.formats.nifti_header import (
    COMMENT_CODE,
    COMPONENT_INTENTS,
    DATATYPES,
    FSL_COMPONENT_INTENTS,
    HEADER_BYTES,
    LABEL_INTENT,
    RECORD_PREFIX,
    SPACE_UNITS,
    TIME_UNITS,
    Matrix,
    encode_extensions,
    greatest_distance,
    is_nifti,
    qform_matrix,
)
from mlarray.formats.plugins import all_formats
from mlarray.geometry import ALL_PARTS, POSITION_ATOL_MM, Geometry
from mlarray.sources.base import Note, SourceInfo
from mlarray.sources.raw import RawLayout
from mlarray.spec import ArraySpec

_VECTOR_INTENT = 1007
_SCANNER = 1  # qform_code and sform_code: scanner coordinates (nifti1.h)
_FORM_CODES = range(1, 6)
_LONGEST_NIFTI1_AXIS = 32767
_RGB_DATATYPES = {3: 128, 4: 2304}  # per number of colours
_RESTORED = (
    *("intent_p1", "intent_p2", "intent_p3", "intent_name", "cal_max", "cal_min", "descrip", "aux_file"),
    *("slice_start", "slice_end", "slice_code", "slice_duration", "dim_info", "toffset"),
)
_STORED_AS = {"b1": "u1", "f2": "f4"}


@dataclass(frozen=True, slots=True)
class NiftiLayout:
    """What a NIfTI file will hold.

    Parameters
    ----------
    dims : tuple of int
        ``dim[1..n]``, x first.
    layout : RawLayout
        The voxel block.
    datatype : int
        Code of the voxels.
    intent : int
        Intent code.
    affine : ndarray, shape (4, 4), or None
        File index to RAS millimetres; None when orientation or origin are unknown.
    is_sheared : bool
        Whether a quaternion cannot hold the affine.
    zooms : tuple of float
        Voxel size along x, y, z in millimetres.
    steps : mapping of int to float
        Steps of the file axes 4 to 7.
    time_code : int
        Unit bits of the time axis.
    notes : tuple of Note
        What is lost or assumed.
    """

    dims: tuple[int, ...]
    layout: RawLayout
    datatype: int
    intent: int
    affine: Matrix | None
    is_sheared: bool
    zooms: tuple[float, float, float]
    steps: Mapping[int, float]
    time_code: int
    notes: tuple[Note, ...]


def lay_out(spec: ArraySpec, info: SourceInfo) -> NiftiLayout:
    """Decide how an array is written.

    Raises
    ------
    UsageError
        For an empty axis, no or more than 3 spatial axes, more than 7 axes.
    DTypeError
        For long double numbers.
    """
    if not spec.ndim or 0 in spec.shape:
        raise UsageError(f"NIfTI cannot hold an empty array or a single number, got shape {spec.shape}.")
    notes: list[Note] = []
    header = info.header if is_nifti(info.header) else {}
    stored = _stored_dtype(spec, notes)
    colours = _colour_axis(spec, header)
    places = _spatial_places(spec, notes) | _outer_places(spec, colours, header)
    dims = [1] * max(places.values())
    for axis, number in places.items():
        dims[number - 1] = spec.shape[axis]
    order = tuple(sorted(places, key=lambda axis: -places[axis])) + (() if colours is None else (colours,))
    intent = _intent(dims, header) or (LABEL_INTENT if info.is_seg else 0)
    steps, time_code = _steps(spec, places, header, notes)
    affine, zooms, is_sheared = _affine(spec, places, header, notes)
    _note_axes(spec, places, colours, intent, notes)
    if info.header and not header:
        notes.append(Note("header-dropped", f"Header fields of {_header_of(info)} have no place in NIfTI."))
    return NiftiLayout(
        dims=tuple(dims),
        layout=RawLayout(tuple(spec.shape[axis] for axis in order), stored, order),
        datatype=_RGB_DATATYPES[spec.shape[colours]] if colours is not None else _code_of(stored),
        intent=intent,
        affine=affine,
        is_sheared=is_sheared,
        zooms=zooms,
        steps=steps,
        time_code=time_code,
        notes=tuple(notes),
    )


def encode_header(file: NiftiLayout, info: SourceInfo, record: Mapping[str, object]) -> bytes:
    """Return everything that stands before the voxels: header, extension flag, extensions."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    source = info.header if is_nifti(info.header) else {}
    is_second = max(file.dims) > _LONGEST_NIFTI1_AXIS or source.get("sizeof_hdr") == HEADER_BYTES["nifti2"]
    header: Any = (Nifti2Header if is_second else Nifti1Header)(endianness="<")
    _restore(header, source)
    header["dim"] = [len(file.dims), *file.dims, *[1] * (7 - len(file.dims))]
    header["datatype"] = file.datatype
    header["bitpix"] = 8 * np.dtype(DATATYPES[file.datatype][0]).itemsize * DATATYPES[file.datatype][1]
    header["intent_code"] = file.intent
    header["scl_slope"], header["scl_inter"] = 1.0, 0.0
    space_code = _code(source, "xyzt_units", 2) & 0x07
    per_unit = SPACE_UNITS.get(space_code, ("", 1.0))[1]
    header["xyzt_units"] = (space_code if space_code <= 3 else 2) | file.time_code
    header["pixdim"] = [
        1.0,
        *(zoom / per_unit for zoom in file.zooms),
        *(file.steps.get(number, 1.0) for number in range(4, 8)),
    ]
    if file.affine is not None:
        _set_affine(header, file, source, per_unit)
    if file.time_code != _code(source, "xyzt_units", 0) & 0x38:
        header["toffset"] = 0.0
    if int(header["slice_end"]) >= (file.dims[2] if len(file.dims) > 2 else 1):
        for name in ("slice_start", "slice_end", "slice_code", "slice_duration"):
            header[name] = 0
    extensions = [*_source_extensions(source)]
    if record:
        text = json.dumps(dict(record), separators=(",", ":"), allow_nan=False)
        extensions.append((COMMENT_CODE, RECORD_PREFIX + text.encode()))
    tail = encode_extensions(extensions)
    header["vox_offset"] = HEADER_BYTES["nifti2" if is_second else "nifti1"] + len(tail)
    return bytes(header.binaryblock) + tail


def _stored_dtype(spec: ArraySpec, notes: list[Note]) -> np.dtype[Any]:
    kind = f"{spec.dtype.kind}{spec.dtype.itemsize}"
    stored = _STORED_AS.get(kind, kind)
    if stored not in {name for name, _ in DATATYPES.values()}:
        raise DTypeError(
            f"NIfTI files of dtype {spec.dtype} are not written.", hint="Convert to float64 or complex128."
        )
    dtype = np.dtype(stored).newbyteorder("<")
    if stored != kind:
        notes.append(Note("dtype-changed", f"NIfTI has no {spec.dtype.name}; values are stored as {dtype.name}."))
    return dtype


def _code_of(dtype: np.dtype[Any]) -> int:
    name = f"{dtype.kind}{dtype.itemsize}"
    return next(code for code, entry in DATATYPES.items() if entry == (name, 1))


def _colour_axis(spec: ArraySpec, header: Mapping[str, object]) -> int | None:
    """Return the axis to store as RGB: only when the source was RGB and still looks like it."""
    for position, axis in enumerate(spec.axes):
        code = _RGB_DATATYPES.get(spec.shape[position]) if axis.type == "channel" and spec.dtype == np.uint8 else None
        if code is not None and header.get("datatype") == code:
            return position
    return None


def _spatial_places(spec: ArraySpec, notes: list[Note]) -> dict[int, int]:
    """Return, per spatial array axis, the file axis 1 to 3: by name, or z, y, x from the slowest."""
    spatial = [position for position, is_space in enumerate(spec.spatial) if is_space]
    if not 1 <= len(spatial) <= 3:
        raise UsageError(f"NIfTI has 1 to 3 spatial axes, the array has {len(spatial)}.", hint="Name the axes.")
    names = [spec.axes[position].name.lower() for position in spatial]
    if set(names) <= set("xyz") and len(set(names)) == len(names):
        return {position: "xyz".index(name) + 1 for position, name in zip(spatial, names, strict=True)}
    taken = ", ".join("zyx"[3 - len(spatial) :])
    notes.append(Note("axes-assumed", f"The spatial axes {', '.join(names)} were taken as {taken}."))
    return {position: number for number, position in enumerate(reversed(spatial), start=1)}


def _outer_places(spec: ArraySpec, colours: int | None, header: Mapping[str, object]) -> dict[int, int]:
    """Return, per other array axis, the file axis 4 to 7: time 4, components 5, the rest from the fastest on."""
    rest = [i for i in reversed(range(spec.ndim)) if not spec.spatial[i] and i != colours]
    if len(rest) > 4:
        raise UsageError(f"NIfTI has at most 7 axes; the array of shape {spec.shape} does not fit.", hint="Split it.")
    first = {
        kind: next((i for i in rest if spec.axes[i].type == kind), None) for kind in ("time", "components", "channel")
    }
    vector = first["channel"] if first["components"] is None else first["components"]
    is_warp = header.get("intent_code") in FSL_COMPONENT_INTENTS and first["time"] is None
    places: dict[int, int] = {}
    for axis, number in ((first["time"], 4), (vector, 4 if is_warp else 5)):
        if axis is not None:
            places[axis] = number
    free = [number for number in (5, 6, 7, 4) if number not in places.values()]
    return places | dict(zip([i for i in rest if i not in places], free, strict=False))


def _header_of(info: SourceInfo) -> str:
    """Return which format the header fields of a source are of; a container holds those of another."""
    meta = cast("Any", info.meta)
    kind = info.format if meta is None else meta._image_meta_format.image_meta_format
    return next((row.title for row in all_formats() if row.name == kind), kind or "no known format")


def _intent(dims: Sequence[int], header: Mapping[str, object]) -> int:
    """Return the intent code: the source's, unless components came or went since."""
    source = min(max(0, _code(header, "intent_code", 0)), _LONGEST_NIFTI1_AXIS)
    shape = cast("Sequence[int]", header.get("dim", ()))
    had, has = len(shape) > 5 and shape[0] >= 5 and shape[5] > 1, len(dims) > 4 and dims[4] > 1
    if has and not had:
        return _VECTOR_INTENT
    return 0 if source in COMPONENT_INTENTS and not has else source


def _steps(
    spec: ArraySpec, places: Mapping[int, int], header: Mapping[str, object], notes: list[Note]
) -> tuple[dict[int, float], int]:
    """Return the steps of the file axes 4 to 7 as stored, and the unit bits of time."""
    source_code = _code(header, "xyzt_units", 0) & 0x38
    steps: dict[int, float] = {}
    time_code = source_code
    for position, axis in enumerate(spec.axes):
        number = places.get(position, 0)
        if number == 4 and axis.type == "time":
            codes = (source_code, *TIME_UNITS, 0)
            time_code = next((c for c in codes if TIME_UNITS.get(c, (None, 1.0))[0] == axis.unit), 0)
            steps[4] = (axis.step or 0.0) * TIME_UNITS.get(time_code, (None, 1.0))[1]
            if axis.unit is not None and not time_code:
                notes.append(
                    Note("unit-dropped", f"NIfTI has no unit {axis.unit!r} of time; the step is kept without.")
                )
        elif axis.step is not None:
            notes.append(Note("step-dropped", f"NIfTI keeps no step of axis {axis.name!r} ({axis.step:g})."))
    return steps, time_code


def _affine(
    spec: ArraySpec, places: Mapping[int, int], header: Mapping[str, object], notes: list[Note]
) -> tuple[Matrix | None, tuple[float, float, float], bool]:
    """Return the RAS affine in file order (None where parts are unknown), the voxel size, and whether it is sheared."""
    geometry = spec.geometry
    columns = [places[position] - 1 for position, is_space in enumerate(spec.spatial) if is_space]
    zooms = [1.0, 1.0, 1.0]
    if geometry is None or geometry.known != ALL_PARTS:
        known: frozenset[str] = frozenset() if geometry is None else geometry.known
        missing = ", ".join(sorted(ALL_PARTS - known))
        notes.append(Note("geometry-unknown", f"Unknown: {missing}. qform and sform stay empty; readers will assume."))
        if geometry is not None and "spacing" in known:
            for column, step in zip(columns, geometry.spacing, strict=True):
                zooms[column] = step
        return None, (zooms[0], zooms[1], zooms[2]), False
    affine = _file_affine(_in_ras(geometry, notes), columns)
    if geometry.ndim < 3:
        affine = _source_affine(affine, columns, header)
    zooms = np.linalg.norm(affine[:3, :3], axis=0).tolist()
    return affine, (zooms[0], zooms[1], zooms[2]), geometry.is_sheared


def _in_ras(geometry: Geometry, notes: list[Note]) -> Geometry:
    if (geometry.coord_system or "").rstrip("+") not in ("RAS", "LPS"):
        notes.append(Note("frame-assumed", f"The world frame {geometry.coord_system!r} was taken as LPS."))
        geometry = replace(geometry, coord_system="LPS")
    return geometry.in_frame("RAS")


def _file_affine(geometry: Geometry, columns: Sequence[int]) -> Matrix:
    """Return a 4x4 affine with the array's axes at ``columns``; absent ones run along the remaining world axes."""
    count = geometry.ndim
    affine = np.zeros((4, 4))
    affine[3, 3] = 1.0
    affine[:count, columns] = geometry.linear
    affine[:count, 3] = geometry.affine[:-1, -1]
    for world, column in zip(range(count, 3), sorted(set(range(3)) - set(columns)), strict=True):
        affine[world, column] = 1.0
    return affine


def _source_affine(affine: Matrix, columns: Sequence[int], header: Mapping[str, object]) -> Matrix:
    """Return the source's own affine when it agrees in plane: it also says how thick and where a 2D image is."""
    factor = SPACE_UNITS.get(_code(header, "xyzt_units", 0) & 0x07, ("", 1.0))[1]
    rows, inside = list(range(len(columns))), [*columns, 3]
    for name in ("sform", "qform"):
        matrix = header.get(name)
        if matrix is None or _code(header, f"{name}_code", 0) <= 0:
            continue
        candidate = np.array(matrix, dtype=np.float64)
        candidate[:3] *= factor
        regular = np.all(np.isfinite(candidate)) and abs(np.linalg.det(candidate)) > 0
        if regular and np.allclose(
            candidate[np.ix_(rows, inside)], affine[np.ix_(rows, inside)], atol=POSITION_ATOL_MM
        ):
            return candidate
    return affine


def _set_affine(header: Any, file: NiftiLayout, source: Mapping[str, object], per_unit: float) -> None:
    """Store the affine under the source's codes, as sform wherever the quaternion cannot hold it."""
    assert file.affine is not None
    affine = file.affine.copy()
    affine[:3] /= per_unit
    stated = (_code(source, "sform_code", 0), _code(source, "qform_code", 0))
    sform, qform = (code if code in _FORM_CODES or code <= 0 else _SCANNER for code in stated)
    if sform <= 0 and qform <= 0:
        sform = qform = _SCANNER
    if qform > 0 and not file.is_sheared:
        header.set_qform(affine, qform)
        names = ("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z", "pixdim")
        held = qform_matrix({name: header[name].tolist() for name in names})
        dims = (*file.dims[:3], 1, 1)[:3]
        is_held = held is not None and greatest_distance(held, affine, dims) * per_unit <= POSITION_ATOL_MM
    else:
        is_held = False
    if sform > 0 or not is_held:
        header.set_sform(affine, sform if sform > 0 else qform)


def _restore(header: Any, source: Mapping[str, object]) -> None:
    for name in _RESTORED:
        if name in source:
            with np.errstate(all="ignore"):
                try:
                    header[name] = source[name]
                except (TypeError, ValueError, OverflowError):
                    continue  # a value of another version's field that this one cannot hold


def _source_extensions(source: Mapping[str, object]) -> list[tuple[int, bytes]]:
    found = []
    for entry in cast("Sequence[object]", source.get("extensions") or ()):
        code, content = (entry.get("code"), entry.get("content")) if isinstance(entry, Mapping) else (None, None)
        if isinstance(code, int) and 0 <= code < 1 << 31 and isinstance(content, bytes):
            found.append((code, content))
    return found


def _code(header: Mapping[str, object], name: str, default: int) -> int:
    value = header.get(name, default)
    return value if isinstance(value, int) else default


def _note_axes(spec: ArraySpec, places: Mapping[int, int], colours: int | None, intent: int, notes: list[Note]) -> None:
    """Note it when reading the file gives other axes than were written."""
    outer = {number: axis for axis, number in places.items() if number > 3 and spec.shape[axis] > 1}
    named = {4: Axis("t"), 5: Axis("v", "components") if intent in COMPONENT_INTENTS else Axis("c")}
    if intent in FSL_COMPONENT_INTENTS:
        named[4] = Axis("v", "components")
    count = 3 if max(places.values()) > 3 else max(places.values())
    back = [named.get(number, Axis(f"dim{number}")) for number in sorted(outer, reverse=True)]
    back += ([] if colours is None else [Axis("c")]) + [Axis(name) for name in "zyx"[3 - count :]]
    spatial = {axis: "xyz"[number - 1] for axis, number in places.items() if number <= 3}
    given = [(spatial.get(i, axis.name.lower()), axis.type) for i, axis in enumerate(spec.axes)]
    if given != [(axis.name, axis.type) for axis in back]:
        before, after = (", ".join(names) for names in ([axis.name for axis in spec.axes], [a.name for a in back]))
        notes.append(Note("axes-changed", f"The axes ({before}) will be read back as ({after})."))
