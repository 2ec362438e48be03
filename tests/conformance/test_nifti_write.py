"""NIfTI files that this package writes, read back by nibabel and by itself."""

from __future__ import annotations

import gzip
import json
import struct
import threading
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from mlarray.axes import Axis, parse_axes
from mlarray.errors import DTypeError, UsageError
from mlarray.formats.nifti import losses, open_sink, open_source
from mlarray.geometry import Geometry
from mlarray.metadata import Meta, MetaImageFormat
from mlarray.region import Region
from mlarray.sources.base import Access, SinkOptions, SourceInfo
from mlarray.spec import ArraySpec
from tests.conformance.nifti_files import everything, oblique, save, save_source

VOLUME = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
LPS = Geometry(np.array([[0, 0, 1, 5], [0, 2, 0, 6], [3, 0, 0, 7], [0, 0, 0, 1.0]]), "LPS")
ZYX = ArraySpec((2, 3, 4), np.dtype(np.int16), parse_axes("zyx"), LPS)


def noted(spec: ArraySpec, info: SourceInfo | None = None) -> set[str]:
    return {note.code for note in losses(spec, info if info is not None else SourceInfo())}


def values_of(path: Path) -> Any:
    return np.asanyarray(nib.load(path).dataobj)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".NII.GZ"])
