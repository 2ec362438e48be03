"""Parsers of values: pickles, metadata, YAML, reports and records, axes, and numpy keys compared with numpy."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mlarray import Meta, MLArray
from mlarray.axes import axes_from_labels, parse_axes
from mlarray.errors import MLArrayError
from mlarray.formats.nnunet_case import header_of, properties_of, read_properties, transpose_of
from mlarray.formats.text_header import parse_record
from mlarray.metadata import METADATA_TABLE, decode, encode, read_metadata, restricted_loads
from mlarray.metadata.standins import ARRAY_TABLE
from mlarray.region import Region
from mlarray.streaming.config import load_recipe
from mlarray.streaming.stream_config import load_stream
from mlarray_convert.discovery import Case
from mlarray_convert.joined import join_reports
from mlarray_convert.record import is_ours, make_record, why_stale
from mlarray_convert.request import Request, make_request
from tests.fuzz.inputs import Files
from tests.fuzz.mutations import BYTES, JSON, TEXT, lines_of, operations, unzipped
from tests.fuzz.parser import Parser

# --- pickles -------------------------------------------------------------------------------------------------------------


def _pickle_seeds(folder: Path) -> list[Files]:
    import collections

    full = Meta(source={"k": [1, 2.5, None, True, "é"], "n": {"a": b"b", "c": 3 + 1j}}, is_seg=True).to_mapping()
    values: list[Any] = [
        full,
        {"spacing": (1.0, 2.0), "arr": np.arange(6.0).reshape(2, 3), "scalar": np.float32(2), "kind": np.dtype("<u2")},
        collections.OrderedDict(a=[1, -5, 2**40, 2**70], b=bytearray(b"abc"), c=np.array([True, False])),
        {1: "a", (1, 2): "b", "s": "\ud800", "long": "x" * 300, "deep": [[[[[[1]]]]]]},
        {
            "z": np.zeros((2, 0)),
            "f": np.asfortranarray(np.ones((2, 3))),
            "t": np.array("text"),
            "o": np.datetime64("2020-01-01"),
        },
    ]
    return [{"a": pickle.dumps(value, protocol)} for value in values for protocol in (0, 2, 4, 5)]


def _unpickle(folder: Path, files: Files) -> Hashable:
    data = files["a"]
    try:
        first: object = type(restricted_loads(data, table=METADATA_TABLE))
    except MLArrayError as error:
        first = error.message.split("'")[0][:40]
    return first, type(restricted_loads(data, table=ARRAY_TABLE, keep_tuples=True))


def _metadata_seeds(folder: Path) -> list[Files]:
    spatial = {
        "spacing": [1.0, 2.0, 3.0],
        "origin": [0.0, 1.0, 2.0],
        "direction": [[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]],
        "shape": [4, 5, 6],
        "axis_labels": ["spatial_z", "spatial_y", "spatial_x"],
    }
    mapping = json.loads(
        json.dumps(Meta(source={"a": [1, {"b": None}], "f": 1.5}, extra={"x": {}}).to_mapping(), default=str)
    )
    mapping["spatial"] |= spatial
    mapping["bbox"] = {"bboxes": [[[0, 1], [2, 3], [1, 4]]], "scores": [0.5], "labels": ["a"]}
    mapping["stats"] = {"min": 0.0, "max": 1.0, "mean": 0.5}
    old = {
        "image": {"Modality": "MR"},
        "is_seg": False,
        "spatial": {"channel_axis": 0, "shape": [3, 4, 5, 6]},
        "colour": 3,
    }
    wrapped = mapping | {"source": {"data": {"__mlarray__": {"type": "float", "value": "inf"}}}}
    seeds: list[Files] = [{"a.json": json.dumps(one).encode()} for one in (mapping, old, wrapped)]
    meta = Meta(source={"a": float("inf"), "b": b"1", "c": (1, 2), "d": {1: 2}, "e": 1 + 2j, "f": np.arange(4)})
    return [*seeds, {"a.gz": encode(meta)}, {"a.gz": gzip.compress(pickle.dumps(mapping, 2), mtime=0)}]


def _read_metadata(folder: Path, files: Files) -> Hashable:
    """Read metadata, and what was read once more after it was written."""
    payload: Any = files["a.gz"] if "a.gz" in files else json.loads(files["a.json"].decode("utf-8", "surrogatepass"))
    meta, problems = read_metadata({"mlarray": payload}, {"b2nd": [0, 3, [4, 5, 6]]})
    again, more = read_metadata({"mlarray": encode(meta)}, {})
    assert not more, more
    assert encode(again) == encode(meta)
    return tuple(sorted({problem.split(":")[0][:40] for problem in problems}))[:3]


def _decode(folder: Path, files: Files) -> Hashable:
    try:
        json.loads(files.get("a.json", b"0").decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return "no JSON"  # of the input, whose reader is not the one that is looked at
    if "a.gz" in files:
        try:
            decode(files["a.gz"])
        except MLArrayError as error:
            return error.message[:40], _read_metadata(folder, files)
    return _read_metadata(folder, files)


def _nnunet_seeds(folder: Path) -> list[Files]:
    voxels = np.array([[0, 1, 2, 3], [0, 2, 2, 2]], np.int64)
    properties = {
        "spacing": [1.0, 1.0, 1.0],
        "sitk_stuff": {
            "spacing": (1.0, 1.0, 1.0),
            "origin": (0.0, 0.0, 0.0),
            "direction": (1.0, 0, 0, 0, 1, 0, 0, 0, 1),
        },
        "shape_before_cropping": (4, 5, 6),
        "bbox_used_for_cropping": [[0, 4], [0, 5], [0, 6]],
        "class_locations": {1: voxels, (1, 2): voxels[:1], 3: []},
        "shape_after_cropping_and_before_resampling": np.array([4, 5, 6]),
    }
    plans = {"configurations": {"3d": {"data_identifier": "d"}}, "transpose_forward": [0, 2, 1]}
    return [{"d/a.pkl": pickle.dumps(properties, p), "plans.json": json.dumps(plans).encode()} for p in (2, 4, 5)]


def _read_nnunet(folder: Path, files: Files) -> Hashable:
    order, _ = transpose_of(folder / "d")
    header, record = header_of(read_properties(folder / "d" / "a.pkl"), (1, 4, 5, 6))
    restored = properties_of(header, record)
    return order, record is None, None if restored is None else len(restored)


# --- YAML, reports and records -------------------------------------------------------------------------------------------

_STREAM = """\
Dataset:
  dataset_filenames: Dataset/
  groups_src:
    CT:
      groups_dest:
        CT: {transforms: [Canonical, Standardize, Clip: {min_value: -200, max_value: 400}], patch_transforms: []}
  augmentations:
    shape: {nb: 4, augmentations: [Flip, Rotate: {a_max: 15, prob: 0.5}]}
  Patch: {patch_size: [64, 64, 64], overlap: null}
  sampler: {RandomPatches: {number: 4}}
  memory_budget: auto
  batch_size: 2
