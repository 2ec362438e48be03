"""Voxels of each label: which, from how much reading, and when those that nnU-Net kept are taken."""

import importlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from mlarray import open_source
from mlarray import transforms as T
from mlarray.errors import FormatError, TransformError
from mlarray.formats.registry import format_named, open_as
from mlarray.integrations.nnunet import NNUNetDataset
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming import Plan, plan
from mlarray.streaming.class_locations import ClassLocations, class_locations, kept_by_nnunet, locations_of
from mlarray.streaming.kept import Kept
from mlarray.testing.transforms import WatchedSource, source_of

module = importlib.import_module("mlarray.streaming.class_locations")
RNG = np.random.default_rng(3)
LABELS = np.zeros((20, 24, 28), np.uint8)
LABELS[2:12, 3:20, 5:25] = RNG.integers(0, 4, (10, 17, 20))
LABELS[15, 16, 17] = 9


def plan_of(labels: NDArray, chain: list[T.Transform] | None = None) -> Plan:
    return plan(source_of(labels[np.newaxis], is_label=True), chain or [], patch_size=8)


def as_dict(found: ClassLocations) -> dict[int, list[list[int]]]:
    return {label: found.voxels(label).tolist() for label in found.indices}


def test_labels_with_few_voxels_keep_all_of_them() -> None:
    found = class_locations(plan_of(LABELS))
    assert as_dict(found) == {label: np.argwhere(LABELS == label).tolist() for label in (1, 2, 3, 9)}
    assert found.present() == (1, 2, 3, 9)
    assert found.voxel(9, 0) == (15, 16, 17)
    assert found.indices[1].dtype == np.uint32


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float32, np.float64])
def test_the_type_of_the_labels_changes_nothing(dtype: type) -> None:
    expected = as_dict(class_locations(plan_of(LABELS), limit=50))
    assert as_dict(class_locations(plan_of(LABELS.astype(dtype)), limit=50)) == expected


def test_the_same_voxels_stay_however_the_volume_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = as_dict(class_locations(plan_of(LABELS), limit=100))
    assert [len(voxels) for voxels in expected.values()] == [100, 100, 100, 1]
    assert all((LABELS[tuple(np.transpose(voxels))] == label).all() for label, voxels in expected.items())
    for read, hashed in ((1 << 23, 97), (700, 1 << 20), (28, 5), (1, 1 << 20)):
        monkeypatch.setattr(module, "_READ_VOXELS", read)
        monkeypatch.setattr(module, "_HASHED_VOXELS", hashed)
        labels = LABELS if read > 1 else LABELS[14:17, 15:18, 15:19]
        if read > 1:
            assert as_dict(class_locations(plan_of(labels), limit=100)) == expected
        else:
            assert as_dict(class_locations(plan_of(labels))) == {9: [[1, 1, 2]]}


def test_negative_labels_are_kept_and_not_drawn() -> None:
    labels = LABELS.astype(np.int16)
    labels[0, 0, :3] = -1
    found = class_locations(plan_of(labels), limit=100)
    assert found.voxels(-1).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert found.present() == (1, 2, 3, 9)
    positive = {label: voxels for label, voxels in as_dict(found).items() if label > 0}
    assert positive == as_dict(class_locations(plan_of(LABELS), limit=100))


def test_voxels_that_stay_are_spread_evenly_and_depend_on_the_seed() -> None:
    labels = np.ones((10, 20, 20), np.uint8)
    first, second = (class_locations(plan_of(labels), limit=1000, seed=seed) for seed in (0, 1))
    per_plane = np.bincount(first.voxels(1)[:, 0], minlength=10)
    # Drawn without replacement: each plane has a hypergeometric number, of deviation sqrt(1000 * 0.1 * 0.9 * 0.75).
    assert np.abs(per_plane - 100).max() < 4 * 8.3
    common = len(np.intersect1d(first.indices[1], second.indices[1]))
    assert 200 < common < 300


