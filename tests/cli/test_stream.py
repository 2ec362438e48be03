"""``mla stream``: what a stream will do, how fast it does it, and what a file that is wrong is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray import transforms as T
from mlarray.errors import UsageError
from mlarray.streaming import ForegroundPatches, PatchStream, RandomPatches
from mlarray.streaming.stream_config import load_stream
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode

STREAM = """
Dataset:
  dataset_filenames: d
  groups_src:
    CT: {groups_dest: {X: {transforms: [Canonical, Standardize], patch_transforms: [Clip: {min_value: -3, max_value: 3}]}}}
    SEG: {groups_dest: {SEG: {transforms: [Canonical]}}}
  augmentations: {mirrored: {nb: 1, augmentations: [Flip]}}
  Patch: {patch_size: [8, 8, 8], overlap: null}
  sampler: {RandomPatches: {per_case: 3}}
  batch_size: 2
  memory_budget: 4 GiB
  shuffle_window: null
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for case in ("a", "b"):
        (tmp_path / "d" / case).mkdir(parents=True)
        for group, dtype in (("CT", np.float32), ("SEG", np.uint8)):
            voxels = rng.integers(0, 4, (10, 12, 14)).astype(dtype)
            image = MLArray(voxels, axes="zyx", spacing=(2, 1, 1), origin=(0, 0, 0), direction=np.eye(3), patch_size=8)
            image.save(tmp_path / "d" / case / f"{group}.mla")
    (tmp_path / "stream.yaml").write_text(STREAM, encoding="utf-8")
    return tmp_path / "stream.yaml"


def edited(config: Path, old: str, new: str) -> str:
    text = config.read_text(encoding="utf-8")
    assert old in text
    config.write_text(text.replace(old, new), encoding="utf-8")
    return str(config)


