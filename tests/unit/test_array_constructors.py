"""Arrays of zeros, ranges and the like hold what numpy's hold, bit for bit."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray import Axis, Geometry, MLArray
from mlarray.errors import DTypeError, UsageError
from mlarray.layout import DEFAULT_PATCH_SIZE
from mlarray.region import Region
from mlarray.sources.base import NDArray, SourceInfo
from mlarray.sources.memory import ArraySource, GeneratedSource
from mlarray.spec import ArraySpec
from mlarray.testing.strategies import dtypes, shapes

LABELLED = ArraySpec((2, 3, 4), np.dtype(np.int16), (Axis("c"), Axis("y"), Axis("x")))


@pytest.mark.parametrize("compressed", [True, False])
def test_filled_arrays_are_those_of_numpy(compressed: bool) -> None:
    make = {
        MLArray.zeros((2, 3), np.uint8, compressed=compressed): np.zeros((2, 3), np.uint8),
        MLArray.empty((2, 3), np.int16, compressed=compressed): np.zeros((2, 3), np.int16),
        MLArray.ones((2, 3), compressed=compressed): np.ones((2, 3)),
        MLArray.ones(5, np.complex64, compressed=compressed): np.ones(5, np.complex64),
        MLArray.full((2, 3), 7, compressed=compressed): np.full((2, 3), 7),
        MLArray.full([2, 3], True, compressed=compressed): np.full((2, 3), True),
        MLArray.full(np.array([2, 3]), 2.5, np.float32, compressed=compressed): np.full((2, 3), 2.5, np.float32),
    }
    for image, expected in make.items():
        np.testing.assert_array_equal(image[...], expected, strict=True)
        assert (image.layout is not None) == compressed


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (partial(MLArray.zeros, (2, -1), np.uint8), UsageError),
        (partial(MLArray.zeros, (2.5,), np.uint8), UsageError),
        (partial(MLArray.zeros, ((1, 2),), np.uint8), UsageError),
        (partial(MLArray.zeros, 3, "O"), DTypeError),
        (partial(MLArray.zeros, 3, "S3"), DTypeError),
        (partial(MLArray.full, 3, "text"), DTypeError),
        (partial(MLArray.full, 3, 300, np.uint8), OverflowError),
        (partial(MLArray.arange, 0, 5, 0), UsageError),
        (partial(MLArray.arange, 5, shape=(2, 2)), UsageError),
        (partial(MLArray.linspace, 0, 1), UsageError),
        (partial(MLArray.linspace, 0, 1, 5, shape=(2, 2)), UsageError),
        (partial(MLArray.zeros_like, [1, 2]), DTypeError),
        (partial(MLArray.zeros_like, MLArray()), DTypeError),
        (partial(MLArray.zeros, 3, np.uint8, patch=3), TypeError),
    ],
)
def test_what_cannot_be_made_is_refused(call: partial[MLArray], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


INTEGERS = st.integers(-1000, 1000)
FLOATS = st.floats(-1000, 1000).map(lambda x: round(x, 3))


@settings(max_examples=200)
@given(
    st.tuples(INTEGERS, INTEGERS, INTEGERS.filter(bool))
    | st.tuples(FLOATS, FLOATS, FLOATS.filter(lambda x: abs(x) > 1)),
    st.none() | dtypes(kinds="iufc"),
)
def test_a_range_equals_that_of_numpy_bit_for_bit(
    arguments: tuple[float, float, float], dtype: np.dtype[np.generic] | None
) -> None:
    with np.errstate(all="ignore"):
        try:
            expected = np.arange(*arguments, dtype=dtype)
        except (OverflowError, ValueError):  # -1 as the start of unsigned integers
            return
        found = MLArray.arange(*arguments, dtype=dtype)[...]
    assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


@settings(max_examples=200)
@given(FLOATS | INTEGERS, FLOATS | INTEGERS, st.integers(0, 200), st.none() | dtypes(kinds="ifc"), st.booleans())
def test_samples_equal_those_of_numpy_bit_for_bit(
    start: float, stop: float, num: int, dtype: np.dtype[np.generic] | None, endpoint: bool
) -> None:
    with np.errstate(all="ignore"):
        expected = np.linspace(start, stop, num, endpoint=endpoint, dtype=dtype)
        found = MLArray.linspace(start, stop, num, dtype, endpoint)[...]
    assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


def test_ranges_mix_and_default_as_in_numpy() -> None:
    assert MLArray.arange(0, 5.0).dtype == np.float64
    assert MLArray.arange(5)[...].tolist() == [0, 1, 2, 3, 4]
    assert MLArray.arange(5, None, None)[...].tolist() == [0, 1, 2, 3, 4]
    assert MLArray.arange(5, 0)[...].tolist() == []
    assert MLArray.arange(0, 12, shape=(3, 4), c_order=False)[...].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert MLArray.linspace(0, 1j, 3)[...].tolist() == [0, 0.5j, 1j]
    assert MLArray.linspace(0, 1, shape=(2, 2), endpoint=False)[...].tolist() == [[0, 0.25], [0.5, 0.75]]


def test_ranges_leave_the_layout_to_blosc2_unless_told() -> None:
    assert MLArray.arange(1000).meta.blosc2.patch_size is None
    assert MLArray.arange(1000, patch_size=64).meta.blosc2.patch_size == [64]
    assert MLArray.zeros(10, np.uint8).meta.blosc2.patch_size == [DEFAULT_PATCH_SIZE]


@pytest.mark.parametrize("make", [MLArray.zeros, MLArray.empty, MLArray.ones, partial(MLArray.full, fill_value=3)])
def test_without_data_to_look_at_blosc2s_own_filter_is_used(make: partial[MLArray]) -> None:
    assert make((20, 20), dtype=np.float32).meta.blosc2.cparams["filters"] == [1]


def test_a_model_gives_shape_dtype_and_metadata() -> None:
    model = MLArray(np.ones((2, 3, 4), np.int16), spacing=(1, 2), meta={"a": 1}, axes="cyx", patch_size=8)
    image = MLArray.zeros_like(model)
    np.testing.assert_array_equal(image[...], np.zeros((2, 3, 4), np.int16), strict=True)
    assert (image.spacing, image.meta.source, image.axes) == ([1, 2], {"a": 1}, model.axes)
    image.spacing[0] = 9
    image.meta.source["a"] = 2
    assert (model.spacing, model.meta.source) == ([1, 2], {"a": 1})
    assert MLArray.ones_like(model, np.float32).dtype == np.float32
    assert MLArray.full_like(model, 5, meta={"b": 2}).meta.source == {"b": 2}
    assert MLArray.full_like(np.zeros((2, 2), np.uint8), 5)[...].tolist() == [[5, 5], [5, 5]]
    assert MLArray.empty_like(np.zeros((2, 2)), patch_size=4, compressed=True).meta.blosc2.patch_size == [4, 4]


def test_axes_and_metadata_are_arguments_of_every_constructor() -> None:
    image = MLArray.zeros((2, 3, 4), np.uint8, {"a": 1}, axes="cyx", patch_size=2)
    assert image.meta.source == {"a": 1}
    assert [axis.type for axis in image.axes or ()] == ["channel", "space", "space"]
    assert image.meta.blosc2.chunk_size == [1, 3, 3]
    assert MLArray.asarray(np.zeros((2, 3)), axes="yx").meta.spatial.axis_labels == ["spatial_y", "spatial_x"]


# --- from a source --------------------------------------------------------------------------------------------------


def source(info: SourceInfo | None = None, geometry: Geometry | None = None) -> ArraySource:
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    return ArraySource(voxels, ArraySpec(LABELLED.shape, LABELLED.dtype, LABELLED.axes, geometry), info)


@pytest.mark.parametrize("compressed", [True, False])
def test_a_source_gives_voxels_header_axes_and_geometry(compressed: bool) -> None:
    geometry = Geometry.from_parts(spacing=(2, 1), origin=(5, 6), coord_system="LPS")
    info = SourceInfo(format="nifti", header={"descrip": "x"}, is_seg=True)
    image = MLArray.from_source(source(info, geometry), compressed=compressed)
    np.testing.assert_array_equal(image[...], source().read(LABELLED.region))
    assert image.geometry == geometry
    assert image.direction is None
    assert image.axes == LABELLED.axes
    assert image.meta.source == {"descrip": "x"}
    assert image.meta.is_seg == True  # noqa: E712
    assert image.meta._image_meta_format == "nifti"


def test_metadata_given_beside_a_source_wins_and_the_rest_is_the_sources() -> None:
    geometry = Geometry.from_parts(spacing=(2, 1), origin=(5, 6))
    info = SourceInfo(header={"descrip": "x"})
    image = MLArray.from_source(source(info, geometry), {"mine": 1})
    assert image.meta.source == {"mine": 1}
    assert image.spacing == [2.0, 1.0]
    from mlarray import Meta

    image = MLArray.from_source(source(info, geometry), Meta(spatial={"affine": np.eye(3)}))
    assert image.spacing is None
    assert image.affine == np.eye(3).tolist()
    assert image.meta.source == {"descrip": "x"}


def test_an_mla_file_is_a_source_like_any_other(tmp_path: Path) -> None:
    from mlarray import open_source

    original = MLArray(np.arange(24.0).reshape(2, 3, 4), spacing=(1, 2), axes="tyx", meta={"a": 1})
    original.meta.stats = {"min": 0}
    original.save(tmp_path / "a.mla")
    with open_source(tmp_path / "a.mla") as opened:
        image = MLArray.from_source(opened, patch_size=2)
    np.testing.assert_array_equal(image[...], original[...])
    assert (image.spacing, image.axes, image.meta.source) == ([1, 2], original.axes, {"a": 1})
    assert image.meta.stats.min == 0
    assert image.meta.blosc2.patch_size == [2, 2]


@settings(max_examples=30)
@given(shapes(min_side=0, max_side=20), dtypes(), st.data())
def test_any_generated_source_is_stored_as_it_is(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], data: st.DataObject
) -> None:
    expected = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)

    def fill(region: Region, target: NDArray) -> None:
        target[...] = expected[region.slices]

    image = MLArray.from_source(GeneratedSource(ArraySpec(shape, dtype), fill), patch_size=data.draw(st.integers(1, 9)))
    with tempfile.TemporaryDirectory() as folder:
        image.save(Path(folder) / "a.mla")
        np.testing.assert_array_equal(MLArray(Path(folder) / "a.mla")[...], expected, strict=True)


@pytest.mark.slow
def test_more_than_two_gibibytes_can_be_made_and_one_chunk_of_it_cannot(tmp_path: Path) -> None:
    shape = (2200, 1024, 1024)
    image = MLArray.zeros(shape, np.uint8)
    image[2199, 1023, 1000:] = 7
    image.save(tmp_path / "big.mla")
    with MLArray.open(tmp_path / "big.mla") as again:
        assert again.shape == shape
        assert again[2199, 1023, 998:1002].tolist() == [0, 0, 7, 7]
        assert again[-1, -1].sum() == 24 * 7
    with pytest.raises(UsageError, match=r"\(2200, 1024, 1024\).*2306867200 bytes.*at most 2147483615"):
        MLArray.zeros(shape, np.uint8, chunk_size=shape, block_size=(1, 64, 64))


def test_the_layout_for_a_patch_can_be_asked_for() -> None:
    assert MLArray.comp_blosc2_params((128, 256, 256), (192, 192, 192)) == ([64, 192, 128], [32, 32, 32])
    chunks, blocks = MLArray.comp_blosc2_params((4, 64, 64), (64, 64), [False, True, True], bytes_per_pixel=2)
    assert (chunks, blocks) == ([1, 64, 64], [1, 64, 64])
    chunks, blocks = MLArray.comp_blosc2_params(
        (64, 64, 64), (64, 64, 64), l1_cache_size_per_core_in_bytes=32768, l3_cache_size_per_core_in_bytes=1441792
    )
    assert np.prod(blocks) * 4 <= 32768 * 0.8
    assert np.prod(chunks) * 4 <= 1441792 * 0.8


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (partial(MLArray, np.zeros(3), spaceing=(1,)), "spacing"),
        (partial(MLArray, np.zeros(3), patchsize=3), "patch_size"),
        (partial(MLArray.zeros, 3, "u1", chunksize=3), "chunk_size"),
        (partial(MLArray.create, "never.mla", 3, "u1", block_sizes=3), "block_size"),
    ],
)
def test_a_mistyped_keyword_is_named_with_the_one_that_may_be_meant(call: partial, meant: str) -> None:
    (wrong,) = set(call.keywords)
    with pytest.raises(
        TypeError, match=f"^MLArray got an unexpected keyword argument '{wrong}'. Did you mean '{meant}'"
    ):
        call()
