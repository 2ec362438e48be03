"""Random changes of copies of a case, as ordinary transforms of a chain."""

from __future__ import annotations

from mlarray.transforms.augmentations.color import HUE, Brightness, ColorTransform, Contrast, LumaFlip, Saturation
from mlarray.transforms.augmentations.lists import Augmentation, AugmentationList, Draw, draw
from mlarray.transforms.augmentations.orientation import Flip, Permute, Rotate
from mlarray.transforms.augmentations.places import CutOUT, Mask, Noise
from mlarray.transforms.augmentations.spatial import Elastix, Scale, Translate

__all__ = [
    "HUE",
    "Augmentation",
    "AugmentationList",
    "Brightness",
    "ColorTransform",
    "Contrast",
    "CutOUT",
    "Draw",
    "Elastix",
    "Flip",
    "LumaFlip",
    "Mask",
    "Noise",
    "Permute",
    "Rotate",
    "Saturation",
    "Scale",
    "Translate",
    "draw",
]
