"""``image.meta`` behaves as users of the 0.0.x releases know it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from mlarray.errors import MetadataError
from mlarray.metadata import (
    AxisLabelEnum,
    Meta,
    MetaBbox,
    MetaBlosc2,
    MetaExtra,
    MetaHasArray,
    MetaImageFormat,
    MetaIsSeg,
    MetaSource,
    MetaSpatial,
    MetaStatistics,
    MetaVersion,
    update_managed,
)

NAMES = [
    "source", "extra", "spatial", "stats", "bbox", "is_seg", "blosc2", "_has_array", "_image_meta_format",
    "_mlarray_version",
]  # fmt: skip


def test_source_is_used_like_a_dict() -> None:
    meta = Meta()
    meta.source["a"] = 1
    meta.source.update({"b": [1, {"c": 2}]})
    assert str(meta.source) == "{'a': 1, 'b': [1, {'c': 2}]}"
    assert repr(meta.source) == "MetaSource(data={'a': 1, 'b': [1, {'c': 2}]})"
    assert (len(meta.source), list(meta.source), "a" in meta.source, bool(meta.source)) == (2, ["a", "b"], True, True)
    assert (meta.source["a"], meta.source.get("z", 0), meta.source.pop("a")) == (1, 0, 1)
    assert list(meta.source.items()) == [("b", [1, {"c": 2}])]
    meta.source["b"][1]["c"] = 3
    assert dict(meta.source) == {"b": [1, {"c": 3}]}
    del meta.source["b"]
    assert not meta.source
    with pytest.raises(KeyError):
        meta.source["b"]


def test_parts_compare_with_raw_values_and_with_their_like() -> None:
    meta = Meta(source={"a": 1}, is_seg=True, spatial={"spacing": [1, 2]})
    assert meta.source == {"a": 1}
    assert meta.source == MetaSource({"a": 1})
    assert meta.source != MetaExtra({"a": 1})
    assert meta.is_seg == True  # noqa: E712
    assert meta.is_seg != False  # noqa: E712
    assert bool(meta.is_seg)
    assert Meta().is_seg == None  # noqa: E711
    assert meta.spatial == MetaSpatial(spacing=[1, 2])
    assert meta == Meta(source={"a": 1}, is_seg=True, spatial={"spacing": [1, 2]})
    assert meta != Meta()
    with pytest.raises(TypeError):
        hash(meta)


def test_is_seg_is_assigned_and_read() -> None:
    meta = Meta()
    meta.is_seg = False
    assert repr(meta.is_seg) == "MetaIsSeg(is_seg=False)"
    assert str(meta.is_seg) == "False"
    meta.is_seg = np.bool_(True)
    assert meta.is_seg.value is True
    meta.is_seg.set(None)
    assert meta.is_seg.is_seg is None
    with pytest.raises(MetadataError, match=r"meta\.is_seg is 1, True or False was expected"):
        meta.is_seg = 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"a": 1}, {"a": 1}),
        ({"data": {"a": 1}}, {"a": 1}),
        ({"data": {"a": 1}, "b": 2}, {"data": {"a": 1}, "b": 2}),
        (None, {}),
        ({}, {}),
        (MetaSource({"a": 1}), {"a": 1}),
    ],
)
def test_source_is_given_bare_or_wrapped(given: object, kept: dict[str, object]) -> None:
    meta = Meta()
    meta.source = given
    assert meta.source.data == kept


def test_a_value_that_cannot_be_stored_is_refused_where_it_is_set() -> None:
    meta = Meta(source={"a": 1})
    with pytest.raises(MetadataError, match=r"meta.source\['bad'\] is a object, which cannot be stored"):
        meta.source["bad"] = object()
    with pytest.raises(MetadataError, match=r"meta.extra\['bad'\]"):
        meta.update_extra({"bad": object()})
    assert meta.source == {"a": 1}
    assert meta.extra == {}
    meta.source["nan"] = float("nan")
    meta.source["raw"] = b"\xe9\xff"
    meta.source["scalar"] = np.float32(1)
    assert list(meta.source) == ["a", "nan", "raw", "scalar"]


def test_geometry_is_coerced_to_plain_lists_and_numbers() -> None:
    spatial = MetaSpatial(spacing=(1, np.float32(2), np.int64(3)), direction=np.eye(3))
    spatial.origin = np.array([1.0, 2.0, 3.0])
    assert spatial.spacing == [1, 2.0, 3]
    assert [type(item) for item in spatial.spacing] == [int, float, int]
    assert spatial.direction == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert type(spatial.origin) is list


def test_labels_and_frames_take_enum_members_or_any_text() -> None:
    spatial = MetaSpatial(axis_labels=[MetaSpatial.AxisLabel.channel, "spatial_y", "spatial", "lead"])
    assert spatial.axis_labels == ["channel", "spatial_y", "spatial", "lead"]
    assert {type(label) for label in spatial.axis_labels} == {str}
    assert (spatial._num_spatial_axes, spatial._num_non_spatial_axes) == (2, 2)
    spatial.coord_system = MetaSpatial.CoordSystem.RAS_PLUS
    assert spatial.coord_system == "RAS+"
    spatial.coord_system = "scanner"
    assert spatial.coord_system == "scanner"
    spatial.axis_labels = None
    assert (spatial._num_spatial_axes, spatial._num_non_spatial_axes) == (None, None)
    assert str(AxisLabelEnum.channel) == "AxisLabelEnum.channel"
    assert [member.value for member in MetaSpatial.CoordSystem] == ["RAS", "LPS", "RAS+", "LPS+", "unknown", "other"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("spacing", ["a", 1, 1], "meta.spatial.spacing[0] is 'a', a number was expected"),
        ("spacing", [True, 1, 1], "meta.spatial.spacing[0] is True, a number was expected"),
        ("spacing", 3, "meta.spatial.spacing is 3, a list of numbers was expected"),
        ("spacing", [1, 2], "meta.spatial.spacing has 2 entries, 3 were expected (one per spatial axis)"),
        ("direction", [[1, 0], [0]], "meta.spatial.direction is not square: 2 rows with [2, 1]"),
        ("direction", np.eye(2), "meta.spatial.direction has 2 rows, 3 were expected (one per spatial axis)"),
        ("affine", np.eye(4), "meta.spatial.affine is set together with origin; only one of both can be stored"),
        ("axis_labels", ["channel"], "meta.spatial.axis_labels has 1 entries, 4 were expected (one per axis)"),
        ("axis_labels", "zyx", "meta.spatial.axis_labels is 'zyx', a list of labels was expected"),
        ("axis_labels", [1, 2, 3, 4], "meta.spatial.axis_labels[0] is 1, text was expected"),
        ("axis_units", ["mm"], "meta.spatial.axis_units has 1 entries, 4 were expected (one per axis)"),
        ("coord_system", 3, "meta.spatial.coord_system is 3, text was expected"),
    ],
)
def test_a_wrong_assignment_is_refused_and_changes_nothing(field: str, value: object, message: str) -> None:
    labels = ["channel", "spatial_z", "spatial_y", "spatial_x"]
    spatial = MetaSpatial(origin=[1, 2, 3], axis_labels=labels, shape=[2, 5, 5, 5])
    before = spatial.to_mapping()
    with pytest.raises(MetadataError) as caught:
        setattr(spatial, field, value)
    assert message in caught.value.problems
    assert spatial.to_mapping() == before


def test_errors_of_assignment_are_also_those_0_0_x_raised() -> None:
    with pytest.raises(TypeError):
        Meta().stats.min = "a"
    with pytest.raises(ValueError, match="number"):
        Meta().stats.min = "a"
    with pytest.raises(KeyError, match="has no field 'foo'"):
        Meta.from_mapping({"foo": 1})
    with pytest.raises(KeyError, match="has no field 'spaing'"):
        Meta().spatial = {"spaing": [1]}
    with pytest.raises(TypeError, match="int was given"):
        Meta.from_mapping(3)
    with pytest.raises(AttributeError, match="has no field 'foo'"):
        Meta().foo = 1


@pytest.mark.parametrize("name", ["blosc2", "_has_array", "_image_meta_format", "_mlarray_version"])
def test_what_the_array_manages_cannot_be_assigned(name: str) -> None:
    with pytest.raises(AttributeError, match=f"meta.{name} is managed by the array and is read-only"):
        setattr(Meta(), name, None)


def test_managed_fields_and_their_contents_are_read_only() -> None:
    meta = Meta(blosc2={"chunk_size": (1, 2), "cparams": {"clevel": 8}}, spatial={"shape": [1, 2]}, _has_array=True)
    with pytest.raises(AttributeError, match=r"meta\.blosc2.chunk_size is managed"):
        meta.blosc2.chunk_size = [3]
    with pytest.raises(AttributeError, match=r"meta\.spatial.shape is managed"):
        meta.spatial.shape = [3]
    with pytest.raises(AttributeError, match=r"meta\._has_array is managed"):
        meta._has_array.set(False)
    for change in (
        lambda: meta.blosc2.chunk_size.append(3),
        lambda: meta.spatial.shape.__setitem__(0, 3),
        lambda: meta.blosc2.cparams.update(a=1),
        lambda: meta.blosc2.cparams.__setitem__("a", 1),
    ):
        with pytest.raises(AttributeError, match="read-only"):
            change()
    assert meta.blosc2.chunk_size == [1, 2]
    assert meta.blosc2.cparams == {"clevel": 8}


def test_the_array_changes_managed_fields_through_one_function() -> None:
    meta = Meta()
    update_managed(meta, shape=(4, 5), blosc2={"chunk_size": [4, 5]}, has_array=True, image_meta_format="nifti")
    assert (meta.spatial.shape, meta.blosc2.chunk_size) == ([4, 5], [4, 5])
    assert meta._has_array == True  # noqa: E712
    assert meta._image_meta_format == "nifti"
    assert meta._mlarray_version == None  # noqa: E711
    update_managed(meta, shape=None)
    assert meta.spatial.shape is None
    assert meta.blosc2.chunk_size == [4, 5]
    meta.spatial.spacing = [1, 1]
    with pytest.raises(MetadataError, match="spacing has 2 entries, 3 were expected"):
        update_managed(meta, shape=(4, 5, 6))


def test_printing_shows_what_is_set() -> None:
    meta = Meta(source={"a": 1}, is_seg=False, stats={"min": 0})
    assert str(meta) == "{'source': {'a': 1}, 'stats': {'min': 0}, 'is_seg': False}"
    assert str(Meta()) == "{}"
    assert list(Meta().to_plain(include_none=True).items()) == [(name, None) for name in NAMES]
    assert repr(MetaBbox([[[0, 1]]])) == "MetaBbox(bboxes=[[[0, 1]]], scores=None, labels=None)"
    assert repr(Meta()).startswith("Meta(source=MetaSource(data={}), extra=MetaExtra(data={}), spatial=MetaSpatial(")


def test_mappings_have_every_field_and_make_the_same_object() -> None:
    meta = Meta(source={"a": [1]}, spatial={"spacing": [1, 2]}, _has_array=True, blosc2={"chunk_size": [3, 4]})
    mapping = meta.to_mapping()
    assert list(mapping) == NAMES
    assert mapping["source"] == {"data": {"a": [1]}}
    assert mapping["is_seg"] == {"is_seg": None}
    assert type(mapping["blosc2"]["chunk_size"]) is list
    mapping["source"]["data"]["a"].append(2)
    assert meta.source == {"a": [1]}
    assert Meta.from_mapping(meta.to_mapping()) == meta
    assert Meta.from_mapping(meta.to_mapping(include_none=False)) == meta
    assert meta.to_mapping(include_none=False)["spatial"] == {"spacing": [1, 2]}


def test_ensure_passes_objects_through_and_makes_the_rest() -> None:
    meta = Meta()
    assert Meta.ensure(meta) is meta
    assert Meta.ensure(None) == Meta()
    assert Meta.ensure({"source": {"a": 1}}).source == {"a": 1}
    assert MetaIsSeg.ensure(True).value is True
    assert MetaImageFormat.ensure("nrrd") == "nrrd"
    assert MetaVersion("v0") == "v0"
    assert MetaHasArray.ensure({"has_array": True}).value is True
    assert MetaStatistics.ensure({"min": np.float32(2)}).min == 2.0
    assert MetaBlosc2(chunk_size=np.array([1, 2])).chunk_size == [1, 2]
    assert MetaBbox.ensure([[[0, 1]]]).bboxes == [[[0, 1]]]


def test_setters_return_the_object_and_can_be_chained() -> None:
    meta = Meta()
    chained = meta.set_source({"a": 1}).set_extra({"b": 2}).set_spatial({"spacing": [1]}).set_stats({"min": 0})
    assert chained.set_is_seg(True).set_bbox([[[0, 1]]]).update_source({"c": 3}).update_extra({"d": 4}) is meta
    assert meta.to_plain() == {
        "source": {"a": 1, "c": 3},
        "extra": {"b": 2, "d": 4},
        "spatial": {"spacing": [1]},
        "stats": {"min": 0},
        "bbox": {"bboxes": [[[0, 1]]]},
        "is_seg": True,
    }


def test_boxes_are_added_with_score_and_label_or_without() -> None:
    meta = Meta().add_bbox(np.array([[1, 2], [3, 4]]), 0.5, "node").add_bbox([[1, 2], [3, 4]], score=1, label=7)
    assert meta.bbox.bboxes == [[[1, 2], [3, 4]], [[1, 2], [3, 4]]]
    assert (meta.bbox.scores, meta.bbox.labels) == ([0.5, 1], ["node", 7])
    with pytest.raises(MetadataError, match="needs a label too"):
        meta.add_bbox([[1, 2], [3, 4]], score=1)
    with pytest.raises(MetadataError, match="has 3 entries, 2 were expected"):
        meta.add_bbox([[1, 2, 3]], score=1, label="x")
    with pytest.raises(MetadataError, match="have no scores"):
        Meta().add_bbox([[1, 2]]).add_bbox([[1, 2]], score=1)
    assert len(meta.bbox.bboxes) == 2


def test_copying_fills_what_is_unset_and_overwrites_on_request() -> None:
    full = Meta(
        source={"a": 1}, extra={"e": [1]}, is_seg=True, spatial={"spacing": [1, 1], "shape": [4, 4]}, _has_array=True
    )
    part = Meta(source={"x": 1}, spatial={"origin": [0, 0]})
    part.copy_from(full)
    assert part.to_plain() == {
        "source": {"x": 1},
        "extra": {"e": [1]},
        "spatial": {"spacing": [1, 1], "origin": [0, 0]},
        "is_seg": True,
    }
    part.copy_from(full, overwrite=True)
    assert part.to_plain() == {"source": {"a": 1}, "extra": {"e": [1]}, "spatial": {"spacing": [1, 1]}, "is_seg": True}
    part.extra["e"].append(2)
    assert full.extra == {"e": [1]}
    with pytest.raises(TypeError):
        part.copy_from({"source": {}})  # type: ignore[arg-type]


def test_copying_contradictory_geometry_changes_nothing() -> None:
    spatial = MetaSpatial(spacing=[1, 1])
    with pytest.raises(MetadataError, match="affine is set together with spacing"):
        spatial.copy_from(MetaSpatial(affine=np.eye(3), coord_system="LPS"))
    assert spatial == MetaSpatial(spacing=[1, 1])


def test_copying_labels_and_geometry_together_fits_the_shape() -> None:
    target = Meta(spatial={"shape": [2, 4, 4]})
    target.copy_from(Meta(spatial={"spacing": [1, 1], "axis_labels": ["channel", "spatial_y", "spatial_x"]}))
    assert target.spatial.spacing == [1, 1]
    assert target.spatial._num_spatial_axes == 2


def test_reset_keeps_what_the_array_manages() -> None:
    meta = Meta(source={"a": 1}, spatial={"spacing": [1, 1], "shape": [4, 4]}, is_seg=True, _has_array=True)
    meta.reset()
    assert meta.to_plain() == {"spatial": {"shape": [4, 4]}, "_has_array": True}
    assert Meta().is_default()
    assert not meta.is_default()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda meta: pickle.loads(pickle.dumps(meta))])
def test_copies_and_pickles_are_equal_and_stay_guarded(duplicate: object) -> None:
    meta = Meta(source={"a": 1}, spatial={"shape": [2, 3]}, blosc2={"chunk_size": [2, 3], "cparams": {"clevel": 5}})
    other = duplicate(meta)  # type: ignore[operator]
    assert other == meta
    with pytest.raises(AttributeError, match="read-only"):
        other.blosc2.chunk_size.append(1)
    with pytest.raises(AttributeError, match="read-only"):
        other._has_array = True


def test_importing_the_metadata_loads_no_storage_or_imaging_library() -> None:
    code = (
        "import sys, mlarray.metadata\n"
        "print([m for m in ('blosc2', 'nibabel', 'SimpleITK', 'pydicom', 'msgpack', 'h5py') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
