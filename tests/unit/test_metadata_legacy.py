"""Every layout of the past is read as today's; what is unknown is kept."""

from __future__ import annotations

from typing import Any

import pytest

from mlarray.metadata import Meta, encode, read_metadata, upgrade


def read(payload: dict[str, Any], **fixed: object) -> tuple[Meta, list[str]]:
    return read_metadata({"mlarray": payload}, fixed)


def test_without_any_metadata_everything_is_unset() -> None:
    assert read_metadata({}, {"b2nd": [0, 1, [3]]}) == (Meta(), [])
    assert read_metadata({"other": b"x"}, {}) == (Meta(), [])


def test_the_payload_of_the_current_place_wins_over_the_ancient_one() -> None:
    meta, _ = read_metadata({"mlarray": {"is_seg": True}}, {"med_blosc2": {"is_seg": False}})
    assert meta.is_seg == True  # noqa: E712
    meta, _ = read_metadata({}, {"med_blosc2": {"is_seg": False, "_med_blosc2_version": "v0"}})
    assert meta.is_seg == False  # noqa: E712
    assert meta._mlarray_version == "v0"
    assert meta._has_array == True  # noqa: E712


@pytest.mark.parametrize("old", ["image", "original"])
def test_source_had_other_names(old: str) -> None:
    assert read({old: {"Modality": "CT"}})[0].source == {"Modality": "CT"}
    assert read({old: None})[0].source == {}


def test_a_bare_image_may_have_a_key_called_data() -> None:
    meta, _ = read({"image": {"data": {"a": 1}}, "extra": {"data": 3}})
    assert meta.source == {"data": {"a": 1}}
    assert meta.extra == {"data": 3}
    assert read({"original": {"data": {"a": 1}}})[0].source == {"a": 1}


@pytest.mark.parametrize("wrapped", [True, False])
def test_single_values_come_bare_or_wrapped(wrapped: bool) -> None:
    bare: dict[str, object] = {
        "is_seg": True,
        "_has_array": False,
        "_image_meta_format": "nifti",
        "_mlarray_version": "v0",
    }
    payload = {key: {key.removeprefix("_"): value} for key, value in bare.items()} if wrapped else bare
    meta, warnings = read(payload)
    assert warnings == []
    assert (meta.is_seg, meta._has_array, meta._image_meta_format, meta._mlarray_version) == (
        True,
        False,
        "nifti",
        "v0",
    )


def test_missing_parts_and_parts_that_are_none_are_unset() -> None:
    meta, warnings = read({"spatial": None, "stats": None, "bbox": None, "is_seg": None, "extra": None})
    assert warnings == []
    assert meta.to_plain() == {"_has_array": True}


def test_boxes_were_a_bare_list() -> None:
    assert read({"bbox": [[[0, 1], [2, 3]]]})[0].bbox.bboxes == [[[0, 1], [2, 3]]]


@pytest.mark.parametrize(
    ("payload", "fixed", "labels"),
    [
        ({"spatial": {"channel_axis": 0, "shape": [2, 4, 4]}}, {}, ["channel", "spatial", "spatial"]),
        ({"spatial": {"channel_axis": -1, "shape": [4, 4, 2]}}, {}, ["spatial", "spatial", "channel"]),
        ({"spatial": {"channel_axis": 1}}, {"b2nd": [0, 2, [4, 2]]}, ["spatial", "channel"]),
        ({"spatial": {"channel_axis": 0}, "_blosc2": {"chunk_size": [2, 4]}}, {}, ["channel", "spatial"]),
        ({"spatial": {"channel_axis": None, "shape": [4]}}, {}, None),
    ],
)
def test_a_channel_axis_becomes_a_label(
    payload: dict[str, Any], fixed: dict[str, object], labels: list[str] | None
) -> None:
    meta, warnings = read(payload, **fixed)
    assert warnings == []
    assert meta.spatial.axis_labels == labels
    assert meta.extra == {}


