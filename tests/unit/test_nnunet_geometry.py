"""Where preprocessed voxels lie, and when that is not known."""

from __future__ import annotations

import numpy as np
import pytest

from mlarray.formats.nnunet_geometry import placed

PROPERTIES = {
    "sitk_stuff": {"spacing": (1.0, 2.0, 4.0), "origin": (10.0, 20.0, 30.0), "direction": (1, 0, 0, 0, 1, 0, 0, 0, 1)},
    "spacing": [4.0, 2.0, 1.0],
    "shape_before_cropping": (12, 20, 30),
    "bbox_used_for_cropping": [[2, 10], [0, 20], [5, 25]],
    "shape_after_cropping_and_before_resampling": (8, 20, 20),
}
SAME = (2, 8, 20, 20)


def without(*names: str, **changes: object) -> dict[str, object]:
    return {name: value for name, value in PROPERTIES.items() if name not in names} | changes


def test_a_crop_moves_the_origin_and_keeps_the_spacing() -> None:
    found = placed(PROPERTIES, SAME, (0, 1, 2))
    assert found.geometry is not None
    assert found.geometry.spacing == (4.0, 2.0, 1.0)
    assert found.geometry.origin == (15.0, 20.0, 38.0)
    assert found.notes == ()


def test_resampling_keeps_the_outer_edges_not_the_centres() -> None:
    found = placed(PROPERTIES, (2, 16, 10, 25), (0, 1, 2)).geometry
    assert found is not None
    assert found.spacing == (2.0, 4.0, 0.8)
    # The edge of the crop along z is 30 + 2 * 4 - 2 = 36; half a new voxel further is the first centre.
    np.testing.assert_allclose(found.origin, (15 - 0.5 + 0.4, 20 - 1 + 2, 36 + 1))


def test_transposed_axes_are_named_and_take_their_columns_with_them() -> None:
    turned = without(
        shape_before_cropping=(30, 12, 20),
        bbox_used_for_cropping=[[5, 25], [2, 10], [0, 20]],
        shape_after_cropping_and_before_resampling=(20, 8, 20),
    )
    found = placed(turned, (1, 20, 8, 20), (2, 0, 1))
    assert [axis.name for axis in found.axes] == ["c", "x", "z", "y"]
    assert found.geometry is not None
    assert found.geometry.linear.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, 4.0, 0.0]]
    assert found.geometry.origin == (15.0, 20.0, 38.0)


def test_affines_of_nibabel_are_ras_with_columns_x_y_z_and_the_reoriented_one_counts() -> None:
    affine = np.array([[-1.0, 0, 0, -10], [0, -2.0, 0, -20], [0, 0, 4.0, 30], [0, 0, 0, 1]])
    expected = placed(PROPERTIES, SAME, (0, 1, 2)).geometry
    stuff = {"original_affine": affine}
    assert placed(without("sitk_stuff", nibabel_stuff=stuff), SAME, (0, 1, 2)).geometry == expected
    stuff = {"original_affine": np.eye(4), "reoriented_affine": affine}
    assert placed(without("sitk_stuff", nibabel_stuff=stuff), SAME, (0, 1, 2)).geometry == expected


def test_a_spacing_alone_is_kept_as_the_only_part_that_is_known() -> None:
    found = placed(without("sitk_stuff"), (2, 16, 20, 20), (0, 1, 2)).geometry
    assert found is not None
    assert found.known == {"spacing"}
    assert found.spacing == (2.0, 2.0, 1.0)


def test_a_fourth_axis_apart_from_space_is_left_out() -> None:
    four = {
        "spacing": (1.0, 2.0, 4.0, 1.0),
        "origin": (10.0, 20.0, 30.0, 0.0),
        "direction": tuple(np.eye(4).ravel().tolist()),
    }
    found = placed(without(sitk_stuff=four), SAME, (0, 1, 2)).geometry
    assert found == placed(PROPERTIES, SAME, (0, 1, 2)).geometry


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        (without("sitk_stuff", spacing=[999, 1, 1]), "knew no voxel size"),
        (without("sitk_stuff", spacing=(1, 1, 1)), "knew no voxel size"),
        (without(sitk_stuff={"spacing": (1.0, 2.0), "origin": (0, 0), "direction": (1, 0, 0, 1)}), "two axes"),
        (without("shape_before_cropping"), "no shape_before_cropping"),
        (without("bbox_used_for_cropping"), "no bbox_used_for_cropping"),
        (without(bbox_used_for_cropping=[[2, 11], [0, 20], [5, 25]]), "box of the crop does not fit"),
        (without(bbox_used_for_cropping=[[6, 14], [0, 20], [5, 25]]), "outside the image"),
        (without(bbox_used_for_cropping="abc"), "could not convert"),
        (without(spacing=[4.0, 2.0, 1.5]), "twice and differs"),
        (without(spacing=[4.0, 2.0]), "3 numbers were expected"),
        (without(spacing=[4.0, 2.0, float("nan")]), "3 numbers were expected"),
        (without("sitk_stuff", nibabel_stuff={}), "no matrix of 4 by 4"),
        (without("sitk_stuff", nibabel_stuff={"original_affine": np.zeros((4, 4))}), "last row"),
        (without(sitk_stuff=PROPERTIES["sitk_stuff"] | {"direction": (0,) * 9}), "singular"),  # type: ignore[operator]
        (without(sitk_stuff=PROPERTIES["sitk_stuff"] | {"direction": (0,) * 4}), "reshape"),  # type: ignore[operator]
        (without(sitk_stuff=PROPERTIES["sitk_stuff"] | {"origin": 3}), "three axes"),  # type: ignore[operator]
    ],
)
def test_what_the_properties_do_not_tell_stays_unknown_with_the_reason(properties: dict, why: str) -> None:
    found = placed(properties, SAME, (0, 1, 2))
    assert found.geometry is None
    assert [note.code for note in found.notes] == ["geometry-unknown"]
    assert why in found.notes[0].message


def test_a_mixed_fourth_axis_is_unknown() -> None:
    direction = np.eye(4)
    direction[0, 3] = 0.5
    four = {"spacing": (1.0, 2.0, 4.0, 1.0), "origin": (0.0,) * 4, "direction": direction.ravel()}
    assert "mixed with space" in placed(without(sitk_stuff=four), SAME, (0, 1, 2)).notes[0].message
