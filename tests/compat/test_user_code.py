"""Code written for mlarray 0.0.x runs unchanged: the patterns of its documentation, and each documented constructor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlarray
from mlarray import MLARRAY_DEFAULT_PATCH_SIZE, Meta, MLArray

ARRAY = np.random.default_rng(0).random((32, 64, 64))


@pytest.fixture(autouse=True)
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder that holds ``sample.mla``."""
    monkeypatch.chdir(tmp_path)
    MLArray(ARRAY).save("sample.mla")


def test_names_of_the_package_are_there() -> None:
    for name in (
        "AxisLabel", "CoordSystem", "MLArray", "Meta", "MetaBbox", "MetaBlosc2", "MetaExtra", "MetaHasArray",
        "MetaImageFormat", "MetaIsSeg", "MetaSource", "MetaSpatial", "MetaStatistics", "MetaVersion", "is_serializable",
    ):  # fmt: skip
        assert hasattr(mlarray, name)
    assert MLARRAY_DEFAULT_PATCH_SIZE == 192


def test_saving_and_loading() -> None:
    image = MLArray(ARRAY)
    image.save("out.mla")
    image = MLArray("out.mla")
    assert np.array_equal(image.to_numpy(), ARRAY)
    assert image.filepath == "out.mla"


def test_reading_a_crop_of_a_mapped_file() -> None:
    image = MLArray.open("sample.mla", mmap_mode="r")
    assert np.array_equal(image[10:20, 50:60], ARRAY[10:20, 50:60])


def test_changing_a_crop_in_memory_and_on_disk() -> None:
    image = MLArray.open("sample.mla", mmap_mode="r+")
    image[10:20, 50:60] *= 5
    del image
    expected = ARRAY.copy()
    expected[10:20, 50:60] *= 5
    assert np.array_equal(MLArray.open("sample.mla")[...], expected)


def test_creating_over_an_existing_file() -> None:
    image = MLArray.create("sample.mla", shape=ARRAY.shape, dtype=ARRAY.dtype, mmap_mode="w+")
    image[...] = ARRAY * 2
    assert np.array_equal(image[...], ARRAY * 2)
    image.close()
    assert np.array_equal(MLArray.open("sample.mla")[...], ARRAY * 2)


