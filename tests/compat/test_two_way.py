"""Files go both ways between this package and mlarray 0.0.54, which is installed for the purpose.

Both run the same code (``cases.py``), so what differs is the package.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import Axis, Geometry, MLArray
from mlarray.formats import mla
from mlarray.sources.base import SinkOptions, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.integrity import IntegrityState

from . import cases
from .environment import make_environment

pytestmark = pytest.mark.slow

RELEASE = "0.0.54"
RUN_TIMEOUT_SECONDS = 300
Described = dict[str, dict[str, Any]]
Theirs = Callable[..., str]
# What each package decides for itself: how it compresses, and the chunks that follow from a patch.
STORAGE_CHOICES = ("blosc2",)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    """Run ``cases.py`` with the released package."""
    folder = tmp_path_factory.mktemp("released") / "env"
    wanted = [f"mlarray=={RELEASE}", *(f"{name}=={importlib.metadata.version(name)}" for name in ("blosc2", "numpy"))]
    python = make_environment(folder, f"mlarray {RELEASE}", wanted)

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [python, cases.__file__, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_SECONDS,
            cwd=folder,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def our_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    cases.write(folder)
    write_what_only_ours_can(folder)
    return folder


@pytest.fixture(scope="module")
def their_files(tmp_path_factory: pytest.TempPathFactory, theirs: Theirs) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    theirs("write", folder)
    return folder


def write_what_only_ours_can(folder: Path) -> None:
    """Files with named axes, from a sink as a conversion writes them, and with values that JSON cannot hold."""
    axes = (Axis("t", unit="second", step=2.5), Axis("z", unit="millimeter"), Axis("y"), Axis("x"))
    MLArray(cases.voxels((3, 4, 5, 6)), axes=axes, spacing=(3, 1, 1)).save(folder / "ours_axes.mla")
    header = {"descrip": b"caf\xe9", "slope": float("nan"), "count": np.int16(3), "codes": {1: "a"}, "pair": (1, 2)}
    MLArray(cases.voxels((40, 64, 64)), patch_size=32, layout="small-blocks").save(folder / "ours_small_blocks.mla")
    MLArray(cases.voxels((4, 5)), meta=header).save(folder / "ours_header.mla")
    for name, geometry in (
        (
            "plain",
            Geometry.from_parts(spacing=(3, 1, 1), origin=(1, 2, 3), direction=cases.OBLIQUE, coord_system="LPS"),
        ),
        ("sheared", Geometry(np.array(cases.SHEARED), "RAS")),
        ("partly", Geometry.from_parts(spacing=(3, 1, 1))),
    ):
        spec = ArraySpec((2, 6, 7, 8), np.dtype(np.float32), (Axis("c"), Axis("z"), Axis("y"), Axis("x")), geometry)
        options = SinkOptions(record={"version": "1", "source": "a.nii"}, hold_bytes=1 << 20, storage={"patch_size": 4})
        sink = mla.open_sink(
            folder / f"converted_{name}.mla", spec, SourceInfo("nifti", header={"dim": [3, 4]}), options
        )
        sink.write(spec.region, cases.voxels(spec.shape))
        sink.publish()


def state_of(path: Path) -> IntegrityState:
    return integrity.check(open_store(path)).state


def test_the_released_package_reads_our_files_as_we_do(our_files: Path, theirs: Theirs) -> None:
    found: Described = json.loads(theirs("describe", our_files))
    expected: Described = cases.describe(our_files)
    assert found.keys() == expected.keys()
    assert len(found) >= 55
    for name in expected:
        differing = {key for key in expected[name] if found[name][key] != expected[name][key]}
        if name == "ours_header.mla":  # bytes and the like: stored in another form, which this package turns back
            assert found[name]["mapping"].pop("source") != expected[name]["mapping"].pop("source")
            differing = {key for key in differing if found[name][key] != expected[name][key]}
        assert differing == set(), name


def test_we_read_files_of_the_released_package_as_it_does(their_files: Path, theirs: Theirs) -> None:
    expected: Described = json.loads(theirs("describe", their_files))
    found: Described = cases.describe(their_files)
    assert len(found) >= 50
    assert found == expected


def test_the_same_code_gives_the_same_arrays_geometry_and_metadata_in_both(our_files: Path, their_files: Path) -> None:
    ours, released = cases.describe(our_files), cases.describe(their_files)
    assert released.keys() <= ours.keys()
    for name, expected in released.items():
        for described in (ours[name], expected):
            for part in STORAGE_CHOICES:
                described["mapping"].pop(part)
        assert ours[name] == expected, name


@pytest.mark.parametrize("how", ["voxels", "metadata,close", "voxels,metadata,close"])
def test_our_file_changed_by_the_released_package_is_not_called_damaged(
    our_files: Path, theirs: Theirs, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "case.mla"
    shutil.copy(our_files / "storage_patch.mla", path)
    assert state_of(path) is IntegrityState.INTACT
    theirs("change", path, how)
    expected = cases.voxels((20, 30, 40))
    if "voxels" in how:
        expected[2:4, 5:9] = 5
    with MLArray.open(path) as image:
        np.testing.assert_array_equal(image[...], expected)
        assert image.meta.source == ({"changed": how} if "metadata" in how else {})
        assert image.layout is not None
        assert image.layout.patch_size == (16, 16, 16)
    assert state_of(path) is IntegrityState.CHANGED
    with MLArray.open(path, mmap_mode="r+") as image:
        image[0] = 1
    assert state_of(path) is IntegrityState.INTACT


@pytest.mark.parametrize("how", ["voxels", "metadata,close", "voxels,metadata"])
def test_their_file_changed_by_us_opens_there_with_the_changes(
    their_files: Path, theirs: Theirs, tmp_path: Path, how: str
) -> None:
    shutil.copy(their_files / "storage_patch.mla", tmp_path / "case.mla")
    cases.change(tmp_path / "case.mla", how)
    assert state_of(tmp_path / "case.mla") is IntegrityState.INTACT
    found: Described = json.loads(theirs("describe", tmp_path))
    assert found == cases.describe(tmp_path)
    expected = cases.voxels((20, 30, 40))
    if "voxels" in how:
        expected[2:4, 5:9] = 5
    np.testing.assert_array_equal(MLArray(tmp_path / "case.mla")[...], expected)
    assert found["case.mla"]["mapping"]["source"]["data"] == ({"changed": how} if "metadata" in how else {})
