"""Cases of a data set are found by the names of files, in every layout that people use."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import MissingFileError, UnknownFormatError, UsageError
from mlarray.streaming.case_choice import chosen
from mlarray.streaming.case_set import CaseFiles, CaseSet, Place, find_cases, open_place, split


def touch(root: Path, *names: str) -> Path:
    """Files of which only the names matter."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def places(found: CaseSet, root: Path) -> dict[str, dict[str, str]]:
    return {
        case.name: {group: str(place).replace(f"{root}", "").replace("\\", "/") for group, place in case.places.items()}
        for case in found.cases
    }


def store(path: Path, *names: str) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = np.zeros((2, 3, 4), np.uint8)
    return path


def test_folders_of_cases_hold_a_file_for_each_group(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "p2/CT.mha",
        "p2/SEG.nii.gz",
        "p1/CT.nii",
        "p1/SEG.mla",
        "p1/notes.txt",
        "p1/._CT.nii",
        ".mlarray/a.npz",
    )
    found = find_cases(tmp_path)
    assert found.groups == ("CT", "SEG")
    assert places(found, tmp_path) == {
        "p1": {"CT": "/p1/CT.nii", "SEG": "/p1/SEG.mla"},
        "p2": {"CT": "/p2/CT.mha", "SEG": "/p2/SEG.nii.gz"},
    }
    assert found.told == f"{tmp_path}: 2 cases, files CASE/GROUP. 2 cases with CT, SEG."
    assert pickle.loads(pickle.dumps(found)) == found


def test_folders_of_folders_give_longer_names_of_cases(tmp_path: Path) -> None:
    touch(tmp_path, "north/p1/CT.mla", "south/p1/CT.mla")
    assert find_cases(tmp_path).names == ("north/p1", "south/p1")


def test_folders_of_groups_are_told_by_the_groups_that_are_wanted(tmp_path: Path) -> None:
    touch(tmp_path, "images/a.nii.gz", "images/b.nii.gz", "masks/a.nrrd", "masks/b.nrrd")
    found = find_cases(tmp_path, groups=["images", "masks"])
    assert places(found, tmp_path)["b"] == {"images": "/images/b.nii.gz", "masks": "/masks/b.nrrd"}


def test_folders_that_are_one_image_are_groups_whatever_the_format_says(tmp_path: Path) -> None:
    touch(tmp_path, "p1/CT.ome.zarr/zarr.json", "p1/PT.zarr/0/zarr.json", "p1/MR/.zattrs", "p1/SEG.mha")
    dicom = tmp_path / "p1" / "XA"
    dicom.mkdir()
    (dicom / "IM1").write_bytes(bytes(128) + b"DICM" + bytes(8))
    touch(tmp_path, "p1/US/1.dcm", "p1/US/2.dcm")
    found = find_cases(f"{tmp_path}:a:mha")
    assert found.groups == ("CT", "MR", "PT", "SEG", "US", "XA")
    assert found.cases[0].places["US"].path == tmp_path / "p1" / "US"


def test_dicom_files_named_as_groups_are_files(tmp_path: Path) -> None:
    touch(tmp_path, "p1/CT.dcm", "p1/SEG.dcm", "p2/CT.dcm", "p2/SEG.dcm")
    assert find_cases(tmp_path, groups=["CT"]).cases[0].places["CT"].path.name == "CT.dcm"
    assert find_cases(f"{tmp_path}:dcm").groups == ("CT", "SEG")
    assert [case.places["data"].path.name for case in find_cases(tmp_path)] == ["p1", "p2"]


def test_a_format_may_name_the_image_of_each_file(tmp_path: Path) -> None:
    touch(tmp_path, "p1/CT.ome.zarr/zarr.json", "p2/CT.ome.zarr/zarr.json")
    assert [case.places["CT"].item for case in find_cases(f"{tmp_path}:omezarr@1")] == ["1", "1"]


def test_two_files_of_one_group_need_a_format(tmp_path: Path) -> None:
    touch(tmp_path, "p1/CT.mha", "p1/CT.nii.gz")
    with pytest.raises(UsageError, match=r"two files are the same group of a case: p1, CT: .*CT.mha and .*CT.nii.gz"):
        find_cases(tmp_path)
    assert places(find_cases(f"{tmp_path}:nii.gz"), tmp_path) == {"p1": {"CT": "/p1/CT.nii.gz"}}
    assert places(find_cases(f"{tmp_path}:metaimage"), tmp_path) == {"p1": {"CT": "/p1/CT.mha"}}


