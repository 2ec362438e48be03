"""nnU-Net 2.8.1 itself, in an environment of its own, reads what is converted and what is exported.

Its data loader draws the same batches, bit for bit, from its own files and from ``.mla`` files. An interpreter that has nnU-Net
can be named in ``MLARRAY_NNUNET_PYTHON``; otherwise an environment is made with the parts of it that loading needs and the CPU
build of torch, where that can be had.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlarray_convert import convert

from . import nnunet_cases_path
from .environment import make_environment

pytestmark = pytest.mark.slow

RUN_TIMEOUT_SECONDS = 300
ROOT = Path(__file__).parents[2]
# Without their dependencies, which would be gigabytes and have no part in loading.
ALONE = (
    "torch==2.13.0+cpu",
    "nnunetv2==2.8.1",
    "acvl-utils==0.2.6",
    "batchgenerators==0.25.3",
    "dynamic-network-architectures==0.4.4",
)
WITH_DEPENDENCIES = (
    *(f"{name}=={importlib.metadata.version(name)}" for name in ("blosc2", "numpy", "xxhash", "msgpack")),
    *("scipy", "scikit-image", "threadpoolctl", "tqdm", "SimpleITK", "nibabel", "typing_extensions", "filelock"),
    *("sympy", "networkx", "jinja2", "fsspec"),
)
CASES = ("scan_0001", "scan_0002", "scan_0003")
SAME_CASE = {"arrays": [True, True, True], "properties": []}
SAVED_CASE = {"arrays": [True, True], "properties": [], "layout": [True, True]}
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def nnunet(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run ``nnunet_cases.py`` where nnU-Net is installed."""
    given = os.environ.get("MLARRAY_NNUNET_PYTHON")
    python = (
        Path(given)
        if given
        else make_environment(
            tmp_path_factory.mktemp("nnunet") / "env",
            "nnU-Net",
            ("--no-deps", *ALONE),
            WITH_DEPENDENCIES,
            check="import torch, nnunetv2",
        )
    )
    folder = tmp_path_factory.mktemp("runs")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(*arguments: object) -> Any:
        done = subprocess.run(
            [python, nnunet_cases_path(), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_SECONDS,
            cwd=folder,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None

    return run


@pytest.fixture(scope="module")
def preprocessed(tmp_path_factory: pytest.TempPathFactory, nnunet: Run) -> Path:
    root = tmp_path_factory.mktemp("preprocessed") / "Dataset001_Scan"
    nnunet("write", root)
    return root / "nnUNetPlans_3d_fullres"


@pytest.fixture(scope="module")
def converted(preprocessed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "mla"
    report = convert(preprocessed, folder, workers=1)
    assert [outcome.status.value for outcome in report.outcomes] == ["ok"] * 6, report.outcomes
    return folder


def test_the_data_loader_draws_the_same_batches_from_mla_files(
    nnunet: Run, preprocessed: Path, converted: Path
) -> None:
    found = nnunet("loaders", preprocessed, converted)
    assert found["class"] == "NNUNetDataset"
    assert found["cases"] == dict.fromkeys(CASES, SAME_CASE)
    assert {title: drawn["same"] for title, drawn in found["batches"].items()} == {
        "3d": [True, True],
        "3d larger than the images": [True, True],
        "2d": [True, True],
        "two of the cases": [True, True],
        "cascade": [True, True],
    }
    assert found["batches"]["3d"]["shape"] == [2, 2, 12, 48, 40]
    assert found["batches"]["2d"]["shape"] == [2, 2, 48, 40]
    assert found["batches"]["cascade"]["target"] == [2, 2, 12, 48, 40]
    assert found["batches"]["3d"]["labels"] == [-1, 0, 1, 2]


def test_the_class_has_the_interface_of_nnunets_own(nnunet: Run, preprocessed: Path, converted: Path) -> None:
    found = nnunet("loaders", preprocessed, converted)
    for name, (theirs, ours) in found["parameters"].items():
        assert ours == theirs, name
    theirs, ours = found["attributes"]
    assert set(ours) == set(theirs)
    assert found["unpacked"] is None


def test_nnunets_own_class_opens_what_is_exported(
    nnunet: Run, preprocessed: Path, converted: Path, tmp_path: Path
) -> None:
    report = convert(converted, tmp_path / "b2nd", to="b2nd", workers=1)
    assert report.exit_code == 0
    found = nnunet("exported", preprocessed, tmp_path / "b2nd")
    assert found["class"] == "nnUNetDatasetBlosc2"
    assert found["identifiers"] == [list(CASES), list(CASES)]
    assert found["cases"] == dict.fromkeys(CASES, SAME_CASE)


def test_a_case_saved_by_the_class_is_read_back_with_the_layout_that_was_asked_for(nnunet: Run, tmp_path: Path) -> None:
    found = nnunet("saved", tmp_path / "saved")
    assert found == dict.fromkeys(CASES, SAVED_CASE)
