"""Is this metadata fit to be written, and if not, what is wrong with it, all of it?

Assigning to a field is checked at once, but lists and dicts can be changed afterwards (``spacing[1] = "oops"``), and some
rules only bind a finished file: numbers must be finite, a geometry must be invertible, lengths must fit the array. Here the
whole :class:`Meta` is looked at again and every problem is reported together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from mlarray.errors import MetadataError
from mlarray.metadata import schema
from mlarray.metadata.base import BaseMeta
from mlarray.metadata.model import Meta

SINGULAR_BELOW: Final = 1e-12
"""|determinant| of the step matrix, its columns scaled to length 1, below which it counts as not invertible.

The determinant of unit columns is the volume they span: 1 when orthogonal, and about 1e-16, the rounding of float64, when
they lie in one plane. A shear that leaves 1e-12 has no use in an image.
"""


def normalized(meta: Meta) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return all fields as plain values, and a sentence for each value that does not fit its field.

    A field that does not fit is None in the result, so that the rest can be looked at.
    """
    problems: list[str] = []
    mapping: dict[str, dict[str, Any]] = {}
    for namespace in schema.FIELDS:
        part: BaseMeta = getattr(meta, namespace)
        mapping[namespace] = {}
        for field, value in part._values().items():
            found: list[str] = []
            kept = schema.coerce(namespace, field, value, found)
            mapping[namespace][field] = None if found else kept
            problems += found
    spatial = mapping["spatial"]
    spatial["_num_spatial_axes"], spatial["_num_non_spatial_axes"] = schema.axis_counts(spatial["axis_labels"])
    return mapping, problems


def find_problems(
    meta: Meta, *, ndim: int | None = None, spatial_ndim: int | None = None, shape: Sequence[int] | None = None
) -> list[str]:
    """Return everything that is wrong with `meta`, one sentence each; an empty list when nothing is.

    Parameters
    ----------
    meta : Meta
        Not changed.
    ndim, spatial_ndim : int, optional
        Number of axes and of spatial axes of the array; by default what shape and labels tell.
    shape : sequence of int, optional
        Shape of the array; ``meta.spatial.shape``, if set, must be equal to it.

    Examples
    --------
    >>> meta = Meta(spatial={"spacing": [1.0, 1.0, 1.0]})
    >>> meta.spatial.spacing[1] = "oops"
    >>> meta.spatial.origin = [0.0, float("nan"), 0.0]
    >>> find_problems(meta, ndim=3)
    ["meta.spatial.spacing[1] is 'oops', a number was expected", 'meta.spatial.origin[1] is nan, a finite number was expected']
    """
    return _check(meta, ndim=ndim, spatial_ndim=spatial_ndim, shape=shape)[1]


def validate(
    meta: Meta, *, ndim: int | None = None, spatial_ndim: int | None = None, shape: Sequence[int] | None = None
) -> None:
    """Raise one error that lists everything :func:`find_problems` finds.

    Raises
    ------
    MetadataError
        With all problems in ``problems``.
    """
    validated_mapping(meta, ndim=ndim, spatial_ndim=spatial_ndim, shape=shape)


def validated_mapping(
    meta: Meta, *, ndim: int | None = None, spatial_ndim: int | None = None, shape: Sequence[int] | None = None
) -> dict[str, dict[str, Any]]:
    """Return all fields of valid metadata as plain values.

    Raises
    ------
    MetadataError
        With all problems in ``problems``.
    """
    mapping, problems = _check(meta, ndim=ndim, spatial_ndim=spatial_ndim, shape=shape)
    if problems:
        raise MetadataError(problems, hint="Correct the fields named, or set them to None.")
    return mapping


