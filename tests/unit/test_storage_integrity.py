"""Every damaged byte that matters is found; what another program wrote is not called damage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import blosc2
import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import FormatError, MetadataWarning
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.integrity import IntegrityReport, IntegrityState

RNG = np.random.default_rng(3)
VOXELS = RNG.integers(0, 1000, (12, 16, 16)).astype(np.int16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    image = MLArray(VOXELS, chunk_size=(4, 16, 16), block_size=(2, 8, 8), axes="zyx", meta={"note": "x" * 200})
    image.save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


def report_of(path: Path) -> IntegrityReport:
    store = open_store(path)
    try:
        return integrity.check(store)
    finally:
        store.close()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def place_of(path: Path, content: bytes) -> int:
    place = path.read_bytes().find(content)
    assert place > 0
    return place


def test_a_saved_file_is_intact(path: Path) -> None:
    assert report_of(path) == IntegrityReport(IntegrityState.INTACT)
    assert integrity.is_current(open_store(path))


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.99])
def test_each_damaged_chunk_is_found_and_named(path: Path, index: int, part: float) -> None:
    chunk = open_store(path).chunk_bytes(index)
    flip(path, place_of(path, chunk) + int(part * len(chunk)))
    report = report_of(path)
    assert report.state is IntegrityState.DAMAGED
    assert report.bad_chunks == (index,)
    assert "1 of 3 chunks do not match" in report.problems[0]


def test_several_damaged_chunks_are_all_found(path: Path) -> None:
    chunks = [open_store(path).chunk_bytes(index) for index in (0, 2)]
    for chunk in chunks:
        flip(path, place_of(path, chunk) + len(chunk) // 2)
    assert report_of(path).bad_chunks == (0, 2)


@pytest.mark.parametrize("name", ["mla_axes", "mla_layout"])
def test_a_record_of_ours_that_was_changed_is_found(path: Path, name: str) -> None:
    store = open_store(path, mmap_mode="r+")
    store.put_record(name, {"changed": 1})
    store.close()
    report = report_of(path)
    assert report.state is IntegrityState.DAMAGED
    assert report.problems == (f"Record {name!r} does not match its checksum.",)


def test_a_record_of_ours_that_is_gone_is_found(path: Path) -> None:
    store = open_store(path, mmap_mode="r+")
    store.drop_record("mla_axes")
    store.close()
    assert report_of(path).problems == ("Record 'mla_axes' does not match its checksum.",)


@pytest.mark.parametrize("record", [{"algorithm": "xxh3_64"}, "text", {"algorithm": 1, "chunks": b"", "records": {}}])
def test_checksums_that_cannot_be_read_are_damage(path: Path, record: object) -> None:
    store = open_store(path, mmap_mode="r+")
    store.put_record("mla_integrity", record)
    store.close()
    report = report_of(path)
    assert report.state is IntegrityState.DAMAGED
    assert "cannot be read" in report.problems[0]
    assert not integrity.is_current(open_store(path))


def test_any_flipped_byte_is_found_or_harmless(path: Path) -> None:
    """Over the whole file: nothing is reported intact while its voxels or its metadata differ."""
    original = path.read_bytes()
    for offset in range(165, len(original), 97):
        flip(path, offset)
        with suppress(FormatError):
            report = report_of(path)
            if report.state is IntegrityState.INTACT:
                image = MLArray.open(path)
                np.testing.assert_array_equal(image[...], VOXELS)
                assert image.meta.source == {"note": "x" * 200}
        path.write_bytes(original)


def test_files_without_checksums_are_decoded(tmp_path: Path) -> None:
    target = tmp_path / "b.b2nd"
    blosc2.asarray(VOXELS, urlpath=str(target), mode="w", chunks=(4, 16, 16), blocks=(2, 8, 8))
    assert report_of(target) == IntegrityReport(IntegrityState.UNCHECKED, decoded=True)
    assert integrity.content_checksum(open_store(target)) is None


def test_an_algorithm_of_the_future_is_not_compared(path: Path) -> None:
    store = open_store(path, mmap_mode="r+")
    store.put_record("mla_integrity", {"algorithm": "sha3", "chunks": b"", "records": {}})
    store.close()
    assert report_of(path).state is IntegrityState.UNCHECKED


def rewrite_metadata(array: blosc2.NDArray) -> None:
    array.schunk.vlmeta["mlarray"] = b"written by somebody else"


def change_voxels(array: blosc2.NDArray) -> None:
    array[5:7] = 0


def change_both(array: blosc2.NDArray) -> None:
    change_voxels(array)
    rewrite_metadata(array)


@pytest.mark.parametrize("change", [rewrite_metadata, change_voxels, change_both])
def test_what_a_program_without_checksums_writes_is_no_damage(
    path: Path, change: Callable[[blosc2.NDArray], None]
) -> None:
    array = blosc2.open(str(path), mmap_mode="r+")
    change(array)
    del array
    assert report_of(path) == IntegrityReport(IntegrityState.CHANGED, decoded=True)


@pytest.mark.parametrize("change", [rewrite_metadata, change_voxels, change_both])
def test_changing_such_a_file_with_ours_makes_it_intact_again(
    path: Path, change: Callable[[blosc2.NDArray], None]
) -> None:
    array = blosc2.open(str(path), mmap_mode="r+")
    change(array)
    del array
    expected = MLArray.load(path, compressed=False).to_numpy().copy() if change is change_voxels else None
    # Metadata that cannot be read costs a warning at opening.
    expecting = nullcontext() if change is change_voxels else pytest.warns(MetadataWarning, match="not valid gzip")
    with expecting:
        image = MLArray.open(path, mmap_mode="r+")
    with image:
        if change is change_voxels:
            image.meta.source["a"] = 1
        else:
            image[0] = 9
    assert report_of(path) == IntegrityReport(IntegrityState.INTACT)
    if expected is not None:
        np.testing.assert_array_equal(MLArray(path)[...], expected)


def test_only_changed_chunks_get_new_checksums(path: Path) -> None:
    before = open_store(path).record("mla_integrity")["chunks"]
    with MLArray.open(path, mmap_mode="r+") as image:
        image[5, 3, 3] += 1
    after = open_store(path).record("mla_integrity")["chunks"]
    assert [before[8 * i : 8 * i + 8] == after[8 * i : 8 * i + 8] for i in range(3)] == [True, False, True]
    assert report_of(path).state is IntegrityState.INTACT


def test_damage_in_a_file_is_not_blessed_by_changing_something_else(path: Path) -> None:
    chunk = open_store(path).chunk_bytes(2)
    flip(path, place_of(path, chunk) + len(chunk) // 2)
    with MLArray.open(path, mmap_mode="r+") as image:
        image[0] = 9
        image.meta.source["a"] = 1
    assert report_of(path).bad_chunks == (2,)


def test_one_checksum_stands_for_all_voxels(path: Path, tmp_path: Path) -> None:
    first = integrity.content_checksum(open_store(path))
    MLArray.open(path).save(tmp_path / "b.mla")
    assert integrity.content_checksum(open_store(tmp_path / "b.mla")) == first
    with MLArray.open(path, mmap_mode="r+") as image:
        image[0, 0, 0] += 1
    assert integrity.content_checksum(open_store(path)) != first
