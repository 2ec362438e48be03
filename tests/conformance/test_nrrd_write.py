"""NRRD files that we write, as SimpleITK, pynrrd and our own reader see them."""

from __future__ import annotations

from pathlib import Path

import nrrd
import numpy as np
import pytest
import SimpleITK as sitk

from mlarray.axes import Axis, parse_axes
from mlarray.errors import DTypeError, UsageError
from mlarray.formats import nrrd as ours
from mlarray.formats.registry import open_source
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SinkOptions, Source, SourceInfo
from mlarray.spec import ArraySpec
from tests.conformance.text_header_files import NRRD_BASE, PLACED, fill, load, names, notes, position, write_nrrd

OBLIQUE = np.array([[0, 0.6, 2.4, 5], [0, 2.4, -0.6, -7.25], [3.5, 0, 0, 11], [0, 0, 0, 1]], dtype=np.float64)


def write(
    path: Path, array: NDArray, spec: ArraySpec, info: SourceInfo | None = None, **options: object
) -> tuple[NDArray, Source]:
    """Write an array and open what was written."""
    sink = ours.open_sink(path, spec, info or SourceInfo(), SinkOptions(**options))  # type: ignore[arg-type]
    fill(sink, array)
    return load(path)


def spec_of(array: NDArray, axes: str = "zyx", affine: NDArray = OBLIQUE, frame: str | None = "LPS") -> ArraySpec:
    """Return a spec with an oblique geometry."""
    return ArraySpec(array.shape, array.dtype, parse_axes(axes), Geometry(affine, frame))


def test_values_and_places_are_those_that_simpleitk_and_pynrrd_see(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    spec = spec_of(array)
    back, source = write(tmp_path / "a.nrrd", array, spec)
    np.testing.assert_array_equal(back, array)
    assert source.spec == spec or source.spec.geometry == spec.geometry
    image = sitk.ReadImage(str(tmp_path / "a.nrrd"))
    values, header = nrrd.read(str(tmp_path / "a.nrrd"))
    assert header["encoding"] == "gzip"
    assert header["space"] == "left-posterior-superior"
    for z, y, x in ((0, 0, 0), (2, 3, 4), (1, 0, 3)):
        assert image.GetPixel((x, y, z)) == values[x, y, z] == array[z, y, x]
        assert spec.geometry is not None
        world = spec.geometry.world((z, y, x))
        assert image.TransformIndexToPhysicalPoint((x, y, z)) == pytest.approx(world)
        assert header["space origin"] + (x, y, z) @ header["space directions"] == pytest.approx(world)
        assert position(source, back, array[z, y, x]) == pytest.approx(world)


def test_ras_positions_are_written_as_lps(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    back, source = write(tmp_path / "a.nrrd", array, spec_of(array, frame="RAS+"))
    world = Geometry(OBLIQUE, "RAS").world((2, 3, 4))
    assert position(source, back, 59) == pytest.approx((-world[0], -world[1], world[2]))


@pytest.mark.parametrize("axes", ["xyz", "yxz", "zxy"])
def test_named_axes_in_any_order_keep_values_at_their_places(tmp_path: Path, axes: str) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    spec = spec_of(array, axes)
    back, source = write(tmp_path / "a.nrrd", array, spec)
    assert names(source) == "zyx"
    assert back.shape == tuple(array.shape[axes.index(name)] for name in "zyx")
    for index in ((0, 0, 0), (2, 3, 4), (1, 2, 0)):
        assert spec.geometry is not None
        assert position(source, back, array[index]) == pytest.approx(spec.geometry.world(index))


def test_axes_without_names_are_written_slowest_first_with_a_note(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    spec = ArraySpec(array.shape, array.dtype, geometry=Geometry(OBLIQUE, "LPS"))
    assert {note.code for note in ours.losses(spec, SourceInfo())} == {"axes-assumed"}
    back, _ = write(tmp_path / "a.nrrd", array, spec)
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("axis", "read_as"),
    [
        (Axis("c"), Axis("c", "channel")),
        (Axis("v", "components"), Axis("v", "components")),
        (Axis("t", "time", "second", 2.5), Axis("t", "time", "second", 2.5)),
        (Axis("t"), Axis("t", "time")),
        (Axis("phase", "other"), Axis("phase", "other")),
        (Axis("channels", "channel"), Axis("c", "channel")),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 2])
def test_an_axis_that_is_not_spatial_is_the_slowest_and_simpleitk_reads_it_as_components(
    tmp_path: Path, axis: Axis, read_as: Axis, place: int
) -> None:
    front = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    array = np.moveaxis(front, 0, place)
    axes = [Axis("z"), Axis("y"), Axis("x")]
    axes.insert(place, axis)
    spec = ArraySpec(array.shape, array.dtype, tuple(axes), Geometry(OBLIQUE, "LPS"))
    back, source = write(tmp_path / "a.nrrd", array, spec)
    np.testing.assert_array_equal(back, front)
    assert source.spec.axes[0] == read_as
    image = sitk.ReadImage(str(tmp_path / "a.nrrd"))
    assert image.GetNumberOfComponentsPerPixel() == 2
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image), np.moveaxis(front, 0, -1))


