"""How does a NIfTI file become an array, and an array a NIfTI file?

Reads NIfTI-1, NIfTI-2 and Analyze 7.5, single files and pairs, plain and gzip; writes ``.nii`` and ``.nii.gz``. The array
axes are the file axes reversed: a file of (x, y, z, t, v) is an array (v, t, z, y, x) in C order, so no voxel moves. World
coordinates are turned from RAS, NIfTI's, into LPS, and lengths into millimetres. Header bytes are read by
:mod:`mlarray.formats.nifti_header`, files are laid out by :mod:`mlarray.formats.nifti_layout`.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from mlarray.axes import Axis
from mlarray.errors import FormatError, UsageError
from mlarray.formats.nifti_header import (
    COMPONENT_INTENTS,
    DATATYPES,
    FSL_COMPONENT_INTENTS,
    LABEL_INTENT,
    REFUSED_DATATYPES,
    SPACE_UNITS,
    TIME_UNITS,
    Matrix,
    NiftiHeader,
    greatest_distance,
    is_step,
    is_usable,
    qform_matrix,
    read_header,
    sform_matrix,
)
from mlarray.formats.nifti_layout import encode_header, lay_out
from mlarray.formats.raw_sink import RawSink
from mlarray.formats.registry import split_suffix
from mlarray.geometry import ALL_PARTS, POSITION_ATOL_MM, SPACING_RTOL, Geometry, Part
from mlarray.orientation import flip_frame
from mlarray.sources.base import Access, Note, Sink, SinkOptions, Source, SourceInfo
from mlarray.sources.bytes import ByteReader, FileBytes, StreamBytes, open_gzip, short_data
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.sources.scaled import ScaledSource
from mlarray.spec import ArraySpec

DEFLATE_LIMIT = 1032  # a deflate stream cannot grow more: 258 bytes from 2 bits (RFC 1951)
_GZIP_LEVEL = 2  # ISA-L: as fast as level 1 and 1 to 2 % smaller; level 3 takes 1.5 times as long for another 1 %


def open_source(path: Path) -> Source:
    """Read the header of an image and return its voxels as a source.

    Parameters
    ----------
    path : Path
        A NIfTI file, or either file of a ``.hdr``/``.img`` pair.

    Returns
    -------
    Source
        Regions of plain files are read by themselves (``Access.REGION``), compressed ones in storage order
        (``Access.SLAB``). Values are scaled by ``scl_slope`` and ``scl_inter`` where the header has a usable slope.

    Raises
    ------
    FormatError
        When the file is no such image, is too short for its header, or holds a datatype that cannot be read.

    Notes
    -----
    The qform, where the sform is used; axes 4 to 7 of one voxel. Extensions are kept as bytes.
    """
    header = read_header(path)
    notes = list(header.notes)
    stored, colours = _datatype(header)
    axes, extents = _axes(header, notes)
    layout, axes = _layout(extents, axes, stored, colours)
    data = _voxels(header, layout)
    spec = ArraySpec(layout.array_shape, stored.newbyteorder("="), axes, _geometry(header, notes))
    scaling = None if colours > 1 else _scaling(header, notes)
    info = SourceInfo(
        format="nifti",
        files=header.files,
        header=header.fields,
        notes=tuple(notes),
        is_seg=True if header.fields.get("intent_code") == LABEL_INTENT else None,
        record=header.record,
    )
    access = Access.SLAB if header.compressed else Access.REGION
    raw = RawSource(data, layout, spec, access=access, info=info)
    return raw if scaling is None else ScaledSource(raw, *scaling)


def losses(spec: ArraySpec, info: SourceInfo) -> tuple[Note, ...]:
    """Name what a NIfTI file cannot keep of an array.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    info : SourceInfo
        What its source says; the header of another NIfTI file is restored.

    Raises
    ------
    UsageError
        When the array cannot be held: more than 7 axes, more than 3 or no spatial ones, an empty axis.
    DTypeError
        For long double numbers.

    Notes
    -----
    Names of axes, steps beyond the seventh axis and of axes that are not time, units that NIfTI does not have, header fields of
    other formats. bool becomes uint8, float16 float32. A geometry of which parts are unknown is written with neutral ones.
    """
    return lay_out(spec, info).notes


def open_sink(path: Path, spec: ArraySpec, info: SourceInfo, options: SinkOptions) -> Sink:
    """Create a NIfTI file that takes the voxels of an array.

    Parameters
    ----------
    path : Path
        Ends in ``.nii`` or ``.nii.gz``.
    spec : ArraySpec
        The array; NIfTI-2 is written where an extent needs it or the source was NIfTI-2.
    info : SourceInfo
        Header fields of a NIfTI source are restored, save those that the array itself decides.
    options : SinkOptions
        ``record`` becomes a header extension; ``threads`` compress.

    Raises
    ------
    UsageError, DTypeError
        As :func:`losses`; and for another suffix.
    """
    suffix = split_suffix(path.name)[1].lower()
    if suffix not in (".nii", ".nii.gz"):
        raise UsageError(
            f"{path.name!r} cannot be written: NIfTI files are written as .nii or .nii.gz.",
            hint=f"Name it {split_suffix(path.name)[0]}.nii.gz.",
        )
    file = lay_out(spec, info)
    stored = ArraySpec(spec.shape, file.layout.dtype.newbyteorder("="), spec.axes, spec.geometry)
    header = encode_header(file, info, options.record)
    if suffix == ".nii":
        return RawSink(path, stored, file.layout, header)
    return RawSink(
        path, stored, file.layout, header, compress=functools.partial(_compressed, threads=options.threads), whole=True
    )


def _compressed(file: BinaryIO, *, threads: int) -> Any:
    """Wrap ``file`` in a gzip writer whose output depends on nothing but the bytes (no name, no time)."""
    from isal import igzip, igzip_threaded

    if threads > 1:
        return igzip_threaded.open(file, "wb", compresslevel=_GZIP_LEVEL, threads=threads)
    return igzip.IGzipFile(filename="", fileobj=file, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0)


def _datatype(header: NiftiHeader) -> tuple[np.dtype[Any], int]:
    code = cast("int", header.fields["datatype"])
    if code not in DATATYPES:
        name = REFUSED_DATATYPES.get(code, "not part of the standard")
        raise FormatError(
            f"{header.files[0]} has datatype {code} ({name}), which cannot be read; integers of 8 to 64 bits, float32, "
            "float64, complex64, complex128, RGB24 and RGBA32 can.",
            hint="Convert it to float64 with the program that wrote it.",
        )
    name, colours = DATATYPES[code]
    return np.dtype(header.byte_order + name), colours


def _axes(header: NiftiHeader, notes: list[Note]) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    """Return axes and extents in array order, without colours; axes 4 to 7 of one voxel are left out."""
    kept: list[tuple[Axis, int]] = []
    dropped: list[int] = []
    for position, extent in enumerate(header.shape):
        if position < 3:
            kept.append((Axis("xyz"[position], unit="millimeter"), extent))
        elif extent == 1:
            dropped.append(position + 1)
        else:
            kept.append((_outer_axis(header, position + 1, notes), extent))
    if dropped:
        names = ", ".join(map(str, dropped))
        notes.append(
            Note("axis-dropped", f"The file's shape is {header.shape}; axis {names} of one voxel was dropped.")
        )
    kept.reverse()
    return tuple(axis for axis, _ in kept), tuple(extent for _, extent in kept)


def _outer_axis(header: NiftiHeader, number: int, notes: list[Note]) -> Axis:
    intent = header.fields.get("intent_code", 0)
    if number == 4 and intent not in FSL_COMPONENT_INTENTS:
        return _time_axis(header, notes)
    if number == 4 or (number == 5 and intent in COMPONENT_INTENTS):
        return Axis("v", "components")
    if number == 5 and DATATYPES[cast("int", header.fields["datatype"])][1] == 1:
        return Axis("c", "channel")
    return Axis(f"dim{number}", "other")


def _time_axis(header: NiftiHeader, notes: list[Note]) -> Axis:
    step = abs(cast("list[float]", header.fields["pixdim"])[4])
    code = cast("int", header.fields.get("xyzt_units", 0)) & 0x38
    unit, per_unit = TIME_UNITS.get(code, (None, 1.0))
    if not math.isfinite(step) or step == 0:
        return Axis("t", unit=unit)
    if per_unit != 1.0:
        notes.append(Note("unit-converted", f"The time step of {step:g} was turned into {step / per_unit:g} {unit}."))
    return Axis("t", unit=unit, step=step / per_unit)


def _layout(
    extents: tuple[int, ...], axes: tuple[Axis, ...], stored: np.dtype[Any], colours: int
) -> tuple[RawLayout, tuple[Axis, ...]]:
    if colours == 1:
        return RawLayout.in_order(extents, stored), axes
    first = next(i for i, axis in enumerate(axes) if axis.is_spatial)
    order = tuple(i if i < first else i + 1 for i in range(len(axes)))
    layout = RawLayout((*extents, colours), stored, (*order, first))
    return layout, (*axes[:first], Axis("c", "channel"), *axes[first:])


def _voxels(header: NiftiHeader, layout: RawLayout) -> ByteReader:
    """Return the reader of the voxel bytes, after checking that the file can hold them at all."""
    path = header.voxel_file
    found, expected = path.stat().st_size, header.offset + layout.nbytes
    if not header.compressed:
        if found < expected:
            raise short_data(path, expected, found)
        return FileBytes(path, header.offset)
    if expected > found * DEFLATE_LIMIT:
        raise FormatError(
            f"{path} claims {expected} bytes of voxels, but its {found} compressed bytes cannot hold more than "
            f"{found * DEFLATE_LIMIT}.",
            hint="Copy or export it again.",
        )
    return StreamBytes(path, open_gzip, layout.nbytes, header.offset)


def _scaling(header: NiftiHeader, notes: list[Note]) -> tuple[float, float] | None:
    """Return slope and intercept to apply, or None where stored values are the values.

    A slope of 0, NaN or infinity means no scaling at all (nifti1.h for 0), whatever the intercept is. An intercept that is
    not finite beside a good slope counts as 0: refusing would lose the image, and NaN would lose every voxel.
    """
    slope, inter = cast("float", header.fields["scl_slope"]), cast("float", header.fields["scl_inter"])
    if not math.isfinite(slope) or slope == 0:
        if math.isinf(slope) or (math.isfinite(inter) and inter != 0):
            text = f"scl_slope {slope:g} with scl_inter {inter:g} is no scaling; stored values were kept."
            notes.append(Note("scaling-ignored", text))
        return None
    if not math.isfinite(inter):
        text = f"scl_inter {inter:g} of {header.files[0]} is not a number; 0 was used with scl_slope {slope:g}."
        notes.append(Note("scaling-repaired", text))
        inter = 0.0
    if (slope, inter) == (1.0, 0.0):
        return None
    if header.kind == "analyze":
        text = f"Values are scaled by {slope:g} and shifted by {inter:g}, as SPM reads Analyze headers."
        notes.append(Note("scaling-assumed", text))
    return slope, inter


def _geometry(header: NiftiHeader, notes: list[Note]) -> Geometry:
    """Return the LPS geometry in array order: the sform if it has a code and is regular, else the qform, else spacing."""
    count = min(3, len(header.shape))
    code = cast("int", header.fields.get("xyzt_units", 0)) & 0x07
    unit, factor = SPACE_UNITS.get(code, ("millimeter", 1.0))
    steps, missing = _steps(header)
    matrix, is_sform = _affine(header, steps, missing, factor, notes)
    if factor != 1.0:
        notes.append(Note("unit-converted", f"Lengths in {unit} were turned into millimetres."))
    if matrix is None:
        origin = "Neither sform nor qform is usable; orientation and origin are unknown"
        notes.append(Note("geometry-assumed", f"{origin}, the voxel size {steps[:count]} was kept."))
        return _spacing_only([step * factor for step in steps[:count]], is_known=not any(missing))
    matrix[:3] *= factor
    steps_mm = np.linalg.norm(matrix[:3, :3], axis=0).tolist()
    rows = [*range(count), 3]
    reduced = matrix[np.ix_(rows, rows)]
    if np.any(matrix[count:3, :count]) or not is_usable(reduced):
        text = f"The {count} axes do not lie in the first {count} world axes; only the voxel size was kept."
        notes.append(Note("geometry-reduced", text))
        return _spacing_only(steps_mm[:count], is_known=True)
    columns = [*reversed(range(count)), count]
    known: frozenset[Part] = ALL_PARTS if is_sform or not any(missing) else frozenset({"origin", "direction"})
    return Geometry((flip_frame(count) @ reduced)[:, columns], "LPS", known)


def _spacing_only(steps_mm: list[float], *, is_known: bool) -> Geometry:
    geometry = Geometry.from_parts(spacing=steps_mm[::-1])
    return geometry if is_known else Geometry(geometry.affine, None, frozenset())


def _steps(header: NiftiHeader) -> tuple[list[float], list[bool]]:
    """Return usable ``pixdim[1..3]`` and, per axis, whether a step of 1 had to be assumed between two voxels."""
    steps, missing = [], []
    pixdim = cast("list[float]", header.fields["pixdim"])
    for axis in range(3):
        step = abs(pixdim[axis + 1])
        is_given = is_step(step)
        steps.append(step if is_given else 1.0)
        missing.append(not is_given and axis < len(header.shape) and header.shape[axis] > 1)
    return steps, missing


def _affine(
    header: NiftiHeader, steps: list[float], missing: list[bool], factor: float, notes: list[Note]
) -> tuple[Matrix | None, bool]:
    """Return the affine in RAS and header units that the header's codes select, or None; and whether it is the sform."""
    if header.kind == "analyze":
        _note_steps(header, steps, missing, notes)
        return None, False
    count = min(3, len(header.shape))
    sform, qform = sform_matrix(header.fields), qform_matrix(header.fields, steps)
    if cast("int", header.fields["sform_code"]) > 0:
        if is_usable(sform) or is_usable(sform[np.ix_([*range(count), 3], [*range(count), 3])]):
            if cast("int", header.fields["qform_code"]) > 0 and qform is not None:
                _note_disagreement(header, sform, qform, factor, notes)
            return sform, True
        notes.append(Note("sform-unusable", "The sform is singular or not finite; the qform was used if there is one."))
    _note_steps(header, steps, missing, notes)
    if cast("int", header.fields["qform_code"]) <= 0:
        return None, False
    if qform is None:
        notes.append(Note("qform-unusable", "The qform holds numbers that are not finite."))
    return qform, False


