"""NRRD as users have it: spaces, directions, kinds, encodings, detached files."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from mlarray.errors import FormatError
from mlarray.formats.registry import open_source
from mlarray.metadata.values import from_jsonable, to_jsonable
from mlarray.region import Region
from mlarray.sources.base import Access
from tests.conformance.text_header_files import NRRD_BASE, PLACED, RAMP, load, names, notes, position, write_nrrd

CUBE = np.arange(24, dtype=np.int16).reshape(4, 3, 2)


# --- geometry -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "lps"),
    [
        ("left-posterior-superior", (12, 26, 42)),
        ("LPS", (12, 26, 42)),
        ("right-anterior-superior", (-12, -26, 42)),
        ("RAS", (-12, -26, 42)),
        ("left-anterior-superior", (12, -26, 42)),
        ("LAS", (12, -26, 42)),
    ],
)
def test_every_anatomical_space_is_turned_into_lps(tmp_path: Path, space: str, lps: tuple[float, ...]) -> None:
    array, source = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, **PLACED, "space": space}))
    np.testing.assert_array_equal(array, CUBE)
    assert position(source, array, 23) == lps
    assert source.spec.geometry is not None
    assert source.spec.geometry.coord_system == "LPS"
    assert source.spec.geometry.spacing == (4, 3, 2)
    assert names(source) == "zyx"
    assert source.spec.axes[0].unit == "millimeter"


@pytest.mark.parametrize("space", ["scanner-xyz", "3D-right-handed", "3D-left-handed", "my-space"])
def test_a_space_that_is_not_anatomical_keeps_its_name_and_numbers(tmp_path: Path, space: str) -> None:
    array, source = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, **PLACED, "space": space}))
    assert position(source, array, 23) == (12, 26, 42)
    assert source.spec.geometry is not None
    assert source.spec.geometry.coord_system == space
    assert source.spec.geometry.orientation is None
    assert "orientation-unknown" in notes(source)


def test_a_space_of_a_dimension_only_has_no_name(tmp_path: Path) -> None:
    fields = {**NRRD_BASE, **PLACED, "space dimension": "3"}
    del fields["space"]
    array, source = load(write_nrrd(tmp_path / "a.nrrd", fields))
    assert position(source, array, 23) == (12, 26, 42)
    assert source.spec.geometry is not None
    assert source.spec.geometry.coord_system is None
    assert "orientation-unknown" in notes(source)


def test_vector_i_is_the_step_of_file_axis_i(tmp_path: Path) -> None:
    directions = "(0,2,0) (-3,0,0) (0,0,4)"
    path = write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, **PLACED, "space directions": directions})
    array, source = load(path)
    assert position(source, array, 23) == (4, 22, 42)  # RAS (-4, -22, 42)
    image = sitk.ReadImage(str(path))
    assert image.TransformIndexToPhysicalPoint((1, 2, 3)) == pytest.approx((4, 22, 42))


def test_only_spacings_leave_origin_and_direction_unknown(tmp_path: Path) -> None:
    _, source = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "spacings": "2 3 4"}))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (4, 3, 2)
    assert source.spec.geometry.known == {"spacing"}
    assert source.spec.geometry.coord_system is None
    assert source.spec.axes[0].unit is None


def test_nothing_stated_is_no_geometry(tmp_path: Path) -> None:
    _, source = load(write_nrrd(tmp_path / "a.nrrd", NRRD_BASE))
    assert source.spec.geometry is None


@pytest.mark.parametrize(
    ("unit", "factor"), [("um", 1e-3), ("µm", 1e-3), ("micron", 1e-3), ("mm", 1), ("cm", 10), ("m", 1000)]
)
def test_units_of_space_become_millimetres(tmp_path: Path, unit: str, factor: float) -> None:
    fields = {**NRRD_BASE, **PLACED, "space units": f'"{unit}" "{unit}" "{unit}"'}
    array, source = load(write_nrrd(tmp_path / "a.nrrd", fields))
    assert position(source, array, 23) == tuple(round(v * factor, 6) for v in (12, 26, 42))
    assert source.spec.axes[0].unit == "millimeter"
    assert source.spec.geometry is not None
    np.testing.assert_allclose(source.spec.geometry.spacing, np.array([4, 3, 2]) * factor)
    _, plain = load(write_nrrd(tmp_path / "b.nrrd", {**NRRD_BASE, "spacings": "2 3 4", "units": fields["space units"]}))
    assert plain.spec.geometry is not None
    np.testing.assert_allclose(plain.spec.geometry.spacing, np.array([4, 3, 2]) * factor)


def test_a_unit_of_no_known_length_is_kept_and_noted(tmp_path: Path) -> None:
    _, source = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, **PLACED, "space units": '"px" "px" "px"'}))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (4, 3, 2)
    assert source.spec.axes[0].unit == "px"
    assert "unit-unknown" in notes(source)


def test_an_origin_that_is_missing_or_nan_is_unknown(tmp_path: Path) -> None:
    for origin in (None, "(nan,nan,nan)", "none"):
        fields: dict[str, str] = {**NRRD_BASE, **PLACED, "space origin": origin}  # type: ignore[dict-item]
        _, source = load(write_nrrd(tmp_path / "a.nrrd", fields))
        assert source.spec.geometry is not None
        assert source.spec.geometry.known == {"spacing", "direction"}


def test_space_with_spacings_keeps_the_frame_but_no_direction(tmp_path: Path) -> None:
    fields = {**NRRD_BASE, "space": "RAS", "spacings": "2 3 4", "space origin": "(1,2,3)"}
    _, source = load(write_nrrd(tmp_path / "a.nrrd", fields))
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == {"spacing", "origin"}
    assert source.spec.geometry.origin == (-1, -2, 3)
    assert source.spec.geometry.coord_system == "LPS"


def test_a_plane_in_space_keeps_x_and_y(tmp_path: Path) -> None:
    fields = {**NRRD_BASE, "dimension": "2", "sizes": "4 6", "space": "RAS"}
    flat = {**fields, "space directions": "(2,0,0) (0,3,0)", "space origin": "(5,6,0)"}
    array, source = load(write_nrrd(tmp_path / "a.nrrd", flat))
    assert names(source) == "yx"
    assert position(source, array, 23) == (-11, -21)  # x index 3, y index 5
    tilted = {**fields, "space directions": "(0,2,0) (0,0,3)", "space origin": "(5,6,0)"}
    _, source = load(write_nrrd(tmp_path / "b.nrrd", tilted))
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == {"spacing"}
    assert source.spec.geometry.spacing == (3, 2)
    assert "geometry-reduced" in notes(source)


# --- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "kind_of_axis"),
    [
        ("list", "c", "channel"),
        ("RGB-color", "c", "channel"),
        ("3-color", "c", "channel"),
        ("vector", "v", "components"),
        ("3-vector", "v", "components"),
        ("covariant-vector", "v", "components"),
        ("time", "t", "time"),
        ("point", "d", "other"),
        ("???", "d", "other"),
        ("domain", "d", "other"),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 1])
def test_an_axis_that_is_not_spatial_moves_to_the_front(
    tmp_path: Path, kind: str, name: str, kind_of_axis: str, place: int
) -> None:
    kinds, sizes, directions = ["domain"] * 3, ["2", "3", "4"], ["(2,0,0)", "(0,3,0)", "(0,0,4)"]
    for entries, entry in ((kinds, kind), (sizes, "3"), (directions, "none")):
        entries.insert(place, entry)
    fields = {
        **NRRD_BASE,
        **PLACED,
        "dimension": "4",
        "sizes": " ".join(sizes),
        "kinds": " ".join(kinds),
        "space directions": " ".join(directions),
    }
    data = np.arange(72, dtype="<i2")
    array, source = load(write_nrrd(tmp_path / "a.nrrd", fields, data.tobytes()))
    disk = data.reshape([int(size) for size in reversed(sizes)])
    np.testing.assert_array_equal(array, np.moveaxis(disk, 3 - place, 0))
    assert [axis.name for axis in source.spec.axes] == [name, "z", "y", "x"]
    assert source.spec.axes[0].type == kind_of_axis
    last = int(array[2, 3, 2, 1])
    assert position(source, array, last) == (12, 26, 42)
    part = Region((1, 1, 0, 1), (3, 3, 2, 2))
    np.testing.assert_array_equal(source.read(part), array[part.slices])


def test_layers_of_a_segmentation_are_channels(tmp_path: Path) -> None:
    data = np.zeros((4, 4, 2, 3), np.uint8)  # z, y, x, layer
    data[1, 2, 1, :2] = 1
    fields = {
        "type": "unsigned char",
        "dimension": "4",
        "space": "left-posterior-superior",
        "sizes": "3 2 4 4",
        "space directions": "none (2,0,0) (0,3,0) (0,0,4)",
        "space origin": "(10,20,30)",
        "kinds": "list domain domain domain",
        "encoding": "raw",
    }
    keys = "Segment0_Layer:=0\nSegment0_Name:=liver\nSegment0_LabelValue:=1\nSegment1_Layer:=1\n"
    array, source = load(write_nrrd(tmp_path / "a.seg.nrrd", fields, data.tobytes(), keys=keys))
    assert array.shape == (3, 4, 4, 2)
    assert array.dtype == np.uint8
    assert np.argwhere(array).tolist() == [[0, 1, 2, 1], [1, 1, 2, 1]]  # one voxel in two layers
    assert source.info.is_seg is True
    assert source.info.header["key/values"] == {
        "Segment0_Layer": "0",
        "Segment0_Name": "liver",
        "Segment0_LabelValue": "1",
        "Segment1_Layer": "1",
    }
    assert [axis.type for axis in source.spec.axes] == ["channel", "space", "space", "space"]


@pytest.mark.parametrize(
    "fields",
    [
        {"kinds": "domain domain domain time", "spacings": "1 1 1 2.5", "units": '"mm" "mm" "mm" "s"'},
        {"kinds": "domain domain domain list", "spacings": "1 1 1 2.5", "units": '"mm" "mm" "mm" "s"'},
        {
            "space": "left-posterior-superior-time",
            "space directions": "(1,0,0,0) (0,1,0,0) (0,0,1,0) (0,0,0,2.5)",
            "space units": '"mm" "mm" "mm" "s"',
        },
        {
            "space": "RAST",
            "kinds": "domain domain domain time",
            "space directions": "(1,0,0,0) (0,1,0,0) (0,0,1,0) (0,0,0,2.5)",
            "space units": '"mm" "mm" "mm" "s"',
        },
    ],
)
def test_a_time_axis_has_its_step_and_unit(tmp_path: Path, fields: dict[str, str]) -> None:
    base = {**NRRD_BASE, "dimension": "4", "sizes": "2 3 2 2"}
    _, source = load(write_nrrd(tmp_path / "a.nrrd", {**base, **fields}))
    time = source.spec.axes[0]
    assert (time.name, time.type, time.unit, time.step) == ("t", "time", "second", 2.5)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (1, 1, 1)


def test_a_4d_file_of_simpleitk_has_time_as_its_fourth_axis(tmp_path: Path) -> None:
    values = np.arange(48, dtype=np.int16).reshape(2, 4, 3, 2)
    image = sitk.GetImageFromArray(values, isVector=False)
    image.SetSpacing((2, 3, 4, 1.5))
    image.SetOrigin((10, 20, 30, 0))
    sitk.WriteImage(image, str(tmp_path / "a.nrrd"))
    array, source = load(tmp_path / "a.nrrd")
    np.testing.assert_array_equal(array, values)
    assert names(source) == "tzyx"
    assert source.spec.axes[0].step == 1.5
    assert position(source, array, 23) == (12, 26, 42)
    assert position(source, array, 47) == (12, 26, 42)
    assert "axes-assumed" not in notes(source)


def test_four_axes_without_kinds_are_noted_as_assumed(tmp_path: Path) -> None:
    _, source = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "dimension": "4", "sizes": "2 3 2 2"}))
    assert names(source) == "tzyx"
    assert "axes-assumed" in notes(source)


# --- encodings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "data", "access"),
    [
        ("raw", RAMP, Access.REGION),
        ("gzip", gzip.compress(RAMP), Access.SLAB),
        ("gz", gzip.compress(RAMP[:20]) + gzip.compress(RAMP[20:]), Access.SLAB),
        ("bzip2", bz2.compress(RAMP), Access.SLAB),
        ("bz2", bz2.compress(RAMP), Access.SLAB),
        ("text", " ".join(map(str, range(24))).encode(), Access.WHOLE),
        ("ASCII", b"\n".join(str(n).encode() for n in range(24)) + b"\n", Access.WHOLE),
        ("txt", b", ".join(str(n).encode() for n in range(24)), Access.WHOLE),
        ("hex", RAMP.hex().encode(), Access.WHOLE),
        ("hex", b"\n".join(RAMP[i : i + 6].hex().upper().encode() for i in range(0, 48, 6)), Access.WHOLE),
    ],
)
def test_every_encoding_gives_the_same_voxels(tmp_path: Path, encoding: str, data: bytes, access: Access) -> None:
    array, source = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "encoding": encoding}, data))
    np.testing.assert_array_equal(array, CUBE)
    assert source.access is access
    part = Region((1, 0, 1), (3, 2, 2))
    np.testing.assert_array_equal(source.read(part), CUBE[part.slices])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(part), CUBE[part.slices])
    source.close()
    np.testing.assert_array_equal(source.read(part), CUBE[part.slices])


def test_big_endian_voxels_are_read_in_native_order(tmp_path: Path) -> None:
    data = np.arange(24, dtype=">i2").tobytes()
    array, _ = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "endian": "big"}, data))
    np.testing.assert_array_equal(array, CUBE)
    assert array.dtype.isnative
    array, _ = load(
        write_nrrd(tmp_path / "b.nrrd", {**NRRD_BASE, "endian": "big", "encoding": "hex"}, data.hex().encode())
    )
    np.testing.assert_array_equal(array, CUBE)


@pytest.mark.parametrize(
    ("names_of_type", "dtype"),
    [
        ("signed char|int8|int8_t", "i1"),
        ("uchar|unsigned char|uint8|uint8_t", "u1"),
        ("short|short int|signed short|signed short int|int16|int16_t", "i2"),
        ("ushort|unsigned short|unsigned short int|uint16|uint16_t", "u2"),
        ("int|signed int|int32|int32_t", "i4"),
        ("uint|unsigned int|uint32|uint32_t", "u4"),
        ("longlong|long long|long long int|signed long long|signed long long int|int64|int64_t", "i8"),
        ("ulonglong|unsigned long long|unsigned long long int|uint64|uint64_t", "u8"),
        ("float", "f4"),
        ("double", "f8"),
    ],
)
def test_every_spelling_of_a_type_is_known(tmp_path: Path, names_of_type: str, dtype: str) -> None:
    data = np.arange(24).astype(dtype)
    for name in names_of_type.split("|"):
        array, _ = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "type": name}, data.tobytes()))
        assert array.dtype == np.dtype(dtype)
        assert array.max() == 23


@pytest.mark.parametrize(("encoding", "magic"), [("gzip", "gzip"), ("bz2", "bzip2")])
def test_raw_data_under_a_claim_of_compression_are_read_when_the_size_fits(
    tmp_path: Path, encoding: str, magic: str
) -> None:
    path = write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, **PLACED, "encoding": encoding})
    array, source = load(path)
    np.testing.assert_array_equal(array, CUBE)
    assert source.access is Access.REGION
    assert "encoding-mismatch" in notes(source)
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(FormatError, match=rf"says encoding {magic}.*42 bytes are not the 48"):
        open_source(path)


def test_gzip_data_under_a_claim_of_raw_are_refused_with_advice(tmp_path: Path) -> None:
    path = write_nrrd(tmp_path / "a.nrrd", NRRD_BASE, gzip.compress(RAMP))
    with pytest.raises(FormatError, match="look compressed with gzip"):
        open_source(path)


@pytest.mark.parametrize(("data", "words"), [(RAMP[:-6], "too short: 48.*42"), (RAMP + b"xy", "too long: 48.*50")])
def test_raw_data_of_another_size_are_refused_with_both_counts(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        open_source(write_nrrd(tmp_path / "a.nrrd", NRRD_BASE, data))


@pytest.mark.parametrize(
    ("encoding", "data", "words"),
    [
        ("gzip", gzip.compress(RAMP[:-6]), "48.*42"),
        ("gzip", gzip.compress(RAMP + b"xy"), "too long: 48"),
        ("gzip", gzip.compress(RAMP)[:-12], "short|damaged"),
        ("gzip", gzip.compress(RAMP)[:-8] + b"\0" * 8, "damaged"),
        ("bzip2", bz2.compress(RAMP[:-6]), "48.*42"),
        ("bzip2", bz2.compress(RAMP + b"xy"), "too long: 48"),
        ("bzip2", bz2.compress(RAMP)[:-5], "short|damaged"),
        ("text", b"1 2 3", "bytes are needed"),
        ("text", b" ".join([b"1"] * 23) + b" " * 99, "24 numbers are expected, 23"),
        ("text", b" ".join([b"1"] * 25), "24 numbers are expected, more"),
        ("text", b" ".join([b"1"] * 23) + b" abc", "no int16"),
        ("text", b" ".join([b"1"] * 23) + b" 40000", "no int16"),
        ("text", b"1" * 9000, "no number"),
        ("hex", RAMP.hex().encode()[:-12], "48.*42"),
        ("hex", b"zz" * 48, "not hexadecimal"),
    ],
)
def test_damaged_data_are_refused_when_read(tmp_path: Path, encoding: str, data: bytes, words: str) -> None:
    source = open_source(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "encoding": encoding}, data))
    with pytest.raises(FormatError, match=words):
        source.read(source.spec.region)
    source.close()


def test_lines_and_bytes_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.nrrd"
    for skip, junk in (
        ({"byte skip": "5"}, b"12345"),
        ({"line skip": "2"}, b"one\ntwo\n"),
        ({"line skip": "1", "byte skip": "3"}, b"one\nabc"),
        ({"byte skip": "-1"}, b"whatever"),
        ({"byteskip": "4", "lineskip": "0"}, b"1234"),
    ):
        array, _ = load(write_nrrd(path, {**NRRD_BASE, **skip}, junk + RAMP))
        np.testing.assert_array_equal(array, CUBE)
    packed = b"line\n" + gzip.compress(b"abc" + RAMP)
    array, _ = load(write_nrrd(path, {**NRRD_BASE, "encoding": "gzip", "line skip": "1", "byte skip": "3"}, packed))
    np.testing.assert_array_equal(array, CUBE)
    for bad in (
        {"byte skip": "9" * 30},
        {"byte skip": "-2"},
        {"line skip": "-1"},
        {"line skip": "99"},
        {"encoding": "gzip", "byte skip": "-1"},
    ):
        with pytest.raises(FormatError, match="skip"):
            open_source(write_nrrd(path, {**NRRD_BASE, **bad}))


def test_a_header_with_windows_line_ends_is_read(tmp_path: Path) -> None:
    array, source = load(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, **PLACED}, newline="\r\n"))
    np.testing.assert_array_equal(array, CUBE)
    assert position(source, array, 23) == (12, 26, 42)


# --- detached files ---------------------------------------------------------------------------------------------------


def _slices(folder: Path, junk: bytes = b"") -> None:
    for number in range(4):
        (folder / f"sl_{number:02d}.raw").write_bytes(junk + RAMP[12 * number : 12 * number + 12])


@pytest.mark.parametrize(
    "named",
    [
        "LIST\nsl_00.raw\nsl_01.raw\nsl_02.raw\nsl_03.raw",
        "LIST 2\nsl_00.raw\nsl_01.raw\nsl_02.raw\nsl_03.raw",
        "LIST 3\nsl_00.raw\nsl_01.raw\nsl_02.raw\nsl_03.raw",
        "sl_%02d.raw 0 3 1",
        "sl_%02d.raw 0 3 1 2",
        "sl_%.2d.raw 0 3 1 3",
        "./sl_%02d.raw 0 3 1",
    ],
)
def test_slices_in_files_of_their_own_are_joined(tmp_path: Path, named: str) -> None:
    _slices(tmp_path, b"junk!")
    path = write_nrrd(tmp_path / "a.nhdr", {**NRRD_BASE, **PLACED, "byte skip": "5", "data file": named}, b"")
    array, source = load(path)
    np.testing.assert_array_equal(array, CUBE)
    assert position(source, array, 23) == (12, 26, 42)
    assert source.info.files == (path, *(tmp_path / f"sl_{number:02d}.raw" for number in range(4)))
    assert source.access is Access.REGION
    part = Region((1, 1, 0), (3, 3, 2))
    np.testing.assert_array_equal(source.read(part), CUBE[part.slices])


def test_slices_in_falling_order_and_slabs_are_joined(tmp_path: Path) -> None:
    _slices(tmp_path)
    array, _ = load(write_nrrd(tmp_path / "a.nhdr", {**NRRD_BASE, "data file": "sl_%02d.raw 3 0 -1"}, b""))
    np.testing.assert_array_equal(array, CUBE[::-1])
    for number in range(2):
        (tmp_path / f"slab{number}.raw").write_bytes(RAMP[24 * number : 24 * number + 24])
    array, _ = load(write_nrrd(tmp_path / "b.nhdr", {**NRRD_BASE, "data file": "slab%d.raw 0 1 1 3"}, b""))
    np.testing.assert_array_equal(array, CUBE)
    for number in range(12):
        (tmp_path / f"line{number}.raw").write_bytes(RAMP[4 * number : 4 * number + 4])
    array, _ = load(write_nrrd(tmp_path / "c.nhdr", {**NRRD_BASE, "datafile": "line%d.raw 0 11 1 1"}, b""))
    np.testing.assert_array_equal(array, CUBE)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("LIST\nsl_00.raw\nsl_01.raw", "names 2 data files; its sizes need 4"),
        ("LIST 3\nsl_00.raw\nsl_01.raw\nsl_02.raw", "cannot share an axis of 4"),
        ("LIST 7\nsl_00.raw", "each file has 7 axes"),
        ("LIST", "names 0 data files"),
        ("sl_%02d.raw 0 3 0", "step of 0"),
        ("sl_%02d.raw 0 9 1", "names 10 data files"),
        ("sl_%02d.raw 0 3 -1", "names 0 data files"),
        ("sl_%02d.raw 0 999999999999 1 3", "names 1000000000000 data files"),
        ("sl_%s.raw 0 3 1", "pattern"),
        ("sl_%d_%d.raw 0 3 1", "pattern"),
    ],
)
def test_wrong_lists_of_files_are_refused(tmp_path: Path, named: str, words: str) -> None:
    _slices(tmp_path)
    with pytest.raises(FormatError, match=words):
        open_source(write_nrrd(tmp_path / "a.nhdr", {**NRRD_BASE, "data file": named}, b""))


def test_a_single_data_file_may_be_compressed_and_below_the_header(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "v 1.raw.gz").write_bytes(gzip.compress(RAMP))
    fields = {**NRRD_BASE, "encoding": "gzip", "data file": "data/v 1.raw.gz"}
    array, source = load(write_nrrd(tmp_path / "a.nhdr", fields, b""))
    np.testing.assert_array_equal(array, CUBE)
    assert source.info.files[1] == tmp_path / "data" / "v 1.raw.gz"


def test_a_missing_or_short_data_file_names_everything(tmp_path: Path) -> None:
    path = write_nrrd(tmp_path / "a.nhdr", {**NRRD_BASE, "data file": "v.raw"}, b"")
    with pytest.raises(FormatError, match=r"a\.nhdr names the data file 'v\.raw' \(48 bytes expected\)"):
        open_source(path)
    (tmp_path / "v.raw").write_bytes(RAMP[:-10])
    with pytest.raises(FormatError, match=r"a\.nhdr: the data file .*v\.raw is too short: 48 .* 38"):
        open_source(path)


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "folder", "fifo", "nul", "long", "inside-out"])
def test_a_data_file_outside_of_the_folder_is_never_read(tmp_path: Path, kind: str) -> None:
    import os

    secret = tmp_path / "secret.raw"
    secret.write_bytes(RAMP)
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "link.raw").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    named = {
        "parent": "../secret.raw",
        "absolute": str(secret),
        "link": "link.raw",
        "folder": ".",
        "fifo": "fifo",
        "nul": "a\0b",
        "long": "x" * 5000,
        "inside-out": "up/secret.raw",
    }[kind]
    with pytest.raises(FormatError, match="data file"):
        open_source(write_nrrd(folder / "a.nhdr", {**NRRD_BASE, "data file": named}, b""))


def test_an_absolute_name_or_a_link_within_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "v.raw").write_bytes(RAMP)
    (tmp_path / "link.raw").symlink_to("v.raw")
    for named in (str(tmp_path / "v.raw"), "link.raw"):
        array, _ = load(write_nrrd(tmp_path / "a.nhdr", {**NRRD_BASE, "data file": named}, b""))
        np.testing.assert_array_equal(array, CUBE)


# --- header -----------------------------------------------------------------------------------------------------------


def test_the_whole_header_is_kept_as_plain_values(tmp_path: Path) -> None:
    fields = {
        **NRRD_BASE,
        **PLACED,
        "measurement frame": "(1,0,0) (0,1,0) (0,0,1)",
        "content": "a: b:=c",
        "spacings": "nan nan nan",
        "old min": "-inf",
    }
    keys = "# made by hand\nname with space:=va:=lue\nlines:=one\\ntwo \\\\n\nDICOM:Tag:=7\n"
    source = open_source(write_nrrd(tmp_path / "a.nrrd", fields, keys=keys))
    header = source.info.header
    assert header["magic"] == "NRRD0004"
    assert header["sizes"] == [2, 3, 4]
    assert header["space directions"] == [[2, 0, 0], [0, 3, 0], [0, 0, 4]]
    assert header["measurement frame"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert header["space origin"] == [[10, 20, 30]]
    assert header["spacings"] == [None, None, None]
    assert header["old min"] == "-inf"
    assert header["content"] == "a: b:=c"
    assert header["comments"] == ["made by hand"]
    assert header["key/values"] == {"name with space": "va:=lue", "lines": "one\ntwo \\n", "DICOM:Tag": "7"}
    json.dumps(header, allow_nan=False)


def test_text_that_is_no_utf8_is_read_as_latin1(tmp_path: Path) -> None:
    path = write_nrrd(tmp_path / "a.nrrd", NRRD_BASE)
    path.write_bytes(path.read_bytes().replace(b"\n\n", b"\nName:=M\xfcller\nStra\xdfe:=\xe9\xff\n\n", 1))
    source = open_source(path)
    assert source.info.header["key/values"] == {"Name": "Müller", "Straße": "éÿ"}
    assert from_jsonable(json.loads(json.dumps(to_jsonable(source.info.header), allow_nan=False))) == source.info.header


def test_fields_that_the_format_does_not_define_are_noted(tmp_path: Path) -> None:
    source = open_source(write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "spce": "RAS"}))
    assert "field-unknown" in notes(source)
    assert source.info.header["spce"] == "RAS"


@pytest.mark.parametrize("text", ["{broken", "[1]", "NaN", '{"a": NaN}', "[" * 100000, "7"])
def test_a_record_that_cannot_be_read_is_empty_and_noted(tmp_path: Path, text: str) -> None:
    source = open_source(write_nrrd(tmp_path / "a.nrrd", NRRD_BASE, keys=f"mlarray_record:={text}\n"))
    assert source.info.record == {}
    assert "record-unreadable" in notes(source)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "block"}, "'block' cannot be read: blocks"),
        ({"type": "float128"}, "not defined"),
        ({"type": None}, "no field 'type'"),
        ({"encoding": "zrl"}, "encoding 'zrl' is unknown"),
        ({"encoding": None}, "no field 'encoding'"),
        ({"endian": None}, "endian"),
        ({"endian": "middle"}, "endian 'middle'"),
        ({"dimension": "0"}, "says 0 axes"),
        ({"dimension": "1000000"}, "says 1000000 axes"),
        ({"dimension": "-3"}, "says -3 axes"),
        ({"dimension": "3 3"}, "one whole number"),
        ({"dimension": None}, "no field 'dimension'"),
        ({"sizes": "2 3"}, "must hold 3 numbers"),
        ({"sizes": "2 3 -4"}, "at least 1"),
        ({"sizes": "2 0 4"}, "at least 1"),
        ({"sizes": "2 3 x"}, "whole numbers"),
        ({"sizes": "1000000000000 1000000000000 1000000000000"}, "too short: 2" + "0" * 36),
        ({"sizes": "1000000000000 1 1", "encoding": "gzip"}, "do not begin like gzip"),
        ({"kinds": "domain domain"}, "2 kinds for 3 axes"),
        ({"spacings": "1 inf 1"}, "finite numbers other than 0"),
        ({"spacings": "1 0 1"}, "finite numbers other than 0"),
        ({"spacings": "1 1"}, "must hold 3 numbers"),
        ({**PLACED, "space directions": "(1,0,0) (0,1,0)"}, "2 vectors for 3 axes"),
        ({**PLACED, "space directions": "(1,0,0) (0,1,0) (0,0,nan)"}, "3 finite numbers"),
        ({**PLACED, "space directions": "(1,0,0) (0,1,0) (0,0,inf)"}, "3 finite numbers"),
        ({**PLACED, "space directions": "(1,0,0) (0,1,0) (0,1,0)"}, "singular"),
        ({**PLACED, "space directions": "(1,0,0) (0,1,0) (0,0,0)"}, "singular"),
        ({**PLACED, "space directions": "(1,0) (0,1) (1,1)"}, "3 finite numbers"),
        ({**PLACED, "space directions": "1 2 3"}, "vectors such as"),
        ({**PLACED, "space origin": "(1,2)"}, "3 finite numbers"),
        ({**PLACED, "space origin": "(1,2,inf)"}, "3 finite numbers"),
        ({"space dimension": "2", "space directions": "(1,0) (0,1) (1,1)"}, "space of 2 dimensions"),
        ({"space units": '"mm"', **PLACED}, "must hold 3 strings"),
    ],
)
def test_a_header_that_cannot_be_right_is_refused_by_name(tmp_path: Path, change: dict[str, str], words: str) -> None:
    path = write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, **change})
    with pytest.raises(FormatError, match=words) as caught:
        open_source(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"NRRD0009\n", "NRRD0001 to NRRD0005"),
        (b"NRRD0004\nnonsense\n\n", "no field, key or comment"),
        (b"NRRD0004\ntype: int8\ntype: int16\n\n", "'type' twice"),
        (b"NRRD0004\nlineskip: 1\nline skip: 2\n\n", "'line skip' twice"),
        (b"NRRD0004\n" + b"a:=b\n" * 4_000_000, "no end of header"),
        (b"NRRD0004\n" + b"a" * 20_000_000, "no end of header"),
    ],
)
def test_a_file_that_is_no_header_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.nrrd").write_bytes(content)
    with pytest.raises(FormatError, match=words):
        open_source(tmp_path / "a.nrrd")


def test_a_small_stream_cannot_promise_a_huge_array(tmp_path: Path) -> None:
    fields = {**NRRD_BASE, "sizes": "100000 100000 100000", "encoding": "gzip"}
    with pytest.raises(FormatError, match=r"can hold .* at most"):
        open_source(write_nrrd(tmp_path / "a.nrrd", fields, gzip.compress(RAMP)))


# --- access -----------------------------------------------------------------------------------------------------------


def test_only_the_bytes_of_a_region_are_read(tmp_path: Path) -> None:
    fields = {**NRRD_BASE, "type": "uint8", "sizes": "400 400 200"}
    path = write_nrrd(tmp_path / "a.nrrd", fields, b"")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 400 * 400 * 200)
    asked = []
    source = open_source(path)
    data = source._data  # type: ignore[attr-defined]

    class Counting:
        def readinto(self, offset: int, buffer: memoryview) -> None:
            asked.append(len(buffer))
            data.readinto(offset, buffer)

        def close(self) -> None:
            data.close()

    source._data = Counting()  # type: ignore[attr-defined]
    source.read(Region((90, 100, 100), (92, 110, 110)))
    assert sum(asked) <= 2 * 400 * 10


@pytest.mark.parametrize("encoding", ["raw", "gzip", "text"])
def test_threads_may_read_regions_at_once(tmp_path: Path, encoding: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1000, (12, 20, 30)).astype("<i2")
    data = {
        "raw": values.tobytes(),
        "gzip": gzip.compress(values.tobytes()),
        "text": b" ".join(str(v).encode() for v in values.ravel()),
    }[encoding]
    source = open_source(
        write_nrrd(tmp_path / "a.nrrd", {**NRRD_BASE, "sizes": "30 20 12", "encoding": encoding}, data)
    )
    regions = [Region((z, y, 3), (z + 2, y + 7, 25)) for z, y in itertools.product(range(0, 10, 3), range(0, 12, 4))]
    with ThreadPoolExecutor(4) as pool:
        for region, block in zip(regions, pool.map(source.read, regions), strict=True):
            np.testing.assert_array_equal(block, values[region.slices])
    source.close()
