"""The pictures of the page about streaming are what its script draws from the planner, and the page shows them."""

import subprocess
import sys
from xml.etree import ElementTree

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
