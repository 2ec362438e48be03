"""Transforms that change how many axes there are."""

import numpy as np
import pytest

from mlarray.errors import TransformError
from mlarray.testing.transforms import TransformConformance
from mlarray.transforms import Flatten, Norm, Squeeze, Transform

from .references import grid, whole


def test_squeeze_drops_a_spatial_axis_of_extent_1_and_nothing_else() -> None:
    array = np.arange(24, dtype="f4").reshape(1, 1, 4, 6)
    for dim in (1, -3):
        result, after = whole(array, [Squeeze(dim)], grid())
        np.testing.assert_array_equal(result, array[:, 0])
        assert after.geometry is None
    for dim in (0, 2, -1, -4):
        assert whole(array, [Squeeze(dim)])[0].shape == array.shape
    with pytest.raises(TransformError, match="no axis 4"):
        whole(array, [Squeeze(4)])


def test_flatten_and_norm() -> None:
    array = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("f4")
    np.testing.assert_array_equal(whole(array, [Flatten()])[0], array.reshape(1, -1))
    np.testing.assert_allclose(whole(array, [Norm()])[0], np.linalg.norm(array, axis=-1), rtol=1e-6)
    assert whole(array.astype("u1"), [Norm()])[0].dtype == np.float32
    with pytest.raises(TransformError, match="two spatial axes"):
        whole(np.ones((1, 5)), [Norm()])


class TestSqueeze(TransformConformance):
    def transform(self) -> Transform:
        return Squeeze(1)

    def patch_sizes(self, ndim: int) -> list[int]:  # type: ignore[override]
        return [4, 64]


class TestNorm(TestSqueeze):
    def transform(self) -> Transform:
        return Norm()


class TestFlatten(TestSqueeze):
    def transform(self) -> Transform:
        return Flatten()
