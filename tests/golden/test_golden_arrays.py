"""Do the arrays of every older release open as they were written, and is the hostile file refused?"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray.errors import FormatError
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.integrity import IntegrityState

SAMPLES = Path(__file__).parent / "mla_samples"
EXPECTED: dict[str, dict[str, Any]] = json.loads((SAMPLES / "expected.json").read_text())
HOSTILE = SAMPLES / "HOSTILE_lazyudf_do_not_open_with_blosc2_4.12.mla"
ARRAYS = sorted(name for name, sample in EXPECTED.items() if "HOSTILE" not in name and sample["array"] is not None)


def sha256(voxels: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(voxels).tobytes()).hexdigest()


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("mmap_mode", ["r", None])
def test_voxels_are_those_that_were_written(name: str, mmap_mode: str | None) -> None:
    expected = EXPECTED[name]["array"]
    with MLArray.open(SAMPLES / name, mmap_mode=mmap_mode) as image:
        assert list(image.shape or ()) == expected["shape"]
        assert image.dtype == np.dtype(expected["dtype"])
        assert sha256(image[...]) == expected["sha256_C_order_bytes"]


@pytest.mark.parametrize("name", ARRAYS)
def test_layout_and_compression_are_read_from_the_file(name: str) -> None:
    expected = EXPECTED[name]["b2nd"]
    store = open_store(SAMPLES / name)
    assert (list(store.chunks), list(store.blocks)) == (expected["chunks"], expected["blocks"])
    assert (store.compression.codec, store.compression.level) == (expected["codec"], expected["clevel"])
    assert list(store.compression.filters) == [entry for entry in expected["filters"] if entry != "NOFILTER"]
    assert integrity.check(store).state is IntegrityState.UNCHECKED


@pytest.mark.parametrize("name", [name for name in ARRAYS if "meta_mapping" in EXPECTED[name]])
def test_metadata_beside_the_array_is_that_of_the_release(name: str) -> None:
    with MLArray.open(SAMPLES / name) as image:
        assert image.meta.to_mapping() == EXPECTED[name]["meta_mapping"] | {
            "_mlarray_version": {"mlarray_version": "v0"}
        }
        spatial = EXPECTED[name]["meta_mapping"]["spatial"]
        labels = spatial["axis_labels"] or ["spatial"] * len(spatial["shape"])
        assert [axis.is_spatial for axis in image.axes or ()] == [label.startswith("spatial") for label in labels]


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("compressed", [True, False])
def test_a_sample_loaded_and_saved_keeps_voxels_layout_and_metadata(
    tmp_path: Path, name: str, compressed: bool
) -> None:
    loaded = MLArray.load(SAMPLES / name, compressed=compressed)
    loaded.save(tmp_path / "again.mla")
    again = MLArray.open(tmp_path / "again.mla")
    native = np.dtype(EXPECTED[name]["array"]["dtype"]).newbyteorder("=")
    assert sha256(again[...].astype(native)) == sha256(loaded[...].astype(native))
    original = MLArray.open(SAMPLES / name)
    assert again.meta.source == original.meta.source
    assert again.meta.spatial == original.meta.spatial
    assert again.layout is not None
    assert original.layout is not None
    assert (again.layout.chunks, again.layout.blocks) == (original.layout.chunks, original.layout.blocks)
    assert again.meta.blosc2.patch_size == original.meta.blosc2.patch_size
    assert integrity.check(open_store(tmp_path / "again.mla")).state is IntegrityState.INTACT


@pytest.mark.parametrize("name", ARRAYS)
def test_a_sample_can_be_changed_in_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / Path(name).name
    shutil.copy(SAMPLES / name, path)
    with MLArray.open(path, mmap_mode="r+") as image:
        expected = image[...]
        expected[0] = True if image.dtype == bool else 1
        image[0] = expected[0]
        image.meta.extra["changed"] = True
    again = MLArray.open(path)
    np.testing.assert_array_equal(again[...], expected)
    assert again.meta.extra["changed"] is True
    assert integrity.check(open_store(path)).state is IntegrityState.INTACT


def test_metadata_without_an_array_opens(tmp_path: Path) -> None:
    image = MLArray(SAMPLES / "metadata_only.mla")
    assert image.shape is None
    assert (image.meta.source, image.spacing) == ({"case": "meta only"}, [1.0, 2.0, 3.0])
    image.save(tmp_path / "again.mla")
    assert MLArray(tmp_path / "again.mla").meta == image.meta


def test_the_hostile_file_is_refused_before_blosc2_sees_it() -> None:
    for use in (MLArray, MLArray.open, MLArray.load, open_source):
        with pytest.raises(FormatError, match=r"fixed metalayers are .*'LazyArray'"):
            use(HOSTILE)
    # In a process of its own, blosc2 would have to be imported to look at the file at all.
    script = """
import sys
from pathlib import Path
from mlarray.errors import FormatError
from mlarray.storage.frame import read_header
try:
    read_header(Path(sys.argv[1]))
except FormatError:
    print("refused", "blosc2" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, str(HOSTILE)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "False"]
