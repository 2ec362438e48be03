"""Real preprocessed cases of nnU-Net: their voxels say where they are, and everything travels to ``.mla`` and back."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray.integrations.nnunet import NNUNetDataset
from mlarray.storage.blosc import open_store
from mlarray_convert import convert

HERE = Path(__file__).parent / "nnunet"
RAMP = HERE / "Dataset002_Ramp" / "nnUNetPlans_3d_fullres"
REORIENTED = HERE / "Dataset004_RampNibRe" / "nnUNetPlans_3d_fullres"
CASES = [*(RAMP / f"ramp_{number:04d}.b2nd" for number in range(3)), REORIENTED / "ramp_0002.b2nd"]
# The cubic spline of nnU-Net's resampling is exact on a ramp but for the border, whose influence fades over a few voxels.
SPLINE_MM, BORDER_MM, BORDER = 0.007, 0.11, 3


def chunk_bytes(path: Path) -> list[bytes]:
    store = open_store(path)
    try:
        return [store.chunk_bytes(index) for index in range(store.chunk_count)]
    finally:
        store.close()


def same_properties(first: dict, second: dict) -> bool:
    """Compare values, order and types of containers and arrays."""
    first, second = dict(first), dict(second)
    pairs = [(first.pop("class_locations"), second.pop("class_locations"))]
    return first == second and all(
        list(one) == list(other)
        and all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one.values(), other.values(), strict=True))
        for one, other in pairs
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_every_voxel_lies_where_its_values_say(path: Path) -> None:
    with open_source(path) as source:
        assert [axis.name for axis in source.spec.axes] == ["c", "x", "z", "y"]
        assert source.info.notes == ()
        geometry, voxels = source.spec.geometry, source.read(source.spec.region)
    assert geometry is not None
    assert geometry.coord_system == "LPS"
    index = np.stack(np.meshgrid(*[np.arange(extent) for extent in voxels.shape[1:]], indexing="ij")).astype(float)
    # nnU-Net takes the nearest voxel along the coarse axis: the value is that of the place there.
    cropped = pickle.loads(path.with_suffix(".pkl").read_bytes())["shape_after_cropping_and_before_resampling"]
    ratio = cropped[0] / voxels.shape[1]
    index[0] = (np.round((index[0] + 0.5) * ratio - 0.5) + 0.5) / ratio - 0.5
    origin = np.array(geometry.origin)[:, None, None, None]
    error = np.abs(voxels - (np.tensordot(geometry.linear, index, 1) + origin))
    assert error.max() < BORDER_MM
    assert error[:, :, BORDER:-BORDER, BORDER:-BORDER].max() < SPLINE_MM


def test_a_segmentation_lies_on_its_image_and_is_one() -> None:
    with open_source(RAMP / "ramp_0001.b2nd") as image, open_source(RAMP / "ramp_0001_seg.b2nd") as labels:
        assert image.spec.geometry == labels.spec.geometry
        assert (image.info.is_seg, labels.info.is_seg) == (None, True)
        assert labels.info.files == (
            RAMP / "ramp_0001_seg.b2nd",
            RAMP / "ramp_0001.pkl",
            RAMP.parent / "nnUNetPlans.json",
        )


def test_a_folder_goes_to_mla_and_back_with_its_chunks_as_they_are(tmp_path: Path) -> None:
    there = convert(RAMP, tmp_path / "mla", verify="full", workers=1)
    assert [outcome.status.value for outcome in there.outcomes] == ["ok"] * 6
    back = convert(tmp_path / "mla", tmp_path / "b2nd", to="b2nd", verify="full", workers=1)
    assert [outcome.status.value for outcome in back.outcomes] == ["ok"] * 6
    assert sorted(path.name for path in (tmp_path / "b2nd").iterdir()) == sorted(path.name for path in RAMP.iterdir())
    for path in RAMP.glob("*.b2nd"):
        assert chunk_bytes(tmp_path / "mla" / f"{path.stem}.mla") == chunk_bytes(path)
        assert chunk_bytes(tmp_path / "b2nd" / path.name) == chunk_bytes(path)
    for path in RAMP.glob("*.pkl"):
        assert same_properties(
            pickle.loads((tmp_path / "b2nd" / path.name).read_bytes()), pickle.loads(path.read_bytes())
        )


def test_the_converted_image_holds_properties_place_and_axes(tmp_path: Path) -> None:
    convert(RAMP, tmp_path / "mla", workers=1)
    with MLArray.open(tmp_path / "mla" / "ramp_0001.mla") as image, open_source(RAMP / "ramp_0001.b2nd") as source:
        assert image.spec == source.spec
        assert image.meta._image_meta_format.image_meta_format == "nnunet"
        kept = image.meta.source["nnunet"]["properties"]
        assert kept["shape_after_cropping_and_before_resampling"] == (7, 15, 18)
        assert kept["sitk_stuff"]["spacing"] == (2.5, 0.8, 0.9)
        assert "class_locations" not in kept
    with MLArray.open(tmp_path / "mla" / "ramp_0001_seg.mla") as labels:
        assert labels.meta.is_seg.is_seg is True
        assert labels.dtype == np.int16


def test_the_dataset_class_gives_back_the_properties_with_regions_as_keys(tmp_path: Path) -> None:
    convert(RAMP, tmp_path / "mla", workers=1)
    dataset = NNUNetDataset(tmp_path / "mla", ["ramp_0002", "ramp_0000"])
    assert dataset.identifiers == ["ramp_0000", "ramp_0002"]
    data, seg, seg_prev, properties = dataset["ramp_0002"]
    assert (data.shape, seg.shape, seg_prev) == ((3, 7, 12, 25), (1, 7, 12, 25), None)
    assert list(properties["class_locations"]) == [(1, 2), (2,)]  # type: ignore[call-overload]
    assert same_properties(properties, pickle.loads((RAMP / "ramp_0002.pkl").read_bytes()))
    with open_source(RAMP / "ramp_0002.b2nd") as source:
        np.testing.assert_array_equal(data[:, 2:5, :, ::2], source.read(source.spec.region)[:, 2:5, :, ::2])


def test_an_mla_that_was_saved_again_keeps_the_locations(tmp_path: Path) -> None:
    convert(RAMP, tmp_path / "mla", workers=1)
    path = tmp_path / "mla" / "ramp_0000.mla"
    with MLArray.load(path) as image:
        image.meta.extra["fold"] = 3
        image.save(path)
    found = NNUNetDataset(tmp_path / "mla")["ramp_0000"][3]
    assert same_properties(found, pickle.loads((RAMP / "ramp_0000.pkl").read_bytes()))


def test_without_plans_the_place_stays_unknown_and_the_properties_are_kept(tmp_path: Path) -> None:
    shutil.copytree(RAMP, tmp_path / "alone" / "nnUNetPlans_3d_fullres")
    outcome = convert(tmp_path / "alone", tmp_path / "mla", workers=1).outcomes[0]
    assert any("plans" in warning for warning in outcome.warnings)
    with MLArray.open(outcome.case.output) as image:
        assert image.geometry is None
        assert [axis.name for axis in image.axes] == ["c", "z", "y", "x"]
        assert image.meta.source["nnunet"]["properties"]["spacing"] == [0.9, 0.8, 3.0]


def test_plans_that_disagree_leave_the_order_of_axes_open(tmp_path: Path) -> None:
    shutil.copytree(RAMP.parent, tmp_path / "set")
    plans = json.loads((RAMP.parent / "nnUNetPlans.json").read_text())
    plans["transpose_forward"] = [0, 1, 2]
    (tmp_path / "set" / "otherPlans.json").write_text(json.dumps(plans))
    (tmp_path / "set" / "broken.json").write_text("{")
    with open_source(tmp_path / "set" / RAMP.name / "ramp_0000.b2nd") as source:
        assert source.spec.geometry is None
        assert [note.code for note in source.info.notes] == ["axes-assumed", "geometry-unknown"]
