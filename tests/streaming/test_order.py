"""The order of an epoch: every patch once, the same everywhere, equally many batches on all ranks."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray.errors import UsageError
from mlarray.streaming.order import Batches, epoch_order, share

# Made by this module: SplitMix64 numbers and a sort give the same on every platform, with every numpy.
GOLDEN = [
    [[0, 0, 0], [2, 0, 1], [2, 0, 0], [0, 0, 2], [0, 0, 1], [0, 1, 0]],
    [[0, 1, 0], [2, 0, 1], [0, 0, 0], [2, 0, 0], [0, 0, 1], [0, 0, 2]],
]
GOLDEN_WINDOWED = [[0, 0, 0], [0, 0, 2], [0, 0, 1], [0, 1, 0], [2, 0, 1], [2, 0, 0]]
COUNTS = st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=8)


def entries_of(counts: list[list[int]]) -> list[tuple[int, int, int]]:
    return [(i, j, k) for i, copies in enumerate(counts) for j, count in enumerate(copies) for k in range(count)]


@given(
    counts=COUNTS,
    seed=st.integers(-5, 5),
    epoch=st.integers(0, 3),
    window=st.none() | st.integers(-1, 9),
    shuffle=st.booleans(),
)
def test_an_epoch_holds_every_patch_exactly_once(
    counts: list[list[int]], seed: int, epoch: int, window: int | None, shuffle: bool
) -> None:
    order = epoch_order(counts, seed=seed, epoch=epoch, shuffle=shuffle, window=window)
    found = [tuple(row) for row in order[:].tolist()]
    assert sorted(found) == entries_of(counts)
    if not shuffle:
        assert found == entries_of(counts)


@given(entries=st.integers(0, 200), batch_size=st.integers(1, 7), world_size=st.integers(1, 6), lanes=st.integers(1, 6))
def test_all_ranks_have_equally_many_batches_and_together_every_entry_once(
    entries: int, batch_size: int, world_size: int, lanes: int
) -> None:
    ranks = [
        share(entries, batch_size=batch_size, rank=rank, world_size=world_size, lanes=lanes)
        for rank in range(world_size)
    ]
    assert {len(batches) for batches in ranks} == {-(-entries // (world_size * batch_size))}
    own: list[int] = []
    for batches in ranks:
        sizes = [len(positions) for positions, _ in batches]
        assert all(size == batch_size for size in sizes[:-1])
        assert all(1 <= size <= batch_size for size in sizes)
        for positions, repeated in batches:
            assert ((positions >= 0) & (positions < entries)).all()
            assert len(positions) == len(repeated)
            assert len(positions) == 1 or not repeated.any()
            own += positions[~repeated].tolist()
    assert sorted(own) == list(range(entries))


@given(batch_size=st.integers(1, 4), lanes=st.integers(1, 5), rank=st.integers(0, 2), entries=st.integers(1, 150))
def test_each_lane_of_a_rank_is_one_contiguous_piece(batch_size: int, lanes: int, rank: int, entries: int) -> None:
    batches = share(entries, batch_size=batch_size, rank=rank, world_size=3, lanes=lanes)
    pieces = []
    for lane in range(lanes):
        taken = [batches[k] for k in range(lane, len(batches), lanes)]
        pieces.append([p for positions, repeated in taken for p in positions[~repeated].tolist()])
    whole = [p for piece in pieces for p in piece]
    first = whole[0] if whole else 0
    assert whole == list(range(first, first + len(whole)))


def test_few_entries_for_many_ranks_are_repeated_and_marked() -> None:
    shown = [
        [
            (positions.tolist(), repeated.tolist())
            for positions, repeated in share(5, batch_size=1, rank=rank, world_size=4)
        ]
        for rank in range(4)
    ]
    assert shown == [
        [([0], [False]), ([1], [False])],
        [([2], [False]), ([2], [True])],
        [([3], [False]), ([3], [True])],
        [([4], [False]), ([4], [True])],
    ]
    alone = [share(1, batch_size=8, rank=rank, world_size=3)[0] for rank in range(3)]
    assert [(positions.tolist(), repeated.tolist()) for positions, repeated in alone] == [
        ([0], [False]), ([0], [True]), ([0], [True])
    ]  # fmt: skip


def test_the_last_round_is_divided_evenly() -> None:
    assert [len(share(107, batch_size=10, rank=rank, world_size=5)[2][0]) for rank in range(5)] == [2, 2, 1, 1, 1]


def test_windows_follow_each_other_and_mix_the_patches_of_their_cases() -> None:
    counts = [[6, 6]] * 10
    order = epoch_order(counts, seed=3, epoch=0, shuffle=True, window=4)[:]
    windows = [order[:48], order[48:96], order[96:]]
    cases = [set(window[:, 0].tolist()) for window in windows]
    assert [len(one) for one in cases] == [4, 4, 2]
    assert set.union(*cases) == set(range(10))
    for window in windows:
        changes = sum(a != b for a, b in pairwise(window[:, 0].tolist()))
        assert changes > len(window) / 3, "the cases of a window are mixed"


@pytest.mark.parametrize("window", [None, 0, -3, 10, 11])
def test_without_a_window_and_with_one_of_all_cases_the_shuffle_is_the_same(window: int | None) -> None:
    counts = [[7, 3]] * 10
    plain = epoch_order(counts, seed=3, epoch=1, shuffle=True)[:]
    assert np.array_equal(epoch_order(counts, seed=3, epoch=1, shuffle=True, window=window)[:], plain)


def test_the_order_of_a_seed_is_known() -> None:
    counts = [[3, 1], [0], [2]]
    orders = [epoch_order(counts, seed=42, epoch=epoch, shuffle=True)[:].tolist() for epoch in (0, 1)]
    windowed = epoch_order(counts, seed=42, epoch=0, shuffle=True, window=1)[:].tolist()
    assert orders == GOLDEN
    assert windowed == GOLDEN_WINDOWED


def test_seed_and_epoch_change_the_order() -> None:
    texts = {
        str(epoch_order([[20]], seed=seed, epoch=epoch, shuffle=True)[:].tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(texts) == 25


def test_every_permutation_is_as_likely_as_any_other() -> None:
    seen = Counter(
        tuple(epoch_order([[4]], seed=7, epoch=epoch, shuffle=True)[:][:, 2].tolist()) for epoch in range(4800)
    )
    assert len(seen) == 24
    # Chi square with 23 degrees of freedom: 49.7 is passed by chance once in a thousand times; the draws are fixed.
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 49.7


def test_positions_are_taken_as_a_number_a_slice_or_an_array() -> None:
    order = epoch_order([[2, 1], [3]], seed=0, epoch=0, shuffle=False)
    assert order[-1].tolist() == [1, 0, 2]
    assert order[np.array([5, 0])].tolist() == [[1, 0, 2], [0, 0, 0]]
    assert order[1:1].shape == (0, 3)
    assert order[0].dtype == np.int64
    with pytest.raises(IndexError):
        order[6]


def test_four_bytes_are_held_for_a_patch_and_24_for_a_copy_of_a_case() -> None:
    order = epoch_order([[1000]] * 1000, seed=0, epoch=0, shuffle=True, window=20)
    assert order.numbers.nbytes == 4_000_000
    assert order.slots.nbytes + order.ends.nbytes == 24_000


def test_batches_of_nothing_are_none() -> None:
    assert len(share(0, batch_size=4)) == 0
    assert list(share(0, batch_size=4)) == []
    assert len(epoch_order([], seed=0, epoch=0, shuffle=True, window=2)) == 0
    with pytest.raises(IndexError, match="Batch 2 of 2"):
        Batches(8, 4, 0, 1, 1)[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is a whole number from 1 on, got 0"),
        ({"batch_size": 2, "rank": 2, "world_size": 2}, "rank is one of 0 to 1 as world_size is 2, got 2"),
        ({"batch_size": 2, "lanes": 0}, "lanes is a whole number from 1 on, got 0"),
    ],
)
def test_shares_that_cannot_be_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        share(8, **arguments)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(UsageError, match="from 0 on, got -2"):
        epoch_order([[3], [-2]], seed=0, epoch=0, shuffle=True)
