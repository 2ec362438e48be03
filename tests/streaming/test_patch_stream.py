"""What a batch holds depends on its number, the epoch and the seed; never on regimes, workers or ranks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import UsageError
from mlarray.streaming import (
    Batch,
    ForegroundPatches,
    GridPatches,
    GroupChain,
    PatchStream,
    RandomPatches,
    padded,
    plan,
)
from mlarray.streaming.estimates import whole_copies_bytes
from mlarray.streaming.loader import WorkerLoader
from mlarray.streaming.plan_source import write_result
from mlarray.transforms.augmentations import AugmentationList, Brightness, Flip, Permute, Rotate

GROUPS = {
    "CT": [T.Canonical(), T.ResampleToResolution([1.5, 1.5, 1.5]), T.Clip(-500, 500), T.Standardize()],
    "SEG": [T.Canonical(), T.ResampleToResolution([1.5, 1.5, 1.5])],
}
COPIES = [
    AugmentationList([Flip(), Rotate(0, 30)], nb=1),
    AugmentationList([Permute(), Brightness(0.1, groups=["CT"])], nb=2),
]
REGIMES = ("cache", "stream", "buffer")
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be read in parts", "ignore:The memory budget")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four cases of different extents with an image and a segmentation, as ``.mla``."""
    root = tmp_path_factory.mktemp("data") / "mla"
    rng = np.random.default_rng(0)
    for number in range(4):
        shape = (14 + number, 20, 17)
        (root / f"p{number}").mkdir(parents=True)
        how: dict[str, Any] = {
            "axes": "zyx",
            "spacing": (2, 1.5, 1.5),
            "origin": (0, 0, 0),
            "direction": np.eye(3),
            "patch_size": 8,
        }
        MLArray(rng.normal(0, 300, shape).astype(np.float32), **how).save(root / f"p{number}" / "CT.mla")
        labels = np.zeros(shape, np.uint8)
        labels[number : number + 3, 5:8, 10:13] = 1 + number % 2
        MLArray(labels, **how).save(root / f"p{number}" / "SEG.mla")
    return root


@pytest.fixture(scope="module")
def compressed(dataset: Path) -> Path:
    """The same as files that cannot be read in parts."""
    root = dataset.parent / "nrrd"
    for file in dataset.rglob("*.mla"):
        write_result(plan(open_source(file), []), root / file.parent.name / f"{file.stem}.nrrd")
    return root


def stream_of(dataset: Path, groups: Mapping[str, Any] = GROUPS, **given: Any) -> PatchStream:
    regime = given.pop("regime", "cache")
    given = {"patch_size": (8, 9, 10), "batch_size": 3, **given}
    if regime == "buffer":  # nothing may cost anything
        given["cost_limit"] = 1e-9
    stream = PatchStream(dataset, groups, **given)
    stream._plans.resident = regime == "cache"
    return stream


def digest(batches: Iterable[Batch]) -> str:
    """Return a hash of all arrays and of where they were cut."""
    state = hashlib.blake2b()
    for batch in batches:
        for group, array in batch.arrays.items():
            state.update(f"{group} {array.shape} {array.dtype}".encode() + array.tobytes())
        for sample in batch.samples:
            state.update(repr((sample.case, sample.copy, sample.region, sample.repeated)).encode())
    return state.hexdigest()


def epochs(stream: PatchStream, batches: Iterable[Batch] | None = None) -> str:
    found = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        found.append(digest(stream if batches is None else batches))
    return " ".join(found)


# --- a batch is a function -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("sampler", [None, RandomPatches(5), ForegroundPatches(5, "SEG")])
def test_regimes_and_formats_give_the_same_batches(
    dataset: Path, compressed: Path, sampler: Any, window: int | None
) -> None:
    given = {"augmentations": COPIES, "inline_augmentations": True, "sampler": sampler, "shuffle_window": window}
    found = {
        (root.name, regime): epochs(stream_of(root, regime=regime, **given))
        for root in (dataset, compressed)
        for regime in REGIMES
        if root is dataset or regime == "stream"
    }
    assert len(set(found.values())) == 1
    first, second = next(iter(found.values())).split()
    assert first != second


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (3, "fork"), (2, "spawn")])
def test_workers_change_nothing(dataset: Path, regime: str, workers: int, context: str) -> None:
    given = {"augmentations": COPIES, "inline_augmentations": True, "shuffle_window": 2, "regime": regime}
    alone = epochs(stream_of(dataset, **given))
    stream = stream_of(dataset, **given)
    with WorkerLoader(stream, workers=workers, context=context) as loader:
        assert epochs(stream, loader) == alone


