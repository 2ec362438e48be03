"""``mla plan``: verdicts of a chain for files, and chains as YAML."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from mlarray import MLArray
from mlarray import transforms as T
from mlarray.errors import UsageError
from mlarray.limits import YAML_BYTES
from mlarray.storage.blosc import open_store
from mlarray.streaming.config import chain_of, load_chain
from mlarray_convert import convert
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from tests.conformance.dicom_files import stack

CHAIN = "- Flip: {dims: '0|2'}\n- Clip: {min_value: -200, max_value: 400}\n- Standardize\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    voxels = np.arange(24 * 30 * 36, dtype=np.float32).reshape(24, 30, 36)
    MLArray(voxels, axes="zyx", spacing=(2, 1, 1)).save(tmp_path / "d" / "a.mla")
    (tmp_path / "chain.yaml").write_text(CHAIN, encoding="utf-8")
    return tmp_path


def test_the_table_names_regime_stages_and_what_is_read(data: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(["plan", str(data / "d"), "--chain", str(data / "chain.yaml"), "--patch-size", "8"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{data / 'd' / 'a.mla'}: stream (extended profile)"
    assert [line.split()[1] for line in lines[-3:]] == ["Flip", "Clip", "Standardize"]
    assert all("8 x 8 x 8" in line for line in lines[-3:])


def test_the_strict_profile_names_stage_rule_and_remedy(data: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["plan", str(data / "d" / "a.mla"), "--chain", str(data / "chain.yaml"), "--patch-size", "8"]
    assert run([*arguments, "--strict", "--json"]) == ExitCode.OK
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert (verdict["regime"], verdict["stage"], verdict["rule"]) == ("buffer", 3, "statistic-after-change")
    assert verdict["remedy"]


def test_a_file_that_cannot_be_planned_does_not_stop_the_others(data: Path, capsys: pytest.CaptureFixture) -> None:
    (data / "d" / "b.nii").write_bytes(b"no image")
    assert run(["plan", str(data / "d"), "--chain", str(data / "chain.yaml"), "--json"]) == ExitCode.SOME_FAILED
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["verdict"]["regime"] == "stream"
    assert "b.nii" in bad["error"]


@pytest.mark.parametrize("name", ["b.h5", "b.zarr", "b.tif"])
def test_a_file_whose_images_cannot_be_listed_is_a_line_of_its_own(
    data: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    (data / "d" / name).write_bytes(b"nothing")
    assert run(["plan", str(data / "d"), "--chain", str(data / "chain.yaml"), "--json"]) == ExitCode.SOME_FAILED
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["verdict"]["regime"] == "stream"
    assert name in bad["error"]


def test_a_chain_is_a_list_or_a_mapping(data: Path) -> None:
    listed = load_chain(data / "chain.yaml")
    assert listed == [T.Flip(dims="0|2"), T.Clip(min_value=-200, max_value=400), T.Standardize()]
    assert (
        chain_of({"Flip": {"dims": "0|2"}, "Clip": {"min_value": -200, "max_value": 400}, "Standardize": None})
        == listed
    )
    assert chain_of(None) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- Clipp", "entry 1: there is no transform 'Clipp'. Did you mean Clip?"),
        ("- Clip: {min_valu: 3}", "there is no parameter 'min_valu'. Did you mean min_value?"),
        ("- Clip: 3", "its parameters are 3, not a mapping"),
        ("- Clip: {min_value: 5, max_value: 1}", "entry 1 (Clip)"),
        ("- [Clip]", "not a name or a name with its parameters"),
        ("7", "7 is no list of transforms"),
        ("- Resample", "there is no transform 'Resample'. Did you mean ResampleToShape or ResampleToResolution?"),
        ("- clip", "there is no transform 'clip'. Did you mean Clip?"),
        ("- Clip:\n  min_value: 3", "Parameters of Clip stand further to the right"),
        ("- Standardize\n- Clip: {min_value: 5", "chain.yaml, line 2, column 22: this is no YAML"),
        ("- Clip: {min_value: low}", "entry 1 (Clip)"),
        ("- Percentage", "entry 1 (Percentage): it needs baseline. It takes baseline."),
        ("transforms: [Clip]\nother: 3", "there is no section 'other' beside transforms and augmentations"),
        ("transforms: 3", "chain.yaml, transforms: 3 is no list of transforms"),
        ("augmentations: [Flip]", "['Flip'] is no mapping of lists. Write `NAME: {nb: 10"),
        ("augmentations: {a: {nb: 3}}", "list 'a' is {'nb': 3}, not a mapping with augmentations"),
        (
            "augmentations: {a: {augmentations: [Flop]}}",
            "list 'a', entry 1: there is no augmentation 'Flop'. Did you mean",
        ),
        (
            "augmentations: {a: {augmentations: [Flip], n: 3}}",
            "list 'a': there is no key 'n'; it has nb and augmentations",
        ),
        ("augmentations: {a: {augmentations: [Flip], nb: -3}}", "list 'a': nb is a number of copies from 0 on, got -3"),
        ("augmentations: {a: {augmentations: [Flip: {prob: 2}]}}", "list 'a': prob of Flip is a probability"),
        (
            "augmentations: {a: {augmentations: [Flip: {probb: 1}]}}",
            "no parameter 'probb'. Did you mean prob?",
        ),
        ("augmentations: {a: {augmentations: [Flip]}}", "has augmentations besides a chain. load_recipe reads both."),
        ("Clip: {}\nClip: {}", "stands twice"),
        ("a: &x [1]\nb: *x", "aliases are not read"),
        ("- !!python/object/apply:os.system [ls]", "line 1, column 3: this is no YAML"),
        ("- Transform", "there is no transform 'Transform'"),
        ("[" * 5000, "cannot be read as YAML"),
        ("- \udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "\x00", "cannot be read as YAML"),
    ],
)
def test_a_wrong_chain_is_one_clear_error(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_chain(path)
    assert told in str(caught.value)


def test_a_chain_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        load_chain(tmp_path / "none.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (YAML_BYTES + 1))
    with pytest.raises(UsageError, match="is larger than"):
        load_chain(tmp_path / "large.yaml")


RECIPE = """
transforms:
  - Clip: {min_value: -200, max_value: 400}
  - Standardize: {mask: SEG}
