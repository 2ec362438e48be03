"""The page about performance is what its script makes of the results beside it, and the scripts that measure still run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from .pages import ROOT

DOCS = ROOT / "docs" / "explanation"
COMPARE = ROOT / "benchmarks" / "compare"
MAKE_PAGE = ROOT / "benchmarks" / "report" / "make_page.py"
MACHINE = {"system": "Linux", "processors": 2, "memory_bytes": 8 * 2**30, "python": "3.11.0"}


def run(script: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def make_page(*arguments: str | Path) -> str:
    result = run(MAKE_PAGE, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """The page without anything that was kept."""
    (tmp_path / "docs").mkdir()
    shutil.copy(DOCS / "performance.md", tmp_path / "docs")
    return tmp_path / "docs"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def save(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results), encoding="utf-8")


def peers(**seconds: list[float]) -> dict[str, Any]:
    files = {"ours": {"seconds": 1.0, "bytes": 2_500_000}}
    case = {"patch": [64, 64, 64], "files": files, "seconds": seconds, "grid": [16, 32, 32], "patches_per_round": {}}
    check = {
        "check": "ours / nnunet, ct_int16 64",
        "median": 1.25,
        "low": 1.0,
        "high": 1.5,
        "bound": "<= 0.85",
        "kept": False,
    }
    opens = {"ours small": [0.0002] * 3, "memmap": [0.0001] * 3}
    reads = {"ct_int16": {"64": case}}
    return {"reads": reads, "opens": opens, "shape": [8, 8, 8], "checks": [check], "machine": MACHINE, "versions": {}}


def cells_of(page: str, first: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_page_and_pictures_are_what_the_script_makes_of_the_results_beside_them() -> None:
    result = run(MAKE_PAGE, "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_another_number_beside_the_page_is_found(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    path = tmp_path / "docs" / "performance" / "scaling.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["reads"]["ct_int16"]["over_one"]["2 processes"]["median"] = 1.2345
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    result = run(MAKE_PAGE, "--check", "--docs", tmp_path / "docs")
    assert result.returncode == 1
    assert {"performance.md", "performance/scaling.svg"} == set(re.findall(r"give: (\S+)", result.stdout))


def test_medians_are_of_ratios_within_rounds(docs: Path, results: Path) -> None:
    # Ratios 4, 2 and 3: their median is 3; that of the times alone would be 4 / 1 = 4.
    save(results / "any_name.json", peers(memmap=[1.0, 2.0, 1.0], ours=[4.0, 4.0, 3.0]))
    make_page(results, "--docs", docs)
    page = (docs / "performance.md").read_text(encoding="utf-8")
    assert cells_of(page, "mlarray, default layout")[1] == "3.00 (2.50 to 3.50)"
    assert cells_of(page, "*numpy memmap, milliseconds*")[1] == "1,000 (1,000 to 1,500)"
    assert cells_of(page, "mlarray, small-blocks")[1] == "200 (200 to 200)"
    assert "| ours / nnunet, ct_int16 64 | 1.25 (1.00 to 1.50) | ≤ 0.85 | **missed** |" in page
    assert "0 of 1 bounds were kept." in page


def test_what_is_written_by_hand_stays_and_a_second_run_changes_nothing(docs: Path, results: Path) -> None:
    page = docs / "performance.md"
    page.write_text(page.read_text(encoding="utf-8") + "\nBy hand.\n", encoding="utf-8")
    save(results / "peers.json", peers(memmap=[1.0], ours=[2.0]))
    make_page(results, "--docs", docs)
    assert page.read_text(encoding="utf-8").endswith("\nBy hand.\n")
    assert make_page("--docs", docs) == ""
    assert make_page("--check", "--docs", docs) == ""


def test_kinds_that_were_not_measured_again_stay_and_their_absence_is_said(docs: Path, results: Path) -> None:
    save(results / "peers.json", peers(memmap=[1.0], ours=[2.0]))
    make_page(results, "--docs", docs)
    (results / "peers.json").unlink()
    save(results / "other.json", {"something": "else"})
    result = run(MAKE_PAGE, results, "--docs", docs)
    assert result.returncode == 1
    assert "holds no results of peers, cold" in result.stderr
    page = (docs / "performance.md").read_text(encoding="utf-8")
    assert cells_of(page, "mlarray, default layout")[1] == "2.00 (2.00 to 2.00)"
    assert "Not measured" in page.split("## Cold reads")[1].split("##")[0]


def test_data_sets_of_several_files_are_joined(docs: Path, results: Path) -> None:
    save(results / "a.json", peers(memmap=[1.0], ours=[2.0]))
    other = peers(memmap=[1.0], ours=[5.0])
    other["reads"] = {"labels": other["reads"]["ct_int16"]}
    save(results / "b.json", other)
    make_page(results, "--docs", docs)
    page = (docs / "performance.md").read_text(encoding="utf-8")
    assert cells_of(page, "mlarray, default layout")[1:3] == ["2.00 (2.00 to 2.00)", "5.00 (5.00 to 5.00)"]


def test_a_page_that_lost_a_place_is_refused(docs: Path) -> None:
    page = docs / "performance.md"
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- figures: cold -->", ""), encoding="utf-8")
    result = run(MAKE_PAGE, "--docs", docs)
    assert result.returncode == 1
    assert "wanted, once each" in result.stderr


def test_every_picture_is_well_formed_and_shown() -> None:
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    pictures = sorted((DOCS / "performance").glob("*.svg"))
    for path in pictures:
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert f"](performance/{path.name})" in page
    assert pictures


@pytest.mark.slow
def test_writing_is_measured(tmp_path: Path) -> None:
    options = ["--shape", "40,48,48", "--patch", "16", "--rounds", "2", "--data", "ct_int16", "--layouts", "nnunet"]
    result = run(COMPARE / "writing.py", tmp_path, *options, "--json", tmp_path / "out.json")
    assert result.returncode == 0, result.stderr
    measured = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    found = measured["writes"]["ct_int16"]["nnunet"]
    assert {name: len(times) for name, times in found["seconds"].items()} == {
        "at once": 2,
        "slabs": 2,
        "slabs no map": 2,
    }
    ratios = [
        whole / slabs for whole, slabs in zip(found["seconds"]["at once"], found["seconds"]["slabs"], strict=True)
    ]
    assert found["over_at_once"]["slabs"]["median"] == pytest.approx(sum(ratios) / 2)
    assert len(measured["checks"]) == 1
    assert measured["checks"][0]["kept"] is (sum(ratios) / 2 >= 0.85)
    assert [path.name for path in (tmp_path / "writing").iterdir()] == []


@pytest.mark.slow
def test_scaling_is_measured(tmp_path: Path) -> None:
    options = ["--shape", "32,48,48", "--patch", "16", "--rounds", "1", "--data", "ct_int16", "--readers", "1,2"]
    result = run(COMPARE / "scaling.py", tmp_path, *options, "--json", tmp_path / "out.json")
    assert result.returncode == 0, result.stderr
    measured = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    found = measured["reads"]["ct_int16"]["over_one"]
    assert list(found) == [
        "1 reader",
        "2 threads",
        "2 processes",
        "1 reader, 2 decompression threads",
        "2 processes, 2 decompression threads",
    ]
    assert found["1 reader"]["median"] == 1
    assert all(one["median"] > 0 for one in found.values())