def test_files_beside_each_other_have_one_group_named_by_the_caller(tmp_path: Path) -> None:
    touch(tmp_path, "a.mla", "b.mla")
    assert places(find_cases(tmp_path, groups=["CT"]), tmp_path) == {"a": {"CT": "/a.mla"}, "b": {"CT": "/b.mla"}}
    assert find_cases(tmp_path).groups == ("data",)


def test_a_preprocessed_folder_of_nnunet_has_data_and_seg(tmp_path: Path) -> None:
    touch(tmp_path, "a.b2nd", "a_seg.b2nd", "a.pkl", "b.b2nd", "b_seg.b2nd", "b.pkl")
    found = find_cases(tmp_path)
    assert found.told.endswith("files CASE_seg and CASE. 2 cases with data, seg.")
    assert places(found, tmp_path)["a"] == {"data": "/a.b2nd", "seg": "/a_seg.b2nd"}
    assert find_cases(tmp_path, groups=["data"]).groups == ("data",)
    assert places(find_cases(tmp_path, groups=["data"]), tmp_path)["a"]["data"] == "/a.b2nd"
    assert places(find_cases(tmp_path, groups=["seg"]), tmp_path)["a"] == {"seg": "/a_seg.b2nd"}
    assert places(find_cases(tmp_path, groups=["CT", "SEG"]), tmp_path)["a"] == {"CT": "/a.b2nd", "SEG": "/a_seg.b2nd"}


def test_of_several_configurations_of_nnunet_one_must_be_named(tmp_path: Path) -> None:
    touch(tmp_path, "gt_segmentations/a.nii.gz", "nnUNetPlans_2d/a.b2nd", "nnUNetPlans_2d/a_seg.b2nd", "dataset.json")
    assert find_cases(tmp_path).groups == ("data", "seg")
    touch(tmp_path, "nnUNetPlans_3d_fullres/a.b2nd", "nnUNetPlans_3d_fullres/a_seg.b2nd")
    with pytest.raises(UsageError, match="2 configurations of nnU-Net: nnUNetPlans_2d, nnUNetPlans_3d_fullres"):
        find_cases(tmp_path)
    assert find_cases(tmp_path / "nnUNetPlans_3d_fullres").names == ("a",)


def test_marks_at_the_end_of_names_are_groups_that_are_wanted(tmp_path: Path) -> None:
    touch(tmp_path, "p1_T1.nii", "p1_T1ce.nii", "p1-seg.nii", "p2_T1.nii", "p2_T1ce.nii", "p2-seg.nii", "atlas.nii")
    found = find_cases(tmp_path, groups=["T1", "T1ce", "SEG"])
    assert places(found, tmp_path)["p2"] == {"T1": "/p2_T1.nii", "T1ce": "/p2_T1ce.nii", "SEG": "/p2-seg.nii"}
    with pytest.raises(UsageError, match=r"names in .* tell no group, and 2 are wanted: A, B"):
        find_cases(tmp_path, groups=["A", "B"])


def test_a_segmentation_of_3d_slicer_beside_its_image_is_told_apart(tmp_path: Path) -> None:
    touch(tmp_path, "flat/a.nrrd", "flat/a.seg.nrrd", "tree/p/CT.nrrd", "tree/p/CT.seg.nrrd")
    assert places(find_cases(tmp_path / "flat"), tmp_path / "flat") == {"a": {"data": "/a.nrrd", "seg": "/a.seg.nrrd"}}
    assert find_cases(tmp_path / "tree").groups == ("CT", "CT_seg")


def test_the_voxel_half_of_a_pair_is_no_case(tmp_path: Path) -> None:
    touch(tmp_path, "a.hdr", "a.img", "b.hdr", "b.img")
    assert find_cases(tmp_path).names == ("a", "b")


