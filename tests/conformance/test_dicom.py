"""The recorded cases of DICOM series, each with the values given for it: what order, what place, what number."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.uid import EnhancedMRImageStorage, JPEGLSLossless, RLELossless, SecondaryCaptureImageStorage

from mlarray import open_source
from mlarray.errors import FormatError
from mlarray.formats import dicom
from mlarray.formats.series import SeriesOptions
from mlarray.region import Region
from mlarray.sources.base import Source
from mlarray.testing.conformance import SHAPE, SourceConformance
from tests.conformance.dicom_files import (
    AXIAL,
    OTHER_ORDERS,
    codes,
    dataset,
    enhanced,
    everything,
    only,
    plane,
    stack,
    volumes,
    world,
    write,
)

POSITION_ATOL_MM = 1e-3


def near(position: tuple[float, ...], expected: tuple[float, ...]) -> bool:
    return bool(np.allclose(position, expected, atol=POSITION_ATOL_MM))


class TestDicomSeries(SourceConformance):
    def make(self, folder: Path) -> Source:
        for k, pixels in enumerate(self.expected()):
            write(folder / f"IM{k}", pixels, ImagePositionPatient=[0, 0, 2.0 * k], InstanceNumber=k)
        return only(folder)


class TestRescaledDicomSeries(SourceConformance):
    def make(self, folder: Path) -> Source:
        for k, pixels in enumerate(self.expected()):
            write(folder / f"IM{k}", (pixels + 1024).astype("u2"), BitsStored=12, RescaleSlope=1, RescaleIntercept=-1024,
                  ImagePositionPatient=[0, 0, 2.0 * k])  # fmt: skip
        return only(folder)


class TestCompressedDicomSeries(SourceConformance):
    def make(self, folder: Path) -> Source:
        for k, pixels in enumerate(self.expected()):
            data = dataset(pixels, ImagePositionPatient=[0, 0, 2.0 * k])
            data.compress(RLELossless, generate_instance_uid=False)
            data.save_as(folder / f"IM{k}", enforce_file_format=True)
        return only(folder)


class TestMultiFrame(SourceConformance):
    def make(self, folder: Path) -> Source:
        frames = [{"PlanePositionSequence": {"ImagePositionPatient": [0, 0, 2.0 * k]}} for k in range(SHAPE[0])]
        shared = {
            "PlaneOrientationSequence": {"ImageOrientationPatient": list(AXIAL)},
            "PixelMeasuresSequence": {"PixelSpacing": [1, 1]},
        }
        return dicom.open_source(enhanced(folder / "a.dcm", self.expected(), frames, shared))


# --- order ----------------------------------------------------------------------------------------------------------


@given(st.permutations(range(4)))
def test_dcm_02_any_names_give_the_same_volume(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    folder = tmp_path_factory.mktemp("series")
    stack(folder, (0, 2, 4, 6), [f"F{number}" for number in order], InstanceNumber=1)
    source = only(folder)
    np.testing.assert_array_equal(everything(source)[:, 0, 0], [0, 1, 2, 3])
    for k in range(4):
        assert near(world(source, k), (0, 0, 2 * k))
    shutil.rmtree(folder)


def test_dcm_03_descending_slices_stay_where_they_are(tmp_path: Path) -> None:
    stack(tmp_path, (0, -2, -4, -6), SpacingBetweenSlices=-2)
    source = only(tmp_path)
    for k in range(4):
        assert near(world(source, k), (0, 0, -2 * k))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((2, 1, 1))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"array": plane(7, (5, 3))}, "odd.dcm has 5 x 3 pixels, not 4 x 4"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "odd.dcm is MONOCHROME1, not MONOCHROME2"),
        ({"ImagePositionPatient": None}, "odd.dcm states no position"),
    ],
)
def test_a_slice_of_another_kind_is_named_where_it_leaves_a_gap(tmp_path: Path, change: dict, told: str) -> None:
    stack(tmp_path, (0, 2, 6, 8))
    write(tmp_path / "odd.dcm", **{"array": plane(7), "ImagePositionPatient": [0, 0, 4], **change})
    (problem,) = [volume.problem for volume in volumes(tmp_path) if len(volume.files) == 4]
    assert "One slice is missing between 2 and 6 mm" in problem
    assert f"In the same series {told}." in problem


def test_a_picture_beside_the_slices_is_not_blamed_for_a_gap(tmp_path: Path) -> None:
    stack(tmp_path, (0, 2, 6, 8))
    write(tmp_path / "scout.dcm", plane(7, (5, 3)), ImagePositionPatient=[0, 0, 90])
    (problem,) = [volume.problem for volume in volumes(tmp_path) if len(volume.files) == 4]
    assert problem.startswith("One slice is missing")
    assert "scout" not in problem


def test_dcm_04_a_missing_slice_is_refused_and_named(tmp_path: Path) -> None:
    stack(tmp_path, (0, 1.6, 3.2, 6.4, 8))
    with pytest.raises(FormatError, match=r"One slice is missing between 3\.2 and 6\.4 mm.*step is 1\.6 mm"):
        only(tmp_path)
    with pytest.raises(FormatError, match="irregular-slices"):
        open_source(tmp_path)


def test_dcm_04_the_opt_out_keeps_positions_and_claims_no_spacing(tmp_path: Path) -> None:
    stack(tmp_path, (0, 1.6, 3.2, 6.4, 8))
    source = only(tmp_path, keep_irregular=True)
    assert source.spec.geometry is not None
    assert "spacing" not in source.spec.geometry.known
    assert source.spec.geometry.spacing[0] == pytest.approx(1.6)
    assert source.info.header["slice_offsets_mm"] == [0, 1.6, 3.2, 6.4, 8]
    assert "slices-irregular" in codes(source)


@pytest.mark.parametrize("positions", [(0, 0.9, 1.800002, 2.7), (0, 1.59998, 3.20105, 4.80103)])
def test_dcm_05_rounding_noise_is_accepted(tmp_path: Path, positions: tuple[float, ...]) -> None:
    orientations = tuple([1, k * 1e-7, 0, -k * 1e-7, 1, 0] for k in range(len(positions)))
    stack(tmp_path, positions, ImageOrientationPatient=orientations)
    source = only(tmp_path)
    assert source.spec.shape[0] == 4
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing[0] == pytest.approx(positions[1], rel=1e-3)


def test_tolerances_are_options(tmp_path: Path) -> None:
    stack(tmp_path, (0, 1, 2.1, 3.1))
    assert volumes(tmp_path)[0].problem.startswith("The steps between slices are uneven: from 1 to 1.1 mm")
    assert only(tmp_path, spacing_tolerance=0.2).spec.shape == (4, 4, 4)


def test_positions_that_a_scanner_rounded_are_an_even_line(tmp_path: Path) -> None:
    tilt = np.deg2rad(7.7)
    positions = tuple(np.round([0, -np.sin(tilt) * 7 * k, np.cos(tilt) * 7 * k], 1).tolist() for k in range(20))
    orientation = [1, 0, 0, 0, round(float(np.cos(tilt)), 6), round(float(np.sin(tilt)), 6)]
    stack(tmp_path, range(20), ImagePositionPatient=positions, ImageOrientationPatient=orientation)
    source = only(tmp_path)
    geometry = source.spec.geometry
    assert geometry is not None
    assert geometry.spacing[0] == pytest.approx(7, rel=1e-3)
    assert not geometry.is_sheared
    for k in range(20):
        np.testing.assert_allclose(geometry.world((k, 0, 0)), positions[k], atol=0.07)


def test_orientation_tolerance_is_an_option(tmp_path: Path) -> None:
    stack(tmp_path, (0, 1, 2, 3), ImageOrientationPatient=tuple([1, k * 1e-3, 0, -k * 1e-3, 1, 0] for k in range(4)))
    assert volumes(tmp_path)[0].problem
    assert only(tmp_path, orientation_tolerance=0.01).spec.shape == (4, 4, 4)


# --- several images at one position ---------------------------------------------------------------------------------


def phases(folder: Path, count: int = 3, **fields: Any) -> None:
    for t in range(count):
        for i in range(4):
            write(folder / f"{i}_{t}", plane(10 * t + i), ImagePositionPatient=[0, 0, 2.0 * i], InstanceNumber=i,
                  TemporalPositionIdentifier=t + 1, **fields)  # fmt: skip


def test_dcm_08_phases_are_a_time_axis(tmp_path: Path) -> None:
    phases(tmp_path, TemporalResolution=2500)
    source = only(tmp_path)
    assert source.spec.shape == (3, 4, 4, 4)
    assert [axis.name for axis in source.spec.axes] == ["t", "z", "y", "x"]
    assert (source.spec.axes[0].unit, source.spec.axes[0].step) == ("second", 2.5)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((2, 1, 1))
    voxels = everything(source)
    for t in range(3):
        for i in range(4):
            assert voxels[t, i, 0, 0] == 10 * t + i
            assert near(source.spec.geometry.world((i, 0, 0)), (0, 0, 2 * i))


def test_dcm_08_uneven_counts_are_refused_naming_the_phase(tmp_path: Path) -> None:
    phases(tmp_path)
    (tmp_path / "2_1").unlink()
    with pytest.raises(FormatError, match="TemporalPositionIdentifier 2 has 3 of 4 slices"):
        only(tmp_path)


@pytest.mark.parametrize(
    ("fields", "axis", "values"),
    [
        ({"EchoTime": (4.2, 8.4)}, "echo", [4.2, 8.4]),
        ({"InversionTime": (100.0, 900.0)}, "inversion", [100, 900]),
        ({"DiffusionBValue": (0.0, 1000.0)}, "b", [[0.0], [1000.0]]),
        ({"FlipAngle": (2.0, 15.0)}, "flip", [2, 15]),
    ],
)
def test_dcm_08_echoes_and_weightings_are_an_axis(tmp_path: Path, fields: dict, axis: str, values: list) -> None:
    ((name, pair),) = fields.items()
    for t in (1, 0):
        stack(tmp_path / str(t), (0, 2, 4), array=tuple(plane(10 * t + i) for i in range(3)), **{name: pair[t]})
    source = only(tmp_path)
    assert source.spec.axes[0].name == axis
    assert source.info.header[f"axis_{axis}"] == values
    np.testing.assert_array_equal(everything(source)[..., 0, 0], [[0, 1, 2], [10, 11, 12]])


def test_echo_and_time_are_two_axes(tmp_path: Path) -> None:
    for t in range(2):
        for e in range(3):
            stack(tmp_path / f"{t}{e}", (0, 2), array=(plane(100 * t + 10 * e), plane(100 * t + 10 * e + 1)),
                  EchoTime=5.0 * (e + 1), TemporalPositionIdentifier=t + 1)  # fmt: skip
    source = only(tmp_path)
    assert [axis.name for axis in source.spec.axes] == ["t", "echo", "z", "y", "x"]
    expected = [[[100 * t + 10 * e + i for i in range(2)] for e in range(3)] for t in range(2)]
    np.testing.assert_array_equal(everything(source)[..., 0, 0], expected)


def test_times_of_acquisition_order_what_nothing_else_does(tmp_path: Path) -> None:
    for t in range(3):
        for i in range(2):
            write(tmp_path / f"{i}{2 - t}", plane(10 * t + i), ImagePositionPatient=[0, 0, 3.0 * i],
                  AcquisitionDate="20200101", AcquisitionTime=f"1000{t * 2:02d}.{i}")  # fmt: skip
    source = only(tmp_path)
    assert (source.spec.axes[0].name, source.spec.axes[0].step) == ("t", 2.0)
    np.testing.assert_array_equal(everything(source)[..., 0, 0], [[0, 1], [10, 11], [20, 21]])
    assert "20200101" not in str(source.info.header)


def test_magnitude_and_phase_are_two_volumes(tmp_path: Path) -> None:
    for kind, base in (("M", 0), ("P", 10)):
        stack(
            tmp_path,
            (0, 2),
            [f"{kind}0", f"{kind}1"],
            array=(plane(base), plane(base + 1)),
            ImageType=["ORIGINAL", kind],
        )
    first, second = volumes(tmp_path)
    assert (first.name, second.name) == ("series-1-1", "series-1-2")
    assert [int(everything(dicom.open_volume(one))[0, 0, 0]) for one in (first, second)] == [0, 10]


def test_dcm_09_overlapping_passes_are_two_volumes(tmp_path: Path) -> None:
    stack(tmp_path / "a", np.arange(5) * 1.5, AcquisitionNumber=1)
    stack(tmp_path / "b", np.arange(5) * 1.5 + 4.5, AcquisitionNumber=2)
    found = volumes(tmp_path)
    assert [one.shape for one in found] == [(5, 4, 4)] * 2
    assert [one.geometry.spacing[0] for one in found] == pytest.approx([1.5, 1.5])
    assert [one.geometry.origin[2] for one in found] == pytest.approx([0, 4.5])


def test_passes_with_a_gap_between_are_two_volumes(tmp_path: Path) -> None:
    stack(tmp_path / "a", (0, 1, 2), AcquisitionNumber=1)
    stack(tmp_path / "b", (10, 11, 12), AcquisitionNumber=2)
    assert [one.geometry.origin[2] for one in volumes(tmp_path)] == pytest.approx([0, 10])


def test_dcm_10_copies_are_dropped_with_a_note(tmp_path: Path) -> None:
    paths = stack(tmp_path, (0, 2, 4, 6))
    shutil.copy(paths[1], tmp_path / "copy")
    source = only(tmp_path)
    assert source.spec.shape[0] == 4
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing[0] == pytest.approx(2)
    assert "duplicates-dropped" in codes(source)


@pytest.mark.parametrize("same_uid", [True, False])
def test_dcm_10_one_position_with_other_pixels_is_refused(tmp_path: Path, same_uid: bool) -> None:
    paths = stack(tmp_path, (0, 2, 4, 6))
    uid = pydicom.dcmread(paths[1]).SOPInstanceUID
    other = {"SOPInstanceUID": uid} if same_uid else {}
    write(tmp_path / "other", plane(99), ImagePositionPatient=[0, 0, 2], InstanceNumber=2, **other)
    with pytest.raises(FormatError, match=r"1 of 4 positions hold several slices.*at 2 mm"):
        only(tmp_path)


def test_copies_in_two_folders_are_two_volumes_and_a_spread_series_is_one(tmp_path: Path) -> None:
    stack(tmp_path / "a", (0, 2, 4))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert [one.folder.name for one in volumes(tmp_path)] == ["a", "b"]
    shutil.rmtree(tmp_path / "b")
    stack(tmp_path / "c", (6, 8))
    (joined,) = volumes(tmp_path)
    assert (joined.folder, joined.shape[0]) == (tmp_path, 5)


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", OTHER_ORDERS)
def test_dcm_12_signed_12_bits(tmp_path: Path, order: str) -> None:
    words = np.array([[0x0FFF, 0x0800, 0x07FF, 1]], "u2")
    write(tmp_path / "a", words, BitsStored=12, PixelRepresentation=1, syntax=OTHER_ORDERS[order])
    source = only(tmp_path)
    assert source.spec.dtype == np.int16
    assert everything(source).ravel().tolist() == [-1, -2048, 2047, 1]


def test_bits_above_those_stored_are_not_part_of_a_value(tmp_path: Path) -> None:
    write(tmp_path / "a", np.array([[0xF001, 0x1FFF]], "u2"), BitsStored=12)
    assert everything(only(tmp_path)).ravel().tolist() == [1, 4095]


@pytest.mark.parametrize(
    ("bits", "pixels", "expected", "dtype"),
    [
        (16, [0, 65535], [-1024, 64511], "int32"),
        (12, [0, 4095], [-1024, 3071], "int16"),
    ],
)
def test_dcm_13_intercepts_do_not_wrap(tmp_path: Path, bits: int, pixels: list, expected: list, dtype: str) -> None:
    write(tmp_path / "a", np.array([pixels], "u2"), BitsStored=bits, RescaleSlope=1, RescaleIntercept=-1024)
    source = only(tmp_path)
    assert source.spec.dtype == dtype
    assert everything(source).ravel().tolist() == expected


def test_every_slice_has_its_own_scale(tmp_path: Path) -> None:
    stack(tmp_path, (0, 2, 4), array=(plane(100),) * 3, RescaleSlope=(0.5, 0.25, 2.0), RescaleIntercept=(0, 1, -1))
    source = only(tmp_path)
    assert source.spec.dtype == np.float32
    assert everything(source)[:, 0, 0].tolist() == [50, 26, 199]
    assert "RescaleSlope" not in source.info.header


@pytest.mark.parametrize("name", ["RescaleSlope", "RescaleIntercept"])
@pytest.mark.parametrize("text", ["abc ", "nan ", "inf "])
def test_a_scale_that_is_no_finite_number_is_refused(tmp_path: Path, name: str, text: str) -> None:
    paths = stack(tmp_path, (0, 2, 4), **{"RescaleSlope": "1.00", "RescaleIntercept": "1.00", name: "5.25"})
    paths[2].write_bytes(paths[2].read_bytes().replace(b"5.25", text.encode()))
    with pytest.raises(FormatError, match=f"IM0002: {name} is no finite number"):
        open_source(tmp_path)


def test_more_bits_stored_than_allocated_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.dcm", plane(1, dtype="uint8"), BitsStored=16)
    with pytest.raises(FormatError, match=r"a\.dcm: BitsStored is 16, more than the 8 of BitsAllocated"):
        open_source(path)


@pytest.mark.parametrize("slopes", [(0, 0, 0), (2, 0, 2)])
def test_a_slope_of_0_is_no_scaling_and_is_told(tmp_path: Path, slopes: tuple[int, ...]) -> None:
    stack(tmp_path, (0, 2, 4), array=(plane(100),) * 3, RescaleSlope=slopes, RescaleIntercept=(-7, -7, -7))
    source = only(tmp_path)
    assert everything(source)[:, 0, 0].tolist() == [100 * slope - 7 if slope else 100 for slope in slopes]
    (note,) = [note for note in source.info.notes if note.code == "scaling-ignored"]
    assert f"RescaleSlope is 0 in {slopes.count(0)} of 3 slices: their values are as stored" in note.message


def test_a_slope_of_0_in_a_functional_group_is_told(tmp_path: Path) -> None:
    frames = [
        {
            "PlanePositionSequence": {"ImagePositionPatient": [0, 0, 2 * k]},
            "PixelValueTransformationSequence": {"RescaleSlope": k, "RescaleIntercept": 5, "RescaleType": "US"},
        }
        for k in range(2)
    ]
    shared = {
        "PlaneOrientationSequence": {"ImageOrientationPatient": list(AXIAL)},
        "PixelMeasuresSequence": {"PixelSpacing": [1, 1]},
    }
    source = dicom.open_source(enhanced(tmp_path / "a.dcm", np.full((2, 4, 4), 100, "i2"), frames, shared))
    assert everything(source)[:, 0, 0].tolist() == [100, 105]
    assert "RescaleSlope is 0 in 1 of 2 slices" in " ".join(note.message for note in source.info.notes)


def test_whole_scales_of_slices_stay_integers(tmp_path: Path) -> None:
    stack(tmp_path, (0, 2), array=(np.full((4, 4), 200, "u1"),) * 2, RescaleSlope=(1, 3), RescaleIntercept=(-1000, 7))
    source = only(tmp_path)
    assert source.spec.dtype == np.int16
    assert everything(source)[:, 0, 0].tolist() == [-800, 607]


def test_dcm_14_pixel_spacing_is_between_rows_first(tmp_path: Path) -> None:
    write(tmp_path / "a", np.arange(6, dtype="i2").reshape(3, 2), PixelSpacing=[0.8, 0.5], SliceThickness=3)
    source = only(tmp_path)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((3, 0.8, 0.5))
    assert near(world(source, 1), (0.5, 0, 0))
    assert near(world(source, 2), (0, 0.8, 0))


def test_dcm_15_monochrome1_is_kept_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a", np.array([[0, 1, 2, 4095]], "u2"), BitsStored=12, PhotometricInterpretation="MONOCHROME1")
    source = only(tmp_path)
    assert everything(source).ravel().tolist() == [0, 1, 2, 4095]
    assert source.info.header["PhotometricInterpretation"] == "MONOCHROME1"
    assert "low-is-bright" in codes(source)


# --- geometry -------------------------------------------------------------------------------------------------------


def test_dcm_16_no_position_is_no_geometry(tmp_path: Path) -> None:
    stack(
        tmp_path,
        (0, 0, 0),
        ["c", "a", "b"],
        ImagePositionPatient=None,
        ImageOrientationPatient=None,
        InstanceNumber=(3, 1, 2),
    )
    source = only(tmp_path)
    assert source.spec.geometry is None
    assert everything(source)[:, 0, 0].tolist() == [1, 2, 0]
    assert "geometry-unknown" in codes(source)


def test_a_secondary_capture_is_marked(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"))
    write(tmp_path / "a", plane(1), SOPClassUID=SecondaryCaptureImageStorage, **nowhere)
    source = only(tmp_path)
    assert source.spec.shape == (4, 4)
    assert source.spec.geometry is None
    assert {"secondary-capture", "geometry-unknown"} <= codes(source)


def test_a_tilted_gantry_is_kept_as_shear(tmp_path: Path) -> None:
    tilt = np.deg2rad(15)
    row, column = (1, 0, 0), (0, np.cos(tilt), np.sin(tilt))
    for k in range(4):
        write(
            tmp_path / f"{k}", plane(k), ImagePositionPatient=[0, 0, 5.0 * k], ImageOrientationPatient=[*row, *column]
        )
    source = only(tmp_path)
    assert source.spec.geometry is not None
    assert source.spec.geometry.is_sheared
    for k in range(4):
        assert near(world(source, k), (0, 0, 5 * k))
    assert near(source.spec.geometry.world((0, 2, 0)), (0, 2 * np.cos(tilt), 2 * np.sin(tilt)))
    assert any("15 degrees" in note.message for note in source.info.notes)


@given(st.tuples(*[st.floats(-1, 1)] * 3), st.floats(-3, 3), st.lists(st.floats(-100, 100), min_size=3, max_size=3))
def test_every_voxel_lies_where_its_header_says(
    tmp_path_factory: pytest.TempPathFactory, axis: tuple[float, ...], angle: float, origin: list[float]
) -> None:
    turn = _rotation(np.array(axis) + np.array((0, 0, 1e-3)), angle)
    folder = tmp_path_factory.mktemp("oblique")
    values = np.arange(3 * 2 * 5, dtype="i2").reshape(3, 2, 5)
    positions = [np.array(origin) + turn[:, 2] * 2.5 * k for k in range(3)]
    for k in (2, 0, 1):
        write(folder / str(k), values[k], ImagePositionPatient=[f"{p:.10g}" for p in positions[k]], PixelSpacing=[0.7, 1.3],
              ImageOrientationPatient=[f"{v:.10f}" for v in (*turn[:, 0], *turn[:, 1])])  # fmt: skip
    source = only(folder)
    assert source.spec.geometry is not None
    voxels = everything(source)
    for index in np.ndindex(*voxels.shape):
        k, j, i = np.argwhere(values == voxels[index])[0]
        expected = positions[k] + turn[:, 1] * 0.7 * j + turn[:, 0] * 1.3 * i
        assert near(source.spec.geometry.world(index), tuple(expected))
    shutil.rmtree(folder)


def _rotation(axis: Any, angle: float) -> Any:
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


# --- what cannot be read, and what is no volume ---------------------------------------------------------------------


def test_dcm_17_rle_works_out_of_the_box(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(-500, 500, (6, 7), dtype="i2")
    data = dataset(noise)
    data.compress(RLELossless, generate_instance_uid=False)
    data.save_as(tmp_path / "a", enforce_file_format=True)
    np.testing.assert_array_equal(everything(only(tmp_path))[0], noise)


def test_dcm_17_garbage_is_refused_by_syntax_and_file(tmp_path: Path) -> None:
    data = dataset(plane(1))
    data.file_meta.TransferSyntaxUID = JPEGLSLossless
    data.PixelData = pydicom.encaps.encapsulate([b"garbage!" * 4])
    data.save_as(tmp_path / "broken", enforce_file_format=True)
    with pytest.raises(FormatError, match=re.escape(f"transfer syntax {JPEGLSLossless}")) as caught:
        everything(only(tmp_path))
    assert str(tmp_path / "broken") in str(caught.value)


def test_dcm_17_a_syntax_without_decoder_names_what_to_install(tmp_path: Path) -> None:
    high_throughput = "1.2.840.10008.1.2.4.201"
    data = dataset(plane(1))
    data.file_meta.TransferSyntaxUID = high_throughput
    data.PixelData = pydicom.encaps.encapsulate([b"\0" * 32])
    data.save_as(tmp_path / "a", enforce_file_format=True)
    with pytest.raises(FormatError, match=rf"{re.escape(high_throughput)} .*pip install pylibjpeg"):
        only(tmp_path)


def test_dcm_18_a_mixed_folder(tmp_path: Path) -> None:
    stack(tmp_path, (0, 2, 4), ["1", "2", "3"], series="1.2.3.4", SeriesNumber=4)
    stack(tmp_path, (0, 3, 6), ["4", "5", "6"], series="1.2.3.5", SeriesNumber=5)
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "._1").write_bytes(b"\0" * 200)
    report = dataset(plane(0), series="1.2.3.6", SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11")
    del report.PixelData
    report.save_as(tmp_path / "sr", enforce_file_format=True)
    found = dicom.survey(dicom.files_below(tmp_path))
    assert [(one.name, one.shape, one.geometry.spacing[0]) for one in found.volumes if one.geometry] == [
        ("series-4", (3, 4, 4), pytest.approx(2)),
        ("series-5", (3, 4, 4), pytest.approx(3)),
    ]
    assert found.skipped == (("Basic Text SR", 1),)
    assert found.strangers == 1
    with pytest.raises(FormatError, match=r"holds 2 images: series-4 \(int16 3 x 4 x 4, CT\), series-5"):
        open_source(tmp_path)
    assert open_source(tmp_path, item="series-5").spec.shape == (3, 4, 4)
    assert open_source(f"{tmp_path}@series-4").info.item == "series-4"


def test_dcm_19_a_mosaic_is_refused_by_name(tmp_path: Path) -> None:
    data = dataset(plane(1, (12, 12)), ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"], PixelSpacing=[2, 2])
    block = data.private_block(0x0019, "SIEMENS MR HEADER", create=True)
    block.add_new(0x0A, "US", 8)
    data.save_as(tmp_path / "a", enforce_file_format=True)
    with pytest.raises(FormatError, match=r"Siemens mosaic.*dcm2niix"):
        open_source(tmp_path)


def test_dcm_19_a_multi_frame_that_says_mosaic_is_none(tmp_path: Path) -> None:
    frames = [{"PlanePositionSequence": {"ImagePositionPatient": [0, 0, 3.0 * k]}} for k in (2, 0, 1)]
    shared = {
        "PlaneOrientationSequence": {"ImageOrientationPatient": list(AXIAL)},
        "PixelMeasuresSequence": {"PixelSpacing": [1, 1]},
    }
    arrays = np.stack([plane(2), plane(0), plane(1)])
    path = enhanced(tmp_path / "a", arrays, frames, shared, SOPClassUID=EnhancedMRImageStorage,
                    ImageType=["ORIGINAL", "PRIMARY", "DIFFUSION", "MOSAIC"])  # fmt: skip
    source = open_source(path)
    assert everything(source)[:, 0, 0].tolist() == [0, 1, 2]
    assert near(world(source, 2), (0, 0, 6))


def test_an_enhanced_file_scales_frame_by_frame_and_has_axes(tmp_path: Path) -> None:
    frames = [
        {
            "PlanePositionSequence": {"ImagePositionPatient": [1, 2, 4.0 * k]},
            "PixelValueTransformationSequence": {"RescaleSlope": 1, "RescaleIntercept": -10 * k, "RescaleType": "US"},
            "MREchoSequence": {"EffectiveEchoTime": 10.0 * (e + 1)},
        }
        for k in range(3)
        for e in range(2)
    ]
    shared = {
        "PlaneOrientationSequence": {"ImageOrientationPatient": list(AXIAL)},
        "PixelMeasuresSequence": {"PixelSpacing": [1, 1]},
    }
    arrays = np.stack([plane(100 + number) for number in range(6)])
    source = open_source(enhanced(tmp_path / "a.dcm", arrays, frames, shared, SOPClassUID=EnhancedMRImageStorage))
    assert [axis.name for axis in source.spec.axes] == ["echo", "z", "y", "x"]
    np.testing.assert_array_equal(everything(source)[..., 0, 0], [[100, 92, 84], [101, 93, 85]])
    assert source.spec.geometry is not None
    assert near(source.spec.geometry.world((2, 0, 0)), (1, 2, 8))


@pytest.mark.parametrize("count", [3, 7])
def test_localizers_of_several_orientations_are_refused(tmp_path: Path, count: int) -> None:
    planes = [
        AXIAL,
        (1, 0, 0, 0, 0, -1),
        (0, 1, 0, 0, 0, -1),
        *[(np.cos(a), np.sin(a), 0, 0, 0, -1) for a in (0.3, 0.6, 0.9, 1.2)],
    ]
    for number, orientation in enumerate(planes[:count]):
        write(tmp_path / str(number), plane(number), ImageOrientationPatient=[f"{v:.8f}" for v in orientation],
              ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])  # fmt: skip
    with pytest.raises(FormatError, match=f"It is a localizer of {count} slices in {count} orientations"):
        open_source(tmp_path)


def test_stacks_of_several_orientations_are_volumes(tmp_path: Path) -> None:
    for name, orientation in (("a", AXIAL), ("c", (1, 0, 0, 0, 0, -1))):
        for k in range(3):
            at = [0, 0, 2.0 * k] if name == "a" else [0, 3.0 * k, 0]
            write(tmp_path / f"{name}{k}", plane(k), ImageOrientationPatient=list(orientation), ImagePositionPatient=at)
    found = volumes(tmp_path)
    assert sorted(round(one.geometry.spacing[0], 6) for one in found) == [2, 3]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3, "Columns": 1, "Rows": 4}, "colour image"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "colour image"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.66.4"}, "Segmentation"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.77.1.6"}, "Microscopy"),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, "right angle"),
        ({"BitsAllocated": 12, "BitsStored": 12}, "12 bits are allocated"),
        ({"NumberOfFrames": 40}, "cut off"),
    ],
)
def test_non_volumes_are_refused_by_name(tmp_path: Path, fields: dict, reason: str) -> None:
    write(tmp_path / "a", plane(1), **fields)
    with pytest.raises(FormatError, match=reason):
        open_source(tmp_path / "a")


def test_an_x_ray_is_a_picture_by_itself(tmp_path: Path) -> None:
    digital = "1.2.840.10008.5.1.4.1.1.1.1"
    nowhere = dict.fromkeys(("ImagePositionPatient", "ImageOrientationPatient"))
    for k in range(2):
        write(tmp_path / str(k), plane(k), SOPClassUID=digital, Modality="DX", PixelSpacing=[0.2, 0.1], **nowhere)
    found = volumes(tmp_path)
    assert [one.shape for one in found] == [(4, 4)] * 2
    assert found[0].geometry.spacing == pytest.approx((0.2, 0.1))
    assert found[0].geometry.known == {"spacing"}


def test_frames_without_positions_are_time_where_they_have_one(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"))
    film = np.stack([plane(k) for k in range(5)])
    write(tmp_path / "a", film, SOPClassUID="1.2.840.10008.5.1.4.1.1.12.1", NumberOfFrames=5, FrameTime=40, **nowhere)
    source = only(tmp_path)
    assert source.spec.shape == (5, 4, 4)
    assert (source.spec.axes[0].name, source.spec.axes[0].step) == ("t", pytest.approx(0.04))
    assert source.spec.geometry is None


def test_a_dose_grid_is_scaled_and_placed(tmp_path: Path) -> None:
    dose = np.arange(3 * 4 * 4, dtype="u4").reshape(3, 4, 4)
    write(tmp_path / "a", dose, SOPClassUID="1.2.840.10008.5.1.4.1.1.481.2", NumberOfFrames=3, DoseGridScaling="0.5",
          GridFrameOffsetVector=[0, 3, 6], ImagePositionPatient=[1, 2, 10], PixelSpacing=[2, 2])  # fmt: skip
    source = only(tmp_path)
    np.testing.assert_array_equal(everything(source), dose * 0.5)
    assert source.spec.geometry is not None
    assert near(source.spec.geometry.world((2, 0, 0)), (1, 2, 16))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_files_are_refused_and_never_crash(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.dcm", plane(1, (16, 16)), PatientName="NAME^MARK")
    data = path.read_bytes()
    rng = np.random.default_rng(5)
    told: list[str] = []
    for _ in range(150):
        broken = bytearray(data)
        if damage == "cut":
            broken = broken[: int(rng.integers(0, len(data)))]
        elif damage == "flipped":
            for place in rng.integers(132, len(data), 12):
                broken[place] = int(rng.integers(0, 256))
        else:
            broken[int(rng.integers(132, len(data) - 64)) :][:32] = b""
            broken[132:196] = bytes(rng.integers(0, 256, 64, dtype="u1"))
        path.write_bytes(bytes(broken))
        told.append(refusal(path))
    assert "NAME" not in "".join(told)
    assert any(told)


def test_functional_groups_are_fuzzed_too(tmp_path: Path) -> None:
    frames = [{"PlanePositionSequence": {"ImagePositionPatient": [0, 0, 3.0 * k]}} for k in range(3)]
    shared = {"PlaneOrientationSequence": {"ImageOrientationPatient": list(AXIAL)}}
    path = enhanced(tmp_path / "a.dcm", np.stack([plane(k) for k in range(3)]), frames, shared)
    data = path.read_bytes()
    rng = np.random.default_rng(9)
    told = []
    for _ in range(200):
        broken = bytearray(data)
        for place in rng.integers(len(data) // 2, len(data), 6):
            broken[place] = int(rng.integers(0, 256))
        path.write_bytes(bytes(broken))
        told.append(refusal(path))
    assert any(told)


def test_more_frames_than_a_file_can_hold_cost_nothing(tmp_path: Path) -> None:
    data = dataset(plane(1))
    data.compress(RLELossless, generate_instance_uid=False)
    data.NumberOfFrames = 2_000_000_000
    data.save_as(tmp_path / "a", enforce_file_format=True)
    with pytest.raises(FormatError, match="2000000000 frames, more than its"):
        open_source(tmp_path / "a")


def test_the_rest_of_a_copy_that_broke_off_is_named(tmp_path: Path) -> None:
    paths = stack(tmp_path, range(6))
    paths[5].write_bytes(paths[5].read_bytes()[:-10])
    (volume,) = volumes(tmp_path)
    assert "IM0005 is cut off" in volume.problem
    paths[5].write_bytes(paths[5].read_bytes()[:-60])
    paths[4].write_bytes(b"")
    found = dicom.survey(dicom.files_below(tmp_path))
    assert [path.name for path, _ in found.damaged] == ["IM0004"]
    assert "IM0005 says it is a CT Image and holds no pixels: it is cut off" in found.volumes[0].problem


def test_a_slice_that_is_cut_anywhere_is_told(tmp_path: Path) -> None:
    paths = stack(tmp_path, (0, 2, 4), ["1.dcm", "2.dcm", "3.dcm"])
    whole = paths[2].read_bytes()
    for length in range(0, len(whole), 3):
        paths[2].write_bytes(whole[:length])
        found = dicom.survey(paths)
        told = [why for _, why in found.damaged] + [one.problem for one in found.volumes if one.problem]
        assert any("3.dcm" in why for why in told), length


def test_a_file_that_is_replaced_is_told(tmp_path: Path) -> None:
    paths = stack(tmp_path, range(3))
    source = only(tmp_path)
    write(paths[1], plane(50, (4, 4), "int32"), ImagePositionPatient=[0, 0, 1])
    with pytest.raises(FormatError, match="IM0001 was changed after its header was read"):
        everything(source)


def refusal(path: Path) -> str:
    """Return why a file is refused; an empty text where it is read."""
    try:
        source = open_source(path)
        if source.spec.nbytes < 1 << 24:
            everything(source)
    except FormatError as error:
        return str(error)
    return ""


# --- reading --------------------------------------------------------------------------------------------------------


def test_a_region_touches_only_the_files_of_its_slices(tmp_path: Path) -> None:
    paths = stack(tmp_path, range(10))
    source = only(tmp_path)
    for number, path in enumerate(paths):
        if number not in (4, 5):
            path.unlink()
    assert source.read(Region((4, 0, 0), (6, 2, 3)))[:, 0, 0].tolist() == [4, 5]
    with pytest.raises(OSError, match="No such file"):
        source.read(Region((3, 0, 0), (4, 1, 1)))


def test_headers_are_read_once_and_without_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack(tmp_path, range(6))
    read: list[Path] = []
    original = dicom.read_instance

    def counted(path: Path, **options: Any) -> Any:
        read.append(path)
        return original(path, **options)

    monkeypatch.setattr(dicom, "read_instance", counted)
    (volume,) = volumes(tmp_path)
    for path in tmp_path.iterdir():  # what is behind the place of the pixels may be anything until they are read
        assert path.read_bytes()[volume.frames[0].instance.pixels.offset - 12 :][:4] == b"\xe0\x7f\x10\x00"
    everything(dicom.open_volume(volume))
    assert len(read) == len(set(read)) == 6


def test_headerless_files_are_taken_only_with_an_image_class(tmp_path: Path) -> None:
    path = tmp_path / "bare"
    data = dataset(plane(7), syntax=OTHER_ORDERS["implicit"])
    del data.file_meta
    data.save_as(path, implicit_vr=True, little_endian=True)
    assert everything(open_source(path))[0, 0, 0] == 7
    (tmp_path / "text").write_bytes(b"\x08\x00\x05\x00" + b"\x0a\x00\x00\x00" + b"ISO_IR 100" + b"words " * 40)
    assert [one.name for one in dicom.survey([path, tmp_path / "text"]).volumes] == ["series-1"]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="slice tolerance lies between 0 and 1"):
        SeriesOptions(spacing_tolerance=2)