def test_a_volume_is_written_in_ras_with_both_forms(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a{suffix}", VOLUME, ZYX)
    if suffix == ".NII.GZ":
        path = path.rename(tmp_path / "a.nii.gz")
    image = nib.load(path)
    assert image.get_data_dtype() == np.int16
    np.testing.assert_array_equal(values_of(path), VOLUME.T)
    expected = [[-1, 0, 0, -5], [0, -2, 0, -6], [0, 0, 3, 7], [0, 0, 0, 1]]
    np.testing.assert_allclose(image.header.get_sform(), expected, atol=1e-6)
    np.testing.assert_allclose(image.header.get_qform(), expected, atol=1e-6)
    assert (image.header["sform_code"], image.header["qform_code"]) == (1, 1)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert noted(ZYX) == set()


def test_a_named_axis_order_is_followed(tmp_path: Path) -> None:
    geometry = LPS.permuted((2, 0, 1))
    spec = ArraySpec((4, 2, 3), np.dtype(np.int16), parse_axes("xzy"), geometry)
    path = save(tmp_path / "a.nii.gz", VOLUME.transpose(2, 0, 1), spec)
    np.testing.assert_array_equal(values_of(path), VOLUME.T)
    np.testing.assert_allclose(nib.load(path).affine, [[-1, 0, 0, -5], [0, -2, 0, -6], [0, 0, 3, 7], [0, 0, 0, 1]])
    assert noted(spec) == {"axes-changed"}


def test_unnamed_spatial_axes_are_taken_as_z_y_x(tmp_path: Path) -> None:
    spec = ArraySpec((2, 3, 4), np.dtype(np.int16), geometry=LPS)
    np.testing.assert_array_equal(values_of(save(tmp_path / "a.nii", VOLUME, spec)), VOLUME.T)
    assert noted(spec) == {"axes-assumed"}


def test_time_and_components_find_their_places(tmp_path: Path) -> None:
    array = np.arange(2 * 5 * 24, dtype=np.float32).reshape(2, 5, 2, 3, 4)
    axes = (Axis("v", "components"), Axis("t", unit="millisecond", step=40.0), *parse_axes("zyx"))
    path = save(tmp_path / "a.nii", array, ArraySpec(array.shape, array.dtype, axes, LPS))
    header = nib.load(path).header
    assert header["dim"].tolist() == [5, 4, 3, 2, 5, 2, 1, 1]
    assert header.get_intent()[0] == "vector"
    np.testing.assert_array_equal(values_of(path), array.T)


@pytest.mark.parametrize(
    ("unit", "stored", "name"), [("second", 2.5, "sec"), ("hertz", 2.5, "hz"), (None, 2.5, "unknown")]
)
def test_units_of_time_are_written(tmp_path: Path, unit: str | None, stored: float, name: str) -> None:
    axes = (Axis("t", unit=unit, step=2.5), *parse_axes("zyx"))
    array = np.zeros((2, 2, 3, 4), np.uint8)
    header = nib.load(save(tmp_path / "a.nii", array, ArraySpec(array.shape, array.dtype, axes, LPS))).header
    assert header.get_xyzt_units() == ("mm", name)
    assert header.get_zooms()[3] == stored


def test_an_unknown_unit_of_time_is_a_noted_loss() -> None:
    axes = (Axis("t", unit="fortnight", step=1.0), *parse_axes("zyx"))
    assert noted(ArraySpec((2, 2, 3, 4), np.dtype("u1"), axes, LPS)) == {"unit-dropped"}


def test_three_uint8_channels_are_a_vector_and_not_colours(tmp_path: Path) -> None:
    array = np.arange(72, dtype=np.uint8).reshape(3, 2, 3, 4)
    path = save(tmp_path / "a.nii", array, ArraySpec(array.shape, array.dtype, parse_axes("czyx"), LPS))
    header = nib.load(path).header
    assert header["dim"].tolist() == [5, 4, 3, 2, 1, 3, 1, 1]
    assert header["datatype"] == 2
    assert header.get_intent()[0] == "vector"


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_colours_are_written_again_as_colours(tmp_path: Path, suffix: str) -> None:
    voxels = np.zeros((3, 4, 5), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    voxels["R"], voxels["B"] = np.arange(60).reshape(3, 4, 5), 9
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / "a.nii")
    again = save_source(tmp_path / f"b{suffix}", open_source(tmp_path / "a.nii"))
    np.testing.assert_array_equal(values_of(again), voxels)


@pytest.mark.parametrize(("dtype", "stored"), [("bool", "uint8"), ("float16", "float32")])
def test_dtypes_that_nifti_lacks_are_widened_with_a_note(tmp_path: Path, dtype: str, stored: str) -> None:
    array = (VOLUME % 2).astype(dtype)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), LPS)
    path = save(tmp_path / "a.nii", array, spec)
    assert values_of(path).dtype == stored
    np.testing.assert_array_equal(values_of(path), array.T)
    assert noted(spec) == {"dtype-changed"}


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble"])
def test_long_doubles_are_refused(dtype: str) -> None:
    with pytest.raises(DTypeError, match=r"128|256"):
        losses(ArraySpec((2, 3, 4), np.dtype(dtype), parse_axes("zyx")), SourceInfo())


def test_uint64_values_are_exact(tmp_path: Path) -> None:
    array = np.array([[[0, 1, 2**64 - 1, 2**53 + 1]]], dtype=np.uint64)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), LPS)
    source = open_source(save(tmp_path / "a.nii.gz", array, spec))
    assert everything(source).ravel().tolist() == [0, 1, 2**64 - 1, 2**53 + 1]


def test_shear_is_written_as_sform_alone(tmp_path: Path) -> None:
    affine = np.eye(4)
    affine[1, 0] = 0.8
    spec = ArraySpec((2, 3, 4), np.dtype(np.int16), parse_axes("zyx"), Geometry(affine[:, [2, 1, 0, 3]], "RAS"))
    header = nib.load(save(tmp_path / "a.nii", VOLUME, spec)).header
    assert (header["qform_code"], header["sform_code"]) == (0, 1)
    np.testing.assert_allclose(header.get_sform(), affine, atol=1e-6)


