"""Small zarr hierarchies, written with zarr-python and by hand, as other programs write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from mlarray.sources.base import NDArray

TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


def axes_of(names: str, unit: str | None = "millimeter") -> list[dict[str, Any]]:
    """Return the axes of the specification for one-letter names."""
    axes: list[dict[str, Any]] = [{"name": name, "type": TYPES[name]} for name in names]
    for axis in axes:
        if axis["type"] == "space" and unit is not None:
            axis["unit"] = unit
    return axes


def multiscale(
    names: str,
    scale: Sequence[float] | None = None,
    translation: Sequence[float] | None = None,
    *,
    paths: Sequence[str] = ("0",),
    unit: str | None = "millimeter",
) -> dict[str, Any]:
    """Return multiscales whose levels halve every axis of space."""
    axes = axes_of(names, unit)
    datasets = []
    for number, path in enumerate(paths):
        factors = [2**number if axis["type"] == "space" else 1 for axis in axes]
        steps = [s * f for s, f in zip(scale or [1] * len(axes), factors, strict=True)]
        found: list[dict[str, Any]] = [{"type": "scale", "scale": steps}]
        if translation is not None:
            found.append({"type": "translation", "translation": list(translation)})
        datasets.append({"path": path, "coordinateTransformations": found})
    return {"axes": axes, "datasets": datasets}


def write_image(
    folder: Path,
    array: NDArray,
    entry: dict[str, Any],
    *,
    version: str = "0.5",
    levels: Sequence[NDArray] = (),
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write an image of one multiscale; ``levels`` are the coarser arrays, ``extra`` goes beside the multiscales."""
    zarr_format = 3 if version == "0.5" else 2
    group = zarr.open_group(folder, mode="w", zarr_format=zarr_format)
    for dataset, data in zip(entry["datasets"], (array, *levels), strict=True):
        write_array(group, dataset["path"], data, zarr_format=zarr_format, **options)
    if version == "0.5":
        group.attrs["ome"] = {"version": version, "multiscales": [entry]} | (extra or {})
    else:
        group.attrs.update({"multiscales": [{"version": version} | entry]} | (extra or {}))
    return folder


def write_array(
    group: Any, path: str, array: NDArray, *, zarr_format: int = 3, chunks: Sequence[int] | None = None, **options: Any
) -> None:
    """Write one array into a group."""
    if zarr_format == 2:
        options.setdefault("chunk_key_encoding", {"name": "v2", "separator": "/"})
    made = group.create_array(
        path,
        shape=array.shape,
        chunks=tuple(chunks or (max(1, n // 2) for n in array.shape)),
        dtype=array.dtype,
        **options,
    )
    made[...] = array


def attributes(folder: Path) -> dict[str, Any]:
    """Return the attributes of a group as they stand in its file."""
    if (folder / "zarr.json").exists():
        found: dict[str, Any] = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        return found
    kept: dict[str, Any] = json.loads((folder / ".zattrs").read_text(encoding="utf-8"))
    return kept


def ome(folder: Path) -> dict[str, Any]:
    """Return what the specification says of a group, wherever its version keeps it."""
    found = attributes(folder)
    return found.get("ome", found)


def change(folder: Path, name: str, edit: Any) -> None:
    """Change a JSON document of a hierarchy in place."""
    path = folder / name
    document = json.loads(path.read_text(encoding="utf-8"))
    edit(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def chunk_files(folder: Path, level: str = "0") -> list[Path]:
    """Return the objects that hold the voxels of a level."""
    names = {"zarr.json", ".zarray", ".zattrs"}
    return sorted(path for path in (folder / level).rglob("*") if path.is_file() and path.name not in names)


def ramp(*shape: int, dtype: Any = np.int16) -> NDArray:
    """Return an array whose voxels are all different."""
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
