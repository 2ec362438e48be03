"""Axes are understood in every form a caller may write, and keep their meaning in the labels of files."""

import pickle

import pytest

from mlarray.axes import Axis, are_labelled, axes_from_labels, default_axes, parse_axes, spatial_mask
from mlarray.errors import UsageError


def test_letters_have_the_type_that_everybody_expects() -> None:
    axes = parse_axes("tczyx")
    assert [axis.type for axis in axes] == ["time", "channel", "space", "space", "space"]
    assert [axis.label for axis in axes] == ["temporal", "channel", "spatial_z", "spatial_y", "spatial_x"]
    assert spatial_mask(axes) == (False, False, True, True, True)


def test_the_forms_may_be_mixed() -> None:
    axes = parse_axes(
        [
            {"name": "t", "type": "time", "unit": "second", "step": 2.5},
            "channel",
            "spatial_z",
            Axis("depth", "space"),
            "q",
        ]
    )
    assert axes == (
        Axis("t", "time", "second", 2.5),
        Axis("c", "channel"),
        Axis("z", "space"),
        Axis("depth", "space"),
        Axis("q", "other"),
    )


def test_labels_without_a_letter_are_named_by_position() -> None:
    assert parse_axes(["non_spatial", "spatial", "spatial"]) == (
        Axis("d0", "other"),
        Axis("d1", "space"),
        Axis("d2", "space"),
    )


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("zyz", "z more than once"),
        (["channel", "c"], "c more than once"),
        ([3], "a name, a dictionary or an Axis, got 3"),
        ([""], "non-empty name"),
        ([{"type": "space"}], "has the keys name, type, unit and step"),
        ([{"name": "x", "scale": 2}], "has the keys name, type, unit and step"),
        ([{"name": "x", "type": "spacial"}], "allowed are space, time, channel"),
        ([{"name": "x", "unit": 3}], "unit of axis 'x' must be a string"),
        ([{"name": "x", "step": 2.0}], "belongs to the geometry"),
    ],
)
def test_what_is_no_axis_is_refused(axes: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_axes(axes)  # type: ignore[arg-type]


def test_a_dictionary_has_only_what_is_known() -> None:
    assert Axis("x").to_dict() == {"name": "x", "type": "space"}
    assert Axis("t", unit="second", step=3).to_dict() == {"name": "t", "type": "time", "unit": "second", "step": 3.0}


def test_without_labels_every_axis_is_spatial_and_none_is_called_x() -> None:
    assert axes_from_labels(None, None, 3) == default_axes(3)
    assert all(axis.is_spatial and axis.label == "spatial" for axis in default_axes(3))


def test_a_label_outside_the_vocabulary_is_a_non_spatial_axis_of_that_name() -> None:
    axes = axes_from_labels(["echo", "spatial_y", "spatial_x"], ["", "mm", "mm"], 3)
    assert axes[0] == Axis("echo", "other")
    assert axes[1].unit == "mm"


@pytest.mark.parametrize(
    "labels",
    [["channel", "channel"], ["c2", "channel", "channel"], ["d1", "spatial"], ["spatial", "d0"], ["c"] * 5],
)
def test_equal_labels_get_different_names(labels: list[str]) -> None:
    names = [axis.name for axis in axes_from_labels(labels, None, len(labels))]
    assert len(set(names)) == len(names)


def test_units_of_another_length_are_left_out_and_labels_of_another_length_refused() -> None:
    assert axes_from_labels(["spatial_x"], ["mm", "mm"], 1) == (Axis("x"),)
    with pytest.raises(UsageError, match="2 axis labels were given for an array of 3 axes"):
        axes_from_labels(["channel", "spatial"], None, 3)


def test_only_axes_about_which_nothing_is_known_count_as_unlabelled() -> None:
    assert not are_labelled(default_axes(3))
    assert are_labelled(parse_axes("zyx"))
    assert are_labelled(parse_axes(["depth", "d"]))
    assert are_labelled((Axis("d0", "channel"),))


def test_axes_are_values() -> None:
    axis = Axis("t", unit="second", step=1)
    assert pickle.loads(pickle.dumps(axis)) == axis
    assert hash(axis) == hash(Axis("t", "time", "second", 1.0))
