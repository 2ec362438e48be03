"""Which planes does a DICOM file hold, where does each lie, and how do its numbers become values?

A file of one slice says it in its header, an enhanced multi-frame file in functional groups (PS3.3, C.7.6.16), a dose grid in
offsets along its normal (C.8.8.3.2). All of them become the same value, a :class:`Frame`, so that the rest does not ask.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlarray.errors import FormatError
from mlarray.formats.dicom_fields import (
    FRAME_GROUPS,
    SHARED_GROUPS,
    element_of,
    integer_of,
    is_stated,
    number_of,
    numbers_of,
    text_of,
    texts_of,
)
from mlarray.formats.dicom_file import Instance

# The macros of functional groups that are read, by the tag of their sequence.
_MACROS: Mapping[str, int] = {
    "position": 0x00209113,
    "orientation": 0x00209116,
    "measures": 0x00289110,
    "rescale": 0x00289145,
    "content": 0x00209111,
    "echo": 0x00189114,
    "diffusion": 0x00189117,
}
_GRADIENT = 0x00189076  # a sequence inside that of the diffusion
_CONTENT_TAGS = {"time_index": 0x00209128, "acquired": 0x00189074}
_EFFECTIVE_ECHO = 0x00189082
_DOSE_CLASSES = ("1.2.840.10008.5.1.4.1.1.481.2",)
_POSITION_LIMIT_MM = 1e7


@dataclass(frozen=True, slots=True)
class Frame:
    """One plane of pixels.

    Parameters
    ----------
    instance : Instance
        The file.
    index : int
        Number of the frame in it, from 0.
    position : tuple of 3 float, or None
        World position (LPS, mm) of the centre of the first pixel; None where nothing says it.
    orientation : tuple of 6 float, or None
        Direction cosines along a row and along a column.
    spacing : tuple of 2 float, or None
        Millimetres between rows and between columns, in that order (PS3.3, 10.7.1.3).
    slope, intercept : float
        ``value = stored * slope + intercept``.
    keys : mapping
        What may tell frames at one position apart: times, echoes, b-values, passes.
    is_unscaled : bool
        Whether the header states a slope of 0, which is no scaling: the values are those stored.
    """

    instance: Instance
    index: int
    position: tuple[float, float, float] | None
    orientation: tuple[float, ...] | None
    spacing: tuple[float, float] | None
    slope: float = 1.0
    intercept: float = 0.0
    keys: Mapping[str, object] = field(default_factory=dict)
    is_unscaled: bool = False

    @property
    def is_placed(self) -> bool:
        """Whether the header says where it lies."""
        return self.position is not None and self.orientation is not None


def frames_of(instance: Instance, dataset: Any) -> tuple[Frame, ...]:
    """Return the frames of a file, in its order.

    Parameters
    ----------
    instance : Instance
        The file.
    dataset : pydicom.Dataset
        Its header.

    Raises
    ------
    FormatError
        When its functional groups do not fit its number of frames.
    """
    plain = plain_frame(instance, dataset)
    groups = _items(dataset, FRAME_GROUPS)
    if groups:
        return _enhanced_frames(plain, dataset, groups)
    count = instance.pixels.frames
    offsets = numbers_of(dataset, "GridFrameOffsetVector", count)
    if instance.sop_class in _DOSE_CLASSES and plain.position and plain.orientation and (count == 1 or offsets):
        return tuple(_dose_frame(plain, index, offsets[index] if offsets else 0.0) for index in range(count))
    if count == 1:
        return (plain,)
    # Frames that nothing places: a cine, a rotation. They have an order and no positions.
    return tuple(replace(plain, index=index, position=None, orientation=None) for index in range(count))


def plain_frame(instance: Instance, dataset: Any) -> Frame:
    """Return the frame that the top level of a header describes."""
    _check_bits(dataset)
    slope, intercept, is_unscaled = _rescale(dataset)
    scaling = number_of(dataset, "DoseGridScaling")
    if instance.sop_class in _DOSE_CLASSES and scaling:
        slope, intercept, is_unscaled = scaling, 0.0, False
    return Frame(
        instance,
        0,
        _position(dataset),
        numbers_of(dataset, "ImageOrientationPatient", 6) or None,
        _spacing(dataset),
        slope,
        intercept,
        _keys(dataset),
        is_unscaled,
    )


def _check_bits(dataset: Any) -> None:
    stored, allocated = integer_of(dataset, "BitsStored"), integer_of(dataset, "BitsAllocated")
    if stored > allocated > 0:
        raise FormatError(
            f"BitsStored is {stored}, more than the {allocated} of BitsAllocated: which is wrong is unknown."
        )


def _dose_frame(plain: Frame, index: int, offset: float) -> Frame:
    """Return a plane of a dose grid: ``offset`` millimetres along the normal, or with absolute offsets at that z."""
    assert plain.position is not None
    assert plain.orientation is not None
    row, column = plain.orientation[:3], plain.orientation[3:]
    normal = (
        row[1] * column[2] - row[2] * column[1],
        row[2] * column[0] - row[0] * column[2],
        row[0] * column[1] - row[1] * column[0],
    )
    x, y, z = (a + offset * n for a, n in zip(plain.position, normal, strict=True))
    return replace(plain, index=index, position=(x, y, z))


def _enhanced_frames(plain: Frame, dataset: Any, groups: list[Any]) -> tuple[Frame, ...]:
    instance = plain.instance
    if len(groups) != instance.pixels.frames:
        raise FormatError(
            f"{instance.pixels.frames} frames are stated, and {len(groups)} items describe them: the header is damaged."
        )
    shared = _macros((_items(dataset, SHARED_GROUPS) or [None])[0])
    return tuple(_enhanced_frame(plain, index, {**shared, **_macros(group)}) for index, group in enumerate(groups))


def _enhanced_frame(plain: Frame, index: int, macros: Mapping[str, Any]) -> Frame:
    position, orientation, spacing = plain.position, plain.orientation, plain.spacing
    slope, intercept, is_unscaled = plain.slope, plain.intercept, plain.is_unscaled
    if "position" in macros:
        position = _position(macros["position"])
    if "orientation" in macros:
        orientation = numbers_of(macros["orientation"], "ImageOrientationPatient", 6) or None
    if "measures" in macros:
        spacing = _spacing(macros["measures"])
    if "rescale" in macros:
        slope, intercept, is_unscaled = _rescale(macros["rescale"])
    keys = dict(plain.keys)
    if "content" in macros:
        index_in_time = _one_number(macros["content"], _CONTENT_TAGS["time_index"])
        if index_in_time is not None:
            keys["TemporalPositionIdentifier"] = index_in_time
    if "echo" in macros:
        echo = _one_number(macros["echo"], _EFFECTIVE_ECHO)
        if echo is not None:
            keys["EchoTime"] = echo
    if "diffusion" in macros:
        weight = number_of(macros["diffusion"], "DiffusionBValue")
        inner = (_items(macros["diffusion"], _GRADIENT) or [None])[0]
        gradient = () if inner is None else numbers_of(inner, "DiffusionGradientOrientation", 3)
        if weight is not None:
            keys["DiffusionBValue"], keys["Gradient"] = weight, gradient
    return Frame(plain.instance, index, position, orientation, spacing, slope, intercept, keys, is_unscaled)


def _macros(group: Any) -> dict[str, Any]:
    """Return the first item of every macro of a functional group that is read."""
    found = {}
    for name, tag in _MACROS.items():
        items = _items(group, tag) if group is not None else []
        if items:
            found[name] = items[0]
    return found


def _items(dataset: Any, tag: int) -> list[Any]:
    """Return the items of a sequence; none where there is no such sequence or it cannot be read."""
    value = _converted(dataset, tag)
    return list(value) if value is not None and not isinstance(value, (bytes, str)) else []


def _converted(dataset: Any, tag: int) -> Any | None:
    """Return the value of an element that pydicom has to convert: a sequence, or a number of a tag not listed here.

    Raises
    ------
    FormatError
        When it cannot; pydicom raises errors of many kinds, with words from the header.
    """
    if element_of(dataset, tag) is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dataset[tag].value
    except Exception as error:
        text = f"The element ({tag >> 16:04X},{tag & 0xFFFF:04X}) is damaged ({type(error).__name__})."
        raise FormatError(text, hint="Export it again.") from None


def _one_number(dataset: Any, tag: int) -> float | None:
    try:
        number = float(_converted(dataset, tag))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _position(dataset: Any) -> tuple[float, float, float] | None:
    found = numbers_of(dataset, "ImagePositionPatient", 3)
    if not found or max(map(abs, found)) > _POSITION_LIMIT_MM:
        return None
    return (found[0], found[1], found[2])


def _spacing(dataset: Any) -> tuple[float, float] | None:
    found = numbers_of(dataset, "PixelSpacing", 2)
    return (found[0], found[1]) if found and min(found) > 0 else None


def _rescale(dataset: Any) -> tuple[float, float, bool]:
    """Return slope, intercept, and whether a slope of 0 is stated: scanners write that where there is no scaling.

    Raises
    ------
    FormatError
        When either is stated and no finite number.
    """
    slope, intercept = number_of(dataset, "RescaleSlope"), number_of(dataset, "RescaleIntercept")
    for name, found in (("RescaleSlope", slope), ("RescaleIntercept", intercept)):
        if found is None and is_stated(dataset, name):
            raise FormatError(f"{name} is no finite number.", hint="Export the file again.")
    if slope == 0:
        return 1.0, 0.0, True
    return 1.0 if slope is None else slope, intercept or 0.0, False


def _keys(dataset: Any) -> dict[str, object]:
    """Return what may tell this frame from another at the same position."""
    found: dict[str, object] = {}
    names = ("TemporalPositionIdentifier", "EchoTime", "EchoNumbers", "InversionTime", "FlipAngle", "TriggerTime",
             "FrameReferenceTime", "AcquisitionNumber")  # fmt: skip
    for name in names:
        number = number_of(dataset, name)
        if number is not None:
            found[name] = number
    found["ImageType"] = texts_of(dataset, "ImageType")
    component = text_of(dataset, "ComplexImageComponent")
    if component:
        found["ComplexImageComponent"] = component
    weight, gradient = _diffusion(dataset)
    if weight is not None:
        found["DiffusionBValue"], found["Gradient"] = weight, gradient
    acquired = _seconds(dataset)
    if acquired is not None:
        found["AcquisitionTime"] = acquired
    return found


def _diffusion(dataset: Any) -> tuple[float | None, tuple[float, ...]]:
    """Return b-value (s/mm²) and gradient direction: the standard fields, else those of Siemens or Philips."""
    for names in (
        ("DiffusionBValue", "DiffusionGradientOrientation"),
        ("SiemensBValue", "SiemensGradient"),
        ("PhilipsBValue", ""),
    ):
        weight = number_of(dataset, names[0])
        if weight is None:
            continue
        if names[0].startswith("Siemens") and "SIEMENS MR HEADER" not in _creator(dataset, 0x00190010):
            continue
        if names[0].startswith("Philips") and "Philips" not in _creator(dataset, 0x20010010):
            continue
        return weight, numbers_of(dataset, names[1], 3) if names[1] else ()
    return None, ()


def _creator(dataset: Any, tag: int) -> str:
    element = element_of(dataset, tag)
    value = None if element is None else element.value
    return value.decode("latin-1") if isinstance(value, bytes) else str(value or "")


def _seconds(dataset: Any) -> float | None:
    """Return when a frame was acquired, seconds from an arbitrary day; used for order and differences only."""
    stamp = text_of(dataset, "AcquisitionDateTime")
    if len(stamp) >= 14 and stamp[:14].isdigit():
        day, clock = stamp[:8], stamp[8:].split("+")[0].split("-")[0]
    else:
        day, clock = text_of(dataset, "AcquisitionDate"), text_of(dataset, "AcquisitionTime").replace(":", "")
    if len(clock) < 6 or not clock[:6].isdigit():
        return None
    try:
        rest = float(clock[4:])
    except ValueError:
        return None
    number_of_day = _day(day)
    return number_of_day * 86400.0 + int(clock[:2]) * 3600 + int(clock[2:4]) * 60 + rest


def _day(text: str) -> int:
    from datetime import date

    try:
        return date(int(text[:4]), int(text[4:6]), int(text[6:8])).toordinal()
    except ValueError:
        return 0


def is_mosaic(instance: Instance, dataset: Any) -> bool:
    """Tell whether one file of one frame shows many slices as tiles, as Siemens scanners write them."""
    if instance.pixels.frames > 1 or element_of(dataset, FRAME_GROUPS) is not None:
        return False
    return "MOSAIC" in texts_of(dataset, "ImageType") or (
        "SIEMENS MR HEADER" in _creator(dataset, 0x00190010) and integer_of(dataset, "SiemensTileCount") > 1
    )
