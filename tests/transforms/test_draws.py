"""Random numbers of copies: functions of what they are for."""

import math
import statistics
import subprocess
import sys

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.streaming import plan
from mlarray.testing.transforms import source_of
from mlarray.transforms import Volume
from mlarray.transforms.augmentations import (
    AugmentationList,
    Brightness,
    Flip,
    Noise,
    Permute,
    Rotate,
    Scale,
    Translate,
    draw,
)
from mlarray.transforms.augmentations.drawing import key_of, normal_field, normals, numbers, uniforms

CT = Volume(1, (9, 10, 11), np.dtype("f4"))
LISTS = {
    "shape": AugmentationList([Flip(), Rotate(prob=0.5), Translate()], nb=4),
    "values": AugmentationList([Scale(prob=0.3), Brightness(10.0)], nb=3),
}


def test_numbers_are_the_same_on_every_machine() -> None:
    assert key_of(7, 0, "CASE_001", 1, 2, 0, "draw") == 0x8F1A0CA1D04C5930
    assert [one.hex() for one in uniforms(7, 2)] == ["0x1.8f2f879164c82p-2", "0x1.130f35fd0f180p-6"]
    assert [one.hex() for one in normals(7, 2)] == ["-0x1.1e7a236d2e829p-2", "-0x1.1003efde78d13p+1"]


def test_the_generator_is_splitmix64() -> None:
    # The first numbers of the published generator for the seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert numbers(1234567, np.arange(1, 5, dtype=np.uint64)).tolist() == published


def test_a_fresh_interpreter_draws_the_same() -> None:
    code = (
        "import numpy as np; from mlarray.transforms import Volume; "
        "from mlarray.transforms.augmentations import *; "
        "lists = [AugmentationList([Flip(), Rotate(), Translate(), Scale(), Brightness(3.0), Noise(2.0)], nb=4)]; "
        "print(draw(lists, Volume(1, (9, 10, 11), np.dtype('f4')), copy=3, seed=5, epoch=2, case='A'))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in (1, 2)
    ]
    assert runs[0] == runs[1]
    assert "Noise" in runs[0]


def test_keys_tell_all_words_apart() -> None:
    words = [("a", "b"), ("ab", ""), ("a\x1fstr:1:b",), (1, 2), ("1", 2), (12,), (1.0, 2), (-1,), (10**30,), ("é",)]
    assert len({key_of(*one) for one in words}) == len(words)


def test_uniform_numbers_are_uniform_and_normal_ones_normal() -> None:
    shares = np.array([share for key in range(200) for share in uniforms(key, 50)])
    assert 0 <= shares.min()
    assert shares.max() < 1
    np.testing.assert_allclose(np.histogram(shares, 10, (0, 1))[0] / len(shares), 0.1, atol=0.012)
    values = np.sort(normal_field(3, np.arange(200_000, dtype=np.uint64)))
    expected = np.array([statistics.NormalDist().inv_cdf((i + 0.5) / 200) for i in range(200)])
    np.testing.assert_allclose(values.reshape(200, -1)[2:-2].mean(axis=1), expected[2:-2], atol=0.02)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01


def test_neighbouring_voxels_channels_and_keys_are_independent() -> None:
    fields = [normal_field(key, np.arange(100_000, dtype=np.uint64)) for key in (0, 1, key_of(0, 0), key_of(0, 1))]
    for field in fields:
        for lag in (1, 2, 11, 64, 4096):
            assert abs(np.corrcoef(field[:-lag], field[lag:])[0, 1]) < 0.015
    assert np.abs(np.corrcoef(fields) - np.eye(4)).max() < 0.015


def test_a_voxel_has_the_same_number_wherever_it_is_asked_for() -> None:
    whole = normal_field(9, np.arange(100_000, dtype=np.uint64))
    for start, stop in ((0, 1), (16_383, 16_386), (77_001, 99_999)):
        np.testing.assert_array_equal(normal_field(9, np.arange(start, stop, dtype=np.uint64)), whole[start:stop])


def test_copy_0_is_the_case_itself_and_copies_run_through_the_lists() -> None:
    assert draw(LISTS, CT, copy=0) == ()
    names = [[one.name for one in draw(LISTS, CT, copy=copy)] for copy in range(1, 8)]
    assert all("Translate" in one for one in names[:4])
    assert all("Brightness" in one for one in names[4:])
    for wrong in (8, -1):
        with pytest.raises(UsageError, match="copies 0 to 7"):
            draw(LISTS, CT, copy=wrong)


