"""What does a NIfTI or Analyze header say? Its bytes as plain values, before anything is decided about voxels.

Private to :mod:`mlarray.formats.nifti`. Field names are those of the NIfTI-1 and NIfTI-2 standards (nifti1.h, nifti2.h); world
coordinates here are RAS and axes are x, y, z, as in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from mlarray.errors import FormatError
from mlarray.formats.registry import split_suffix
from mlarray.limits import NIFTI_EXTENSION_BYTES, NIFTI_RECORD_BYTES
from mlarray.sources.base import Note
from mlarray.sources.bytes import decode_errors, open_gzip, short_data

Kind: TypeAlias = Literal["nifti1", "nifti2", "analyze"]
Matrix: TypeAlias = npt.NDArray[np.float64]
Fields: TypeAlias = Mapping[str, object]

RECORD_PREFIX = b"mlarray-record:"
COMMENT_CODE = 6  # extension code of plain text (nifti1.h: NIFTI_ECODE_COMMENT)
STEP_RANGE = (1e-30, 1e30)
HEADER_BYTES: dict[Kind, int] = {"nifti1": 348, "nifti2": 540, "analyze": 348}

# datatype code -> stored element and the number of colours that a voxel has (nifti1.h)
DATATYPES: dict[int, tuple[str, int]] = {
    2: ("u1", 1),
    4: ("i2", 1),
    8: ("i4", 1),
    16: ("f4", 1),
    32: ("c8", 1),
    64: ("f8", 1),
    128: ("u1", 3),
    256: ("i1", 1),
    512: ("u2", 1),
    768: ("u4", 1),
    1024: ("i8", 1),
    1280: ("u8", 1),
    1792: ("c16", 1),
    2304: ("u1", 4),
}
REFUSED_DATATYPES = {0: "unknown", 1: "binary (1 bit)", 1536: "float128", 2048: "complex256"}
LABEL_INTENT = 1002
# Axis 5 is components: genmatrix, symmatrix, dispvect, vector, pointset, triangle, quaternion; RGB and RGBA vectors.
COMPONENT_INTENTS = frozenset({1004, 1005, 1006, 1007, 1008, 1009, 1010, 2003, 2004})
# FSL's warp fields and coefficients, which keep their components on axis 4 (FSL's FNIRT user guide)
FSL_COMPONENT_INTENTS = frozenset({2006, 2007, 2008, 2009})
# bits 0-2 of xyzt_units: millimetres per unit; bits 3-5: unit name, units per stored number
SPACE_UNITS: dict[int, tuple[str, float]] = {1: ("meter", 1e3), 2: ("millimeter", 1.0), 3: ("micrometer", 1e-3)}
TIME_UNITS: dict[int, tuple[str, float]] = {
    8: ("second", 1.0),
    16: ("second", 1e3),
    24: ("second", 1e6),
    32: ("hertz", 1.0),
    40: ("ppm", 1.0),
    48: ("radian/second", 1.0),
}


@dataclass(frozen=True, slots=True)
class NiftiHeader:
    """A header as it was read.

    Parameters
    ----------
    files : tuple of Path
        Header file first; one entry where header and voxels share a file.
    kind : {"nifti1", "nifti2", "analyze"}
        Which header.
    byte_order : {"<", ">"}
        Of header and voxels.
    shape : tuple of int
        Extents in file order, x first.
    offset : int
        Byte of the voxel file at which the voxels start.
    compressed : bool
        Whether the voxel file is a gzip stream.
    fields : mapping
        Every header field as a plain value, the matrices ``sform`` and ``qform`` and the ``extensions``.
    record : mapping
        The conversion record of this package, empty where there is none.
    notes : tuple of Note
        What was repaired.
    """

    files: tuple[Path, ...]
    kind: Kind
    byte_order: str
    shape: tuple[int, ...]
    offset: int
    compressed: bool
    fields: Fields
    record: Mapping[str, object]
    notes: tuple[Note, ...]

    @property
    def voxel_file(self) -> Path:
        """The file that holds the voxels."""
        return self.files[-1]


def read_header(path: Path) -> NiftiHeader:
    """Read the header of a NIfTI-1, NIfTI-2 or Analyze 7.5 image.

    Parameters
    ----------
    path : Path
        The file, or either file of a ``.hdr``/``.img`` pair. Whether a file is compressed is told by its first bytes.

    Raises
    ------
    FormatError
        When the file is no such image, is too short, or its header contradicts itself.
    """
    place = _header_file(path)
    start = read_start(place, HEADER_BYTES["nifti2"])
    kind, byte_order, single = _identify(place, start)
    if len(start) < HEADER_BYTES[kind]:
        raise short_data(place, HEADER_BYTES[kind], len(start))
    parsed = _parse(kind, start[: HEADER_BYTES[kind]], byte_order)
    fields = {name: parsed.structarr[name].tolist() for name in parsed.structarr.dtype.names}
    notes: list[Note] = []
    voxels = place if single else _voxel_file(place)
    offset = _voxel_offset(place, fields, HEADER_BYTES[kind] + 4 if single else 0, notes)
    shape = _shape(place, fields, notes)
    extensions: tuple[dict[str, object], ...] = ()
    record: Mapping[str, object] = {}
    if kind != "analyze":
        end = offset if single else NIFTI_EXTENSION_BYTES
        extensions, record = _extensions(place, HEADER_BYTES[kind], end, byte_order, notes)
        fields["sform"] = sform_matrix(fields).tolist()
        qform = qform_matrix(fields)
        fields["qform"] = None if qform is None else qform.tolist()
    fields["extensions"] = list(extensions)
    files = (place,) if single else (place, voxels)
    compressed = read_start(voxels, 2, decode=False) == b"\x1f\x8b"
    return NiftiHeader(files, kind, byte_order, shape, offset, compressed, fields, record, tuple(notes))


def read_start(path: Path, count: int, *, decode: bool = True) -> bytes:
    """Return at most ``count`` bytes from the start of a file, decompressed where it is a gzip stream (and ``decode``)."""
    with path.open("rb") as file:
        head = file.read(count)
    if not decode or head[:2] != b"\x1f\x8b":
        return head
    try:
        with open_gzip(path) as stream:
            return cast("bytes", stream.read(count))
    except decode_errors() as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(f"{path} is damaged: {error}.", hint="Restore it from its source.") from error


def sform_matrix(fields: Fields) -> Matrix:
    """Return the matrix of the sform rows, shape (4, 4), in units of the header; it may be singular."""
    rows = [fields["srow_x"], fields["srow_y"], fields["srow_z"], [0.0, 0.0, 0.0, 1.0]]
    return np.array(rows, dtype=np.float64)


def qform_matrix(fields: Fields, steps: Sequence[float] | None = None) -> Matrix | None:
    """Return the matrix of the quaternion, shape (4, 4), in units of the header; None when it is not finite or absurdly large.

    The formula is that of nifti1.h, "method 2": a unit quaternion (a, b, c, d) of which b, c, d are stored, the steps of
    ``pixdim[1..3]`` and the handedness ``pixdim[0]``, where anything but a negative number counts as +1. A quaternion
    longer than 1 is scaled to length 1 with a = 0.

    Parameters
    ----------
    fields : mapping
        Header fields.
    steps : sequence of float, optional
        Voxel steps to use; default: the absolute values of ``pixdim[1..3]``.
    """
    vector = np.array([fields["quatern_b"], fields["quatern_c"], fields["quatern_d"]], dtype=np.float64)
    offset = np.array([fields["qoffset_x"], fields["qoffset_y"], fields["qoffset_z"]], dtype=np.float64)
    pixdim = cast("list[float]", fields["pixdim"])
    zooms = np.abs(np.array(pixdim[1:4] if steps is None else steps, dtype=np.float64))
    if not (_is_moderate(vector) and _is_moderate(offset) and _is_moderate(zooms)):
        return None
    rest = 1.0 - float(vector @ vector)
    if rest < 0:
        vector = vector / np.linalg.norm(vector)
    a, (b, c, d) = math.sqrt(max(0.0, rest)), vector
    rotation = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    zooms[2] *= -1.0 if pixdim[0] < 0 else 1.0
    matrix = np.eye(4)
    matrix[:3, :3] = rotation * zooms
    matrix[:3, 3] = offset
    return matrix


def is_step(value: float) -> bool:
    """Tell whether a number can be the distance between voxels: positive, and of a size whose square is a number."""
    return STEP_RANGE[0] <= value <= STEP_RANGE[1]


def is_usable(matrix: Matrix) -> bool:
    """Tell whether an affine is finite and maps different voxels to different places."""
    if not _is_moderate(matrix):
        return False
    scale = np.linalg.norm(matrix[:-1, :-1], axis=0)
    return all(is_step(step) for step in scale) and abs(float(np.linalg.det(matrix[:-1, :-1] / scale))) >= 1e-9


def _is_moderate(values: Matrix) -> bool:
    return bool(np.all(np.abs(values) <= STEP_RANGE[1]))  # False for NaN


def greatest_distance(first: Matrix, second: Matrix, shape: Sequence[int]) -> float:
    """Return the largest distance between the places that two affines give a corner of a box of ``shape`` (x, y, z)."""
    extents = [max(0, n - 1) for n in shape]
    corners = np.array(np.meshgrid(*[[0.0, float(n)] for n in extents], indexing="ij")).reshape(len(extents), -1)
    difference = first - second
    return float(np.linalg.norm(difference[:-1, :-1] @ corners + difference[:-1, -1:], axis=0).max())


def is_nifti(fields: Fields) -> bool:
    """Tell whether header fields are those of a NIfTI file, so that they may be restored in another."""
    return "srow_x" in fields and "sform_code" in fields and "pixdim" in fields


def encode_extensions(extensions: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the extender flag and the extensions, little-endian, padded to multiples of 16 bytes."""
    if not extensions:
        return bytes(4)
    parts = [b"\x01\x00\x00\x00"]
    for code, content in extensions:
        size = -(-(len(content) + 8) // 16) * 16
        parts.append(size.to_bytes(4, "little") + code.to_bytes(4, "little") + content.ljust(size - 8, b"\x00"))
    return b"".join(parts)


def _identify(path: Path, start: bytes) -> tuple[Kind, str, bool]:
    """Return which header it is, its byte order, and whether the voxels follow in the same file."""
    if len(start) < 4:
        raise short_data(path, HEADER_BYTES["nifti1"], len(start))
    order = _order_of(start, HEADER_BYTES["nifti2"])
    if order is not None:
        if start[4:7] in (b"n+2", b"ni2"):
            return "nifti2", order, start[4:7] == b"n+2"
        raise FormatError(f"{path} has the size of a NIfTI-2 header, but not its magic bytes: {start[4:12]!r}.")
    order = _order_of(start, HEADER_BYTES["nifti1"])
    if order is not None:
        if len(start) < HEADER_BYTES["nifti1"]:
            raise short_data(path, HEADER_BYTES["nifti1"], len(start))
        if start[344:347] in (b"n+1", b"ni1"):
            return "nifti1", order, start[344:347] == b"n+1"
        if split_suffix(path.name)[1].lower().startswith((".hdr", ".img")):
            return "analyze", order, False
        raise FormatError(
            f"{path} has no NIfTI magic bytes: {start[344:348]!r} at byte 344.",
            hint="If it is an Analyze 7.5 header, name it .hdr and put the voxels beside it as .img.",
        )
    raise FormatError(f"{path} is no NIfTI or Analyze file: it starts with {start[:4]!r}, not with 348 or 540.")


def _order_of(start: bytes, size: int) -> str | None:
    if int.from_bytes(start[:4], "little") == size:
        return "<"
    return ">" if int.from_bytes(start[:4], "big") == size else None


def _parse(kind: Kind, block: bytes, byte_order: str) -> Any:
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header
    from nibabel.spm2analyze import Spm2AnalyzeHeader

    header_class = {"nifti1": Nifti1Header, "nifti2": Nifti2Header, "analyze": Spm2AnalyzeHeader}[kind]
    return header_class(block, byte_order, check=False)


def _header_file(path: Path) -> Path:
    stem, suffix = split_suffix(path.name)
    if not suffix.lower().startswith(".img"):
        return path
    found = _beside(path, stem, ".hdr")
    if found is None and read_start(path, 348)[344:348] != b"n+1\x00":
        raise FormatError(
            f"{path} has no header file beside it: {stem}.hdr was expected.",
            hint="Copy the header along with the voxels.",
        )
    return path if found is None else found


def _voxel_file(header: Path) -> Path:
    stem = split_suffix(header.name)[0]
    found = _beside(header, stem, ".img")
    if found is None:
        raise FormatError(
            f"{header} has no voxel file beside it: {stem}.img was expected.", hint="Copy the .img along with the .hdr."
        )
    return found


def _beside(path: Path, stem: str, suffix: str) -> Path | None:
    candidates = [suffix, f"{suffix}.gz", suffix.upper(), f"{suffix.upper()}.gz", f"{suffix}.gz".upper()]
    places = [path.with_name(stem + candidate) for candidate in candidates]
    return next((place for place in places if place.is_file()), None)


def _voxel_offset(path: Path, fields: Fields, least: int, notes: list[Note]) -> int:
    stated = cast("float", fields["vox_offset"])
    if not math.isfinite(stated) or stated < 0:
        raise FormatError(f"{path} places its voxels at byte {stated}; that must be 0 or more.")
    if stated < least:
        notes.append(Note("offset-repaired", f"vox_offset {stated:g} lies inside the header; {least} was used."))
    return max(least, int(stated))


def _shape(path: Path, fields: Fields, notes: list[Note]) -> tuple[int, ...]:
    dim = cast("list[int]", fields["dim"])
    if not 1 <= dim[0] <= 7:
        raise FormatError(f"{path} has {dim[0]} dimensions in its header; 1 to 7 are allowed.")
    shape = dim[1 : dim[0] + 1]
    if shape[0] == -1 and "glmin" in fields:  # FreeSurfer's way to state a vector too long for 16 bits
        shape = [max(0, int(cast("int", fields["glmin"]))), *shape[1:]]
    elif "glmin" in fields and shape[:3] == [27307, 1, 6]:  # its surface of order 7
        shape = [163842, 1, 1, *shape[3:]]
    if any(extent < 1 for extent in shape[:3]):
        raise FormatError(f"{path} has the shape {tuple(shape)} in its header; every extent must be at least 1.")
    if any(extent < 1 for extent in shape):
        notes.append(Note("dim-repaired", f"The header's shape is {tuple(shape)}; extents below 1 were taken as 1."))
    return tuple(max(1, extent) for extent in shape)


def _extensions(
    path: Path, header_bytes: int, end: int, byte_order: str, notes: list[Note]
) -> tuple[tuple[dict[str, object], ...], Mapping[str, object]]:
    """Return the extensions between header and ``end``, and the record of this package among them."""
    if end > NIFTI_EXTENSION_BYTES:
        notes.append(Note("extensions-skipped", f"{end} bytes lie before the voxels; extensions there were not read."))
        return (), {}
    block = read_start(path, end) if _has_extensions(path, header_bytes) else b""
    found: list[dict[str, object]] = []
    record: Mapping[str, object] = {}
    position = header_bytes + 4
    order: Literal["little", "big"] = "little" if byte_order == "<" else "big"
    while position + 8 <= len(block):
        size = int.from_bytes(block[position : position + 4], order, signed=True)
        code = int.from_bytes(block[position + 4 : position + 8], order, signed=True)
        if size < 8 or position + size > len(block):
            notes.append(
                Note("extension-damaged", f"A header extension at byte {position} claims {size} bytes; ignored.")
            )
            break
        content = block[position + 8 : position + size].rstrip(b"\x00")
        position += size
        if code == COMMENT_CODE and content.startswith(RECORD_PREFIX):
            record = _record(content[len(RECORD_PREFIX) :], notes)
        else:
            found.append({"code": code, "content": content})
    return tuple(found), record


def _has_extensions(path: Path, header_bytes: int) -> bool:
    try:
        return read_start(path, header_bytes + 4)[header_bytes : header_bytes + 1] not in (b"", b"\x00")
    except FormatError:  # a compressed header file may end right after the header
        return False


def _record(text: bytes, notes: list[Note]) -> Mapping[str, object]:
    value: object = None
    if len(text) <= NIFTI_RECORD_BYTES:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        notes.append(Note("record-unreadable", "The conversion record in the header is damaged or too long; ignored."))
        return {}
    return value
