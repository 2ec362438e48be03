"""What stands beside the arrays of a case that nnU-Net has preprocessed, and how does it travel in an ``.mla``?

nnU-Net keeps ``CASE.b2nd``, ``CASE_seg.b2nd`` and ``CASE.pkl``, a pickled dict of properties; the plans, in JSON, lie in the
folder above. The pickle is read by :mod:`mlarray.metadata.unpickle`, which runs nothing of it, and written as plain
containers and numpy arrays.

In an ``.mla`` the properties are ``meta.source["nnunet"]["properties"]``, all but ``class_locations``: the coordinates of
some 10 000 voxels of every label. Those are a record of their own, raw and compressed by blosc2. As metadata they would take
0.5 seconds to write and 7 milliseconds to read for 3 labels, and 7 seconds and 130 milliseconds for 117, at every opening.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from itertools import accumulate, permutations
from pathlib import Path
from typing import Any, cast

import numpy as np

from mlarray.errors import FormatError
from mlarray.limits import NNUNET_PICKLE_BYTES, NNUNET_PLANS_BYTES, NNUNET_PROPERTIES_BYTES
from mlarray.metadata import Limits, restricted_loads, to_jsonable
from mlarray.metadata.standins import ARRAY_TABLE
from mlarray.metadata.values import unstorable
from mlarray.sources.base import NDArray

HEADER_KEY = "nnunet"
SEG_MARK = "_seg"
PROPERTIES_SUFFIX = ".pkl"
PICKLE_PROTOCOL = 4
_LOCATIONS = "class_locations"
_ORDERS = [list(order) for order in permutations(range(3))]
_LOST = "Convert the preprocessed case again; programs that know only the metadata do not keep the locations."


def properties_path(path: Path) -> Path:
    """Return where nnU-Net keeps the properties of an array file: one file for image and segmentation of a case."""
    stem = path.name[: -len(path.suffix)]
    own = path.with_name(stem + PROPERTIES_SUFFIX)
    if stem.endswith(SEG_MARK) and not own.is_file():
        return path.with_name(stem.removesuffix(SEG_MARK) + PROPERTIES_SUFFIX)
    return own


def is_segmentation(path: Path) -> bool:
    """Tell whether a file is the segmentation of a case, not its image, by nnU-Net's rule for names."""
    return path.name[: -len(path.suffix)].endswith(SEG_MARK)


def read_properties(path: Path) -> dict[str, object]:
    """Return the properties in a ``.pkl`` file; nothing in it is run.

    Raises
    ------
    FormatError
        When it is damaged, larger than ``limits.NNUNET_PICKLE_BYTES``, asks for anything but plain containers and numpy arrays
        of numbers, or is not a dict with a spacing, as nnU-Net writes it.
    """
    size = path.stat().st_size
    if size > NNUNET_PICKLE_BYTES:
        raise FormatError(
            f"{path.name} has {size} bytes, at most {NNUNET_PICKLE_BYTES} are read", hint=NNUNET_PICKLE_BYTES.hint
        )
    limits = Limits(max_bytes=NNUNET_PICKLE_BYTES)
    try:
        value = restricted_loads(path.read_bytes(), table=ARRAY_TABLE, limits=limits, keep_tuples=True)
    except FormatError as error:
        raise FormatError(f"{path.name} is not read: {error.message}") from error
    if not isinstance(value, dict) or "spacing" not in value or not all(isinstance(key, str) for key in value):
        raise FormatError(f"{path.name} does not hold the properties of a case of nnU-Net")
    return value


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    """Write properties as nnU-Net does: a pickle of plain containers and numpy arrays."""
    path.write_bytes(pickle.dumps(dict(properties), protocol=PICKLE_PROTOCOL))


def transpose_of(folder: Path) -> tuple[tuple[int, ...] | None, Path | None]:
    """Return the order of axes of the preprocessed arrays in a folder, and the file of plans that tells it.

    Parameters
    ----------
    folder : Path
        Of one configuration, named as a ``data_identifier`` of some plans in the folder above.

    Returns
    -------
    tuple of int, Path
        ``transpose_forward`` (array axis *i* is image axis ``order[i]`` of z, y, x); both None where no plans name the
        folder, or several do and disagree.
    """
    found: dict[Path, tuple[int, ...]] = {}
    above = folder.absolute().parent
    for path in sorted(above.glob("*.json")):
        plans = plain_json(path)
        named = plans.get("configurations")
        configurations = named.values() if isinstance(named, dict) else ()
        order = plans.get("transpose_forward")
        identifiers = [one.get("data_identifier") for one in configurations if isinstance(one, dict)]
        if folder.absolute().name in identifiers and order in _ORDERS:
            found[path] = tuple(map(int, order))  # JSON may write 1 as 1.0
    if len(set(found.values())) != 1:
        return None, None
    path, transpose = next(iter(found.items()))
    return transpose, path