def test_a_draw_depends_on_seed_epoch_case_list_and_copy_and_on_nothing_else() -> None:
    drawn = {
        draw(LISTS, CT, copy=copy, seed=seed, epoch=epoch, case=case)
        for copy in range(1, 8)
        for seed in (0, 1)
        for epoch in (0, 1)
        for case in ("A", "B")
    }
    assert len(drawn) == 7 * 8
    assert draw(LISTS, CT, copy=3, case="A") == draw(list(LISTS.values()), CT, copy=3, case="A")
    again = [draw(LISTS, CT, copy=copy, case="A") for copy in (5, 2, 5)]
    assert again[0] == again[2]
    # Another list behind or a longer one changes no copy before.
    assert draw([LISTS["shape"]], CT, copy=3) == draw(LISTS, CT, copy=3)


def test_copies_are_selected_with_their_probability() -> None:
    lists = [AugmentationList([Scale(prob=0.3)], nb=1000)]
    count = sum(bool(draw(lists, CT, copy=copy)) for copy in range(1, 1001, 4))
    assert 50 < count < 100
    assert not draw([AugmentationList([Scale(prob=0.0)], nb=1)], CT, copy=1)


def test_all_groups_of_a_case_draw_the_same() -> None:
    labels = Volume(1, (9, 10, 11), np.dtype("u1"), is_label=True)
    lists = [AugmentationList([Flip(), Rotate(), Scale()], nb=5)]
    for copy in range(1, 6):
        assert draw(lists, CT, copy=copy, case="A") == draw(lists, labels, copy=copy, case="A")


def test_an_augmentation_for_some_groups_needs_to_know_the_group() -> None:
    lists = [AugmentationList([Brightness(5.0, groups=["CT"]), Flip([1, 1, 1])], nb=1)]
    assert [one.name for one in draw(lists, CT, copy=1, group="CT")] == ["Brightness", "Flip"]
    assert [one.name for one in draw(lists, CT, copy=1, group="SEG")] == ["Flip"]
    with pytest.raises(UsageError, match=r"\['CT'\]"):
        draw(lists, CT, copy=1)


def test_permute_without_probabilities_makes_one_exchange_each_of_two_copies() -> None:
    lists = [AugmentationList([Permute(None)], nb=2)]
    shapes = [draw(lists, CT, copy=copy)[0].outcome(CT).shape for copy in (1, 2)]
    assert shapes == [(10, 9, 11), (11, 9, 10)]
    with pytest.raises(UsageError, match="two copies"):
        draw([AugmentationList([Permute(None)], nb=3)], CT, copy=1)


def test_a_plan_appends_the_copy_to_the_chain() -> None:
    array = np.random.default_rng(0).normal(size=(1, 9, 10, 11)).astype("f4")
    first = plan(source_of(array), [], augmentations=LISTS, copy=2, seed=4, epoch=1, case="A", patch_size=4)
    assert tuple(stage.transform for stage in first.chain.stages) == draw(LISTS, CT, copy=2, seed=4, epoch=1, case="A")
    patch = first.grid[7]
    whole = plan(source_of(array), [], augmentations=LISTS, copy=2, seed=4, epoch=1, case="A").read_whole()
    np.testing.assert_array_equal(first.read(patch), whole[(slice(None), *patch.slices)])
    assert not plan(source_of(array), [], augmentations=LISTS).chain.stages
    with pytest.raises(UsageError, match="no copy 1"):
        plan(source_of(array), [], copy=1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: AugmentationList([Translate()], nb=-1),
        lambda: AugmentationList([Translate(prob=1.5)]),
        lambda: AugmentationList([object()]),  # type: ignore[list-item]
        lambda: draw([Flip()], CT, copy=1),  # type: ignore[list-item]
        lambda: Noise(1.0, noise_step=0),
        lambda: Permute([0.5]),
    ],
)
def test_lists_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(UsageError):
        wrong()


def test_normal_numbers_are_those_of_the_standard_library() -> None:
    for key in range(20):
        for value in normals(key, 20):
            share = statistics.NormalDist().cdf(value)
            assert math.isclose(statistics.NormalDist().inv_cdf(share), value, rel_tol=1e-6, abs_tol=1e-9)
