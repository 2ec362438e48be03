"""Which files become cases, and where each goes: names alone decide."""

import os
from pathlib import Path

import pytest

from mlarray.errors import UsageError
from mlarray_convert.discovery import Case, Discovery, discover
from mlarray_convert.request import make_request


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def found(root: Path, **options: object) -> Discovery:
    return discover(make_request(root, **options))  # type: ignore[arg-type]


def outputs(discovery: Discovery, root: Path) -> dict[str, str]:
    return {str(c.source.relative_to(root)): str(c.output.relative_to(root.parent)) for c in discovery.cases}


def case(discovery: Discovery, name: str) -> Case:
    return next(one for one in discovery.cases if one.name == name)


def test_a_folder_is_written_beside_itself_with_the_same_tree(tmp_path: Path) -> None:
    root = tree(tmp_path / "data", "a.nii.gz", "sub/deep/b.nrrd", "notes.txt")
    discovery = found(root)
    assert outputs(discovery, root) == {"a.nii.gz": "data_mla/a.mla", "sub/deep/b.nrrd": "data_mla/sub/deep/b.mla"}
    assert (discovery.junk, discovery.others) == (0, 1)


def test_only_known_suffixes_are_stripped_from_names_with_dots(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "case.1.nii.gz", "case.2.nii.gz", "11ah-1.8_roi1.nii", "UPPER.NII.GZ")
    names = sorted(c.output.name for c in found(root).cases)
    assert names == ["11ah-1.8_roi1.mla", "UPPER.mla", "case.1.mla", "case.2.mla"]


def test_two_inputs_for_one_output_are_refused_and_all_are_named(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "a.nii.gz", "a.nrrd", "Case.nii", "case.nii", "x/same.nii", "y/same.nii")
    with pytest.raises(UsageError) as refused:
        found(root)
    for name in ("a.nii.gz", "a.nrrd", "Case.nii", "case.nii"):
        assert name in str(refused.value)
    assert "same.nii" not in str(refused.value)


def test_the_same_name_in_two_folders_stays_two_cases(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "x/same.nii", "y/same.nii")
    assert [c.name for c in found(root).cases] == ["x/same", "y/same"]


def test_what_systems_and_archives_leave_behind_is_counted_and_ignored(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "d",
        *("a.nii", "._a.nii", ".DS_Store", "Thumbs.db", "__MACOSX/a.nii", ".hidden/b.nii", ".c.mla.host-1-0.part"),
    )
    discovery = found(root)
    assert [c.name for c in discovery.cases] == ["a"]
    assert discovery.junk == 6


def test_the_voxel_half_of_a_pair_is_not_a_case(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "a.hdr", "a.img", "b.mhd", "b.raw", "c.mhd", "c.zraw", "d.nhdr", "d.raw.gz")
    assert sorted(c.source.name for c in found(root).cases) == ["a.hdr", "b.mhd", "c.mhd", "d.nhdr"]


def test_existing_outputs_are_no_inputs_unless_another_format_is_wanted(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "a.nii", "b.mla")
    assert [c.source.name for c in found(root).cases] == ["a.nii"]
    assert [c.source.name for c in found(root, to="nifti", output=tmp_path / "o").cases] == ["b.mla"]


def test_an_output_folder_inside_the_input_is_not_searched(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "a.nii", "out/a.nii.gz", "out/deep/b.nii.gz")
    assert [c.name for c in found(root, output=root / "out").cases] == ["a"]


def test_the_input_folder_cannot_be_the_output_folder(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "a.nii")
    with pytest.raises(UsageError, match="is the input folder"):
        found(root, output=root)


def test_an_output_that_is_an_input_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.mla")
    with pytest.raises(UsageError, match="would replace an input"):
        found(root / "a.mla")


def test_several_inputs_keep_apart_by_the_names_of_their_folders(tmp_path: Path) -> None:
    tree(tmp_path, "one/a.nii", "two/a.nii", "b.nii")
    request = make_request([tmp_path / "one", tmp_path / "two", tmp_path / "b.nii"], tmp_path / "out")
    assert [str(c.output.relative_to(tmp_path)) for c in discover(request).cases] == [
        "out/b.mla",
        "out/one/a.mla",
        "out/two/a.mla",
    ]


