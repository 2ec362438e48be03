"""Resampling: extents, places, values, and back."""

import numpy as np
import pytest

from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.streaming import plan
from mlarray.testing.transforms import Sample, TransformConformance, source_of
from mlarray.transforms import ResampleToResolution, ResampleToShape, Transform, Volume
from mlarray.transforms.locality import Rescale, linear_coordinate
from mlarray.transforms.sampling import rescaled_coordinates

from .references import OBLIQUE, grid, places_of, resampled_by_itk, whole

CT = (np.random.default_rng(3).normal(size=(1, 9, 10, 11)) * 450).astype("f4")
BLENDING = 4 * float(np.finfo("f4").eps) * float(np.abs(CT).max())
"""Three blends of one rounding each in float32, of values up to the peak; ITK blends in float64."""


@pytest.mark.parametrize(
    ("n", "spacing", "target", "extent"),
    [(512, 0.48828125, 0.5, 500), (512, 0.9765625, 1.0, 500), (100, 1.0, 0.7, 142), (10, 0.1, 0.3, 3), (300, 1.5, 1, 450),
     (5, 1.0, 100.0, 1), (3, 0.7, 0.7, 3), (7, 2.0, 0.0, 7), (7, 2.0, -1.0, 7)],
)  # fmt: skip
def test_extents_fill_the_same_box(n: int, spacing: float, target: float, extent: int) -> None:
    volume = Volume(1, (n,), np.dtype("f4"), Geometry.from_parts(spacing=[spacing], origin=[3.0]))
    after = ResampleToResolution([target]).outcome(volume)
    assert after.shape == (extent,)
    assert after.geometry is not None
    assert after.geometry.spacing[0] == pytest.approx(n * spacing / extent, rel=1e-15)
    assert after.geometry.origin[0] == pytest.approx(3 + (after.geometry.spacing[0] - spacing) / 2, rel=1e-14)


def test_spacings_are_given_x_first_and_shapes_in_array_order() -> None:
    volume = Volume(1, (10, 20, 30), np.dtype("f4"), grid((4.0, 2.0, 1.0)))
    assert ResampleToResolution([2, 1, 8]).outcome(volume).shape == (5, 40, 15)
    assert ResampleToShape([5, 0, -1]).outcome(volume).shape == (5, 20, 30)


def test_half_as_many_voxels_have_twice_the_spacing_and_come_back() -> None:
    array = np.random.default_rng(0).normal(size=(1, 8, 8, 8)).astype("f4")
    forward = plan(source_of(array, grid((1.0, 1.0, 1.0))), [ResampleToShape([4, 4, 4])])
    assert forward.result.geometry is not None
    assert forward.result.geometry.spacing == (2.0, 2.0, 2.0)
    assert forward.result.attributes.stacks["Size"] == ((8, 8, 8), (4, 4, 4))
    back = forward.inverse(source_of(forward.read_whole()))
    assert back.result.shape == (8, 8, 8)
    assert back.result.geometry == grid((1.0, 1.0, 1.0))
    assert "Size" not in back.result.attributes


@pytest.mark.parametrize("shape", [(5, 20, 11), (3, 3, 3), (1, 1, 1), (17, 7, 40), (9, 10, 11), (18, 20, 22)])
@pytest.mark.parametrize("direction", [np.eye(3), OBLIQUE])
def test_linear_values_are_those_of_itk(shape: tuple[int, ...], direction: np.ndarray) -> None:
    geometry = grid(direction_xyz=direction)
    result, after = whole(CT, [ResampleToShape(shape)], geometry)
    found, inside = resampled_by_itk(CT[0], geometry, after)
    if min(shape) > 1 and all(m <= n for m, n in zip(shape, CT.shape[1:], strict=True)):
        assert inside.all()
    np.testing.assert_allclose(result[0][inside], found[inside], atol=BLENDING)


def test_places_beyond_the_first_and_last_centres_take_the_border_voxels() -> None:
    line = np.array([[3.0, 5.0, 11.0]], "f8")
    result, _ = whole(line, [ResampleToShape([6])])
    np.testing.assert_array_equal(result, [[3.0, 3.5, 4.5, 6.5, 9.5, 11.0]])


