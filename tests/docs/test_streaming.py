"""The pictures of the page about streaming are what its script draws from the planner, and the page shows them."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "streaming.md"


def test_pictures_are_what_the_planner_answers_now() -> None:
    draw = PAGE.parent / "streaming" / "draw.py"
    result = subprocess.run(
        [sys.executable, "-W", "error", str(draw), "--check"], capture_output=True, encoding="utf-8", check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_picture_is_well_formed_and_shown() -> None:
    pictures = sorted((PAGE.parent / "streaming").glob("*.svg"))
    for path in pictures:
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert f"](streaming/{path.name})" in PAGE.read_text(encoding="utf-8")
    assert [path.stem for path in pictures] == ["folding", "maps", "statistics"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks at memory and drops pages as Linux does")
def test_streaming_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "compare" / "streaming.py"), str(tmp_path)]
    options = ["--gib", "0.02", "--rounds", "1", "--json", str(tmp_path / "out.json")]
    result = subprocess.run([*command, *options], capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    measured = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert measured["files"]["result"] == [835, 835, 28]
    assert set(measured["files"]["over_mha"]["cold"]) == {"mla", "mla mapped"}
    assert len(measured["checks"]) == 16 + 3 + 4
