"""What an array is made from, shows of itself, and turns into."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import numpy as np
import pytest

from mlarray import Axis, Geometry, Meta, MLArray
from mlarray.errors import DTypeError, LayoutError, MetadataError, UsageError

from .array_stores import ALL

VOXELS = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


# --- conversion to numpy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_numpy_takes_an_array_without_a_warning(tmp_path: Path, kind: str) -> None:
    image = ALL[kind](tmp_path, VOXELS)
    np.testing.assert_array_equal(np.asarray(image), VOXELS, strict=True)
    np.testing.assert_array_equal(np.asarray(image, dtype=np.float32), VOXELS.astype(np.float32), strict=True)
    np.testing.assert_array_equal(np.array(image, copy=True), VOXELS)
    assert float(np.mean(image)) == VOXELS.mean()
    np.testing.assert_array_equal(np.stack([image, image])[1], VOXELS)


def test_a_copy_that_cannot_be_avoided_is_refused() -> None:
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(MLArray(VOXELS), copy=False)
    plain = MLArray(VOXELS, compressed=False)
    assert np.shares_memory(np.asarray(plain, copy=False), plain.to_numpy())
    assert not np.shares_memory(np.array(plain, copy=True), plain.to_numpy())
    with pytest.raises(ValueError, match="copy"):
        np.asarray(plain, dtype=np.float32, copy=False)


def test_an_uncompressed_array_is_not_the_callers() -> None:
    mine = VOXELS.copy()
    image = MLArray(mine, compressed=False)
    mine[...] = 0
    np.testing.assert_array_equal(image[...], VOXELS)
    image.to_numpy()[0] = 7
    assert image[0, 0, 0] == 7


# --- what an array can be made from ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("compressed", [True, False])
def test_every_number_type_is_kept_exactly(tmp_path: Path, code: str, compressed: bool) -> None:
    voxels = np.random.default_rng(1).integers(0, 256, 15 * np.dtype(code).itemsize, np.uint8)
    voxels = (voxels % 2 == 1).reshape(3, 5) if code == "?" else voxels.view(code).reshape(3, 5)
    MLArray(voxels, compressed=compressed).save(tmp_path / "a.mla")
    loaded = MLArray(tmp_path / "a.mla")
    assert loaded.dtype == voxels.dtype
    assert loaded[...].tobytes() == voxels.tobytes()


@pytest.mark.parametrize("compressed", [True, False])
def test_big_endian_input_is_stored_native(tmp_path: Path, compressed: bool) -> None:
    image = MLArray(VOXELS.astype(">i2"), compressed=compressed)
    image.save(tmp_path / "a.mla")
    assert image.dtype == MLArray.open(tmp_path / "a.mla").dtype == np.dtype(np.int16)
    np.testing.assert_array_equal(MLArray(tmp_path / "a.mla")[...], VOXELS, strict=True)


@pytest.mark.parametrize(
    "voxels", [np.asfortranarray(VOXELS), VOXELS[::-1, :, ::2], np.broadcast_to(VOXELS, (2, 2, 3, 4))]
)
def test_any_memory_layout_is_taken(voxels: np.ndarray) -> None:
    np.testing.assert_array_equal(MLArray(voxels)[...], voxels)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a"]), np.array([b"a"]), np.array([None]), np.zeros(2, "M8[s]"), np.zeros(2, [("r", "u1")]), [[1], "a"],
        {"a": 1}, object(),
    ],
)  # fmt: skip
def test_what_is_no_array_of_numbers_is_refused(array: object) -> None:
    with pytest.raises((DTypeError, ValueError)):
        MLArray(array)


@pytest.mark.parametrize("compressed", [True, False])
def test_an_array_without_axes_is_refused(compressed: bool) -> None:
    with pytest.raises(UsageError, match="without axes"):
        MLArray(np.float32(3), compressed=compressed)
    with pytest.raises(UsageError, match="without axes"):
        MLArray.zeros((), np.uint8, compressed=compressed)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0, 4), (2, 2, 0)])
@pytest.mark.parametrize("compressed", [True, False])
def test_axes_of_extent_zero_are_kept(tmp_path: Path, shape: tuple[int, ...], compressed: bool) -> None:
    image = MLArray(np.empty(shape, np.float32), compressed=compressed)
    image.save(tmp_path / "a.mla")
    for again in (MLArray(tmp_path / "a.mla"), MLArray.open(tmp_path / "a.mla")):
        assert again.shape == shape
        assert again[...].shape == shape
        assert again.dtype == np.float32
        assert again.size == 0
    with MLArray.open(tmp_path / "a.mla", mmap_mode="r+") as again:
        again[...] = 1
        again.meta.source["a"] = 1
    assert MLArray(tmp_path / "a.mla").meta.source == {"a": 1}


def test_one_to_five_axes_are_stored(tmp_path: Path) -> None:
    for ndim in range(1, 6):
        voxels = np.arange(3**ndim).reshape((3,) * ndim)
        MLArray(voxels).save(tmp_path / "a.mla")
        np.testing.assert_array_equal(MLArray(tmp_path / "a.mla")[...], voxels)


# --- an object without an array -------------------------------------------------------------------------------------


def test_metadata_can_stand_alone(tmp_path: Path) -> None:
    image = MLArray(meta={"a": 1}, spacing=(1, 2))
    assert (image.shape, image.dtype, image.ndim, len(image), image.size) == (None, None, None, 0, 0)
    assert (image.affine, image.scale, image.shear, image.axes, image.geometry) == (None,) * 5
    assert repr(image) == "<MLArray without an array>"
    for use in (lambda: image[0], lambda: list(image), image.to_numpy, lambda: np.asarray(image), image.decompress):
        with pytest.raises(DTypeError, match="no array"):
            use()
    image.save(tmp_path / "meta.mla")
    for again in (MLArray(tmp_path / "meta.mla"), MLArray.open(tmp_path / "meta.mla")):
        assert again.shape is None
        assert again.meta.source == {"a": 1}
        assert again.spacing == [1, 2]
    with MLArray.open(tmp_path / "meta.mla", mmap_mode="r+") as again:
        again.meta.source["b"] = 2
    assert MLArray(tmp_path / "meta.mla").meta.source == {"a": 1, "b": 2}
    assert copy.deepcopy(image).meta == image.meta


def test_a_closed_array_has_nothing_left() -> None:
    image = MLArray(VOXELS, spacing=(1, 2, 3))
    image.close()
    assert (image.shape, image.meta, image.spacing) == (None, None, None)
    with pytest.raises(AttributeError, match="closed"):
        image.spacing = (1, 1, 1)
    image.close()


def test_what_an_array_says_of_itself(tmp_path: Path) -> None:
    image = MLArray(VOXELS, spacing=(3, 1, 1))
    assert repr(image) == "<MLArray shape=(2, 3, 4) dtype=int16 spacing=[3, 1, 1] compressed in memory>"
    image.save(tmp_path / "a.mla")
    assert repr(MLArray.open(tmp_path / "a.mla")).endswith(f"{tmp_path / 'a.mla'}>")
    assert "in memory>" in repr(MLArray(VOXELS, compressed=False))


# --- geometry and axes ----------------------------------------------------------------------------------------------


def test_geometry_is_given_and_changed_as_attributes() -> None:
    image = MLArray(VOXELS, spacing=np.array([3, 2, 1.0]), origin=(1, 2, 3), direction=np.eye(3)[::-1])
    assert image.spacing == [3.0, 2.0, 1.0]
    assert image.affine == [[0.0, 0.0, 1.0, 1.0], [0.0, 2.0, 0.0, 2.0], [3.0, 0.0, 0.0, 3.0], [0.0, 0.0, 0.0, 1.0]]
    assert (image.scale, image.translation) == ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0])
    assert image.rotation == np.eye(3)[::-1].tolist()
    assert image.shear == np.eye(3).tolist()
    image.spacing[1] = 5.3
    assert image.meta.spatial.spacing == [3.0, 5.3, 1.0]
    image.spacing = image.origin = image.direction = None
    image.affine = np.diag([2, 2, 2, 1])
    assert image.geometry == Geometry(np.diag([2, 2, 2, 1]))
    assert image.spacing is None


def test_an_affine_excludes_its_parts() -> None:
    with pytest.raises(MetadataError, match="affine is set together with spacing"):
        MLArray(VOXELS, spacing=(1, 1, 1), affine=np.eye(4))
    image = MLArray(VOXELS, spacing=(1, 1, 1))
    with pytest.raises(MetadataError, match="affine is set together with spacing"):
        image.affine = np.eye(4)
    assert image.meta.spatial.affine is None


def test_geometry_that_does_not_fit_the_array_is_refused() -> None:
    with pytest.raises(MetadataError, match="spacing"):
        MLArray(VOXELS, spacing=(1, 1))
    with pytest.raises(MetadataError, match="axis_labels"):
        MLArray(VOXELS, axis_labels=["spatial_y", "spatial_x"])


@pytest.mark.parametrize(
    "axes",
    [
        "cyx",
        ["c", "y", "x"],
        ["channel", "spatial_y", "spatial_x"],
        [{"name": "c", "type": "channel"}, {"name": "y"}, Axis("x")],
    ],
)
def test_axes_are_taken_in_all_forms_and_stored_as_labels_of_older_files(tmp_path: Path, axes: object) -> None:
    image = MLArray(VOXELS, axes=axes, spacing=(2, 1))  # type: ignore[arg-type]
    image.save(tmp_path / "a.mla")
    again = MLArray(tmp_path / "a.mla")
    assert again.meta.spatial.axis_labels == ["channel", "spatial_y", "spatial_x"]
    assert again.meta.spatial.axis_units == ["", "", ""]
    assert again.axes == (Axis("c"), Axis("y"), Axis("x"))
    assert again.spatial_ndim == 2
    assert again.meta.blosc2.patch_size == [192, 192]


def test_units_steps_and_names_of_ones_own_survive_a_file(tmp_path: Path) -> None:
    axes = (Axis("t", unit="second", step=2.5), Axis("depth", "space", "millimeter"), Axis("x", unit="millimeter"))
    image = MLArray(VOXELS, axes=axes)
    image.save(tmp_path / "a.mla")
    for again in (MLArray(tmp_path / "a.mla"), MLArray.open(tmp_path / "a.mla")):
        assert again.axes == axes
        assert again.meta.spatial.axis_labels == ["temporal", "spatial", "spatial_x"]
        assert again.meta.spatial.axis_units == ["second", "millimeter", "millimeter"]


def test_names_that_start_with_d_are_names_too(tmp_path: Path) -> None:
    for make in (MLArray.zeros, lambda *a, **k: MLArray.create(tmp_path / "a.mla", *a, **k)):
        image = make((2, 3), np.uint8, axes=[Axis("depth", "space"), Axis("d", "channel")])
        assert [axis.name for axis in image.axes] == ["depth", "d"]


def test_labels_set_later_overrule_the_axes_given_before() -> None:
    image = MLArray(VOXELS, axes="tyx")
    image.meta.spatial.axis_labels = ["channel", "spatial_y", "spatial_x"]
    assert [axis.name for axis in image.axes or ()] == ["c", "y", "x"]


def test_axes_and_labels_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="give one of them"):
        MLArray(VOXELS, axes="zyx", axis_labels=["spatial_z", "spatial_y", "spatial_x"])


# --- copy= and meta= ------------------------------------------------------------------------------------------------


def test_a_copy_fills_what_is_not_given() -> None:
    base = MLArray(VOXELS, spacing=(1, 2, 3), origin=(4, 5, 6), meta={"id": 1}, axes="zyx")
    image = MLArray(VOXELS[:1], spacing=(9, 9, 9), copy=base)
    assert image.spacing == [9, 9, 9]
    assert image.origin == [4, 5, 6]
    assert image.meta.source == {"id": 1}
    assert image.axes == base.axes
    assert image.shape == tuple(image.meta.spatial.shape) == (1, 3, 4)
    image.origin[0] = 0
    image.meta.source["id"] = 2
    assert (base.origin, base.meta.source) == ([4, 5, 6], {"id": 1})


def test_a_meta_object_is_used_as_it_is_and_a_mapping_is_the_source() -> None:
    meta = Meta(is_seg=True)
    assert MLArray(VOXELS, meta=meta).meta is meta
    given = {"a": 1}
    image = MLArray(VOXELS, meta=given)
    given["a"] = 2
    assert image.meta.source == {"a": 1}
    with pytest.raises(UsageError, match="a mapping or a Meta"):
        MLArray(VOXELS, meta=[1])  # type: ignore[arg-type]


def test_copies_and_pickles_in_memory_keep_everything() -> None:
    image = MLArray(VOXELS, spacing=(1, 2, 3), patch_size=2, axes="yxz", cparams={"codec": 5, "clevel": 3})
    again = copy.deepcopy(image)
    np.testing.assert_array_equal(again[...], VOXELS)
    assert again.meta == image.meta
    assert again.axes == image.axes
    assert again.layout == image.layout
    again[0] = 0
    np.testing.assert_array_equal(image[...], VOXELS)
    plain = copy.deepcopy(MLArray(VOXELS, compressed=False, patch_size=2))
    np.testing.assert_array_equal(plain[...], VOXELS)
    assert plain.layout is None


def test_compressing_and_decompressing_keep_voxels_and_metadata(tmp_path: Path) -> None:
    image = MLArray(VOXELS, spacing=(1, 2, 3), meta={"a": 1}, axes="zyx")
    image.save(tmp_path / "a.mla")
    image = MLArray.open(tmp_path / "a.mla")
    image.decompress()
    assert image.layout is None
    assert image.filepath is None
    assert image.meta.blosc2.chunk_size is None
    image[0] = 0
    image.compress(patch_size=2, cparams={"codec": 5})
    assert image.meta.blosc2.patch_size == [2, 2, 2]
    assert image.meta.blosc2.cparams == {"codec": 5}
    assert image.layout is not None
    assert image.layout.chunks == (2, 3, 3)
    assert (image.spacing, image.meta.source, len(image.axes or ())) == ([1, 2, 3], {"a": 1}, 3)
    assert not image[0].any()
    np.testing.assert_array_equal(MLArray(tmp_path / "a.mla")[...], VOXELS)


def test_a_file_brings_its_own_metadata(tmp_path: Path) -> None:
    MLArray(VOXELS).save(tmp_path / "a.mla")
    for argument in ({"spacing": (1, 1, 1)}, {"meta": {}}, {"patch_size": 8}, {"copy": MLArray()}, {"axes": "zyx"}):
        with pytest.raises(UsageError, match="brings its own metadata"):
            MLArray(tmp_path / "a.mla", **argument)  # type: ignore[arg-type]
    assert MLArray(str(tmp_path / "a.mla"), dparams={"nthreads": 2}).shape == (2, 3, 4)


def test_an_array_that_is_dropped_is_freed() -> None:
    import weakref

    image = MLArray(VOXELS)
    gone = weakref.ref(image)
    del image
    gc.collect()
    assert gone() is None


# --- layout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("storage", "chunks", "blocks", "patch"),
    [
        ({}, [64, 160, 128], [16, 64, 32], [192, 192, 192]),
        ({"patch_size": "default"}, [64, 160, 128], [16, 64, 32], [192, 192, 192]),
        ({"patch_size": 32}, [48, 48, 48], [32, 32, 32], [32, 32, 32]),
        ({"patch_size": (16, 64, 64)}, [24, 96, 96], [16, 64, 32], [16, 64, 64]),
        ({"patch_size": (64, 64)}, [1, 96, 96], [1, 64, 64], [1, 64, 64]),
        (
            {"patch_size": None, "chunk_size": (1, 128, 128), "block_size": (1, 32, 32)},
            [1, 128, 128],
            [1, 32, 32],
            None,
        ),
        ({"chunk_size": 64, "block_size": 16}, [64, 64, 64], [16, 16, 16], None),
        ({"chunk_size": 999, "block_size": 16}, [64, 160, 160], [16, 16, 16], None),
    ],
)
def test_the_patch_decides_the_layout_unless_sizes_are_given(
    tmp_path: Path, storage: dict[str, object], chunks: list[int], blocks: list[int], patch: list[int] | None
) -> None:
    image = MLArray(np.zeros((64, 160, 160), np.float32), **storage)  # type: ignore[arg-type]
    image.save(tmp_path / "a.mla")
    for each in (image, MLArray(tmp_path / "a.mla")):
        assert each.meta.blosc2.chunk_size == chunks
        assert each.meta.blosc2.block_size == blocks
        assert each.meta.blosc2.patch_size == patch
        assert each.layout is not None
        assert list(each.layout.chunks or ()) == chunks
        assert each.layout.reason == image.layout.reason  # type: ignore[union-attr]


def test_blosc2_may_choose(tmp_path: Path) -> None:
    image = MLArray(np.zeros((64, 160, 160), np.float32), patch_size=None)
    assert image.meta.blosc2.patch_size is None
    assert image.layout is not None
    assert image.layout.reason.startswith("blosc2 chooses")
    assert all(b <= c <= n for b, c, n in zip(image.layout.blocks, image.layout.chunks, image.shape, strict=True))  # type: ignore[arg-type]


def test_limits_are_arguments() -> None:
    image = MLArray(np.zeros((64, 64, 64), np.float32), patch_size=64, block_limit_bytes=4096, chunk_limit_bytes=65536)
    assert np.prod(image.meta.blosc2.block_size) * 4 <= 4096
    assert np.prod(image.meta.blosc2.chunk_size) * 4 <= 65536
    wide = MLArray(np.zeros((64, 64, 64), np.float32), patch_size=16, chunk_patch_factor=4)
    assert wide.meta.blosc2.chunk_size == [64, 64, 64]


@pytest.mark.parametrize(
    "storage",
    [
        {"patch_size": 16, "chunk_size": 16, "block_size": 8},
        {"chunk_size": 16},
        {"patch_size": None, "block_size": 16},
        {"chunk_size": (1, 3, 4), "block_size": (2, 3, 4)},
        {"patch_size": (1, 2, 3, 4)},
        {"patch_size": 0},
        {"patch_size": "large"},
        {"chunk_size": (8, 8), "block_size": (8, 8)},
        {"block_limit_bytes": 0},
    ],
)
def test_sizes_that_cannot_be_stored_are_refused(storage: dict[str, object]) -> None:
    with pytest.raises(LayoutError):
        MLArray(VOXELS, **storage)  # type: ignore[arg-type]


def test_a_loaded_array_saved_again_keeps_layout_and_patch(tmp_path: Path) -> None:
    image = MLArray(np.zeros((20, 30, 40), np.float32), patch_size=(4, 8, 16), meta={"a": 1})
    image.save(tmp_path / "a.mla")
    loads = (
        MLArray(tmp_path / "a.mla"),
        MLArray.open(tmp_path / "a.mla"),
        MLArray.load(tmp_path / "a.mla", compressed=False),
    )
    for number, loaded in enumerate(loads):
        path = tmp_path / f"again{number}.mla"
        loaded.save(path)
        again = MLArray.open(path)
        assert again.meta.blosc2.patch_size == [4, 8, 16]
        assert again.meta.blosc2.chunk_size == image.meta.blosc2.chunk_size
        assert again.meta.blosc2.block_size == image.meta.blosc2.block_size
        assert again.layout == image.layout


def test_an_uncompressed_array_records_the_layout_it_is_saved_with(tmp_path: Path) -> None:
    image = MLArray(np.zeros((20, 30, 40), np.float32), compressed=False, patch_size=(4, 8, 16))
    image.save(tmp_path / "a.mla")
    recorded = MLArray.open(tmp_path / "a.mla").meta.blosc2
    assert recorded.patch_size == [4, 8, 16]
    assert (
        recorded.chunk_size == MLArray(np.zeros((20, 30, 40), np.float32), patch_size=(4, 8, 16)).meta.blosc2.chunk_size
    )
    assert recorded.cparams == {"codec": 2, "clevel": 5, "filters": [0]}


def test_compression_parameters_are_honoured_as_dictionary_and_as_object(tmp_path: Path) -> None:
    import blosc2

    for params in (
        {"codec": blosc2.Codec.ZSTD, "clevel": 3, "filters": [blosc2.Filter.BITSHUFFLE], "filters_meta": [0]},
        blosc2.CParams(codec=blosc2.Codec.ZSTD, clevel=3, filters=[blosc2.Filter.BITSHUFFLE], filters_meta=[0]),
    ):
        image = MLArray(np.arange(4096, dtype=np.float32).reshape(64, 64), cparams=params, dparams={"nthreads": 2})
        image.save(tmp_path / "a.mla")
        stored = blosc2.open(str(tmp_path / "a.mla"), mode="r").schunk.cparams
        assert (stored.codec, stored.clevel) == (blosc2.Codec.ZSTD, 3)
        assert [f for f in stored.filters if f != blosc2.Filter.NOFILTER] == [blosc2.Filter.BITSHUFFLE]
        record = MLArray(tmp_path / "a.mla").meta.blosc2
        assert record.cparams["codec"] == blosc2.Codec.ZSTD.value
        assert record.cparams["clevel"] == 3
        assert record.dparams["nthreads"] == 2
        np.testing.assert_array_equal(MLArray(tmp_path / "a.mla")[...], image[...])


def test_the_default_is_lz4hc_at_level_five(tmp_path: Path) -> None:
    import blosc2

    MLArray(np.arange(4096, dtype=np.float32).reshape(64, 64)).save(tmp_path / "a.mla")
    stored = blosc2.open(str(tmp_path / "a.mla"), mode="r").schunk.cparams
    assert (stored.codec, stored.clevel) == (blosc2.Codec.LZ4HC, 5)


@pytest.mark.parametrize("patch_size", [(16, 16), 192])
@pytest.mark.parametrize("shape", [(1, 1, 11, 9), (1, 1, 5, 5), (1, 1, 16, 5), (1,), (0, 5)])
def test_thin_and_small_arrays_are_stored_whatever_the_patch(
    tmp_path: Path, shape: tuple[int, ...], patch_size: object
) -> None:
    patch = patch_size if isinstance(patch_size, int) else patch_size[: len(shape)]  # type: ignore[index]
    voxels = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    MLArray(voxels, patch_size=patch).save(tmp_path / "a.mla")
    np.testing.assert_array_equal(MLArray(tmp_path / "a.mla")[...], voxels)


def test_numpy_integers_are_sizes_like_any_other() -> None:
    sizes = np.array([2, 3, 2])
    image = MLArray(VOXELS, chunk_size=sizes, block_size=np.int64(1), patch_size=None)  # type: ignore[arg-type]
    assert image.meta.blosc2.chunk_size == [2, 3, 2]
    assert {type(extent) for extent in image.meta.blosc2.chunk_size} == {int}


def test_unknown_geometry_is_not_a_spacing_of_one(tmp_path: Path) -> None:
    MLArray(VOXELS).save(tmp_path / "unknown.mla")
    MLArray(VOXELS, spacing=(1, 1, 1)).save(tmp_path / "one.mla")
    unknown, one = MLArray.open(tmp_path / "unknown.mla"), MLArray.open(tmp_path / "one.mla")
    assert (unknown.spacing, unknown.geometry) == (None, None)
    assert one.geometry is not None
    assert one.geometry.known == {"spacing"}
    assert unknown.affine == one.affine == np.eye(4).tolist()