def test_raw_data_of_nnunet_has_a_group_for_each_channel_and_the_labels(tmp_path: Path) -> None:
    cases = [f"imagesTr/{case}_{number}.nii.gz" for case in ("la_1", "la_2") for number in ("0000", "0001")]
    touch(tmp_path, *cases, "labelsTr/la_1.nii.gz", "labelsTr/la_2.nii.gz", "imagesTs/la_3_0000.nii.gz")
    assert find_cases(tmp_path).groups == ("0000", "0001", "labels")
    (tmp_path / "dataset.json").write_text(json.dumps({"channel_names": {"0": "T1", "1": "FLAIR"}}), encoding="utf-8")
    found = find_cases(tmp_path)
    assert found.groups == ("FLAIR", "T1", "labels")
    assert (
        found.told
        == f"{tmp_path}: 2 cases, nnU-Net's imagesTr/CASE_CHANNEL and labelsTr/CASE. 2 cases with FLAIR, T1, labels."
    )
    assert found.cases[0].places["FLAIR"].path.name == "la_1_0001.nii.gz"
    assert find_cases(tmp_path, groups=["0001"]).cases[0].places["0001"].path.name == "la_1_0001.nii.gz"
    assert find_cases(tmp_path / "imagesTs").names == ("la_3",)


def test_channels_of_one_name_keep_their_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "imagesTr/a_0000.nii.gz", "imagesTr/a_0001.nii.gz", "imagesTr/a_0002.nii.gz")
    described = {"channel_names": {"0": "noNorm", "1": "noNorm", "2": "CT"}}
    (tmp_path / "dataset.json").write_text(json.dumps(described), encoding="utf-8")
    assert find_cases(tmp_path).groups == ("0000", "0001", "CT")


def test_raw_data_without_numbers_has_one_image(tmp_path: Path) -> None:
    touch(tmp_path, "imagesTr/a.nii.gz", "labelsTr/a.nii.gz")
    (tmp_path / "dataset.json").write_text('{"modality": {"0": "MRI"}}', encoding="utf-8")
    assert find_cases(tmp_path).groups == ("MRI", "labels")
    assert find_cases(tmp_path, groups=["image", "labels"]).groups == ("image", "labels")


def test_one_hdf5_file_holds_groups_of_cases_or_cases_of_groups(tmp_path: Path) -> None:
    path = store(tmp_path / "all.h5", "CT/p1", "CT/p2", "SEG/p1", "SEG/p2")
    found = find_cases(path)
    assert places(found, path) == {
        "p1": {"CT": "@/CT/p1", "SEG": "@/SEG/p1"},
        "p2": {"CT": "@/CT/p2", "SEG": "@/SEG/p2"},
    }
    with open_place(found.cases[1].places["SEG"]) as source:
        assert source.info.item == "/SEG/p2"
    other = store(tmp_path / "other.h5", "p1/CT", "p1/SEG")
    found = find_cases(other, groups=["SEG"])
    assert (found.groups, places(found, other)) == (("SEG",), {"p1": {"CT": "@/p1/CT", "SEG": "@/p1/SEG"}})
    both = store(tmp_path / "both.h5", "CT/SEG", "SEG/CT")
    with pytest.raises(
        UsageError, match="can be read as /GROUP/CASE and as /CASE/GROUP: CT, SEG are names on both levels"
    ):
        find_cases(both, groups=["CT", "SEG"])
    with pytest.raises(UsageError, match=r"holds both volumes \(a\) and groups of volumes \(CT/p1\)"):
        find_cases(store(tmp_path / "mixed.h5", "a", "CT/p1"))


def test_hdf5_files_hold_the_groups_of_a_case_each(tmp_path: Path) -> None:
    store(tmp_path / "p1.h5", "CT", "SEG")
    store(tmp_path / "p2.h5", "CT", "SEG")
    found = find_cases(tmp_path, groups=["CT", "SEG"])
    assert places(found, tmp_path)["p2"] == {"CT": "/p2.h5@/CT", "SEG": "/p2.h5@/SEG"}
    assert places(find_cases(tmp_path / "p1.h5"), tmp_path) == {"p1": {"CT": "/p1.h5@/CT", "SEG": "/p1.h5@/SEG"}}
    flat = store(tmp_path / "flat.h5", "a", "a_seg", "b", "b_seg")
    assert find_cases(flat, groups=["CT", "SEG"]).names == ("a", "b")


