"""What nnU-Net does with preprocessed cases; run by an interpreter that has nnU-Net, torch and this package.

``python nnunet_cases.py write FOLDER`` makes a preprocessed data set with nnU-Net's own ``save_case``,
``python nnunet_cases.py exported THEIRS OURS`` opens two folders of ``.b2nd`` files with nnU-Net's own class, and
``python nnunet_cases.py loaders THEIRS OURS`` draws batches from ``.b2nd`` files and from ``.mla`` files; both print JSON.
"""

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import torch
from nnunetv2.training.dataloading import nnunet_dataset
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, infer_dataset_class, nnUNetDatasetBlosc2
from nnunetv2.utilities.label_handling.label_handling import LabelManager

from mlarray.integrations.nnunet import NNUNetDataset, register

SHAPES = {"scan_0001": (14, 60, 50), "scan_0002": (20, 40, 44), "scan_0003": (9, 70, 33)}
LABELS = {"background": 0, "one": 1, "two": 2}
PATCH = (12, 48, 40)
IDENTIFIER = "nnUNetPlans_3d_fullres"


def case(name):
    shape = SHAPES[name]
    rng = np.random.default_rng(sum(shape))
    data = rng.normal(size=(2, *shape)).astype(np.float32)
    seg = np.zeros((1, *shape), np.int16)
    seg[0, :2] = -1
    seg[0, 3:7, 10:25, 12:30] = 1
    if name != "scan_0003":
        seg[0, 5:8, 20:30, 20:28] = 2
    locations = {label: np.argwhere(seg == label) for label in (1, 2)}
    properties = {
        "sitk_stuff": {
            "spacing": (0.75, 0.75, 3.0),
            "origin": (-10.0, 20.0, 30.5),
            "direction": (1.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 1.0, 0.0),
        },
        "spacing": [np.float64(3.0), np.float64(0.75), np.float64(0.75)],
        "shape_before_cropping": (shape[0] + 5, shape[1] + 2, shape[2] + 6),
        "bbox_used_for_cropping": [[3, 3 + shape[0]], [0, shape[1]], [4, 4 + shape[2]]],
        "shape_after_cropping_and_before_resampling": shape,
        "class_locations": {label: rng.permutation(found) if len(found) else [] for label, found in locations.items()},
    }
    return data, seg, properties


def write(root):
    configuration = {"data_identifier": IDENTIFIER, "patch_size": list(PATCH)}
    plans = {"configurations": {"3d_fullres": configuration}, "transpose_forward": [0, 1, 2]}
    folder = root / IDENTIFIER
    folder.mkdir(parents=True)
    previous = root / "previous"
    previous.mkdir()
    (root / "nnUNetPlans.json").write_text(json.dumps(plans))
    (root / "dataset.json").write_text(json.dumps({"labels": LABELS}))
    for name in SHAPES:
        data, seg, properties = case(name)
        blocks, chunks = comp_blosc2_params(data.shape, PATCH, data.itemsize)
        nnUNetDatasetBlosc2.save_case(data, seg, properties, str(folder / name), chunks=chunks, blocks=blocks)
        nnUNetDatasetBlosc2.save_seg((seg[0] > 0).astype(np.uint8), str(previous / name))


def properties_differ(first, second):
    """Names of the properties that differ in value, or in the type of a container or array."""
    if list(first) != list(second):
        return sorted(set(first) ^ set(second)) or ["order"]
    pairs = first.pop("class_locations"), second.pop("class_locations")
    different = [name for name in first if first[name] != second[name] or type(first[name]) is not type(second[name])]
    same_labels = list(pairs[0]) == list(pairs[1])
    same = same_labels and all(
        type(one) is type(other)
        and np.array_equal(one, other)
        and getattr(one, "dtype", 0) == getattr(other, "dtype", 0)
        for one, other in zip(pairs[0].values(), pairs[1].values(), strict=True)
    )
    return different + ([] if same else ["class_locations"])


def compared(theirs, ours, name):
    """What differs between one case of two datasets."""
    first, second = theirs.load_case(name), ours[name]
    same = [
        np.array_equal(one[:], other[:]) and one.dtype == other.dtype and one.shape == other.shape
        for one, other in zip(first[:2], second[:2], strict=True)
    ]
    part = (slice(None), slice(2, 7), slice(5, 30), slice(0, 8))
    same += [isinstance(second[0][part], np.ndarray) and np.array_equal(first[0][part], second[0][part])]
    return {"arrays": same, "properties": properties_differ(first[3], second[3])}