def _note_steps(header: NiftiHeader, steps: list[float], missing: list[bool], notes: list[Note]) -> None:
    stated = cast("list[float]", header.fields["pixdim"])[1 : 1 + min(3, len(header.shape))]
    if any(step < 0 for step in stated):
        notes.append(Note("pixdim-repaired", f"Negative voxel sizes {stated} were taken as {steps[: len(stated)]}."))
    if any(missing):
        axes = ", ".join("xyz"[axis] for axis in range(3) if missing[axis])
        notes.append(Note("geometry-assumed", f"The voxel size is {stated}; 1 was assumed along {axes}."))


def _note_disagreement(header: NiftiHeader, sform: Matrix, qform: Matrix, factor: float, notes: list[Note]) -> None:
    distance = greatest_distance(sform, qform, (*header.shape[:3], 1, 1)[:3]) * factor
    by_sform, by_qform = (np.linalg.norm(matrix[:3, :3], axis=0) for matrix in (sform, qform))
    if distance > POSITION_ATOL_MM or not np.allclose(by_sform, by_qform, rtol=SPACING_RTOL, atol=0):
        codes = f"(codes {header.fields['sform_code']} and {header.fields['qform_code']})"
        text = f"sform and qform {codes} place voxels up to {distance:.6g} mm apart; the sform was used."
        notes.append(Note("geometry-disagreement", text))