def test_cases_of_several_data_sets_are_joined_by_name(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "scans/a.mla",
        "scans/b.mla",
        "scans/c.mla",
        "SEG/a.mla",
        "SEG/b.mla",
        "more/d/CT.mla",
        "more/d/SEG.mla",
    )
    sets = [f"{tmp_path / 'scans'}", f"{tmp_path / 'SEG'}:i", f"{tmp_path / 'more'}:a:mla"]
    found = find_cases(sets, groups=["SEG", "CT"])
    assert places(found, tmp_path)["a"] == {"SEG": "/SEG/a.mla", "CT": "/scans/a.mla"}
    assert found.names == ("a", "b", "d")


def test_an_intersection_takes_the_earlier_volume_and_a_union_refuses_two(tmp_path: Path) -> None:
    touch(tmp_path, "one/a/CT.mla", "one/b/CT.mla", "two/b/CT.mla", "two/b/SEG.mla")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert places(find_cases([one, f"{two}:i"]), tmp_path) == {"b": {"CT": "/one/b/CT.mla", "SEG": "/two/b/SEG.mla"}}
    with pytest.raises(
        UsageError, match=r"1 volumes are in two data sets: b, CT: .*one.*b.*CT.mla and .*two.*b.*CT.mla"
    ):
        find_cases([one, two])
    touch(tmp_path, "three/z/CT.mla")
    with pytest.raises(UsageError, match="no case in common"):
        find_cases([one, f"{tmp_path / 'three'}:i"])


def test_cases_that_lack_a_group_are_listed(tmp_path: Path) -> None:
    touch(tmp_path, *(f"p{i}/CT.mla" for i in range(8)), "p0/SEG.mla")
    with pytest.raises(UsageError) as caught:
        find_cases(tmp_path, groups=["CT", "SEG"])
    assert caught.value.message == (
        "7 of 8 cases lack a group: p1 (SEG), p2 (SEG), p3 (SEG), p4 (SEG), p5 (SEG) and 2 more."
    )
    assert find_cases(tmp_path, groups=["CT", "SEG"], subset=["p0"]).names == ("p0",)
    assert find_cases(tmp_path).groups == ("CT",)


def test_a_group_that_nobody_has_is_compared_with_those_that_are_there(tmp_path: Path) -> None:
    touch(tmp_path, "p/CT.mla", "p/SEG.mla", "q/CT.mla")
    with pytest.raises(
        UsageError, match=r"No case has the group SEGM; there are CT \(in 2\), SEG \(in 1\). Did you mean SEG\?"
    ):
        find_cases(tmp_path, groups=["CT", "SEGM"])
    touch(tmp_path / "apart", "p/CT.mla", "q/MR.mla")
    with pytest.raises(UsageError, match=r"No group is in each of the 2 cases; there are CT \(in 1\), MR \(in 1\)"):
        find_cases(tmp_path / "apart")


def test_images_beside_folders_of_images_are_ambiguous(tmp_path: Path) -> None:
    touch(tmp_path, "atlas.nii.gz", "p/CT.mla")
    with pytest.raises(UsageError, match=r"holds both images \(atlas.nii.gz\) and folders of images \(p/CT.mla\)"):
        find_cases(tmp_path)
    assert find_cases(f"{tmp_path}:mla").names == ("p",)


def test_nothing_to_find_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no image files"):
        find_cases(tmp_path)
    with pytest.raises(UsageError, match=r"holds no \.mha files"):
        find_cases(f"{touch(tmp_path, 'p/CT.mla')}:mha")
    with pytest.raises(MissingFileError, match="no data set"):
        find_cases(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="'jpeg2k' is neither a flag nor a format"):
        find_cases(f"{tmp_path}:jpeg2k")
    with pytest.raises(UnknownFormatError, match="notes"):
        find_cases(touch(tmp_path, "notes") / "notes")
    with pytest.raises(UsageError, match="No data set"):
        find_cases([])


def test_a_colon_in_a_name_is_part_of_it(tmp_path: Path) -> None:
    root = touch(tmp_path / "set:a", "p/CT.mla")
    assert find_cases(str(root)).names == ("p",)
    assert find_cases(f"{root}:i:mla").names == ("p",)


def test_a_loop_of_links_is_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "p/CT.mla")
    (tmp_path / "p" / "again").symlink_to(tmp_path, target_is_directory=True)
    assert find_cases(tmp_path).names == ("p",)


def test_one_file_is_one_case(tmp_path: Path) -> None:
    MLArray(np.arange(24, dtype=np.int16).reshape(2, 3, 4)).save(tmp_path / "scan.mla")
    found = find_cases(tmp_path / "scan.mla", groups=["CT"])
    with open_place(found.cases[0].places["CT"], mapped=False) as source:
        assert source.spec.shape == (2, 3, 4)
    assert found.names == ("scan",)