@pytest.mark.parametrize("known", ["nothing", "spacing"])
def test_unknown_geometry_leaves_both_codes_empty(tmp_path: Path, known: str) -> None:
    geometry = None if known == "nothing" else Geometry.from_parts(spacing=(4, 3, 2))
    spec = ArraySpec((2, 3, 4), np.dtype(np.int16), parse_axes("zyx"), geometry)
    header = nib.load(save(tmp_path / "a.nii", VOLUME, spec)).header
    assert (header["qform_code"], header["sform_code"]) == (0, 0)
    assert header.get_zooms() == ((1, 1, 1) if geometry is None else (2, 3, 4))
    assert noted(spec) == {"geometry-unknown"}


def test_an_unnamed_world_frame_is_taken_as_lps(tmp_path: Path) -> None:
    spec = ArraySpec((2, 3, 4), np.dtype(np.int16), parse_axes("zyx"), Geometry(LPS.affine, None))
    affine = nib.load(save(tmp_path / "a.nii", VOLUME, spec)).affine
    np.testing.assert_allclose(affine[:3, 3], (-5, -6, 7))
    assert noted(spec) == {"frame-assumed"}


def test_a_plane_is_written_as_two_axes(tmp_path: Path) -> None:
    geometry = Geometry(np.array([[0, 2, 5], [3, 0, 6], [0, 0, 1.0]]), "LPS")
    spec = ArraySpec((3, 4), np.dtype(np.int16), parse_axes("yx"), geometry)
    path = save(tmp_path / "a.nii", VOLUME[0], spec)
    assert nib.load(path).shape == (4, 3)
    assert open_source(path).spec.geometry == geometry
    assert noted(spec) == set()


def test_a_long_axis_makes_it_nifti_2(tmp_path: Path) -> None:
    array = np.arange(40000, dtype=np.int32).reshape(1, 1, 40000)
    path = save(tmp_path / "a.nii", array, ArraySpec(array.shape, array.dtype, parse_axes("zyx"), LPS))
    assert isinstance(nib.load(path), nib.Nifti2Image)
    np.testing.assert_array_equal(values_of(path), array.T)


def test_arrays_that_nifti_cannot_hold_are_refused() -> None:
    for names, shape in (("abcdezyx", (1,) * 8), ("ct", (2, 3)), ("zyx", (0, 3, 4))):
        with pytest.raises(UsageError):
            losses(ArraySpec(shape, np.dtype("u1"), parse_axes(names)), SourceInfo())
    with pytest.raises(UsageError, match="4"):
        losses(ArraySpec((2, 2, 2, 2), np.dtype("u1")), SourceInfo())


@pytest.mark.parametrize("name", ["a.hdr", "a.img", "a.img.gz", "a.dat"])
def test_only_single_files_are_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.nii"):
        open_sink(tmp_path / name, ZYX, SourceInfo(), SinkOptions())
    assert list(tmp_path.iterdir()) == []


def test_header_fields_of_a_nifti_source_are_restored(tmp_path: Path) -> None:
    image = nib.Nifti1Image(VOLUME.T, oblique())
    header = image.header
    image.set_qform(oblique(), 3)
    image.set_sform(oblique(), 4)
    header["descrip"], header["aux_file"], header["cal_max"], header["cal_min"] = b"caf\xe9", b"lut.txt", 900, -5
    header.set_intent("t test", (12.0,), name="contrast")
    header.set_dim_info(0, 1, 2)
    header["slice_code"], header["slice_end"], header["slice_duration"] = 1, 1, 0.5
    header["toffset"], header["scl_slope"], header["scl_inter"] = 7.5, 1, 0
    header.set_xyzt_units("micron", "msec")
    header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"hello"))
    nib.save(image, tmp_path / "a.nii")
    again = nib.load(save_source(tmp_path / "b.nii.gz", open_source(tmp_path / "a.nii"))).header
    for name in set(header) - {"vox_offset", "magic", "scl_slope", "scl_inter", "regular"}:
        if header[name].dtype.kind in "iuf":
            np.testing.assert_allclose(again[name], header[name], rtol=1e-6, atol=1e-6)
        else:
            assert again[name] == header[name]
    assert [(e.get_code(), e.get_content()) for e in again.extensions] == [(6, b"hello")]


