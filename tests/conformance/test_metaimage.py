"""MetaImage as users have it: synonyms, skips, compression, detached files, channels, sequences."""

from __future__ import annotations

import gzip
import json
import pickle
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from mlarray.errors import FormatError, UnknownFormatError
from mlarray.formats.registry import open_source
from mlarray.region import Region
from mlarray.sources.base import Access
from tests.conformance.text_header_files import META_BASE, RAMP, load, names, notes, position, write_meta

CUBE = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
PLACED = {
    "TransformMatrix": "1 0 0 0 1 0 0 0 1",
    "Offset": "10 20 30",
    "ElementSpacing": "2 3 4",
}


# --- geometry -----------------------------------------------------------------------------------------------------------


def test_a_placed_image_is_lps(tmp_path: Path) -> None:
    array, source = load(write_meta(tmp_path / "a.mha", {**META_BASE, **PLACED}))
    np.testing.assert_array_equal(array, CUBE)
    assert position(source, array, 23) == (12, 26, 42)
    assert source.spec.geometry is not None
    assert source.spec.geometry.coord_system == "LPS"
    assert source.spec.geometry.known == {"spacing", "origin", "direction"}
    assert names(source) == "zyx"
    assert notes(source) == set()


@pytest.mark.parametrize("matrix", ["0 1 0 -1 0 0 0 0 1", "0.6 0.8 0 -0.8 0.6 0 0 0 1", "0 0 1 1 0 0 0 1 0"])
def test_rows_of_the_matrix_are_the_directions_of_file_axes_as_in_simpleitk(tmp_path: Path, matrix: str) -> None:
    path = write_meta(tmp_path / "a.mha", {**META_BASE, **PLACED, "TransformMatrix": matrix})
    array, source = load(path)
    image = sitk.ReadImage(str(path))
    for index in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 3)):
        value = image.GetPixel(index)
        assert position(source, array, value) == pytest.approx(image.TransformIndexToPhysicalPoint(index))


def test_the_matrix_wins_over_a_contradicting_orientation_tag(tmp_path: Path) -> None:
    fields = {**META_BASE, "TransformMatrix": "-1 0 0 0 -1 0 0 0 1", "Offset": "1 2 3", "ElementSpacing": "1 1 1"}
    array, source = load(write_meta(tmp_path / "a.mha", {**fields, "AnatomicalOrientation": "RAI"}))
    assert source.spec.geometry is not None
    assert source.spec.geometry.origin == (1, 2, 3)
    assert position(source, array, 23) == (0, 0, 6)
    assert source.info.header["AnatomicalOrientation"] == "RAI"
    assert "orientation-tag-ignored" in notes(source)
    _, agreeing = load(write_meta(tmp_path / "b.mha", {**fields, "AnatomicalOrientation": "LPI"}))
    assert notes(agreeing) == set()


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({}, None),
        ({"ElementSpacing": "2 3 4"}, {"spacing"}),
        ({"Offset": "1 2 3"}, {"origin"}),
        ({"TransformMatrix": "1 0 0 0 1 0 0 0 1"}, {"direction"}),
    ],
)
def test_parts_of_the_geometry_without_a_field_are_unknown(
    tmp_path: Path, given: dict[str, str], known: set[str] | None
) -> None:
    _, source = load(write_meta(tmp_path / "a.mha", {**META_BASE, **given}))
    if known is None:
        assert source.spec.geometry is None
        return
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == known
    assert ("orientation-unknown" in notes(source)) == ("direction" not in known)
    assert source.spec.geometry.coord_system == (None if known == {"spacing"} else "LPS")


@pytest.mark.parametrize(("unit", "factor"), [("um", 1e-3), ("mm", 1.0), ("cm", 10.0)])
def test_distance_units_become_millimetres(tmp_path: Path, unit: str, factor: float) -> None:
    array, source = load(write_meta(tmp_path / "a.mha", {**META_BASE, **PLACED, "DistanceUnits": unit}))
    assert position(source, array, 23) == tuple(round(v * factor, 6) for v in (12, 26, 42))
    assert source.spec.axes[0].unit == "millimeter"


def test_a_negative_spacing_turns_the_axis_as_in_simpleitk(tmp_path: Path) -> None:
    path = write_meta(tmp_path / "a.mha", {**META_BASE, **PLACED, "ElementSpacing": "-2 3 4"})
    array, source = load(path)
    assert position(source, array, 23) == (8, 26, 42)
    assert sitk.ReadImage(str(path)).TransformIndexToPhysicalPoint((1, 2, 3)) == (8, 26, 42)


