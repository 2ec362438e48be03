"""The seal vouches for all that is not a chunk, the checksums for every chunk; who writes to a file breaks neither silently."""

from __future__ import annotations

import pickle
from pathlib import Path

import blosc2
import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import FormatError, IntegrityError, UsageError
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.frame import read_header
from mlarray.storage.integrity import IntegrityState
from mlarray.storage.seal import SEAL_BYTES, SealState, seal_state
from mlarray_convert.verify import check_file

VOXELS = np.random.default_rng(5).integers(1, 1000, (12, 16, 16)).astype(np.int16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    image = MLArray(VOXELS, chunk_size=(4, 16, 16), block_size=(2, 8, 8), axes="zyx", meta={"note": "x" * 200})
    image.save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def in_chunk(path: Path, index: int) -> int:
    chunk = open_store(path).chunk_bytes(index)
    return path.read_bytes().index(chunk) + len(chunk) // 2


def test_a_finished_file_ends_with_a_seal_behind_its_frame(path: Path) -> None:
    header = read_header(path)
    assert path.stat().st_size == header.frame_bytes + SEAL_BYTES == header.frame_bytes + 40
    assert path.read_bytes()[header.frame_bytes :].startswith(b"mla-seal")
    assert seal_state(path) is SealState.HOLDS


def test_blosc2_reads_a_sealed_file_and_cuts_the_seal_when_it_writes(path: Path) -> None:
    assert np.array_equal(blosc2.open(str(path), mode="r")[:], VOXELS)
    array = blosc2.open(str(path), mode="a")
    array[0, 0, :] = 5
    del array
    assert seal_state(path) is SealState.MISSING
    assert integrity.check_file(path).state is IntegrityState.CHANGED


def test_every_byte_around_the_chunks_is_sealed(path: Path) -> None:
    header = read_header(path)
    whole = path.read_bytes()
    around = [*range(16, header.header_bytes), *range(header.data_end, len(whole))]
    missed = []
    for place in around[::3]:
        flip(path, place)
        try:
            found = integrity.check_file(path).state is IntegrityState.DAMAGED
        except FormatError:
            found = True
        if not found:
            missed.append(place)
        path.write_bytes(whole)
    assert not missed


@pytest.mark.parametrize("end", ["seal", "half", "more"])
def test_a_file_whose_end_is_lost_or_too_long_does_not_pass(path: Path, end: str) -> None:
    data = path.read_bytes()
    path.write_bytes({"seal": data[:-SEAL_BYTES], "half": data[: -SEAL_BYTES // 2], "more": data + b"\0"}[end])
    check = check_file(path)
    assert not check.ok
    assert ("seal behind it is not there" in check.problems[0]) == (end == "seal")


def test_changes_in_place_are_sealed_again(path: Path) -> None:
    with MLArray.open(path, mmap_mode="r+") as image:
        image[0:1] = 7
        image.meta.source["note"] = "short"
    assert seal_state(path) is SealState.HOLDS
    assert integrity.check_file(path).state is IntegrityState.INTACT
    with MLArray.open(path, verify="full") as image:
        assert (image[0] == 7).all()
        assert np.array_equal(image[1:], VOXELS[1:])


def test_opening_for_writing_without_a_change_leaves_every_byte(path: Path) -> None:
    before = path.read_bytes()
    with MLArray.open(path, mmap_mode="r+") as image:
        assert image[0, 0, 0] == VOXELS[0, 0, 0]
    assert path.read_bytes() == before


def test_full_verification_refuses_a_damaged_chunk_at_opening(path: Path) -> None:
    flip(path, in_chunk(path, 2))
    with pytest.raises(IntegrityError, match=r"a\.mla is damaged: 1 of 3 chunks do not match"):
        MLArray.open(path, verify="full")
    with pytest.raises(IntegrityError, match=r"salvage"):
        MLArray.load(path, verify="lazy")
    MLArray.open(path).close()


@pytest.mark.parametrize("mmap_mode", ["r", None])
def test_lazy_verification_refuses_a_damaged_chunk_each_time_it_is_read(path: Path, mmap_mode: str | None) -> None:
    flip(path, in_chunk(path, 1))
    with MLArray.open(path, mmap_mode=mmap_mode, verify="lazy") as image:  # type: ignore[arg-type]
        assert np.array_equal(image[:4], VOXELS[:4])
        assert np.array_equal(image[8:], VOXELS[8:])
        for _ in range(2):
            with pytest.raises(IntegrityError, match=r"chunk 1 does not match its checksum"):
                image[3:5]


@pytest.mark.parametrize("verify", ["full", "lazy"])
def test_a_broken_seal_is_refused_before_blosc2_sees_the_file(path: Path, verify: str) -> None:
    flip(path, read_header(path).data_end + 20)
    with pytest.raises(IntegrityError, match=r"header, the index or the records do not match the seal"):
        MLArray.open(path, verify=verify)  # type: ignore[arg-type]


def test_verification_goes_with_a_handle_to_another_process(path: Path) -> None:
    flip(path, in_chunk(path, 1))
    with MLArray.open(path, verify="lazy") as image, pickle.loads(pickle.dumps(image)) as copy:
        assert np.array_equal(copy[:4], VOXELS[:4])
        with pytest.raises(IntegrityError, match="chunk 1"):
            copy.to_numpy()


@pytest.mark.parametrize("verify", ["full", "lazy"])
def test_a_file_without_checksums_is_read_as_it_is(tmp_path: Path, verify: str) -> None:
    blosc2.asarray(VOXELS, urlpath=str(tmp_path / "b.b2nd"), mode="w")
    with MLArray.open(tmp_path / "b.b2nd", verify=verify) as image:  # type: ignore[arg-type]
        assert np.array_equal(image.to_numpy(), VOXELS)


def test_other_values_of_verify_are_refused(path: Path) -> None:
    with pytest.raises(UsageError, match=r"verify must be 'full', 'lazy' or None, got 'yes'"):
        MLArray.open(path, verify="yes")  # type: ignore[arg-type]


def test_frames_that_are_changed_in_place_have_no_gaps(path: Path) -> None:
    """What the ranges of chunks rest on: blosc2 moves what is behind a chunk whose size changes."""
    rng = np.random.default_rng(8)
    with MLArray.open(path, mmap_mode="r+") as image:
        for kind in rng.integers(0, 4, 60):
            z = int(rng.integers(0, 3)) * 4
            shape = (4, 16, 16)
            image[z : z + 4] = rng.integers(0, (1, 2, 100, 10000)[kind], shape).astype(np.int16)
        expected = image.to_numpy()
    assert integrity.check_file(path).state is IntegrityState.INTACT
    with MLArray.open(path, verify="full") as image:
        assert np.array_equal(image.to_numpy(), expected)


def test_a_file_that_was_replaced_is_not_called_damaged(path: Path) -> None:
    store = open_store(path)
    MLArray(VOXELS + 1, chunk_size=(4, 16, 16), block_size=(2, 8, 8), axes="zyx").save(path)
    with pytest.raises(FormatError, match="was replaced or removed after it was opened"):
        integrity.check(store)
    assert integrity.check_file(path).state is IntegrityState.INTACT
