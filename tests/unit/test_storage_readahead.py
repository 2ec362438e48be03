"""Read-ahead: the exact bytes of the blocks that a read needs, announced only while a file is cold."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import blosc2
import numpy as np
import pytest

import mlarray
from mlarray import MLArray, Region
from mlarray.errors import UsageError
from mlarray.storage import readahead
from mlarray.storage.blosc import open_store
from mlarray.storage.frame import read_header
from mlarray.storage.readahead import FileReadAhead

needs_fadvise = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no posix_fadvise")


@pytest.fixture
def setting() -> Iterator[None]:
    before = mlarray.get_read_ahead()
    yield
    mlarray.set_read_ahead(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = np.random.default_rng(1).normal(size=(60, 70, 80)).astype(np.float32)
    values[:20] = 0  # chunks without bytes
    MLArray(values, patch_size=None, chunk_size=(20, 35, 40), block_size=(5, 16, 16)).save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


def ahead_of(path: Path) -> tuple[FileReadAhead, object]:
    store = open_store(path)
    return FileReadAhead(path, read_header(path), blosc2.decompress2), store


@needs_fadvise
def test_the_ranges_of_a_region_hold_all_its_blocks_and_little_else(path: Path) -> None:
    ahead, store = ahead_of(path)
    whole = Region((20, 0, 0), (60, 70, 80))
    all_bytes = sum(high - low for low, high in ahead.ranges(whole, store))
    assert all_bytes == pytest.approx(path.stat().st_size, rel=0.05)
    small = ahead.ranges(Region((41, 1, 1), (44, 10, 10)), store)
    assert sum(high - low for low, high in small) < all_bytes / 16
    assert ahead.ranges(Region((0, 0, 0), (20, 70, 80)), store) == []


@needs_fadvise
def test_a_damaged_block_outside_the_ranges_does_not_change_a_read(path: Path) -> None:
    region = Region((45, 40, 45), (58, 69, 79))
    ahead, store = ahead_of(path)
    ranges = ahead.ranges(region, store)
    before = store.read(region)
    raw = bytearray(path.read_bytes())
    header = read_header(path)
    keep = np.zeros(len(raw), bool)
    keep[: header.header_bytes] = True
    keep[header.header_bytes + header.compressed_bytes :] = True
    for low, high in ranges:
        keep[low:high] = True
    for index in store.grid.chunks_touched(
        region.start, region.stop
    ):  # chunk headers and block starts are read as well
        start = ahead.chunk_range(index, store)[0]
        keep[start : start + 32 + 4 * 64] = True
    copy = path.with_name("b.mla")
    copy.write_bytes(bytes(np.where(keep, np.frombuffer(bytes(raw), np.uint8), 0xFF).astype(np.uint8)))
    assert np.array_equal(open_store(copy).read(region), before)


@needs_fadvise
def test_a_cold_file_is_announced_and_a_warm_one_is_not(path: Path, setting: None) -> None:
    mlarray.set_read_ahead(256)
    with MLArray.open(path) as image:
        ahead = image._store._ahead
        ahead.cold_reads = 0
        before = mlarray.read_ahead_status().announced_bytes
        assert np.array_equal(image[30:40, :9, :9], image.to_numpy()[30:40, :9, :9])
        ahead.cold_reads = 0
        image.read(Region((30, 0, 0), (40, 9, 9)))
        warm = mlarray.read_ahead_status().announced_bytes
        ahead.cold_reads = 1
        image.read(Region((30, 0, 0), (40, 9, 9)))
        assert mlarray.read_ahead_status().announced_bytes > warm >= before


@needs_fadvise
def test_cold_reads_decay_to_none_on_a_warm_file(path: Path, setting: None) -> None:
    mlarray.set_read_ahead(256)
    with MLArray.open(path) as image:
        image.to_numpy()
        image._store._ahead.cold_reads = readahead.COLD_READS
        for _ in range(200):  # a busy machine may make a cached byte look slow now and then
            image.read(Region((30, 0, 0), (40, 9, 9)))
            if image._store._ahead.cold_reads <= 0:
                break
        assert image._store._ahead.cold_reads <= 0


def test_zero_turns_it_off_and_other_values_are_refused(path: Path, setting: None) -> None:
    mlarray.set_read_ahead(0)
    assert mlarray.get_read_ahead() == 0
    assert mlarray.read_ahead_status().method == "none"
    with MLArray.open(path) as image:
        assert image._store._ahead is None
        image.prefetch([Region((0, 0, 0), (5, 5, 5))])
    for wrong in (-1, 1.5, True, "8"):
        with pytest.raises(UsageError, match="number of ranges"):
            mlarray.set_read_ahead(wrong)


@pytest.mark.parametrize(("given", "expected"), [("0", 0), ("17", 17), ("yes", 256), ("", 256)])
def test_the_environment_variable_is_respected_and_left_alone(given: str, expected: int) -> None:
    code = "import os, mlarray; print(mlarray.get_read_ahead(), os.environ['BLOSC_PREFETCH'])"
    environment = {**os.environ, "BLOSC_PREFETCH": given}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split(" ")[0] == str(expected)
    assert run.stdout.rstrip("\n").split(" ")[1] == given


@needs_fadvise
def test_prefetch_announces_without_the_caller(path: Path, setting: None) -> None:
    mlarray.set_read_ahead(256)
    with MLArray.open(path) as image:
        before = mlarray.read_ahead_status().announced_bytes
        image.prefetch([Region((30, 0, 0), (60, 70, 80)), Region((20, 0, 0), (25, 5, 5))])
        readahead.wait_for_prefetches()
        assert mlarray.read_ahead_status().announced_bytes > before


@needs_fadvise
def test_a_forked_reader_announces_with_files_of_its_own(path: Path, setting: None) -> None:
    mlarray.set_read_ahead(256)
    image = MLArray.open(path)
    image.prefetch([Region((30, 0, 0), (60, 70, 80))])
    readahead.wait_for_prefetches()
    expected = image.to_numpy()
    child = os.fork()
    if child == 0:
        image._store._ahead.cold_reads = 4
        image.prefetch([Region((20, 0, 0), (60, 70, 80))])
        readahead.wait_for_prefetches()
        same = np.array_equal(image[20:, 3:, 5:], expected[20:, 3:, 5:])
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(pickle.loads(pickle.dumps(image)).to_numpy(), expected)


def test_arrays_in_memory_and_writable_files_take_prefetch_and_do_nothing(path: Path) -> None:
    MLArray(np.zeros((4, 4))).prefetch([Region((0, 0), (2, 2))])
    with MLArray.open(path, mmap_mode="r+") as image:
        image[0, 0, 0] = 5
        image.prefetch([Region((0, 0, 0), (2, 2, 2))])
        assert image._store._ahead is None


@needs_fadvise
def test_an_index_that_cannot_be_decoded_costs_the_hint_and_not_the_read(path: Path, setting: None) -> None:
    mlarray.set_read_ahead(256)

    def refuse(_: bytes) -> bytes:
        raise RuntimeError("not a chunk")

    with MLArray.open(path) as image:
        expected = image.to_numpy()
        image._store._ahead = FileReadAhead(path, read_header(path), refuse)
        image.prefetch([Region((30, 0, 0), (60, 70, 80))])
        readahead.wait_for_prefetches()
        image._store._ahead.cold_reads = 4
        assert np.array_equal(image[25:50, 3:, :9], expected[25:50, 3:, :9])
        image.prefetch([Region((30, 0, 0), (60, 70, 80))])
        readahead.wait_for_prefetches()
