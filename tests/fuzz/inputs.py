"""What is one input of a parser? A few small files, which travel as the bytes of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Files: TypeAlias = dict[str, bytes]
"""Content by name, in the order they are written; a name may have folders."""

_MARK = b"fuzz-input "


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return files as one: before each stands a line with its length and its name."""
    return b"".join(b"%s%d %s\n%s" % (_MARK, len(data), name.encode(), data) for name, data in files.items())


def unpack(data: bytes, names: frozenset[str] | None = None) -> Files:
    """Return the files that :func:`pack` joined; of bytes by somebody else, those that have one of ``names``."""
    files: Files = {}
    at = 0
    while data.startswith(_MARK, at) and (end := data.find(b"\n", at, at + 300)) >= 0:
        length, _, raw = data[at + len(_MARK) : end].partition(b" ")
        name = raw.decode("ascii", "replace")
        if not length.isdigit() or len(length) > 9:
            break
        at = end + 1 + int(length)
        if names is None or name in names:
            files[name] = data[end + 1 : at]
    return files


def write(folder: Path, files: Files) -> None:
    """Write the files of an input into a new folder."""
    folder.mkdir()
    for name, data in files.items():
        path = folder / name
        if "/" in name:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def remove(folder: Path, files: Files) -> None:
    """Remove what :func:`write` wrote."""
    parents = {folder}
    for name in files:
        path = folder / name
        path.unlink()
        while (path := path.parent) != folder:
            parents.add(path)
    for parent in sorted(parents, key=lambda one: -len(one.parts)):
        parent.rmdir()
