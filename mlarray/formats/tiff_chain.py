"""Can the directories of a TIFF file be followed to their end?

A TIFF file is a chain of directories (IFD, TIFF 6.0, section 2; BigTIFF has wider numbers), each naming the place of the next.
A file that was cut usually loses the end of the chain, and a chain that leads back to itself would be followed for ever. Both are
found here, before a library reads the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlarray.errors import FormatError
from mlarray.limits import TIFF_TAGS

_CLASSIC, _BIG = 42, 43
# Bytes of a value by its type (TIFF 6.0, section 2, and BigTIFF).
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
# Tags without whose value an image is another one: shape, type, places, descriptions. A library would go on without them.
_NEEDED = frozenset(
    (
        256,
        257,
        258,
        259,
        262,
        266,
        270,
        273,
        277,
        278,
        279,
        282,
        283,
        284,
        296,
        317,
        320,
        322,
        323,
        324,
        325,
        330,
        338,
        339,
        347,
    )
)


@dataclass(frozen=True, slots=True)
class Chain:
    """The directories of a file.

    Parameters
    ----------
    size : int
        Bytes of the file.
    count : int
        Directories in the main chain.
    """

    size: int
    count: int


def follow_chain(path: Path) -> Chain:
    """Follow the main chain of directories of a TIFF file.

    Raises
    ------
    FormatError
        For another file, a chain that leaves the file (it was cut) or that leads back, or a directory of too many entries.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        order, is_big, offset = _head(path, file.read(16))
        count_format, entry, link = (order + "Q", 20, order + "Q") if is_big else (order + "H", 12, order + "I")
        wide, narrow = struct.calcsize(count_format), struct.calcsize(link)
        seen: set[int] = set()
        while offset:
            if offset in seen:
                raise FormatError(
                    f"{path} has a directory {len(seen)} that leads back to an earlier one, at byte {offset}.",
                    hint="The file is damaged: write it again from its source.",
                )
            seen.add(offset)
            if offset > size:  # also beyond what a file can have
                raise _cut(path, len(seen), offset + wide, size)
            file.seek(offset)
            head = file.read(wide)
            tags = struct.unpack(count_format, head)[0] if len(head) == wide else 0
            end = offset + wide + tags * entry + narrow
            if len(head) < wide or (end > size and tags <= TIFF_TAGS):
                raise _cut(path, len(seen), max(end, offset + wide), size)
            if tags > TIFF_TAGS:
                raise FormatError(
                    f"{path} has {tags} entries in its directory {len(seen)}, at byte {offset}; at most {TIFF_TAGS} are read.",
                    hint="The file is damaged: write it again from its source.",
                )
            entries = file.read(tags * entry + narrow)
            needed = max(
                _value_ends(entries[: tags * entry], order + ("HHQQ" if is_big else "HHII"), narrow), default=0
            )
            if needed > size:
                raise _cut(path, len(seen), needed, size)
            offset = struct.unpack(link, entries[-narrow:])[0]
    if not seen:
        raise FormatError(f"{path} is a TIFF file without an image.")
    return Chain(size, len(seen))


def _head(path: Path, head: bytes) -> tuple[str, bool, int]:
    """Return byte order, whether the file is a BigTIFF, and the place of the first directory."""
    order = {b"II": "<", b"MM": ">"}.get(head[:2], "")
    version = struct.unpack(order + "H", head[2:4])[0] if order and len(head) >= 4 else 0
    if version == _CLASSIC and len(head) >= 8:
        return order, False, struct.unpack(order + "I", head[4:8])[0]
    if version == _BIG and len(head) == 16 and struct.unpack(order + "HH", head[4:8]) == (8, 0):
        return order, True, struct.unpack(order + "Q", head[8:16])[0]
    raise FormatError(
        f"{path} is no TIFF file: it begins with {head[:8]!r}; II or MM and version 42 or 43 are expected.",
        hint="Check what program wrote it, or its suffix.",
    )


def _value_ends(entries: bytes, form: str, inline: int) -> Iterator[int]:
    """Yield where the values of needed tags end that lie outside of their directory."""
    for code, kind, count, place in struct.iter_unpack(form, entries):
        size = _TYPE_BYTES.get(kind, 0) * count
        if size > inline and code in _NEEDED:
            yield place + size


def _cut(path: Path, number: int, expected: int, found: int) -> FormatError:
    return FormatError(
        f"{path} is too short: {expected} bytes are needed for its directory {number}, {found} were found.",
        hint="Copy or export it again.",
    )