def test_a_pass_reads_each_voxel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_VOXELS", 3 * 24 * 28)
    watched = WatchedSource(source_of(LABELS[np.newaxis], is_label=True))
    class_locations(plan(watched, [T.Flip("0")], patch_size=8))
    counts = np.zeros((1, *LABELS.shape), int)
    for region in watched.regions:
        counts[region.slices] += 1
    assert len(watched.regions) == 7
    assert (counts == 1).all()


def test_what_is_no_segmentation_is_refused() -> None:
    image = RNG.normal(size=LABELS.shape).astype(np.float32)
    with pytest.raises(TransformError, match="values that are no whole numbers, such as"):
        class_locations(plan_of(image))
    image[0, 0, 0] = np.nan
    with pytest.raises(TransformError, match=r"such as nan"):
        class_locations(plan_of(np.where(np.isnan(image), image, 1).astype(np.float32)))
    with pytest.raises(TransformError, match="more than 2048 different values"):
        class_locations(plan_of(np.arange(20 * 24 * 28, dtype=np.int32).reshape(20, 24, 28)))
    with pytest.raises(TransformError, match="has 2 channels"):
        class_locations(plan(source_of(np.zeros((2, 4, 4, 4), np.uint8)), [], patch_size=2))
    assert class_locations(plan_of(np.zeros((3, 4, 5), np.uint8))).present() == ()


def test_locations_become_a_few_arrays_and_back() -> None:
    found = class_locations(plan_of(LABELS), limit=10)
    again = ClassLocations.from_arrays(found.to_arrays())
    assert (again.shape, as_dict(again)) == (found.shape, as_dict(found))
    assert as_dict(pickle.loads(pickle.dumps(found))) == as_dict(found)
    empty = ClassLocations.from_arrays(ClassLocations((2, 3)).to_arrays())
    assert (empty.shape, empty.present()) == ((2, 3), ())
    for change in (
        {"counts": np.array([1])},
        {"indices": np.full(31, 20 * 24 * 28, np.uint32)},
        {"labels": None},
        {"shape": 3},
    ):
        with pytest.raises(FormatError, match="no locations of labels"):
            ClassLocations.from_arrays({**found.to_arrays(), **change})


def nnunet_case(folder: Path, locations: object) -> None:
    image = np.ones((1, *LABELS.shape), np.float32)
    properties = {"spacing": [1.0, 1.0, 1.0], "class_locations": locations}
    NNUNetDataset.save_case(image, LABELS[np.newaxis].astype(np.int8), properties, folder / "case")


KEPT = {
    1: np.column_stack([np.zeros(2, np.int64), [[2, 3, 6], [19, 23, 27]]]),
    2: np.array([[0, 5, 6, 7]]),
    (1, 2): np.array([[0, 1, 1, 1]]),
    3: [],
}


def test_voxels_that_nnunet_kept_are_taken_where_the_chain_keeps_the_grid(tmp_path: Path) -> None:
    nnunet_case(tmp_path, KEPT)
    image, seg = open_source(tmp_path / "case.mla"), open_source(tmp_path / "case_seg.mla")
    found = kept_by_nnunet(plan(seg, [], patch_size=8), [image.info])
    assert found is not None
    assert as_dict(found) == {1: [[2, 3, 6], [19, 23, 27]], 2: [[5, 6, 7]], 3: []}
    assert found.present() == (1, 2)
    turned = kept_by_nnunet(plan(seg, [T.Flip("0"), T.Permute("2|1|0")], patch_size=8), [image.info])
    assert turned is not None
    assert as_dict(turned) == {1: [[6, 3, 17], [27, 23, 0]], 2: [[7, 6, 14]], 3: []}
    box = {"box": [[4, 4], [0, 0], [0, 0]]}
    cropped = kept_by_nnunet(plan(seg, [T.Crop()], patch_size=8, attributes=box), [image.info])
    assert cropped is not None
    assert as_dict(cropped) == {1: [], 2: [[1, 6, 7]], 3: []}


