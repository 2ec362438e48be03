"""TIFF, OME-TIFF and ImageJ files as people have them: every layout, axes by role, units, pyramids, sets of files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile

from mlarray.errors import FormatError, UsageError
from mlarray.formats.registry import format_of, items_of, open_source
from mlarray.formats.tiff_segments import CACHE_BYTES, SegmentSource
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Source
from mlarray.sources.raw import RawSource
from mlarray.testing.conformance import SourceConformance
from tests.conformance.text_header_files import load, names, notes
from tests.conformance.tiff_files import (
    BASE,
    LAYOUTS,
    cut_after_first_directory,
    ome_xml,
    write_layout,
    write_ome_set,
    write_pyramid,
)

MICRON = 1e-3  # millimetres


def boxes(shape: tuple[int, ...]) -> list[Region]:
    rng = np.random.default_rng(11)
    drawn = [np.sort(rng.integers(0, np.array(shape) + 1, (2, len(shape))), axis=0) for _ in range(12)]
    return [Region(tuple(low.tolist()), tuple(high.tolist())) for low, high in drawn]


# --- every layout -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read_as_tifffile_reads_it(tmp_path: Path, name: str) -> None:
    path = write_layout(tmp_path, name)
    expected = tifffile.imread(path)
    with open_source(path) as source:
        array = source.read(source.spec.region)
        np.testing.assert_array_equal(array.transpose(source.order), expected)
        assert array.dtype == expected.dtype.newbyteorder("=")
        for box in boxes(source.spec.shape):
            np.testing.assert_array_equal(source.read(box), array[box.slices])
        copy = pickle.loads(pickle.dumps(source))
        last = Region.at([extent - 1 for extent in array.shape], (1,) * array.ndim)
        np.testing.assert_array_equal(copy.read(last), array[last.slices])
        copy.close()
        assert names(source)[-2:] == "yx"
        assert source.spec.geometry is None, "nobody measured a voxel"


class _TiffConformance(SourceConformance):
    layout = ""

    def make(self, folder: Path) -> Source:
        return open_source(write_layout(folder, self.layout))

    def expected(self) -> NDArray:
        return BASE


class TestPlainTiff(_TiffConformance):
    layout = "plain"


class TestTiffWithADirectoryAPage(_TiffConformance):
    layout = "plain with a directory a page"


class TestTiffInStrips(_TiffConformance):
    layout = "strips with a predictor"


class TestBigEndianBigTiffInTiles(_TiffConformance):
    layout = "big-endian bigtiff in tiles"


class TestTiffOfTiledVolumes(_TiffConformance):
    layout = "volume in one page"


class TestImageJ(_TiffConformance):
    layout = "imagej"


class TestOmeSet(SourceConformance):
    def make(self, folder: Path) -> Source:
        return open_source(write_ome_set(folder)[1][0])

    def expected(self) -> NDArray:
        return BASE[:6].reshape(2, 3, 34, 45)


class TestJpegTiff(SourceConformance):
    def make(self, folder: Path) -> Source:
        return open_source(write_layout(folder, "grey jpeg"))

    def expected(self) -> NDArray:
        array, arguments = LAYOUTS["grey jpeg"]
        decoded: NDArray = _encoded(array, arguments)
        return decoded


def _encoded(array: NDArray, arguments: dict[str, object]) -> NDArray:
    """The voxels after a lossy compression."""
    import io

    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, photometric="minisblack", **arguments)  # type: ignore[arg-type]
    buffer.seek(0)
    return np.asarray(tifffile.imread(buffer))


# --- what is read -------------------------------------------------------------------------------------------------------


def test_raw_pages_are_read_in_place_and_compressed_ones_by_segments(tmp_path: Path) -> None:
    for name, kind in [("plain", RawSource), ("plain with a directory a page", RawSource), ("tiles", SegmentSource)]:
        folder = tmp_path / name
        folder.mkdir()
        with open_source(write_layout(folder, name)) as source:
            assert isinstance(source, kind)
            assert source.access is Access.REGION


def test_a_region_reads_only_the_tiles_that_it_touches(tmp_path: Path) -> None:
    """Every other tile is overwritten with rubbish that no decoder takes."""
    path = write_layout(tmp_path, "tiles")
    with tifffile.TiffFile(path) as file:
        page = file.pages[4]
        wanted = page.dataoffsets[1 * 3 + 2]  # the tile of rows 16 to 31 and columns 32 to 44
        others = [
            (offset, count)
            for one in file.pages
            for offset, count in zip(one.dataoffsets, one.databytecounts, strict=True)
            if offset != wanted
        ]
    data = bytearray(path.read_bytes())
    for offset, count in others:
        data[offset : offset + count] = b"\xff" * count
    path.write_bytes(data)
    with open_source(path) as source:
        box = Region((4, 17, 32), (5, 31, 45))
        np.testing.assert_array_equal(source.read(box), BASE[box.slices])
        with pytest.raises(FormatError, match=r"segment 4 of page 4 \(ADOBE_DEFLATE \(8\).*cannot be decoded"):
            source.read(Region((4, 17, 31), (5, 31, 45)))


def test_large_compressed_strips_are_read_as_planes(tmp_path: Path) -> None:
    array = np.zeros((2, 1024, 1024), np.uint16)
    array[:, ::7] = 5
    tifffile.imwrite(tmp_path / "a.tif", array, compression="zlib", rowsperstrip=1024, photometric="minisblack")
    with open_source(tmp_path / "a.tif") as source:
        assert source.access is Access.SLAB
        box = Region((1, 3, 5), (2, 900, 1000))
        np.testing.assert_array_equal(source.read(box), array[box.slices])


def test_a_tiff_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    for name in ("plain", "big-endian", "bigtiff", "big-endian bigtiff in tiles"):
        folder = tmp_path / name
        folder.mkdir()
        unnamed = write_layout(folder, name).rename(folder / "export.001")
        assert format_of(unnamed).name == "tiff"
    assert format_of(write_layout(tmp_path, "plain").rename(tmp_path / "A.OME.TIF")).name == "tiff"


# --- axes and units -----------------------------------------------------------------------------------------------------


def test_an_imagej_hyperstack_has_its_axes_steps_and_units(tmp_path: Path) -> None:
    """x and y lie in the resolution tags, z in the description; together 0.13, 0.26 and 0.2 micrometres."""
    array = np.arange(5 * 2 * 6 * 7, dtype=np.uint16).reshape(5, 2, 6, 7)
    tifffile.imwrite(
        tmp_path / "a.tif",
        array,
        imagej=True,
        resolution=(1 / 0.13, 1 / 0.26),
        metadata={"axes": "ZCYX", "spacing": 0.2, "unit": "um"},
    )
    stored, source = load(tmp_path / "a.tif")
    np.testing.assert_array_equal(stored, array.transpose(1, 0, 2, 3))
    _check_micrometres(source)


def test_an_ome_tiff_has_its_axes_steps_and_units(tmp_path: Path) -> None:
    array = np.arange(5 * 2 * 6 * 7, dtype=np.uint16).reshape(5, 2, 6, 7)
    scale = {f"PhysicalSize{axis}": size for axis, size in (("X", 0.13), ("Y", 0.26), ("Z", 0.2))}
    units = {f"PhysicalSize{axis}Unit": "µm" for axis in "XYZ"}
    metadata = {"axes": "ZCYX", **scale, **units, "Channel": {"Name": ["DAPI", "GFP"]}}
    tifffile.imwrite(tmp_path / "a.ome.tif", array, photometric="minisblack", metadata=metadata)
    stored, source = load(tmp_path / "a.ome.tif")
    np.testing.assert_array_equal(stored, array.transpose(1, 0, 2, 3))
    _check_micrometres(source)
    assert source.info.header["OME"]["Channels"] == ["DAPI", "GFP"]  # type: ignore[index]


def _check_micrometres(source: Source) -> None:
    assert names(source) == "czyx"
    assert source.spec.shape == (2, 5, 6, 7)
    geometry = source.spec.geometry
    assert geometry is not None
    assert geometry.spacing == pytest.approx((0.0002, 0.00026, 0.00013), rel=1e-5)
    assert geometry.known == {"spacing"}, "no TIFF says where and how an image lies in the world"
    assert geometry.coord_system is None
    assert [axis.unit for axis in source.spec.axes] == [None, "millimeter", "millimeter", "millimeter"]
    assert notes(source) == set()


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("micron", MICRON), ("\\u00B5m", MICRON), ("nm", 1e-6), ("mm", 1.0), ("cm", 10.0), ("inch", 25.4)],
)
def test_imagej_units_become_millimetres(tmp_path: Path, unit: str, factor: float) -> None:
    metadata = {"axes": "ZYX", "spacing": 3.0, "unit": unit}
    tifffile.imwrite(tmp_path / "a.tif", BASE, imagej=True, resolution=(0.5, 0.25), metadata=metadata)
    _, source = load(tmp_path / "a.tif")
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((3 * factor, 4 * factor, 2 * factor))


@pytest.mark.parametrize(
    ("unit", "code"), [("pixel", "spacing-unknown"), ("parsec", "unit-unknown")], ids=["pixel", "parsec"]
)
def test_units_without_a_length_leave_the_spacing_unknown(tmp_path: Path, unit: str, code: str) -> None:
    metadata = {"axes": "ZYX", "spacing": 3.0, "unit": unit}
    tifffile.imwrite(tmp_path / "a.tif", BASE, imagej=True, resolution=(0.5, 0.25), metadata=metadata)
    _, source = load(tmp_path / "a.tif")
    assert source.spec.geometry is None
    assert notes(source) == ({code} if unit == "parsec" else set())


@pytest.mark.parametrize(
    ("fields", "step", "unit"),
    [
        ({"finterval": 0.5}, 0.5, "second"),
        ({"fps": 4.0}, 0.25, "second"),
        ({"finterval": 20.0, "tunit": "ms"}, 20.0, "millisecond"),
    ],
)
def test_frames_of_imagej_have_their_step(tmp_path: Path, fields: dict[str, object], step: float, unit: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", BASE, imagej=True, metadata={"axes": "TYX", **fields})
    _, source = load(tmp_path / "a.tif")
    time = source.spec.axes[0]
    assert (time.name, time.type, time.step, time.unit) == ("t", "time", step, unit)


def test_frames_of_ome_have_their_step(tmp_path: Path) -> None:
    metadata = {"axes": "TYX", "TimeIncrement": 250.0, "TimeIncrementUnit": "ms"}
    tifffile.imwrite(tmp_path / "a.ome.tif", BASE, photometric="minisblack", metadata=metadata)
    _, source = load(tmp_path / "a.ome.tif")
    assert (source.spec.axes[0].step, source.spec.axes[0].unit) == (250.0, "millisecond")


def test_z_without_a_step_leaves_the_spacing_unknown_and_says_so(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", BASE, imagej=True, resolution=(2, 2), metadata={"axes": "ZYX", "unit": "mm"})
    _, source = load(tmp_path / "a.tif")
    assert source.spec.geometry is None
    (note,) = source.info.notes
    assert note.code == "spacing-unknown"
    assert "x 0.5 mm" in note.message


def test_a_plane_with_a_measured_resolution_has_its_spacing(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", BASE[0], resolution=(20000, 10000), resolutionunit="CENTIMETER")
    _, source = load(tmp_path / "a.tif")
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((0.001, 0.0005))


@pytest.mark.parametrize(("dots", "unit"), [(72, "INCH"), (300, "INCH"), (28.35, "CENTIMETER"), (118.11, "CENTIMETER")])
def test_a_resolution_for_printers_is_no_spacing(tmp_path: Path, dots: float, unit: str) -> None:
    tifffile.imwrite(tmp_path / "a.tif", BASE[0], resolution=(dots, dots), resolutionunit=unit)
    _, source = load(tmp_path / "a.tif")
    assert source.spec.geometry is None
    assert notes(source) == {"resolution-ignored"}


def test_a_stack_of_pages_that_nobody_named_is_taken_as_z(tmp_path: Path) -> None:
    _, source = load(write_layout(tmp_path, "plain with a directory a page"))
    assert names(source) == "zyx"
    assert notes(source) == {"axes-assumed"}


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        ("TZCYX", (2, 3, 2, 4, 5), "tczyx"),
        ("CTZYX", (2, 3, 2, 4, 5), "ctzyx"),
        ("XYZ", (3, 4, 5), "zyx"),
        ("PZYX", (2, 3, 4, 5), "pzyx"),
    ],
)
def test_axes_go_to_the_front_by_role(tmp_path: Path, axes: str, shape: tuple[int, ...], expected: str) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="minisblack", metadata={"axes": axes})
    stored, source = load(tmp_path / "a.tif")
    assert names(source) == expected
    np.testing.assert_array_equal(stored, array.transpose([axes.lower().index(name) for name in expected]))


def test_colours_and_channels_are_two_axes(tmp_path: Path) -> None:
    array = np.arange(2 * 3 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 3, 4, 5, 3)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", metadata={"axes": "ZCYXS"})
    stored, source = load(tmp_path / "a.tif")
    assert [(axis.name, axis.type) for axis in source.spec.axes[:2]] == [("c", "channel"), ("c1", "channel")]
    np.testing.assert_array_equal(stored, array.transpose(1, 4, 0, 2, 3))


# --- ImageJ files of more than 4 GB -------------------------------------------------------------------------------------


def test_an_imagej_stack_behind_one_directory_has_all_its_planes(tmp_path: Path) -> None:
    """As ImageJ writes more than 4 GB: 526 planes, of which the directory chain knows one."""
    array = np.arange(526 * 16, dtype=np.uint16).reshape(526, 4, 4)
    tifffile.imwrite(tmp_path / "a.tif", array, imagej=True, metadata={"axes": "ZYX"})
    cut_after_first_directory(tmp_path / "a.tif")
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert len(file.pages) == 1
    stored, source = load(tmp_path / "a.tif")
    np.testing.assert_array_equal(stored, array)
    np.testing.assert_array_equal(source.read(Region((520, 1, 1), (526, 3, 4))), array[520:, 1:3, 1:])


# --- series and pyramids ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ome", [True, False])
def test_a_pyramid_is_its_full_resolution_and_its_levels_are_items(tmp_path: Path, ome: bool) -> None:
    levels = write_pyramid(tmp_path / "a.ome.tif", ome=ome)
    assert [item.name for item in items_of(tmp_path / "a.ome.tif")] == ["0", "0.1", "0.2"]
    stored, source = load(tmp_path / "a.ome.tif")
    np.testing.assert_array_equal(stored, levels[0])
    assert source.info.item == "0"
    for number, level in enumerate(levels[1:], 1):
        with open_source(f"{tmp_path / 'a.ome.tif'}@0.{number}") as smaller:
            np.testing.assert_array_equal(smaller.read(smaller.spec.region), level)
            assert smaller.info.item == f"0.{number}"
            if ome:
                assert smaller.spec.geometry is not None
                assert smaller.spec.geometry.spacing == pytest.approx((0.0005 * 2**number,) * 2)


def test_several_series_are_listed_and_each_is_an_item(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as writer:
        writer.write(BASE, metadata={"axes": "ZYX", "Name": "left", "PhysicalSizeX": 1.0})
        writer.write(BASE[0, :20], metadata={"axes": "YX", "Name": "right"})
    with pytest.raises(FormatError, match=r"2 images: 0 \(left, uint16, 7x34x45 ZYX\), 1 \(right, uint16, 20x45 YX\)"):
        open_source(path)
    with open_source(path, item="1") as source:
        np.testing.assert_array_equal(source.read(source.spec.region), BASE[0, :20])
        assert source.info.header["OME"]["Name"] == "right"  # type: ignore[index]
    with pytest.raises(FormatError, match="no image '7'"):
        open_source(path, item="7")


def test_a_reduced_image_beside_the_image_is_no_ambiguity(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(BASE[0], metadata=None)
        writer.write(BASE[0, :10, :11].astype(np.uint8), subfiletype=1, metadata=None)
    stored, source = load(tmp_path / "a.tif")
    np.testing.assert_array_equal(stored, BASE[0])
    assert source.info.item == "0"


def test_a_file_with_one_series_names_no_item(tmp_path: Path) -> None:
    _, source = load(write_layout(tmp_path, "plain"))
    assert source.info.item == ""
    with open_source(source.info.files[0], item="0") as named:
        assert named.spec == source.spec


def test_two_different_items_are_refused(tmp_path: Path) -> None:
    write_layout(tmp_path, "plain")
    with pytest.raises(UsageError):
        open_source(f"{tmp_path / 'a.tif'}@0", item="1")


# --- sets of files ------------------------------------------------------------------------------------------------------


def test_an_ome_set_is_read_through_its_first_file(tmp_path: Path) -> None:
    channels, paths = write_ome_set(tmp_path)
    stored, source = load(paths[0])
    np.testing.assert_array_equal(stored, channels)
    assert names(source) == "czyx"
    assert [path.name for path in source.info.files] == ["set_c0.ome.tif", "set_c1.ome.tif"]
    with pytest.raises(FormatError, match=r"part of .* begins in set_c0\.ome\.tif"):
        open_source(paths[1])


def test_an_ome_tiff_that_was_renamed_is_still_itself(tmp_path: Path) -> None:
    data = '<TiffData IFD="0" PlaneCount="6"><UUID FileName="old.ome.tif">urn:uuid:0</UUID></TiffData>'
    tifffile.imwrite(
        tmp_path / "new.ome.tif", BASE[:6], photometric="minisblack", description=ome_xml(data), metadata=None
    )
    stored, _ = load(tmp_path / "new.ome.tif")
    np.testing.assert_array_equal(stored, BASE[:6].reshape(2, 3, 34, 45))


# --- header fields ------------------------------------------------------------------------------------------------------


def test_technical_tags_are_kept_and_names_of_people_are_not(tmp_path: Path) -> None:
    person = '<Experimenter FirstName="Ada" Email="ada@example.org"/>'
    tags = [(315, 2, 0, "Ada", True), (316, 2, 0, "her-laptop", True)]  # Artist, HostComputer
    tifffile.imwrite(
        tmp_path / "a.ome.tif",
        BASE[:6],
        photometric="minisblack",
        description=ome_xml(tail=person),
        metadata=None,
        software="scope 3",
        extratags=tags,
    )
    _, source = load(tmp_path / "a.ome.tif")
    assert source.info.header["Software"] == "scope 3"
    assert source.info.header["OME"]["Channels"] == ["a", "b"]  # type: ignore[index]
    assert "ada" not in str(source.info.header).lower()
    assert "laptop" not in str(source.info.header)


def test_how_a_viewer_should_turn_and_colour_an_image_is_noted(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", BASE[0], photometric="miniswhite", extratags=[(274, 3, 1, 3, True)])
    stored, source = load(tmp_path / "a.tif")
    np.testing.assert_array_equal(stored, BASE[0])
    assert notes(source) == {"white-is-zero", "orientation-tag-ignored"}
    _, palette = load(write_layout(tmp_path, "palette"))
    assert notes(palette) == {"palette-dropped"}


# --- memory -------------------------------------------------------------------------------------------------------------


def test_decoded_tiles_stay_in_memory_up_to_a_limit(tmp_path: Path) -> None:
    """What is kept is counted, and one tile always may stay."""
    with open_source(write_layout(tmp_path, "tiles")) as source:
        assert isinstance(source, SegmentSource)
        source.read(source.spec.region)
        tile = 16 * 16 * 2
        assert source.chunks == (1, 16, 16)
        assert source.held_bytes == CACHE_BYTES + 3 * tile
        for limit, kept in ((5 * tile, 5), (tile, 1), (0, 1)):
            source.resize_cache(limit)
            source.read(source.spec.region)
            assert len(source._kept) == kept
            assert source._kept_bytes == kept * tile