def test_two_axes_that_are_not_spatial_keep_their_order(tmp_path: Path) -> None:
    array = np.arange(240, dtype=np.uint8).reshape(2, 2, 3, 4, 5)
    back, source = write(tmp_path / "a.nrrd", array, spec_of(array, "tczyx"))
    np.testing.assert_array_equal(back, array)
    assert names(source) == "tczyx"


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(d, d) for d in ("i1", "u1", "<i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")]
    + [(">i2", "i2"), (">f8", "f8"), ("?", "u1"), ("f2", "f4")],
)
def test_every_type_that_fits_is_read_back(tmp_path: Path, dtype: str, stored: str) -> None:
    array = np.arange(24).reshape(4, 3, 2).astype(dtype)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"))
    converted = {note.code for note in ours.losses(spec, SourceInfo())}
    assert ("dtype-converted" in converted) == (dtype in ("?", "f2"))
    back, _ = write(tmp_path / "a.nrrd", array, spec)
    assert back.dtype == np.dtype(stored)
    np.testing.assert_array_equal(back, array)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "a.nrrd"))), back)


@pytest.mark.parametrize("dtype", ["c8", "c16", "longdouble"])
def test_types_that_do_not_fit_are_refused_by_name(tmp_path: Path, dtype: str) -> None:
    spec = ArraySpec((2, 2, 2), np.dtype(dtype), parse_axes("zyx"))
    with pytest.raises(DTypeError, match=f"NRRD cannot hold {np.dtype(dtype).name}"):
        ours.losses(spec, SourceInfo())
    with pytest.raises(DTypeError):
        ours.open_sink(tmp_path / "a.nrrd", spec, SourceInfo(), SinkOptions())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("shape", "axes"), [((2, 0, 3), "zyx"), ((2, 3), "tc"), ((2, 2, 2, 2), ["a", "b", "c", "d"])])
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, shape: tuple[int, ...], axes: str) -> None:
    given = parse_axes(axes) if isinstance(axes, str) else tuple(Axis(name, "space") for name in axes)
    with pytest.raises(UsageError):
        ours.open_sink(tmp_path / "a.nrrd", ArraySpec(shape, np.dtype("u1"), given), SourceInfo(), SinkOptions())


def test_a_detached_header_is_not_written(tmp_path: Path) -> None:
    spec = ArraySpec((2, 2, 2), np.dtype("u1"), parse_axes("zyx"))
    with pytest.raises(UsageError, match=r"Write a \.nrrd file"):
        ours.open_sink(tmp_path / "a.nhdr", spec, SourceInfo(), SinkOptions())


@pytest.mark.parametrize(
    ("geometry", "codes"),
    [
        (None, set()),
        (Geometry.from_parts(spacing=(4, 3, 2)), set()),
        (Geometry.from_parts(spacing=(4, 3, 2), origin=(1, 2, 3), coord_system="LPS"), {"origin-dropped"}),
        (Geometry.from_parts(direction=np.eye(3), coord_system="LPS"), {"direction-dropped"}),
        (Geometry.from_parts(spacing=(4, 3, 2), direction=np.eye(3), coord_system="LPS"), set()),
        (Geometry(OBLIQUE, "scanner-xyz"), set()),
        (Geometry(OBLIQUE, None), set()),
        (Geometry(OBLIQUE, "bregma"), {"frame-dropped"}),
    ],
)
def test_what_nobody_stated_is_not_written(tmp_path: Path, geometry: Geometry | None, codes: set[str]) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), geometry)
    assert {note.code for note in ours.losses(spec, SourceInfo())} == codes
    back, source = write(tmp_path / "a.nrrd", array, spec)
    np.testing.assert_array_equal(back, array)
    if "direction-dropped" in codes:
        assert source.spec.geometry is None
    elif "origin-dropped" in codes:
        assert source.spec.geometry is not None
        assert source.spec.geometry.known == {"spacing"}
    elif codes:
        assert source.spec.geometry is not None
        assert source.spec.geometry.coord_system is None
    else:
        assert source.spec.geometry == geometry


def test_two_dimensions_are_read_by_simpleitk(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    affine = np.array([[0, 2, 5], [3, 0, 6], [0, 0, 1]], dtype=np.float64)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("yx"), Geometry(affine, "LPS"))
    assert {note.code for note in ours.losses(spec, SourceInfo())} == {"frame-dropped"}
    back, source = write(tmp_path / "a.nrrd", array, spec)
    assert position(source, back, 11) == (11, 12)
    image = sitk.ReadImage(str(tmp_path / "a.nrrd"))
    assert image.TransformIndexToPhysicalPoint((3, 2)) == (11, 12)


def test_a_sheared_geometry_is_kept(tmp_path: Path) -> None:
    affine = OBLIQUE.copy()
    affine[0, 0] = 1.0
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    back, source = write(tmp_path / "a.nrrd", array, spec_of(array, affine=affine))
    assert position(source, back, 59) == pytest.approx(Geometry(affine).world((2, 3, 4)))