"""
_RECIPE = """\
transforms:
  - Canonical
  - ResampleToResolution: {spacing: [1, 1, 1]}
  - Clip: {min_value: -200, max_value: 400}
augmentations:
  a: {nb: 2, augmentations: [Noise: {prob: 0.5}]}
"""
_YAML_LINES = (
    *(
        "a: &a [1]",
        "b: *a",
        "<<: {a: 1}",
        "? [1, 2]",
        ": x",
        "!!python/object:os.system x",
        "!!binary aGVsbG8=",
        "!!set {a}",
        "--- b",
    ),
    *(
        "%YAML 1.1",
        "2001-01-01: 2",
        "x: 2001-12-14t21:59:43.10-05:00",
        "y: 0o17",
        "z: 1:30:00",
        "- |",
        "!!int ''",
        "!!float x",
        "%TAG ! a",
    ),
    *(
        "!!timestamp 9999-99-99",
        "? {a: 1}",
        "!!omap [a: 1]",
        "!!null x",
        "!!bool x",
        '"\\x"',
        "'",
        "@",
        "`",
        "\t- a",
        "a: b: c",
        "{{{{{{",
    ),
    *(
        "- Pad: {padding: [1, 2]}",
        "- Crop: {size: [0]}",
        "- Affine: {matrix: [[1]]}",
        "- Save: {dataset: x}",
        "seed: 99",
        "lanes: 2",
    ),
)


def _yaml_seeds(folder: Path) -> list[Files]:
    from mlarray.streaming.config import known_augmentations, known_transforms

    every = "".join(f"- {name}\n" for name in known_transforms())
    seeds = [{"a.yaml": text.encode()} for text in (_STREAM, _RECIPE, "- Canonical\n- Standardize\n", every)]
    augmentations = [{name: {"prob": 0.5}} for name in known_augmentations()]
    given = {
        "transforms": [{name: {}} for name in known_transforms()],
        "augmentations": {"a": {"nb": 1, "augmentations": augmentations}},
    }
    small = {"groups": {"CT": [{"Clip": {"min_value": 0, "max_value": 1}}]}, "Dataset": "d", "Patch": {"patch_size": 8}}
    seeds += [
        {"a.yaml": json.dumps(one).encode()}
        for one in (given, small, small | {"workers": 2, "subset": ["a", 1], "seed": 3})
    ]
    from mlarray import transforms

    parameters = {
        "min_value": 0,
        "max_value": 1,
        "spacing": [1, 1, 1],
        "size": [4, 4, 4],
        "dtype": "float32",
        "channels": [0],
        "labels": [1],
    }
    seeds += [
        {"a.yaml": json.dumps([{name: {key: value}}]).encode()}
        for name in transforms.__all__
        for key, value in parameters.items()
    ]
    return seeds


def _read_yaml(folder: Path, files: Files) -> Hashable:
    told: list[Hashable] = []
    for load in (load_stream, load_recipe):
        try:
            told.append(type(load(folder / "a.yaml")))
        except MLArrayError as error:
            told.append((type(error), error.message.split("'")[0][-30:]))
    return tuple(told)


def _report_seeds(folder: Path) -> list[Files]:
    from mlarray_convert.outcome import Outcome, Status
    from mlarray_convert.report import Report, case_fields, json_lines

    cases = [Case(f"c{i}", Path(f"c{i}.nii"), Path(f"c{i}.mla")) for i in range(2)]
    outcomes = (Outcome(cases[0], Status.OK, dtype="int16", shape=(1, 2, 3)), Outcome(cases[1], Status.FAILED, "x"))
    report = Report(outcomes, 1.5, not_started=("c2",))
    rows = [*map(case_fields, outcomes), report.summary()]
    return [{"a.json": json_lines(rows).encode()}, {"a.json": json_lines([rows[-1] | {"shard": "1/2"}]).encode()}]


def _read_report(folder: Path, files: Files) -> Hashable:
    joined = join_reports([("a.json", files["a.json"].decode("utf-8", "replace"))])
    joined.report.summary()
    json.dumps(joined.report.summary())
    return joined.exit_code, len(joined.report.outcomes), len(joined.problems)


def one_line(random: Random, data: bytes) -> bytes:
    """Change the JSON in one line of a text."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    lines[at] = random.choice(JSON)(random, lines[at])
    return b"\n".join(lines)