def test_a_chain_that_changes_grid_or_labels_measures_itself(tmp_path: Path) -> None:
    nnunet_case(tmp_path, KEPT)
    image, seg = open_source(tmp_path / "case.mla"), open_source(tmp_path / "case_seg.mla")
    for chain in ([T.FlatLabel([1])], [T.ResampleToShape([10, 12, 14])], [T.Dilate(1)]):
        assert kept_by_nnunet(plan(seg, chain, patch_size=8), [image.info]) is None
    found = locations_of(plan(seg, [T.FlatLabel([1])], patch_size=8), beside=[image.info])
    assert as_dict(found) == {1: np.argwhere(LABELS == 1).tolist()}
    assert kept_by_nnunet(plan_of(LABELS), [image.info]) is None  # not what nnU-Net preprocessed
    assert kept_by_nnunet(plan(seg, [], patch_size=8)) is None  # they stand with the image


def test_voxels_beside_files_of_nnunet_itself_are_found(tmp_path: Path) -> None:
    import shutil
    import subprocess
    import sys

    nnunet_case(tmp_path, {1: np.array([[0, 2, 3, 6]])})
    command = [
        sys.executable,
        "-c",
        "from mlarray_convert.cli import main; main()",
        "convert",
        str(tmp_path / "case.mla"),
    ]
    subprocess.run([*command, "--to", "b2nd", "-o", str(tmp_path / "case.b2nd")], check=True, capture_output=True)
    assert (tmp_path / "case.pkl").is_file()
    shutil.copyfile(tmp_path / "case_seg.mla", tmp_path / "case_seg.mla.keep")
    image = open_as(format_named("b2nd"), tmp_path / "case.b2nd")
    found = kept_by_nnunet(plan(open_source(tmp_path / "case_seg.mla"), [], patch_size=8), [image.info])
    assert found is not None
    assert as_dict(found) == {1: [[2, 3, 6]]}


def test_what_was_found_is_kept_and_found_again(tmp_path: Path) -> None:
    from mlarray import MLArray

    MLArray(LABELS, axes="zyx").save(tmp_path / "seg.mla")
    store = Kept(tmp_path / ".mlarray", root=tmp_path)
    watched = WatchedSource(open_source(tmp_path / "seg.mla"))
    first = locations_of(plan(watched, [T.Flip("1")], patch_size=8), store=store)
    reads = len(watched.regions)
    again = locations_of(plan(watched, [T.Flip("1")], patch_size=8), store=store)
    assert (reads, len(watched.regions)) == (1, 1)
    assert as_dict(again) == as_dict(first)
    locations_of(plan(watched, [T.Flip("0")], patch_size=8), store=store)
    locations_of(plan(watched, [T.Flip("1")], patch_size=8), store=store, limit=5)
    assert len(watched.regions) == 3
    MLArray(LABELS[::-1].copy(), axes="zyx").save(tmp_path / "seg.mla")
    changed = locations_of(plan(open_source(tmp_path / "seg.mla"), [T.Flip("1")], patch_size=8), store=store)
    assert as_dict(changed) != as_dict(first)


def test_an_array_in_memory_is_measured_each_time(tmp_path: Path) -> None:
    store = Kept(tmp_path)
    found = locations_of(plan_of(LABELS), store=store)
    assert found.present() == (1, 2, 3, 9)
    assert list(tmp_path.iterdir()) == []


def test_slabs_cover_a_volume_of_any_proportions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_VOXELS", 50)
    for shape in ((7, 3, 4), (3, 20, 11), (2, 3, 120), (0, 4, 4), (60,)):
        covered = np.zeros(shape, int)
        for region in module._slabs(shape):
            assert isinstance(region, Region)
            assert region.size <= 50
            covered[region.slices] += 1
        assert (covered == 1).all()