augmentations:
  shape: {nb: 3, augmentations: [Flip, Rotate: {a_min: 5, a_max: 10}]}
  values:
    augmentations: {Brightness: {b_std: 0.1, prob: 0.5}}
    nb: 2
"""
SHAPE = (12, 14, 16)


def volume(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 300, SHAPE).astype(np.float32)


def tree(folder: Path, kind: str) -> list[str]:
    """Write a data set of two cases with two groups; return what its CT volumes are called."""
    mask = (volume() > 0).astype(np.uint8)
    if kind == "hdf5":
        with h5py.File(folder / "all.h5", "w") as file:
            for case in ("case1", "case2"):
                file[f"CT/{case}"], file[f"SEG/{case}"] = volume(), mask
        return [f"{folder / 'all.h5'}@/CT/{case}" for case in ("case1", "case2")]
    for case in ("case1", "case2"):
        (folder / case).mkdir()
        MLArray(mask, axes="zyx", spacing=(2, 1, 1)).save(folder / case / "SEG.mla")
        if kind == "dicom":
            slices = tuple(volume().astype(np.int16))
            stack(folder / case / "CT", [2.0 * k for k in range(12)], array=slices, PixelSpacing=[1.0, 1.0])
        elif kind == "ome-zarr":
            MLArray(volume(), axes="zyx", spacing=(2, 1, 1)).save(folder / "ct.mla")
            convert(folder / "ct.mla", folder / case / "CT.ome.zarr", workers=1)
            (folder / "ct.mla").unlink()
        else:
            MLArray(volume(), axes="zyx", spacing=(2, 1, 1)).save(folder / case / "CT.mla")
    suffix = {"dicom": "", "mla": ".mla", "ome-zarr": ".ome.zarr"}[kind]
    return [str(folder / case / f"CT{suffix}") for case in ("case1", "case2")]


def planned(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, list[dict]]:
    code = run(["plan", *map(str, arguments), "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("kind", ["mla", "dicom", "ome-zarr", "hdf5"])
def test_a_data_set_is_planned_case_by_case_with_its_masks(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture
) -> None:
    data, chain = tmp_path / "data", tmp_path / "chain.yaml"
    data.mkdir()
    names = tree(data, kind)
    chain.write_text(RECIPE, encoding="utf-8")
    place = data / "all.h5" if kind == "hdf5" else data
    code, rows = planned(capsys, place, "--group", "CT", "--chain", chain, "--patch-size", "8")
    assert code == ExitCode.OK, rows
    assert [row["case"] for row in rows] == names
    for row in rows:
        assert (row["group"], row["verdict"]["regime"], row["problems"]) == ("CT", "stream", [])
        assert row["rows"][1]["note"].startswith("reads group SEG")
        assert [one["copy"] for one in row["copies"]] == [1, 2, 3, 4, 5]
    code, rows = planned(capsys, place, "--chain", chain, "--patch-size", "8")
    assert (code, sorted(row["group"] for row in rows)) == (ExitCode.OK, ["CT", "CT", "SEG", "SEG"])


def test_a_mask_that_is_not_beside_an_image_is_a_problem(data: Path, capsys: pytest.CaptureFixture) -> None:
    (data / "chain.yaml").write_text("[Mask: {path: SEG}]", encoding="utf-8")
    code, rows = planned(capsys, data / "d", "--chain", data / "chain.yaml")
    assert (code, rows[0]["verdict"]["regime"]) == (ExitCode.ALL_FAILED, "stream")
    assert "has no group 'SEG'; known are none." in rows[0]["problems"][0]


def test_a_group_that_is_not_there_lists_those_that_are(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tree(tmp_path, "mla")
    (tmp_path / "chain.yaml").write_text(CHAIN, encoding="utf-8")
    assert run(["plan", str(tmp_path), "--group", "MR", "--chain", str(tmp_path / "chain.yaml")]) == 2
    assert "There is no group 'MR'; found are CT, SEG." in capsys.readouterr().err


def test_a_mask_on_another_grid_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tree(tmp_path, "mla")
    MLArray(np.ones((3, 4, 5), np.uint8), axes="zyx").save(tmp_path / "case2" / "SEG.mla")
    (tmp_path / "chain.yaml").write_text(RECIPE, encoding="utf-8")
    code, rows = planned(capsys, tmp_path, "--group", "CT", "--chain", tmp_path / "chain.yaml")
    assert (code, rows[0]["problems"]) == (ExitCode.SOME_FAILED, [])
    assert (
        "Stage 2 (Standardize): group 'SEG' has the shape (3, 4, 5), the array (12, 14, 16)." in rows[1]["problems"][0]
    )


def test_one_copy_is_shown_with_its_draws(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tree(tmp_path, "mla")
    (tmp_path / "chain.yaml").write_text(RECIPE, encoding="utf-8")
    arguments = (tmp_path / "case1", "--group", "CT", "--chain", tmp_path / "chain.yaml", "--patch-size", "8")
    _, rows = planned(capsys, *arguments, "--copy", 1)
    assert [row["name"] for row in rows[0]["rows"]][:2] == ["Clip", "Standardize"]
    assert rows[0]["rows"][-1]["name"] == "Rotate"
    assert "copies" not in rows[0]
    _, strict = planned(capsys, *arguments, "--strict")
    assert [one["regime"] for one in strict[0]["copies"]] == ["buffer"] * 5
    assert run(["plan", *map(str, arguments), "--copy", "6"]) == 2
    assert "There is no copy 6" in capsys.readouterr().err
    assert run(["plan", *map(str, arguments)]) == ExitCode.OK
    assert "  5 copies: 5 stream, 0 are buffered." in capsys.readouterr().out.splitlines()


def test_nothing_but_headers_is_read(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tree(tmp_path, "mla")
    path = tmp_path / "case1" / "CT.mla"
    data = bytearray(path.read_bytes())
    store = open_store(path)
    chunk = store.chunk_bytes(0)
    store.close()
    place = bytes(data).find(chunk)
    data[place + 32 : place + len(chunk)] = bytes(len(chunk) - 32)  # no voxel can be decoded
    path.write_bytes(data)
    (tmp_path / "chain.yaml").write_text("[Crop, Standardize, {Clip: {min_value: 'percentile:1'}}]", encoding="utf-8")
    code, rows = planned(capsys, path, "--chain", tmp_path / "chain.yaml", "--patch-size", 8)
    assert (code, rows[0]["verdict"]["rule"]) == (ExitCode.OK, "whole-volume")
    assert "measures that first" in rows[0]["verdict"]["remedy"]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_text_keeps_to_the_width_of_the_terminal(
    data: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(data)
    chain = "[ResampleToShape: {shape: [3, 4, 5]}, Dilate: {dilate: 3}, Standardize, Padding: {padding: [1,1,1,1,1,1]}]"
    (data / "long.yaml").write_text(chain, encoding="utf-8")
    for strict in ([], ["--strict"]):
        assert run(["plan", "d", "--chain", "long.yaml", "--patch-size", "2", *strict]) == ExitCode.OK
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        assert not any(line.rstrip().endswith(" x") for line in lines)