@cache
def _case() -> tuple[Case, Request]:
    return Case("a", Path(__file__), Path("a.mla")), make_request([__file__], "a.mla", to="mla")


def _record_seeds(folder: Path) -> list[Files]:
    case, request = _case()
    return [{"a.json": json.dumps(make_record(case, request, [case.source], [])).encode()}]


def _read_record(folder: Path, files: Files) -> Hashable:
    record, notes = parse_record(files["a.json"].decode("utf-8", "replace"))
    case, request = _case()
    return bool(notes), is_ours(record), why_stale(record, case, request, [case.source]) if record else None


# --- axes and keys -------------------------------------------------------------------------------------------------------


def _axes_seeds(folder: Path) -> list[Files]:
    axes = [
        {"name": "t", "type": "time", "unit": "second", "step": 2.5},
        {"name": "z", "unit": "mm"},
        "y",
        "spatial_x",
        "spatial",
    ]
    return [
        {"a.json": json.dumps(one).encode()}
        for one in (axes, "tzyx", ["spatial_z", "channel", None], ["d0", "d1", "spatial"])
    ]


def _read_axes(folder: Path, files: Files) -> Hashable:
    text = files["a.json"].decode("utf-8", "surrogateescape")
    told: list[Hashable] = []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    calls = [lambda: parse_axes(text[:40]), lambda: parse_axes(value)]
    if isinstance(value, list) and all(one is None or isinstance(one, str) for one in value):
        calls += [lambda: axes_from_labels(value, None, len(value)), lambda: axes_from_labels(value, value, len(value))]
    for call in calls:
        try:
            axes = call()
            told.append((len(axes), sum(axis.is_spatial for axis in axes)))
            assert parse_axes([axis.to_dict() for axis in axes]) == axes
            assert len({axis.name for axis in axes}) == len(axes)
        except MLArrayError as error:
            told.append(error.message.split("'")[0][:30])
    return tuple(told)


