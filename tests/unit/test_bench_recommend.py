"""The rule that turns measurements into one setting, on measurements that are made up."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlarray.layout import PatchSize
from mlarray.spec import ArraySpec
from mlarray.storage.options import StorageOptions
from mlarray_convert.bench.candidates import Candidate, Codec, layout_of, make_candidates
from mlarray_convert.bench.measure import FLOOR, Rounds, Stored
from mlarray_convert.bench.recommend import (
    best_candidate,
    command_text,
    compare,
    python_text,
    recommend,
    spread_of,
)
from mlarray_convert.cli.convert import command as convert_command
from mlarray_convert.request import make_request

CT = ArraySpec((400, 512, 512), np.dtype(np.int16))
LZ4HC = Codec("LZ4HC", 5)
DEFAULT = Candidate("default", "nnunet", LZ4HC, "auto", {"patch_size": 64}, 0)
SMALL = Candidate("small", "small-blocks", LZ4HC, "auto", {"patch_size": 64, "block_limit_bytes": 32768}, 1)
LZ4 = Candidate("lz4", "small-blocks", Codec("LZ4", 5), "shuffle", {"patch_size": 64, "cparams": {"codec": 1}}, 2)


def stored(candidate: Candidate, size: int = 100) -> Stored:
    return Stored(candidate, (Path("x.mla"),), (64,) * 3, (32,) * 3, ("SHUFFLE",), size, 1.0)


def rounds(mode: str = "warm_1", count: int = 5, **ratios: float | list[float]) -> Rounds:
    """Rounds in which the default's time drifts by a factor of three, and the others keep their ratio to it."""
    drift = [1.0 + 2 * index / count for index in range(count)]
    per_round = {name: ratio if isinstance(ratio, list) else [ratio] * count for name, ratio in ratios.items()}
    times = {"default": tuple(drift)}
    times |= {name: tuple(d * r for d, r in zip(drift, values, strict=True)) for name, values in per_round.items()}
    return Rounds({mode: times}, {mode: 1})


def test_drift_of_the_machine_does_not_count() -> None:
    compared = compare("small", "default", [rounds(small=0.8)])
    assert compared is not None
    assert compared.total.median == pytest.approx(0.8)
    assert compared.total.low == pytest.approx(compared.total.high)
    assert compared.is_faster


def test_ways_of_reading_are_summed_up_by_the_geometric_mean() -> None:
    compared = compare("small", "default", [rounds(small=0.5), rounds("cold_1", small=2.0)])
    assert compared is not None
    assert compared.total.median == pytest.approx(1.0)
    assert set(compared.ratios) == {"warm_1", "cold_1"}


def test_what_was_not_measured_in_every_way_cannot_be_compared() -> None:
    assert compare("small", "default", [rounds(small=0.5), rounds("cold_1")]) is None
    assert compare("small", "default", []) is None


@pytest.mark.parametrize(
    ("ratio", "count"),
    [(0.97, 5), (1.2, 5), ([0.7, 0.7, 0.7, 1.3, 1.3], 5), (0.5, 4)],
    ids=["less than 5 %", "slower", "within the spread", "too few rounds"],
)
def test_the_default_is_kept_where_nothing_is_clearly_faster(ratio: float | list[float], count: int) -> None:
    measured = [rounds(count=count, small=ratio)]
    both = [stored(DEFAULT), stored(SMALL)]
    assert best_candidate(both, measured) is None
    advice = recommend(both, None, measured, [])
    assert (advice.name, advice.keep_default, advice.python) == ("default", True, "MLArray(array, patch_size=64)")
    assert "small" in advice.reason


def test_a_way_of_reading_that_gets_slower_outweighs_a_gain_elsewhere() -> None:
    both = [stored(DEFAULT), stored(SMALL)]
    assert best_candidate(both, [rounds(small=0.5), rounds("cold_1", small=1.04)]) is not None
    assert best_candidate(both, [rounds(small=0.5), rounds("cold_1", small=1.1)]) is None


