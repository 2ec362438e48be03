"""``mla info``: what the header of an image says, for every format; no voxel is read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from mlarray.formats.registry import format_named, open_source
from mlarray.sources.base import Source
from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.render import amount, by, fields, plain
from mlarray_convert.plan import CHUNK_FORMATS
from mlarray_convert.report import json_lines

_REGIONS = {
    "region": "any, without reading the rest",
    "slab": "whole planes in storage order; convert the file to read patches",
    "whole": "none: any read decodes everything; convert the file to read patches",
}


@click.command(short_help="Show what the header of an image says.")
@click.argument("path", type=GivenPath(), metavar="PATH")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(path: Path, *, as_json: bool) -> int:
    """Show what the header of an image says: shape, type, axes, place in the world, how it is stored."""
    with closing(open_source(path, mapped=False)) as source:
        described = describe(path, source)
        notes = [note.message for note in source.info.notes]
    click.echo(json_lines([described | {"notes": notes}]) if as_json else _text(described, notes), nl=not as_json)
    return 0


def describe(path: Path, source: Source) -> dict[str, object]:
    """Return what is known of an image, as plain JSON values."""
    spec, geometry, info = source.spec, source.spec.geometry, source.info
    described: dict[str, object] = {
        "path": str(path),
        "format": info.format,
        "files": [str(file) for file in info.files],
        "file_bytes": sum(file.stat().st_size for file in info.files),
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
    if info.format in CHUNK_FORMATS:
        described |= {"storage": _storage(path)}
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
    storage = spec.get("storage")
    if isinstance(storage, dict):
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
    lines = [fields(rows)] + [click.style("note: ", fg="yellow") + plain(note) for note in notes]
    return "\n".join(lines)


def _dicts(value: object) -> list[dict[str, object]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _numbers(value: object, joint: str) -> str:
    return joint.join(f"{float(str(number)):.6g}" for number in _list(value))
