"""The kinds of array that a test of ``MLArray`` runs over: each makes one with given voxels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from mlarray import MLArray

Maker = Callable[..., MLArray]


def _compressed(folder: Path, voxels: np.ndarray, **storage: object) -> MLArray:
    return MLArray(voxels, **storage)


def _uncompressed(folder: Path, voxels: np.ndarray, **storage: object) -> MLArray:
    return MLArray(voxels, compressed=False, **storage)


def _opened(mode: str, mmap_mode: str | None) -> Maker:
    def make(folder: Path, voxels: np.ndarray, **storage: object) -> MLArray:
        path = folder / "opened.mla"
        MLArray(voxels, **storage).save(path)
        return MLArray.open(path, mode, mmap_mode)

    return make


def _created(mmap_mode: str | None) -> Maker:
    def make(folder: Path, voxels: np.ndarray, **storage: object) -> MLArray:
        image = MLArray.create(folder / "created.mla", voxels.shape, voxels.dtype, mmap_mode=mmap_mode, **storage)
        image[...] = voxels
        return image

    return make


WRITABLE: dict[str, Maker] = {
    "compressed in memory": _compressed,
    "numpy": _uncompressed,
    "mapped r+": _opened("r", "r+"),
    "mapped c": _opened("r", "c"),
    "opened a": _opened("a", None),
    "created w+": _created("w+"),
    "created without map": _created(None),
}
READ_ONLY: dict[str, Maker] = {"mapped r": _opened("r", "r"), "opened r": _opened("r", None)}
ALL = WRITABLE | READ_ONLY