@pytest.mark.parametrize("axis", [7, "0", 1.5])
def test_a_channel_axis_that_does_not_exist_is_kept_as_unknown(axis: object) -> None:
    meta, _ = read({"spatial": {"channel_axis": axis, "shape": [2, 3]}})
    assert meta.spatial.axis_labels is None
    assert meta.extra == {"mlarray_unknown": {"spatial.channel_axis": axis}}


def test_unknown_keys_are_kept_and_survive_being_saved() -> None:
    payload = {
        "source": {"data": {"a": 1}},
        "extra": {"data": {"split": "train"}},
        "future": {"x": [1, 2]},
        "spatial": {"spacing": [1, 2], "curvature": 3},
        "stats": {"kurtosis": 4.5},
        "_mlarray_version": "v0",
        5: "five",
    }
    meta, warnings = read(payload)  # type: ignore[arg-type]
    assert warnings == []
    kept = {"5": "five", "future": {"x": [1, 2]}, "spatial.curvature": 3, "stats.kurtosis": 4.5}
    assert meta.extra == {"split": "train", "mlarray_unknown": kept}
    again, _ = read_metadata({"mlarray": encode(meta)}, {})
    assert again == meta


def test_unknown_keys_join_those_of_an_earlier_reading() -> None:
    meta, _ = read({"extra": {"data": {"mlarray_unknown": {"a": 1}}}, "b": 2})
    assert meta.extra == {"mlarray_unknown": {"a": 1, "b": 2}}


def test_a_renamed_part_beside_the_current_one_is_unknown() -> None:
    meta, _ = read({"source": {"data": {"a": 1}}, "original": {"data": {"b": 2}}})
    assert meta.source == {"a": 1}
    assert meta.extra == {"mlarray_unknown": {"original": {"data": {"b": 2}}}}


def test_a_field_that_does_not_fit_costs_only_itself() -> None:
    meta, warnings = read(
        {
            "source": {"data": {"a": 1}},
            "spatial": {"spacing": [1, "x"], "origin": [0, 0], "shape": [4, 4]},
            "is_seg": "maybe",
            "stats": 5,
        }
    )
    assert warnings == [
        "meta.spatial.spacing[1] is 'x', a number was expected; the field is left out",
        "meta.is_seg is 'maybe', True or False was expected; the field is left out",
    ]
    assert (meta.source, meta.spatial.origin, meta.spatial.spacing) == ({"a": 1}, [0, 0], None)
    assert meta.extra == {"mlarray_unknown": {"stats": 5, "spatial.spacing": [1, "x"], "is_seg": "maybe"}}


def test_of_contradictory_geometry_the_affine_is_kept() -> None:
    affine = [[2, 0, 0], [0, 2, 0], [0, 0, 1]]
    meta, warnings = read({"spatial": {"spacing": [1, 1], "affine": affine, "origin": [1, 2, 3]}})
    assert meta.spatial.affine == affine
    assert (meta.spatial.spacing, meta.spatial.origin) == (None, None)
    assert len(warnings) == 2
    assert meta.extra == {"mlarray_unknown": {"spatial.spacing": [1, 1], "spatial.origin": [1, 2, 3]}}


def test_non_finite_geometry_is_read_and_only_refused_when_written() -> None:
    meta, warnings = read({"spatial": {"origin": [float("inf"), 0.0]}})
    assert warnings == []
    assert meta.spatial.origin == [float("inf"), 0.0]


def test_upgrading_leaves_the_payload_alone() -> None:
    payload = {"image": {"a": 1}, "spatial": {"channel_axis": 0, "shape": [2, 3]}, "extra": {}, "odd": 1}
    before = repr(payload)
    result = upgrade(payload)
    assert repr(payload) == before
    assert result["spatial"]["axis_labels"] == ["channel", "spatial"]
    assert result["extra"] == {"data": {"mlarray_unknown": {"odd": 1}}}