def test_dims_dtype_and_scaling_of_the_source_header_are_never_restored(tmp_path: Path) -> None:
    image = nib.Nifti1Image(VOLUME.T, oblique())
    image.header.set_slope_inter(0.5, 3)
    nib.save(image, tmp_path / "a.nii")
    source = open_source(tmp_path / "a.nii")
    array = np.ones((5, 6, 7), np.float64)
    path = save(tmp_path / "b.nii", array, ArraySpec(array.shape, array.dtype, parse_axes("zyx")), source.info)
    assert struct.unpack_from("<2f", path.read_bytes(), 112) == (1, 0)
    assert values_of(path).shape == (7, 6, 5)
    np.testing.assert_array_equal(values_of(path), 1)


def test_hostile_header_values_are_left_out(tmp_path: Path) -> None:
    header = {"srow_x": 1, "sform_code": "x", "qform_code": 233, "pixdim": None, "cal_max": "loud", "slice_end": 10**9}
    header |= {"toffset": [1, 2], "intent_code": -7, "extensions": [{"code": -1, "content": b"x"}, 3]}
    path = save(tmp_path / "a.nii", VOLUME, ZYX, SourceInfo(format="nifti", header=header))
    np.testing.assert_allclose(nib.load(path).affine[:3, 3], (-5, -6, 7))
    assert [int(nib.load(path).header[name]) for name in ("qform_code", "sform_code", "intent_code")] == [1, 0, 0]


def test_headers_of_other_formats_are_a_noted_loss() -> None:
    assert noted(ZYX, SourceInfo(format="nrrd", header={"space": "lps"})) == {"header-dropped"}


@pytest.mark.parametrize(("kind", "named"), [("nrrd", "NRRD"), ("metaimage", "MetaImage"), (None, "no known format")])
def test_the_note_of_a_dropped_header_names_the_format_of_the_header_not_of_its_container(
    kind: str | None, named: str
) -> None:
    meta = Meta(source={"space": "lps"}, _image_meta_format=MetaImageFormat(kind))
    info = SourceInfo(format="mla", header={"space": "lps"}, meta=meta)
    (note,) = [note for note in losses(ZYX, info) if note.code == "header-dropped"]
    assert note.message == f"Header fields of {named} have no place in NIfTI."


def test_segmentations_are_marked_as_labels(tmp_path: Path) -> None:
    source = open_source(save(tmp_path / "a.nii", VOLUME, ZYX, SourceInfo(is_seg=True)))
    assert source.info.is_seg is True


def test_the_conversion_record_comes_back(tmp_path: Path) -> None:
    record = {"source": {"name": "fall-ä.nrrd", "bytes": 12}, "settings": [1, 2.5, None, True]}
    path = save(tmp_path / "a.nii.gz", VOLUME, ZYX, record=record)
    source = open_source(path)
    assert source.info.record == record
    assert source.info.header["extensions"] == []
    (extension,) = nib.load(path).header.extensions
    assert json.loads(extension.get_content().removeprefix(b"mlarray-record:")) == record
    np.testing.assert_array_equal(everything(source), VOLUME)


def test_the_same_voxels_give_the_same_compressed_bytes(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 50, (40, 64, 64), dtype=np.int16)
    first = save(tmp_path / "a.nii.gz", array).read_bytes()
    assert save(tmp_path / "b.nii.gz", array).read_bytes() == first
    threaded = save(tmp_path / "c.nii.gz", array, threads=2)
    assert gzip.decompress(threaded.read_bytes()) == gzip.decompress(first)
    assert first[4:8] == bytes(4)  # no time stamp