def test_a_file_named_twice_is_one_case(tmp_path: Path) -> None:
    tree(tmp_path, "a.nii")
    assert len(discover(make_request([tmp_path / "a.nii", tmp_path / "a.nii"])).cases) == 1


def test_links_to_files_are_followed_and_loops_of_folders_are_told(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "sub/a.nii")
    (tmp_path / "elsewhere").mkdir()
    tree(tmp_path / "elsewhere", "b.nii")
    (root / "b.nii").symlink_to(tmp_path / "elsewhere" / "b.nii")
    (root / "sub" / "loop").symlink_to(root)
    discovery = found(root)
    assert [c.name for c in discovery.cases] == ["b", "sub/a"]
    assert discovery.remarks == (f"{root / 'sub' / 'loop'} leads back to a folder above it and was not followed.",)


def test_an_input_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file.*nowhere"):
        found(tmp_path / "nowhere")


def test_a_folder_named_by_a_dot_has_its_output_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "d", "a.nii")
    monkeypatch.chdir(root)
    assert [os.path.realpath(c.output) for c in found(Path(".")).cases] == [str(tmp_path / "d_mla" / "a.mla")]


def test_nnunet_folders_say_what_is_a_segmentation_and_on_which_images_it_lies(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "Dataset001",
        *("dataset.json", "imagesTr/c1_0000.nii.gz", "imagesTr/c1_0001.nii.gz", "imagesTr/c12_0000.nii.gz"),
        *("labelsTr/c1.nii.gz", "labelsTr/c12.nii.gz", "imagesTs/c3_0000.nii.gz"),
    )
    discovery = found(root)
    assert [c.name for c in discovery.cases if c.is_label] == ["labelsTr/c1", "labelsTr/c12"]
    label = case(discovery, "labelsTr/c1")
    assert [image.name for image in label.images] == ["c1_0000.nii.gz", "c1_0001.nii.gz"]
    assert label.every_image
    assert [image.name for image in case(discovery, "imagesTr/c1_0001").images] == ["c1_0000.nii.gz"]
    assert case(discovery, "imagesTr/c1_0000").images == ()


def test_in_a_tree_of_patients_the_segmentation_lies_on_one_of_the_images(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "CASE_001/CT.mha", "CASE_001/PET.mha", "CASE_001/SEG.nii.gz", "CASE_002/CT.mha")
    label = case(found(root), "CASE_001/SEG")
    assert label.is_label
    assert not label.every_image
    assert [image.name for image in label.images] == ["CT.mha", "PET.mha"]


@pytest.mark.parametrize("name", ["p1_seg.nii", "p1-mask.nii", "p1.seg.nrrd", "p1_dseg.nii.gz", "p1 label.nii"])
def test_segmentations_beside_their_image_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path / "d", "p1.nii.gz", "p2.nii.gz", name)
    labels = [c for c in found(root).cases if c.is_label]
    assert [c.source.name for c in labels] == [name]
    assert [image.name for image in labels[0].images] == ["p1.nii.gz"]


@pytest.mark.parametrize("name", ["masked.nii", "unlabelled.nii", "segment_ct.nii", "image.nii"])
def test_names_that_only_sound_alike_are_images(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path / "d", name)
    assert not found(root).cases[0].is_label


def test_a_pattern_or_none_overrides_the_guess(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "labelsTr/a.nii", "gt/b.nii", "b.nii")
    assert not any(c.is_label for c in found(root, labels="none").cases)
    assert [c.name for c in found(root, labels="gt/*").cases if c.is_label] == ["gt/b"]
    assert [c.name for c in found(root, labels="a.*").cases if c.is_label] == ["labelsTr/a"]


def test_a_slicer_segmentation_beside_its_image_keeps_its_own_name(tmp_path: Path) -> None:
    root = tree(tmp_path / "d", "case.nrrd", "case.seg.nrrd", "lone.seg.nrrd")
    assert sorted(c.output.name for c in found(root).cases) == ["case.mla", "case.seg.mla", "lone.mla"]