def test_the_plan_shows_the_decision_and_each_group_in_80_columns(config: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(["stream", "plan", str(config)]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert (
        " ".join(shown.split())
        .split("data set")[0]
        .endswith("2 cases, each with 1 copy: 12 patches of 8 x 8 x 8 in an epoch, 6 batches of 2. ")
    )
    assert [line for line in shown.splitlines() if len(line) > 80 and str(config.parent) not in line] == []
    assert "budget    4.00 GiB per rank (given)." in shown
    assert "\nX: 4 cache\n" in shown
    assert "\nSEG: 4 cache\n" in shown


def test_the_plan_as_json_is_what_the_stream_is(config: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(["stream", "plan", str(config), "--json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    stream = PatchStream.from_config(config)
    assert shown["decision"] == " ".join(stream.decision.line.split())
    del shown["decision"]
    assert shown == {
        "cases": ["a", "b"],
        "groups": ["X", "SEG"],
        "copies": 1,
        "patch_size": [8, 8, 8],
        "patches": 12,
        "batches": 6,
        "regime": "cache",
        "workers": 0,
        "queue_cases": stream.decision.fifo_cases,
        "predicted_peak_bytes": stream.decision.predicted_peak_bytes,
    }


@pytest.mark.parametrize("through", ["--torch", "--no-torch"])
def test_a_run_counts_what_came_in_each_epoch(config: Path, capsys: pytest.CaptureFixture, through: str) -> None:
    if through == "--torch":
        pytest.importorskip("torch")
    assert run(["stream", "run", str(config), "--epochs", "2", "--json", through]) == ExitCode.OK
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["epoch"], row["batches"], row["patches"]) for row in rows] == [(0, 6, 12), (1, 6, 12)]
    assert all(row["patches_per_second"] > 0 and row["peak_memory_bytes"] > 1 << 20 for row in rows)
    assert all(row["megabytes_per_second"] > 0 for row in rows)


def test_a_run_for_people_is_the_decision_and_a_line_for_each_epoch(
    config: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(["stream", "run", str(config), "--no-torch", "--workers", "1"]) == ExitCode.OK
    *decision, line = capsys.readouterr().out.splitlines()
    assert "\n".join(decision) == PatchStream.from_config(config).decision.line
    assert line.startswith("epoch 0   ")
    assert " patches/s, 12 in 6 batches, first after " in line
    assert line.endswith(" MiB")
    assert len(line) <= 80


def test_one_batch_has_no_rate(config: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["stream", "run", str(config), "--no-torch", "--batches", "1"]
    assert run([*arguments, "--json"]) == ExitCode.OK
    row = json.loads(capsys.readouterr().out)
    assert (row["batches"], row["patches"], row["patches_per_second"]) == (1, 2, None)
    assert run(arguments) == ExitCode.OK
    assert "one batch has no rate, 2 in 1 batches" in capsys.readouterr().out


def test_the_keys_are_the_arguments_of_a_stream(config: Path) -> None:
    found = load_stream(config)
    assert found["dataset"] == [str(config.parent / "d")]
    assert found["patch_size"] == [8, 8, 8]
    assert found["sampler"] == RandomPatches(3)
    assert found["batch_size"] == 2
    assert "shuffle_window" not in found  # null is the default
    assert (found["groups"]["X"].source, found["groups"]["X"].transforms) == ("CT", (T.Canonical(), T.Standardize()))
    assert found["groups"]["X"].patch_transforms == (T.Clip(-3, 3),)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("batch_size: 2", "batchsize: 2", "there is no key 'batchsize'. Did you mean batch_size?"),
        ("overlap: null", "ovelap: 3", "stream.yaml, Patch: there is no key 'ovelap'. Did you mean overlap?"),
        ("[Canonical]", "[Canonicl]", "there is no transform 'Canonicl'. Did you mean Canonical?"),
        ("RandomPatches:", "Random:", "sampler: there is no sampler 'Random'. Did you mean RandomPatches?"),
        ("{per_case: 3}", "{percase: 3}", "there is no parameter 'percase'. Did you mean per_case?"),
        ("{per_case: 3}", "", "sampler (RandomPatches): it needs per_case."),
        ("{per_case: 3}", "{per_case: x}", "sampler (RandomPatches): per_case is a whole number from 1 on, got 'x'."),
        ("{RandomPatches: {per_case: 3}}", "[1]", "sampler is a name, or a mapping of it to parameters, got [1]."),
        ("batch_size: 2", "batch_size: two", "batch_size is a whole number from 1 on, got 'two'."),
        ("batch_size: 2", "batch_size: 1.5", "batch_size is a whole number from 1 on, got 1.5."),
        ("batch_size: 2", "batch_size: true", "batch_size is a whole number from 1 on, got True."),
        ("batch_size: 2", "lanes: 0", "lanes is a whole number from 1 on, got 0."),
        ("batch_size: 2", "workers: -1", "workers is a whole number from 0 on, got -1."),
        ("batch_size: 2", "seed: [1]", "seed is a whole number, got [1]."),
        ("window: null", "window: x", "shuffle_window is a whole number from 1 on, got 'x'."),
        ("batch_size: 2", "shuffle: maybe", "shuffle is true or false, got 'maybe'."),
        ("batch_size: 2", "mode: 3", "mode is a word, got 3."),
        ("batch_size: 2", "mode: fit", "mode is one of 'train', 'predict', 'evaluate', got 'fit'."),
        ("batch_size: 2", "subset: {a: 1}", "subset is names, numbers, 'first:last', '~name' or a file of names, got"),
        ("batch_size: 2", "validation: {a: 1}", "or a share, got"),
        ("batch_size: 2", "cost_limit: x", "cost_limit is a number above 0, got 'x'."),
        ("[8, 8, 8]", "a", "patch_size is a whole number from 0 on, or one for each spatial axis, got 'a'."),
        ("[8, 8, 8]", "[8, 1.5, 8]", "one for each spatial axis, got [8, 1.5, 8]."),
        ("[8, 8, 8]", "-8", "one for each spatial axis, got -8."),
        ("[8, 8, 8]", "[8, 8]", "patch_size needs one entry per spatial axis, 3 here, got 2: (8, 8)."),
        ("patch_size: [8, 8, 8], ", "", "Patch: patch_size is missing."),
        ("overlap: null", "overlap: {a: 1}", "overlap is voxels, a share of the patch, or one for each"),
        ("overlap: null", "extend_slice: x", "extend_slice is a whole number from 0 on, got 'x'."),
        ("4 GiB", "lots", "memory_budget 'lots' is no amount of memory."),
        ("dataset_filenames: d", "dataset_filenames: 3", "the data set is a path or a list of paths, got 3."),
        ("dataset_filenames: d", "seed: 3", "names no data set"),
        ("dataset_filenames: d", "dataset_filenames: nowhere", "nowhere"),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    config: Path, capsys: pytest.CaptureFixture, old: str, new: str, told: str
) -> None:
    for command in ("plan", "run"):
        assert run(["stream", command, edited(config, old, new)]) == ExitCode.USAGE
        shown = capsys.readouterr().err
        assert told in shown
        assert "Unexpected" not in shown
        config.write_text(STREAM, encoding="utf-8")


def test_a_file_that_is_missing_or_no_yaml_is_named(config: Path, capsys: pytest.CaptureFixture) -> None:
    for command in ("plan", "run"):
        assert run(["stream", command, str(config.with_name("no.yaml"))]) == ExitCode.USAGE
        assert "no.yaml" in capsys.readouterr().err
        config.write_text("- a\n", encoding="utf-8")
        assert run(["stream", command, str(config)]) == ExitCode.USAGE
        assert "is a mapping, got ['a']" in capsys.readouterr().err
        config.write_text("Patch: {", encoding="utf-8")
        assert run(["stream", command, str(config)]) == ExitCode.USAGE
        assert "this is no YAML" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:The memory budget")
def test_a_budget_that_cannot_fit_is_refused_before_it_starts(config: Path, capsys: pytest.CaptureFixture) -> None:
    for command in ("plan", "run"):
        assert run(["stream", command, edited(config, "4 GiB", "2 kB")]) == ExitCode.SOME_FAILED
        shown = capsys.readouterr()
        assert "Training does not fit" in shown.err
        assert "Raise memory_budget" in shown.err
        assert shown.out == ""
        config.write_text(STREAM, encoding="utf-8")


def test_the_plan_says_what_save_will_write(config: Path, capsys: pytest.CaptureFixture) -> None:
    saved = config.parent / "s"
    edited(config, "transforms: [Canonical, Standardize]", f"transforms: [Canonical, Save: {{dataset: '{saved}'}}]")
    assert run(["stream", "plan", str(config)]) == ExitCode.OK
    assert f"Save writes {saved / 'a' / 'X.mla'}" in " ".join(capsys.readouterr().out.split())
    PatchStream.from_config(config).prepare()
    assert run(["stream", "plan", str(config)]) == ExitCode.OK
    assert "Save writes" not in capsys.readouterr().out


def test_without_a_word_it_says_that_one_is_missing(capsys: pytest.CaptureFixture) -> None:
    assert run(["stream"]) == ExitCode.USAGE
    assert "Missing command." in capsys.readouterr().err


def test_values_of_a_file_can_be_replaced(config: Path) -> None:
    stream = PatchStream.from_config(config, batch_size=3, sampler=ForegroundPatches(6, "SEG"))
    assert (len(stream), len(stream.batch(0))) == (8, 3)
    with pytest.raises(UsageError, match="batch_size is a whole number from 1 on"):
        PatchStream.from_config(config, batch_size=0)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("patch_size: [8, 8, 8]", "It stands under Patch: `Patch: {patch_size: ...}`."),
        ("overlap: 4", "It stands under Patch: `Patch: {overlap: ...}`."),
        ("transforms: [Canonical]", "It stands under a group: `groups: {CT: {transforms: [...]}}`."),
        ("rank: 1", "It is of the run: PatchStream.from_config(path, rank=...)."),
    ],
)
def test_a_key_that_stands_elsewhere_is_told_its_place(config: Path, line: str, hint: str) -> None:
    edited(config, "Dataset:\n", f"{line}\nDataset:\n")
    with pytest.raises(UsageError, match="does not stand here") as caught:
        load_stream(config)
    assert caught.value.hint == hint


def test_a_stream_that_is_no_yaml_is_told_how_yaml_is_written(config: Path) -> None:
    edited(config, "batch_size: 2", "batch_size: [2")
    with pytest.raises(UsageError, match="this is no YAML") as caught:
        load_stream(config)
    assert "Clip" not in caught.value.hint
    assert caught.value.hint.startswith("Write `key: value` on each line")


def test_paths_count_from_the_folder_of_the_file(
    config: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    (config.parent / "cases.txt").write_text("b\n", encoding="utf-8")
    edited(config, "transforms: [Canonical, Standardize]", "transforms: [Canonical, Save: {dataset: 'kept:mha'}]")
    edited(config, "  batch_size: 2", "  batch_size: 2\n  subset: cases.txt")
    stream = PatchStream.from_config(config)
    stream.prepare()
    assert stream.cases.names == ("b",)
    assert [path.name for path in (config.parent / "kept" / "b").iterdir()] == ["X.mha"]
    assert list(elsewhere.iterdir()) == []


def test_the_plan_does_not_speak_of_a_saved_result_that_is_not_there(
    config: Path, capsys: pytest.CaptureFixture
) -> None:
    edited(config, "transforms: [Canonical, Standardize]", "transforms: [Canonical, Save: {dataset: s}, Standardize]")
    assert run(["stream", "plan", str(config)]) == ExitCode.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "with the result of stages 1 to 2 before its first patch; all patches are read from it." in shown
    assert "in the saved result that is read" not in shown
    PatchStream.from_config(config).prepare()
    assert run(["stream", "plan", str(config)]) == ExitCode.OK
    assert "Stages 1 to 2 are in the saved result that is read." in " ".join(capsys.readouterr().out.split())
