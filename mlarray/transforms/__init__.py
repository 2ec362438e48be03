"""Transforms of volumes, each of which says how its output depends on its input."""

from __future__ import annotations

from mlarray.transforms.base import Context, Transform
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
from mlarray.transforms.volume import Attributes, Volume

__all__ = [
    "Attributes",
    "Context",
    "Cropping",
    "FullAxis",
    "GlobalStatistic",
    "Halo",
    "Kind",
    "Orientation",
    "Pointwise",
    "Regrid",
    "Rescale",
    "Transform",
    "Volume",
    "WholeVolume",
]
