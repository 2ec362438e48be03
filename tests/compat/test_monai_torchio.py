"""MONAI and TorchIO see a patch that is handed to them where they see it in the file itself."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from .environment import make_environment

ROOT = Path(__file__).resolve().parents[2]
PEERS = ("monai==1.6.1", "torchio==1.2.1")
# What TorchIO needs and this environment has not; with --no-deps, so that no second torch is installed.
WITH_THEM = ("deprecated", "wrapt", "einops", "humanize", "jaxtyping", "wadler_lindig", "typer", "shellingham", "rich",
             "annotated-doc", "markdown-it-py", "mdurl", "pygments", "click")  # fmt: skip
FLOAT32_MM = 1e-5  # TorchIO and MONAI read NIfTI's float32 affine, 5e-7 relative of positions below 50 mm


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("torch", reason="needs torch")
    folder = tmp_path_factory.mktemp("peers")
    python = make_environment(folder / "env", "MONAI and TorchIO", ["--no-deps", *PEERS, *WITH_THEM])
    paths = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    result = subprocess.run(
        [python, "-m", "tests.compat.patch_peers", folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["monai", "torchio"])
def test_a_patch_has_the_voxels_and_the_place_that_the_file_gives_it(shown: dict[str, Any], peer: str) -> None:
    assert shown[peer]["shape"] == [1, 5, 7, 6]
    assert shown[peer]["same voxels"] is True
    assert shown[peer]["affine differs by mm"] < FLOAT32_MM
    assert shown[peer]["moved by turning, mm"] < FLOAT32_MM
    assert shown[peer]["shares memory"] is True


@pytest.mark.slow
def test_a_patch_keeps_its_name(shown: dict[str, Any]) -> None:
    assert shown["monai"]["meta"] == {"case": "case_1", "copy": 2, "patch_start": [2, 3, 4], "space": "RAS"}
    assert shown["torchio"]["case"] == ["case_1", 2, [2, 3, 4]]
    assert shown["torchio"]["kinds"] == ["ScalarImage", "LabelMap"]


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["monai", "torchio"])
def test_a_patch_that_lies_nowhere_has_the_peers_own_default(shown: dict[str, Any], peer: str) -> None:
    assert shown[peer]["nowhere"] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
