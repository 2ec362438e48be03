"""OME-Zarr that we write, as zarr-python and our own reader see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from mlarray import Meta
from mlarray.axes import Axis, parse_axes
from mlarray.errors import DTypeError, UsageError
from mlarray.formats import ome_zarr
from mlarray.formats.registry import open_source
from mlarray.geometry import Geometry
from mlarray.sources.base import NDArray, Sink, SinkOptions, Source, SourceInfo
from mlarray.sources.copy import copy
from mlarray.sources.memory import ArraySource
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec
from mlarray.testing.conformance import SinkConformance, SourceConformance
from tests.conformance.text_header_files import load, notes, position
from tests.conformance.zarr_files import attributes, change, chunk_files, ome, ramp

OBLIQUE = np.array([[0, 0.6, 2.4, 5], [0, 2.4, -0.6, -7.25], [3.5, 0, 0, 11], [0, 0, 0, 1]], dtype=np.float64)
SHEARED = np.array([[0, 0, 2, 5], [0, 3, 0.5, -7.25], [4, 0, 0, 11], [0, 0, 0, 1]], dtype=np.float64)
ALONG = np.array([[0, 0, -2, 5], [3, 0, 0, -7.25], [0, -4, 0, 11], [0, 0, 0, 1]], dtype=np.float64)  # P, I, R


def write(
    path: Path, array: NDArray, spec: ArraySpec | None = None, info: SourceInfo | None = None, **storage: Any
) -> Path:
    """Write an array in the tiles that a copy would use."""
    spec = spec or ArraySpec(array.shape, array.dtype, parse_axes("tczyx"[-array.ndim :]))
    sink = ome_zarr.open_sink(path, spec, info or SourceInfo(), SinkOptions(storage, threads=2))
    try:
        copy(ArraySource(array, spec), sink, plan_tiles(spec, sink.chunks, access=sink.access))
        sink.publish()
    finally:
        sink.abort()
    return path


def spec_of(array: NDArray, axes: str = "zyx", affine: NDArray = OBLIQUE, frame: str | None = "LPS") -> ArraySpec:
    return ArraySpec(array.shape, array.dtype, parse_axes(axes), Geometry(affine, frame))


class _Sink(SinkConformance):
    suffix = ".ome.zarr"
    storage: dict[str, Any] = {}  # noqa: RUF012

    def make(self, path: Path, spec: ArraySpec) -> Sink:
        return ome_zarr.open_sink(path, spec, SourceInfo(), SinkOptions({"patch_size": 3} | self.storage))

    def stored(self, path: Path) -> NDArray:
        name = "0"
        found: NDArray = zarr.open_array(path / name, mode="r")[...]
        return found


class TestVersion5(_Sink):
    pass


class TestVersion4(_Sink):
    storage = {"ome_version": "0.4"}  # noqa: RUF012


class TestShards(_Sink):
    storage = {"shard_size": "auto"}  # noqa: RUF012


class TestOurOwnReader(SourceConformance):
    def make(self, folder: Path) -> Source:
        array = self.expected()
        axes = (Axis("x"), Axis("t"), Axis("y"))  # stored as t, y, x
        return open_source(write(folder / "a.ome.zarr", array, ArraySpec(array.shape, array.dtype, axes), patch_size=4))


# --- exactly the version that was asked for (OMZ-04) ---------------------------------------------------------------


def test_version_4_is_zarr_2_with_slashes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", ramp(8, 8, 8), patch_size=2, ome_version="0.4")
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert {".zgroup", ".zattrs", "0/.zarray", "0/1/1/1"} <= names
    assert not any(name.endswith("zarr.json") for name in names)
    document = json.loads((path / "0" / ".zarray").read_text(encoding="utf-8"))
    assert (document["zarr_format"], document["dimension_separator"], document["dtype"]) == (2, "/", "<i2")
    assert attributes(path)["multiscales"][0]["version"] == "0.4"
    assert "ome" not in attributes(path)


def test_version_5_is_zarr_3_with_the_key_ome_and_dimension_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", ramp(2, 8, 8, 8), patch_size=2)
    names = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert {"zarr.json", "0/zarr.json", "0/c/1/1/1/1"} <= names
    assert not any(name.rpartition("/")[2].startswith(".") for name in names)
    assert attributes(path)["ome"]["version"] == "0.5"
    assert "version" not in attributes(path)["ome"]["multiscales"][0]
    array = zarr.open_array(path / "0", mode="r")
    assert array.metadata.dimension_names == ("c", "z", "y", "x")
    assert [codec.to_dict()["name"] for codec in array.metadata.codecs] == ["bytes", "blosc"]


def test_chunks_follow_from_the_patch(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", np.zeros((2, 60, 70, 80), np.int16), patch_size=32)
    assert zarr.open_array(path / "0", mode="r").chunks == (1, 48, 48, 48)


# --- axes, levels (OMZ-03) -------------------------------------------------------------------------------------------


def test_time_and_channels_keep_scale_1_in_every_level(tmp_path: Path) -> None:
    array = ramp(1, 2, 16, 24, 32, dtype=np.uint16)
    affine = np.diag([2, 0.35, 0.35, 1.0])[:, [0, 1, 2, 3]]
    spec = ArraySpec(array.shape, array.dtype, parse_axes("tczyx"), Geometry(affine, None))
    path = write(tmp_path / "a.zarr", array, spec, patch_size=4)
    entry = ome(path)["multiscales"][0]
    assert [axis["type"] for axis in entry["axes"]] == ["time", "channel", "space", "space", "space"]
    scales = [dataset["coordinateTransformations"][0]["scale"] for dataset in entry["datasets"]]
    assert [scale[:2] for scale in scales] == [[1.0, 1.0]] * len(scales)
    assert scales[0] == pytest.approx([1, 1, 2, 0.35, 0.35])
    assert scales[1] == pytest.approx([1, 1, 2, 0.7, 0.7])  # z waits until x and y have caught up
    shapes = [zarr.open_array(path / dataset["path"], mode="r").shape for dataset in entry["datasets"]]
    assert shapes[:3] == [(1, 2, 16, 24, 32), (1, 2, 16, 12, 16), (1, 2, 16, 6, 8)]


def test_a_level_is_the_mean_of_the_one_below_at_its_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(-3000, 3000, (13, 14, 15), dtype=np.int16)
    affine = ALONG * [[1, 0.75, 1, 1]]  # steps 3, 3, 2: all are halved
    path = write(tmp_path / "a.zarr", array, spec_of(array, affine=affine), patch_size=4)
    half = zarr.open_array(path / "1", mode="r")[...]
    assert half.shape == (7, 7, 8)
    block = array[2:4, 4:6, 6:8].astype(np.float64)
    assert half[1, 2, 3] == np.rint(block.mean())
    assert half[6, 6, 7] == np.rint(array[12:, 12:14, 14:].astype(np.float64).mean())
    coarse, fine = open_source(path, item="1"), open_source(path)
    assert coarse.spec.geometry is not None
    assert fine.spec.geometry is not None
    assert coarse.spec.geometry.world((1, 2, 3)) == pytest.approx(fine.spec.geometry.world((2.5, 4.5, 6.5)))


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_pyramid_of_labels_makes_no_new_label(tmp_path: Path, version: str) -> None:
    array = np.zeros((16, 16, 16), np.uint8)
    array[:, 6] = 7
    path = write(tmp_path / "a.zarr", array, info=SourceInfo(is_seg=True), patch_size=2, ome_version=version)
    levels = [dataset["path"] for dataset in ome(path)["multiscales"][0]["datasets"]]
    assert len(levels) > 2
    for level in levels:
        assert set(np.unique(zarr.open_array(path / level, mode="r")[...])) <= {0, 7}
    assert ome(path)["multiscales"][0]["type"] == "nearest"
    assert "image-label" in ome(path)
    assert "omero" not in ome(path)
    source = open_source(path, item="1")
    assert source.info.is_seg is True


def test_the_number_of_levels_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zarr", ramp(8, 8), levels=3)
    assert [level["path"] for level in ome(path)["multiscales"][0]["datasets"]] == ["0", "1", "2"]
    assert len(ome(write(tmp_path / "b.zarr", ramp(8, 8), levels=1))["multiscales"][0]["datasets"]) == 1


# --- shards (OMZ-07) -------------------------------------------------------------------------------------------------


def test_shards_are_written_whole_by_several_threads(tmp_path: Path) -> None:
    array = ramp(100, 100, 100, dtype=np.int32)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"))
    storage = {"chunk_size": 25, "shard_size": 50, "levels": 1}
    sink = ome_zarr.open_sink(tmp_path / "a.zarr", spec, SourceInfo(), SinkOptions(storage, threads=4))
    assert sink.chunks == (50, 50, 50)
    sink.write(spec.region, array)
    sink.publish()
    stored = zarr.open_array(tmp_path / "a.zarr" / "0", mode="r")
    assert (stored.chunks, stored.shards) == ((25, 25, 25), (50, 50, 50))
    assert int(stored[...].astype(np.int64).sum()) == 999_999 * 1_000_000 // 2
    np.testing.assert_array_equal(stored[...], array)
    assert len(chunk_files(tmp_path / "a.zarr")) == 8


def test_automatic_shards_hold_many_chunks_and_at_most_64_mib() -> None:
    spec = ArraySpec((1, 500, 600, 700), np.dtype(np.int16), parse_axes("czyx"))
    layout = ome_zarr.plan_layout(spec, {"patch_size": 64, "shard_size": "auto"})
    assert layout.blocks == (1, 96, 96, 96)
    assert layout.chunks is not None
    assert all(shard % chunk == 0 for shard, chunk in zip(layout.chunks, layout.blocks, strict=True))
    assert 32 * 2**20 < 2 * np.prod(layout.chunks) <= 64 * 2**20


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ({"ome_version": "0.6"}, "0.5 or 0.4"),
        ({"ome_version": "0.4", "shard_size": "auto"}, "no shards"),
        ({"shard_size": 33}, "multiple"),
        ({"shard_size": (4, 4)}, "one extent per axis"),
        ({"shard_size": "many"}, "'auto'"),
        ({"codec": "gzip"}, "zstd or lz4"),
        ({"levels": 0}, "1 to 32"),
        ({"cparams": {"clevel": 9}}, r"for \.mla"),
        ({"colour": 3}, "Unknown storage arguments colour"),
    ],
)
def test_storage_arguments_that_cannot_be_are_refused(storage: dict[str, Any], told: str) -> None:
    spec = ArraySpec((64, 64, 64), np.dtype(np.int16), parse_axes("zyx"))
    with pytest.raises(UsageError, match=told):
        ome_zarr.plan_layout(spec, {"chunk_size": 32} | storage)


# --- place and metadata (OMZ-09, GEO-03, GEO-04) ---------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("affine", [OBLIQUE, SHEARED, ALONG], ids=["oblique", "sheared", "along"])
@pytest.mark.parametrize("frame", ["LPS", "RAS", "scanner-xyz", None])
def test_every_value_keeps_its_place(tmp_path: Path, affine: NDArray, frame: str | None, version: str) -> None:
    array = ramp(2, 3, 4)
    spec = spec_of(array, affine=affine, frame=frame)
    back, source = load(write(tmp_path / "a.zarr", array, spec, ome_version=version))
    np.testing.assert_array_equal(back, array)
    assert source.spec.geometry is not None
    np.testing.assert_allclose(source.spec.geometry.affine, affine, rtol=1e-15, atol=1e-13)
    assert source.spec.geometry.coord_system == frame
    assert source.spec.axes == spec.axes


def test_axes_along_the_body_are_said_in_the_words_of_rfc_4(tmp_path: Path) -> None:
    array = ramp(2, 3, 4)
    spec = spec_of(array, affine=ALONG)
    path = write(tmp_path / "a.zarr", array, spec)
    axes = ome(path)["multiscales"][0]["axes"]
    assert [axis["orientation"] for axis in axes] == [
        {"type": "anatomical", "value": "anterior-to-posterior"},
        {"type": "anatomical", "value": "superior-to-inferior"},
        {"type": "anatomical", "value": "left-to-right"},
    ]
    assert ome_zarr.losses(spec, SourceInfo()) == ()
    change(path, "zarr.json", lambda document: document["attributes"].pop("mlarray"))
    back, source = load(path)
    assert source.spec.geometry is not None
    np.testing.assert_allclose(source.spec.geometry.affine, ALONG)
    assert position(source, back, array[1, 2, 3]) == pytest.approx(Geometry(ALONG, "LPS").world((1, 2, 3)))


@pytest.mark.parametrize(("affine", "told"), [(OBLIQUE, "Oblique"), (SHEARED, "Sheared")])
def test_what_other_programs_will_not_see_is_told(affine: NDArray, told: str) -> None:
    (note,) = ome_zarr.losses(spec_of(ramp(2, 3, 4), affine=affine), SourceInfo())
    assert note.code == "direction-beside"
    assert told in note.message


def test_what_another_program_changed_counts_more_than_what_was_kept(tmp_path: Path) -> None:
    array = ramp(2, 3, 4)
    path = write(tmp_path / "a.zarr", array, spec_of(array, affine=ALONG))

    def move(document: dict[str, Any]) -> None:
        entry = document["attributes"]["ome"]["multiscales"][0]
        entry["datasets"][0]["coordinateTransformations"][0]["scale"] = [30.0, 4.0, 2.0]

    change(path, "zarr.json", move)
    _, source = load(path)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (30.0, 4.0, 2.0)
    assert notes(source) == {"geometry-disagreement"}
    assert isinstance(source.info.meta, Meta)
    assert source.info.meta.spatial.spacing == [30.0, 4.0, 2.0]


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize(
    "axes",
    [
        (Axis("t", unit="second", step=2.5), Axis("z"), Axis("y"), Axis("x")),
        (Axis("z"), Axis("y"), Axis("x"), Axis("t", unit="day")),
        (Axis("x"), Axis("y"), Axis("v", "components"), Axis("z")),
        (Axis("depth", "space"), Axis("row", "space"), Axis("echo"), Axis("column", "space")),
        (Axis("y", unit="micrometer"), Axis("c"), Axis("t"), Axis("x", unit="micrometer")),
    ],
    ids=["time first", "time last", "components", "own names", "plane"],
)
def test_axes_come_back_as_they_were(tmp_path: Path, axes: tuple[Axis, ...], version: str) -> None:
    array = ramp(2, 3, 4, 5)
    count = sum(axis.is_spatial for axis in axes)
    geometry = Geometry(np.diag([*range(2, 2 + count), 1.0]), "LPS" if count == 3 else None)
    spec = ArraySpec(array.shape, array.dtype, axes, geometry)
    path = write(tmp_path / "a.zarr", array, spec, ome_version=version, patch_size=2)
    kinds = [axis.get("type") for axis in ome(path)["multiscales"][0]["axes"]]
    assert kinds[-count:] == ["space"] * count
    back, source = load(path)
    np.testing.assert_array_equal(back, array)
    assert source.spec == spec


def test_parts_of_a_geometry_that_are_unknown_stay_so(tmp_path: Path) -> None:
    array = ramp(2, 3, 4)
    for geometry in (
        None,
        Geometry.from_parts(spacing=(3, 2, 1)),
        Geometry.from_parts(origin=(3, 2, 1), spacing=(1, 1, 2)),
    ):
        spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), geometry)
        path = write(tmp_path / "a.zarr", array, spec)
        assert load(path)[1].spec == spec
        units = {axis.get("unit") for axis in ome(path)["multiscales"][0]["axes"]}
        assert units == ({None} if geometry is None else {"millimeter"})


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_all_metadata_comes_back_and_the_document_is_strict_json(tmp_path: Path, version: str) -> None:
    array = ramp(2, 3, 4)
    meta = Meta(
        source={"slope": float("nan"), "descrip": b"\xe9\xff", "nested": {"Größe": (1, 2)}},
        extra={"fold": 3},
        stats={"min": -3, "max": float("inf")},
        bbox={"bboxes": [[[0, 2], [1, 3], [2, 4]]], "labels": ["a"]},
        is_seg=False,
    )
    meta.spatial.spacing = (3, 2, 1)
    meta.spatial.axis_labels = ["spatial_z", "spatial_y", "spatial_x"]
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), Geometry.from_parts(spacing=(3, 2, 1)))
    path = write(tmp_path / "a.zarr", array, spec, SourceInfo(meta=meta), ome_version=version)
    name = "zarr.json" if version == "0.5" else ".zattrs"
    json.loads((path / name).read_text(encoding="utf-8"), parse_constant=pytest.fail)
    _, source = load(path)
    back = source.info.meta
    assert isinstance(back, Meta)
    assert back.source.data["descrip"] == b"\xe9\xff"
    assert np.isnan(back.source.data["slope"])
    assert back.source.data["nested"] == {"Größe": (1, 2)}
    assert back.extra.data == {"fold": 3}
    assert (back.stats.min, back.stats.max) == (-3, float("inf"))
    assert back.bbox.bboxes == [[[0, 2], [1, 3], [2, 4]]]
    assert back.is_seg.is_seg is False
    assert source.info.is_seg is False


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_every_type_of_number_comes_back(tmp_path: Path, dtype: str, version: str) -> None:
    array = (ramp(7, 8, 9, dtype=np.int64) % 100).astype(dtype)
    for is_seg in (None, True):
        back, source = load(
            write(tmp_path / "a.zarr", array, info=SourceInfo(is_seg=is_seg), ome_version=version, patch_size=2)
        )
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
        assert source.info.is_seg == is_seg


def test_labels_of_bool_are_stored_as_integers_and_come_back_as_bool(tmp_path: Path) -> None:
    array = ramp(3, 4) % 2 == 0
    path = write(tmp_path / "a.zarr", array, info=SourceInfo(is_seg=True))
    assert zarr.open_array(path / "0", mode="r").dtype == np.uint8
    assert load(path)[0].dtype == np.bool_


@pytest.mark.parametrize(
    "axes", ["x", "t", "ct", "abcde", "tczyxw"], ids=["one of space", "time", "none", "others", "two others"]
)
def test_axes_that_the_specification_does_not_know_are_refused(axes: str) -> None:
    spec = ArraySpec((2,) * len(axes), np.dtype(np.uint8), parse_axes(axes))
    with pytest.raises(UsageError, match="2 or 3 axes of space"):
        ome_zarr.losses(spec, SourceInfo())


def test_long_double_is_refused() -> None:
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("long double is float64 here")
    spec = ArraySpec((2, 2), np.dtype(np.longdouble), parse_axes("yx"))
    with pytest.raises(DTypeError, match="cannot hold"):
        ome_zarr.losses(spec, SourceInfo())


def test_arrays_without_voxels_are_kept(tmp_path: Path) -> None:
    back, source = load(write(tmp_path / "a.zarr", np.zeros((0, 5, 6), np.int16)))
    assert back.shape == (0, 5, 6)
    assert source.spec.shape == (0, 5, 6)


# --- the window (omero) ------------------------------------------------------------------------------------------------


def test_a_window_per_channel_lets_viewers_show_the_image(tmp_path: Path) -> None:
    array = np.stack([ramp(10, 100), 5 * ramp(10, 100) - 2000]).astype(np.int16)
    path = write(tmp_path / "a.zarr", array, ArraySpec(array.shape, array.dtype, parse_axes("cyx")), patch_size=4)
    channels = ome(path)["omero"]["channels"]
    assert [channel["window"] for channel in channels] == [
        {"min": 0.0, "max": 999.0, "start": 4.0, "end": 994.0},
        {"min": -2000.0, "max": 2995.0, "start": -1980.0, "end": 2970.0},
    ]
    assert [channel["label"] for channel in channels] == ["channel 0", "channel 1"]
    assert all(len(channel["color"]) == 6 and channel["active"] for channel in channels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint64])
def test_wide_types_have_percentiles_within_a_hundredth(tmp_path: Path, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    array = (rng.normal(0, 1, (50, 60, 70)) * 1e4 + 3e4).clip(0).astype(dtype)
    (channel,) = ome(write(tmp_path / "a.zarr", array, patch_size=32))["omero"]["channels"]
    window = channel["window"]
    assert (window["min"], window["max"]) == (float(array.min()), float(array.max()))
    low, high = np.quantile(array, [0.005, 0.995])
    assert window["start"] == pytest.approx(low, rel=0.01)
    assert window["end"] == pytest.approx(high, rel=0.01)


def test_what_is_not_finite_does_not_count(tmp_path: Path) -> None:
    array = np.full((4, 4), np.nan, np.float32)
    assert "omero" not in ome(write(tmp_path / "a.zarr", array))
    array[0] = [-np.inf, 1, 2, np.inf]
    (channel,) = ome(write(tmp_path / "a.zarr", array))["omero"]["channels"]
    assert (channel["window"]["min"], channel["window"]["max"]) == (1.0, 2.0)


def test_a_constant_image_has_a_window_of_some_width(tmp_path: Path) -> None:
    (channel,) = ome(write(tmp_path / "a.zarr", np.full((4, 4), 7, np.int16)))["omero"]["channels"]
    assert channel["window"] == {"min": 7.0, "max": 7.0, "start": 7.0, "end": 8.0}


def test_labels_and_colours_of_the_source_are_kept(tmp_path: Path) -> None:
    header = {"omero": {"channels": [{"label": "DAPI", "color": "0000FF"}, {"label": "GFP", "color": "bad"}]}}
    array = ramp(2, 4, 4)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("cyx"))
    channels = ome(write(tmp_path / "a.zarr", array, spec, SourceInfo(header=header)))["omero"]["channels"]
    assert [(channel["label"], channel["color"]) for channel in channels] == [("DAPI", "0000FF"), ("GFP", "00FF00")]


# --- checksums ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["changed", "removed", "added"])
@pytest.mark.parametrize("level", ["0", "1"])
def test_a_level_that_changed_does_not_match_its_checksum(tmp_path: Path, level: str, how: str) -> None:
    path = write(tmp_path / "a.zarr", ramp(8, 8), patch_size=2)
    assert ome_zarr.check_stored(path) == ()
    victim = chunk_files(path, level)[0]
    if how == "changed":
        data = bytearray(victim.read_bytes())
        data[-1] ^= 1
        victim.write_bytes(bytes(data))
    elif how == "removed":
        victim.unlink()
    else:
        victim.with_name("77").write_bytes(b"x")
    (problem,) = ome_zarr.check_stored(path) or ()
    assert problem.startswith(f"Level {level} of ")
