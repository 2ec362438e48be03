"""Metadata becomes bytes that older releases open, and comes back whole."""

from __future__ import annotations

import gzip
import json
import math
import pickle
import pickletools

import numpy as np
import pytest

from mlarray.errors import FormatError, MetadataError
from mlarray.metadata import Meta, decode, encode, read_metadata
from mlarray.metadata.codec import stored_mapping

KEYS_OF_0_0_54 = {
    "source": ["data"],
    "extra": ["data"],
    "spatial": [
        "spacing", "origin", "direction", "affine", "shape", "axis_labels", "coord_system", "axis_units",
        "_num_spatial_axes", "_num_non_spatial_axes",
    ],
    "stats": [
        "min", "max", "mean", "median", "std", "percentile_min", "percentile_max", "percentile_mean",
        "percentile_median", "percentile_std", "percentile_min_key", "percentile_max_key",
    ],
    "bbox": ["bboxes", "scores", "labels"],
    "is_seg": ["is_seg"],
    "blosc2": ["chunk_size", "block_size", "patch_size", "cparams", "dparams"],
    "_has_array": ["has_array"],
    "_image_meta_format": ["image_meta_format"],
}  # fmt: skip


def full() -> Meta:
    return Meta(
        source={"Modality": "CT", "descrip": b"caf\xe9 \xff", "umlaut": "Größe", "nested": [1, {"a": None}]},
        extra={"split": "train", "shape": (1, 2), "labels": {1: "liver"}, "weight": np.float32(0.1)},
        spatial={
            "spacing": [3.0, 1.0, 0.5],
            "origin": [1, 2, 3],
            "direction": np.eye(3),
            "shape": [2, 3, 4, 5],
            "axis_labels": ["channel", "spatial_z", "spatial_y", "spatial_x"],
            "coord_system": "LPS",
            "axis_units": ["", "mm", "mm", "mm"],
        },
        stats={"min": np.float32(0.5), "max": 7},
        bbox={"bboxes": [[[0, 1], [1, 2.5], [2, 3]]], "scores": [0.5], "labels": ["nodule"]},
        is_seg=False,
        blosc2={"chunk_size": (1, 3, 4, 5), "cparams": {"codec": 2, "clevel": 8}},
        _has_array=True,
        _image_meta_format="nifti",
        _mlarray_version="v0",
    )


def raw(meta: Meta) -> dict[str, object]:
    return pickle.loads(gzip.decompress(encode(meta)))  # type: ignore[no-any-return]


def test_all_metadata_comes_back() -> None:
    meta, warnings = read_metadata({"mlarray": encode(full())}, {})
    assert warnings == []
    assert meta == full()
    assert meta.to_mapping() == full().to_mapping()
    assert type(meta.extra["weight"]) is np.float32


def test_the_keys_are_exactly_those_of_0_0_54() -> None:
    stored = raw(full())
    assert stored.pop("_mlarray_version") == "v0"
    assert {name: list(part) for name, part in stored.items()} == KEYS_OF_0_0_54  # type: ignore[call-overload]


def test_an_unset_frame_is_left_out_and_the_array_flag_is_not() -> None:
    stored = raw(Meta())
    assert "coord_system" not in stored["spatial"]  # type: ignore[operator]
    assert stored["_has_array"] == {"has_array": False}
    assert stored["_image_meta_format"] == {"image_meta_format": None}


def test_axis_counts_are_those_of_the_labels() -> None:
    spatial = raw(full())["spatial"]
    assert (spatial["_num_spatial_axes"], spatial["_num_non_spatial_axes"]) == (3, 1)  # type: ignore[index]


