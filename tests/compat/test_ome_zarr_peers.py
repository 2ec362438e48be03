"""OME-Zarr of ours passes an independent validator, and other readers see the same values at the same places.

ome-zarr-models pins versions that a test environment may not have, and ngff-zarr brings a runtime of its own: both live in an
environment made for the purpose, with tensorstore.
"""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray.axes import Axis, parse_axes
from mlarray.formats import ome_zarr
from mlarray.formats.registry import open_source
from mlarray.geometry import Geometry
from mlarray.sources.base import NDArray, SinkOptions, SourceInfo
from mlarray.sources.copy import copy
from mlarray.sources.memory import ArraySource
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec

from .environment import make_environment

pytestmark = pytest.mark.slow

READER = Path(__file__).with_name("ome_zarr_reader.py")
PEERS = ["ome-zarr-models>=1.5", "ngff-zarr>=0.30", "tensorstore>=0.1.70"]
RUN_TIMEOUT_SECONDS = 300
TURNED = np.array([[0, 0, -2, 5], [3, 0, 0, -7.25], [0, -4, 0, 11], [0, 0, 0, 1]], dtype=np.float64)  # P, I, R in LPS
STANDARD = np.array([[0, 0, 0.7, 5], [0, 0.7, 0, -7.25], [2.5, 0, 0, 11], [0, 0, 0, 1]], dtype=np.float64)


def voxels(*shape: int, dtype: Any = np.int16) -> NDArray:
    return np.random.default_rng(len(shape)).integers(0, 100, shape).astype(dtype)


def cases() -> dict[str, tuple[NDArray, ArraySpec, bool, dict[str, Any]]]:
    """Return arrays with what is known of them, whether they are labels, and how they are stored."""
    found = {}
    for version in ("0.4", "0.5"):
        how: dict[str, Any] = {"patch_size": 16, "ome_version": version}
        for name, affine in (("turned", TURNED), ("standard", STANDARD)):
            array = voxels(40, 50, 60)
            spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), Geometry(affine, "LPS"))
            found[f"{name}-{version}.zarr"] = (array, spec, False, how)
        array = voxels(33, 34, 35, dtype=np.uint8)
        labels = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), Geometry(STANDARD, "LPS"))
        found[f"labels-{version}.zarr"] = (array, labels, True, how)
        array = voxels(2, 3, 30, 31, 32, dtype=np.float32)
        axes = (Axis("t", unit="second", step=2.5), *parse_axes("czyx"))
        geometry = Geometry(np.diag([3.0, 2.0, 1.0, 1.0]), None)
        found[f"series-{version}.zarr"] = (array, ArraySpec(array.shape, array.dtype, axes, geometry), False, how)
    array = voxels(70, 80, 90, dtype=np.uint16)
    spec = ArraySpec(array.shape, array.dtype, parse_axes("zyx"), Geometry(STANDARD, "RAS"))
    found["shards-0.5.zarr"] = (array, spec, False, {"patch_size": 16, "shard_size": "auto"})
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Write every case, and return what the peers see."""
    folder = tmp_path_factory.mktemp("peers")
    for name, (array, spec, is_seg, storage) in cases().items():
        sink = ome_zarr.open_sink(folder / name, spec, SourceInfo(is_seg=is_seg or None), SinkOptions(storage))
        copy(ArraySource(array, spec), sink, plan_tiles(spec, sink.chunks, access=sink.access))
        sink.publish()
    python = os.environ.get("MLARRAY_OME_ZARR_PEERS") or str(
        make_environment(folder / "environment", "The peers of OME-Zarr", PEERS)
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-W", "ignore", READER, folder],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", list(cases()))
def test_the_validator_takes_it_for_what_it_is(seen: tuple[Path, dict[str, Any]], name: str) -> None:
    kind = "image_label.ImageLabel" if name.startswith("labels") else "image.Image"
    version = "v04" if "0.4" in name else "v05"
    assert seen[1][name]["model"] == f"ome_zarr_models.{version}.{kind}"


@pytest.mark.parametrize("name", list(cases()))
def test_every_level_has_the_same_values_for_all_readers(seen: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, found = seen
    levels = found[name]["levels"]
    assert len(levels) > 1
    for number, level in enumerate(levels):
        with open_source(folder / name, item=str(number)) as source:
            block = source.read(source.spec.region)
        assert list(block.shape) == level["shape"]
        assert zlib.crc32(block.tobytes()) == level["crc"] == level["ngff_crc"]
    np.testing.assert_array_equal(open_source(folder / name).read(cases()[name][1].region), cases()[name][0])


@pytest.mark.parametrize("name", [name for name in cases() if not name.startswith("series")])
def test_itk_places_every_voxel_where_it_is(seen: tuple[Path, dict[str, Any]], name: str) -> None:
    found, spec = seen[1][name], cases()[name][1]
    assert spec.geometry is not None
    step = np.array(found["direction"]) * found["spacing"]  # columns x, y, z
    for index in ((0, 0, 0), (1, 2, 3), (30, 20, 10)):
        seen_at = np.array(found["origin"]) + step @ index[::-1]
        np.testing.assert_allclose(seen_at, spec.geometry.in_frame("LPS").world(index), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_time_and_channels_are_named(seen: tuple[Path, dict[str, Any]], version: str) -> None:
    found = seen[1][f"series-{version}.zarr"]
    assert found["dims"] == ["t", "c", "z", "y", "x"]
    assert found["scale"] == {"t": 2.5, "c": 1.0, "z": 3.0, "y": 2.0, "x": 1.0}
