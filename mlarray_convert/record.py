"""Is an output up to date? The record that a conversion leaves inside the file it wrote.

The record says which files the voxels came from and which settings shaped the result. A later run compares it with the
present source and settings: equal means that converting again would give the same file. File times alone cannot say that,
and a record beside the output could be separated from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import xxhash

from mlarray.formats.registry import format_of_name
from mlarray.layout import DEFAULT_LAYOUT
from mlarray.sources.base import Note
from mlarray_convert.discovery import Case
from mlarray_convert.places import END_BYTES, fingerprint, version_of
from mlarray_convert.request import CHUNK_FORMATS, Request

FORMAT_VERSION = 1  # raised when the same source and settings would give another file
TOOL = "mlarray"


def make_record(
    case: Case, request: Request, files: Iterable[Path], notes: Iterable[Note], *, series: bool = False
) -> dict[str, object]:
    """Return the record to store in the output of ``case``.

    Parameters
    ----------
    case : Case
        What is converted.
    request : Request
        How.
    files : iterable of Path
        Every file that header or voxels come from; they are read at both ends.
    notes : iterable of Note
        What was assumed or is lost.
    series : bool
        Whether the files are those of a series: one entry then stands for all of them, without their names, which are often
        numbers that lead to a person.

    Returns
    -------
    dict
        Plain JSON values.
    """
    return {
        "tool": TOOL,
        "version": tool_version(),
        "sources": _identities(files, series=series),
        "settings": settings_of(case, request),
        "notes": [{"code": note.code, "message": note.message} for note in notes],
    }


def settings_of(case: Case, request: Request) -> dict[str, object]:
    """Return the settings that shape the output, as plain JSON values; how fast it was made is not one."""
    storage = dict(sorted(request.storage.items()))
    if storage.get("layout") == DEFAULT_LAYOUT:  # to name the default gives the same file as to leave it out
        del storage["layout"]
    settings: dict[str, object] = {
        "format_version": FORMAT_VERSION,
        "target": request.target.name,
        "storage": storage,
        "label": case.is_label,
    }
    if request.axes is not None:
        settings["axes"] = request.axes
    if request.spacing is not None:
        settings["spacing"] = list(request.spacing)
    if request.statistics and not case.is_label:
        settings["statistics"] = True
    if case.item:
        settings["item"] = case.item
    if target_item(case, request):
        settings["dataset"] = target_item(case, request)
    if case.volume is not None:
        settings["series"] = asdict(request.series)
    source, target = format_of_name(case.source), request.target
    if not request.storage and source is not None and {source.name, target.name} <= set(CHUNK_FORMATS):
        settings["chunks"] = "as stored"  # which is not what naming the default layout gives
    plain: dict[str, object] = json.loads(json.dumps(settings, default=str))
    return plain


def target_item(case: Case, request: Request) -> str:
    """Return the name of the image in the output: the item that was asked for, where the source has none to choose from."""
    return request.item or "" if not case.item and request.target.items else ""


def _identities(files: Iterable[Path], *, series: bool) -> list[dict[str, object]]:
    present = [identity(path) for path in files]
    if not series:
        return present
    state = xxhash.xxh3_64()
    for one in present:
        state.update(f"{one['size']} {one['xxh3']}\n".encode("ascii"))
    size = sum(int(str(one["size"])) for one in present)
    changed = max((int(str(one["mtime_ns"])) for one in present), default=0)
    name = f"{len(present)} files of a series"
    return [{"name": name, "files": len(present), "size": size, "mtime_ns": changed, "xxh3": state.hexdigest()}]


def identity(path: Path) -> dict[str, object]:
    """Return what tells one version of a file from another.

    Returns
    -------
    dict
        ``name``, ``size`` in bytes, ``mtime_ns``, and ``xxh3``: see :func:`mlarray_convert.places.fingerprint`.
    """
    size, changed = version_of(path)
    return {"name": path.name, "size": size, "mtime_ns": changed, "xxh3": fingerprint(path)}


def why_stale(
    record: Mapping[str, object], case: Case, request: Request, files: Iterable[Path], *, series: bool = False
) -> str | None:
    """Tell why an output is not what converting now would give.

    A source counts as unchanged when size, both ends and time of change are equal. For files of at most 2 MiB, whose ends
    are all there is, the time does not matter.

    Parameters
    ----------
    record : mapping
        As stored in the output; not empty.
    case, request, files, series
        As for :func:`make_record`.

    Returns
    -------
    str or None
        The reason; None when the output is up to date.
    """
    if record.get("settings") != settings_of(case, request):
        return "other settings than before"
    stored = record.get("sources")
    present = _identities(files, series=series)
    if not isinstance(stored, list) or len(stored) != len(present):
        return "the source consists of other files"
    for then, now in zip(stored, present, strict=True):
        if not isinstance(then, Mapping) or (then.get("size"), then.get("xxh3")) != (now["size"], now["xxh3"]):
            return f"the source {now['name']} has changed"
        if not series and then.get("mtime_ns") != now["mtime_ns"] and int(str(now["size"])) > 2 * END_BYTES:
            return f"the source {now['name']} was written again"
    return None


def is_ours(record: Mapping[str, object]) -> bool:
    """Tell whether a stored record was written by this converter."""
    return record.get("tool") == TOOL


def tool_version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import version

    return version(TOOL)