@pytest.mark.parametrize("rank", [0, 1])
def test_regimes_give_a_rank_the_same_batches(dataset: Path, rank: int) -> None:
    given = {"augmentations": COPIES, "shuffle_window": 2, "lanes": 2, "rank": rank, "world_size": 2}
    assert len({epochs(stream_of(dataset, regime=regime, **given)) for regime in REGIMES}) == 1
    stream = stream_of(dataset, regime="stream", **given)
    with WorkerLoader(stream, workers=2, context="fork") as loader:
        assert epochs(stream, loader) == epochs(stream_of(dataset, **given))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("lanes", [1, 3])
def test_every_patch_comes_once_over_all_ranks(dataset: Path, window: int | None, lanes: int) -> None:
    given = {"augmentations": COPIES, "shuffle_window": window, "lanes": lanes, "batch_size": 4, "world_size": 2}
    ranks = [stream_of(dataset, rank=rank, **given) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    seen = Counter(
        (sample.case, sample.copy, sample.region)
        for stream in ranks
        for batch in stream
        for sample in batch.samples
        if not sample.repeated
    )
    assert set(seen.values()) == {1}
    assert len(seen) == ranks[0].patches


def test_a_patch_is_what_the_whole_volume_gives(dataset: Path) -> None:
    stream = stream_of(dataset, regime="stream", shuffle=False)
    wholes = {
        (case, group): plan(open_source(dataset / case / f"{group}.mla"), chain).read_whole()
        for case in ("p0", "p1", "p2", "p3")
        for group, chain in GROUPS.items()
    }
    for batch in stream:
        for sample in batch.samples:
            for group, array in sample.arrays.items():
                whole = wholes[sample.case, group][(slice(None), *sample.region.slices)]
                np.testing.assert_array_equal(array, padded(whole, (8, 9, 10)))


def test_seeds_and_epochs_give_other_orders(dataset: Path) -> None:
    orders = {epochs(stream_of(dataset, seed=seed)) for seed in range(3)}
    assert len(orders) == 3
    assert epochs(stream_of(dataset, seed=1)) in orders


def test_copies_are_drawn_anew_only_when_asked(dataset: Path) -> None:
    def copies(inline: bool) -> list[bytes]:
        stream = stream_of(dataset, augmentations=COPIES[:1], inline_augmentations=inline, shuffle=False)
        found = []
        for epoch in range(2):
            stream.set_epoch(epoch)
            arrays = (s.arrays["CT"].tobytes() for b in stream for s in b.samples if s.copy)
            found.append(b"".join(arrays))
        return found

    kept, drawn = copies(False), copies(True)
    assert kept[0] == kept[1] == drawn[0] != drawn[1]


class Counted:
    """A sampler that notes for which patches it is asked."""

    group, aligned = None, False

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def count(self, shape: Any, patch_size: Any) -> int:
        return 4

    def forced(self, position: int, batch_size: int) -> bool:
        return False

    def region(self, shape: Any, patch_size: Any, index: int, *, key: int, **given: Any) -> Any:
        self.asked.append((key, index))
        return RandomPatches(4).region(shape, patch_size, index, key=key)


def test_a_place_is_worked_out_once(dataset: Path) -> None:
    sampler = Counted()
    stream = stream_of(dataset, sampler=sampler, regime="stream")
    batches = list(stream)
    assert len(sampler.asked) == len(set(sampler.asked)) == 16
    assert digest(batches) == digest(stream.batch(index) for index in range(len(stream)))


def test_copies_that_are_computed_as_wholes_count_in_what_is_predicted(dataset: Path) -> None:
    turned = {"augmentations": [AugmentationList([Rotate(10, 10)], nb=1)], "memory_budget": "1GiB"}
    cheap, dear = (PatchStream(dataset, GROUPS, patch_size=8, cost_limit=limit, **turned) for limit in (100, 1.5))
    wholes = {case: stream_plan_bytes(dear, case) for case in range(4)}
    assert not dear._plans._drawn_from(0, "CT", 1, 0).streams
    assert whole_copies_bytes(cheap._plans, 2, places=3) == 0
    assert whole_copies_bytes(dear._plans, 2, places=3) == 3 * max(wholes.values())


def stream_plan_bytes(stream: PatchStream, case: int) -> int:
    results = [stream.plan_as_judged(case, group).result for group in stream.chains]
    return sum(result.bytes_of(result.region) for result in results)


# --- going on ---------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_stopped(dataset: Path) -> None:
    stream = stream_of(dataset, shuffle_window=2)
    stream.set_epoch(3)
    batches = list(stream)
    state = stream.state(5)
    assert len(repr(state)) < 200
    again = stream_of(dataset, shuffle_window=2)
    again.resume(state)
    assert again.epoch == 3
    assert digest(again) == digest(batches[5:])
    with WorkerLoader(again, workers=2, context="fork") as loader:
        assert digest(loader) == digest(batches[5:])
    again.set_epoch(4)
    assert again.first == 0


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"batch_size": 2}, {"patch_size": 9}, {"rank": 0, "world_size": 2}, {"subset": "~p0"}]
)
def test_a_state_of_another_stream_is_refused(dataset: Path, other: dict[str, Any]) -> None:
    state = stream_of(dataset).state(2)
    with pytest.raises(UsageError, match=r"is not of this stream.* Resume with the cases"):
        stream_of(dataset, **other).resume(state)