NAMES = [f"case_{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, NAMES),
        ("case_3", ["case_3"]),
        ("0:2", NAMES[:2]),
        ("8:", NAMES[8:]),
        ("::4", ["case_0", "case_4", "case_8"]),
        ("~case_3", [*NAMES[:3], *NAMES[4:]]),
        ("~2:", NAMES[:2]),
        (["case_9", "case_0", 4, -2], ["case_0", "case_4", "case_8", "case_9"]),
        (["0:5", "~case_3", "~0:2"], ["case_2", "case_4"]),
        (["~case_3", "~case_4"], [*NAMES[:3], *NAMES[5:]]),
        (slice(1, 3), NAMES[1:3]),
        (2, ["case_2"]),
    ],
)
def test_a_subset_takes_and_leaves_out_cases_in_their_own_order(choice: object, expected: list[str]) -> None:
    assert chosen(NAMES, choice) == expected  # type: ignore[arg-type]


def test_a_subset_is_read_from_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "fold_0.txt"
    path.write_text("\ufeff# validation\ncase_4\n\n  case_2  \n", encoding="utf-8")
    assert chosen(NAMES, str(path)) == ["case_2", "case_4"]
    assert chosen(NAMES, f"~{path}") == [name for name in NAMES if name not in ("case_2", "case_4")]
    path.write_text("case_2\ncase_20\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"names 1 case that do not exist: case_20"):
        chosen(NAMES, str(path))
    path.write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(UsageError, match="no text file"):
        chosen(NAMES, str(path))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("case_33", r"no case 'case_33', .* Did you mean case_3\?"),
        ("~nobody", "no case 'nobody'"),
        (10, "no case number 10: there are 10"),
        ("::0", "step"),
        ([1.5], "made of names, numbers"),
        ([True], "made of names, numbers"),
    ],
)
def test_a_subset_of_cases_that_do_not_exist_is_refused(choice: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        chosen(NAMES, choice)  # type: ignore[arg-type]


def set_of(names: list[str]) -> CaseSet:
    return CaseSet(tuple(CaseFiles(name, {"CT": Place(Path(f"{name}.mla"))}) for name in names), ("CT",), "")


def test_a_split_depends_on_seed_and_names_only() -> None:
    train, held = split(set_of(NAMES), 0.3, seed=1)
    assert held.names == ("case_0", "case_1", "case_5")
    assert sorted([*train.names, *held.names]) == NAMES
    assert split(set_of(NAMES[::-1]), 3, seed=1)[1].names == held.names[::-1]
    assert split(set_of(NAMES), 3, seed=2)[1].names != held.names


def test_a_case_that_is_added_moves_at_most_one_other() -> None:
    names = [f"p{i:03d}" for i in range(100)]
    before = set(split(set_of(names), 20)[1].names)
    after = set(split(set_of([*names, "p100"]), 20)[1].names)
    assert len(before - after) <= 1


def test_every_case_validates_about_as_often_as_any_other() -> None:
    counts = dict.fromkeys(NAMES, 0)
    for seed in range(1000):
        for name in split(set_of(NAMES), 3, seed=seed)[1].names:
            counts[name] += 1
    assert sum(counts.values()) == 3000
    assert all(abs(count - 300) < 5 * 14.5 for count in counts.values())  # 5 deviations of a binomial number


@pytest.mark.parametrize(("share", "count"), [(0.001, 1), (0.25, 3), (0.24, 2), (9, 9), ("2:4", 2), (["~0:9"], 1)])
def test_a_split_takes_a_share_a_number_or_names(share: object, count: int) -> None:
    train, held = split(set_of(NAMES), share)  # type: ignore[arg-type]
    assert (len(held), len(train)) == (count, 10 - count)


def test_without_validation_all_cases_train() -> None:
    train, held = split(set_of(NAMES), None)
    assert (train.names, held.names) == (tuple(NAMES), ())


@pytest.mark.parametrize("wrong", [0, 10, -1, 0.0, 1.0, 1.5, True, "0:10", "5:5"])
def test_a_split_that_leaves_one_side_empty_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError):
        split(set_of(NAMES), wrong)  # type: ignore[arg-type]