@pytest.mark.parametrize(
    ("n", "m"), [(5, 3), (7, 3), (10, 7), (3, 7), (4, 6), (8, 8), (40, 6), (20, 30), (1, 5), (5, 1)]
)
def test_the_nearest_voxel_is_the_one_whose_cell_holds_the_centre(n: int, m: int) -> None:
    line = np.arange(n, dtype="u1")[np.newaxis]
    result, _ = whole(line, [ResampleToShape([m])])
    np.testing.assert_array_equal(result[0], [((2 * o + 1) * n) // (2 * m) for o in range(m)])
    centres = (np.arange(m) + 0.5) * n / m
    assert (np.abs(centres - (result[0] + 0.5)) <= 0.5 + 1e-12).all()


def test_nearest_values_are_those_of_itk() -> None:
    labels = np.random.default_rng(5).integers(0, 4, (1, 9, 10, 11)).astype("u1") * 60
    for shape in ((5, 20, 7), (17, 7, 41)):
        result, after = whole(labels, [ResampleToShape(shape)], grid())
        found, _ = resampled_by_itk(labels[0], grid(), after, linear=False)
        untied = (np.abs(places_of(after, grid()) % 1 - 0.5) > 1e-9).all(axis=0)
        np.testing.assert_array_equal(result[0][untied], found[untied])


def test_the_dtype_decides_unless_interpolation_is_said() -> None:
    values = np.array([[0, 100]])
    for dtype, is_label, expected in (
        ("u1", False, 0),
        ("i2", False, 25),
        ("i2", True, 0),
        ("f2", False, 25),
        ("i8", False, 25),
    ):
        assert whole(values.astype(dtype), [ResampleToShape([4])], is_label=is_label)[0][0, 1] == expected
    assert whole(values.astype("u1"), [ResampleToShape([4], interpolation="linear")])[0][0, 1] == 25
    assert whole(values.astype("f4"), [ResampleToShape([4], interpolation="nearest")])[0][0, 1] == 0
    assert whole(np.array([[False, True]]), [ResampleToShape([4], interpolation="linear")])[0].tolist() == [
        [0, 0, 1, 1]
    ]
    with pytest.raises(UsageError, match="interpolation"):
        ResampleToShape([4], interpolation="cubic")


def test_integers_are_rounded_half_to_even_and_stay_within_their_neighbours() -> None:
    values = np.array([[0, 2, 6, 10, -7]], "i2")
    result, _ = whole(values, [ResampleToShape([10])])
    np.testing.assert_array_equal(result[0], [0, 0, 2, 3, 5, 7, 9, 6, -3, -7])
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        limits = np.iinfo(dtype)
        ends = np.array([[limits.min, limits.max, limits.min, limits.max]], dtype)
        result, _ = whole(ends, [ResampleToShape([11], interpolation="linear")])
        assert result.dtype == dtype
        assert result[0, 0] == limits.min
        assert result[0, -1] == limits.max


def test_a_constant_stays_one_and_a_voxel_that_is_hit_is_copied_beside_infinities() -> None:
    array = np.full((1, 7, 9), 0.1, "f4")
    assert np.unique(whole(array, [ResampleToShape([13, 5])])[0]).tolist() == [np.float32(0.1)]
    line = np.array([[1.0, np.inf, -0.0]], "f4")
    result, _ = whole(line, [ResampleToShape([9])])
    assert result[0, 1] == 1.0
    assert result[0, 4] == np.inf
    assert np.signbit(result[0, 7])


@pytest.mark.parametrize(("n", "m"), [(11, 4), (11, 40), (300, 7), (7, 300), (9, 9), (1, 6), (6, 1), (100, 50)])
def test_only_planes_with_a_weight_are_read(n: int, m: int) -> None:
    rescale = Rescale((m,), linear=True)
    places = rescaled_coordinates(0, m, n, m)
    places = np.arange(m, dtype=float) if places is None else places
    for a in range(m):
        for b in (a + 1, min(a + 5, m)):
            weighed = {*np.floor(places[a:b]).astype(int), *np.ceil(places[a:b]).astype(int)}
            assert rescale.pull(Region((a,), (b,)), (n,)) == Region((min(weighed),), (max(weighed) + 1,))
        assert linear_coordinate(a, n, m) == places[a]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TransformError, match=r"Stage 1 .*spacing of the input is not known"):
        plan(source_of(CT), [ResampleToResolution([1, 1, 1])])
    with pytest.raises(TransformError, match="2 spacings"):
        plan(source_of(CT, grid()), [ResampleToResolution([1, 1])])
    with pytest.raises(TransformError, match="2 spatial axes"):
        plan(source_of(CT[:, 0]), [ResampleToShape()])
    for broken in ([1, np.nan, 1], "111", [1.5, 1, 1]):
        with pytest.raises(UsageError, match="shape"):
            ResampleToShape(broken)  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", [np.eye(3), OBLIQUE])
def test_a_smooth_field_comes_back_where_it_was(direction: np.ndarray) -> None:
    smooth = np.indices((20, 22, 24)).sum(axis=0)[np.newaxis].astype("f8")
    forward = plan(source_of(smooth, grid(direction_xyz=direction)), [ResampleToResolution([1, 1, 1])])
    back = forward.inverse(source_of(forward.read_whole()), patch_size=8)
    middle = (slice(None), *(slice(2, n - 2) for n in (20, 22, 24)))
    np.testing.assert_allclose(back.read_whole()[middle], smooth[middle], atol=0.3)
    for patch in back.grid:
        np.testing.assert_array_equal(back.read(patch), back.read_whole()[(slice(None), *patch.slices)])


class TestResolution(TransformConformance):
    def transform(self) -> Transform:
        return ResampleToResolution([0.9, 1.3, 2.1])


class TestShape(TransformConformance):
    def transform(self) -> Transform:
        return ResampleToShape([13, 4, 0])


class TestPlane(TransformConformance):
    def transform(self) -> Transform:
        return ResampleToShape([7, 30])


class TestLabels(TransformConformance):
    def transform(self) -> Transform:
        return ResampleToShape([13, 4, 7])

    def samples(self) -> list[Sample]:
        labels = np.random.default_rng(5).integers(0, 4, (1, 9, 10, 11))
        return [Sample(labels.astype("u1")), Sample(labels.astype("i8"), is_label=True), Sample(labels > 1)]