def _check(
    meta: Meta, *, ndim: int | None, spatial_ndim: int | None, shape: Sequence[int] | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    mapping, problems = normalized(meta)
    spatial = mapping["spatial"]
    if shape is not None:
        ndim = len(shape) if ndim is None else ndim
        if spatial["shape"] is not None and spatial["shape"] != list(shape):
            problems.append(f"meta.spatial.shape is {spatial['shape']}, the array has shape {list(shape)}")
    ndim = schema.dimensions(spatial)[0] if ndim is None else ndim
    if spatial_ndim is None:
        own = schema.axis_counts(spatial["axis_labels"])[0]
        spatial_ndim = ndim if own is None else own
    problems += schema.spatial_problems(spatial, ndim=ndim, spatial_ndim=spatial_ndim)
    if spatial_ndim is None:
        problems += _disagreement(spatial)
    problems += _geometry_problems(spatial)
    problems += _box_problems(mapping["bbox"], ndim=ndim, spatial_ndim=spatial_ndim)
    problems += _size_problems(mapping["blosc2"], ndim=ndim, spatial_ndim=spatial_ndim)
    return mapping, problems


def _disagreement(spatial: Mapping[str, Any]) -> list[str]:
    """Without an array the geometry only has itself to fit."""
    lengths = {field: len(spatial[field]) for field in ("spacing", "origin", "direction") if spatial[field] is not None}
    if len(set(lengths.values())) <= 1:
        return []
    listed = ", ".join(f"{field} {length}" for field, length in lengths.items())
    return [f"meta.spatial has fields for different numbers of axes: {listed}"]


def _not_finite(value: object, path: str) -> list[str]:
    if isinstance(value, list):
        return [problem for index, item in enumerate(value) for problem in _not_finite(item, f"{path}[{index}]")]
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path} is {value}, a finite number was expected"]
    return []


def _geometry_problems(spatial: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for field in ("spacing", "origin", "direction", "affine"):
        problems += _not_finite(spatial[field], f"meta.spatial.{field}")
    for index, step in enumerate(spatial["spacing"] or []):
        if step <= 0:
            problems.append(f"meta.spatial.spacing[{index}] is {step}, a positive number was expected")
    if problems:
        return problems
    if _is_singular(spatial["direction"]):
        problems.append("meta.spatial.direction is singular: its columns do not span the space")
    affine = spatial["affine"]
    if affine:
        if affine[-1] != [0] * (len(affine) - 1) + [1]:
            problems.append(f"meta.spatial.affine has the last row {affine[-1]}, zeros and a final 1 were expected")
        if _is_singular([row[:-1] for row in affine[:-1]]):
            problems.append("meta.spatial.affine is singular: its steps do not span the space")
    return problems


def _is_singular(matrix: list[list[float]] | None) -> bool:
    if not matrix:
        return False
    steps = np.array(matrix, dtype=np.float64)
    largest = np.abs(steps).max(axis=0)
    if (largest == 0).any():
        return True
    steps = steps / largest  # numbers beyond 1e154 have no square
    lengths = np.sqrt((steps**2).sum(axis=0))
    return bool(abs(np.linalg.det(steps / lengths)) < SINGULAR_BELOW)


def _box_problems(bbox: Mapping[str, Any], *, ndim: int | None, spatial_ndim: int | None) -> list[str]:
    boxes = bbox["bboxes"]
    problems = _not_finite(boxes, "meta.bbox.bboxes") + _not_finite(bbox["scores"], "meta.bbox.scores")
    problems += _not_finite(bbox["labels"], "meta.bbox.labels")
    if boxes is None:
        return problems + [
            f"meta.bbox.{field} is set, but there are no boxes" for field in ("scores", "labels") if bbox[field]
        ]
    allowed = sorted({axes for axes in (ndim, spatial_ndim) if axes is not None})
    if not allowed and boxes:
        allowed = [len(boxes[0])]
    for index, box in enumerate(boxes):
        if len(box) not in allowed:
            expected = " or ".join(map(str, allowed))
            problems.append(f"meta.bbox.bboxes[{index}] has {len(box)} axes, {expected} were expected")
    for field in ("scores", "labels"):
        if bbox[field] is not None and len(bbox[field]) != len(boxes):
            problems.append(
                f"meta.bbox.{field} has {len(bbox[field])} entries, {len(boxes)} were expected (one per box)"
            )
    return problems


def _size_problems(blosc2: Mapping[str, Any], *, ndim: int | None, spatial_ndim: int | None) -> list[str]:
    problems = []
    for field, expected in (("chunk_size", ndim), ("block_size", ndim), ("patch_size", spatial_ndim)):
        sizes = cast("list[int] | None", blosc2[field])
        if sizes is not None and expected is not None and len(sizes) != expected:
            problems.append(f"meta.blosc2.{field} has {len(sizes)} entries, {expected} were expected")
    return problems