def header_of(
    properties: Mapping[str, object], shape: Sequence[int], *, with_locations: bool = True
) -> tuple[dict[str, object], object]:
    """Return the header fields for ``meta.source``, and the record of locations (None where there is none).

    Parameters
    ----------
    properties : mapping
        As read.
    shape : sequence of int
        Of the array.
    with_locations : bool
        Whether the locations are kept: they belong to the image, which is what nnU-Net draws patches from.

    Raises
    ------
    FormatError
        When the properties hold what metadata cannot store, or more of it than is bearable.
    """
    rest = {name: value for name, value in properties.items() if name != _LOCATIONS}
    record = _locations_record(properties.get(_LOCATIONS), shape[1:]) if with_locations else None
    if with_locations and record is None and _LOCATIONS in properties:
        rest[_LOCATIONS] = properties[_LOCATIONS]  # of another form than nnU-Net's own
    problems = unstorable(rest, path="properties")
    if problems:
        raise FormatError(f"the properties cannot be kept: {problems[0]}")
    if len(pickle.dumps(to_jsonable(rest))) > NNUNET_PROPERTIES_BYTES:
        raise FormatError(
            f"the properties need more than {NNUNET_PROPERTIES_BYTES} bytes of metadata",
            hint=NNUNET_PROPERTIES_BYTES.hint,
        )
    return {HEADER_KEY: {"properties": rest, _LOCATIONS: record is not None}}, record


def properties_of(header: Mapping[str, object], locations: object) -> dict[str, object] | None:
    """Return the properties that :func:`header_of` took apart, or None where a header has none.

    Raises
    ------
    FormatError
        When the record of locations was lost or is damaged.
    """
    kept = header.get(HEADER_KEY)
    properties = kept.get("properties") if isinstance(kept, Mapping) else None
    if not isinstance(properties, Mapping) or not isinstance(kept, Mapping):
        return None
    result = dict(properties)
    if kept.get(_LOCATIONS):
        if locations is None:
            raise FormatError("The locations of the labels are no longer in the file.", hint=_LOST)
        result[_LOCATIONS] = restored_locations(locations)
    return result


def _locations_record(locations: object, extents: Sequence[int]) -> dict[str, object] | None:
    """Return the locations as a plain record, or None when they are not of the form that nnU-Net writes.

    All four columns of all labels stand in one piece, so that reading is one cast: a tenth of the time that three columns take.
    """
    if not isinstance(locations, Mapping) or len(extents) != 3:
        return None
    kind = np.dtype("<u2" if max(extents) <= 2**16 else "<u4")
    labels: list[object] = []
    counts: list[int] = []
    pieces: list[bytes] = []
    for label, voxels in locations.items():
        parts = label if isinstance(label, tuple) else (label,)
        if not all(type(part) is int and abs(part) < 2**63 for part in parts):
            return None
        is_empty = isinstance(voxels, list) and not voxels  # what nnU-Net has for a label that does not occur
        if not is_empty and not _are_coordinates(voxels, extents):
            return None
        labels.append(list(parts) if isinstance(label, tuple) else label)
        counts.append(len(cast("list[object]", voxels)))
        pieces.append(b"" if is_empty else cast("NDArray", voxels).astype(kind).tobytes())
    return {"dtype": kind.str, "labels": labels, "counts": counts, "voxels": b"".join(pieces)}


def _are_coordinates(voxels: object, extents: Sequence[int]) -> bool:
    if not isinstance(voxels, np.ndarray) or voxels.dtype != np.int64 or voxels.ndim != 2 or voxels.shape[1] != 4:
        return False
    return len(voxels) > 0 and bool(np.all(voxels >= 0) and np.all(voxels < [1, *extents]))


def restored_locations(record: object) -> dict[object, object]:
    """Return the locations from the record that :func:`header_of` made of them.

    Raises
    ------
    FormatError
        When it is damaged.
    """
    try:
        fields = cast("dict[str, Any]", record)
        kind = np.dtype({"<u2": "<u2", "<u4": "<u4"}[fields["dtype"]])
        voxels = np.frombuffer(fields["voxels"], kind).astype(np.int64).reshape(-1, 4)
        counts = [int(count) for count in fields["counts"]]
        if min(counts, default=0) < 0 or sum(counts) != len(voxels):
            raise ValueError("the counts do not fit the voxels")
        return {
            tuple(label) if isinstance(label, list) else label: voxels[stop - count : stop] if count else []
            for label, count, stop in zip(fields["labels"], counts, accumulate(counts), strict=True)
        }
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise FormatError("The record with the locations of the labels is damaged.", hint=_LOST) from error


def plain_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file of nnU-Net holds (plans, ``dataset.json``); nothing where it is missing or no mapping."""
    try:
        if path.stat().st_size > NNUNET_PLANS_BYTES:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
