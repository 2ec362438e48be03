"""NIfTI inputs that went wrong in other tools, and what is right for each. Values are those of the recorded cases."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk

from mlarray.errors import FormatError
from mlarray.formats.nifti import open_source
from mlarray.metadata.values import to_jsonable
from mlarray.region import Region
from mlarray.sources.base import Access
from tests.conformance.nifti_files import (
    RAW,
    codes,
    everything,
    gunzip_in_place,
    oblique,
    patch,
    ras_of,
    save_source,
    scaled,
)

POSITION_ATOL_MM = 1e-3  # the tolerance that the recorded cases grade geometry with
ARRAY = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)  # file order x, y, z


@pytest.mark.parametrize(
    ("slope", "inter"), [(0, 0), (0, 100), (np.nan, np.nan), (np.inf, 0), (np.nan, 5), (0, np.nan)]
)
def test_a_slope_that_is_zero_or_not_finite_means_no_scaling(tmp_path: Path, slope: float, inter: float) -> None:
    source = open_source(scaled(tmp_path / "a.nii", slope, inter))
    assert source.spec.dtype == np.int16
    assert everything(source).ravel().tolist() == [0, 1, 2, -3, 1000, 32767]


@pytest.mark.parametrize(("slope", "inter", "noted"), [(0, 100, True), (np.nan, 5, True), (np.nan, np.nan, False)])
def test_scaling_that_is_ignored_is_noted_unless_nothing_was_stated(
    tmp_path: Path, slope: float, inter: float, noted: bool
) -> None:
    assert ("scaling-ignored" in codes(open_source(scaled(tmp_path / "a.nii", slope, inter)))) is noted


def test_an_intercept_that_is_no_number_counts_as_zero_and_names_the_file(tmp_path: Path) -> None:
    source = open_source(scaled(tmp_path / "case7.nii", 1, np.nan))
    assert everything(source).ravel().tolist() == [0, 1, 2, -3, 1000, 32767]
    (note,) = [note for note in source.info.notes if note.code == "scaling-repaired"]
    assert "case7.nii" in note.message
    halved = open_source(scaled(tmp_path / "b.nii", 0.5, np.inf))
    assert everything(halved).ravel().tolist() == [0, 0.5, 1, -1.5, 500, 16383.5]


def test_a_fractional_slope_gives_floats(tmp_path: Path) -> None:
    source = open_source(scaled(tmp_path / "a.nii", 1e-3, 0))
    assert source.spec.dtype == np.float32
    values = everything(source).ravel()
    assert values[5] == pytest.approx(32.767, rel=1e-6)
    assert values[1] == pytest.approx(0.001, rel=1e-6)


def test_a_whole_slope_gives_integers_wide_enough(tmp_path: Path) -> None:
    source = open_source(scaled(tmp_path / "a.nii", 2, -1024))
    assert source.spec.dtype == np.int32
    assert everything(source).ravel().tolist() == [-1024, -1022, -1020, -1030, 976, 64510]


def test_large_integers_with_a_fraction_give_float64(tmp_path: Path) -> None:
    raw = np.array([16777217, 2, 3], dtype=np.int32).reshape(3, 1, 1)
    source = open_source(scaled(tmp_path / "a.nii", 1, 0.5, raw))
    assert source.spec.dtype == np.float64
    assert everything(source).ravel().tolist() == [16777217.5, 2.5, 3.5]


@pytest.mark.parametrize(("sform_code", "qform_code"), [(2, 1), (1, 2)])
def test_the_sform_wins_over_a_qform_that_differs_and_the_difference_is_noted(
    tmp_path: Path, sform_code: int, qform_code: int
) -> None:
    image = nib.Nifti1Image(ARRAY, None)
    image.set_qform(np.diag([2.0, 2, 2, 1]), qform_code)
    moved = np.diag([2.0, 2, 2, 1])
    moved[:3, 3] = [10, -5, 3]
    image.set_sform(moved, sform_code)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert ras_of(source, (0, 0, 0)) == (10, -5, 3)
    assert source.info.header["qform"][0][3] == 0
    (note,) = [note for note in source.info.notes if note.code == "geometry-disagreement"]
    assert "11.5758" in note.message  # the length of (10, -5, 3)


def test_equal_forms_are_not_noted(tmp_path: Path) -> None:
    image = nib.Nifti1Image(ARRAY, oblique())
    image.set_qform(oblique(), 1)
    nib.save(image, tmp_path / "a.nii")
    assert codes(open_source(tmp_path / "a.nii")) == set()


@pytest.mark.parametrize("srow", [[0.0] * 12, [np.nan] * 12])
def test_a_singular_sform_falls_back_to_the_qform(tmp_path: Path, srow: list[float]) -> None:
    image = nib.Nifti1Image(ARRAY, np.diag([2.0, 2, 2, 1]))
    image.set_qform(np.diag([2.0, 2, 2, 1]), 1)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(patch(tmp_path / "a.nii", 280, "<12f", *srow))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (2, 2, 2)
    assert "sform-unusable" in codes(source)


def test_a_singular_sform_without_qform_keeps_only_the_voxel_size(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(ARRAY, np.diag([2.0, 3, 4, 1])), tmp_path / "a.nii")
    patch(tmp_path / "a.nii", 252, "<h", 0)
    source = open_source(patch(tmp_path / "a.nii", 280, "<12f", *[0.0] * 12))
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == {"spacing"}
    assert source.spec.geometry.spacing == (4, 3, 2)


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5)])
def test_without_form_codes_the_voxel_size_is_all_that_is_known(tmp_path: Path, shape: tuple[int, ...]) -> None:
    image = nib.Nifti1Image(np.zeros(shape, np.int16), None)
    image.header.set_zooms((2.0, 3.0, 4.0)[: len(shape)])
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == {"spacing"}
    assert source.spec.geometry.coord_system is None
    assert source.spec.geometry.spacing == ((4, 3, 2) if len(shape) == 3 else (3, 2))
    assert "geometry-assumed" in codes(source)


def test_a_sheared_sform_is_kept_in_full(tmp_path: Path) -> None:
    affine = np.diag([1.0, 1, 3, 1])
    affine[1, 2] = 0.8
    image = nib.Nifti1Image(ARRAY, affine)
    image.set_qform(None, 0)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    np.testing.assert_allclose(ras_of(source, (3, 0, 0)), (0, 2.4, 9), atol=1e-6)
    assert source.spec.geometry is not None
    assert source.spec.geometry.is_sheared


def test_a_time_series_has_a_time_axis_in_seconds(tmp_path: Path) -> None:
    data = np.arange(120, dtype=np.int16).reshape(2, 3, 4, 5)
    image = nib.Nifti1Image(data, np.diag([2.0, 2, 3, 1]))
    image.header.set_zooms((2, 2, 3, 2500))
    image.header.set_xyzt_units("mm", "msec")
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert source.spec.shape == (5, 4, 3, 2)
    time, *space = source.spec.axes
    assert (time.name, time.type, time.unit, time.step) == ("t", "time", "second", 2.5)
    assert [(axis.name, axis.type, axis.unit) for axis in space] == [(n, "space", "millimeter") for n in "zyx"]
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (3, 2, 2)
    np.testing.assert_array_equal(everything(source), data.T)


def test_a_last_axis_of_one_voxel_is_dropped_and_noted(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(ARRAY[..., None], np.eye(4)), tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert source.spec.shape == (6, 5, 4)
    assert codes(source) == {"axis-dropped"}
    np.testing.assert_array_equal(everything(source), ARRAY.T)


@pytest.mark.parametrize(
    ("bits", "unit", "factor"),
    [(0, None, 1), (8, "second", 1), (16, "second", 1e-3), (24, "second", 1e-6), (32, "hertz", 1), (40, "ppm", 1)],
)
def test_units_of_time_are_told_apart(tmp_path: Path, bits: int, unit: str | None, factor: float) -> None:
    image = nib.Nifti1Image(np.zeros((1, 1, 1, 2), np.uint8), np.eye(4))
    image.header.set_zooms((1, 1, 1, 500))
    image.header["xyzt_units"] = 2 | bits
    nib.save(image, tmp_path / "a.nii")
    time = open_source(tmp_path / "a.nii").spec.axes[0]
    assert (time.unit, time.step) == (unit, pytest.approx(500 * factor))


def test_a_vector_image_has_components_and_no_time(tmp_path: Path) -> None:
    data = np.broadcast_to(np.array([1, 2, 3], np.float32), (4, 5, 6, 1, 3)).copy()
    image = nib.Nifti1Image(data, np.eye(4))
    image.header.set_intent("vector")
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert [(axis.name, axis.type) for axis in source.spec.axes] == [
        ("v", "components"),
        *((n, "space") for n in "zyx"),
    ]
    assert source.spec.shape == (3, 6, 5, 4)
    for component in range(3):
        assert np.all(everything(source)[component] == component + 1)


def test_axes_beyond_time_without_a_vector_intent_are_channels(tmp_path: Path) -> None:
    data = np.arange(2 * 2 * 2 * 2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 2, 2, 2, 3, 4, 5)
    nib.save(nib.Nifti1Image(data, np.eye(4)), tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert [(axis.name, axis.type) for axis in source.spec.axes[:4]] == [
        ("dim7", "other"),
        ("dim6", "other"),
        ("c", "channel"),
        ("t", "time"),
    ]
    np.testing.assert_array_equal(everything(source), data.T)


@pytest.mark.parametrize(("fields", "colours"), [("RGB", 3), ("RGBA", 4)])
def test_colours_are_a_channel_axis_in_front_of_space(tmp_path: Path, fields: str, colours: int) -> None:
    voxels = np.zeros((3, 4, 5), dtype=[(name, "u1") for name in fields])
    for value, name in enumerate(fields, start=1):
        voxels[name] = value
    voxels["G"][2, 1, 0] = 77
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert source.spec.dtype == np.uint8
    assert source.spec.shape == (colours, 5, 4, 3)
    assert [axis.type for axis in source.spec.axes] == ["channel", "space", "space", "space"]
    assert everything(source)[:, 4, 3, 2].tolist() == list(range(1, colours + 1))
    assert source.read(Region((1, 0, 1, 2), (2, 1, 2, 3))).item() == 77


def test_magic_bytes_and_not_the_suffix_decide_about_compression(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(ARRAY, oblique()), tmp_path / "a.nii.gz")
    compressed = (tmp_path / "a.nii.gz").read_bytes()
    (tmp_path / "gzipped.nii").write_bytes(compressed)
    plain = open_source(gunzip_in_place(tmp_path / "a.nii.gz"))
    assert plain.access is Access.REGION
    np.testing.assert_array_equal(everything(plain), ARRAY.T)
    hidden = open_source(tmp_path / "gzipped.nii")
    assert hidden.access is Access.SLAB
    np.testing.assert_array_equal(everything(hidden), ARRAY.T)


@pytest.mark.parametrize("named", ["a.hdr", "a.img"])
@pytest.mark.parametrize("kind", [nib.Nifti1Pair, nib.Nifti2Pair])
def test_either_file_of_a_pair_may_be_named(tmp_path: Path, named: str, kind: type) -> None:
    nib.save(kind(ARRAY, oblique()), tmp_path / "a.img")
    source = open_source(tmp_path / named)
    assert [file.name for file in source.info.files] == ["a.hdr", "a.img"]
    np.testing.assert_array_equal(everything(source), ARRAY.T)
    np.testing.assert_allclose(ras_of(source, (5, 4, 3)), (oblique() @ [3, 4, 5, 1])[:3], atol=POSITION_ATOL_MM)


def test_a_pair_may_be_compressed(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Pair(ARRAY, np.eye(4)), tmp_path / "a.img.gz")
    source = open_source(tmp_path / "a.hdr.gz")
    assert source.access is Access.SLAB
    np.testing.assert_array_equal(everything(source), ARRAY.T)


@pytest.mark.parametrize(("present", "missing"), [("a.hdr", "a.img"), ("a.img", "a.hdr")])
def test_half_a_pair_is_refused_with_the_name_of_the_other_half(tmp_path: Path, present: str, missing: str) -> None:
    nib.save(nib.Nifti1Pair(ARRAY, np.eye(4)), tmp_path / "a.img")
    (tmp_path / missing).unlink()
    with pytest.raises(FormatError, match=missing):
        open_source(tmp_path / present)


def test_big_endian_files_give_native_values(tmp_path: Path) -> None:
    header = nib.Nifti1Header(endianness=">")
    header.set_data_dtype(np.dtype(">i2"))
    image = nib.Nifti1Image(ARRAY.astype(">i2"), oblique(), header)
    nib.save(image, tmp_path / "a.nii")
    assert (tmp_path / "a.nii").read_bytes()[:4] == b"\x00\x00\x01\x5c"
    source = open_source(tmp_path / "a.nii")
    assert source.spec.dtype.isnative
    np.testing.assert_array_equal(everything(source), ARRAY.T)
    np.testing.assert_allclose(ras_of(source, (0, 0, 0)), (11, -22, 33), atol=POSITION_ATOL_MM)


def test_nifti_2_is_read(tmp_path: Path) -> None:
    nib.save(nib.Nifti2Image(ARRAY, oblique()), tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    np.testing.assert_array_equal(everything(source), ARRAY.T)
    assert source.info.header["sizeof_hdr"] == 540


def test_an_analyze_pair_has_voxels_and_voxel_size(tmp_path: Path) -> None:
    image = nib.AnalyzeImage(ARRAY, None)
    image.header.set_zooms((2, 3, 4))
    nib.save(image, tmp_path / "a.img")
    source = open_source(tmp_path / "a.hdr")
    np.testing.assert_array_equal(everything(source), ARRAY.T)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (4, 3, 2)
    assert source.spec.geometry.known == {"spacing"}


@pytest.mark.parametrize(
    ("unit", "stated", "spacing_mm"), [("micron", 500, 0.5), ("meter", 0.002, 2.0), ("mm", 3, 3.0)]
)
def test_lengths_become_millimetres(tmp_path: Path, unit: str, stated: float, spacing_mm: float) -> None:
    affine = np.diag([stated, stated, stated, 1])
    affine[0, 3] = 10 * stated
    image = nib.Nifti1Image(np.zeros((3, 3, 3), np.int16), affine)
    image.header.set_xyzt_units(unit)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((spacing_mm,) * 3)
    assert ras_of(source, (0, 0, 0))[0] == pytest.approx(10 * spacing_mm)
    assert {axis.unit for axis in source.spec.axes} == {"millimeter"}
    assert ("unit-converted" in codes(source)) is (unit != "mm")


@pytest.mark.parametrize("qform_code", [0, 1])
def test_a_negative_voxel_size_is_taken_as_positive(tmp_path: Path, qform_code: int) -> None:
    image = nib.Nifti1Image(ARRAY, None)
    image.set_qform(np.eye(4), qform_code)
    image.set_sform(None, 0)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(patch(tmp_path / "a.nii", 76, "<4f", 1, 2, -3, 4))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (4, 3, 2)
    assert "pixdim-repaired" in codes(source)


@pytest.mark.parametrize("qform_code", [0, 1])
def test_a_voxel_size_of_zero_is_assumed_to_be_one_and_not_called_known(tmp_path: Path, qform_code: int) -> None:
    image = nib.Nifti1Image(ARRAY, None)
    image.set_qform(np.eye(4), qform_code)
    image.set_sform(None, 0)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(patch(tmp_path / "a.nii", 76, "<4f", 1, 2, 3, 0))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (1, 3, 2)
    assert "spacing" not in source.spec.geometry.known
    assert "geometry-assumed" in codes(source)


def test_a_2d_image_keeps_its_full_affine_in_the_header(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(np.arange(6, dtype=np.int16).reshape(2, 3), np.diag([2.0, 3, 7, 1])), tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert [axis.name for axis in source.spec.axes] == ["y", "x"]
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (3, 2)
    assert source.info.header["sform"][2] == [0, 0, 7, 0]
    again = save_source(tmp_path / "b.nii", source)
    assert nib.load(again).header.get_sform()[2].tolist() == [0, 0, 7, 0]


def test_a_2d_image_across_the_third_world_axis_keeps_only_its_voxel_size(tmp_path: Path) -> None:
    sagittal = np.array([[0, 0, 5, 1], [2, 0, 0, 2], [0, 3, 0, 3], [0, 0, 0, 1]], dtype=float)
    nib.save(nib.Nifti1Image(np.zeros((2, 3), np.int16), sagittal), tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (3, 2)
    assert source.spec.geometry.known == {"spacing"}
    assert "geometry-reduced" in codes(source)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_64_bit_labels_are_exact(tmp_path: Path, dtype: str) -> None:
    labels = np.array([0, 1, 16777217, 70000], dtype=dtype).reshape(4, 1, 1)
    nib.save(nib.Nifti1Image(labels, np.eye(4), dtype=dtype), tmp_path / "a.nii.gz")
    source = open_source(tmp_path / "a.nii.gz")
    assert source.spec.dtype == np.dtype(dtype)
    assert everything(source).ravel().tolist() == [0, 1, 16777217, 70000]


def test_a_label_intent_says_that_voxels_are_labels(tmp_path: Path) -> None:
    image = nib.Nifti1Image(ARRAY, np.eye(4))
    nib.save(image, tmp_path / "a.nii")
    assert open_source(tmp_path / "a.nii").info.is_seg is None
    image.header.set_intent("label")
    nib.save(image, tmp_path / "b.nii")
    assert open_source(tmp_path / "b.nii").info.is_seg is True


def test_header_fields_survive_a_strict_json_reader(tmp_path: Path) -> None:
    path = scaled(tmp_path / "a.nii", np.nan, np.nan)
    source = open_source(patch(path, 148, "<2B", 0xE9, 0xFF))
    assert source.info.header["descrip"][:2] == b"\xe9\xff"
    text = json.dumps(to_jsonable(dict(source.info.header)), allow_nan=False)
    assert json.loads(text)["dim"][:4] == [3, 6, 1, 1]


def test_each_voxel_stays_where_it_was(tmp_path: Path) -> None:
    data = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)
    nib.save(nib.Nifti1Image(data, oblique()), tmp_path / "a.nii.gz")
    source = open_source(tmp_path / "a.nii.gz")
    assert source.spec.geometry is not None
    assert source.spec.geometry.orientation == "RIP"  # array order z, y, x of file axes P, I, R
    again = nib.load(save_source(tmp_path / "b.nii", source))
    np.testing.assert_allclose(again.affine, oblique(), atol=1e-5)
    values, other = everything(source), np.asanyarray(again.dataobj)
    for value in range(data.size):
        expected = (oblique() @ [*np.argwhere(data == value)[0], 1])[:3]
        np.testing.assert_allclose(
            ras_of(source, tuple(np.argwhere(values == value)[0])), expected, atol=POSITION_ATOL_MM
        )
        place = (again.affine @ [*np.argwhere(other == value)[0], 1])[:3]
        np.testing.assert_allclose(place, expected, atol=POSITION_ATOL_MM)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_simpleitk_agrees_about_values_and_places(tmp_path: Path, suffix: str) -> None:
    data = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    nib.save(nib.Nifti1Image(data, oblique()), tmp_path / f"a{suffix}")
    source = open_source(tmp_path / f"a{suffix}")
    written = save_source(tmp_path / f"b{suffix}", source)
    for path in (tmp_path / f"a{suffix}", written):
        image = sitk.ReadImage(str(path))
        np.testing.assert_array_equal(sitk.GetArrayFromImage(image), everything(source))
        assert source.spec.geometry is not None
        for index in ((0, 0, 0), (4, 3, 2), (1, 2, 1)):
            theirs = image.TransformIndexToPhysicalPoint(index[::-1])
            np.testing.assert_allclose(source.spec.geometry.world(index), theirs, atol=POSITION_ATOL_MM)


def test_the_recorded_integers_are_those_of_the_file(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(RAW, np.eye(4)), tmp_path / "a.nii")
    assert everything(open_source(tmp_path / "a.nii")).dtype == np.int16


@pytest.mark.parametrize("determinant", [1, -1])
def test_a_qform_alone_places_voxels_as_nibabel_does(tmp_path: Path, determinant: int) -> None:
    affine = oblique() @ np.diag([determinant, 1, 1, 1])
    image = nib.Nifti1Image(ARRAY, None)
    image.set_qform(affine, 1)
    image.set_sform(None, 0)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    for index in ((0, 0, 0), (5, 4, 3)):
        expected = (nib.load(tmp_path / "a.nii").affine @ [*index[::-1], 1])[:3]
        np.testing.assert_allclose(ras_of(source, index), expected, atol=1e-9)
        np.testing.assert_allclose(ras_of(source, index), (affine @ [*index[::-1], 1])[:3], atol=POSITION_ATOL_MM)


def test_a_qform_that_is_no_number_keeps_only_the_voxel_size(tmp_path: Path) -> None:
    image = nib.Nifti1Image(ARRAY, None)
    image.set_qform(np.diag([2.0, 3, 4, 1]), 1)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(patch(tmp_path / "a.nii", 256, "<f", np.nan))
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == {"spacing"}
    assert source.spec.geometry.spacing == (4, 3, 2)
    assert codes(source) == {"qform-unusable", "geometry-assumed"}


def test_an_fsl_warp_keeps_its_components_on_axis_4(tmp_path: Path) -> None:
    image = nib.Nifti1Image(np.zeros((4, 5, 6, 3), np.float32), np.eye(4))
    image.header["intent_code"] = 2006
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    assert (source.spec.axes[0].name, source.spec.axes[0].type) == ("v", "components")
    again = nib.load(save_source(tmp_path / "b.nii", source))
    assert again.shape == (4, 5, 6, 3)
    assert again.header["intent_code"] == 2006


def test_the_scale_factor_of_an_spm_analyze_header_is_applied_and_noted(tmp_path: Path) -> None:
    nib.save(nib.AnalyzeImage(ARRAY, None), tmp_path / "a.img")
    patch(tmp_path / "a.hdr", 112, "<f", 0.5)
    source = open_source(tmp_path / "a.hdr")
    np.testing.assert_array_equal(everything(source), ARRAY.T / 2)
    assert "scaling-assumed" in codes(source)
