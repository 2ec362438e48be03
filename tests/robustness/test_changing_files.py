"""A file that another program cuts, extends, replaces or removes while it is open."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray.errors import FormatError, UnfinishedError, UsageError
from mlarray.storage.leftovers import remove_old_leftovers
from mlarray.storage.opened import OpenedFile
from mlarray.storage.publish import NO_SPACE, final_path, named_errors, no_space, part_path, write_file

VOXELS = np.random.default_rng(0).integers(0, 99, (40, 50, 60)).astype(np.int16)
TIMEOUT_SECONDS = 120
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced or cut there")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MLArray(VOXELS, axes="zyx", chunk_size=16, block_size=8).save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


def run_script(script: str, *arguments: object) -> None:
    """Run Python code in a process of its own, which a signal may kill."""
    names = ("from pathlib import Path", "from mlarray import MLArray, open_source", "from mlarray.errors import *")
    prelude = "\n".join(("import os, sys", "import numpy as np", *names, ""))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_posix
@pytest.mark.parametrize(
    "how", ["MLArray.open(path)", "MLArray.open(path, mmap_mode='c')", "MLArray.open(path, mmap_mode='r+')"]
)
def test_a_mapped_file_that_is_cut_is_told_and_does_not_kill_the_reader(path: Path, how: str) -> None:
    script = f"""
    path = sys.argv[1]
    image = {how}
    before = image[0, 0, :3]
    for size in (os.path.getsize(path) // 2, 100, 0):
        os.truncate(path, size)
        for read in (lambda: image[...], lambda: image[39, 49, 59], lambda: image._store.chunk_bytes(30)):
            try:
                read()
            except FormatError as error:
                assert "was cut by another program" in str(error), error
            else:
                raise AssertionError(size)
    """
    run_script(script, path)


@needs_posix
def test_a_source_whose_file_is_cut_is_told(path: Path) -> None:
    script = """
    for mapped in (True, False):
        source = open_source(sys.argv[1], mapped=mapped)
        data = Path(sys.argv[1]).read_bytes()
        os.truncate(sys.argv[1], 5000)
        try:
            source.read(source.spec.region)
        except FormatError as error:
            assert "was cut" in str(error) or "was replaced" in str(error), error
        else:
            raise AssertionError(mapped)
        Path(sys.argv[1]).write_bytes(data)
    """
    run_script(script, path)


@pytest.mark.parametrize("suffix", [".nii", ".mha", ".nrrd", ".npy"])
@needs_posix
def test_an_uncompressed_image_that_is_cut_is_told(tmp_path: Path, suffix: str) -> None:
    from mlarray.formats.registry import format_of_name, module_of
    from mlarray.sources.base import SinkOptions, SourceInfo
    from mlarray.sources.copy import copy
    from mlarray.sources.memory import ArraySource
    from mlarray.sources.tiles import plan_tiles

    place = tmp_path / f"image{suffix}"
    image = MLArray(VOXELS, axes="zyx", spacing=(1, 1, 1))
    if suffix == ".npy":
        np.save(place, VOXELS)
    else:
        row = format_of_name(place)
        assert row is not None
        storage = {} if suffix == ".nii" else {"codec": "none"}
        sink = module_of(row).open_sink(place, image.spec, SourceInfo(), SinkOptions(storage))
        source = ArraySource(VOXELS, image.spec)
        copy(source, sink, plan_tiles(source.spec, sink.chunks, access=sink.access, order=sink.order))
        sink.publish()
    script = """
    source = open_source(sys.argv[1])
    first = source.read(source.spec.region)
    os.truncate(sys.argv[1], os.path.getsize(sys.argv[1]) - 1000)
    try:
        source.read(source.spec.region)
    except FormatError as error:
        assert "too short" in str(error), error
    else:
        raise AssertionError
    """
    run_script(script, place)


@needs_posix
def test_a_reader_keeps_what_it_mapped_when_the_file_is_replaced_changed_removed_or_grows(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(10_000))
    reader = MLArray.open(path)
    np.testing.assert_array_equal(reader[...], VOXELS)
    with MLArray.open(path, mmap_mode="r+") as changed:
        changed[...] = -VOXELS[::-1]  # every chunk becomes another, most of them longer
        np.testing.assert_array_equal(reader[...], VOXELS)
    np.testing.assert_array_equal(reader[...], VOXELS)
    np.testing.assert_array_equal(MLArray.open(path)[...], -VOXELS[::-1])
    MLArray(VOXELS[:1]).save(path)
    np.testing.assert_array_equal(reader[...], VOXELS)
    path.unlink()
    np.testing.assert_array_equal(reader[...], VOXELS)


@needs_posix
def test_our_own_writers_replace_a_file_and_never_cut_it(path: Path) -> None:
    from mlarray.streaming import record_statistics

    def inode() -> int:
        return path.stat().st_ino

    def change() -> None:
        with MLArray.open(path, "a", None) as image:
            image[0] = 5

    def describe() -> None:
        with MLArray.open(path, mmap_mode="r+") as image:
            image.meta.extra["x"] = 1

    def create() -> None:
        with MLArray.create(path, (3, 4), np.uint8) as image:
            image[...] = 1

    for act in (
        lambda: MLArray(VOXELS).save(path),
        change,
        describe,
        lambda: record_statistics(open_source(path)),
        create,
    ):
        with path.open("rb") as held:  # keeps the inode from being given away again
            before, content = inode(), held.read()
            act()
            assert inode() != before
            held.seek(0)
            assert held.read() == content


def test_nothing_changes_under_the_name_until_a_changed_file_is_closed(path: Path) -> None:
    image = MLArray.open(path, mmap_mode="r+")
    image[0] = 7
    assert image[0, 0, 0] == 7
    np.testing.assert_array_equal(MLArray(path)[...], VOXELS)
    image.close()
    assert MLArray(path)[0, 0, 0] == 7
    assert [entry.name for entry in path.parent.iterdir()] == ["a.mla"]


def test_a_file_that_is_only_read_is_not_copied(path: Path) -> None:
    before = path.stat()
    with MLArray.open(path, mmap_mode="r+") as image:
        assert image[1, 2, 3] == VOXELS[1, 2, 3]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_link_is_followed_when_a_file_is_changed(path: Path) -> None:
    path.rename(path.with_name("real.mla"))
    path.symlink_to("real.mla")
    with MLArray.open(path, mmap_mode="r+") as image:
        image[0] = 7
    assert path.is_symlink()
    assert MLArray(path.with_name("real.mla"))[0, 0, 0] == 7


@needs_posix
def test_a_file_that_was_replaced_before_the_first_change_is_not_changed(path: Path) -> None:
    image = MLArray.open(path, mmap_mode="r+")
    MLArray(VOXELS + 1).save(path.with_name("b.mla"))
    os.replace(path.with_name("b.mla"), path)  # another program, which asks no lock
    with pytest.raises(FormatError, match="replaced or removed"):
        image[0] = 7
    np.testing.assert_array_equal(MLArray(path)[...], VOXELS + 1)


@needs_posix
@pytest.mark.parametrize("mmap_mode", ["w+", None])
def test_a_new_file_that_another_took_the_name_of_is_not_written_into_that(
    tmp_path: Path, mmap_mode: str | None
) -> None:
    place = tmp_path / "a.mla"
    image = MLArray.create(place, VOXELS.shape, VOXELS.dtype, mmap_mode=mmap_mode, chunk_size=16, block_size=8)  # type: ignore[arg-type]
    image[:16] = 1
    MLArray(VOXELS).save(place.with_name("b.mla"))
    os.replace(place.with_name("b.mla"), place)  # another program, which asks no lock
    with pytest.raises(FormatError, match="replaced or removed while it was written"):
        image[16:32] = 1
    image.close()
    np.testing.assert_array_equal(MLArray(place)[...], VOXELS)


@pytest.mark.parametrize("record_lost", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_a_marked_header_is_believed_whatever_became_of_the_rest(tmp_path: Path, record_lost: bool, cut: bool) -> None:
    place = tmp_path / "a.mla"
    image = MLArray.create(place, VOXELS.shape, VOXELS.dtype, chunk_size=16, block_size=8)
    image[:16] = VOXELS[:16]
    if record_lost:
        image._store.drop_record("mla_state")
    content = place.read_bytes()
    image._session.drop()
    image.close()
    other = tmp_path / "b.mla"
    other.write_bytes(content[:-40] if cut else content)
    script = """
    try:
        MLArray.open(sys.argv[1])
    except UnfinishedError as error:
        assert f"`mla verify --salvage OUT {sys.argv[1]}`" in str(error), error
    else:
        raise AssertionError
    """
    run_script(script, other)
    with pytest.raises(UnfinishedError):
        open_source(other) if record_lost or cut else run_and_raise(other)


def run_and_raise(path: Path) -> None:
    """Raise what a process that is not the writer gets."""
    run_script(
        "try:\n    open_source(sys.argv[1])\nexcept UnfinishedError:\n    pass\nelse:\n    raise AssertionError", path
    )
    raise UnfinishedError(str(path))


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_is_told_at_once_and_by_name(path: Path) -> None:
    path.parent.chmod(0o555)
    try:
        for act in (
            lambda: MLArray.open(path, mmap_mode="r+"),
            lambda: MLArray(VOXELS).save(path),
            lambda: MLArray.create(path, (3,), np.uint8),
        ):
            with pytest.raises(PermissionError, match=r"a\.mla"):
                act()
    finally:
        path.parent.chmod(0o755)
    np.testing.assert_array_equal(MLArray(path)[...], VOXELS)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize("mmap_mode", ["w+", None])
def test_a_limit_of_the_size_of_files_is_an_error_of_the_call_that_meets_it(path: Path, mmap_mode: str | None) -> None:
    script = """
    import resource
    path, mode = sys.argv[1], {"w+": "w+", "None": None}[sys.argv[2]]
    voxels = np.random.default_rng(1).integers(0, 9999, (40, 50, 60)).astype(np.int16)
    whole = MLArray(voxels - 1)
    def save():
        MLArray(voxels, chunk_size=16, block_size=8).save(path)
    def change():
        with MLArray.open(path, mmap_mode="r+") as image:
            image[...] = voxels
    def create():
        with MLArray.create(path, voxels.shape, voxels.dtype, mmap_mode=mode, chunk_size=16, block_size=8) as image:
            image[...] = voxels
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for limit in (0, 100, 20_000, 60_000):
        for act in (save, change, create):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                act()
            except OSError as error:
                assert "a.mla" in str(error) and ("is full" in str(error) or "too large" in str(error)), error
            else:
                raise AssertionError(act)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            names = os.listdir(os.path.dirname(path))
            assert names == ["a.mla"], names
            if act is create:
                whole.save(path)
            MLArray.open(path)[...]
    """
    run_script(script, path, mmap_mode)


def test_an_old_leftover_of_a_dead_writer_goes_and_a_fresh_one_stays(tmp_path: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    for folder, hours in (("old", 2.0), ("fresh", 0.1)):
        place = tmp_path / folder
        place.mkdir()
        left = part_path(place / "a.mla")
        left = left.with_name(left.name.replace(f"-{os.getpid()}-", f"-{dead.stdout.strip()}-"))
        left.write_bytes(b"half")
        then = time.time() - hours * 3600
        os.utime(left, (then, then))
        remove_old_leftovers(place)
        assert left.exists() == (folder == "fresh")


def test_a_small_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    write_file(place, b"one")
    write_file(place, b"two")
    assert place.read_bytes() == b"two"
    with pytest.raises(UsageError, match="does not exist"):
        write_file(tmp_path / "none" / "report.json", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_errors_without_a_name_get_one(tmp_path: Path) -> None:
    place = tmp_path / "a.mla"
    assert final_path(part_path(place)) == place
    with pytest.raises(OSError, match=r"No space left.*a\.mla") as caught, named_errors(part_path(place)):
        raise OSError(NO_SPACE[0], "No space left on device")
    assert caught.value.errno == NO_SPACE[0]
    assert caught.value.filename == str(place)
    inner = OSError(NO_SPACE[1], "quota")
    outer = RuntimeError("library")
    outer.__context__ = inner
    told = no_space(outer, place)
    assert told is not None
    assert (told.errno, told.filename) == (NO_SPACE[1], str(place))
    assert no_space(ValueError("other"), place) is None


def test_a_file_is_told_from_one_that_takes_its_name(path: Path) -> None:
    opened = OpenedFile.of(path)
    opened.refuse_other()
    opened.refuse_shortened()
    path.rename(path.with_name("other.mla"))
    opened.refuse_shortened()
    with pytest.raises(FormatError, match="replaced or removed"):
        opened.refuse_other()
