"""Transforms of volumes, each of which says how its output depends on its input.

Names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    **dict.fromkeys(
        (
            "Context",
            "Transform",
        ),
        "mlarray.transforms.base",
    ),
    **dict.fromkeys(
        (
            "Argmax",
            "Softmax",
            "StandardDeviation",
            "Sum",
            "Variance",
        ),
        "mlarray.transforms.channels",
    ),
    **dict.fromkeys(
        (
            "Clip",
            "Percentage",
            "TensorCast",
            "UnNormalize",
        ),
        "mlarray.transforms.intensity",
    ),
    **dict.fromkeys(("Canonical",), "mlarray.transforms.canonical"),
    **dict.fromkeys(("Crop",), "mlarray.transforms.cropping"),
    **dict.fromkeys(
        (
            "FlatLabel",
            "Mask",
            "MergeLabels",
            "OneHot",
            "SegmentationDisagreement",
            "SelectLabel",
        ),
        "mlarray.transforms.labels",
    ),
    **dict.fromkeys(
        (
            "Cropping",
            "FullAxis",
            "GlobalStatistic",
            "Halo",
            "Kind",
            "Orientation",
            "Pointwise",
            "Regrid",
            "Rescale",
            "WholeVolume",
        ),
        "mlarray.transforms.locality",
    ),
    **dict.fromkeys(("HistogramMatching",), "mlarray.transforms.matching"),
    **dict.fromkeys(
        (
            "Dilate",
            "Gradient",
        ),
        "mlarray.transforms.neighbourhood",
    ),
    **dict.fromkeys(
        (
            "Normalize",
            "Standardize",
            "Statistics",
        ),
        "mlarray.transforms.normalisation",
    ),
    **dict.fromkeys(
        (
            "Flip",
            "Permute",
        ),
        "mlarray.transforms.orientation",
    ),
    **dict.fromkeys(("Padding",), "mlarray.transforms.padding"),
    **dict.fromkeys(
        (
            "Flatten",
            "Norm",
            "Squeeze",
        ),
        "mlarray.transforms.rank",
    ),
    **dict.fromkeys(
        (
            "ResampleToResolution",
            "ResampleToShape",
        ),
        "mlarray.transforms.resampling",
    ),
    **dict.fromkeys(("Save",), "mlarray.transforms.save"),
    **dict.fromkeys(
        (
            "Attributes",
            "Volume",
        ),
        "mlarray.transforms.volume",
    ),
}
__all__ = [
    "Argmax",
    "Attributes",
    "Canonical",
    "Clip",
    "Context",
    "Crop",
    "Cropping",
    "Dilate",
    "FlatLabel",
    "Flatten",
    "Flip",
    "FullAxis",
    "GlobalStatistic",
    "Gradient",
    "Halo",
    "HistogramMatching",
    "Kind",
    "Mask",
    "MergeLabels",
    "Norm",
    "Normalize",
    "OneHot",
    "Orientation",
    "Padding",
    "Percentage",
    "Permute",
    "Pointwise",
    "Regrid",
    "ResampleToResolution",
    "ResampleToShape",
    "Rescale",
    "Save",
    "SegmentationDisagreement",
    "SelectLabel",
    "Softmax",
    "Squeeze",
    "StandardDeviation",
    "Standardize",
    "Statistics",
    "Sum",
    "TensorCast",
    "Transform",
    "UnNormalize",
    "Variance",
    "Volume",
    "WholeVolume",
    "augmentations",
]

if TYPE_CHECKING:
    from mlarray.transforms import augmentations
    from mlarray.transforms.base import Context, Transform
    from mlarray.transforms.canonical import Canonical
    from mlarray.transforms.channels import Argmax, Softmax, StandardDeviation, Sum, Variance
    from mlarray.transforms.cropping import Crop
    from mlarray.transforms.intensity import Clip, Percentage, TensorCast, UnNormalize
    from mlarray.transforms.labels import FlatLabel, Mask, MergeLabels, OneHot, SegmentationDisagreement, SelectLabel
    from mlarray.transforms.locality import (
        Cropping,
        FullAxis,
        GlobalStatistic,
        Halo,
        Kind,
        Orientation,
        Pointwise,
        Regrid,
        Rescale,
        WholeVolume,
    )
    from mlarray.transforms.matching import HistogramMatching
    from mlarray.transforms.neighbourhood import Dilate, Gradient
    from mlarray.transforms.normalisation import Normalize, Standardize, Statistics
    from mlarray.transforms.orientation import Flip, Permute
    from mlarray.transforms.padding import Padding
    from mlarray.transforms.rank import Flatten, Norm, Squeeze
    from mlarray.transforms.resampling import ResampleToResolution, ResampleToShape
    from mlarray.transforms.save import Save
    from mlarray.transforms.volume import Attributes, Volume


def __getattr__(name: str) -> Any:
    if name == "augmentations":
        return importlib.import_module("mlarray.transforms.augmentations")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mlarray.transforms' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