def test_nothing_is_visible_before_publishing_and_aborting_leaves_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    for name, threads in (("a.nii", 1), ("a.nii.gz", 1), ("a.nii.gz", 2)):
        sink = open_sink(tmp_path / name, ZYX, SourceInfo(), SinkOptions(threads=threads))
        sink.write(Region((0, 0, 0), (1, 3, 4)), VOLUME[:1])
        assert not (tmp_path / name).exists()
        sink.abort()
        assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


def test_a_compressed_file_with_missing_voxels_is_not_published(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.nii.gz", ZYX, SourceInfo(), SinkOptions())
    assert sink.access is Access.SLAB
    sink.write(Region((0, 0, 0), (1, 3, 4)), VOLUME[:1])
    with pytest.raises(UsageError, match="all 48 voxel bytes, got 24"):
        sink.publish()
    sink.abort()
    assert list(tmp_path.iterdir()) == []


def test_regions_of_a_plain_file_may_come_in_any_order(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.nii", ZYX, SourceInfo(), SinkOptions())
    for region in (Region((1, 0, 2), (2, 3, 4)), Region((0, 0, 0), (1, 3, 4)), Region((1, 0, 0), (2, 3, 2))):
        sink.write(region, VOLUME[region.slices])
    sink.publish()
    np.testing.assert_array_equal(values_of(tmp_path / "a.nii"), VOLUME.T)


def turned(degrees: float) -> Any:
    """RAS affine of a rotation about an oblique axis, 2 mm steps, far from the origin."""
    angle = np.deg2rad(degrees)
    u = np.array([0.48, 0.6, 0.64])
    cross = np.array([[0, -u[2], u[1]], [u[2], 0, -u[0]], [-u[1], u[0], 0]])
    affine = np.eye(4)
    affine[:3, :3] = 2 * (np.cos(angle) * np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * np.outer(u, u))
    affine[:3, 3] = [-120, 80, 40]
    return affine


def test_the_codes_of_a_source_with_a_qform_alone_are_kept(tmp_path: Path) -> None:
    image = nib.Nifti1Image(VOLUME.T, None)
    image.set_qform(turned(30), 2)
    image.set_sform(None, 0)
    nib.save(image, tmp_path / "a.nii")
    again = nib.load(save_source(tmp_path / "b.nii", open_source(tmp_path / "a.nii")))
    assert (again.header["qform_code"], again.header["sform_code"]) == (2, 0)
    np.testing.assert_allclose(again.affine, nib.load(tmp_path / "a.nii").affine, atol=1e-5)


def test_where_a_float32_quaternion_loses_places_an_sform_is_written_too(tmp_path: Path) -> None:
    # Near half a turn the stored b, c, d have length 1 to within float32, and the fourth component is lost.
    affine = turned(179.99)
    geometry = Geometry(affine[:, [2, 1, 0, 3]], "RAS")
    spec = ArraySpec((200, 200, 200), np.dtype(np.uint8), parse_axes("zyx"), geometry)
    fields = dict.fromkeys(("srow_x", "srow_y", "srow_z"), [0.0] * 4)
    header = {**fields, "sform_code": 0, "qform_code": 1, "pixdim": [1.0] * 8, "sizeof_hdr": 348}
    sink = open_sink(tmp_path / "a.nii", spec, SourceInfo(format="nifti", header=header), SinkOptions())
    sink.publish()
    written = nib.load(tmp_path / "a.nii")
    corner = np.array([199, 199, 199, 1])
    np.testing.assert_allclose(written.affine @ corner, affine @ corner, atol=1e-3)
    assert (written.header["qform_code"], written.header["sform_code"]) == (1, 1)


def test_a_plane_in_time_gets_a_third_axis_of_one_voxel(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("tyx"), Geometry(np.eye(3)[:, [1, 0, 2]], "LPS"))
    assert nib.load(save(tmp_path / "a.nii", array, spec)).shape == (4, 3, 1, 2)
    assert noted(spec) == {"axes-changed"}