def test_the_record_is_stored_and_other_readers_do_not_mind(tmp_path: Path) -> None:
    record = {"source": 'C:\\data\\ä\n"x".nii', "sizes": [1, 2], "nested": {"a": None, "b": 1.5}, "long": "y" * 50_000}
    array = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"))
    _, source = write(tmp_path / "a.nrrd", array, spec, record=record)
    assert source.info.record == record
    assert "key/values" not in source.info.header
    np.testing.assert_array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "a.nrrd"))), array)
    np.testing.assert_array_equal(nrrd.read(str(tmp_path / "a.nrrd"), index_order="C")[0], array)
    _, again = write(tmp_path / "b.nrrd", array, spec, source.info, record={"a": 1})
    assert again.info.record == {"a": 1}


def test_keys_and_comments_of_a_nrrd_source_come_back_but_not_its_layout(tmp_path: Path) -> None:
    keys = "# a comment\nSegment0_Name:=liver\nSegment0_Extent:=0 1 0 2 0 3\nback\\\\slash:=two\\nlines\nx: y:=z\n"
    fields = {**NRRD_BASE, **PLACED, "type": "int16", "endian": "big", "content": "CT", "sample units": "HU"}
    first, source = load(write_nrrd(tmp_path / "a.seg.nrrd", fields, keys=keys))
    back, again = write(tmp_path / "b.seg.nrrd", first, source.spec, source.info)
    np.testing.assert_array_equal(back, first)
    assert again.info.is_seg is True
    assert again.info.header["endian"] == "little"
    assert again.info.header["encoding"] == "gzip"
    for name in ("content", "sample units", "comments", "space origin", "space directions"):
        assert again.info.header[name] == source.info.header[name]
    assert again.info.header["key/values"] == {
        "Segment0_Name": "liver",
        "Segment0_Extent": "0 1 0 2 0 3",
        "back\\slash": "two\nlines",
    }
    cut = ArraySpec((2, 3, 2), source.spec.dtype, source.spec.axes, source.spec.geometry)
    _, cropped = write(tmp_path / "c.seg.nrrd", first[:2], cut, source.info)
    kept = cropped.info.header["key/values"]
    assert isinstance(kept, dict)
    assert set(kept) == {"Segment0_Name", "back\\slash"}  # an extent counts voxels of the uncut grid


@pytest.mark.parametrize("stated", [True, False])
def test_gradient_directions_keep_their_meaning_when_ras_becomes_lps(tmp_path: Path, stated: bool) -> None:
    fields = {**NRRD_BASE, **PLACED, "space": "right-anterior-superior"}
    if stated:
        fields["measurement frame"] = "(0,1,0) (1,0,0) (0,0,1)"
    keys = "modality:=DWMRI\nDWMRI_gradient_0000:=1 0 0\n"
    first, source = load(write_nrrd(tmp_path / "a.nrrd", fields, keys=keys))
    _, again = write(tmp_path / "b.nrrd", first, source.spec, source.info)
    expected = [[0, -1, 0], [-1, 0, 0], [0, 0, 1]] if stated else [[-1, 0, 0], [0, -1, 0], [0, 0, 1]]
    assert again.info.header["measurement frame"] == expected


def test_a_header_of_another_format_leaves_no_trace(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"))
    info = SourceInfo(format="nifti", header={"descrip": "SYN^TH", "key/values": {"a": "b"}})
    write(tmp_path / "a.nrrd", array, spec, info)
    assert b"SYN^TH" not in (tmp_path / "a.nrrd").read_bytes()
    assert b"a:=b" not in (tmp_path / "a.nrrd").read_bytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_bytes_depend_on_the_voxels_only(tmp_path: Path, threads: int) -> None:
    array = np.random.default_rng(0).integers(0, 99, (40, 50, 60)).astype(np.int16)
    for name in ("a", "b"):
        back, _ = write(tmp_path / f"{name}.nrrd", array, spec_of(array), threads=threads)
        np.testing.assert_array_equal(back, array)
    assert (tmp_path / "a.nrrd").read_bytes() == (tmp_path / "b.nrrd").read_bytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_an_aborted_file_leaves_nothing_behind(tmp_path: Path, threads: int) -> None:
    array = np.zeros((3, 4, 5), np.int16)
    sink = ours.open_sink(tmp_path / "a.nrrd", spec_of(array), SourceInfo(), SinkOptions(threads=threads))
    assert sink.access is Access.SLAB
    sink.write(Region((0, 0, 0), (1, 4, 5)), array[:1])
    assert not (tmp_path / "a.nrrd").exists()
    with pytest.raises(UsageError, match="storage order"):
        sink.write(Region((2, 0, 0), (3, 4, 5)), array[2:])
    sink.abort()
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_file_can_be_checked_before_it_is_published(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    sink = ours.open_sink(tmp_path / "a.nrrd", spec_of(array), SourceInfo(), SinkOptions())
    sink.write(Region.full(array.shape), array)
    sink.finish()
    np.testing.assert_array_equal(ours.open_source(sink.path).read(Region.full(array.shape)), array)
    assert not (tmp_path / "a.nrrd").exists()
    sink.publish()
    assert notes(open_source(tmp_path / "a.nrrd")) == set()
