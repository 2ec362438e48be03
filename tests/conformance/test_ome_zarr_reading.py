"""Zarr hierarchies of other programs: which image, which axes, which place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from mlarray.errors import FormatError
from mlarray.formats.registry import items_of, open_source
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Source
from mlarray.testing.conformance import SourceConformance
from tests.conformance.text_header_files import load, names, notes, position
from tests.conformance.zarr_files import attributes, change, multiscale, ramp, write_array, write_image


class TestVersion5(SourceConformance):
    def make(self, folder: Path) -> Source:
        return open_source(write_image(folder / "a.ome.zarr", self.expected(), multiscale("zyx")))


class TestVersion5InShards(SourceConformance):
    def make(self, folder: Path) -> Source:
        shards = {"chunks": (2, 5, 3), "shards": (4, 10, 6)}
        return open_source(write_image(folder / "a.ome.zarr", self.expected(), multiscale("zyx"), **shards))


class TestVersion4BigEndianFortranOrder(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "a.ome.zarr"
        stored = {"chunks": (3, 4, 5), "order": "F", "filters": None}
        return open_source(write_image(path, self.expected().astype(">i2"), multiscale("zyx"), version="0.4", **stored))


class TestPlainArray(SourceConformance):
    def make(self, folder: Path) -> Source:
        array = zarr.create_array(folder / "a.zarr", shape=(7, 10, 12), chunks=(4, 4, 4), dtype="i2")
        array[...] = self.expected()
        return open_source(folder / "a.zarr")


# --- axes and place (OMZ-03, OMZ-04) --------------------------------------------------------------------------------


def test_axes_go_by_role_and_only_axes_of_space_have_a_spacing(tmp_path: Path) -> None:
    array = ramp(1, 2, 4, 6, 8, dtype=np.uint16)
    path = write_image(tmp_path / "a.zarr", array, multiscale("tczyx", [1, 1, 2, 0.35, 0.35], unit="micrometer"))
    back, source = load(path)
    np.testing.assert_array_equal(back, array)
    assert [axis.type for axis in source.spec.axes] == ["time", "channel", "space", "space", "space"]
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((0.002, 0.00035, 0.00035))
    assert [axis.unit for axis in source.spec.axes if axis.is_spatial] == ["millimeter"] * 3
    assert notes(source) == {"unit-converted"}


@pytest.mark.parametrize("order", ["yxc", "czyx", "xyz", "ztyx"])
def test_axes_in_any_order_keep_every_value_at_its_place(tmp_path: Path, order: str) -> None:
    array = ramp(*range(3, 3 + len(order)))
    steps = {"z": 5.0, "y": 3.0, "x": 2.0, "c": 1.0, "t": 1.0}
    path = write_image(tmp_path / "a.zarr", array, multiscale(order, [steps[name] for name in order]))
    back, source = load(path)
    assert names(source) == order
    index = tuple(0 if name in "ct" else n - 1 for name, n in zip(order, array.shape, strict=True))
    expected = tuple(steps[name] * index[order.index(name)] for name in "xyz" if name in order)
    assert position(source, back, array[index]) == pytest.approx(expected)


def test_transformations_of_the_level_and_of_the_image_are_composed(tmp_path: Path) -> None:
    entry = multiscale("tzyx", [1, 2, 0.5, 0.5], [0, 10, 20, 30])
    entry["axes"][0]["unit"] = "second"
    entry["coordinateTransformations"] = [
        {"type": "scale", "scale": [2.5, 3, 1, 1]},
        {"type": "identity"},
        {"type": "translation", "translation": [0, -1, 0, 4]},
    ]
    back, source = load(write_image(tmp_path / "a.zarr", ramp(2, 3, 4, 5), entry))
    assert source.spec.axes[0].step == 2.5
    assert source.spec.axes[0].unit == "second"
    assert position(source, back, 0) == (34.0, 20.0, 29.0)
    assert position(source, back, back[0, 1, 2, 3]) == (34.0 + 1.5, 20.0 + 1.0, 29.0 + 6.0)


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("micrometer", 1e-3), ("nanometer", 1e-6), ("meter", 1e3), ("angstrom", 1e-7), ("millimeter", 1), ("um", 1e-3)],
)
def test_lengths_become_millimetres(tmp_path: Path, unit: str, factor: float) -> None:
    _, source = load(write_image(tmp_path / "a.zarr", ramp(3, 4), multiscale("yx", [500, 250], unit=unit)))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((500 * factor, 250 * factor))
    assert notes(source) == (set() if factor == 1 else {"unit-converted"})


def test_no_unit_is_told(tmp_path: Path) -> None:
    _, source = load(write_image(tmp_path / "a.zarr", ramp(3, 4), multiscale("yx", [500, 250], unit=None)))
    assert notes(source) == {"unit-unknown"}
    assert source.spec.axes[0].unit is None


def test_no_translation_is_no_known_origin(tmp_path: Path) -> None:
    _, source = load(write_image(tmp_path / "a.zarr", ramp(3, 4), multiscale("yx", [500, 250])))
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == {"spacing", "direction"}


def test_a_translation_alone_is_no_place(tmp_path: Path) -> None:
    entry = multiscale("yx")
    entry["datasets"][0]["coordinateTransformations"] = [{"type": "translation", "translation": [5, 6]}]
    _, source = load(write_image(tmp_path / "a.zarr", ramp(3, 4), entry))
    assert source.spec.geometry is None
    assert notes(source) == {"spacing-unknown"}


def test_a_scale_of_zero_is_no_spacing(tmp_path: Path) -> None:
    _, source = load(write_image(tmp_path / "a.zarr", ramp(3, 4), multiscale("yx", [0, 250])))
    assert source.spec.geometry is None
    assert notes(source) == {"spacing-unknown"}


@pytest.mark.parametrize("spelling", ["orientation", "anatomicalOrientation", "bare"])
def test_anatomical_directions_make_the_world_lps(tmp_path: Path, spelling: str) -> None:
    entry = multiscale("zyx", [4, 3, 2], [30, 20, 10])
    values = ("superior-to-inferior", "anterior-to-posterior", "left-to-right")
    for axis, value in zip(entry["axes"], values, strict=True):
        if spelling == "bare":
            axis["anatomicalOrientation"] = value
        else:
            axis[spelling] = {"type": "anatomical", "value": value}
    back, source = load(write_image(tmp_path / "a.zarr", ramp(2, 3, 4), entry))
    assert source.spec.geometry is not None
    assert source.spec.geometry.orientation == "IPR"
    assert position(source, back, 0) == (10.0, 20.0, 30.0)
    assert position(source, back, back[1, 1, 1]) == (8.0, 23.0, 26.0)


@pytest.mark.parametrize(("version", "axes"), [("0.1", None), ("0.2", None), ("0.3", list("tczyx"))])
def test_versions_before_transformations_give_axes_and_no_spacing(tmp_path: Path, version: str, axes: Any) -> None:
    array = ramp(1, 2, 3, 4, 5)
    entry: dict[str, Any] = {"datasets": [{"path": "0"}]} | ({} if axes is None else {"axes": axes})
    back, source = load(write_image(tmp_path / "a.zarr", array, entry, version=version))
    np.testing.assert_array_equal(back, array)
    assert names(source) == "tczyx"
    assert source.spec.geometry is None
    assert notes(source) >= {"spacing-unknown"}


def test_a_store_of_version_2_with_dots_between_indices_is_read(tmp_path: Path) -> None:
    array = ramp(5, 6, 7)
    dots = {"chunk_key_encoding": {"name": "v2", "separator": "."}, "chunks": (2, 3, 4)}
    path = write_image(tmp_path / "a.zarr", array, multiscale("zyx"), version="0.4", **dots)
    change(path / "0", ".zarray", lambda document: document.pop("dimension_separator", None))
    assert (path / "0" / "1.1.1").is_file()
    np.testing.assert_array_equal(load(path)[0], array)


# --- which image (OMZ-05) -------------------------------------------------------------------------------------------


def bioformats2raw(folder: Path, series: int, *, listed: bool = False) -> Path:
    group = zarr.open_group(folder, mode="w", zarr_format=2)
    group.attrs["bioformats2raw.layout"] = 3
    for number in range(series):
        write_image(folder / str(number), ramp(2, 3, 4 + number), multiscale("zyx"), version="0.4")
    if listed:
        group.create_group("OME").attrs["series"] = [str(number) for number in range(series)]
    return folder


@pytest.mark.parametrize("listed", [True, False])
def test_the_image_of_bioformats2raw_is_in_0(tmp_path: Path, listed: bool) -> None:
    back, source = load(bioformats2raw(tmp_path / "a.zarr", 1, listed=listed))
    np.testing.assert_array_equal(back, ramp(2, 3, 4))
    assert source.info.item == "0"


def test_several_series_are_one_item_each(tmp_path: Path) -> None:
    path = bioformats2raw(tmp_path / "a.zarr", 3)
    assert [item.name for item in items_of(path)] == ["0", "1", "2"]
    assert items_of(path)[2].title == "int16 2 x 3 x 6"
    with pytest.raises(FormatError, match=r"3 images: 0 \(int16 2 x 3 x 4\), 1 .*--item"):
        open_source(path)
    assert open_source(f"{path}@1").spec.shape == (2, 3, 5)


def with_labels(folder: Path) -> Path:
    write_image(folder, ramp(4, 4, 4), multiscale("zyx", paths=("0", "s1")), levels=[ramp(2, 2, 2)])
    group = zarr.open_group(folder / "labels", mode="w", zarr_format=3)
    group.attrs["ome"] = {"labels": ["nuclei"]}
    write_image(
        folder / "labels" / "nuclei", ramp(4, 4, 4, dtype=np.uint8), multiscale("zyx"), extra={"image-label": {}}
    )
    return folder


def test_segmentations_below_labels_are_items_of_their_own(tmp_path: Path) -> None:
    path = with_labels(tmp_path / "a.zarr")
    assert [item.name for item in items_of(path)] == ["0", "labels/nuclei"]
    assert [item.title for item in items_of(path)] == ["int16 4 x 4 x 4, levels 0, s1", "segmentation, uint8 4 x 4 x 4"]
    assert open_source(path).info.is_seg is None
    label = open_source(path, item="labels/nuclei")
    assert label.info.is_seg is True
    assert label.spec.dtype == np.uint8


def test_what_is_told_of_an_image_can_be_asked_for(tmp_path: Path) -> None:
    path = with_labels(tmp_path / "a.zarr")
    with pytest.raises(
        FormatError, match=r"no image 'x'; it has 0 \(int16 4 x 4 x 4, levels 0, s1\), labels/nuclei \("
    ):
        open_source(path, item="x")
    fields = open_source(path).storage_fields
    assert fields["levels"] == {"0": [4, 4, 4], "s1": [2, 2, 2]}
    assert {name: list(open_source(path, item=name).spec.shape) for name in fields["levels"]} == fields["levels"]


def test_a_level_that_is_missing_is_told_and_the_others_can_be_read(tmp_path: Path) -> None:
    path = with_labels(tmp_path / "a.zarr")
    shutil.rmtree(path / "s1")
    assert open_source(path).storage_fields["levels"] == {"0": [4, 4, 4], "s1": "cannot be read"}


@pytest.mark.parametrize("item", ["s1", "1"])
def test_a_level_is_named_by_its_path_or_its_number(tmp_path: Path, item: str) -> None:
    path = with_labels(tmp_path / "a.zarr")
    source = open_source(f"{path}@{item}")
    assert source.spec.shape == (2, 2, 2)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (2.0, 2.0, 2.0)
    assert source.info.item == "s1"


def test_an_unknown_item_is_told_with_those_that_exist(tmp_path: Path) -> None:
    path = with_labels(tmp_path / "a.zarr")
    with pytest.raises(FormatError, match=r"no image '7'.*labels/nuclei \(segmentation, uint8 4 x 4 x 4\)"):
        open_source(path, item="7")


def test_a_plain_array_has_unknown_axes_and_says_so(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    write_array(group, "ct", ramp(3, 4, 5), dimension_names=["z", "y", "x"])
    back, source = load(tmp_path / "a.zarr")
    np.testing.assert_array_equal(back, ramp(3, 4, 5))
    assert notes(source) == {"axes-unknown"}
    assert source.spec.geometry is None
    assert source.info.item == "ct"


def test_a_plate_is_refused_by_name_and_its_images_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "plate.zarr"
    group = zarr.open_group(path, mode="w")
    group.attrs["ome"] = {"version": "0.5", "plate": {"wells": [{"path": "A/1"}, {"path": "A/2"}]}}
    write_image(path / "A" / "1" / "0", ramp(2, 3, 4), multiscale("zyx"))
    with pytest.raises(FormatError, match=r"plate of 2 wells \(A/1, A/2\).*--item A/1/0"):
        open_source(path)
    assert open_source(path, item="A/1/0").spec.shape == (2, 3, 4)
    assert open_source(path / "A" / "1" / "0").spec.shape == (2, 3, 4)


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_missing_chunk_holds_the_fill_value(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.zarr", ramp(4, 4), multiscale("yx"), chunks=(2, 2), fill_value=7)
    (path / "0" / "c" / "1" / "1").unlink()
    back, source = load(path)
    assert back[2:, 2:].tolist() == [[7, 7], [7, 7]]
    np.testing.assert_array_equal(back[:2], ramp(4, 4)[:2])
    assert source.access is Access.REGION


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "<i2", ">u2", "<i4", "<u8", "<f2", ">f4", "<f8", "<c8", "<c16"])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_every_type_of_number_is_read_in_native_order(tmp_path: Path, dtype: str, version: str) -> None:
    array: NDArray = (ramp(3, 4, dtype=np.int64) % 100).astype(dtype)
    if version == "0.5":
        array = array.astype(array.dtype.newbyteorder("="))
    back, _ = load(write_image(tmp_path / "a.zarr", array, multiscale("yx"), version=version))
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)


def test_a_large_chunk_that_is_the_whole_image_is_read_as_a_whole(tmp_path: Path) -> None:
    array = np.zeros((300, 300, 300), np.uint8)
    path = write_image(tmp_path / "a.zarr", array, multiscale("zyx"), chunks=array.shape)
    assert open_source(path).access is Access.WHOLE


def test_a_folder_without_suffix_is_known_by_what_lies_in_it(tmp_path: Path) -> None:
    path = write_image(tmp_path / "scan", ramp(2, 3, 4), multiscale("zyx"))
    assert open_source(path).read(Region((1, 2, 3), (2, 3, 4))).tolist() == [[[23]]]


def test_what_the_file_says_is_kept_as_source_metadata(tmp_path: Path) -> None:
    omero = {"channels": [{"label": "DAPI", "color": "0000FF", "window": {"min": 0, "max": 9, "start": 1, "end": 8}}]}
    path = write_image(tmp_path / "a.zarr", ramp(2, 3), multiscale("yx"), extra={"omero": omero})
    header = open_source(path).info.header
    assert header["omero"] == omero
    assert header["multiscales"] == attributes(path)["ome"]["multiscales"]
