"""Parsers of values: pickles, metadata, YAML, reports and records."""

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

from mlarray import Meta
from mlarray.errors import MLArrayError
from mlarray.formats.nnunet_case import header_of, properties_of, read_properties, transpose_of
from mlarray.formats.text_header import parse_record
from mlarray.metadata import METADATA_TABLE, decode, encode, read_metadata, restricted_loads
from mlarray.metadata.standins import ARRAY_TABLE
from mlarray.streaming.config import load_recipe
from mlarray.streaming.stream_config import load_stream
from mlarray_convert.discovery import Case
from mlarray_convert.joined import join_reports
from mlarray_convert.record import is_ours, make_record, why_stale
from mlarray_convert.request import Request, make_request
from tests.fuzz.inputs import Files
from tests.fuzz.mutations import BYTES, JSON, TEXT, lines_of, unzipped
from tests.fuzz.parser import Parser
from tests.fuzz.pickles import operations

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


PARSERS = (
    Parser("pickle", _unpickle, _pickle_seeds, {"": (operations,)}, 4000, on_disk=False),
    Parser(
        "metadata",
        _decode,
        _metadata_seeds,
        {".json": JSON, ".gz": (unzipped((operations, *BYTES)),)},
        1000,
        on_disk=False,
    ),
    Parser("nnunet-pickle", _read_nnunet, _nnunet_seeds, {".pkl": (operations,), ".json": JSON}, 2000),
    Parser("yaml", _read_yaml, _yaml_seeds, {"": (*TEXT, lines_of(_YAML_LINES), *JSON[:3])}, 400),
    Parser("report", _read_report, _report_seeds, {"": (one_line, one_line, *TEXT)}, 10000, on_disk=False),
    Parser("record", _read_record, _record_seeds, {"": JSON}, 5000, on_disk=False),
)
