"""Which regime, and does it fit?"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray.errors import MemoryLimitError, UsageError
from mlarray.streaming.budget import GIB, Budget
from mlarray.streaming.regimes import CaseEstimate, decide, evaluation_patch

MIB = 1 << 20
BUDGET = Budget(8 * GIB, "given")


def cases(count: int, gib: float, *, streams: Mapping[str, tuple[bool, ...]] | None = None, **given: Any) -> list[Any]:
    groups = streams if streams is not None else {"CT": (True,)}
    size = int(gib * GIB)
    return [CaseEstimate(f"case{i}", size // 2, size, groups, given.get("peak", 0)) for i in range(count)]


BUFFERED = {"CT": (False,), "SEG": (True,)}


def test_a_training_set_that_fits_is_cached_even_where_it_could_stream() -> None:
    decision = decide(cases(8, 1), BUDGET, processors=8)
    assert (decision.regime, decision.workers, decision.predicted_peak_bytes) == ("cache", 0, 8 * GIB)
    assert decision.of("case0", 0, "CT") == "cache"
    assert decision.line == (
        "data set  8 cases, 4.00 GiB stored, 8.00 GiB transformed.\n"
        "budget    8.00 GiB per rank (given).\n"
        "cache     every case stays in memory, no worker processes, at most 8.00 GiB in\n"
        "          all."
    )


def test_a_cache_needs_room_for_the_sample_that_is_made_too() -> None:
    assert decide(cases(8, 1, peak=1), BUDGET).regime == "stream"
    assert decide(cases(7, 1, peak=GIB), BUDGET).regime == "cache"
    assert decide(cases(7, 1, peak=GIB), BUDGET, workers=2).regime == "stream"
    assert decide(cases(7, 1), BUDGET, workers=2, batch_bytes=GIB).regime == "stream"


@pytest.mark.parametrize(("mode", "why"), [("predict", "a prediction"), ("evaluate", "an evaluation")])
def test_prediction_and_evaluation_never_cache(mode: str, why: str) -> None:
    decision = decide(cases(1, 0.1), Budget(1 << 50, "given"), mode=mode, processors=2)
    assert (decision.regime, decision.workers, decision.predicted_peak_bytes) == ("stream", 2, 0)
    assert decision.line == (
        "data set  1 case, 0.05 GiB stored, 0.10 GiB transformed.\nbudget    1048576.00 GiB per rank (given).\n"
    ) + "\n".join(
        wrapped("stream", f"{why} goes through the data once; every case streams, 2 workers, at most 0.00 MiB in all.")
    )


def wrapped(word: str, text: str) -> list[str]:
    """The words of a text in lines of 80 characters; amounts stay together."""
    lines, line = [], word.ljust(9)
    for piece in re.sub(r" (?=[GM]iB)| (?=x )|(?<= x) ", "~", text).split(" "):
        if len(line) + 1 + len(piece) > 80:
            lines.append(line)
            line = " " * 9
        line += " " + piece
    return [one.replace("~", " ") for one in [*lines, line]]


def test_cases_that_do_not_fit_stream() -> None:
    decision = decide(cases(9, 1, peak=100 * MIB), BUDGET, processors=3, world_size=2)
    assert (decision.regime, decision.workers, decision.predicted_peak_bytes) == ("stream", 3, 300 * MIB)
    assert decision.line == (
        "data set  9 cases, 4.50 GiB stored, 9.00 GiB transformed, on each of 2 ranks.\n"
        "budget    8.00 GiB per rank (given).\n"
        "stream    to hold every case would take 9.10 GiB; every case streams, 3 workers,\n"
        "          at most 0.29 GiB in all."
    )


def test_each_copy_of_each_group_has_its_own_regime() -> None:
    estimates = [
        *cases(20, 1, streams={"CT": (True, False), "SEG": (True, True)}),
        CaseEstimate("plain", 1, 1, {"CT": (True,)}, 0),
    ]
    decision = decide(estimates, BUDGET)
    assert decision.regime == "buffer"
    assert [decision.of("case3", copy, group) for group in ("CT", "SEG") for copy in (0, 1)] == [
        "stream",
        "buffer",
        "stream",
        "stream",
    ]
    assert decision.of("plain", 0, "CT") == "stream"


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({}, 2),
        ({"batch_size": 3}, 4),
        ({"batch_size": 3, "shuffle_window": 2}, 4),
        ({"batch_size": 3, "shuffle_window": 4}, 4),
        ({"batch_size": 3, "shuffle_window": 7}, 7),
        ({"shuffle_window": 0}, 2),
        ({"shuffle_window": -1}, 2),
        ({"shuffle_window": 1000}, 40),
        ({"shuffle_window": 7, "mode": "predict"}, 2),
    ],
)
def test_the_queue_has_a_place_for_each_case_of_a_batch_and_of_the_window(given: Any, places: int) -> None:
    decision = (
        decide(cases(40, 1, streams=BUFFERED), Budget(39 * GIB, "given"), workers=0, **given)
        if places < 40
        else decide(cases(40, 1, streams=BUFFERED, peak=1), Budget(40 * GIB + 1, "given"), workers=0, **given)
    )
    assert decision.fifo_cases == places
    if decision.regime == "buffer":
        assert decision.predicted_peak_bytes == places * GIB


def test_only_cases_that_do_not_stream_fill_the_queue_and_the_largest_count() -> None:
    estimates = [*cases(30, 1), *cases(2, 0.5, streams=BUFFERED), *cases(1, 1.5, streams=BUFFERED)]
    decision = decide(estimates, BUDGET, batch_size=1, workers=2)
    assert decision.predicted_peak_bytes == 4 * GIB  # two processes with the two largest of three
    assert decision.line.splitlines()[2:] == wrapped(
        "buffer",
        "to hold every case would take 32.50 GiB; 3 of 33 cases cannot stream: a queue of 2 x 0.83 GiB on average = 1.67 GiB, "
        "at most 2.00 GiB, per process, 2 workers, at most 4.00 GiB in all. shuffle_window=3 fits too, and computes a case "
        "less often.",
    )


def test_what_a_case_keeps_in_the_queue_may_be_said() -> None:
    one = CaseEstimate("a", 1, 10 * GIB, {"CT": (True,), "SEG": (False,)}, 0, buffered_bytes=GIB)
    assert decide([one], BUDGET).predicted_peak_bytes == GIB


def test_as_many_workers_are_started_as_fit() -> None:
    def workers(gib: float, **given: Any) -> int:
        return decide(cases(90, gib, streams=BUFFERED), BUDGET, **given).workers

    assert [workers(1, processors=n) for n in (1, 2, 3, 4, 64)] == [1, 2, 3, 4, 4]
    assert [workers(gib, processors=64) for gib in (1, 1.2, 1.5, 2.0, 3.9)] == [4, 3, 2, 2, 1]
    assert workers(1, processors=64, workers=3) == 3


def test_a_queue_that_does_not_fit_is_refused_before_anything_starts() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        decide(cases(20, 5, streams=BUFFERED, peak=GIB), BUDGET, batch_size=4, workers=2)
    assert str(caught.value) == (
        "Training does not fit: a process needs 1.00 GiB for a sample and its batches (batch_size=4) and a queue of 5 x "
        "5.00 GiB on average = 25.00 GiB, at most 25.00 GiB; with 2 workers that is 52.00 GiB, the budget is 8.00 GiB per rank "
        "(given). Raise memory_budget or let the stages that cannot stream write their result once (Save)."
    )


@pytest.mark.parametrize(
    ("gib", "given", "remedies"),
    [
        (1.0, {"batch_size": 9}, "Raise memory_budget, lower batch_size to 7"),
        (1.0, {"workers": 5, "batch_size": 3}, "Raise memory_budget, use 2 workers"),
        (1.0, {"shuffle_window": 9}, "Raise memory_budget, lower shuffle_window to 8"),
        (
            3.0,
            {"shuffle_window": 9, "batch_size": 3},
            "Raise memory_budget, drop shuffle_window, lower batch_size to 1",
        ),
        (5.0, {}, "Raise memory_budget"),
    ],
)
def test_the_remedies_have_numbers_that_fit(gib: float, given: Any, remedies: str) -> None:
    estimates = cases(20, gib, streams=BUFFERED)
    with pytest.raises(MemoryLimitError) as caught:
        decide(estimates, BUDGET, **given)
    assert caught.value.hint == f"{remedies} or let the stages that cannot stream write their result once (Save)."
    if "drop" not in remedies and "," in remedies:
        name, number = remedies.replace("use", "to").replace(" workers", "").rsplit(" to ", 1)
        changed = (
            {"workers": int(number)}
            if "batch_size" not in name and "window" not in name
            else {name.rsplit(" ", 1)[1]: int(number)}
        )
        assert decide(estimates, BUDGET, **{**given, **changed}).regime == "buffer"


def test_a_sample_that_does_not_fit_is_refused() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        decide(cases(1, 20, peak=5 * GIB), BUDGET, mode="predict", workers=2)
    assert str(caught.value) == (
        "Prediction does not fit: a process needs 5.00 GiB for a sample and its batches (batch_size=1); with 2 workers that is "
        "10.00 GiB, the budget is 8.00 GiB per rank (given). Raise memory_budget, use 1 worker or use a smaller patch."
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "test"}, "mode is one of 'train', 'predict', 'evaluate', got 'test'."),
        ({"world_size": 0}, "world_size is a whole number from 1 on, got 0."),
        ({"batch_size": 0}, "batch_size is a whole number from 1 on, got 0."),
        ({"processors": 0}, "processors is a whole number from 1 on, got 0."),
        ({"workers": -1}, "workers is a whole number from 0 on, got -1."),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        decide(cases(1, 1), BUDGET, **given)
    assert str(caught.value) == message


def test_a_decision_goes_to_other_processes() -> None:
    decision = decide(cases(9, 1, streams=BUFFERED), BUDGET)
    assert pickle.loads(pickle.dumps(decision)) == decision


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.integers(0, 3)), max_size=9),
    st.integers(1, 40),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(-1, 12)),
    st.one_of(st.none(), st.integers(0, 5)),
    st.sampled_from(["train", "predict", "evaluate"]),
)
@settings(max_examples=200, deadline=None)
def test_what_is_decided_fits_and_its_lines_are_short(
    sizes: list[tuple[int, int, bool, int]], budget: int, batch: int, window: int | None, workers: int | None, mode: str
) -> None:
    estimates = [
        CaseEstimate(f"c{i}", stored * MIB, size * MIB, {"x": (streams,)}, peak * MIB)
        for i, (stored, size, streams, peak) in enumerate(sizes)
    ]
    try:
        decision = decide(
            estimates,
            Budget(budget * MIB, "given"),
            mode=mode,
            batch_size=batch,
            shuffle_window=window,
            workers=workers,
            processors=4,
        )
    except MemoryLimitError:
        return
    assert decision.predicted_peak_bytes <= budget * MIB
    assert max(map(len, decision.line.splitlines())) <= 80
    if decision.regime == "cache":
        assert mode == "train"
        assert sum(one.resident_bytes for one in estimates) <= budget * MIB
    else:
        assert (decision.regime == "stream") == all(one.all_stream for one in estimates)


def test_evaluation_takes_whole_volumes_where_they_fit() -> None:
    decided = evaluation_patch({"a": (10, 20, 20), "b": (20, 20, 20)}, {"a": 5, "b": 1}, Budget(GIB, "given"))
    assert decided.patch_size is None
    assert str(decided) == (
        "evaluation  whole volumes fit in 80% of 1.00 GiB at 60 bytes per voxel; the\n"
        "            largest is case 'a', 5 channels of 10 x 20 x 20."
    )
    assert evaluation_patch({}, {}, BUDGET).patch_size is None


def test_evaluation_cuts_the_largest_case_into_patches_of_its_proportions() -> None:
    budget = Budget(240_000, "given")  # 80 % of it are 8000 voxels at 24 bytes
    decided = evaluation_patch({"a": (20, 40, 80), "b": (9, 9, 9)}, {"a": 2, "b": 2}, budget)
    assert decided.patch_size == (10, 20, 40)
    assert decided.line == (
        "evaluation  disjoint patches of 10 x 20 x 40 fit in 80% of 0.23 MiB at 24 bytes\n"
        "            per voxel; the largest is case 'a', 2 channels of 20 x 40 x 80."
    )


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        ((1, 0, 0), (1, 40, 80)),
        ((0, 40, 80), (2, 40, 80)),
        ((0, 0, 80), (7, 14, 80)),
        ((4, 99, 0), (4, 40, 50)),
        ((20, 20, 20), (20, 20, 20)),
    ],
)
def test_extents_that_must_be_kept_are_kept(fixed: tuple[int, ...], expected: tuple[int, ...]) -> None:
    budget = Budget(240_000, "given")
    assert evaluation_patch({"a": (20, 40, 80)}, {"a": 2}, budget, fixed=fixed).patch_size == expected


def test_an_axis_that_would_vanish_keeps_a_voxel_and_the_patch_still_fits() -> None:
    assert evaluation_patch({"a": (2, 1000, 1000)}, {"a": 2}, Budget(30_000, "given")).patch_size == (1, 31, 31)


@given(
    st.lists(st.integers(1, 300), min_size=2, max_size=3),
    st.integers(1, 6),
    st.integers(15 * 6, 10**8),
)
@settings(max_examples=200, deadline=None)
def test_a_patch_of_an_evaluation_fits_and_is_near_the_limit(shape: list[int], channels: int, budget: int) -> None:
    patch = evaluation_patch({"a": shape}, {"a": channels}, Budget(budget, "given")).patch_size
    cap = 0.8 * budget / (12 * channels)
    extents = shape if patch is None else patch
    assert math.prod(extents) <= cap * (1 + 1e-9)
    if patch is not None:
        assert math.prod(shape) > cap
        assert all(1 <= p <= n for p, n in zip(patch, shape, strict=True))
        assert math.prod(p + 1 for p in patch) >= min(cap, math.prod(shape)) * (1 - 1e-9)


def test_extents_that_cannot_be_kept_are_refused_with_the_numbers() -> None:
    with pytest.raises(MemoryLimitError) as caught:
        evaluation_patch({"a": (20, 400, 80)}, {"a": 2}, Budget(240_000, "given"), fixed=(0, 400, 80))
    assert str(caught.value) == (
        "Evaluation: the extents 400 x 80, which must be kept, are more than the 8000 voxels that fit in 80% of 0.23 MiB at 24 "
        "bytes per voxel (case 'a', 2 channels of 20 x 400 x 80). Raise memory_budget, let more axes be cut, or evaluate fewer "
        "groups or channels at a time."
    )


def test_a_budget_below_one_voxel_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match=r"^Evaluation: one voxel is more than the 0 voxels that fit"):
        evaluation_patch({"a": (20, 40, 80)}, {"a": 2}, Budget(20, "given"))


@pytest.mark.parametrize("fixed", [(1, 0), (1, 0, -1)])
def test_fixed_has_an_extent_per_axis(fixed: tuple[int, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        evaluation_patch({"a": (20, 40, 80)}, {"a": 2}, BUDGET, fixed=fixed)
    assert str(caught.value) == f"fixed has an extent from 0 on for each of the 3 spatial axes, got {fixed}."