def test_larger_files_are_not_recommended() -> None:
    measured = [rounds(small=0.5)]
    assert best_candidate([stored(DEFAULT), stored(SMALL, 110)], measured) is not None
    assert best_candidate([stored(DEFAULT), stored(SMALL, 111)], measured) is None
    advice = recommend([stored(DEFAULT), stored(SMALL, 111)], None, measured, [])
    assert "1.11 times as large" in advice.reason


def test_of_equals_the_one_that_changes_least_wins() -> None:
    three = [stored(DEFAULT), stored(LZ4), stored(SMALL)]
    spread = [0.68, 0.69, 0.70, 0.73, 0.75]
    chosen = best_candidate(three, [rounds(lz4=spread, small=0.72)])
    assert chosen is not None
    assert chosen.candidate.name == "small"
    faster = best_candidate(three, [rounds(lz4=0.5, small=0.72)])
    assert faster is not None
    assert faster.candidate.name == "lz4"


def test_a_recommendation_must_be_confirmed_on_new_patches() -> None:
    both, first = [stored(DEFAULT), stored(SMALL)], [rounds(small=0.8)]
    chosen = best_candidate(both, first)
    good = recommend(both, chosen, first, [rounds(small=0.82)])
    assert (good.name, good.keep_default) == ("small", False)
    assert good.python == "MLArray(array, patch_size=64, block_limit_bytes=32768)"
    assert good.command == "mlarray_convert.convert('DATASET', patch_size=64, storage={'block_limit_bytes': 32768})"
    for second in ([rounds(small=1.0)], []):
        kept = recommend(both, chosen, first, second)
        assert (kept.name, kept.keep_default, kept.command) == ("default", True, "mla convert DATASET --patch-size 64")


def test_a_named_layout_is_an_option_of_the_command() -> None:
    small = next(one for one in make_candidates(CT, (64, 96, 96), chosen_filter="none") if one.layout == "small-blocks")
    assert python_text(small) == "MLArray(array, patch_size=(64, 96, 96), layout='small-blocks')"
    assert command_text(small) == "mla convert DATASET --patch-size 64,96,96 --layout small-blocks"


def test_the_patch_size_that_holds_anyway_is_not_given() -> None:
    default, *others = make_candidates(CT, "default", chosen_filter="none")
    assert (python_text(default), command_text(default)) == ("MLArray(array)", "mla convert DATASET")
    assert command_text(others[0]) == "mla convert DATASET --layout small-blocks"


@pytest.mark.parametrize("patch", ["default", 64, (32, 64, 48)])
def test_every_text_asks_for_exactly_what_was_measured(patch: PatchSize) -> None:
    names = {
        "mlarray_convert": SimpleNamespace(convert=make_request),
        "MLArray": lambda _, **storage: storage,
        "array": 0,
    }
    for one in make_candidates(CT, patch, chosen_filter="shuffle", chunk_size=96, block_size=24):
        asked = [eval(python_text(one), names)]
        text = command_text(one)
        if text.startswith("mla convert "):
            words = convert_command.make_context("convert", text.split()[2:]).params
            asked.append(make_request("DATASET", patch_size=words["patch_size"], layout=words["layout"]).storage)
        else:
            asked.append(eval(text, names).storage)
        for storage in asked:
            options = StorageOptions.from_mapping(storage)
            assert options.layout_for(CT) == layout_of(one, CT), text
            assert options.cparams == one.arguments.get("cparams"), text


def test_the_floor_is_never_recommended() -> None:
    assert best_candidate([stored(DEFAULT)], [rounds(**{FLOOR: 0.3})]) is None


def test_the_callers_own_layout_has_no_command() -> None:
    own = Candidate("yours", "yours", LZ4HC, "auto", {"chunk_size": 64, "block_size": 16}, 1)
    assert command_text(own) == "mlarray_convert.convert('DATASET', storage={'chunk_size': 64, 'block_size': 16})"


def test_quartiles_are_numpys() -> None:
    import numpy as np

    values = [5.0, 1.0, 2.5, 9.0]
    spread = spread_of(values)
    assert [spread.low, spread.median, spread.high] == np.quantile(values, [0.25, 0.5, 0.75]).tolist()
