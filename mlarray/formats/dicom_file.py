"""Is a file a DICOM image, and what does its header say?

One pass over the header, up to the pixels and no further. What comes out is a frozen value that survives pickling: a process
that finds files hands it to those that read them, and no header is read twice.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mlarray.errors import FormatError
from mlarray.formats.dicom_fields import (
    MODALITY_LUT,
    PIXEL_TAGS,
    TAGS,
    code_of,
    element_of,
    integer_of,
    kept_fields,
    private_fields,
    text_of,
    uid_name,
)
from mlarray.formats.dicom_scan import SCANNED_BYTES, deflated_at, scan_header
from mlarray.formats.expansion import inflated_bytes
from mlarray.limits import DICOM_INFLATED_BYTES

MAGIC, MAGIC_AT = b"DICM", 128  # PS3.10, 7.1: after the preamble
HEADER_BYTES = MAGIC_AT + len(MAGIC)
IMPLICIT_LITTLE = "1.2.840.10008.1.2"
EXPLICIT_LITTLE = "1.2.840.10008.1.2.1"
EXPLICIT_BIG = "1.2.840.10008.1.2.2"
DEFLATED = "1.2.840.10008.1.2.1.99"
NATIVE = (IMPLICIT_LITTLE, EXPLICIT_LITTLE, EXPLICIT_BIG)
_STANDARD = "1.2.840.10008."  # what is of the standard begins so; a name that is cut off does, too
DIRECTORY_CLASS = "1.2.840.10008.1.3.10"
_UNDEFINED = 0xFFFFFFFF
_SERIES_FIELDS = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID")
_WANTED = frozenset(TAGS)
_NO_NUMBER = -(1 << 31)
_NO_ZLIB_HEADER = -15
_LONG_VRS = (b"OB", b"OW", b"OF", b"OD", b"UN", b"OL", b"OV")
_FIRST_GROUP, _LAST_FIRST_ELEMENT = 0x0008, 0x0070  # of a data set without a preamble


@dataclass(frozen=True, slots=True)
class Pixels:
    """How the pixels of a file are stored.

    Parameters
    ----------
    syntax : str
        Transfer syntax UID.
    offset, length : int
        Where the value of the pixel element is in the file, bytes; a length of -1 is that of encapsulated frames. Both 0 for
        a deflated file, whose pixels have no place of their own.
    keyword : str
        ``"PixelData"``, ``"FloatPixelData"`` or ``"DoubleFloatPixelData"``.
    rows, columns, frames, samples : int
        Extents.
    allocated, stored, high_bit : int
        Bits per sample in the file, bits used, and the highest of them.
    is_signed, is_little : bool
        How they are read.
    photometric : str
        Photometric interpretation.
    """

    syntax: str
    offset: int
    length: int
    keyword: str
    rows: int
    columns: int
    frames: int
    samples: int
    allocated: int
    stored: int
    high_bit: int
    is_signed: bool
    is_little: bool
    photometric: str

    @property
    def is_native(self) -> bool:
        """Whether frames are plain numbers at a known place."""
        return self.syntax in NATIVE

    @property
    def frame_bits(self) -> int:
        """Bits of a frame that is not compressed."""
        return self.rows * self.columns * self.samples * self.allocated


@dataclass(frozen=True, slots=True)
class Instance:
    """One file that holds an image.

    Parameters
    ----------
    path : Path
        The file.
    sop_class, uid : str
        SOP class and instance; the instance is used to find copies and never shown.
    series : tuple of 3 str
        Patient, study and series, which say that two files are of one; never shown.
    number : int or None
        The series number.
    order : int
        The instance number.
    pixels : Pixels
        How the pixels are stored.
    kept : mapping
        Technical fields.
    private : mapping
        All fields, where that was asked for.
    has_lut : bool
        Whether stored values become measured ones through a table.
    size, mtime_ns : int
        Of the file when its header was read.
    """

    path: Path
    sop_class: str
    uid: str
    series: tuple[str, ...]
    number: int | None
    order: int
    pixels: Pixels
    kept: Mapping[str, object] = field(default_factory=dict)
    private: Mapping[str, object] = field(default_factory=dict)
    has_lut: bool = False
    size: int = 0
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class NotImage:
    """A DICOM file without pixels.

    Parameters
    ----------
    path : Path
        The file.
    kind : str
        Name of its SOP class.
    is_image : bool
        Whether that is a class of images: then the file is what is left of one.
    series : tuple of 3 str
        As for :class:`Instance`.
    """

    path: Path
    kind: str
    is_image: bool = False
    series: tuple[str, ...] = ()


def looks_like_dicom(path: Path) -> bool:
    """Tell whether a file begins as DICOM files do: with the marker of PS3.10, or with a data set that has none.

    Of the latter only those are taken that start with group 0008 in little endian, as data sets were stored before files had
    a marker; the header then has to name the class of an image.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    return head[MAGIC_AT:] == MAGIC or _is_bare(head)


