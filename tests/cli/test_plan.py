"""``mla plan``: verdicts of a chain for files, and chains as YAML."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray import transforms as T
from mlarray.errors import UsageError
from mlarray.streaming.config import CONFIG_LIMIT_BYTES, chain_of, load_chain
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode

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
        ("7", "not a list of transforms"),
        ("Clip: {}\nClip: {}", "stands twice"),
        ("a: &x [1]\nb: *x", "aliases are not read"),
        ("- !!python/object/apply:os.system [ls]", "cannot be read as YAML"),
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
    (tmp_path / "large.yaml").write_bytes(b"#" * (CONFIG_LIMIT_BYTES + 1))
    with pytest.raises(UsageError, match="is larger than"):
        load_chain(tmp_path / "large.yaml")
