"""``mla info``: what the header of an image says, for every format; no voxel is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from mlarray.errors import FormatError
from mlarray.formats.items import Item, split_item
from mlarray.formats.registry import format_named, format_of, items_of, open_source
from mlarray.sources.base import Source
from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.render import amount, by, fields, plain, table
from mlarray_convert.places import size_of
from mlarray_convert.report import json_lines
from mlarray_convert.request import CHUNK_FORMATS

_REGIONS = {
    "region": "any, without reading the rest",
    "slab": "whole planes in storage order; convert the file to read patches",
    "whole": "none: any read decodes everything; convert the file to read patches",
}


@click.command(short_help="Show what the header of an image says.")
@click.argument("path", type=GivenPath(), metavar="PATH")
@click.option(
    "--item", "--dataset", "--level", "item", metavar="NAME", help="Which image of a file that holds several."
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(path: Path, item: str | None, *, as_json: bool) -> int:
    """Show what the header of an image says: shape, type, axes, place in the world, how it is stored.

    Of a file that holds several images, those are listed; `mla info FILE@NAME` shows one.
    """
    place, named = split_item(path)
    items = items_of(place) if named is None and item is None else ()
    try:
        source = open_source(path, item=item, mapped=False)
    except FormatError:
        if len(items) < 2:
            raise
        return _listing(path, items, as_json=as_json)
    with closing(source):
        described = describe(place, source)
        notes = [note.message for note in source.info.notes]
    if len(items) > 1:
        described["items"] = _rows(items)
    click.echo(json_lines([described | {"notes": notes}]) if as_json else _text(described, notes), nl=not as_json)
    return 0


def _listing(path: Path, items: Sequence[Item], *, as_json: bool) -> int:
    """Show the images of a file none of which is preferred."""
    if as_json:
        described: dict[str, object] = {"path": str(path), "format": format_of(path).name, "items": _rows(items)}
        click.echo(json_lines([described]), nl=False)
        return 0
    click.echo(fields({"file": path, "format": format_of(path).title, "images": len(items)}))
    click.echo(table(["item", "what it is"], [[one.name, one.title] for one in items]))
    click.echo(plain(f"`mla info {path.name}@NAME` shows one."))
    return 0


def _rows(items: Sequence[Item]) -> list[dict[str, str]]:
    return [{"name": one.name, "title": one.title} for one in items]


def describe(path: Path, source: Source) -> dict[str, object]:
    """Return what is known of an image, as plain JSON values."""
    spec, geometry, info = source.spec, source.spec.geometry, source.info
    described: dict[str, object] = {
        "path": str(path),
        "format": info.format,
        "item": info.item,
        "files": [str(file) for file in info.files],
        "file_bytes": sum(map(size_of, info.files)),
        "shape": list(spec.shape),
        "dtype": str(spec.dtype),
        "voxel_bytes": spec.nbytes,
        "axes": [axis.to_dict() for axis in spec.axes],
        "is_seg": info.is_seg,
        "access": source.access.value,
        "spacing_mm": None,
        "origin_mm": None,
        "direction": None,
        "coord_system": None,
        "orientation": None,
    }
    if geometry is not None:
        described |= {
            "spacing_mm": list(geometry.spacing) if "spacing" in geometry.known else None,
            "origin_mm": list(geometry.origin) if "origin" in geometry.known else None,
            "direction": geometry.direction.tolist() if "direction" in geometry.known else None,
            "coord_system": geometry.coord_system,
            "orientation": geometry.orientation,
            "sheared": geometry.is_sheared,
        }
    chunks = getattr(source, "chunks", None)
    if chunks is not None and info.format not in CHUNK_FORMATS:
        described["chunks"] = list(chunks)
    if info.format in CHUNK_FORMATS:
        described |= {"storage": _storage(path)}
    elif hasattr(source, "storage_fields"):
        described |= {"storage": source.storage_fields}
    if info.record:
        described |= {"record": dict(info.record)}
    return described


def _storage(path: Path) -> dict[str, object]:
    from mlarray.storage.allocate import LAYOUT_RECORD
    from mlarray.storage.blosc import open_store
    from mlarray.storage.integrity import content_checksum

    store = open_store(path, mmap_mode=None)
    try:
        reasons = store.record(LAYOUT_RECORD)
        reasons = reasons if isinstance(reasons, dict) else {}
        raw = store.dtype.itemsize
        for extent in store.shape:
            raw *= extent
        return {
            "chunks": list(store.chunks),
            "blocks": list(store.blocks),
            "chunk_count": store.chunk_count,
            "codec": store.compression.codec,
            "level": store.compression.level,
            "filters": list(store.compression.filters),
            "compressed_bytes": store.stored_bytes,
            "ratio": round(raw / store.stored_bytes, 2) if store.stored_bytes else None,
            "layout_reason": reasons.get("layout"),
            "filter_reason": reasons.get("filter"),
            "checksum": content_checksum(store),
        }
    finally:
        store.close()


def _text(described: dict[str, object], notes: list[str]) -> str:
    spec = described
    axes = [str(axis["name"]) for axis in _dicts(spec["axes"])]
    steps = [f"{axis['name']}: {axis['step']:g} {axis.get('unit') or ''}".strip()
             for axis in _dicts(spec["axes"]) if "step" in axis]  # fmt: skip
    unknown = "unknown"
    rows: dict[str, object] = {
        "file": spec["path"],
        "format": format_named(str(spec["format"])).title,
        "item": spec["item"],
        "shape": f"{by(_list(spec['shape']))}  ({', '.join(axes)})",
        "dtype": f"{spec['dtype']}{'  segmentation' if spec['is_seg'] else ''}",
        "size": f"{amount(float(str(spec['file_bytes'])))} on disk, {amount(float(str(spec['voxel_bytes'])))} of voxels",
        "spacing": f"{_numbers(spec['spacing_mm'], ' x ')} mm" if spec["spacing_mm"] else unknown,
        "steps": ", ".join(steps),
        "origin": f"({_numbers(spec['origin_mm'], ', ')}) mm" if spec["origin_mm"] else unknown,
        "orientation": f"{spec['orientation'] or unknown}  (world frame {spec['coord_system'] or unknown})",
        "direction": "; ".join(_numbers(row, " ") for row in _list(spec["direction"]))
        if spec["direction"]
        else unknown,
        "partial reads": _REGIONS[str(spec["access"])],
    }
    if spec.get("chunks"):
        rows["chunks"] = by(_list(spec["chunks"]))
    storage = spec.get("storage")
    if isinstance(storage, dict) and "blocks" not in storage:
        rows |= {name: _told(value) for name, value in storage.items()}
    elif isinstance(storage, dict):
        rows |= {
            "chunks": f"{by(storage['chunks'])}  ({storage['chunk_count']} of them)",
            "blocks": by(storage["blocks"]),
            "compression": f"{storage['codec']} level {storage['level']}, filters: "
            f"{', '.join(storage['filters']) or 'none'}; ratio {storage['ratio'] or unknown}",
            "layout": storage["layout_reason"],
            "filter": storage["filter_reason"],
            "checksums": f"{storage['checksum']}  (`mla verify` checks them)" if storage["checksum"] else "none",
        }
    record = spec.get("record")
    if isinstance(record, dict):
        sources = ", ".join(str(source.get("name")) for source in _dicts(record.get("sources")))
        rows["made from"] = f"{sources}  (by {record.get('tool')} {record.get('version')})"
    items = ", ".join(str(one["name"]) for one in _dicts(spec.get("items")))
    rows |= {"images": f"{items}  (`mla info FILE@NAME` shows one)"} if items else {}
    lines = [fields(rows)] + [click.style("note: ", fg="yellow") + plain(note) for note in notes]
    return "\n".join(lines)


def _told(value: object) -> object:
    """Return extents, or extents under names, as text; other values as they are."""
    if isinstance(value, dict):
        return ", ".join(f"{name} ({_told(extents)})" for name, extents in value.items())
    return by(value) if isinstance(value, list) else value


def _dicts(value: object) -> list[dict[str, object]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _numbers(value: object, joint: str) -> str:
    return joint.join(f"{float(str(number)):.6g}" for number in _list(value))