def read_dataset(path: Path, *, everything: bool = False) -> tuple[Any, int, int, int]:
    """Read the header of a file.

    Parameters
    ----------
    path : Path
        The file.
    everything : bool
        All fields up to the pixels, not only those that are used.

    Returns
    -------
    dataset : pydicom.Dataset or Header
        Without pixels.
    tag : int
        Of the element with the pixels; 0 where there is none.
    offset, length : int
        Of its value; both 0 in a deflated file.

    Raises
    ------
    FormatError
        When this is no DICOM file, or a damaged one; the message repeats nothing of its content.
    """
    import pydicom
    from pydicom.errors import InvalidDicomError

    try:
        with warnings.catch_warnings(), path.open("rb") as file:
            warnings.simplefilter("ignore")  # pydicom's warnings quote header values
            head = file.read(HEADER_BYTES if everything else SCANNED_BYTES)
            is_bare = head[MAGIC_AT:HEADER_BYTES] != MAGIC
            if is_bare and not _is_bare(head):
                raise FormatError(f"{path} is no DICOM file: there is no DICM marker at byte {MAGIC_AT}.")
            scanned = None if everything or is_bare else scan_header(head, _WANTED, PIXEL_TAGS)
            if scanned is not None:
                header, at = scanned
                file.seek(at)
                return header, *_pixel_place(file, is_implicit=header.original_encoding[0], is_little=True)
            _refuse_large_inflation(file, path)
            file.seek(0)
            dataset = pydicom.dcmread(
                file, stop_before_pixels=True, force=is_bare, specific_tags=None if everything else list(TAGS),
                defer_size=None if not everything else 4096,
            )  # fmt: skip
            if code_of(dataset.file_meta, "TransferSyntaxUID") == DEFLATED:
                return dataset, _pixel_tag(dataset), 0, 0
            is_implicit, is_little = dataset.original_encoding
            return dataset, *_pixel_place(file, is_implicit=bool(is_implicit), is_little=bool(is_little))
    except FormatError:
        raise
    except InvalidDicomError as error:
        raise FormatError(f"{path} is no DICOM file.") from error
    except OSError:
        raise
    except Exception as error:
        # A damaged header fails inside pydicom in many ways (struct, key, recursion errors), with words from the header.
        raise FormatError(
            f"{path} has a damaged DICOM header ({type(error).__name__}).", hint="Export it again."
        ) from None


def _refuse_large_inflation(file: BinaryIO, path: Path) -> None:
    """Refuse a deflated file that is a bomb: pydicom inflates all of it."""
    file.seek(0)
    start = deflated_at(file.read(SCANNED_BYTES))
    if start is None:
        return
    file.seek(start)
    if inflated_bytes(file.read, DICOM_INFLATED_BYTES, window=_NO_ZLIB_HEADER) > DICOM_INFLATED_BYTES:
        raise FormatError(
            f"{path} is deflated and holds more than {DICOM_INFLATED_BYTES} bytes.", hint=DICOM_INFLATED_BYTES.hint
        )