def test_an_intensity_function_is_noted_and_not_applied(tmp_path: Path) -> None:
    fields = {**META_BASE, "ElementToIntensityFunctionSlope": "2", "ElementToIntensityFunctionOffset": "5"}
    array, source = load(write_meta(tmp_path / "a.mha", fields))
    np.testing.assert_array_equal(array, CUBE)
    assert "scaling-ignored" in notes(source)


# --- spellings --------------------------------------------------------------------------------------------------------

SMALL = {"ElementSpacing": "0.5 0.5 2", "Offset": "5 6 7"}


def _without(*gone: str, **given: str) -> dict[str, str]:
    fields = {**META_BASE, **SMALL, **given}
    return {name: text for name, text in fields.items() if name not in gone}


@pytest.mark.parametrize(
    ("fields", "data", "newline"),
    [
        (_without(), RAMP, "\n"),
        (_without("Offset", Position="5 6 7"), RAMP, "\n"),
        (_without("Offset", Origin="5 6 7"), RAMP, "\n"),
        (_without(Origin="5 6 7"), RAMP, "\n"),
        (_without("ElementSpacing", ElementSize="0.5 0.5 2"), RAMP, "\n"),
        (_without(ElementSize="9 9 9"), RAMP, "\n"),
        (_without(BinaryDataByteOrderMSB="True"), CUBE.astype(">i2").tobytes(), "\n"),
        (_without(ElementByteOrderMSB="True"), CUBE.astype(">i2").tobytes(), "\n"),
        (_without(ElementByteOrderMSB="1", BinaryData="T"), CUBE.astype(">i2").tobytes(), "\n"),
        (_without(ElementByteOrderMSB="False"), RAMP, "\n"),
        (_without(BinaryData="False"), " ".join(map(str, range(24))).encode() + b"\n", "\n"),
        (_without(BinaryData="True"), RAMP, "\r\n"),
        (_without(Rotation="1 0 0 0 1 0 0 0 1"), RAMP, "\n"),
        (_without(Orientation="1 0 0 0 1 0 0 0 1"), RAMP, "\n"),
        (_without(CompressedData="True", CompressedDataSize=str(len(zlib.compress(RAMP)))), zlib.compress(RAMP), "\n"),
    ],
)
def test_every_spelling_gives_the_same_image_as_simpleitk(
    tmp_path: Path, fields: dict[str, str], data: bytes, newline: str
) -> None:
    path = write_meta(tmp_path / "a.mha", fields, data, newline=newline)
    array, source = load(path)
    np.testing.assert_array_equal(array, CUBE)
    assert array.dtype == np.int16
    assert array.dtype.isnative
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (2, 0.5, 0.5)
    assert source.spec.geometry.origin == (5, 6, 7)
    image = sitk.ReadImage(str(path))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image), array)
    assert image.GetOrigin() == (5, 6, 7)
    part = Region((1, 0, 1), (3, 2, 2))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(part), CUBE[part.slices])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("MET_CHAR", "i1"),
        ("MET_UCHAR", "u1"),
        ("MET_SHORT", "i2"),
        ("MET_USHORT", "u2"),
        ("MET_INT", "i4"),
        ("MET_UINT", "u4"),
        ("MET_LONG", "i4"),
        ("MET_ULONG", "u4"),
        ("MET_LONG_LONG", "i8"),
        ("MET_ULONG_LONG", "u8"),
        ("MET_FLOAT", "f4"),
        ("MET_DOUBLE", "f8"),
        ("MET_SHORT_ARRAY", "i2"),
    ],
)
def test_every_type_is_read_as_simpleitk_does(tmp_path: Path, name: str, dtype: str) -> None:
    path = write_meta(tmp_path / "a.mha", {**META_BASE, "ElementType": name}, np.arange(24).astype(dtype).tobytes())
    array, _ = load(path)
    assert array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(array, sitk.GetArrayFromImage(sitk.ReadImage(str(path))))


# --- data blocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", ["-1", "32"])
def test_bytes_before_the_voxels_are_skipped(tmp_path: Path, skip: str) -> None:
    (tmp_path / "v.raw").write_bytes(b"j" * 32 + RAMP)
    path = write_meta(tmp_path / "a.mhd", {**META_BASE, "HeaderSize": skip}, b"", file="v.raw")
    array, source = load(path)
    np.testing.assert_array_equal(array, CUBE)
    assert source.access is Access.REGION
    assert source.info.files == (path, tmp_path / "v.raw")
    np.testing.assert_array_equal(array, sitk.GetArrayFromImage(sitk.ReadImage(str(path))))


