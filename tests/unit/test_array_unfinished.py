"""A file that is being written says so, to everybody, until all of it is there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray.errors import MetadataError, MetadataWarning, UnfinishedError
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.integrity import IntegrityState
from mlarray.storage.publish import part_owner

VOXELS = np.arange(20 * 30 * 40, dtype=np.int16).reshape(20, 30, 40)
KILLS = 20
CHILD_TIMEOUT_SECONDS = 120
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def run_script(script: str, *arguments: object, expect: int = 0) -> str:
    """Run Python code in a fresh process and return what it prints."""
    prelude = "import sys, os, signal\nimport numpy as np\nfrom mlarray import MLArray\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    assert expect or not done.stderr, done.stderr
    return done.stdout


def intact(path: Path) -> bool:
    return integrity.check(open_store(path)).state is IntegrityState.INTACT


FILL_BY_SLABS = """
image = MLArray.create(sys.argv[1], (20, 30, 40), np.int16, mmap_mode={mmap_mode!r}, patch_size=8, meta={{"id": 5}})
voxels = np.arange(20 * 30 * 40, dtype=np.int16).reshape(20, 30, 40)
for start in range(0, {stop}, 3):
    image[start : start + 3] = voxels[start : start + 3]
"""


@pytest.mark.slow
@pytest.mark.parametrize("mmap_mode", ["w+", None])
@pytest.mark.parametrize("end", ["", "del image", "image.close()", "sys.exit(0)", "held = [image]; held.append(held)"])
def test_a_file_written_slab_by_slab_is_finished_however_the_program_ends(
    tmp_path: Path, mmap_mode: str | None, end: str
) -> None:
    path = tmp_path / "a.mla"
    run_script(FILL_BY_SLABS.format(mmap_mode=mmap_mode, stop=20) + end, path)
    image = MLArray.open(path)
    np.testing.assert_array_equal(image[...], VOXELS)
    assert image.meta.source == {"id": 5}
    assert image.meta.blosc2.patch_size == [8, 8, 8]
    assert intact(path)


@pytest.mark.slow
@pytest.mark.parametrize("mmap_mode", ["w+", None])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("del image", 0),
        ("os._exit(0)", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("with image:\n    raise SystemExit(3)", 3),
    ],
)
def test_a_file_of_which_a_part_is_missing_is_refused(
    tmp_path: Path, mmap_mode: str | None, end: str, code: int
) -> None:
    path = tmp_path / "a.mla"
    run_script(FILL_BY_SLABS.format(mmap_mode=mmap_mode, stop=12) + end, path, expect=code)
    for use in (MLArray, MLArray.open, MLArray.load, open_source):
        with pytest.raises(UnfinishedError, match=r"not finished by its writer \(process \d+ on .*make the file again"):
            use(path)
    for mmap_mode_then in ("r+", "c", None):
        with pytest.raises(UnfinishedError):
            MLArray.open(path, "a", mmap_mode_then)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ["info", "verify"])
def test_the_command_line_refuses_it_too(tmp_path: Path, command: str) -> None:
    path = tmp_path / "a.mla"
    run_script(FILL_BY_SLABS.format(mmap_mode="w+", stop=12), path)
    code = "import sys; from mlarray_convert.cli import main; sys.argv[0] = 'mla'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, command, str(path)],
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert "not finished" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


def test_closing_says_that_the_rest_is_meant_to_be_zeros(tmp_path: Path) -> None:
    with MLArray.create(tmp_path / "a.mla", VOXELS.shape, VOXELS.dtype, patch_size=8) as image:
        image[:5] = VOXELS[:5]
    again = MLArray(tmp_path / "a.mla")
    np.testing.assert_array_equal(again[:5], VOXELS[:5])
    assert not again[5:].any()


def test_the_writer_itself_may_look_at_what_it_has_written(tmp_path: Path) -> None:
    image = MLArray.create(tmp_path / "a.mla", VOXELS.shape, VOXELS.dtype, mmap_mode=None, patch_size=8)
    image[:16] = VOXELS[:16]
    assert run_script(
        """
        from mlarray.errors import UnfinishedError
        try:
            MLArray.open(sys.argv[1])
        except UnfinishedError:
            print("refused")
        """,
        tmp_path / "a.mla",
    ).split() == ["refused"]
    np.testing.assert_array_equal(image[:16], VOXELS[:16])
    image.close()


def test_a_new_file_replaces_an_old_one_of_any_content(tmp_path: Path) -> None:
    path = tmp_path / "a.mla"
    path.write_bytes(b"something else")
    with MLArray.create(path, (3,), np.uint8, {"a": 1}, axes="x") as image:
        image[...] = [1, 2, 3]
    again = MLArray(path)
    assert (again[...].tolist(), again.meta.source, again.meta.spatial.axis_labels) == (
        [1, 2, 3],
        {"a": 1},
        ["spatial_x"],
    )


def test_a_new_file_with_invalid_metadata_can_be_corrected_and_closed(tmp_path: Path) -> None:
    image = MLArray.create(tmp_path / "a.mla", (3, 4), np.uint8)
    image[...] = 1
    image.spacing = [1, 1]
    image.spacing[0] = -1
    with pytest.raises(MetadataError, match="positive number"):
        image.close()
    image.spacing[0] = 2
    image.close()
    assert MLArray(tmp_path / "a.mla").spacing == [2, 1]


def test_a_new_file_dropped_with_invalid_metadata_stays_unfinished_and_warns(tmp_path: Path) -> None:
    image = MLArray.create(tmp_path / "a.mla", (3, 4), np.uint8)
    image[...] = 1
    image.spacing = [1, 1]
    image.spacing[0] = -1
    with pytest.warns(MetadataWarning, match=r"stays unfinished.*positive number"):
        del image
    assert open_store(tmp_path / "a.mla").record(integrity.STATE_RECORD)["state"] == "writing"


def test_metadata_that_cannot_fit_is_refused_before_an_old_file_is_touched(tmp_path: Path) -> None:
    MLArray(VOXELS).save(tmp_path / "a.mla")
    from mlarray import Meta

    with pytest.raises(MetadataError):
        MLArray.create(tmp_path / "a.mla", (3, 4), np.uint8, Meta(spatial={"spacing": [1, 1, 1]}))
    np.testing.assert_array_equal(MLArray(tmp_path / "a.mla")[...], VOXELS)


@pytest.mark.parametrize("mmap_mode", ["r+", None])
def test_a_writer_killed_while_it_changes_a_file_leaves_it_as_it_was(tmp_path: Path, mmap_mode: str | None) -> None:
    path = tmp_path / "a.mla"
    MLArray(VOXELS, patch_size=8).save(path)
    script = f"""
    image = MLArray.open(sys.argv[1], "a", {mmap_mode!r})
    if sys.argv[2] == "write":
        image[3:5] = 7
    image.meta.source["a"] = 1
    os.kill(os.getpid(), signal.SIGKILL)
    """
    run_script(script, path, "read", expect=-9)
    assert intact(path)
    run_script(script, path, "write", expect=-9)
    assert intact(path)
    np.testing.assert_array_equal(MLArray(path)[...], VOXELS)


def test_a_change_in_place_by_a_program_that_just_ends_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "a.mla"
    MLArray(VOXELS, patch_size=8).save(path)
    run_script(
        "image = MLArray.open(sys.argv[1], mmap_mode='r+')\nimage[10:12, 5:9] *= 5\nimage.meta.extra['k'] = 1", path
    )
    expected = VOXELS.copy()
    expected[10:12, 5:9] *= 5
    np.testing.assert_array_equal(MLArray(path)[...], expected)
    assert MLArray(path).meta.extra == {"k": 1}
    assert intact(path)


@needs_fork
@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.mla"
    rng = random.Random(5)
    voxels = np.random.default_rng(0).integers(0, 100, (40, 60, 80)).astype(np.int16)
    started = time.perf_counter()
    MLArray(voxels, patch_size=8).save(path)
    once = time.perf_counter() - started
    current = voxels
    for number in range(KILLS):
        new = current + 1
        child = os.fork()
        if child == 0:
            try:
                MLArray(new, patch_size=8, meta={"number": number}).save(path)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, 1.5 * once))  # the moment of the kill, not a wait for something
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert intact(path)
        found = MLArray(path)
        old = np.array_equal(found[...], current)
        assert old or np.array_equal(found[...], new)
        current = current if old else new
        for name in os.listdir(tmp_path):
            assert name == "a.mla" or part_owner(name) is not None
    MLArray(voxels).save(path)
    np.testing.assert_array_equal(MLArray(path)[...], voxels)