_SHAPES = ((7,), (5, 4), (6, 1, 5), (3, 4, 2, 5), (1,), (8, 9))


@cache
def _arrays(shape: tuple[int, ...]) -> tuple[Any, MLArray, MLArray]:
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    sizes = {"chunk_size": tuple(max(1, n // 2) for n in shape), "block_size": tuple(max(1, n // 3) for n in shape)}
    return values, MLArray(values, **sizes), MLArray(values.copy(), compressed=False)


def _number(random: Random, extent: int) -> Any:
    value = random.choice(
        (0, -1, 1, extent, -extent, extent - 1, random.randint(-extent - 2, extent + 1), 2**31, -(2**63), 2**64)
    )
    return random.choice((int, int, int, _numpy_integer))(value)


def _numpy_integer(value: int) -> Any:
    return np.int64(value) if -(2**63) <= value < 2**63 else value


def _end(random: Random, extent: int) -> Any:
    return None if random.random() < 0.3 else _number(random, extent)


def _entry(random: Random, extents: tuple[int, ...]) -> Any:
    extent = extents[0] if extents else 3
    kind = random.randrange(14)
    if kind < 4:
        step = random.choice((None, None, 1, 2, -1, -2, 3, -3, extent, -extent, 2**63, -(2**64), 0))
        return slice(_end(random, extent), _end(random, extent), step)
    if kind < 7:
        return _number(random, extent)
    if kind == 7:
        return None
    if kind == 8:
        return Ellipsis
    if kind == 9:
        return random.choices(range(-extent, extent + (random.random() < 0.1)), k=random.randrange(5))
    if kind == 10:
        shape = random.choice(((2,), (2, 1), (1, 3), (0,), (2, 2), (1,)))
        picked = np.array(random.choices(range(-extent, extent), k=int(np.prod(shape))), np.int64)
        return picked.reshape(shape).astype(random.choice(("i8", "i1", "u1")))
    if kind == 11:
        some = extents[: random.randint(1, 2)] or (3,)
        return np.array([random.random() < 0.5 for _ in range(int(np.prod(some)))], bool).reshape(some)
    if kind == 12:
        return random.choice(
            (True, False, np.True_, 1.0, "a", b"a", [True] * extent, np.array(1), np.array(1.5), [[0, 1], [1, 0]], ())
        )
    return random.choice(
        ([], [[]], np.int8(1), np.uint64(0), slice("a"), slice(1.0), {}, object(), [1, None], np.array([1.0]))
    )


def _key(random: Random, shape: tuple[int, ...]) -> Any:
    entries, axis = [], 0
    for _ in range(random.choice((1, 1, 2, len(shape), len(shape), len(shape) + 1))):
        entries.append(_entry(random, shape[axis:]))
        axis += entries[-1] is not None and entries[-1] is not Ellipsis
    return entries[0] if len(entries) == 1 and random.random() < 0.5 else tuple(entries)


class Different(Exception):
    """Another result than numpy's."""


_REFUSALS = (IndexError, ValueError, TypeError, OverflowError)


def _read_key(folder: Path, files: Files) -> Hashable:
    """Read, and write, by a random key; the result is that of numpy, and so is whether there is one."""
    random = Random(files["key"])
    shape = random.choice(_SHAPES)
    key = _key(random, shape)
    values, compressed, plain = _arrays(shape)
    array = compressed if random.random() < 0.7 else plain
    try:
        expected = values[key]
    except _REFUSALS as error:
        expected = error
    try:
        found = array[key]
    except _REFUSALS as error:
        found = error
    _compare(key, shape, expected, found)
    if random.random() < 0.3:
        _write_key(random, key, values, array)
    if random.random() < 0.1:
        _read_region(random, values, array)
    return type(expected), np.ndim(expected) if isinstance(expected, np.ndarray) else str(expected)[:20]


def _compare(key: Any, shape: tuple[int, ...], expected: Any, found: Any) -> None:
    if isinstance(found, Exception):
        unchecked = np.size(expected) == 0 and "out of bounds" in str(found)  # numpy then looks at no index
        if not isinstance(expected, Exception) and "single boolean" not in str(found) and not unchecked:
            raise Different(f"{key!r} of {shape}: {found!r} where numpy has {np.shape(expected)}")
    elif isinstance(expected, Exception):
        raise Different(f"{key!r} of {shape}: {np.shape(found)} where numpy has {expected!r}")
    elif np.shape(found) != np.shape(expected) or not np.array_equal(found, expected) or found.dtype != expected.dtype:
        raise Different(f"{key!r} of {shape}: {found!r} where numpy has {expected!r}")


def _write_key(random: Random, key: Any, values: Any, array: MLArray) -> None:
    value: Any = random.choice(
        (7, -1, [1, 2], np.arange(3), np.ones((1, 1), np.int16), 2**40, 1.5, "a", None, np.float32(1), True)
    )
    if random.random() < 0.5:
        value = (
            np.arange(np.size(found), dtype=np.int32).reshape(np.shape(found))
            if (found := _quiet(values, key)) is not None
            else 3
        )
    copy = values.copy()
    try:
        copy[key] = value
    except _REFUSALS:
        return  # what numpy refuses may be accepted: an array of one value for one voxel
    try:
        array[key] = value
    except _REFUSALS as error:
        if not np.array_equal(array.to_numpy(), values):
            raise Different(f"{key!r} = {value!r} was refused and wrote") from error
    else:
        if not np.array_equal(array.to_numpy(), copy):
            raise Different(f"{key!r} = {value!r} of {values.shape}")
    array[...] = values


def _quiet(values: Any, key: Any) -> Any:
    try:
        return values[key]
    except _REFUSALS:
        return None


def _read_region(random: Random, values: Any, array: MLArray) -> None:
    start = tuple(_number(random, n) for n in values.shape[: random.choice((len(values.shape), 1))])
    stop = tuple(random.choice((_number(random, n), n)) for n in values.shape)
    try:
        region = Region(start, stop)
        found = array.read(region)
    except (MLArrayError, IndexError):
        return
    if not np.array_equal(found, values[region.slices]):
        raise Different(f"{region} of {values.shape}")


def _any_key(random: Random, data: bytes) -> bytes:
    return random.randbytes(8)


PARSERS = (
    Parser("pickle", _unpickle, _pickle_seeds, {"": (operations,)}, 15000, on_disk=False),
    Parser(
        "metadata",
        _decode,
        _metadata_seeds,
        {".json": JSON, ".gz": (unzipped((operations, *BYTES)),)},
        1500,
        on_disk=False,
    ),
    Parser("nnunet-pickle", _read_nnunet, _nnunet_seeds, {".pkl": (operations,), ".json": JSON}, 3000),
    Parser("yaml", _read_yaml, _yaml_seeds, {"": (*TEXT, lines_of(_YAML_LINES), *JSON[:3])}, 600),
    Parser("report", _read_report, _report_seeds, {"": (one_line, one_line, *TEXT)}, 10000, on_disk=False),
    Parser("record", _read_record, _record_seeds, {"": JSON}, 5000, on_disk=False),
    Parser("axes", _read_axes, _axes_seeds, {"": JSON}, 15000, on_disk=False),
    Parser("key", _read_key, lambda folder: [{"key": bytes(8)}], {"": (_any_key,)}, 5000, on_disk=False),
)
