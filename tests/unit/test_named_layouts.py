"""A name stands for the limits of the layout rule, wherever an array is made."""

import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray, Region
from mlarray.errors import LayoutError, UsageError
from mlarray.formats import mla
from mlarray.layout import DEFAULT_LAYOUT, NAMED_LAYOUTS, LayoutName, layout_for_patch, resolve_layout
from mlarray.sources.base import SinkOptions, SourceInfo
from mlarray.sources.memory import ArraySource
from mlarray.spec import ArraySpec
from mlarray.storage.options import StorageOptions

SHAPE = (64, 96, 96)
VOXELS = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
LIMITS = {"block_limit_bytes": 16 * 1024, "chunk_limit_bytes": 3 * 512 * 1024}
SMALL = layout_for_patch(SHAPE, 4, patch_size=64, long_rows=True, **LIMITS)


def test_the_default_name_is_the_rule_without_arguments() -> None:
    for shape, itemsize, patch in (
        ((128, 256, 256), 4, "default"),
        ((3, 40, 512, 512), 2, 64),
        ((512, 512), 1, (9, 9)),
    ):
        expected = layout_for_patch(shape, itemsize, patch_size=patch)  # type: ignore[arg-type]
        assert resolve_layout(shape, itemsize, patch_size=patch) == expected  # type: ignore[arg-type]
        assert resolve_layout(shape, itemsize, patch_size=patch, layout="nnunet") == expected  # type: ignore[arg-type]


def test_small_blocks_are_the_same_rule_with_16_kib_and_1_5_mib() -> None:
    made = resolve_layout(SHAPE, 4, patch_size=64, layout="small-blocks")
    assert (made.chunks, made.blocks, made.patch_size) == (SMALL.chunks, SMALL.blocks, (64, 64, 64))
    assert np.prod(made.blocks) * 4 == 16 * 1024  # type: ignore[arg-type]
    assert made.reason == f"Layout small-blocks, m{SMALL.reason[1:]}"


def test_small_blocks_keep_long_rows_where_several_axes_could_be_halved() -> None:
    assert resolve_layout((512,) * 3, 2, patch_size=128, layout="small-blocks").blocks == (16, 16, 32)
    assert layout_for_patch((512,) * 3, 2, patch_size=128, block_limit_bytes=16384).blocks == (32, 16, 16)
    assert resolve_layout((512,) * 3, 1, patch_size=128, layout="small-blocks").blocks == (16, 32, 32)


def test_explicit_limits_win_over_those_of_the_name() -> None:
    made = resolve_layout(SHAPE, 4, patch_size=64, layout="small-blocks", block_limit_bytes=32 * 1024)
    expected = layout_for_patch(
        SHAPE, 4, patch_size=64, block_limit_bytes=32768, chunk_limit_bytes=1572864, long_rows=True
    )
    assert (made.chunks, made.blocks) == (expected.chunks, expected.blocks)
    assert "limit 32 KiB" in made.reason
    large = resolve_layout(SHAPE, 4, patch_size=64, layout="small-blocks", chunk_limit_bytes=6 * 2**20)
    assert large.chunks == layout_for_patch(SHAPE, 4, patch_size=64, block_limit_bytes=16384, long_rows=True).chunks
    wide = resolve_layout((64,) * 3, 1, patch_size=16, layout="small-blocks", chunk_patch_factor=4)
    assert wide.chunks == (64, 64, 64)


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ({"chunk_size": 32, "block_size": 16}, "chunk_size=32 and block_size=16"),
        ({"chunk_size": 32, "block_size": 16, "patch_size": None}, "chunk_size=32 and block_size=16"),
        ({"chunk_size": 32}, "chunk_size=32"),
        ({"patch_size": None}, "patch_size=None"),
    ],
)
def test_a_name_excludes_what_leaves_nothing_to_limit(storage: dict[str, object], told: str) -> None:
    with pytest.raises(LayoutError, match=f"layout='small-blocks' .* {told} excludes") as caught:
        MLArray(VOXELS, layout="small-blocks", **storage)  # type: ignore[arg-type]
    assert caught.value.hint == "Give a patch size, or leave the layout out."


def test_the_default_name_excludes_nothing() -> None:
    sizes = MLArray(VOXELS, layout="nnunet", chunk_size=32, block_size=16)
    assert sizes.meta.blosc2.block_size == [16, 16, 16]
    free = MLArray(VOXELS, layout="nnunet", patch_size=None)
    assert free.layout is not None
    assert free.layout.reason.startswith("blosc2 chooses")


