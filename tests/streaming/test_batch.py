"""A batch is one block of memory per group, and its samples say where they were cut."""

import pickle

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.streaming.batch import Batch, Sample

GEOMETRY = Geometry.from_parts(spacing=(3.0, 0.5, 0.25), origin=(10.0, 20.0, 30.0), coord_system="LPS")


def sample(value: float = 1.0, start: tuple[int, ...] = (2, 4, 8), **more: object) -> Sample:
    region = Region.at(start, (2, 3, 4))
    arrays = {"CT": np.full((1, 2, 3, 4), value, np.float32), "SEG": np.full((1, 2, 3, 4), value, np.uint8)}
    return Sample(arrays, "case_1", 0, region, {"CT": GEOMETRY.cropped(region), "SEG": None}, **more)  # type: ignore[arg-type]


def test_a_batch_of_samples_has_an_array_per_group_and_its_samples_are_views_of_them() -> None:
    batch = Batch.of([sample(1), sample(2, repeated=True)])
    assert {group: (array.shape, array.dtype.name) for group, array in batch.arrays.items()} == {
        "CT": ((2, 1, 2, 3, 4), "float32"),
        "SEG": ((2, 1, 2, 3, 4), "uint8"),
    }
    batch.arrays["CT"][1] = 7
    assert batch.samples[1].arrays["CT"].tolist() == np.full((1, 2, 3, 4), 7.0).tolist()
    assert [one.repeated for one in batch.samples] == [False, True]


def test_a_pickled_batch_holds_its_voxels_once_and_comes_back_with_views() -> None:
    batch = Batch.of(
        [Sample({"CT": np.arange(64**3, dtype=np.float32).reshape(1, 64, 64, 64)}, "a", 3, Region((), ()))]
    )
    text = pickle.dumps(batch, protocol=5)
    assert len(text) < 64**3 * 4 + 2000
    back = pickle.loads(text)
    assert back.samples[0].copy == 3
    assert np.shares_memory(back.samples[0].arrays["CT"], back.arrays["CT"])
    assert np.array_equal(back.arrays["CT"], batch.arrays["CT"])


def test_the_affine_maps_an_index_of_the_patch_to_the_world() -> None:
    affine = sample().affine("CT")
    assert affine.dtype == np.float64
    assert (affine @ (0, 0, 0, 1)).tolist() == [*GEOMETRY.world((2, 4, 8)), 1.0]
    assert (affine @ (1, 2, 3, 1)).tolist() == [*GEOMETRY.world((3, 6, 11)), 1.0]


def test_a_two_dimensional_patch_is_one_slice_of_a_volume() -> None:
    flat = Geometry.from_parts(spacing=(2.0, 0.5), origin=(7.0, 9.0))
    affine = Sample({"XR": np.ones((1, 3, 4))}, "a", 0, Region((0, 0), (3, 4)), {"XR": flat}).affine("XR")
    assert affine.tolist() == [[0, 2, 0, 7], [0, 0, 0.5, 9], [1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("group", "message"),
    [("PET", "has no group 'PET'; it has 'CT', 'SEG'"), ("SEG", "does not say where the voxels of 'SEG' lie")],
)
def test_an_affine_that_is_not_known_is_not_made_up(group: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sample().affine(group)


def test_patches_that_differ_in_shape_are_no_batch() -> None:
    other = Sample(
        {"CT": np.ones((1, 2, 3, 5), np.float32), "SEG": np.ones((1, 2, 3, 4), np.uint8)}, "b", 0, Region((), ())
    )
    with pytest.raises(
        UsageError, match=r"those of 'CT' have \(1, 2, 3, 4\) float32, \(1, 2, 3, 5\) float32.*batch_size=1"
    ):
        Batch.of([sample(), other])


def test_a_batch_without_samples_and_one_with_too_few_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one sample"):
        Batch.of([])
    with pytest.raises(UsageError, match="2 samples need arrays as long, 'CT' has 3 entries"):
        Batch({"CT": np.ones((3, 1, 2, 3, 4))}, (sample(), sample()))
