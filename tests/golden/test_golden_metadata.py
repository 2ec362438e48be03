"""Is the metadata of every file that older releases wrote read as they meant it?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import blosc2
import pytest

from mlarray.metadata import Meta, decode, encode, read_metadata, upgrade

SAMPLES = Path(__file__).parent / "mla_samples"
EXPECTED: dict[str, dict[str, Any]] = json.loads((SAMPLES / "expected.json").read_text())
READABLE = sorted(name for name in EXPECTED if "HOSTILE" not in name)
LABELLED_BY_CHANNEL_AXIS = {
    "history/hist_pre-dbf1bf3_channel.mb2nd",
    "history/hist_v0.0.25_channel.mla",
    "history/hist_v0.0.31_channel.mla",
}


def layers(name: str) -> tuple[dict[str, object], dict[str, object]]:
    array = blosc2.open(str(SAMPLES / name), mode="r")  # kept: iterating the schunk of a freed array crashes
    schunk = array.schunk
    return {key: schunk.vlmeta[key] for key in schunk.vlmeta}, {key: schunk.meta[key] for key in schunk.meta}


def payload_of(name: str) -> object:
    vlmeta, fixed = layers(name)
    return vlmeta.get("mlarray", fixed.get("med_blosc2"))


def test_every_sample_has_an_expectation() -> None:
    files = {path.relative_to(SAMPLES).as_posix() for path in SAMPLES.rglob("*") if path.suffix in (".mla", ".mb2nd")}
    assert files == set(EXPECTED)
    assert len(READABLE) == 34


@pytest.mark.parametrize("name", READABLE)
def test_a_payload_decodes_to_the_builtins_its_writer_meant(name: str) -> None:
    assert decode(payload_of(name)) == EXPECTED[name]["payload_as_builtins"]


@pytest.mark.parametrize("name", READABLE)
def test_a_decoded_payload_has_no_class_but_builtins(name: str) -> None:
    def kinds(value: object) -> set[type]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return {type(value)}.union(*(kinds(item) for item in inner))

    assert kinds(decode(payload_of(name))) <= {dict, list, str, int, float, bool, type(None)}


@pytest.mark.parametrize("name", READABLE)
def test_reading_a_sample_warns_of_nothing_and_keeps_every_value(name: str) -> None:
    meta, warnings = read_metadata(*layers(name))
    assert warnings == []
    stored = EXPECTED[name]["payload_as_builtins"]
    source = next((stored[key] for key in ("source", "original", "image") if key in stored), None) or {}
    assert meta.source == source.get("data", source)
    extra = stored["extra"]
    assert meta.extra == extra.get("data", extra)
    for field in ("spacing", "origin", "direction", "affine", "shape"):
        assert getattr(meta.spatial, field) == stored["spatial"].get(field)
    sizes = stored.get("blosc2", stored.get("_blosc2"))
    for field in ("chunk_size", "block_size", "patch_size", "cparams", "dparams"):
        assert getattr(meta.blosc2, field) == sizes.get(field)
    stats = {key: value for key, value in (stored["stats"] or {}).items() if value is not None}
    assert meta.stats == stats
    boxes = stored["bbox"] if isinstance(stored["bbox"], dict) else {"bboxes": stored["bbox"]}
    assert meta.bbox.bboxes == boxes["bboxes"]
    assert meta.bbox.labels == boxes.get("labels")
    flag = stored["is_seg"]
    assert meta.is_seg == (flag["is_seg"] if isinstance(flag, dict) else flag)
    assert meta._has_array == (name != "metadata_only.mla")
    assert meta._mlarray_version == "v0"


@pytest.mark.parametrize("name", READABLE)
def test_labels_are_those_stored_or_made_from_the_channel_axis(name: str) -> None:
    meta, _ = read_metadata(*layers(name))
    stored = EXPECTED[name]["payload_as_builtins"]["spatial"]
    if name in LABELLED_BY_CHANNEL_AXIS:
        assert stored["channel_axis"] == 0
        assert meta.spatial.axis_labels == ["channel", "spatial", "spatial", "spatial"]
        assert meta.spatial._num_spatial_axes == 3
    else:
        assert meta.spatial.axis_labels == stored.get("axis_labels")
        assert meta.spatial._num_non_spatial_axes == stored.get("_num_non_spatial_axes")


@pytest.mark.parametrize("name", [name for name in READABLE if "meta_mapping" in EXPECTED[name]])
def test_a_file_of_the_newest_release_gives_the_mapping_that_release_gives(name: str) -> None:
    meta, _ = read_metadata(*layers(name))
    theirs = EXPECTED[name]["meta_mapping"] | {"_mlarray_version": {"mlarray_version": "v0"}}
    assert meta.to_mapping() == theirs
    shown = EXPECTED[name]["meta_plain_include_none"]
    assert {key: meta.to_plain(include_none=True)[key] for key in shown} == shown


@pytest.mark.parametrize("name", READABLE)
def test_what_was_read_survives_being_written_and_read_again(name: str) -> None:
    meta, _ = read_metadata(*layers(name))
    again, warnings = read_metadata({"mlarray": encode(meta)}, {})
    assert warnings == []
    assert again == meta


@pytest.mark.parametrize("name", READABLE)
def test_upgrading_an_upgraded_payload_changes_nothing(name: str) -> None:
    once = upgrade(decode(payload_of(name)))
    assert upgrade(once) == once
    assert list(once) == list(Meta().to_mapping())