def test_looking_at_and_changing_metadata() -> None:
    image = MLArray(
        ARRAY,
        spacing=(1.0, 1.0, 1.5),
        origin=(10.0, 10.0, 30.0),
        direction=[[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        meta={"patient_id": "123", "modality": "CT"},
    )
    assert image.spacing == [1.0, 1.0, 1.5]
    assert image.origin == [10.0, 10.0, 30.0]
    assert image.meta.source == {"patient_id": "123", "modality": "CT"}
    image.spacing[1] = 5.3
    image.meta.source["study_id"] = "study-001"
    image.save("with-metadata.mla")

    image = MLArray.open("with-metadata.mla", mmap_mode="r+")
    image.meta.source["study_id"] = "new-study"
    image.close()
    assert MLArray("with-metadata.mla").meta.source["study_id"] == "new-study"
    assert MLArray("with-metadata.mla").spacing == [1.0, 5.3, 1.5]


def test_copying_metadata_with_overrides() -> None:
    base = MLArray("sample.mla")
    base.origin = (1, 2, 3)
    image = MLArray(np.zeros(base.shape), spacing=(0.8, 0.8, 1.0), copy=base)
    image.save("copied-metadata.mla")
    again = MLArray("copied-metadata.mla")
    assert (again.spacing, again.origin) == ([0.8, 0.8, 1.0], [1, 2, 3])


def test_metadata_in_the_given_form() -> None:
    image = MLArray(ARRAY, meta=Meta(source={"patient_id": "123"}, is_seg=True))
    assert image.meta.is_seg == True  # noqa: E712
    image.meta.source["study_id"] = "study-001"
    image.meta.is_seg = False
    image.save("with-metadata.mla")
    assert MLArray("with-metadata.mla").meta.is_seg == False  # noqa: E712


def test_an_existing_layout_is_kept_and_a_new_one_is_made_from_voxels() -> None:
    MLArray(ARRAY, patch_size=16).save("small.mla")
    loaded = MLArray("small.mla")
    loaded.save("kept.mla")
    assert MLArray("kept.mla").meta.blosc2.patch_size == [16, 16, 16]
    image = MLArray(loaded.to_numpy(), patch_size="default")
    image.save("default.mla")
    assert MLArray("default.mla").meta.blosc2.patch_size == [192, 192, 192]


@pytest.mark.parametrize(
    ("arguments", "patch", "chunk"),
    [
        ({"patch_size": 512}, [512] * 3, None),
        ({"patch_size": (128, 192, 256)}, [128, 192, 256], None),
        ({"patch_size": None, "chunk_size": (1, 32, 32), "block_size": (1, 8, 8)}, None, [1, 32, 32]),
        ({"patch_size": None}, None, None),
    ],
)
def test_every_way_to_choose_a_layout(
    arguments: dict[str, object], patch: list[int] | None, chunk: list[int] | None
) -> None:
    loaded = MLArray("sample.mla")
    image = MLArray(loaded.to_numpy(), **arguments)
    image.save("laid-out.mla")
    again = MLArray("laid-out.mla")
    assert again.meta.blosc2.patch_size == patch
    assert chunk is None or again.meta.blosc2.chunk_size == chunk
    assert np.array_equal(again[...], ARRAY)


def test_each_constructor_as_documented() -> None:
    assert MLArray.empty((4, 5), np.float32, meta={"a": 1}, patch_size=2, compressed=True).shape == (4, 5)
    assert not MLArray.zeros((4, 5), dtype=np.float32, chunk_size=(2, 5), block_size=(1, 5), patch_size=None)[...].any()
    assert MLArray.ones((4, 5), cparams={"clevel": 1}, dparams={"nthreads": 1})[...].all()
    assert (MLArray.full((4, 5), 3.5, compressed=False)[...] == 3.5).all()
    assert MLArray.arange(0, 20, 2, dtype=np.int16, shape=(2, 5), c_order=True)[1, 0] == 10
    assert MLArray.linspace(0, 1, num=5, endpoint=True)[-1] == 1
    assert np.array_equal(MLArray.asarray(ARRAY, meta={"a": 1}, patch_size=16)[...], ARRAY)
    model = MLArray(ARRAY, spacing=(1, 2, 3))
    assert MLArray.zeros_like(model).spacing == [1, 2, 3]
    assert MLArray.empty_like(ARRAY, dtype=np.uint8).dtype == np.uint8
    assert (MLArray.ones_like(model, dtype=np.int8)[...] == 1).all()
    assert (MLArray.full_like(ARRAY, 2, patch_size=16)[...] == 2).all()


def test_each_way_to_get_at_a_file_as_documented() -> None:
    assert np.array_equal(MLArray.load("sample.mla", dparams={"nthreads": 2})[...], ARRAY)
    assert isinstance(MLArray.load(Path("sample.mla"), compressed=False).to_numpy(), np.ndarray)
    with MLArray.open("sample.mla", mode="a", mmap_mode=None) as image:
        image[0] = 0
    assert not MLArray.open(Path("sample.mla"), mode="r", mmap_mode=None)[0].any()
    image = MLArray.open("sample.mla", mmap_mode="c")
    image[0] = 1
    image.close()
    assert not MLArray("sample.mla")[0].any()


def test_an_array_changes_between_compressed_and_not() -> None:
    image = MLArray(ARRAY, patch_size=16)
    image.decompress()
    assert image.meta.blosc2.chunk_size is None
    image.compress(patch_size=32, cparams={"clevel": 3})
    assert image.meta.blosc2.patch_size == [32, 32, 32]
    assert np.array_equal(np.asarray(image), ARRAY)


def test_geometry_that_is_derived() -> None:
    image = MLArray(ARRAY, spacing=(2, 3, 4), origin=(1, 2, 3), direction=[[0, 1, 0], [1, 0, 0], [0, 0, -1]])
    assert image.scale == [2.0, 3.0, 4.0]
    assert image.translation == [1.0, 2.0, 3.0]
    assert image.rotation == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]]
    assert image.affine == [[0.0, 3.0, 0.0, 1.0], [2.0, 0.0, 0.0, 2.0], [0.0, 0.0, -4.0, 3.0], [0.0, 0.0, 0.0, 1.0]]
    assert image.shear == np.eye(3).tolist()
    assert (image.ndim, image.spatial_ndim, len(image)) == (3, 3, 32)


def test_errors_are_caught_as_before() -> None:
    for wrong in (
        lambda: MLArray("sample.nii"),
        lambda: MLArray.open("missing.mla"),
        lambda: MLArray(ARRAY, patch_size=16, chunk_size=8, block_size=8),
        lambda: MLArray.open("sample.mla", mmap_mode="w+"),
        lambda: MLArray("sample.mla", spacing=(1, 1, 1)),
        lambda: MLArray(ARRAY).save("sample.nii"),
    ):
        with pytest.raises(RuntimeError):
            wrong()
    with pytest.raises(TypeError):
        MLArray()[0]
    with pytest.raises(ValueError, match="affine"):
        MLArray(ARRAY, spacing=(1, 1, 1), affine=np.eye(4))
    with pytest.raises(KeyError):
        Meta.from_mapping({"unknown": 1})
    with pytest.raises(AttributeError, match="read-only"):
        MLArray(ARRAY).meta.blosc2.chunk_size = [1]
