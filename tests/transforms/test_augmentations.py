"""What random copies look like: against SimpleITK, SciPy, hand-computed vectors, and against themselves."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
import SimpleITK as sitk
from scipy.ndimage import map_coordinates

from mlarray.errors import TransformError, UsageError
from mlarray.region import Region
from mlarray.sources.base import Source
from mlarray.streaming import plan
from mlarray.testing.transforms import source_of
from mlarray.transforms import augmentations as A
from mlarray.transforms.augmentations.color import ColorTransform
from mlarray.transforms.augmentations.orientation import rotation_xyz
from mlarray.transforms.augmentations.places import NoiseField, noise_schedule
from mlarray.transforms.augmentations.spatial import Warp

from .references import OBLIQUE, drawn, grid, places_of, resampled_by_itk, whole

CT = (np.random.default_rng(3).normal(size=(1, 9, 10, 11)) * 450).astype("f4")
WIDE = CT.astype("f8")
GEOMETRY = grid(direction_xyz=OBLIQUE)
BLENDING = 6 * float(np.finfo("f4").eps) * float(np.abs(CT).max())
"""Three blends of up to two roundings each in float32; the references blend in float64."""


# --- geometry --------------------------------------------------------------------------------------------------------------

SAMPLERS = [A.Rotate(), A.Rotate(-10, 10), A.Scale(), A.Scale(1.0), A.Translate(), A.Translate(-30, 30)]


@pytest.mark.parametrize("augmentation", SAMPLERS, ids=repr)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_samplers_find_what_lies_where_their_geometry_says(augmentation: A.Augmentation, seed: int) -> None:
    chain = drawn(augmentation, CT, GEOMETRY, seed=seed)
    result, after = whole(CT, chain, GEOMETRY)
    assert after.shape == (9, 10, 11)
    found, inside = resampled_by_itk(CT[0], GEOMETRY, after)
    np.testing.assert_allclose(result[0][inside], found[inside], atol=BLENDING)
    # And beyond the border, where ITK has no answer: reflection about the centres of the border voxels.
    reflected = map_coordinates(WIDE[0], places_of(after, GEOMETRY), order=1, mode="mirror")
    np.testing.assert_allclose(whole(WIDE, chain, GEOMETRY)[0][0], reflected, atol=1e-8)


@pytest.mark.parametrize("augmentation", SAMPLERS, ids=repr)
def test_integers_are_never_interpolated_by_a_random_sampler(augmentation: A.Augmentation) -> None:
    values = (np.arange(990).reshape(1, 9, 10, 11) * 16).astype("i2")
    chain = drawn(augmentation, values, GEOMETRY)
    result, after = whole(values, chain, GEOMETRY)
    assert set(np.unique(result)) <= set(np.unique(values))
    places = places_of(after, GEOMETRY)
    untied = (np.abs(places % 1 - 0.5) > 1e-9).all(axis=0)
    nearest = map_coordinates(values[0], np.rint(places), order=0, mode="mirror")
    np.testing.assert_array_equal(result[0][untied], nearest[untied])


def test_a_rotation_is_rigid_in_millimetres() -> None:
    (turn,) = drawn(A.Rotate(30, 30), CT, GEOMETRY)
    after = whole(CT, [turn], GEOMETRY)[1].geometry
    assert after is not None
    np.testing.assert_allclose(after.spacing, GEOMETRY.spacing, rtol=1e-12)
    rotation = rotation_xyz([30, 30, 30])
    np.testing.assert_allclose(after.direction[:, ::-1], OBLIQUE @ rotation, atol=1e-12)
    middle = [(n - 1) / 2 for n in CT.shape[1:]]
    np.testing.assert_allclose(after.world(middle), GEOMETRY.world(middle), atol=1e-9)


def test_rotations_follow_z_after_y_after_x() -> None:
    # A quarter about x alone takes y to z: the output's y axis shows the input's z axis.
    np.testing.assert_allclose(rotation_xyz([90, 0, 0]) @ [0, 1, 0], [0, 0, 1], atol=1e-15)
    np.testing.assert_allclose(rotation_xyz([0, 90, 0]) @ [0, 0, 1], [1, 0, 0], atol=1e-15)
    np.testing.assert_allclose(rotation_xyz([0, 0, 90]) @ [1, 0, 0], [0, 1, 0], atol=1e-15)
    np.testing.assert_allclose(
        rotation_xyz([90, 90, 0]), rotation_xyz([0, 90, 0]) @ rotation_xyz([90, 0, 0]), atol=1e-15
    )
    np.testing.assert_allclose(rotation_xyz([90]) @ [1, 0], [0, 1], atol=1e-15)


def test_quarter_turns_move_voxels_to_where_the_rotation_says_and_change_none() -> None:
    for seed in range(12):
        chain = drawn(A.Rotate(is_quarter=True), CT, GEOMETRY, seed=seed)
        result, after = whole(CT, chain, GEOMETRY)
        assert after.geometry is not None
        places = places_of(after, GEOMETRY)
        np.testing.assert_allclose(places, np.round(places), atol=1e-9)
        np.testing.assert_array_equal(result[0], CT[0][tuple(np.round(places).astype(int))])
        # The rotation alone, without extents or spacing: signs and places of the new axes.
        turn = (OBLIQUE.T @ after.geometry.direction[:, ::-1]).round(9)
        angles = [rotation_xyz(one) for one in product((90, 180, 270), repeat=3)]
        assert any(np.allclose(turn, one) for one in angles)
    assert drawn(A.Rotate(90, 90), CT)[0].locality(plan(source_of(CT), []).result).kind.name == "ORIENTATION"


def test_a_rotation_in_the_plane_takes_the_first_angle() -> None:
    plane = CT[:, 4]
    for angle in (90, 25):
        (turn,) = drawn(A.Rotate(angle, angle), plane, grid((2.0, 1.5), (0.0, 0.0)))
        after = whole(plane, [turn], grid((2.0, 1.5), (0.0, 0.0)))[1].geometry
        assert after is not None
        np.testing.assert_allclose(after.direction[:, ::-1], rotation_xyz([angle]), atol=1e-12)


def test_a_translation_shows_the_voxel_t_further_on_with_x_drawn_first() -> None:
    (shift,) = drawn(A.Translate(2, 2, is_int=True), CT, GEOMETRY)
    result, after = whole(CT, [shift], GEOMETRY)
    np.testing.assert_array_equal(result[:, :-2, :-2, :-2], CT[:, 2:, 2:, 2:])
    np.testing.assert_array_equal(result[:, -2, 0, 0], CT[:, -2, 2, 2])  # 9 folds to 7
    assert after.geometry == GEOMETRY.cropped(Region.at((2, 2, 2), (9, 10, 11)))


def test_a_flip_mirrors_each_axis_with_its_own_probability() -> None:
    for mirrored in product((0, 1), repeat=3):
        chain = drawn(A.Flip(mirrored), CT, GEOMETRY)
        result, after = whole(CT, chain, GEOMETRY)
        np.testing.assert_array_equal(result, np.flip(CT, [axis + 1 for axis, flip in enumerate(mirrored) if flip]))
        places = np.round(places_of(after, GEOMETRY)).astype(int)
        np.testing.assert_array_equal(result[0], CT[0][tuple(places)])


def test_a_flipped_vector_field_changes_the_sign_of_the_components_x_first() -> None:
    field = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype("f4")
    chain = drawn(A.Flip([1, 0, 0], vector_field=True), field)
    expected = field[:, ::-1].copy()
    expected[2] *= -1  # axis 0 is z, whose component is the last
    np.testing.assert_array_equal(whole(field, chain)[0], expected)
    np.testing.assert_array_equal(
        whole(field[:1], drawn(A.Flip([1, 0, 0], vector_field=True), field[:1]))[0], field[:1, ::-1]
    )
    least = np.full((3, 2, 2, 2), -32768, "i2")
    assert whole(least, drawn(A.Flip([1, 1, 1], vector_field=True), least))[0].max() == 32767
    with pytest.raises(TransformError, match="uint8"):
        drawn(A.Flip([1, 1, 1], vector_field=True), least.astype("u1"))


def test_both_exchanges_of_permute_follow_one_another() -> None:
    expected = {(1, 0): (1, 0, 2), (0, 1): (2, 0, 1), (1, 1): (2, 1, 0)}
    for probabilities, order in expected.items():
        result, _ = whole(CT, drawn(A.Permute(probabilities), CT))
        np.testing.assert_array_equal(result, CT.transpose(0, *(axis + 1 for axis in order)))
    assert drawn(A.Permute((0, 0)), CT) == []
    with pytest.raises(TransformError, match="three spatial axes"):
        drawn(A.Permute(), CT[:, 0])


def test_a_warp_is_the_b_spline_transform_of_itk() -> None:
    geometry = grid((2.0, 1.75, 1.5), (0.0, 0.0, 0.0))
    (warp,) = drawn(A.Elastix(5.0, 4.0), CT, geometry)
    assert isinstance(warp, Warp)
    mesh = [round(n * s / 5.0) for n, s in zip((9, 10, 11), geometry.spacing, strict=True)]
    assert [nodes - 3 for nodes in warp.lattice.shape[1:]] == mesh == [4, 4, 3]
    transform = sitk.BSplineTransform(3, 3)
    transform.SetTransformDomainOrigin([-s / 2 for s in geometry.spacing[::-1]])
    transform.SetTransformDomainPhysicalDimensions(
        [n * s for n, s in zip((11, 10, 9), geometry.spacing[::-1], strict=True)]
    )
    transform.SetTransformDomainMeshSize(mesh[::-1])
    millimetres = warp.lattice[::-1] * np.array(geometry.spacing[::-1]).reshape(3, 1, 1, 1)
    transform.SetParameters(millimetres.ravel().tolist())
    assert np.abs(millimetres).max() <= 4.0
    assert np.abs(millimetres).max() > 3.9
    places = np.stack(warp.coordinates(Region((0, 0, 0), (9, 10, 11))))
    expected = np.empty_like(places)
    for index in np.ndindex(9, 10, 11):
        world = transform.TransformPoint(
            [float(i * s) for i, s in zip(index[::-1], geometry.spacing[::-1], strict=True)]
        )
        expected[(slice(None), *index)] = [w / s for w, s in zip(world[::-1], geometry.spacing, strict=True)]
    expected = np.clip(expected, 0, np.array([8, 9, 10]).reshape(3, 1, 1, 1))
    np.testing.assert_allclose(places, expected, atol=1e-9)
    result, after = whole(WIDE, [warp], geometry)
    np.testing.assert_allclose(result[0], map_coordinates(WIDE[0], expected, order=1), atol=1e-6)
    assert after.geometry == geometry


def test_a_warp_of_a_small_volume_has_one_cell_per_axis() -> None:
    (warp,) = drawn(A.Elastix(), CT[:, :2, :2, :2], grid())
    assert isinstance(warp, Warp)
    assert warp.lattice.shape == (3, 4, 4, 4)


@pytest.mark.parametrize(
    "augmentation",
    [A.Rotate(5, 60), A.Scale(0.5), A.Translate(-3, 3), A.Rotate(is_quarter=True), A.Flip([1, 1, 0])],
    ids=repr,
)
def test_copies_are_carried_back_to_the_stored_grid(augmentation: A.Augmentation) -> None:
    smooth = np.indices((20, 22, 24)).sum(axis=0)[np.newaxis].astype("f8")
    lists = [A.AugmentationList([augmentation], nb=1)]
    forward = plan(source_of(smooth, GEOMETRY), [], augmentations=lists, copy=1, seed=3)
    back = forward.inverse(source_of(forward.read_whole()), patch_size=9)
    carried = back.read_whole()
    assert back.result.geometry == GEOMETRY
    middle = (slice(None), slice(8, 12), slice(9, 13), slice(10, 14))
    np.testing.assert_allclose(carried[middle], smooth[middle], atol=1e-9)
    for patch in back.grid:
        np.testing.assert_array_equal(back.read(patch), carried[(slice(None), *patch.slices)])
    labels = back.source.volume.with_(dtype=np.dtype("u1"))
    assert labels.dtype == np.uint8
    prediction = (forward.read_whole() > 30).astype("u1") * 5
    assert set(np.unique(forward.inverse(source_of(prediction)).read_whole())) <= {0, 5}


# --- values ----------------------------------------------------------------------------------------------------------------


def test_colours_are_mapped_by_the_matrix_and_grey_by_its_mean() -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (3, 4, 5)).astype("u1")
    matrix = [[1, 2, 3, 4], [0.5, 0, 0, 0], [0, 0, -1, 10]]
    result, _ = whole(rgb, [ColorTransform(matrix)])
    expected = np.einsum("ij,jyx->iyx", np.array(matrix)[:, :3], rgb.astype("f8")) + np.array(matrix)[:, 3:, None]
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    grey, _ = whole(rgb[:1], [ColorTransform(matrix)])
    np.testing.assert_allclose(grey, rgb[:1] * (5.5 / 3) + 14 / 3, rtol=1e-6)
    with pytest.raises(TransformError, match="one or three channels"):
        whole(rgb[:2], [ColorTransform(matrix)])
    with pytest.raises(UsageError, match="3 rows"):
        ColorTransform([[1, 2, 3]])


@pytest.mark.parametrize("seed", range(4))
def test_what_only_turns_colours_leaves_grey_alone_to_the_last_bit(seed: int) -> None:
    for augmentation in (A.HUE(1.0), A.Saturation(1.0)):
        np.testing.assert_array_equal(whole(CT, drawn(augmentation, CT, seed=seed))[0], CT)
        rgb = np.repeat(CT, 3, axis=0)
        np.testing.assert_allclose(whole(rgb, drawn(augmentation, rgb, seed=seed))[0], rgb, atol=1e-3)


def test_hue_keeps_luminance_and_colourfulness() -> None:
    rgb = np.random.default_rng(0).normal(size=(3, 6, 7)) * 100
    turned, _ = whole(rgb, drawn(A.HUE(0.4), rgb))
    np.testing.assert_allclose(turned.sum(axis=0), rgb.sum(axis=0), atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=0), np.linalg.norm(rgb, axis=0), rtol=1e-5)
    assert np.abs(turned - rgb).max() > 1


def test_saturation_scales_the_distance_from_grey() -> None:
    rgb = np.random.default_rng(0).normal(size=(3, 6, 7)) * 100
    scaled, _ = whole(rgb, drawn(A.Saturation(1.0), rgb))
    grey = rgb.mean(axis=0)
    ratio = (scaled - grey) / (rgb - grey)
    np.testing.assert_allclose(ratio, ratio[0, 0, 0], rtol=1e-3)


def test_luma_flip_changes_the_sign_of_every_second_grey_copy() -> None:
    results = [whole(CT, drawn(A.LumaFlip(), CT, seed=seed))[0] for seed in range(40)]
    flipped = [np.allclose(result, -CT, rtol=1e-6) for result in results]
    assert all(flip or np.array_equal(result, CT) for flip, result in zip(flipped, results, strict=True))
    assert 10 < sum(flipped) < 30


def test_brightness_and_contrast_move_and_scale_all_channels_alike() -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (3, 4, 5)).astype("i2")
    moved, _ = whole(rgb, drawn(A.Brightness(20.0), rgb))
    assert np.ptp(moved - rgb) < 1e-4
    assert abs(float((moved - rgb).mean())) > 0.1
    scaled, _ = whole(rgb, drawn(A.Contrast(1.0), rgb))
    np.testing.assert_allclose(scaled * (float(rgb.sum()) / float(scaled.sum())), rgb, rtol=1e-5, atol=1e-4)


def test_the_schedule_of_noise_begins_with_the_image_and_ends_without_it() -> None:
    kept = noise_schedule(1000, 1e-4, 0.02)
    assert len(kept) == 1001
    assert kept[0] == 1.0
    assert kept[1000] == 0.0
    assert kept[1] == pytest.approx(1 - 1e-4, abs=1e-12)
    assert all(a > b for a, b in pairwise(kept))
    betas = np.linspace(1e-4, 0.02, 1000)
    roots = np.sqrt(np.cumprod(1 - betas))
    np.testing.assert_allclose(kept[1:], ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2, atol=1e-12)
    assert noise_schedule(1, 0.1, 0.2) == [1.0, 0.0]


def test_noise_mixes_signal_and_normal_numbers() -> None:
    flat = np.full((2, 40, 40, 40), 10, "i2")
    result, _ = whole(flat, [NoiseField(0.8, 3.0, key=4)])
    assert result.dtype == np.float32
    assert result.mean() == pytest.approx(8.0, abs=0.05)
    assert result.std() == pytest.approx(3.0, abs=0.03)
    assert abs(np.corrcoef(result[0].ravel(), result[1].ravel())[0, 1]) < 0.02


def test_noise_is_always_applied_and_prob_limits_the_steps() -> None:
    strong = [drawn(A.Noise(1.0), CT, seed=seed)[0] for seed in range(60)]
    weak = [drawn(A.Noise(1.0, prob=0.05), CT, seed=seed)[0] for seed in range(60)]
    none = drawn(A.Noise(1.0, prob=0.0), CT)[0]
    for one in (*strong, *weak, none):
        assert isinstance(one, NoiseField)
        assert one.signal**2 + one.noise**2 == pytest.approx(1.0)
    assert min(one.signal for one in strong) < 0.1  # type: ignore[attr-defined]
    assert min(one.signal for one in weak) > math.sqrt(noise_schedule(1000, 1e-4, 0.02)[50])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(whole(CT, [none])[0], CT)


@pytest.mark.parametrize("dtype", ["f4", "i2", "u1", "?"])
def test_a_cut_out_box_holds_the_value_and_is_as_large_as_was_said(dtype: str) -> None:
    array = np.ones((2, 20, 30, 40), dtype)
    for seed in range(6):
        result, _ = whole(array, drawn(A.CutOUT(1.0, 0.5, 0.0), array, seed=seed))
        assert result.dtype == array.dtype
        holes = np.argwhere(result[0] == 0)
        extents = np.ptp(holes, axis=0) + 1
        assert (extents <= np.array([10, 15, 20]) + 1).all()
        assert len(holes) == np.prod(extents)
        np.testing.assert_array_equal(result[0], result[1])
    full = whole(array, drawn(A.CutOUT(1.0, 2.0, 0.0), array))[0]
    assert not full.any()


def test_a_cut_out_honours_its_own_probability() -> None:
    assert 25 < sum(bool(drawn(A.CutOUT(0.4, 0.5, 0.0), CT, seed=seed)) for seed in range(100)) < 55
    with pytest.raises(TransformError, match="NaN"):
        drawn(A.CutOUT(1.0, 0.5, math.nan), CT.astype("i2"))


# --- the mask --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask_shape", [(4, 5, 6), (9, 10, 11), (12, 5, 15)])
def test_a_mask_shows_a_window_of_the_volume_on_its_own_grid(mask_shape: tuple[int, int, int]) -> None:
    mask = (np.random.default_rng(1).random((1, *mask_shape)) < 0.6).astype("u1") * 2
    lists = [A.AugmentationList([A.Mask("HOLE", value=-5.0)], nb=6)]
    starts = set()
    for copy in range(1, 7):
        planned = plan(
            source_of(CT, GEOMETRY),
            [],
            augmentations=lists,
            copy=copy,
            groups={"HOLE": source_of(mask)},
            patch_size=4,
            cost_limit=1e9,
        )
        result = planned.read_whole()
        (stage,) = planned.chain.stages
        start = stage.transform.start  # type: ignore[attr-defined]
        starts.add(start)
        window = np.pad(CT, [(0, 0), *((0, m) for m in mask_shape)], constant_values=-5)
        window = window[(slice(None), *(slice(a, a + m) for a, m in zip(start, mask_shape, strict=True)))]
        np.testing.assert_array_equal(result, np.where(mask != 0, window, np.float32(-5)))
        assert planned.result.geometry == GEOMETRY.cropped(Region.at(start, mask_shape))
        for patch in planned.grid:
            np.testing.assert_array_equal(planned.read(patch), result[(slice(None), *patch.slices)])
    assert len(starts) == (1 if mask_shape == (9, 10, 11) else 6 if mask_shape == (4, 5, 6) else len(starts))


def test_a_mask_may_be_a_path_that_the_plan_knows_how_to_open() -> None:
    lists = [A.AugmentationList([A.Mask("masks/hole.mha")], nb=1)]
    opened = []

    def opener(path: str) -> Source:
        opened.append(path)
        return source_of(np.ones((1, 4, 5, 6), "u1"))

    planned = plan(source_of(CT), [], augmentations=lists, copy=1, opener=opener, patch_size=2)
    assert planned.read_whole().shape == (1, 4, 5, 6)
    planned.read(planned.grid[0])
    assert opened == ["masks/hole.mha"]


def test_a_flip_of_a_vector_field_is_undone_on_labels_too() -> None:
    field = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype("f4")
    lists = [A.AugmentationList([A.Flip([1, 1, 0], vector_field=True)], nb=1)]
    forward = plan(source_of(field), [], augmentations=lists, copy=1)
    np.testing.assert_array_equal(forward.inverse(source_of(forward.read_whole())).read_whole(), field)
    for channels in (1, 3):
        labels = np.random.default_rng(1).integers(0, 9, (channels, 4, 5, 6)).astype("u1")
        np.testing.assert_array_equal(forward.inverse(source_of(labels)).read_whole(), labels[:, ::-1, ::-1])


def test_outside_of_a_mask_uint8_is_0() -> None:
    labels = np.full((1, 5, 6), 9, "u1")
    lists = [A.AugmentationList([A.Mask("HOLE", value=7.0)], nb=1)]
    groups = {"HOLE": source_of(np.zeros((1, 3, 3), "u1"))}
    assert not plan(source_of(labels), [], augmentations=lists, copy=1, groups=groups).read_whole().any()


def test_a_mask_that_is_missing_or_has_other_axes_is_named() -> None:
    lists = [A.AugmentationList([A.Mask("HOLE")], nb=1)]
    with pytest.raises(UsageError, match="no group 'HOLE'"):
        plan(source_of(CT), [], augmentations=lists, copy=1)
    with pytest.raises(TransformError, match="HOLE"):
        plan(source_of(CT), [], augmentations=lists, copy=1, groups={"HOLE": source_of(np.zeros((1, 3, 3), "u1"))})