def test_the_pickle_names_no_class_and_is_of_protocol_4() -> None:
    operations = list(pickletools.genops(gzip.decompress(encode(full()))))
    names = {operation.name for operation, _, _ in operations}
    assert names.isdisjoint(
        {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    )
    assert (operations[0][0].name, operations[0][1]) == ("PROTO", 4)


def test_what_is_stored_passes_a_strict_json_reader() -> None:
    meta = full()
    meta.source.update({"scl_slope": float("nan"), "inf": [math.inf], "bad": "\udce9"})
    text = json.dumps(stored_mapping(meta), allow_nan=False, ensure_ascii=False)
    assert json.loads(text)["source"]["data"]["scl_slope"] == {"__mla__": "float", "value": "nan"}
    assert text.encode("utf-8")
    back, _ = read_metadata({"mlarray": encode(meta)}, {})
    assert math.isnan(back.source["scl_slope"])
    assert (back.source["inf"], back.source["bad"], back.source["descrip"]) == ([math.inf], "\udce9", b"caf\xe9 \xff")


def test_equal_metadata_gives_equal_bytes_however_it_was_made() -> None:
    shared = "m" + "m"
    one = Meta(spatial={"axis_units": [shared, shared]}, source={"a": "mm", "b": [1]}, extra={"b": [1]})
    other = Meta(source={"a": "".join(["m", "m"]), "b": [1]})
    other.extra = {"b": other.source["b"]}
    other.spatial.axis_units = ("mm", "".join(["m", "m"]))
    assert encode(one) == encode(other)
    assert encode(pickle.loads(pickle.dumps(full()))) == encode(full())
    assert encode(full())[4:8] == bytes(4)


def test_encoding_changes_nothing() -> None:
    meta = full()
    before = meta.to_mapping()
    encode(meta)
    assert meta.to_mapping() == before


def test_a_source_that_looks_like_a_wrapper_or_a_tag_survives() -> None:
    for source in ({"data": {"a": 1}, "b": 2}, {"data": 5}, {"__mla__": "float", "value": "nan"}, {3: 4}):
        meta = Meta()
        meta.source.data = source
        back, warnings = read_metadata({"mlarray": encode(meta)}, {})
        assert (back.source, warnings) == (source, [])


def test_statistics_may_be_nan_and_stay_numbers_for_older_releases() -> None:
    stored = raw(Meta(stats={"mean": float("nan")}))
    assert math.isnan(stored["stats"]["mean"])  # type: ignore[index]


def test_the_deepest_value_that_is_written_is_read() -> None:
    value: object = (0,)
    for _ in range(27):
        value = {1: value}
    meta = Meta(source={"deep": value})
    back, warnings = read_metadata({"mlarray": encode(meta)}, {})
    assert warnings == []
    assert back.source == meta.source


def test_metadata_too_large_to_be_read_again_is_not_written() -> None:
    meta = Meta(extra={"image": np.zeros(60_000_000, np.uint8)})
    with pytest.raises(MetadataError, match="too large to be read again"):
        encode(meta)


def test_twenty_thousand_boxes_are_written_and_read() -> None:
    boxes = [[[index, 1.5], [0, 1], [2, 3]] for index in range(20_000)]
    back, warnings = read_metadata({"mlarray": encode(Meta(bbox=boxes))}, {})
    assert warnings == []
    assert back.bbox.bboxes == boxes


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        pickle.dumps({"source": {}}),
        gzip.compress(json.dumps({"source": {}}).encode(), mtime=0),
        gzip.compress(pickle.dumps([1, 2]), mtime=0),
        gzip.compress(pickle.dumps("text"), mtime=0),
    ],
)
def test_what_is_no_gzipped_pickle_of_a_mapping_is_refused(payload: bytes) -> None:
    with pytest.raises(FormatError):
        decode(payload)
    meta, warnings = read_metadata({"mlarray": payload}, {})
    assert meta.is_default()
    assert len(warnings) == 1


@pytest.mark.parametrize("payload", [3, "text", [1], object(), {"source": {"a": object()}}])
def test_a_payload_of_another_type_costs_the_metadata_only(payload: object) -> None:
    meta, warnings = read_metadata({"mlarray": payload}, {})
    assert meta.is_default()
    assert len(warnings) == 1
