"""Where patches lie: functions of a key, with the shares and distributions that are promised."""

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray import MLArray, Region, open_source
from mlarray import transforms as T
from mlarray.errors import UsageError
from mlarray.streaming import plan
from mlarray.streaming.class_locations import ClassLocations
from mlarray.streaming.samplers import (
    ForegroundPatches,
    GridPatches,
    RandomPatches,
    Sampler,
    around,
    block_origins,
)
from mlarray.testing.transforms import source_of
from mlarray.transforms.augmentations.drawing import key_of

INDICES = {1: [0, 31, 62], 4: [599], 9: []}
LOCATIONS = ClassLocations((20, 30), {label: np.array(at, np.uint32) for label, at in INDICES.items()})


@pytest.mark.parametrize("sampler", [GridPatches(), RandomPatches(3), ForegroundPatches(3, "SEG")])
def test_every_sampler_keeps_the_protocol_and_pickles(sampler: Sampler) -> None:
    assert isinstance(sampler, Sampler)
    assert pickle.loads(pickle.dumps(sampler)) == sampler
    assert (sampler.group, sampler.aligned) == (getattr(sampler, "group", None), False)


def test_the_grid_covers_the_volume_in_order_and_takes_no_heed_of_the_key() -> None:
    sampler = GridPatches(overlap=0)
    assert sampler.count((10, 4), 4) == 3
    regions = [sampler.region((10, 4), 4, index, key=index) for index in range(3)]
    assert [(one.start[0], one.stop[0]) for one in regions] == [(0, 4), (4, 8), (8, 10)]


def test_random_patches_are_these() -> None:
    sampler = RandomPatches(4)
    starts = [sampler.region((100, 90, 80), (32, 32, 0), index, key=key_of(0, 1, "p1")).start for index in range(4)]
    assert starts == [(25, 12, 0), (62, 18, 0), (18, 7, 0), (18, 25, 0)]
    assert sampler.count((1, 1, 1), 5) == 4


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50)), min_size=1, max_size=3),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1000),
)
def test_a_patch_lies_within_the_volume_and_is_as_large_as_it_can_be(
    axes: list[tuple[int, int]], key: int, index: int
) -> None:
    shape, size = tuple(n for n, _ in axes), tuple(p for _, p in axes)
    region = RandomPatches(2000).region(shape, size, index, key=key)
    assert region.is_within(shape)
    assert region.shape == tuple(min(p, n) if p else n for n, p in axes)
    assert region == RandomPatches(1).region(shape, size, index, key=key)


def test_every_origin_is_as_likely_as_any_other() -> None:
    counts = np.zeros((5, 3), int)
    for index in range(3000):
        counts[RandomPatches(1).region((12, 10), (8, 8), index, key=7).start] += 1
    expected = 3000 / 15
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 36.1  # 0.1 % of all, with 14 degrees of freedom


def test_the_next_epoch_is_drawn_anew() -> None:
    starts = {RandomPatches(1).region((500,), 10, 0, key=key_of(0, epoch, "p")).start for epoch in range(20)}
    assert len(starts) > 15


@pytest.mark.parametrize(
    ("batch_size", "fraction", "expected"),
    [
        (1, 0.33, 0),
        (2, 0.33, 1),
        (3, 0.33, 1),
        (4, 0.33, 1),
        (5, 0.33, 2),
        (12, 0.33, 4),
        (2, 0.0, 0),
        (4, 1.0, 4),
        (1, 0.5, 1),
    ],
)
def test_the_last_patches_of_a_batch_are_forced_by_the_rule_of_nnunet(
    batch_size: int, fraction: float, expected: int
) -> None:
    sampler = ForegroundPatches(8, "SEG", fraction)
    forced = [sampler.forced(position, batch_size) for position in range(batch_size)]
    assert forced == [False] * (batch_size - expected) + [True] * expected


def test_a_patch_that_is_not_forced_is_a_random_one() -> None:
    foreground, random = ForegroundPatches(8, "SEG"), RandomPatches(8)
    for index in range(8):
        assert foreground.region((20, 30), 8, index, key=3) == random.region((20, 30), 8, index, key=3)


def test_forced_patches_hold_a_voxel_of_a_class_and_classes_are_equally_likely() -> None:
    sampler = ForegroundPatches(1, "SEG")
    counts: dict[tuple[int, ...], int] = {}
    for index in range(2000):
        region = sampler.region((20, 30), (4, 4), index, key=11, locations=LOCATIONS, forced=True)
        counts[region.start] = counts.get(region.start, 0) + 1
    # Voxel (0, 0), (1, 1), (2, 2) of class 1, each moved inside, and (19, 29) of class 4.
    assert counts.keys() == {(0, 0), (16, 26)}
    assert abs(counts[16, 26] - 1000) < 5 * 22.4


def test_voxels_of_a_class_are_equally_likely() -> None:
    many = ClassLocations((100,), {2: np.arange(40, 60, dtype=np.uint32)})
    starts = [
        ForegroundPatches(1, "SEG").region((100,), 10, index, key=5, locations=many, forced=True).start[0]
        for index in range(2000)
    ]
    counts = np.bincount(starts, minlength=100)
    assert counts[:35].sum() == counts[55:].sum() == 0
    assert float(((counts[35:55] - 100.0) ** 2 / 100).sum()) < 43.8  # 0.1 % of all, with 19 degrees of freedom


