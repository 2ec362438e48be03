"""What does the OME-XML of an OME-TIFF say, and is it safe to hand on?

The text comes from a stranger. It is looked at before anything else reads it: its size, the depth of its elements, no document
type (so no entities), numbers that fit the file, and names of other files that lie beside this one. What is used of it is the
size of voxels and the names of images and channels (OME schema 2016-06); names of people stay behind.
"""

from __future__ import annotations

import math
import xml.parsers.expat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mlarray.errors import FormatError
from mlarray.formats.detached import resolve_beside
from mlarray.formats.text_header import millimetres, time_unit
from mlarray.limits import DETACHED_FILES, TIFF_MODULO_STEPS, TIFF_PLANES, TIFF_TEXT_CHARACTERS

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

DEEPEST = 64
_DIMENSIONS = frozenset("XYZCT")


@dataclass(frozen=True, slots=True)
class OmeImage:
    """One image of an OME header.

    Parameters
    ----------
    name : str
        As written.
    spacing_mm : dict
        Step in millimetres for those of ``X``, ``Y``, ``Z`` that have one.
    time_unit, time_step
        Of the time axis, None where not stated.
    channels : tuple of str
        Their names.
    planes : int
        How many the header says there are.
    fields : dict
        Attributes of ``Pixels``, plain text.
    """

    name: str
    spacing_mm: dict[str, float]
    time_unit: str | None
    time_step: float | None
    channels: tuple[str, ...]
    planes: int
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OmeHeader:
    """What an OME header says.

    Parameters
    ----------
    images : tuple of OmeImage
        Those that have voxels.
    files : tuple of Path
        Other files that hold some of them, checked to lie beside the first.
    first_file : str
        Name of the file with the first plane; empty where that is this one.
    """

    images: tuple[OmeImage, ...]
    files: tuple[Path, ...] = ()
    first_file: str = ""


