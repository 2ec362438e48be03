"""What may be done to each patch by itself?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mlarray import transforms as T
from mlarray.errors import PlanError, TransformError
from mlarray.sources.memory import ArraySource
from mlarray.streaming import plan
from mlarray.streaming.config import known_transforms
from mlarray.streaming.patch_chain import apply_patch_transforms, check_patch_transforms
from mlarray.transforms.augmentations.places import NoiseField
from mlarray.transforms.statistics import Moments
from mlarray.transforms.volume import Attributes, Volume

WHERE = "groups_src.CT.groups_dest.CT.patch_transforms"
MOVE = " Move it to `transforms`, which are done to the case."
PROBE = Volume(1, (7, 11, 13), np.dtype(np.float32))


@dataclass(frozen=True)
class Cropped(T.Transform):
    def locality(self, volume: Volume) -> Any:
        return T.Cropping((1, 1, 1), (0, 0, 0))

    def outcome(self, volume: Volume) -> Volume:
        return volume.with_(shape=tuple(n - 1 for n in volume.shape))


@dataclass(frozen=True)
class Exchanging(T.Transform):
    """Says that each voxel stands for itself, and exchanges axes."""

    def locality(self, volume: Volume) -> Any:
        return T.Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        return volume.with_(shape=volume.shape[::-1])


@dataclass(frozen=True)
class Masked(T.Transform):
    """Measures under a mask that it does not announce."""

    def locality(self, volume: Volume) -> Any:
        return T.GlobalStatistic()

    def statistics(self, volume: Volume) -> Any:
        return (Moments(mask="SEG"),)


@dataclass(frozen=True)
class Failing(T.Transform):
    part: str

    def locality(self, volume: Volume) -> Any:
        return volume.attributes["x"] if self.part == "locality" else T.Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        return volume.attributes["x"] if self.part == "outcome" else volume


@dataclass(frozen=True)
class Told(T.Transform):
    def locality(self, volume: Volume) -> Any:
        return "pointwise"


EDGE = "takes voxels from other places of the volume, and would take the edge of the patch for that of the volume"
REFUSED = [
    (T.Dilate(1), "Dilate sees nothing beyond the edge of the patch, so every border of a patch would be wrong."),
    (T.Gradient(), "Gradient sees nothing beyond the edge of the patch, so every border of a patch would be wrong."),
    (T.Flip("0"), "Flip would reorient each patch about itself, not the volume."),
    (T.Permute("2|1|0"), "Permute would reorient each patch about itself, not the volume."),
    (Cropped(), "Cropped would crop each patch, and break the grid that predictions are put together on."),
    (
        T.ResampleToShape([8, 8, 8]),
        "ResampleToShape would resample each patch about itself, and break the grid that predictions are put together on.",
    ),
    (T.Padding([1] * 6), f"Padding {EDGE}."),
    (T.Softmax(1), f"Softmax {EDGE}."),
    (T.Canonical(), "Canonical needs the whole volume, of which a patch is a part."),
    (T.Crop(), "Crop needs the whole volume, of which a patch is a part."),
    (T.Norm(), f"Norm {EDGE}."),
    (T.Flatten(), "Flatten needs the whole volume, of which a patch is a part."),
    (T.Squeeze(1), "Squeeze changes the spatial shape, (1, 1, 1) to (1, 1)."),
    (T.Statistics(), "Statistics needs the whole volume, of which a patch is a part."),
    (T.Clip("percentile:1"), "Clip needs the whole volume, of which a patch is a part."),
    (T.Clip(mask="SEG"), "Clip needs the whole volume, of which a patch is a part."),
    (T.Standardize(mask="SEG"), "Standardize needs the whole volume, of which a patch is a part."),
    (T.Mask("SEG"), "Mask needs the whole volume, of which a patch is a part."),
    (T.HistogramMatching("MR"), "HistogramMatching needs the whole volume, of which a patch is a part."),
    (Masked(), "Masked needs group 'SEG' of the case, of which a patch has no part."),
    (Exchanging(), "Exchanging changes the spatial shape, (7, 11, 13) to (13, 11, 7)."),
]


@pytest.mark.parametrize("mode", ["train", "predict"])
@pytest.mark.parametrize(("transform", "message"), REFUSED, ids=lambda value: getattr(value, "name", ""))
def test_what_needs_more_than_the_patch_is_refused_with_place_reason_and_remedy(
    transform: T.Transform, message: str, mode: str
) -> None:
    with pytest.raises(PlanError) as caught:
        check_patch_transforms([T.Clip(0, 1), transform], where=WHERE, mode=mode)
    assert str(caught.value) == f"{WHERE}: {message}{MOVE}"


def test_noise_belongs_to_the_volume_too() -> None:
    with pytest.raises(PlanError, match="Noise needs the whole volume"):
        check_patch_transforms([NoiseField(1, 0.5, 0.5)])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            Failing("locality"),
            "the declaration of Failing failed with KeyError: 'x'. A declaration must be total: where something is unknown, "
            "answer WholeVolume().",
        ),
        (
            Failing("outcome"),
            "the declaration of Failing failed with KeyError: 'x'. A declaration must be total: where something is unknown, "
            "answer WholeVolume().",
        ),
        (
            Told(),
            "locality() of Told returned str, not a locality. Return Pointwise(), GlobalStatistic() or another of "
            "mlarray.transforms.locality.",
        ),
        (
            np.clip,
            "_ArrayFunctionDispatcher is not a transform. Subclass mlarray.transforms.Transform and define apply(block, "
            "context).",
        ),
        (T.Transform(), "Transform needs the whole volume, of which a patch is a part." + MOVE),
    ],
)
def test_a_transform_that_breaks_its_contract_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_patch_transforms([transform], where=WHERE)
    assert str(caught.value) == f"{WHERE}: {message}"


def test_the_first_that_does_not_fit_is_named() -> None:
    with pytest.raises(PlanError, match="Flip would reorient"):
        check_patch_transforms([T.Normalize(), T.Flip("0"), T.Dilate(1)])


@pytest.mark.parametrize(
    "chain",
    [
        [],
        [T.Clip(-1, 1), T.TensorCast("float16"), T.Percentage(3.0), T.UnNormalize()],
        [T.OneHot(3), T.Softmax(0), T.Argmax(0)],
        [T.Clip("min", "max"), T.Normalize(), T.Standardize()],
        [T.Standardize(mean=0.0, std=1.0)],
        [T.MergeLabels(), T.FlatLabel()],
        [T.Dilate(0)],
    ],
)
def test_pointwise_transforms_and_statistics_are_allowed_whatever_they_do_to_channels(chain: list[T.Transform]) -> None:
    check_patch_transforms(chain)


def test_the_channels_of_the_result_are_asked_about() -> None:
    result = Volume(3, (50, 60), np.dtype(np.uint8))
    check_patch_transforms([T.Normalize(channels=[2])], result=result)
    check_patch_transforms([T.Sum(0)], result=result.with_(shape=(4, 5, 6, 7)))


def undo_refused(name: str) -> str:
    return (
        f"{WHERE}: {name} takes its statistic from each patch, and a prediction cannot be carried back through it. Put "
        f"{name}(lazy=True) into `transforms`, which keeps the statistic of the volume, or say inverse=False."
    )


@pytest.mark.parametrize(
    ("chain", "case_chain"),
    [
        ([T.Standardize()], []),
        ([T.Standardize()], [T.Standardize()]),
        ([T.Standardize()], [T.Normalize(lazy=True)]),
        ([T.Standardize(mean=3.0)], []),
        ([T.Standardize(lazy=True), T.Standardize()], []),
        ([T.Standardize(), T.Standardize()], [T.Standardize(lazy=True)]),
        ([T.Standardize()], [T.Standardize(lazy=True), T.Standardize()]),
    ],
)
def test_a_statistic_of_the_patch_cannot_be_undone_in_a_prediction(
    chain: list[T.Transform], case_chain: list[T.Transform]
) -> None:
    check_patch_transforms(chain, where=WHERE, mode="train", case_chain=case_chain)
    check_patch_transforms(chain, where=WHERE, mode="evaluate", case_chain=case_chain)
    with pytest.raises(PlanError) as caught:
        check_patch_transforms(chain, where=WHERE, mode="predict", case_chain=case_chain)
    assert str(caught.value) == undo_refused("Standardize")


@pytest.mark.parametrize(
    ("chain", "case_chain"),
    [
        ([T.Standardize()], [T.Canonical(), T.Standardize(lazy=True)]),
        ([T.Normalize()], [T.Normalize(lazy=True), T.ResampleToResolution([1, 1, 1])]),
        ([T.Normalize(), T.Standardize()], [T.Normalize(lazy=True), T.Standardize(lazy=True)]),
        ([T.Normalize(channels=[2])], [T.OneHot(3), T.Normalize(lazy=True, channels=[2])]),
        ([T.Standardize()], [T.Standardize(lazy=True, mean=[1.0, 2.0]), T.Sum(0)]),
        ([T.Normalize()], [T.Clip(-10, 10, save_clip_min=True, save_clip_max=True)]),
        ([T.Standardize(inverse=False)], []),
        ([T.Standardize(mean=3.0, std=2.0)], []),
        ([T.Clip("min", "max")], []),
    ],
)
def test_a_statistic_of_the_volume_can_be_undone(chain: list[T.Transform], case_chain: list[T.Transform]) -> None:
    check_patch_transforms(chain, mode="predict", case_chain=case_chain)


def test_what_the_case_chain_left_is_seen_on_its_result_too() -> None:
    source = ArraySource(np.zeros((2, 5, 6, 7), np.int16))
    kept = plan(source, [T.Standardize(lazy=True), T.Sum(0)]).result
    check_patch_transforms([T.Standardize()], mode="predict", result=kept)
    taken = plan(source, [T.Standardize(lazy=True), T.Standardize()]).result
    with pytest.raises(PlanError):
        check_patch_transforms([T.Standardize()], mode="predict", result=taken)


@pytest.fixture
def voxels() -> Any:
    return np.random.default_rng(4).normal(40, 300, (9, 10, 11)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("between", [[], [T.Flip("0|2")]], ids=["", "flipped"])
@pytest.mark.parametrize("transform", [T.Standardize, T.Normalize])
def test_a_lazy_statistic_and_the_stage_per_patch_give_what_the_stage_gives_for_the_case_bit_for_bit(
    voxels: Any, transform: Any, between: list[T.Transform], dtype: str
) -> None:
    source = ArraySource(voxels.astype(dtype))
    for_case = plan(source, [transform(), *between], patch_size=4)
    lazily = plan(source, [transform(lazy=True), *between], patch_size=4)
    lazily.measure()
    volume = lazily.result.with_(attributes=lazily.attributes)
    for region in lazily.grid:
        patch = lazily.read(region, pad=True)
        got = apply_patch_transforms([transform()], patch, volume)
        expected = for_case.read(region, pad=True)
        assert got.dtype == expected.dtype
        assert got.tobytes() == expected.tobytes()


def test_without_it_the_statistic_is_that_of_the_padded_patch(voxels: Any) -> None:
    chain = plan(ArraySource(voxels), [], patch_size=(4, 4, 16))
    patch = chain.read(chain.grid[5], pad=True)
    got = apply_patch_transforms([T.Standardize()], patch, chain.result)
    alone = plan(ArraySource(patch), [T.Standardize()]).read_whole()
    assert got.tobytes() == alone.tobytes()
    assert abs(float(got.mean())) < 1e-6


def test_a_patch_leaves_nothing_behind(voxels: Any) -> None:
    volume = Volume(1, voxels.shape, voxels.dtype, attributes=Attributes.of({"x": 1}), case="c7")
    first, second = voxels[np.newaxis, :4].copy(), voxels[np.newaxis, 4:8].copy()
    chain = [T.Normalize(), T.Standardize()]
    alone = apply_patch_transforms(chain, second, volume)
    kept = first.copy()
    apply_patch_transforms(chain, first, volume)
    assert apply_patch_transforms(chain, second, volume).tobytes() == alone.tobytes()
    assert dict(volume.attributes.stacks) == {"x": (1,)}
    assert first.tobytes() == kept.tobytes()
    first[0, 0, 0, 0] = 7  # still the caller's own


@pytest.mark.parametrize("chain", [[], [T.Standardize(lazy=True)], [T.Clip(-5, 5)], [T.TensorCast("float32")]])
def test_what_comes_back_is_the_callers_own(voxels: Any, chain: list[T.Transform]) -> None:
    array = voxels[np.newaxis].copy()
    got = apply_patch_transforms(chain, array, Volume(1, voxels.shape, voxels.dtype))
    assert got.flags.writeable
    assert (got is array) == (not chain)
    if chain:
        assert not np.shares_memory(got, array)


def test_channels_and_types_may_change() -> None:
    labels = np.array([[[0, 2], [1, 0]]], np.uint8)
    got = apply_patch_transforms([T.OneHot(3), T.TensorCast("uint8")], labels, Volume(1, (50, 60), np.dtype(np.uint8)))
    assert got.dtype == np.uint8
    assert got.tolist() == [[[1, 0], [0, 1]], [[0, 0], [1, 0]], [[0, 1], [0, 0]]]


def test_attributes_of_the_case_are_there() -> None:
    models = np.array([[[1, 2]], [[0, 5]]], np.uint8)
    volume = Volume(2, (1, 2), models.dtype, attributes=Attributes.of({"number_of_channels_per_model": (3, 4)}))
    assert apply_patch_transforms([T.MergeLabels()], models, volume).tolist() == [[[1, 7]]]


def test_an_error_names_the_transform_and_that_it_was_a_patch() -> None:
    labels = np.full((1, 2, 2), 9, np.uint8)
    with pytest.raises(TransformError) as caught:
        apply_patch_transforms([T.OneHot(3)], labels, Volume(1, (5, 5), labels.dtype, case="c7"))
    assert str(caught.value).startswith("Stage 1 (OneHot), case 'c7 (a patch)': OneHot(3) got the label 9")


def test_a_constant_patch_is_warned_of_as_a_patch() -> None:
    flat = np.full((1, 4, 4), 3, np.float32)
    with pytest.warns(UserWarning, match=r"^Case 'c7 \(a patch\)' is constant"):
        got = apply_patch_transforms([T.Standardize()], flat, Volume(1, (9, 9), flat.dtype, case="c7"))
    assert not got.any()


def test_every_transform_is_either_allowed_or_refused_with_a_reason() -> None:
    made: Mapping[str, T.Transform] = {
        "Mask": T.Mask("SEG"),
        "HistogramMatching": T.HistogramMatching("MR"),
        "OneHot": T.OneHot(2),
        "Percentage": T.Percentage(2.0),
        "SelectLabel": T.SelectLabel([(1, 2)]),
        "Save": T.Save("prepared"),
        "Squeeze": T.Squeeze(1),
    }

    def reason(name: str, kind: type[T.Transform]) -> str:
        try:
            check_patch_transforms([made[name] if name in made else kind()])
        except PlanError as error:
            return error.message
        return ""

    reasons = {name: reason(name, kind) for name, kind in known_transforms().items()}
    assert all(text.startswith(f"patch_transforms: {name} ") for name, text in reasons.items() if text)
    allowed = {name for name, text in reasons.items() if not text}
    assert allowed == {
        "Argmax",
        "Clip",
        "FlatLabel",
        "MergeLabels",
        "Normalize",
        "OneHot",
        "Percentage",
        "SegmentationDisagreement",
        "SelectLabel",
        "Softmax",
        "StandardDeviation",
        "Standardize",
        "Sum",
        "TensorCast",
        "UnNormalize",
        "Variance",
    }