@pytest.mark.parametrize("batch", [-1, 10**6])
def test_a_state_beyond_the_epoch_is_refused(dataset: Path, batch: int) -> None:
    stream = stream_of(dataset)
    with pytest.raises(UsageError, match=f"begins with batch {batch} of an epoch that has {len(stream)}"):
        stream.resume({**stream.state(0), "batch": batch})
    with pytest.raises(UsageError, match="is not of this stream"):
        stream.resume(None)  # type: ignore[arg-type]


def test_integers_of_numpy_are_integers(dataset: Path) -> None:
    found = stream_of(dataset, patch_size=np.int64(9), batch_size=np.int32(2))
    assert digest(found) == digest(stream_of(dataset, patch_size=9, batch_size=2))


# --- prediction and evaluation ----------------------------------------------------------------------------------------


def test_prediction_goes_through_whole_cases_in_order(dataset: Path) -> None:
    ranks = [stream_of(dataset, mode="predict", regime="stream", rank=rank, world_size=2) for rank in range(2)]
    cases = [[sample.case for batch in stream for sample in batch.samples] for stream in ranks]
    assert {*cases[0]} | {*cases[1]} == {"p0", "p1", "p2", "p3"}
    assert not {*cases[0]} & {*cases[1]}
    assert all(one == sorted(one) for one in cases)
    assert all(stream.decision.regime == "stream" for stream in ranks)


def test_evaluation_sizes_its_patches_by_the_budget_and_does_not_pad(dataset: Path) -> None:
    whole = PatchStream(dataset, GROUPS, patch_size=None, mode="evaluate")
    assert whole.patches == 4
    assert {s.arrays["CT"].shape[1:] for batch in whole for s in batch.samples} == {
        stream_of(dataset).plan(case, "CT").result.shape for case in range(4)
    }
    cut = PatchStream(dataset, {"SEG": [T.Canonical()]}, patch_size=None, mode="evaluate", memory_budget="26MiB")
    assert all(s.arrays["SEG"].shape[1:] == s.region.shape for b in cut for s in b.samples)
    assert sum(s.region.size for b in cut for s in b.samples) == sum(n * 20 * 17 for n in (14, 15, 16, 17))


# --- what goes into a batch -------------------------------------------------------------------------------------------


def test_forced_patches_hold_a_label_in_every_copy(dataset: Path) -> None:
    sampler = ForegroundPatches(6, "SEG", fraction=1.0)
    for regime in REGIMES:
        stream = stream_of(
            dataset,
            regime=regime,
            sampler=sampler,
            augmentations=[AugmentationList([Flip([1, 1, 0]), Permute()], nb=2)],
        )
        held = [sample.arrays["SEG"].any() for batch in stream for sample in batch.samples]
        assert all(held)
        assert len(held) == 4 * 3 * 6


