"""The format that the documentation builds works as a package: listed, converted to and from, tested by its own tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray

from .pages import ROOT, Block, blocks_of

PAGE = ROOT / "docs" / "how-to" / "add-a-format.md"
MLA = "import sys; from mlarray_convert.cli import main; main(sys.argv[1:])"


def block_with(word: str, language: str) -> Block:
    (found,) = [
        block
        for block in blocks_of(PAGE.read_text(encoding="utf-8"))
        if block.language == language and word in block.text
    ]
    return found


def install(folder: Path, name: str, points: dict[str, str], modules: dict[str, str]) -> Path:
    """Lay out a distribution as pip does: its modules, and a folder that says what it is."""
    folder.mkdir(exist_ok=True)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{key} = {value}" for key, value in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[mlarray.formats]", *lines, ""]), encoding="utf-8")
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The package of the page, installed."""
    project = tomllib.loads(block_with("entry-points", "toml").text)["project"]
    module = block_with("FORMAT = Format(", "python").text
    points = project["entry-points"]["mlarray.formats"]
    return install(tmp_path / "site", project["name"], points, {"mlarray_vox": module})


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=site.parent, capture_output=True, encoding="utf-8", check=False)


def mla(site: Path, *arguments: str) -> str:
    result = python(site, "-W", "error", "-c", MLA, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_package_is_listed_with_what_it_says_of_itself(site: Path) -> None:
    *_, vox = json.loads(mla(site, "formats", "--json"))
    assert vox == {
        "name": "vox",
        "title": "Voxel dump",
        "suffixes": [".vox"],
        "writes": True,
        "partial_reads": "yes",
        "package": "mlarray-vox",
    }
    told = mla(site, "formats", "vox")
    assert "Origin, direction and everything but three axes of space." in told
    assert "A line of JSON, and the voxels in C order." in told


def test_data_sets_are_converted_to_it_and_back(site: Path, tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    (tmp_path / "scans").mkdir()
    MLArray(array, spacing=(2, 1, 1), axes="zyx").save(tmp_path / "scans" / "a.mla")
    mla(site, "convert", "scans", "--to", "vox", "-o", "dumps", "--workers", "1")
    assert (tmp_path / "dumps" / "a.vox").read_bytes().endswith(array.tobytes())
    assert json.loads(mla(site, "info", "dumps/a.vox", "--json"))["spacing_mm"] == [2, 1, 1]
    mla(site, "convert", "dumps", "--workers", "1")
    with MLArray.open(tmp_path / "dumps_mla" / "a.mla") as stored:
        np.testing.assert_array_equal(stored[...], array)
        assert stored.spacing == [2, 1, 1]
        assert stored.meta._image_meta_format.image_meta_format == "vox"


def test_its_own_tests_pass(site: Path, tmp_path: Path) -> None:
    (tmp_path / "test_vox.py").write_text(block_with("class TestVoxSource", "python").text, encoding="utf-8")
    result = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_vox.py")
    assert result.returncode == 0, result.stdout
    assert "passed" in result.stdout


ROW = "from mlarray.formats.table import Format\n"
BROKEN = {
    "gone": (
        "gone_format:FORMAT",
        {},
        r"The format 'gone' of the package mlarray-gone cannot be used: ModuleNotFoundError",
    ),
    "wild": (
        "wild_format:FORMAT",
        {"wild_format": "raise RuntimeError('no licence')"},
        "The format 'wild' of the package mlarray-wild cannot be used: RuntimeError: no licence.",
    ),
    "thief": (
        "thief_format:FORMAT",
        {"thief_format": f"{ROW}FORMAT = Format('nifti', 'Mine', ('.nii',), __name__)"},
        "The format 'thief' of the package mlarray-thief is left out: the name 'nifti' is that of NIfTI-1",
    ),
    "lazy": (
        "lazy_format:FORMAT",
        {"lazy_format": f"{ROW}FORMAT = Format('lazy', 'Lazy', ('.lazy',), 'absent_reader')"},
        "",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_costs_one_warning_and_nothing_else(name: str, site: Path, tmp_path: Path) -> None:
    value, modules, warning = BROKEN[name]
    install(site, f"mlarray-{name}", {name: value}, modules)
    MLArray(np.arange(60, dtype=np.int16).reshape(3, 4, 5), axes="zyx").save(tmp_path / "a.mla")
    result = python(site, "-c", MLA, "convert", "a.mla", "-o", "a.vox", "--workers", "1")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "a.vox").exists()
    warned = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warned) == bool(warning)
    assert all(warning in line and f"Update or remove mlarray-{name}." in line for line in warned)
    assert "Traceback" not in result.stderr


def test_a_format_whose_reader_is_missing_fails_for_its_own_files_by_name(site: Path, tmp_path: Path) -> None:
    value, modules, _ = BROKEN["lazy"]
    install(site, "mlarray-lazy", {"lazy": value}, modules)
    (tmp_path / "a.lazy").write_bytes(b"x")
    result = python(site, "-c", MLA, "info", "a.lazy")
    assert result.returncode == 4
    assert "The format 'lazy' of the package mlarray-lazy cannot be loaded: ModuleNotFoundError" in result.stderr
    assert "Update or remove mlarray-lazy." in result.stderr
    assert "Traceback" not in result.stderr
