"""How is the header of an ordinary DICOM file read without building a data set of it?

A series has hundreds of headers of a hundred elements each, of which a few dozen are wanted. Here one buffer is stepped
through, element by element (PS3.5, 7.1), and the wanted values are taken as bytes. Whatever is not ordinary (big endian,
deflated, a wanted sequence, a header longer than the buffer, anything that does not fit) is left to pydicom: the answer is
then None, never a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

SCANNED_BYTES = 1 << 16
_AFTER_MARKER = 132  # PS3.10, 7.1
_META_GROUP, _ITEM_GROUP = 0x0002, 0xFFFE
_SYNTAX = 0x00020010
_ITEM, _ITEM_END, _SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
_IMPLICIT, _DEFLATED, _BIG = b"1.2.840.10008.1.2", b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.2"
_STANDARD = b"1.2.840.10008.1.2"  # transfer syntaxes of others may mean anything
_UNDEFINED = 0xFFFFFFFF
_SHORT = frozenset(b"AE AS AT CS DA DS DT FL FD IS LO LT PN SH SL SS ST TM UI UL US".split())
_LONG = frozenset(b"OB OD OF OL OV OW SQ SV UC UN UR UT UV".split())
_DEEPEST = 16
_head = struct.Struct("<HH2sH").unpack_from
_tag_and_length = struct.Struct("<HHI").unpack_from
_length = struct.Struct("<I").unpack_from


class Element(NamedTuple):
    """An element as it stands in the file; ``VR`` is None where the file does not state it. Named as pydicom does."""

    VR: str | None
    value: bytes
    is_little_endian: bool = True


@dataclass(frozen=True, slots=True)
class Header:
    """The wanted elements of a header, under the names by which a data set of pydicom offers them.

    Parameters
    ----------
    elements : dict
        By tag.
    file_meta : Header or None
        The group before the data set.
    original_encoding : tuple of 2 bool
        Whether value representations are implicit, and whether numbers are little endian.
    preamble : bytes or None
        Of the file; None in the file meta group.
    """

    elements: dict[int, Element]
    file_meta: Header | None = None
    original_encoding: tuple[bool, bool] = (False, True)
    preamble: bytes | None = None

    def get_item(self, tag: int) -> Element:
        """Return an element, or raise KeyError."""
        return self.elements[tag]


class _Unusual(Exception):
    """Something that is left to pydicom."""


def scan_header(buffer: bytes, wanted: Container[int], pixel_tags: Container[int]) -> tuple[Header, int] | None:
    """Return the wanted elements before the pixels, and where the pixel element begins.

    Parameters
    ----------
    buffer : bytes
        The beginning of a file with the marker of PS3.10.
    wanted : container of int
        Tags; those of the file meta group are all kept.
    pixel_tags : container of int
        Where to stop.

    Returns
    -------
    (Header, int) or None
        None for what is not ordinary, and where the buffer ends before the pixels.
    """
    try:
        meta: dict[int, Element] = {}
        at = _scanned(buffer, _AFTER_MARKER, meta, wanted=None, pixel_tags=(), is_implicit=False)
        syntax = meta[_SYNTAX].value.strip(b" \0")
        if not syntax.startswith(_STANDARD) or syntax in (_DEFLATED, _BIG):
            return None
        is_implicit = syntax == _IMPLICIT
        if is_implicit and buffer[at + 4 : at + 6] in _SHORT | _LONG:
            return None  # stated as implicit, and stored otherwise
        elements: dict[int, Element] = {}
        at = _scanned(buffer, at, elements, wanted=wanted, pixel_tags=pixel_tags, is_implicit=is_implicit)
        return Header(elements, Header(meta), (is_implicit, True), buffer[:128]), at
    except (_Unusual, struct.error, KeyError):
        return None


def deflated_at(buffer: bytes) -> int | None:
    """Return where the deflated data set of a file with these first bytes begins, or None for another transfer syntax."""
    try:
        meta: dict[int, Element] = {}
        at = _scanned(buffer, _AFTER_MARKER, meta, wanted=None, pixel_tags=(), is_implicit=False)
        return at if meta[_SYNTAX].value.strip(b" \0") == _DEFLATED else None
    except (_Unusual, struct.error, KeyError):
        return None


def _scanned(
    buffer: bytes,
    at: int,
    found: dict[int, Element],
    *,
    wanted: Container[int] | None,
    pixel_tags: Container[int],
    is_implicit: bool,
) -> int:
    """Fill ``found`` and return where it stopped: at the pixels, or without ``wanted`` behind the file meta group."""
    before = 0
    while True:
        if wanted is None and _tag_and_length(buffer, at)[0] != _META_GROUP:
            return at
        tag, kind, start, length = _element(buffer, at, is_implicit=is_implicit)
        if tag in pixel_tags:
            return at
        if tag <= before or tag >> 16 >= _ITEM_GROUP:
            raise _Unusual  # not in order: what is meant is not clear
        before = tag
        is_kept = wanted is None or tag in wanted
        if length == _UNDEFINED or (is_kept and kind == b"SQ"):
            if is_kept or kind not in (b"SQ", None):
                raise _Unusual
            at = _after_items(buffer, start, is_implicit=is_implicit, depth=0)
            continue
        at = start + length
        if at > len(buffer):
            raise _Unusual
        if is_kept:
            found[tag] = Element(None if kind is None else kind.decode("ascii"), buffer[start:at])


def _element(buffer: bytes, at: int, *, is_implicit: bool) -> tuple[int, bytes | None, int, int]:
    """Return tag, value representation, and where the value begins and how long it is."""
    if is_implicit:
        group, element, length = _tag_and_length(buffer, at)
        return group << 16 | element, None, at + 8, length
    group, element, kind, length = _head(buffer, at)
    if kind in _SHORT:
        return group << 16 | element, kind, at + 8, length
    if kind not in _LONG:
        if group == _ITEM_GROUP:
            return group << 16 | element, None, at + 8, _length(buffer, at + 4)[0]
        raise _Unusual
    return group << 16 | element, kind, at + 12, _length(buffer, at + 8)[0]


def _after_items(buffer: bytes, at: int, *, is_implicit: bool, depth: int) -> int:
    """Return the end of a sequence that does not state its length (PS3.5, 7.5)."""
    if depth > _DEEPEST:
        raise _Unusual
    while True:
        group, element, length = _tag_and_length(buffer, at)
        tag = group << 16 | element
        at += 8
        if tag == _SEQUENCE_END:
            return at
        if tag != _ITEM:
            raise _Unusual
        if length != _UNDEFINED:
            at += length
            continue
        while True:
            tag, kind, start, length = _element(buffer, at, is_implicit=is_implicit)
            if tag == _ITEM_END:
                at = start
                break
            if length != _UNDEFINED:
                at = start + length
            elif kind in (b"SQ", None):
                at = _after_items(buffer, start, is_implicit=is_implicit, depth=depth + 1)
            else:
                raise _Unusual
