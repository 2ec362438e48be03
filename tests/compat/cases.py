"""Files written and described with what both packages offer; run by either interpreter.

``python cases.py write FOLDER`` writes one file per case, ``python cases.py describe FOLDER`` prints what is in each file of
the folder as JSON, ``python cases.py change FILE HOW`` changes a file in place.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from mlarray import Meta, MLArray

OBLIQUE = [[0.0, 0.6, -0.8], [0.0, 0.8, 0.6], [1.0, 0.0, 0.0]]
SHEARED = [[2.0, 0.5, 0.0, -10.0], [0.0, 3.0, 0.25, 20.0], [0.0, 0.0, -1.5, 30.5], [0.0, 0.0, 0.0, 1.0]]
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


def voxels(shape, dtype="f4"):
    values = np.random.default_rng(sum(shape)).normal(0, 50, shape)
    return np.abs(values).astype(dtype) if np.dtype(dtype).kind in "ub" else values.astype(dtype)


def geometry_cases():
    cube = voxels((6, 7, 8))
    yield "geometry_none", MLArray(cube)
    yield "geometry_spacing", MLArray(cube, spacing=(3, 1.5, 0.5))
    yield "geometry_parts", MLArray(cube, spacing=(3, 1.5, 0.5), origin=(-1, 2, 3.25), direction=OBLIQUE)
    yield "geometry_numpy", MLArray(cube, spacing=np.array([3, 1.5, 0.5]), origin=np.zeros(3), direction=-np.eye(3))
    yield "geometry_affine", MLArray(cube, affine=SHEARED)
    yield "geometry_2d", MLArray(voxels((7, 8)), spacing=(2, 1), direction=[[0, 1], [1, 0]])
    labels = ["channel", "spatial_z", "spatial_y", "spatial_x"]
    yield "axes_channel", MLArray(voxels((2, 6, 7, 8)), spacing=(3, 2, 1), axis_labels=labels)
    labels = ["spatial", "spatial", "spatial", "temporal"]
    yield "axes_time_last", MLArray(voxels((6, 7, 8, 3)), origin=(1, 2, 3), axis_labels=labels)
    yield (
        "axes_own",
        MLArray(voxels((2, 7, 8)), affine=np.diag([2, 3, 1]), axis_labels=["echo", "spatial_y", "spatial_x"]),
    )
    image = MLArray(voxels((2, 7, 8)), axis_labels=["components", "spatial_y", "spatial_x"], spacing=(1, 2))
    image.meta.spatial.axis_units = ["", "mm", "mm"]
    image.meta.spatial.coord_system = "LPS"
    yield "axes_units", image


def metadata_cases():
    cube = voxels((4, 5, 6))
    header = {"Modality": "CT", "nested": {"a": [1, 2.5, None, True], "Größe": "ü"}, "empty": {}, "list": [[], [1]]}
    yield "meta_source", MLArray(cube, meta=header)
    everything = Meta(
        source=header,
        extra={"split": "train", "fold": 3},
        stats={"min": -3, "max": 7.5, "mean": 0.5, "percentile_min": -2.0, "percentile_min_key": 0.005},
        bbox={"bboxes": [[[0, 2], [1, 3], [2, 4]], [[0, 1], [0, 1], [0, 1.5]]], "scores": [0.5, 1], "labels": ["a", 3]},
        is_seg=True,
    )
    yield "meta_all", MLArray(cube, meta=everything, spacing=(1, 2, 3))
    yield "meta_alone", MLArray(meta=Meta(source={"case": 1}, is_seg=False))
    image = MLArray(cube)
    image.meta.source["later"] = [1, 2]
    image.meta.add_bbox([[0, 1], [1, 2], [2, 3]])
    yield "meta_later", image
    base = MLArray(cube, spacing=(1, 2, 3), meta={"a": 1})
    yield "meta_copied", MLArray(cube + 1, origin=(4, 5, 6), copy=base)


def storage_cases():
    cube = voxels((20, 30, 40))
    yield "storage_patch", MLArray(cube, patch_size=16)
    yield "storage_patches", MLArray(cube, patch_size=(4, 8, 16))
    yield "storage_sizes", MLArray(cube, patch_size=None, chunk_size=(1, 16, 16), block_size=(1, 8, 8))
    yield "storage_blosc2", MLArray(cube, patch_size=None)
    yield "storage_cparams", MLArray(cube, cparams={"clevel": 1}, dparams={"nthreads": 2})
    yield "storage_uncompressed", MLArray(cube, compressed=False, spacing=(1, 2, 3))
    image = MLArray(cube)
    image.decompress()
    image.compress(patch_size=8)
    yield "storage_again", image
    yield "made_zeros", MLArray.zeros((5, 6), np.int16, patch_size=4)
    yield "made_ones", MLArray.ones((5, 6), np.float32)
    yield "made_full", MLArray.full((5, 6), 7, dtype=np.uint8)
    yield "made_arange", MLArray.arange(0, 30, 1, dtype=np.int32, shape=(5, 6))
    yield "made_linspace", MLArray.linspace(0, 1, 30, shape=(5, 6))
    yield "made_like", MLArray.full_like(MLArray(cube, spacing=(1, 2, 3), meta={"a": 1}), 3)
    yield "made_asarray", MLArray.asarray(cube, meta={"b": 2}, patch_size=8)


def write(folder):
    for code in DTYPES:
        MLArray(voxels((5, 6, 7), code)).save(folder / f"dtype_{np.dtype(code).name}.mla")
    for ndim in range(1, 6):
        MLArray(voxels((3, 4, 5, 2, 3)[:ndim], "i4")).save(folder / f"axes_{ndim}.mla")
    for cases in (geometry_cases, metadata_cases, storage_cases):
        for name, image in cases():
            image.save(folder / f"{name}.mla")
    for name, mmap_mode in (("created_mapped", "w+"), ("created_plain", None)):
        array = voxels((20, 30, 40))
        image = MLArray.create(
            folder / f"{name}.mla", array.shape, array.dtype, meta={"a": 1}, mmap_mode=mmap_mode, patch_size=16
        )
        for start in range(0, 20, 5):
            image[start : start + 5] = array[start : start + 5]
        image.close()


def describe_file(path):
    image = MLArray.open(path)
    spatial = image.meta.spatial
    found = {
        "shape": image.shape,
        "dtype": None if image.dtype is None else image.dtype.str,
        "sha256": None
        if image.shape is None
        else hashlib.sha256(np.ascontiguousarray(image[...]).tobytes()).hexdigest(),
        "spatial_ndim": image.spatial_ndim if image.shape is not None else None,
        "mapping": {key: value for key, value in image.meta.to_mapping().items() if key != "_mlarray_version"},
        "labels": None
        if spatial.axis_labels is None
        else [str(getattr(label, "value", label)) for label in spatial.axis_labels],
    }
    for name in ("spacing", "origin", "direction", "affine", "scale", "rotation", "shear", "translation"):
        value = getattr(image, name) if image.shape is not None else None
        found[name] = None if value is None else np.round(np.array(value, dtype=float), 9).tolist()
    found["mapping"]["spatial"]["axis_labels"] = found["labels"]
    image.close()
    return json.loads(json.dumps(found, default=repr))


def describe(folder):
    return {path.name: describe_file(path) for path in sorted(folder.glob("*.mla"))}


def change(path, how):
    image = MLArray.open(path, mmap_mode="r+")
    if "voxels" in how:
        image[2:4, 5:9] = image[2:4, 5:9] * 0 + 5
    if "metadata" in how:
        image.meta.source["changed"] = how
    if "close" in how:
        image.close()


if __name__ == "__main__":
    command, target = sys.argv[1], Path(sys.argv[2])
    if command == "write":
        write(target)
    elif command == "describe":
        print(json.dumps(describe(target)))
    else:
        change(target, sys.argv[3])