@pytest.mark.parametrize("name", ["", "small", "Small-Blocks", None, 3, ["nnunet"]])
def test_another_name_is_refused_with_those_there_are(name: object) -> None:
    with pytest.raises(LayoutError, match="layout takes 'nnunet' or 'small-blocks'; got"):
        MLArray(VOXELS, layout=name)  # type: ignore[arg-type]


def test_an_array_without_spatial_axes_leaves_it_to_blosc2_under_any_name() -> None:
    assert resolve_layout((4, 5), 4, spatial=(False, False), layout="small-blocks").reason.startswith("blosc2 chooses")


def test_the_name_works_wherever_an_array_is_made(tmp_path: Path) -> None:
    name: LayoutName = "small-blocks"
    compressed = MLArray(VOXELS, patch_size=64)
    compressed.compress(64, layout=name)
    made = {
        "compress": compressed,
        "MLArray": MLArray(VOXELS, patch_size=64, layout=name),
        "asarray": MLArray.asarray(VOXELS, patch_size=64, layout=name),
        "from_source": MLArray.from_source(
            ArraySource(VOXELS, ArraySpec(SHAPE, VOXELS.dtype)), patch_size=64, layout=name
        ),
        "full_like": MLArray.full_like(VOXELS, 3, patch_size=64, layout=name),
        "zeros": MLArray.zeros(SHAPE, np.float32, patch_size=64, layout=name),
        "arange": MLArray.arange(VOXELS.size, dtype=np.float32, shape=SHAPE, patch_size=64, layout=name),
        "create": MLArray.create(tmp_path / "a.mla", SHAPE, np.float32, patch_size=64, layout=name),
    }
    for how, image in made.items():
        assert image.layout is not None, how
        assert (image.layout.chunks, image.layout.blocks) == (SMALL.chunks, SMALL.blocks), how
        assert image.layout.reason.startswith("Layout small-blocks, made for the patch 64 x 64 x 64"), how
    made["create"].close()
    uncompressed = MLArray(VOXELS, patch_size=64, layout=name, compressed=False)
    again: MLArray = pickle.loads(pickle.dumps(uncompressed))
    again.save(tmp_path / "b.mla")
    assert MLArray.open(tmp_path / "b.mla").meta.blosc2.block_size == list(SMALL.blocks or ())


def test_a_range_with_a_named_layout_and_no_patch_is_made_for_the_default_patch() -> None:
    image = MLArray.arange(0, 100_000, dtype=np.float32, layout="small-blocks")
    assert image.meta.blosc2.patch_size == [192]
    assert MLArray.arange(0, 100_000, dtype=np.float32).meta.blosc2.patch_size is None


def test_sinks_take_the_name_among_the_storage_arguments(tmp_path: Path) -> None:
    options = SinkOptions(record={}, hold_bytes=1 << 22, storage={"patch_size": 64, "layout": "small-blocks"})
    sink = mla.open_sink(tmp_path / "a.mla", ArraySpec(SHAPE, VOXELS.dtype), SourceInfo("array"), options)
    sink.write(Region.full(SHAPE), VOXELS)
    sink.publish()
    with MLArray.open(tmp_path / "a.mla") as image:
        assert image.meta.blosc2.block_size == list(SMALL.blocks or ())
        np.testing.assert_array_equal(image[...], VOXELS)


def test_a_file_brings_its_own_layout(tmp_path: Path) -> None:
    MLArray(VOXELS, patch_size=64, layout="small-blocks").save(tmp_path / "a.mla")
    loaded = MLArray(tmp_path / "a.mla")
    loaded.save(tmp_path / "b.mla")
    assert MLArray.open(tmp_path / "b.mla").layout == loaded.layout
    assert loaded.layout is not None
    assert loaded.layout.reason.startswith("Layout small-blocks")
    with pytest.raises(UsageError, match="brings its own"):
        MLArray(tmp_path / "a.mla", layout="small-blocks")


def test_names_cannot_be_added_and_all_say_why() -> None:
    assert DEFAULT_LAYOUT in NAMED_LAYOUTS
    assert all(limits.reason for limits in NAMED_LAYOUTS.values())
    with pytest.raises(TypeError):
        NAMED_LAYOUTS["mine"] = NAMED_LAYOUTS["nnunet"]  # type: ignore[index]


def test_positions_of_arguments_stay_those_of_the_released_package() -> None:
    kinds = {name: parameter.kind for name, parameter in inspect.signature(MLArray).parameters.items()}
    positional = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional[-2:] == ["dparams", "compressed"]
    assert len(positional) == 14
    assert kinds["layout"] is inspect.Parameter.KEYWORD_ONLY
    assert StorageOptions().layout == "nnunet"
