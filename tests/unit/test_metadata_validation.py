"""Everything that is wrong with metadata is found, and reported together."""

from __future__ import annotations

import numpy as np
import pytest

from mlarray.errors import MetadataError
from mlarray.metadata import Meta, encode, find_problems, validate

LABELS = ["channel", "spatial_z", "spatial_y", "spatial_x"]


def spatial(**fields: object) -> Meta:
    return Meta(spatial=fields)


def test_valid_metadata_has_no_problems() -> None:
    meta = Meta(
        spatial={"spacing": [1, 2.0, 3], "origin": [0, 0, 0], "direction": np.eye(3), "axis_labels": LABELS},
        bbox={
            "bboxes": [[[0, 1], [0, 1], [0, 1]], [[0, 1], [0, 1], [0, 1], [0, 1]]],
            "scores": [1, 2],
            "labels": ["a", 1],
        },
        stats={"mean": float("nan"), "max": float("inf")},
        blosc2={"chunk_size": [1, 4, 4, 4], "block_size": [1, 2, 2, 2], "patch_size": [4, 4, 4]},
    )
    assert find_problems(meta, shape=(2, 4, 4, 4)) == []
    assert validate(meta, ndim=4, spatial_ndim=3) is None
    assert find_problems(Meta(), shape=(3,)) == []


def test_a_number_spoiled_in_place_is_found() -> None:
    meta = spatial(spacing=[1.0, 1.0, 1.0])
    meta.spatial.spacing[1] = "oops"
    assert find_problems(meta) == ["meta.spatial.spacing[1] is 'oops', a number was expected"]


def test_all_problems_are_raised_as_one_error() -> None:
    meta = Meta(spatial={"spacing": [1.0, 1.0, 1.0], "origin": [0.0, 0.0, 0.0]}, source={"a": []}, is_seg=True)
    meta.spatial.spacing[0] = None
    meta.spatial.origin[2] = float("inf")
    meta.source["a"].append(object())
    meta.bbox = {"bboxes": [[[0, 1]]]}
    with pytest.raises(MetadataError) as caught:
        validate(meta, ndim=3)
    assert caught.value.problems == (
        "meta.source['a'][0] is a object, which cannot be stored as metadata",
        "meta.spatial.spacing[0] is None, a number was expected",
        "meta.spatial.origin[2] is inf, a finite number was expected",
        "meta.bbox.bboxes[0] has 1 axes, 3 were expected",
    )
    assert caught.value.hint == "Correct the fields named, or set them to None."


@pytest.mark.parametrize(
    ("meta", "context", "problem"),
    [
        (
            spatial(spacing=[1, 1]),
            {"ndim": 3},
            "meta.spatial.spacing has 2 entries, 3 were expected (one per spatial axis)",
        ),
        (
            spatial(spacing=[1, 1]),
            {"ndim": 4, "spatial_ndim": 3},
            "meta.spatial.spacing has 2 entries, 3 were expected (one per spatial axis)",
        ),
        (
            spatial(affine=np.eye(3)),
            {"ndim": 3},
            "meta.spatial.affine has 3 rows, 4 were expected (one per spatial axis and 1 more)",
        ),
        (
            spatial(axis_labels=LABELS),
            {"shape": (4, 4, 4)},
            "meta.spatial.axis_labels has 4 entries, 3 were expected (one per axis)",
        ),
        (
            spatial(axis_units=["mm"]),
            {"ndim": 3},
            "meta.spatial.axis_units has 1 entries, 3 were expected (one per axis)",
        ),
        (spatial(shape=[4, 5]), {"shape": (5, 4)}, "meta.spatial.shape is [4, 5], the array has shape [5, 4]"),
        (spatial(origin=[0.0, float("nan")]), {}, "meta.spatial.origin[1] is nan, a finite number was expected"),
        (
            spatial(direction=[[1.0, float("inf")], [0.0, 1.0]]),
            {},
            "meta.spatial.direction[0][1] is inf, a finite number was expected",
        ),
        (spatial(spacing=[0, 1]), {}, "meta.spatial.spacing[0] is 0, a positive number was expected"),
        (spatial(spacing=[1, -2.5]), {}, "meta.spatial.spacing[1] is -2.5, a positive number was expected"),
        (
            spatial(direction=[[1, 2], [2, 4]]),
            {},
            "meta.spatial.direction is singular: its columns do not span the space",
        ),
        (
            spatial(affine=[[1, 0, 5], [0, 0, 5], [0, 0, 1]]),
            {},
            "meta.spatial.affine is singular: its steps do not span the space",
        ),
        (
            spatial(affine=[[1, 0, 5], [0, 1, 5], [0, 1, 1]]),
            {},
            "meta.spatial.affine has the last row [0, 1, 1], zeros and a final 1 were expected",
        ),
        (
            spatial(spacing=[1, 1], origin=[1, 1, 1]),
            {},
            "meta.spatial has fields for different numbers of axes: spacing 2, origin 3",
        ),
        (Meta(bbox=[[[0, float("nan")]]]), {}, "meta.bbox.bboxes[0][0][1] is nan, a finite number was expected"),
        (Meta(bbox=[[[0, 1]], [[0, 1], [0, 1]]]), {}, "meta.bbox.bboxes[1] has 2 axes, 1 were expected"),
        (
            Meta(bbox={"bboxes": [[[0, 1]]], "scores": [1, 2]}),
            {},
            "meta.bbox.scores has 2 entries, 1 were expected (one per box)",
        ),
        (
            Meta(bbox={"bboxes": [[[0, 1]]], "labels": []}),
            {},
            "meta.bbox.labels has 0 entries, 1 were expected (one per box)",
        ),
        (Meta(bbox={"labels": ["a"]}), {}, "meta.bbox.labels is set, but there are no boxes"),
        (Meta(blosc2={"chunk_size": [4]}), {"ndim": 2}, "meta.blosc2.chunk_size has 1 entries, 2 were expected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_problem_is_named(meta: Meta, context: dict[str, object], problem: str) -> None:
    assert find_problems(meta, **context) == [problem]  # type: ignore[arg-type]


def test_an_affine_beside_spacing_is_found_even_when_smuggled_in() -> None:
    meta = spatial(spacing=[1, 1])
    object.__setattr__(meta.spatial, "affine", [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert find_problems(meta) == ["meta.spatial.affine is set together with spacing; only one of both can be stored"]


def test_small_voxels_and_strong_anisotropy_are_not_singular() -> None:
    assert find_problems(spatial(affine=np.diag([1e-9, 1e3, 1e-6, 1.0]))) == []


def test_invalid_metadata_is_never_written() -> None:
    meta = spatial(spacing=[1.0, 1.0])
    meta.spatial.spacing[0] = float("nan")
    with pytest.raises(MetadataError, match=r"spacing\[0\] is nan"):
        encode(meta)


def test_labels_changed_in_place_are_counted_anew() -> None:
    meta = spatial(axis_labels=["spatial_y", "spatial_x"], spacing=[1, 1])
    meta.spatial.axis_labels[0] = "channel"
    assert find_problems(meta) == ["meta.spatial.spacing has 2 entries, 1 were expected (one per spatial axis)"]