def read_ome(xml_text: str, path: Path) -> OmeHeader:
    """Check and read the OME-XML of ``path``.

    Raises
    ------
    FormatError
        For text that is too large, too deep, malformed or has a document type; numbers that cannot be; files that are
        missing or lie elsewhere; a file that is a part of a set without its header.
    """
    _check_text(xml_text, path)
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(xml_text)
    except ElementTree.ParseError as error:
        raise _malformed(path, str(error)) from error
    if any(_is(element, "BinaryOnly") for element in root):
        raise FormatError(
            f"{path} is one part of an OME-TIFF data set: its header is in another file.",
            hint="Name the file that has the header.",
        )
    try:
        _check_modulo(root)
        images = tuple(
            _image(image, pixels)
            for image in _children(root, "Image")
            for pixels in _children(image, "Pixels")
            if next(_children(pixels, "TiffData"), None) is not None  # an element without children is false
        )
        files, first = _files(root, path)
    except (ValueError, KeyError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise _malformed(path, repr(error) if isinstance(error, KeyError) else str(error)) from error
    if not images:
        raise FormatError(f"{path} has OME-XML without an image.")
    return OmeHeader(images, files, first)


def _check_text(text: str, path: Path) -> None:
    """Refuse text that a parser should not build a tree of: too large, too deep, or with a document type."""
    if len(text) > TIFF_TEXT_CHARACTERS:
        raise FormatError(
            f"{path} has {len(text)} characters of OME-XML; at most {TIFF_TEXT_CHARACTERS} are read.",
            hint=TIFF_TEXT_CHARACTERS.hint,
        )
    depth = 0

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise FormatError(f"{path} has OME-XML that is nested deeper than {DEEPEST} elements.")

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1

    def refuse(*details: object) -> None:
        raise FormatError(f"{path} has OME-XML with a document type or entities, which is not read.")

    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text, True)  # noqa: FBT003  the standard library's signature
    except (xml.parsers.expat.ExpatError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise _malformed(path, str(error)) from error


def _malformed(path: Path, why: str) -> FormatError:
    return FormatError(
        f"{path} has OME-XML that cannot be read: {why}.", hint="Export the image again, as OME-TIFF or plain TIFF."
    )


def _image(element: Element, pixels: Element) -> OmeImage:
    order = pixels.attrib["DimensionOrder"]
    if len(order) != len(_DIMENSIONS) or set(order) != _DIMENSIONS:
        raise ValueError(f"DimensionOrder {order!r} is no order of X, Y, Z, C and T")
    sizes = {axis: _whole(pixels, f"Size{axis}", 1, 2**31) for axis in order}
    samples = [_whole(channel, "SamplesPerPixel", 1, 2**16, 1) for channel in _children(pixels, "Channel")]
    planes = sizes["Z"] * sizes["T"] * max(1, sizes["C"] // (samples[0] if samples else 1))
    if planes > TIFF_PLANES:
        raise ValueError(f"{planes} planes are named, at most {TIFF_PLANES} are read ({TIFF_PLANES.variable})")
    for part in _children(pixels, "TiffData"):
        for key, most in (("IFD", TIFF_PLANES), ("NumPlanes", planes), ("PlaneCount", planes)):
            _whole(part, key, 0, most, 0)
        for axis in "ZCT":
            _whole(part, f"First{axis}", 0, sizes[axis] - 1, 0)
    step = _positive(pixels.attrib.get("TimeIncrement"))
    channels = [part.attrib.get("Name", "") for part in _children(pixels, "Channel")]
    return OmeImage(
        element.attrib.get("Name", ""),
        {axis: length for axis in "XYZ" if (length := _length(pixels, axis)) is not None},
        time_unit(pixels.attrib.get("TimeIncrementUnit", "s")) if step is not None else None,
        step,
        tuple(channels) if any(channels) else (),
        planes,
        dict(pixels.attrib),
    )


def _length(pixels: Element, axis: str) -> float | None:
    """Return the size of a voxel along an axis; the unit is the micrometre where none is named (OME schema)."""
    value = _positive(pixels.attrib.get(f"PhysicalSize{axis}"))
    factor = millimetres(pixels.attrib.get(f"PhysicalSize{axis}Unit", "µm"))
    return None if value is None or factor is None else value * factor


def _positive(text: str | None) -> float | None:
    value = float(text) if text is not None else 0.0
    return value if math.isfinite(value) and value > 0 else None


def _whole(element: Element, key: str, least: int, most: int, default: int | None = None) -> int:
    text = element.attrib[key] if default is None else element.attrib.get(key, str(default))
    value = int(text)
    if not least <= value <= most:
        raise ValueError(f"{key} is {value}; {least} to {most} is allowed")
    return value


def _check_modulo(root: Element) -> None:
    """Refuse subdivided axes (6D, 7D and 8D storage of OME) of absurd length, before a reader lists their positions."""
    for element in root.iter():
        if "Start" in element.attrib and element.tag[:-1].endswith("Along"):
            start, end = float(element.attrib["Start"]), float(element.attrib["End"])
            step = float(element.attrib.get("Step", 1))
            if (
                not all(map(math.isfinite, (start, end, step)))
                or step == 0
                or abs((end - start) / step) > TIFF_MODULO_STEPS
            ):
                raise ValueError(f"{element.tag} from {start} to {end} in steps of {step} cannot be")


def _files(root: Element, path: Path) -> tuple[tuple[Path, ...], str]:
    """Return the other files of the set, and the name of the first file where that is another."""
    own = root.attrib.get("UUID")
    names: dict[str, None] = {}
    first: str | None = None
    for element in _planes_in_order(root):
        name = element.attrib.get("FileName")
        is_other = name is not None and name.lower() != path.name.lower() and (own is None or element.text != own)
        if first is None:
            first = name if is_other and name is not None else ""
        if is_other and name is not None:
            names[name] = None
        elif name is None and (own is None or element.text != own):
            raise ValueError("a UUID names no file")
    if len(names) > DETACHED_FILES:
        raise ValueError(f"{len(names)} files are named, at most {DETACHED_FILES} are read ({DETACHED_FILES.variable})")
    return tuple(resolve_beside(path, name, expected_bytes=None) for name in names), first or ""


def _planes_in_order(root: Element) -> Iterator[Element]:
    for image in _children(root, "Image"):
        for pixels in _children(image, "Pixels"):
            for part in _children(pixels, "TiffData"):
                yield from _children(part, "UUID")


def _children(element: Element, name: str) -> Iterator[Element]:
    return (child for child in element if _is(child, name))


def _is(element: Element, name: str) -> bool:
    return element.tag.endswith(name)  # as tifffile tells them, whatever the namespace is
