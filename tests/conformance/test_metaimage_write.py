"""MetaImage files that we write, as SimpleITK and our own reader see them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from mlarray.axes import Axis, parse_axes
from mlarray.errors import DTypeError, UsageError
from mlarray.formats import metaimage as ours
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SinkOptions, Source, SourceInfo
from mlarray.spec import ArraySpec
from tests.conformance.text_header_files import META_BASE, fill, load, names, notes, position, write_meta

OBLIQUE = np.array([[0, 0.6, 2.4, 5], [0, 2.4, -0.6, -7.25], [3.5, 0, 0, 11], [0, 0, 0, 1]], dtype=np.float64)


def write(
    path: Path, array: NDArray, spec: ArraySpec, info: SourceInfo | None = None, **options: object
) -> tuple[NDArray, Source]:
    """Write an array and open what was written."""
    sink = ours.open_sink(path, spec, info or SourceInfo(), SinkOptions(**options))  # type: ignore[arg-type]
    fill(sink, array)
    return load(path)


def codes(spec: ArraySpec) -> set[str]:
    """Return the codes of what is lost."""
    return {note.code for note in ours.losses(spec, SourceInfo())}


def spec_of(array: NDArray, axes: str = "zyx", affine: NDArray = OBLIQUE, frame: str | None = "LPS") -> ArraySpec:
    """Return a spec with an oblique geometry."""
    return ArraySpec(array.shape, array.dtype, parse_axes(axes), Geometry(affine, frame))


def test_values_and_places_are_those_that_simpleitk_sees(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    spec = spec_of(array)
    assert codes(spec) == set()
    back, source = write(tmp_path / "a.mha", array, spec)
    np.testing.assert_array_equal(back, array)
    assert notes(source) == set()
    image = sitk.ReadImage(str(tmp_path / "a.mha"))
    for z, y, x in ((0, 0, 0), (2, 3, 4), (1, 0, 3)):
        assert image.GetPixel((x, y, z)) == array[z, y, x]
        assert spec.geometry is not None
        world = spec.geometry.world((z, y, x))
        assert image.TransformIndexToPhysicalPoint((x, y, z)) == pytest.approx(world)
        assert position(source, back, array[z, y, x]) == pytest.approx(world)


def test_ras_positions_are_written_as_lps(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    back, source = write(tmp_path / "a.mha", array, spec_of(array, frame="RAS"))
    world = Geometry(OBLIQUE, "RAS").world((2, 3, 4))
    assert position(source, back, 59) == pytest.approx((-world[0], -world[1], world[2]))


@pytest.mark.parametrize("axes", ["xyz", "yxz", "zxy"])
def test_named_axes_in_any_order_keep_values_at_their_places(tmp_path: Path, axes: str) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    spec = spec_of(array, axes)
    back, source = write(tmp_path / "a.mha", array, spec)
    assert names(source) == "zyx"
    for index in ((0, 0, 0), (2, 3, 4), (1, 2, 0)):
        assert spec.geometry is not None
        assert position(source, back, array[index]) == pytest.approx(spec.geometry.world(index))


def test_the_size_of_the_stream_is_filled_in(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 99, (40, 50, 60)).astype(np.int16)
    write(tmp_path / "a.mha", array, spec_of(array))
    head, _, stream = (tmp_path / "a.mha").read_bytes().partition(b"ElementDataFile = LOCAL\n")
    (line,) = [line for line in head.decode().splitlines() if line.startswith("CompressedDataSize")]
    assert int(line.split("=")[1]) == len(stream)
    assert zlib.decompress(stream) == array.astype("<i2").tobytes()


@pytest.mark.parametrize("axis", [Axis("c"), Axis("v", "components"), Axis("band", "channel", "nm")])
@pytest.mark.parametrize("place", [0, 3, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_channels_are_interleaved(tmp_path: Path, axis: Axis, place: int, count: int) -> None:
    front = np.arange(60 * count, dtype=np.float32).reshape(count, 3, 4, 5)
    array = np.moveaxis(front, 0, place)
    axes = [Axis("z"), Axis("y"), Axis("x")]
    axes.insert(place, axis)
    spec = ArraySpec(array.shape, array.dtype, tuple(axes), Geometry(OBLIQUE, "LPS"))
    back, source = write(tmp_path / "a.mha", array, spec)
    np.testing.assert_array_equal(back, front)
    assert source.spec.axes[0] == axis
    image = sitk.ReadImage(str(tmp_path / "a.mha"))
    assert image.GetNumberOfComponentsPerPixel() == count
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image).reshape(3, 4, 5, count), np.moveaxis(front, 0, -1))


@pytest.mark.parametrize(
    ("axes", "lost"),
    [
        ((Axis("t", "time", "second", 2.5),), set()),
        ((Axis("phase", "other"),), {"axes-unnamed"}),
        ((Axis("t"), Axis("c")), set()),
        ((Axis("c"), Axis("t", "time", "second", 2.5), Axis("v", "components")), {"axes-unnamed"}),
    ],
)
def test_other_axes_are_dimensions_behind_z_and_keep_their_names(
    tmp_path: Path, axes: tuple[Axis, ...], lost: set[str]
) -> None:
    shape = (*(2 for _ in axes), 3, 4, 5)
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    spec = ArraySpec(shape, array.dtype, (*axes, *parse_axes("zyx")), Geometry(OBLIQUE, "LPS"))
    assert codes(spec) == lost
    back, source = write(tmp_path / "a.mha", array, spec)
    np.testing.assert_array_equal(back, array)
    assert [(a.name, a.type, a.unit, a.step) for a in source.spec.axes[: len(axes)]] == [
        (a.name, a.type, a.unit, a.step) for a in axes
    ]
    assert source.spec.geometry is not None
    np.testing.assert_allclose(source.spec.geometry.affine, OBLIQUE, atol=1e-12)
    image = sitk.ReadImage(str(tmp_path / "a.mha"))
    assert image.GetDimension() == 3 + len([a for a in axes if a.type not in ("channel", "components")]) + max(
        0, len([a for a in axes if a.type in ("channel", "components")]) - 1
    )


def test_frames_of_a_plane_come_back_as_frames(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("tyx"), Geometry.from_parts(spacing=(3, 2)))
    assert "axes-unnamed" in codes(spec)
    back, source = write(tmp_path / "a.mha", array, spec)
    np.testing.assert_array_equal(back, array)
    assert names(source) == "tyx"
    assert source.spec.geometry == spec.geometry


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(d, d) for d in ("i1", "u1", "<i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")]
    + [(">i2", "i2"), (">f8", "f8"), ("?", "u1"), ("f2", "f4")],
)
def test_every_type_that_fits_is_read_back(tmp_path: Path, dtype: str, stored: str) -> None:
    array = np.arange(24).reshape(4, 3, 2).astype(dtype)
    spec = spec_of(array)
    assert codes(spec) == ({"dtype-converted"} if dtype in ("?", "f2") else set())
    back, _ = write(tmp_path / "a.mha", array, spec)
    assert back.dtype == np.dtype(stored)
    np.testing.assert_array_equal(back, array)
    image = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "a.mha")))
    assert image.dtype == back.dtype
    np.testing.assert_array_equal(image, back)


def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    complex_spec = ArraySpec((2, 2, 2), np.dtype("c8"), parse_axes("zyx"))
    with pytest.raises(DTypeError, match="MetaImage cannot hold complex64"):
        ours.open_sink(tmp_path / "a.mha", complex_spec, SourceInfo(), SinkOptions())
    axes = (*(Axis(f"a{number}", "other") for number in range(8)), *parse_axes("zyx"))
    with pytest.raises(UsageError, match="up to 10 dimensions"):
        ours.losses(ArraySpec((1,) * 11, np.dtype("u1"), axes), SourceInfo())
    with pytest.raises(UsageError, match=r"Write a \.mha file"):
        ours.open_sink(
            tmp_path / "a.mhd", ArraySpec((2, 2, 2), np.dtype("u1"), parse_axes("zyx")), SourceInfo(), SinkOptions()
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("geometry", "lost"),
    [
        (None, {"geometry-assumed"}),
        (Geometry.from_parts(spacing=(4, 3, 2)), {"geometry-assumed"}),
        (Geometry.from_parts(spacing=(4, 3, 2), origin=(1, 2, 3), coord_system="LPS"), {"geometry-assumed"}),
        (Geometry.from_parts(direction=np.eye(3), coord_system="LPS"), {"geometry-assumed"}),
        (Geometry(OBLIQUE, "scanner-xyz"), {"frame-assumed"}),
        (Geometry(OBLIQUE, None), {"frame-assumed"}),
    ],
)
def test_what_nobody_stated_stays_unknown_to_our_reader(
    tmp_path: Path, geometry: Geometry | None, lost: set[str]
) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), geometry)
    assert codes(spec) == lost
    _, source = write(tmp_path / "a.mha", array, spec)
    if geometry is None:
        assert source.spec.geometry is None
    else:
        assert source.spec.geometry is not None
        assert source.spec.geometry.known == geometry.known
        assert source.spec.geometry.coord_system == geometry.coord_system
        np.testing.assert_allclose(source.spec.geometry.affine, geometry.affine, atol=1e-12)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "a.mha"))), array)


def test_a_sheared_geometry_is_kept_with_a_note_and_simpleitk_reads_it(tmp_path: Path) -> None:
    affine = OBLIQUE.copy()
    affine[0, 0] = 1.0
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    spec = spec_of(array, affine=affine)
    assert codes(spec) == {"sheared"}
    back, source = write(tmp_path / "a.mha", array, spec)
    world = Geometry(affine).world((2, 3, 4))
    assert position(source, back, 59) == pytest.approx(world)
    assert sitk.ReadImage(str(tmp_path / "a.mha")).TransformIndexToPhysicalPoint((4, 3, 2)) == pytest.approx(world)


@pytest.mark.parametrize("length", [10, 29_000, 100_000])
def test_a_record_of_any_length_is_stored_and_simpleitk_does_not_mind(tmp_path: Path, length: int) -> None:
    record = {"source": 'C:\\data\\ä\n"x" = y: z.nii', "sizes": [1, 2], "long": "a b  " * (length // 5)}
    array = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"))
    _, source = write(tmp_path / "a.mha", array, spec, record=record)
    assert source.info.record == record
    assert not any(name.startswith("MLArray") for name in source.info.header)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "a.mha"))), array)


def test_free_fields_of_a_metaimage_source_come_back_but_not_its_layout(tmp_path: Path) -> None:
    fields = {
        **META_BASE,
        "BinaryDataByteOrderMSB": "True",
        "Offset": "1 2 3",
        "TransformMatrix": "1 0 0 0 1 0 0 0 1",
        "ElementSpacing": "2 3 4",
        "AnatomicalOrientation": "LPI",
        "Modality": "MET_MOD_CT",
        "Comment": "a = b",
        "Long": "x" * 40_000,
        "Seq_Note": "kept with frames only",
    }
    data = np.arange(24, dtype=">i2").tobytes()
    first, source = load(write_meta(tmp_path / "a.mha", fields, data))
    back, again = write(tmp_path / "b.mha", first, source.spec, source.info)
    np.testing.assert_array_equal(back, first)
    header = again.info.header
    assert header["Modality"] == "MET_MOD_CT"
    assert header["Comment"] == "a = b"
    assert header["BinaryDataByteOrderMSB"] == "False"
    assert not {"AnatomicalOrientation", "Long", "Seq_Note"} & set(header)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "b.mha"))), first)


def test_a_sequence_survives_the_round_trip(tmp_path: Path) -> None:
    fields = {**META_BASE, "ElementSpacing": "2 3 1"}
    for number in range(4):
        fields[f"Seq_Frame{number:04d}_Timestamp"] = str(0.25 * number)
    first, source = load(write_meta(tmp_path / "a.mha", fields))
    back, again = write(tmp_path / "b.mha", first, source.spec, source.info)
    np.testing.assert_array_equal(back, first)
    assert again.spec.axes == source.spec.axes
    assert again.info.header["Seq_Frame0003_Timestamp"] == "0.75"


def test_an_aborted_file_leaves_nothing_behind(tmp_path: Path) -> None:
    array = np.zeros((3, 4, 5), np.int16)
    sink = ours.open_sink(tmp_path / "a.mha", spec_of(array), SourceInfo(), SinkOptions())
    assert sink.access is Access.SLAB
    sink.write(Region((0, 0, 0), (1, 4, 5)), array[:1])
    assert not (tmp_path / "a.mha").exists()
    sink.abort()
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_file_can_be_checked_before_it_is_published(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    sink = ours.open_sink(tmp_path / "a.mha", spec_of(array), SourceInfo(), SinkOptions())
    sink.write(Region.full(array.shape), array)
    sink.finish()
    np.testing.assert_array_equal(ours.open_source(sink.path).read(Region.full(array.shape)), array)
    assert not (tmp_path / "a.mha").exists()
    sink.publish()
    assert (tmp_path / "a.mha").exists()


@pytest.mark.slow
def test_more_than_four_gibibytes_of_voxels_come_back(tmp_path: Path) -> None:
    shape = (4160, 1024, 1024)
    spec = ArraySpec(shape, np.dtype("u1"), parse_axes("zyx"))
    sink = ours.open_sink(tmp_path / "a.mha", spec, SourceInfo(), SinkOptions())
    block = np.zeros((32, 1024, 1024), np.uint8)
    for number, part in enumerate(Region.full(shape).split(0, 32)):
        block[0, 0, 0] = number
        sink.write(part, block)
    sink.publish()
    source = ours.open_source(tmp_path / "a.mha")
    for number in (0, 65, 129):
        assert source.read(Region.at((32 * number, 0, 0), (1, 1, 2))).tolist() == [[[number, 0]]]
    source.read(Region.at((shape[0] - 1, 0, 0), (1, 1024, 1024)))  # up to the end: length and checksum are compared
    source.close()
