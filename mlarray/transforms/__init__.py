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
            "Attributes",
            "Volume",
        ),
        "mlarray.transforms.volume",
    ),
}
__all__ = [
    "Argmax",
    "Attributes",
    "Clip",
    "Context",
    "Cropping",
    "Dilate",
    "FlatLabel",
    "FullAxis",
    "GlobalStatistic",
    "Gradient",
    "Halo",
    "HistogramMatching",
    "Kind",
    "Mask",
    "MergeLabels",
    "Normalize",
    "OneHot",
    "Orientation",
    "Percentage",
    "Pointwise",
    "Regrid",
    "Rescale",
    "SegmentationDisagreement",
    "SelectLabel",
    "Softmax",
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
]

if TYPE_CHECKING:
    from mlarray.transforms.base import Context, Transform
    from mlarray.transforms.channels import Argmax, Softmax, StandardDeviation, Sum, Variance
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
    from mlarray.transforms.volume import Attributes, Volume


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mlarray.transforms' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