@pytest.mark.parametrize(
    "named",
    [
        "LIST\nv1.raw\nv2.raw\nv3.raw\nv4.raw",
        "LIST 2\nv1.raw\nv2.raw\nv3.raw\nv4.raw\n",
        "LIST 2D\nv1.raw\nv2.raw\nv3.raw\nv4.raw\n",
        "v%d.raw 1 4 1",
        "v%d.raw 1 4",
        "v%d.raw 1",
        "v%d.raw",
    ],
)
def test_slices_in_files_of_their_own_are_joined_in_order(tmp_path: Path, named: str) -> None:
    for number in range(4):
        (tmp_path / f"v{number + 1}.raw").write_bytes(RAMP[12 * number : 12 * number + 12])
    path = write_meta(tmp_path / "a.mhd", {**META_BASE, **PLACED}, b"", file=named)
    array, source = load(path)
    np.testing.assert_array_equal(array, CUBE)
    assert len(source.info.files) == 5
    part = Region((1, 1, 0), (4, 3, 2))
    np.testing.assert_array_equal(source.read(part), CUBE[part.slices])


@pytest.mark.parametrize("size", [None, "0", "5", "999999", "-7", "many"])
def test_a_wrong_compressed_size_does_no_harm(tmp_path: Path, size: str | None) -> None:
    fields = {**META_BASE, "CompressedData": "True"}
    if size is not None:
        fields["CompressedDataSize"] = size
    array, source = load(write_meta(tmp_path / "a.mha", fields, zlib.compress(RAMP)))
    np.testing.assert_array_equal(array, CUBE)
    assert source.access is Access.SLAB
    assert ("compressed-size-wrong" in notes(source)) == (size is not None)


def test_gzip_instead_of_zlib_and_bytes_behind_the_stream_are_read(tmp_path: Path) -> None:
    for data in (gzip.compress(RAMP), zlib.compress(RAMP) + b"junk"):
        array, _ = load(write_meta(tmp_path / "a.mha", {**META_BASE, "CompressedData": "True"}, data))
        np.testing.assert_array_equal(array, CUBE)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zlib.compress(RAMP)[:-10], "short|damaged"),
        (zlib.compress(RAMP)[:-2], "short|damaged"),
        (zlib.compress(RAMP[:-10]), "48 .* 38"),
        (zlib.compress(RAMP + b"xx"), "too long: 48"),
        (zlib.compress(RAMP)[:-1] + b"\0", "damaged"),
        (b"not compressed at all" * 3, "damaged"),
        (b"", "short|damaged"),
    ],
)
def test_damaged_streams_are_refused_when_read(tmp_path: Path, data: bytes, words: str) -> None:
    source = open_source(write_meta(tmp_path / "a.mha", {**META_BASE, "CompressedData": "True"}, data))
    with pytest.raises(FormatError, match=words):
        source.read(source.spec.region)
    source.close()


def test_a_compressed_data_file_stands_beside_its_header(tmp_path: Path) -> None:
    (tmp_path / "v.zraw").write_bytes(zlib.compress(RAMP))
    array, _ = load(write_meta(tmp_path / "a.mhd", {**META_BASE, "CompressedData": "True"}, b"", file="v.zraw"))
    np.testing.assert_array_equal(array, CUBE)


def test_a_missing_or_short_raw_file_names_header_raw_and_counts(tmp_path: Path) -> None:
    path = write_meta(tmp_path / "a.mhd", META_BASE, b"", file="a.raw")
    with pytest.raises(FormatError, match=r"a\.mhd names the data file 'a\.raw' \(48 bytes expected\).*beside"):
        open_source(path)
    (tmp_path / "a.raw").write_bytes(RAMP[:-10])
    with pytest.raises(FormatError, match=r"a\.mhd: the data file .*a\.raw is too short: 48 .* 38"):
        open_source(path)
    (tmp_path / "a.raw").write_bytes(RAMP + b"xx")
    with pytest.raises(FormatError, match=r"too long: 48 .* 50"):
        open_source(path)