def test_only_wanted_classes_are_drawn_and_a_case_without_them_gives_random_patches() -> None:
    only = ForegroundPatches(1, "SEG", classes=(4, 5))
    assert {only.region((20, 30), 4, i, key=1, locations=LOCATIONS, forced=True).start for i in range(9)} == {(16, 26)}
    none = ForegroundPatches(1, "SEG", classes=[9])  # type: ignore[arg-type]
    assert none.region((20, 30), 4, 0, key=1, locations=LOCATIONS, forced=True) == RandomPatches(1).region(
        (20, 30), 4, 0, key=1
    )


def test_a_voxel_is_carried_to_the_grid_of_a_copy() -> None:
    region = ForegroundPatches(1, "SEG", classes=(4,)).region(
        (30, 20), 4, 0, key=1, locations=LOCATIONS, forced=True, carry=lambda voxel: (29 - voxel[1], 19 - voxel[0])
    )
    assert region.start == (0, 0)


@pytest.mark.parametrize(
    ("voxel", "size", "expected"),
    [((10, 10), (5, 4), (8, 8)), ((0, 29), (5, 4), (0, 26)), ((19, 0), (5, 40), (15, 0)), ((3, 3), (0, 1), (0, 3))],
)
def test_a_patch_around_a_voxel_is_moved_inside(
    voxel: tuple[int, ...], size: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert around(voxel, (20, 30), size).start == expected


@given(st.integers(1, 60), st.integers(1, 24), st.integers(1, 70), st.data())
def test_an_aligned_patch_around_a_voxel_holds_it(n: int, block: int, size: int, data: st.DataObject) -> None:
    voxel = data.draw(st.integers(0, n - 1))
    from mlarray import BlockGrid

    origins = BlockGrid((n,), (block,), (block,)).origins(size)
    region = around((voxel,), (n,), size, origins=origins)
    assert region.start[0] in origins[0]
    assert region.start[0] <= voxel < region.stop[0]
    held = [one for one in origins[0] if one <= voxel < one + min(size, n)]
    wanted = around((voxel,), (n,), size).start[0]
    assert abs(region.start[0] - wanted) == min(abs(one - wanted) for one in held)


def test_origins_of_blocks_follow_mirrored_exchanged_and_cropped_axes(tmp_path: object) -> None:
    voxels = np.arange(100 * 60 * 40, dtype=np.int32).reshape(100, 60, 40)
    MLArray(voxels, axes="zyx", chunk_size=(32, 32, 40), block_size=(16, 16, 40)).save(f"{tmp_path}/a.mla")
    source = open_source(f"{tmp_path}/a.mla")
    size = (32, 32, 32)
    straight = block_origins(plan(source, [T.Clip(0, 5)], patch_size=size), size)
    assert straight[0] == (0, 16, 32, 48, 64, 68)
    assert straight[1] == (0, 16, 28)
    assert straight[2] == tuple(range(9))
    box = {"box": [[10, 2], [0, 0], [0, 0]]}
    turned = plan(source, [T.Crop(), T.Flip("0"), T.Permute("1|0|2")], patch_size=size, attributes=box)
    origins = block_origins(turned, size)
    assert origins[0] == straight[1]
    # Stored starts 16, 32, 48 and 64 lie in the box 10 to 98, which is mirrored: 98 - start - 32; 0 and the last are added.
    assert origins[1] == (0, 2, 18, 34, 50, 56)
    for start in (2, 18, 34, 50):
        assert turned.fold(Region.at((0, start, 0), size)).start[0] % 16 == 0


def test_a_chain_that_leaves_the_stored_grid_cannot_be_aligned() -> None:
    source = source_of(np.zeros((1, 20, 20, 20), np.float32))
    wrong = plan(source, [T.Clip(0, 1), T.ResampleToShape([10, 10, 10])], patch_size=4)
    with pytest.raises(UsageError, match=r"stored grid, which stage 2 \(ResampleToShape\) leaves"):
        block_origins(wrong, 4)
    assert block_origins(plan(source, [T.Dilate(1)], patch_size=16), 16) == (tuple(range(5)),) * 3


def test_aligned_samplers_take_only_the_origins_that_they_are_given() -> None:
    origins = [(0, 16, 68), (0, 28)]
    sampler = RandomPatches(1, align="blocks")
    starts = [sampler.region((100, 60), 32, index, key=2, origins=origins).start for index in range(600)]
    counts = {start: starts.count(start) for start in product(*origins)}
    assert sum(counts.values()) == 600
    assert all(abs(count - 100) < 46 for count in counts.values())
    assert RandomPatches(1).region((100, 60), 32, 0, key=2, origins=origins) == RandomPatches(1).region(
        (100, 60), 32, 0, key=2
    )
    with pytest.raises(UsageError, match="needs the origins"):
        sampler.region((100, 60), 32, 0, key=2)


def test_wrong_arguments_are_refused() -> None:
    for wrong in (0, -1, 1.5, True, "8"):
        with pytest.raises(UsageError, match="per_case is a whole number from 1 on"):
            RandomPatches(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="align is None or 'blocks', got 'chunks'"):
        ForegroundPatches(1, "SEG", align="chunks")
    with pytest.raises(UsageError, match=r"fraction is a number from 0 to 1, got 1\.5"):
        ForegroundPatches(1, "SEG", fraction=1.5)
    with pytest.raises(UsageError, match="needs the locations of the labels in 'SEG'"):
        ForegroundPatches(1, "SEG").region((5,), 2, 0, key=0, forced=True)
    with pytest.raises(UsageError, match="2 extents from 0"):
        RandomPatches(1).region((5, 5), (2, 2, 2), 0, key=0)