def test_neighbours_come_as_channels(dataset: Path) -> None:
    groups = {"CT": GroupChain([], extend_slice=3), "SEG": []}
    stream = stream_of(
        dataset, groups, patch_size=(1, 20, 17), batch_size=1, shuffle=False, regime="stream", sampler=GridPatches()
    )
    whole = plan(open_source(dataset / "p0" / "CT.mla"), []).read_whole()[0]
    for index, slices in ((0, [1, 0, 1, 2]), (5, [4, 5, 6, 7]), (13, [12, 13, 12, 11])):
        batch = stream.batch(index)
        np.testing.assert_array_equal(batch.arrays["CT"][0, :, 0], whole[slices])
        assert batch.arrays["SEG"].shape == (1, 1, 1, 20, 17)
    flat = stream_of(dataset, groups, patch_size=(1, 20, 17), batch_size=2, squeeze=True)
    assert flat.batch(0).arrays["CT"].shape == (2, 4, 20, 17)
    with pytest.raises(UsageError, match="needs patches of one slice along the first axis, these have 8"):
        stream_of(dataset, groups).batch(0)


def test_patches_have_transforms_of_their_own(dataset: Path) -> None:
    groups = {"CT": GroupChain([T.Standardize(lazy=True)], [T.Standardize()]), "SEG": []}
    stream = stream_of(dataset, groups, shuffle=False, regime="stream")
    plain = stream_of(dataset, {"CT": [T.Standardize()], "SEG": []}, shuffle=False, regime="stream")
    inside = [i for i in range(len(plain)) if all(s.region.shape == (8, 9, 10) for s in plain.batch(i).samples)]
    assert inside
    for index in inside:
        np.testing.assert_array_equal(stream.batch(index).arrays["CT"], plain.batch(index).arrays["CT"])


def test_groups_may_be_renamed_and_read_each_other(dataset: Path) -> None:
    groups = {"body": GroupChain([T.Mask("SEG", value_outside=-7)], source="CT"), "raw": GroupChain([], source="CT")}
    batch = stream_of(
        dataset, groups, regime="stream", sampler=GridPatches(), patch_size=None, batch_size=1, shuffle=False
    ).batch(0)
    labels = plan(open_source(dataset / "p0" / "SEG.mla"), []).read_whole()
    np.testing.assert_array_equal(
        batch.arrays["body"][0], np.where(labels != 0, batch.arrays["raw"][0], np.float32(-7))
    )


def test_a_sample_says_where_it_lies(dataset: Path) -> None:
    sample = stream_of(dataset, shuffle=False).batch(1).samples[0]
    result = plan(open_source(dataset / "p0" / "CT.mla"), GROUPS["CT"]).result
    assert sample.geometry["CT"].is_close(result.geometry.cropped(sample.region))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_groups_on_different_grids_are_refused_by_case(dataset: Path) -> None:
    with pytest.raises(UsageError, match=r"Case 'p0': 'CT' ends with the shape .*, 'SEG' with"):
        stream_of(dataset, {"CT": GROUPS["CT"], "SEG": []})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mode": "test"}, "mode is one of"),
        ({"part": "test"}, "part is one of 'train', 'validation', got 'test'"),
        ({"batch_size": 0}, "batch_size is a whole number from 1 on, got 0"),
        ({"batch_size": "2"}, "batch_size is a whole number from 1 on, got '2'"),
        ({"lanes": 0}, "lanes is a whole number from 1 on, got 0"),
        ({"shuffle_window": 0}, "shuffle_window is a whole number from 1 on, got 0"),
        ({"patch_size": 1.5}, "patch_size is a whole number from 0 on, got 1.5"),
        ({"patch_size": "16"}, "patch_size is a whole number from 0 on, got '16'"),
        ({"patch_size": [8, 8, -1]}, "An extent of patch_size is a whole number from 0 on, got -1"),
        ({"groups": ["CT"]}, "groups names no group"),
        ({"groups": {"CT": T.Clip(0, 1)}}, "The chain of 'CT' is Clip"),
        ({"sampler": RandomPatches}, "not a sampler"),
        (
            {"sampler": ForegroundPatches(4, "XX")},
            "looks for labels in 'XX', which is no group of this stream; there are 'CT', 'SEG'",
        ),
        ({"rank": 0}, "rank and world_size come together"),
        ({"rank": 2, "world_size": 2}, "rank is one of 0 to 1"),
        ({"groups": {}}, "groups names no group"),
        ({"memory_budget": "lots"}, "lots"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(dataset: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        stream_of(dataset, **given)


def test_an_epoch_below_zero_is_refused(dataset: Path) -> None:
    with pytest.raises(UsageError, match="An epoch is a whole number from 0 on, got -1"):
        stream_of(dataset).set_epoch(-1)