def test_a_raw_file_alone_is_no_input(tmp_path: Path) -> None:
    (tmp_path / "a.raw").write_bytes(RAMP)
    with pytest.raises(UnknownFormatError):
        open_source(tmp_path / "a.raw")


@pytest.mark.parametrize("named", ["", "../secret.raw", "link.raw", "/etc/hostname", ".", "a\0b"])
def test_a_data_file_outside_of_the_folder_is_never_read(tmp_path: Path, named: str) -> None:
    (tmp_path / "secret.raw").write_bytes(RAMP)
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "link.raw").symlink_to(tmp_path / "secret.raw")
    for file in (named, f"LIST 3\n{named}"):
        with pytest.raises(FormatError, match="data file"):
            open_source(write_meta(folder / "a.mhd", META_BASE, b"", file=file))


# --- channels, time -----------------------------------------------------------------------------------------------------


def test_interleaved_channels_become_the_first_axis(tmp_path: Path) -> None:
    data = np.arange(72, dtype="<i2")
    fields = {**META_BASE, **PLACED, "ElementNumberOfChannels": "3"}
    path = write_meta(tmp_path / "a.mha", fields, data.tobytes())
    array, source = load(path)
    assert array.shape == (3, 4, 3, 2)
    assert array[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert names(source) == "czyx"
    assert source.spec.axes[0].type == "channel"
    assert position(source, array, 71) == (12, 26, 42)
    np.testing.assert_array_equal(np.moveaxis(array, 0, -1), sitk.GetArrayFromImage(sitk.ReadImage(str(path))))
    part = Region((1, 1, 0, 1), (3, 3, 2, 2))
    np.testing.assert_array_equal(source.read(part), array[part.slices])


def test_frames_of_a_sequence_are_time(tmp_path: Path) -> None:
    fields = {**META_BASE, **PLACED, "UltrasoundImageOrientation": "MFA", "Kinds": "domain domain list"}
    for number in range(4):
        fields[f"Seq_Frame{number:04d}_Timestamp"] = str(10 + 0.25 * number)
        fields[f"Seq_Frame{number:04d}_ImageStatus"] = "OK"
    array, source = load(write_meta(tmp_path / "a.mha", fields))
    np.testing.assert_array_equal(array, CUBE)
    assert names(source) == "tyx"
    time = source.spec.axes[0]
    assert (time.type, time.unit, time.step) == ("time", "second", 0.25)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (3, 2)
    assert source.info.header["Seq_Frame0003_Timestamp"] == "10.75"
    fields["Seq_Frame0003_Timestamp"] = "99"
    _, uneven = load(write_meta(tmp_path / "b.mha", fields))
    assert uneven.spec.axes[0].step is None


def test_a_fourth_axis_of_simpleitk_is_time(tmp_path: Path) -> None:
    values = np.arange(48, dtype=np.int16).reshape(2, 4, 3, 2)
    image = sitk.GetImageFromArray(values, isVector=False)
    image.SetSpacing((2, 3, 4, 1.5))
    image.SetOrigin((10, 20, 30, 0))
    sitk.WriteImage(image, str(tmp_path / "a.mha"), True)
    array, source = load(tmp_path / "a.mha")
    np.testing.assert_array_equal(array, values)
    assert names(source) == "tzyx"
    assert source.spec.axes[0].step == 1.5
    assert position(source, array, 47) == (12, 26, 42)
    assert "axes-assumed" in notes(source)


def test_a_fourth_axis_that_the_matrix_mixes_with_space_is_not_time(tmp_path: Path) -> None:
    fields = {
        **META_BASE,
        "NDims": "4",
        "DimSize": "2 3 2 2",
        "TransformMatrix": "1 0 0 0 0 1 0 0 0 0 1 0 0.5 0 0 1",
        "ElementSpacing": "2 3 4 1",
    }
    _, source = load(write_meta(tmp_path / "a.mha", fields))
    assert names(source) == "dzyx"
    assert source.spec.axes[0].type == "other"
    assert "geometry-reduced" in notes(source)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (4, 3, 2)


@pytest.mark.parametrize("text", ["{", "[]", '["x","y"]', '["z","y","x"]', '[{"name":"x"},{"name":"x"},"z"]', "[[1]]"])
def test_axis_names_that_cannot_be_right_are_ignored_with_a_note(tmp_path: Path, text: str) -> None:
    _, source = load(write_meta(tmp_path / "a.mha", {**META_BASE, "MLArrayAxes": text}))
    assert names(source) == "zyx"
    assert "axes-unreadable" in notes(source)


# --- header -------------------------------------------------------------------------------------------------------------


def test_the_whole_header_is_kept_as_plain_values(tmp_path: Path) -> None:
    path = write_meta(tmp_path / "a.mha", {**META_BASE, **PLACED, "Comment": "a = b: c", "Modality": "MET_MOD_CT"})
    path.write_bytes(path.read_bytes().replace(b"Comment = a", b"Institut = M\xfcnchen\nComment = a"))
    header = open_source(path).info.header
    assert header["DimSize"] == [2, 3, 4]
    assert header["NDims"] == 3
    assert header["Offset"] == [10, 20, 30]
    assert header["TransformMatrix"] == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert header["Comment"] == "a = b: c"
    assert header["Institut"] == "München"
    assert header["ElementDataFile"] == "LOCAL"
    json.dumps(header, allow_nan=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ObjectType": "Tube"}, "'Tube'; only Image"),
        ({"NDims": "0"}, "says 0 axes"),
        ({"NDims": "1000000"}, "says 1000000 axes"),
        ({"NDims": "x"}, "whole numbers"),
        ({"DimSize": "2 3"}, "must hold 3 numbers"),
        ({"DimSize": "2 3 -4"}, "at least 1"),
        ({"DimSize": "1000000000000 1000000000000 1000000000000"}, "too short: 2" + "0" * 36),
        ({"DimSize": "10000 10000 10000", "CompressedData": "True"}, "can hold .* at most"),
        ({"ElementType": "MET_OTHER"}, "'MET_OTHER' cannot be read"),
        ({"ElementNumberOfChannels": "0"}, "at least 1, got 0"),
        ({"ElementNumberOfChannels": "-3"}, "at least 1, got -3"),
        ({"ElementSpacing": "1 nan 1"}, "3 finite numbers"),
        ({"ElementSpacing": "1 0 1"}, "must not be 0"),
        ({"ElementSpacing": "1 1"}, "3 finite numbers"),
        ({"Offset": "1 inf 1"}, "3 finite numbers"),
        ({"Offset": "1 2 3", "Position": "1 2 4"}, "contradict"),
        ({"TransformMatrix": "1 0 0 0 1 0"}, "9 finite numbers"),
        ({"TransformMatrix": "1 0 0 0 1 0 0 1 0"}, "singular"),
        ({"BinaryDataByteOrderMSB": "True", "ElementByteOrderMSB": "False"}, "contradict"),
        ({"BinaryData": "maybe"}, "True or False"),
        ({"BinaryData": "False", "CompressedData": "True"}, "both"),
        ({"HeaderSize": "-2"}, "HeaderSize -2"),
        ({"HeaderSize": "5"}, "inside the header"),
        ({"HeaderSize": "9" * 30}, "skips more than"),
        ({"HeaderSize": "-1", "CompressedData": "True"}, "HeaderSize -1"),
        ({"dimsize": "2 3 4"}, "twice"),
    ],
)
def test_a_header_that_cannot_be_right_is_refused_by_name(tmp_path: Path, change: dict[str, str], words: str) -> None:
    path = write_meta(tmp_path / "a.mha", {**META_BASE, **change})
    with pytest.raises(FormatError, match=words) as caught:
        open_source(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"NDims = 3\n", "no field ElementDataFile"),
        (b"no header\nElementDataFile = LOCAL\n", "Key = Value"),
        (b"NDims = 3\nElementDataFile = LOCAL\n", "no field DimSize"),
        (b"A = b\n" * 4_000_000, "no end of header"),
        (b"a" * 20_000_000, "no end of header"),
    ],
)
def test_a_file_that_is_no_header_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.mha").write_bytes(content)
    with pytest.raises(FormatError, match=words):
        open_source(tmp_path / "a.mha")


def test_threads_may_read_regions_of_a_stream_at_once(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 1000, (12, 20, 30)).astype("<i2")
    fields = {**META_BASE, "DimSize": "30 20 12", "CompressedData": "True"}
    source = open_source(write_meta(tmp_path / "a.mha", fields, zlib.compress(values.tobytes())))
    regions = [Region((z, 2, 3), (z + 2, 15, 25)) for z in (5, 0, 9, 2, 10, 7)]
    with ThreadPoolExecutor(4) as pool:
        for region, block in zip(regions, pool.map(source.read, regions), strict=True):
            np.testing.assert_array_equal(block, values[region.slices])
    source.close()