def exported(theirs, ours):
    kind = infer_dataset_class(str(ours))
    first, second = nnUNetDatasetBlosc2(str(theirs)), kind(str(ours))
    return {
        "class": kind.__name__,
        "identifiers": [first.identifiers, second.identifiers],
        "cases": {name: compared(first, second, name) for name in first.identifiers},
    }


def batches(dataset, patch, final, seed, **options):
    labels = LabelManager(LABELS, None)
    loader = nnUNetDataLoader(dataset, 2, patch, final, labels, 0.5, None, None, **options)
    np.random.seed(seed)  # noqa: NPY002  the generator that nnU-Net draws from
    return [next(loader) for _ in range(4)]


def same_batches(first, second):
    return all(
        one["keys"].tolist() == other["keys"].tolist()
        and one["data"].dtype == other["data"].dtype
        and torch.equal(one["data"], other["data"])
        and torch.equal(one["target"], other["target"])
        for one, other in zip(first, second, strict=True)
    )


def loaders(theirs, ours):
    register()
    kind = infer_dataset_class(str(ours))
    previous = str(theirs.parent / "previous")
    found = {
        "class": kind.__name__,
        "parameters": {
            name: [list(inspect.signature(getattr(each, name)).parameters) for each in (nnUNetDatasetBlosc2, kind)]
            for name in ("__init__", "load_case", "save_case", "save_seg", "get_identifiers", "__getitem__")
        },
        "attributes": [sorted(vars(each(str(theirs), []))) for each in (nnunet_dataset.nnUNetDatasetNumpy, kind)],
        "unpacked": kind.unpack_dataset(str(ours), overwrite_existing=False, num_processes=1, verify=True),
        "cases": {
            name: compared(nnUNetDatasetBlosc2(str(theirs)), kind(str(ours)), name)
            for name in kind(str(ours)).identifiers
        },
        "batches": {},
    }
    for title, patch, final, chosen, stage in (
        ("3d", PATCH, PATCH, None, None),
        ("3d larger than the images", (32, 80, 64), (24, 64, 56), None, None),
        ("2d", (48, 40), (32, 32), None, None),
        ("two of the cases", PATCH, PATCH, ["scan_0003", "scan_0001"], None),
        ("cascade", PATCH, PATCH, None, previous),
    ):
        drawn = [
            batches(each(str(folder), chosen and list(chosen), stage), patch, final, 7, **options)
            for each, folder in ((nnUNetDatasetBlosc2, theirs), (kind, ours))
            for options in ({}, {"probabilistic_oversampling": True})
        ]
        found["batches"][title] = {
            "same": [same_batches(drawn[0], drawn[2]), same_batches(drawn[1], drawn[3])],
            "shape": list(drawn[2][0]["data"].shape),
            "target": list(drawn[2][0]["target"].shape),
            "labels": sorted({int(label) for batch in drawn[2] for label in batch["target"].unique()}),
        }
    return found


def saved(folder):
    """Cases written by our class with the arguments that nnU-Net's preprocessor gives, read again."""
    folder.mkdir()
    different = {}
    for name in SHAPES:
        data, seg, properties = case(name)
        blocks, chunks = comp_blosc2_params(data.shape, PATCH, data.itemsize)
        NNUNetDataset.save_case(data, seg, properties, str(folder / name), chunks=chunks, blocks=blocks)
        read = NNUNetDataset(str(folder)).load_case(name)
        different[name] = {
            "arrays": [np.array_equal(read[0][:], data), np.array_equal(read[1][:], seg)],
            "properties": properties_differ(read[3], case(name)[2]),
            "layout": [list(read[0].layout.chunks) == list(chunks), list(read[0].layout.blocks) == list(blocks)],
        }
    return different


if __name__ == "__main__":
    command, *places = sys.argv[1:]
    paths = [Path(place) for place in places]
    if command == "write":
        write(*paths)
    else:
        print(json.dumps({"exported": exported, "loaders": loaders, "saved": saved}[command](*paths)))