def read_instance(path: Path, *, keep_private: bool = False) -> tuple[Instance, Any] | NotImage:
    """Read what a file holds.

    Returns
    -------
    (Instance, pydicom.Dataset) or NotImage
        The data set is for the reader of frames; it is not kept.

    Raises
    ------
    FormatError
        When the file is damaged, or no DICOM file at all.
    """
    status = path.stat()
    dataset, tag, offset, length = read_dataset(path, everything=keep_private)
    sop_class = code_of(dataset, "SOPClassUID") or code_of(dataset.file_meta, "MediaStorageSOPClassUID")
    if tag == 0 or sop_class == DIRECTORY_CLASS:
        if not sop_class.startswith("1.2.840."):
            raise FormatError(f"{path} is a DICOM file without pixels and without a SOP class.")
        kind = class_name(sop_class)
        if kind == sop_class and (sop_class.startswith(_STANDARD) or _STANDARD.startswith(sop_class)):
            raise FormatError(f"{path} is a DICOM file without pixels and of no known SOP class: it is cut off.")
        is_image = "Image Storage" in _class_name(sop_class)
        series = tuple(text_of(dataset, name) for name in _SERIES_FIELDS)
        return NotImage(path, kind, is_image, series)
    is_marked = bool(dataset.file_meta) or dataset.preamble is not None
    if not is_marked and not _class_name(sop_class).endswith("Storage"):
        raise FormatError(f"{path} has no DICM marker and no SOP class of an image: it is not taken for DICOM.")
    series = tuple(text_of(dataset, name) for name in _SERIES_FIELDS)
    number = integer_of(dataset, "SeriesNumber", _NO_NUMBER)
    return Instance(
        path,
        sop_class,
        text_of(dataset, "SOPInstanceUID"),
        series,
        None if number == _NO_NUMBER else number,
        integer_of(dataset, "InstanceNumber"),
        _pixels(path, dataset, tag, offset, length),
        kept_fields(dataset),
        private_fields(dataset) if keep_private else {},
        element_of(dataset, MODALITY_LUT) is not None,
        status.st_size,
        status.st_mtime_ns,
    ), dataset


def class_name(sop_class: str) -> str:
    """Return what a SOP class is called, for people; without the words that all of them have."""
    return _class_name(sop_class).removesuffix(" Storage")


def _class_name(sop_class: str) -> str:
    return uid_name(sop_class) if sop_class else "unknown SOP class"


def _pixels(path: Path, dataset: Any, tag: int, offset: int, length: int) -> Pixels:
    is_implicit, is_little = dataset.original_encoding
    stated = code_of(dataset.file_meta, "TransferSyntaxUID")
    syntax = stated or (IMPLICIT_LITTLE if is_implicit else EXPLICIT_LITTLE if is_little else EXPLICIT_BIG)
    rows, columns = integer_of(dataset, "Rows"), integer_of(dataset, "Columns")
    allocated = integer_of(dataset, "BitsAllocated")
    keyword = PIXEL_TAGS[tag]
    if keyword != "PixelData":
        allocated = 32 if keyword == "FloatPixelData" else 64
    stored = integer_of(dataset, "BitsStored", allocated) or allocated
    if rows < 1 or columns < 1 or allocated < 1:
        raise FormatError(f"{path} states no image size: rows {rows}, columns {columns}, bits allocated {allocated}.")
    return Pixels(
        syntax,
        offset,
        -1 if length == _UNDEFINED else length,
        keyword,
        rows,
        columns,
        max(1, integer_of(dataset, "NumberOfFrames", 1)),
        integer_of(dataset, "SamplesPerPixel", 1),
        allocated,
        min(stored, allocated),
        integer_of(dataset, "HighBit", stored - 1),
        integer_of(dataset, "PixelRepresentation") == 1,
        bool(is_little),
        code_of(dataset, "PhotometricInterpretation") or "MONOCHROME2",
    )


def _is_bare(head: bytes) -> bool:
    """Tell whether these are the first bytes of a data set without a marker: group 0008, and a sensible length or type."""
    if len(head) < 8:
        return False
    group, element, length = struct.unpack("<HHI", head[:8])
    if group != _FIRST_GROUP or element > _LAST_FIRST_ELEMENT:
        return False
    return length <= 1024 or head[4:6] in (b"CS", b"UI", b"UL", b"DA", b"SH")


def _pixel_tag(dataset: Any) -> int:
    """Return the tag of the pixels of a deflated file, which has been inflated and stopped before them."""
    return next(iter(PIXEL_TAGS)) if integer_of(dataset, "Rows") and integer_of(dataset, "Columns") else 0


def _pixel_place(file: BinaryIO, *, is_implicit: bool, is_little: bool) -> tuple[int, int, int]:
    """Return tag, offset and length of the pixel value at which pydicom stopped; tag 0 where it came to the end."""
    order = "<" if is_little else ">"
    start = file.tell()
    head = file.read(12)
    if len(head) < 8:
        return 0, 0, 0
    group, element = struct.unpack(f"{order}HH", head[:4])
    tag = group << 16 | element
    if tag not in PIXEL_TAGS:
        return 0, 0, 0
    if not is_implicit and head[4:6] in _LONG_VRS and len(head) == 12:
        return tag, start + 12, struct.unpack(f"{order}I", head[8:12])[0]
    return tag, start + 8, struct.unpack(f"{order}I", head[4:8])[0]
