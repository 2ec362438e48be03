"""Run where MONAI and TorchIO are installed: how they see a file, and how they see a patch of it that was handed to them.

Prints one JSON object. Started with the folder to work in.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

import mlarray
from mlarray.region import Region
from mlarray.streaming.batch import Batch, Sample

SHAPE = (11, 12, 13)  # x, y, z
REGION = Region((2, 3, 4), (8, 10, 9))  # z, y, x
WINDOW = (slice(None), slice(4, 9), slice(3, 10), slice(2, 8))


def written(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    turned, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    affine = np.eye(4)
    affine[:3, :3] = turned * (0.5, 0.75, 2.5)
    affine[:3, 3] = (-31.0, 17.0, 5.0)
    path = folder / "ct.nii.gz"
    nibabel.save(nibabel.Nifti1Image(rng.normal(size=SHAPE).astype(np.float32), affine), path)
    return path


def patch_of(path: Path) -> Sample:
    source = mlarray.open_source(path)
    geometry = source.spec.geometry
    assert geometry is not None
    assert geometry.coord_system == "LPS"
    arrays = {"CT": source.read(REGION)[None], "SEG": np.ones((1, *REGION.shape), np.uint8)}
    cut = geometry.cropped(REGION)
    batch = Batch.of([Sample(arrays, "case_1", 2, REGION, {"CT": cut, "SEG": cut})])
    return batch.samples[0]


def moved(affine: Any) -> Any:
    """The affine of a volume's part that starts at the window."""
    start = np.eye(4)
    start[:3, 3] = [part.start for part in WINDOW[1:]]
    return np.asarray(affine, np.float64) @ start


def brightest(voxels: Any, affine: Any) -> Any:
    """World position of the largest voxel."""
    place = np.unravel_index(int(np.argmax(voxels[0])), voxels.shape[1:])
    return (np.asarray(affine, np.float64) @ (*place, 1))[:3]


def compared(whole: Any, whole_affine: Any, patch: Any, affine: Any, turned: Any, turned_affine: Any) -> dict[str, Any]:
    return {
        "shape": list(patch.shape),
        "same voxels": bool(np.array_equal(np.asarray(whole)[WINDOW], np.asarray(patch))),
        "affine differs by mm": float(np.abs(moved(whole_affine) - np.asarray(affine, np.float64)).max()),
        "moved by turning, mm": float(
            np.abs(brightest(patch, affine) - brightest(np.asarray(turned), turned_affine)).max()
        ),
    }


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    path = written(folder)
    sample = patch_of(path)
    nowhere = Sample(sample.arrays, "case_2", 0, REGION, {"CT": None, "SEG": None})

    from monai.transforms import LoadImage, Orientation  # type: ignore[attr-defined]

    from mlarray.integrations.monai import to_metatensor

    loaded = LoadImage(image_only=True, ensure_channel_first=True)(path)
    given = to_metatensor(sample, "CT")
    turned = Orientation("RAS")(given)
    shown = {"monai": compared(loaded, loaded.affine, given.numpy(), given.affine, turned, turned.affine)}
    shown["monai"]["meta"] = {name: given.meta[name] for name in ("case", "copy", "patch_start", "space")}
    shown["monai"]["shares memory"] = given.data_ptr() == sample.arrays["CT"].ctypes.data
    shown["monai"]["nowhere"] = to_metatensor(nowhere, "CT").affine.tolist()

    import torchio

    from mlarray.integrations.torchio import to_subject

    image = torchio.ScalarImage(path)
    subject = to_subject(sample, labels=["SEG"])
    canonical = torchio.ToCanonical()(subject)
    shown["torchio"] = compared(
        image.data, image.affine, subject.CT.data.numpy(), subject.CT.affine, canonical.CT.data, canonical.CT.affine
    )
    shown["torchio"]["kinds"] = [type(subject.CT).__name__, type(subject.SEG).__name__]
    shown["torchio"]["case"] = [subject.case, subject.copy, list(subject.patch_start)]
    shown["torchio"]["shares memory"] = subject.CT.data.data_ptr() == sample.arrays["CT"].ctypes.data
    shown["torchio"]["nowhere"] = to_subject(nowhere).CT.affine.tolist()
    print(json.dumps(shown))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
