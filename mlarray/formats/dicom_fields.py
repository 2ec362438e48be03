"""Which fields of a DICOM header are used, which of them may be kept, and what do their bytes say?

Fields are read from their bytes, not through pydicom's value classes: a header of a scanner with a wrong value representation
or a broken number then costs that field and not the file, nothing is warned of in words that repeat a header, and reading a
thousand headers takes half the time. What is kept of a header is a list of technical fields that is closed: names, numbers of
persons, dates, institutions, free text and UIDs are not on it, and neither is anything private to a manufacturer.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Any

Value = str | int | float

# Name: (tag, value representation where the file does not state it). PS3.6 has the names.
KEPT: Mapping[str, tuple[int, str]] = {
    "ImageType": (0x00080008, "CS"),
    "Modality": (0x00080060, "CS"),
    "Manufacturer": (0x00080070, "LO"),
    "ManufacturerModelName": (0x00081090, "LO"),
    "ComplexImageComponent": (0x00089208, "CS"),
    "BodyPartExamined": (0x00180015, "CS"),
    "ScanningSequence": (0x00180020, "CS"),
    "SequenceVariant": (0x00180021, "CS"),
    "MRAcquisitionType": (0x00180023, "CS"),
    "SliceThickness": (0x00180050, "DS"),
    "KVP": (0x00180060, "DS"),
    "RepetitionTime": (0x00180080, "DS"),
    "EchoTime": (0x00180081, "DS"),
    "InversionTime": (0x00180082, "DS"),
    "NumberOfAverages": (0x00180083, "DS"),
    "ImagingFrequency": (0x00180084, "DS"),
    "EchoNumbers": (0x00180086, "IS"),
    "MagneticFieldStrength": (0x00180087, "DS"),
    "SpacingBetweenSlices": (0x00180088, "DS"),
    "EchoTrainLength": (0x00180091, "IS"),
    "PixelBandwidth": (0x00180095, "DS"),
    "DataCollectionDiameter": (0x00180090, "DS"),
    "TriggerTime": (0x00181060, "DS"),
    "FrameTime": (0x00181063, "DS"),
    "ReconstructionDiameter": (0x00181100, "DS"),
    "GantryDetectorTilt": (0x00181120, "DS"),
    "ExposureTime": (0x00181150, "IS"),
    "XRayTubeCurrent": (0x00181151, "IS"),
    "Exposure": (0x00181152, "IS"),
    "FilterType": (0x00181160, "SH"),
    "ImagerPixelSpacing": (0x00181164, "DS"),
    "ConvolutionKernel": (0x00181210, "SH"),
    "AcquisitionMatrix": (0x00181310, "US"),
    "InPlanePhaseEncodingDirection": (0x00181312, "CS"),
    "FlipAngle": (0x00181314, "DS"),
    "PatientPosition": (0x00185100, "CS"),
    "ViewPosition": (0x00185101, "CS"),
    "DiffusionBValue": (0x00189087, "FD"),
    "SpiralPitchFactor": (0x00189311, "FD"),
    "CTDIvol": (0x00189345, "FD"),
    "TemporalPositionIdentifier": (0x00200100, "IS"),
    "NumberOfTemporalPositions": (0x00200105, "IS"),
    "TemporalResolution": (0x00200110, "DS"),
    "PhotometricInterpretation": (0x00280004, "CS"),
    "PixelSpacing": (0x00280030, "DS"),
    "BitsStored": (0x00280101, "US"),
    "PixelRepresentation": (0x00280103, "US"),
    "PixelPaddingValue": (0x00280120, "US"),
    "WindowCenter": (0x00281050, "DS"),
    "WindowWidth": (0x00281051, "DS"),
    "RescaleIntercept": (0x00281052, "DS"),
    "RescaleSlope": (0x00281053, "DS"),
    "RescaleType": (0x00281054, "LO"),
    "LossyImageCompression": (0x00282110, "CS"),
    "LossyImageCompressionRatio": (0x00282112, "DS"),
    "Units": (0x00541001, "CS"),
    "CorrectedImage": (0x00280051, "CS"),
    "DecayCorrection": (0x00541102, "CS"),
    "FrameReferenceTime": (0x00541300, "DS"),
    "DoseUnits": (0x30040002, "CS"),
    "DoseType": (0x30040004, "CS"),
    "DoseSummationType": (0x3004000A, "CS"),
    "DoseGridScaling": (0x3004000E, "DS"),
}

# Read to group, to order and to place; never kept.
USED: Mapping[str, tuple[int, str]] = {
    "MediaStorageSOPClassUID": (0x00020002, "UI"),
    "TransferSyntaxUID": (0x00020010, "UI"),
    "SOPClassUID": (0x00080016, "UI"),
    "SOPInstanceUID": (0x00080018, "UI"),
    "AcquisitionDate": (0x00080022, "DA"),
    "AcquisitionDateTime": (0x0008002A, "DT"),
    "AcquisitionTime": (0x00080032, "TM"),
    "PatientID": (0x00100020, "LO"),
    "DiffusionGradientOrientation": (0x00189089, "FD"),
    "SiemensTileCount": (0x0019100A, "US"),
    "SiemensBValue": (0x0019100C, "IS"),
    "SiemensGradient": (0x0019100E, "FD"),
    "PhilipsBValue": (0x20011003, "FL"),
    "StudyInstanceUID": (0x0020000D, "UI"),
    "SeriesInstanceUID": (0x0020000E, "UI"),
    "SeriesNumber": (0x00200011, "IS"),
    "AcquisitionNumber": (0x00200012, "IS"),
    "InstanceNumber": (0x00200013, "IS"),
    "ImagePositionPatient": (0x00200032, "DS"),
    "ImageOrientationPatient": (0x00200037, "DS"),
    "SamplesPerPixel": (0x00280002, "US"),
    "NumberOfFrames": (0x00280008, "IS"),
    "Rows": (0x00280010, "US"),
    "Columns": (0x00280011, "US"),
    "BitsAllocated": (0x00280100, "US"),
    "HighBit": (0x00280102, "US"),
    "GridFrameOffsetVector": (0x3004000C, "DS"),
    "FrameTimeVector": (0x00181065, "DS"),
}
FIELDS: Mapping[str, tuple[int, str]] = {**KEPT, **USED}
MODALITY_LUT = 0x00283000
SHARED_GROUPS, FRAME_GROUPS = 0x52009229, 0x52009230
PIXEL_TAGS: Mapping[int, str] = {
    0x7FE00010: "PixelData",
    0x7FE00008: "FloatPixelData",
    0x7FE00009: "DoubleFloatPixelData",
}
TAGS = (*(tag for tag, _ in FIELDS.values()), MODALITY_LUT, SHARED_GROUPS, FRAME_GROUPS, 0x00190010, 0x20010010)

_BINARY = {"US": "H", "SS": "h", "UL": "I", "SL": "i", "FL": "f", "FD": "d"}
_PRINTABLE = re.compile(r"[ -\[\]-~]{1,64}")
_CODE = re.compile(r"[A-Z0-9_ ]{1,16}|[0-9.]{1,64}")
_LONGEST_LIST = 64
_LONGEST_PRIVATE = 1024


def values_of(dataset: Any, name: str) -> tuple[Value, ...]:
    """Return the values of a field as text or numbers; an absent, empty or unreadable field has none.

    Parameters
    ----------
    dataset : pydicom.Dataset
        As read, its elements not yet converted.
    name : str
        Keyword of the field, one of ``FIELDS``.
    """
    tag, kind = FIELDS[name]
    element = element_of(dataset, tag)
    if element is None:
        return ()
    stated = str(element.VR) if element.VR else kind
    if stated in _BINARY or (kind in _BINARY and stated not in ("UN", "OB", "OW")):
        kind = stated
    value = element.value
    if isinstance(value, bytes):
        little = getattr(element, "is_little_endian", True)
        return _binary(value, kind, is_little=little) if kind in _BINARY else _text(value, kind)
    if value is None:
        return ()
    several = value if isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue" else [value]
    return _text("\\".join(str(one) for one in several).encode("latin-1", "replace"), "DS" if kind in _BINARY else kind)


def element_of(dataset: Any, tag: int) -> Any | None:
    """Return an element as read, or None."""
    try:
        return dataset.get_item(tag)
    except (KeyError, ValueError, OSError):  # absent; or deferred and no longer there
        return None


def is_stated(dataset: Any, name: str) -> bool:
    """Tell whether a field is there and not empty, readable or not."""
    element = element_of(dataset, FIELDS[name][0])
    value = None if element is None else element.value
    return bool(value.strip(b" \0") if isinstance(value, bytes) else value)


def numbers_of(dataset: Any, name: str, count: int | None = None) -> tuple[float, ...]:
    """Return finite numbers; none at all where one is not, or where there are not ``count`` of them."""
    found = tuple(float(value) for value in values_of(dataset, name) if not isinstance(value, str))
    if (count is not None and len(found) != count) or not all(map(math.isfinite, found)):
        return ()
    return found


def number_of(dataset: Any, name: str) -> float | None:
    """Return the first number of a field, or None."""
    found = numbers_of(dataset, name)
    return found[0] if found else None


def integer_of(dataset: Any, name: str, default: int = 0) -> int:
    """Return the first value of a field as a whole number."""
    found = number_of(dataset, name)
    return int(found) if found is not None else default


def text_of(dataset: Any, name: str) -> str:
    """Return the first value of a field as text, without padding."""
    found = values_of(dataset, name)
    return str(found[0]) if found else ""


def texts_of(dataset: Any, name: str) -> tuple[str, ...]:
    """Return all values of a field as text."""
    return tuple(str(value) for value in values_of(dataset, name))


def kept_fields(dataset: Any) -> dict[str, object]:
    """Return the technical fields of a header, as plain values; fields of several values as lists."""
    kept: dict[str, object] = {}
    for name, (_, kind) in KEPT.items():
        found = values_of(dataset, name)[:_LONGEST_LIST]
        if not found or (isinstance(found[0], float) and not all(math.isfinite(float(v)) for v in found)):
            continue
        allowed = {"CS": _CODE, "LO": _PRINTABLE, "SH": _PRINTABLE}.get(kind)
        if allowed is not None and not all(allowed.fullmatch(str(value)) for value in found):
            continue
        kept[name] = found[0] if len(found) == 1 else list(found)
    return kept


def private_fields(dataset: Any) -> dict[str, object]:
    """Return every field of a header that is short enough, by keyword or tag; for those who asked to keep what is private."""
    from pydicom.datadict import keyword_for_tag

    found: dict[str, object] = {}
    for tag in dataset.keys():  # noqa: SIM118  iterating a Dataset converts every element
        element = element_of(dataset, tag)
        if element is None or not isinstance(element.value, bytes) or not 0 < len(element.value) <= _LONGEST_PRIVATE:
            continue
        name = keyword_for_tag(tag) or f"({tag >> 16:04X},{tag & 0xFFFF:04X})"
        kind = str(element.VR or "")
        if kind in ("SQ", "OB", "OW", "UN", "OF", "OD", "OL") and kind != "":
            continue
        read = (
            _binary(element.value, kind, is_little=element.is_little_endian)
            if kind in _BINARY
            else _text(element.value, "LT")
        )
        if read:
            found[name] = read[0] if len(read) == 1 else list(read)
    return found


def code_of(dataset: Any, name: str) -> str:
    """Return the first value of a field of codes, or ``"unreadable"`` for anything that is no code (PS3.5, 6.2: CS, UI).

    What a damaged header has in such a place may be a name; codes are shown to users.
    """
    text = text_of(dataset, name)
    return text if not text or _CODE.fullmatch(text) else "unreadable"


def uid_name(uid: str) -> str:
    """Return what a UID of the standard is called; another is its own name."""
    from pydicom.config import IGNORE
    from pydicom.uid import UID

    return str(UID(uid, validation_mode=IGNORE).name) if uid else "unknown"


def _binary(value: bytes, kind: str, *, is_little: bool) -> tuple[Value, ...]:
    size = struct.calcsize(_BINARY[kind])
    count = len(value) // size
    return struct.unpack(f"{'<' if is_little else '>'}{count}{_BINARY[kind]}", value[: count * size])


def _text(value: bytes, kind: str) -> tuple[Value, ...]:
    text = value.decode("utf-8" if kind == "LT" else "latin-1", "replace").strip(" \0\r\n\t")
    if not text:
        return ()
    parts = [part.strip(" \0") for part in text.split("\\")]
    if kind not in ("DS", "IS"):
        return tuple(parts)
    try:
        return tuple(_number(part) for part in parts)
    except ValueError:
        return ()


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() and re.fullmatch(r"[+-]?\d{1,15}", text) else number
