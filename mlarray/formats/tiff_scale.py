"""How large is a voxel of a TIFF file, and how long between two frames?

Three dialects say it, in this order: OME-XML, ImageJ's description, the resolution tags of TIFF 6.0 (section 8). ImageJ keeps the
step of planes in its description and that of rows and columns in the tags; a plain TIFF knows rows and columns only. A resolution
in dots per inch as printers and screens have it was measured by nobody and is not taken for a length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlarray.formats.text_header import millimetres, time_unit
from mlarray.formats.tiff_ome import OmeImage
from mlarray.sources.base import Note

INCH_MM = 25.4
_PRINT_DPI = (72, 75, 96, 100, 120, 144, 150, 180, 200, 240, 300, 350, 360, 400, 600, 720, 1200, 1440, 2400, 4800)
_PRINT_RTOL = 2e-3  # 72 dpi may be written as 28.35 per centimetre
_X_RESOLUTION, _Y_RESOLUTION, _RESOLUTION_UNIT = 282, 283, 296
_UNIT_MM = {2: INCH_MM, 3: 10.0}  # TIFF 6.0, ResolutionUnit; 1 has no length
_MICRO = ("\\u00B5m", "\\u00b5m")  # as ImageJ escapes it in a file of seven-bit text


@dataclass(frozen=True, slots=True)
class Scale:
    """What is known of the steps along axes.

    Parameters
    ----------
    spacing_mm : dict
        Step in millimetres for those of ``X``, ``Y``, ``Z`` that are stated.
    time_unit, time_step
        Of the time axis, None where not stated.
    notes : tuple of Note
        What was not understood, or not taken.
    """

    spacing_mm: Mapping[str, float] = field(default_factory=dict)
    time_unit: str | None = None
    time_step: float | None = None
    notes: tuple[Note, ...] = ()


def ome_scale(image: OmeImage) -> Scale:
    """Return what an OME header says."""
    return Scale(image.spacing_mm, image.time_unit, image.time_step)


def imagej_scale(header: Mapping[str, object], tags: Mapping[int, object]) -> Scale:
    """Return what ImageJ's description and the resolution tags say together.

    Parameters
    ----------
    header : mapping
        The fields of the description.
    tags : mapping
        TIFF tag values by number.
    """
    unit, notes = str(header.get("unit", "")).strip(), []
    factor = _imagej_unit(unit)
    if factor is None and unit and unit.lower() not in ("pixel", "pixels"):
        notes.append(
            Note("unit-unknown", f"ImageJ's unit {unit!r} has no known length: the size of voxels is unknown.")
        )
    if factor is None and not unit:
        factor = _UNIT_MM.get(_number(tags.get(_RESOLUTION_UNIT)))
    spacing: dict[str, float] = {}
    if factor is not None:
        steps = {"X": _pixel(tags, _X_RESOLUTION), "Y": _pixel(tags, _Y_RESOLUTION), "Z": _float(header.get("spacing"))}
        spacing = {axis: abs(step) * factor for axis, step in steps.items() if step is not None and step != 0}
    step, rate = _float(header.get("finterval")), _float(header.get("fps"))
    if step is None and rate is not None and rate > 0:
        step = 1 / rate
    if step is None or step <= 0:
        return Scale(spacing, notes=tuple(notes))
    return Scale(spacing, time_unit(str(header.get("tunit", "s"))), step, tuple(notes))


def plain_scale(tags: Mapping[int, object]) -> Scale:
    """Return what the resolution tags of a plain TIFF say of rows and columns."""
    factor = _UNIT_MM.get(_number(tags.get(_RESOLUTION_UNIT, 2)))  # the tag's default is the inch
    steps = {"X": _pixel(tags, _X_RESOLUTION), "Y": _pixel(tags, _Y_RESOLUTION)}
    if factor is None or any(step is None for step in steps.values()):
        return Scale()
    spacing = {axis: step * factor for axis, step in steps.items() if step is not None}
    dpi = [INCH_MM / length for length in spacing.values()]
    if all(any(abs(value - print_dpi) <= _PRINT_RTOL * print_dpi for print_dpi in _PRINT_DPI) for value in dpi):
        text = f"A resolution of {dpi[0]:.4g} dots per inch is a setting for printing: the size of voxels is unknown."
        return Scale(notes=(Note("resolution-ignored", text),))
    return Scale(spacing)


def _imagej_unit(unit: str) -> float | None:
    """Return the millimetres of a unit as ImageJ writes it."""
    plain = "um" if unit in _MICRO else unit
    return INCH_MM if plain.lower() in ("inch", "inches", "in") else millimetres(plain)


def _pixel(tags: Mapping[int, object], code: int) -> float | None:
    """Return the step that a resolution (samples per unit, a fraction) stands for."""
    value = tags.get(code)
    if isinstance(value, tuple) and len(value) >= 2:
        count, unit = _float(value[0]), _float(value[1])
        if count is None or unit is None or count <= 0 or unit <= 0:
            return None
        return unit / count
    number = _float(value)
    return 1 / number if number is not None and number > 0 else None


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else 0
