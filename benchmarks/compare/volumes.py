"""Which volumes are compared? Made-up ones that compress like real ones, and the MNI template; each as one ``.npy`` file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from environments import mni_image

FULL_SHAPE = (400, 512, 512)
DATA = ("ct_int16", "ct_float32", "labels", "mni")


def volume_file(scratch: Path, name: str, shape: tuple[int, ...]) -> Path:
    """Return the file of a volume, made unless it is there; the MNI template has the shape it has."""
    folder = scratch / "volumes"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{name}.npy" if name == "mni" else f"{name}_{'x'.join(map(str, shape))}.npy")
    if not path.exists():
        print(f"making {path.name}", flush=True)
        array = _mni(scratch) if name == "mni" else _made(name, shape)
        np.save(path, np.ascontiguousarray(array))
    return path


def float_volume(path: Path, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Write and return a volume like ``ct_float32`` whose noise depends on a seed."""
    array = z_scored(ct(shape, seed, resampled=True))
    np.save(path, array)
    return array


def ct(shape: tuple[int, ...], seed: int, *, resampled: bool = False) -> np.ndarray:
    """Return int16 Hounsfield units: smooth organs with detector noise in an ellipsoid, air around it.

    Resampled ones are float32 means of shifted voxels, as an interpolation makes them.
    """
    rng = np.random.default_rng(seed)
    smooth = rng.normal(0, 1, tuple(max(4, n // 16) for n in shape)).astype(np.float32)
    for axis, extent in enumerate(shape):
        smooth = _stretched(smooth, axis, extent)
    z, y, x = np.ogrid[tuple(slice(-1, 1, complex(n)) for n in shape)]
    inside = (x / 0.8) ** 2 + (y / 0.6) ** 2 + (z / 1.3) ** 2 < 1
    values = np.where(inside, smooth * 60 + 40, np.float32(-1000))
    values += rng.standard_normal(shape, dtype=np.float32) * 18
    values = np.clip(np.rint(values), -1024, 3071)
    if not resampled:
        return values.astype(np.int16)
    weight = np.float32(0.37)
    for axis in range(3):
        values = values * (1 - weight) + np.roll(values, 1, axis) * weight
    return values


def z_scored(values: np.ndarray) -> np.ndarray:
    """Return float32 values of mean 0 and deviation 1, as nnU-Net stores images."""
    return ((values - values.mean()) / values.std()).astype(np.float32)


def _made(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name == "ct_int16":
        return ct(shape, 0)
    if name == "ct_float32":
        return z_scored(ct(shape, 0, resampled=True))
    rng = np.random.default_rng(3)
    smooth = rng.normal(0, 1, tuple(max(4, n // 24) for n in shape)).astype(np.float32)
    for axis, extent in enumerate(shape):
        smooth = _stretched(smooth, axis, extent)
    return np.where(smooth > 0.3, np.clip(smooth * 8, 1, 20), 0).astype(np.uint8)


def _mni(scratch: Path) -> np.ndarray:
    import nibabel as nib

    image = nib.load(mni_image(scratch))
    return np.ascontiguousarray(np.asarray(image.dataobj, dtype=np.float32).T)


def _stretched(values: np.ndarray, axis: int, extent: int) -> np.ndarray:
    position = np.linspace(0, values.shape[axis] - 1, extent)
    low = np.minimum(position.astype(int), values.shape[axis] - 2)
    weight = (position - low).astype(np.float32).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
    return values.take(low, axis) * (1 - weight) + values.take(low + 1, axis) * weight
