"""Files that lie about themselves or are damaged: an error that names the file, never a crash of the C library."""

import os
import struct
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import FormatError, UsageError
from mlarray.formats.registry import open_source
from mlarray.storage.blosc import open_store
from mlarray.storage.frame import FrameSizes, refuse_contradictions
from mlarray.storage.publish import PendingFile
from mlarray_convert.verify import check_file

SHAPE = (12, 11, 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with chunks of 6 and blocks of 4 voxels along every axis: both are padded."""
    path = tmp_path / "a.mla"
    noise = np.random.default_rng(0).integers(-999, 999, SHAPE, dtype=np.int16)
    MLArray(noise, meta={"k": "v" * 500}, chunk_size=(6, 6, 6), block_size=(4, 4, 4)).save(path)
    return path


def replaced(path: Path, old: bytes, new: bytes, *, within: int | None = None) -> Path:
    data = path.read_bytes()
    place = data.index(old, 0, within)
    path.write_bytes(data[:place] + new + data[place + len(new) :])
    return path


def extent(value: int) -> bytes:
    return b"\xd3" + struct.pack(">q", value)  # how the array's metalayer holds a shape


@pytest.mark.parametrize("value", [2_147_483_658, 10**12, 22, 1, -10])
@pytest.mark.parametrize("mmap_mode", ["r", None])
def test_a_shape_that_the_chunks_do_not_fill_is_refused_when_opened(
    path: Path, value: int, mmap_mode: str | None
) -> None:
    replaced(path, extent(10), extent(value), within=300)
    with pytest.raises(FormatError, match=r"a\.mla is damaged"):
        MLArray.open(path, mmap_mode=mmap_mode)


@pytest.mark.parametrize("dtype", [b"<i8", b"<f4", b"|i1", b"|O8", b"??!"])
def test_a_dtype_of_another_size_or_none_at_all_is_refused_when_opened(path: Path, dtype: bytes) -> None:
    replaced(path, b"<i2", dtype, within=300)
    with pytest.raises(FormatError, match=r"a\.mla (is damaged|holds)"):
        MLArray.open(path)


@pytest.mark.parametrize(
    ("shape", "chunks", "blocks", "itemsize"),
    [
        ((12, 11), (6, 6, 6), (4, 4, 4), 2),
        ((12, 11, 10), (6, 6, 0), (4, 4, 4), 2),
        ((12, 11, 10), (6, 6, 6), (4, 4, -4), 2),
        ((12, 11, 10), (6, 6, 9), (4, 4, 4), 2),
        ((12, 11, 10), (6, 6, 6), (4, 4, 5), 2),
        ((12, 11, 13), (6, 6, 6), (4, 4, 4), 2),
        ((0, 11, 10), (6, 6, 6), (4, 4, 4), 2),
        ((12, 11, 10), (6, 6, 6), (4, 4, 4), 4),
    ],
)
def test_sizes_that_contradict_the_frame_are_refused(
    shape: tuple[int, ...], chunks: tuple[int, ...], blocks: tuple[int, ...], itemsize: int
) -> None:
    frame = FrameSizes(chunk_count=8, chunk_bytes=1024, block_bytes=128, item_bytes=2)
    refuse_contradictions(Path("a"), frame, shape=SHAPE, chunks=(6, 6, 6), blocks=(4, 4, 4), itemsize=2)
    with pytest.raises(FormatError, match="do not fit its 8 chunks"):
        refuse_contradictions(Path("a"), frame, shape=shape, chunks=chunks, blocks=blocks, itemsize=itemsize)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 4), (1,), (1, 1, 1)])
def test_arrays_without_voxels_or_with_one_open(tmp_path: Path, shape: tuple[int, ...]) -> None:
    MLArray(np.ones(shape, np.float32)).save(tmp_path / "a.mla")
    with MLArray.open(tmp_path / "a.mla") as array:
        np.testing.assert_array_equal(array.to_numpy(), np.ones(shape, np.float32))


def spoil_chunks(path: Path) -> None:
    # The voxels are noise: their bytes lie between the header and the index of chunks.
    data = bytearray(path.read_bytes())
    for place in range(300, 2000):
        data[place] ^= 0xA5
    path.write_bytes(data)


def test_voxels_that_cannot_be_decoded_name_the_file_and_the_place(path: Path) -> None:
    spoil_chunks(path)
    with (
        MLArray.open(path) as array,
        pytest.raises(FormatError, match=r"a\.mla is damaged: voxels .* cannot be decoded"),
    ):
        array.to_numpy()
    with open_source(path) as source, pytest.raises(FormatError, match="cannot be decoded"):
        source.read(source.spec.region)
    for compressed in (True, False):
        with pytest.raises(FormatError, match="is damaged"):
            MLArray.load(path, compressed=compressed)
    assert not check_file(path).ok


def test_a_damaged_copy_is_told_as_damage_of_the_source_and_leaves_no_file(path: Path, tmp_path: Path) -> None:
    spoil_chunks(path)
    with MLArray.open(path) as array, pytest.raises(FormatError, match=r"a\.mla is damaged"):
        array.save(tmp_path / "copy.mla")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.mla"]


def test_a_record_that_cannot_be_decompressed_costs_the_metadata_not_the_voxels(path: Path) -> None:
    with MLArray.open(path) as array:
        expected = array.to_numpy()
    raw = path.read_bytes()
    contents = max(raw.index(name) for name in (b"mlarray", b"mla_layout", b"mla_integrity")) + 32
    told: list[str] = []
    for place in range(contents, len(raw) - 50, 7):
        data = bytearray(raw)
        data[place : place + 3] = bytes(3)
        path.write_bytes(data)
        with warnings.catch_warnings(record=True) as caught, suppress(FormatError):  # another part of the file was hit
            warnings.simplefilter("always")
            np.testing.assert_array_equal(MLArray.load(path).to_numpy(), expected)
        told += [str(warning.message) for warning in caught]
    assert any("a.mla is damaged: record 'mlarray' cannot be decoded" in text for text in told)


@pytest.mark.parametrize("name", ["a::b.mla", "a::b/c.mla"])
def test_a_name_that_blosc2_would_cut_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "a::b").mkdir()
    with pytest.raises(UsageError, match="holds '::'"):
        MLArray(np.zeros((2, 2))).save(tmp_path / name)
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="names that are no UTF-8")
def test_a_name_that_is_no_utf8_is_refused_for_reading_and_writing(path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(path.parent) + b"/odd\xff.mla"))
    with pytest.raises(UsageError, match="not valid UTF-8"):
        MLArray(np.zeros((2, 2))).save(odd)
    with pytest.raises(UsageError, match="not valid UTF-8"):
        MLArray.create(odd, (2, 2), "f4")
    path.rename(odd)
    with pytest.raises(UsageError, match="not valid UTF-8"):
        MLArray.open(odd)
    assert list(path.parent.iterdir()) == [odd]


@pytest.mark.parametrize("name", ["x" * 250, "日" * 80, "é" * 110, "\U0001f9e0" * 60])
def test_a_temporary_name_is_no_longer_than_file_systems_take(tmp_path: Path, name: str) -> None:
    pending = PendingFile(tmp_path / f"{name}.mla")
    pending.path.write_bytes(b"1")
    assert len(os.fsencode(pending.path.name)) <= 200
    pending.abort()


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes")
@pytest.mark.parametrize("suffix", [".nii.gz", ".nii", ".hdr", ".nrrd", ".mha", ".mla", ".b2nd", ""])
def test_a_pipe_or_a_folder_in_the_place_of_an_image_is_refused_at_once(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    with pytest.raises(FormatError):
        open_source(tmp_path / f"pipe{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(FormatError):
        open_source(tmp_path / f"folder{suffix}")


@pytest.mark.parametrize("cparams", ["x", {"codec": 999}, {"clevel": 99}, {"filters": [99]}, {"nthreads": 10**6}])
def test_parameters_that_blosc2_cannot_take_are_wrong_use(cparams: object) -> None:
    with pytest.raises(UsageError, match="Blosc2 cannot create an array"):
        MLArray(np.zeros((3, 3)), cparams=cparams)  # type: ignore[arg-type]


def test_a_shape_that_no_file_can_have_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        MLArray.create(tmp_path / "a.mla", (2**63,), "u1")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_array_cannot_be_saved(tmp_path: Path) -> None:
    array = MLArray(np.zeros((3, 3)))
    array.close()
    with pytest.raises(UsageError, match="closed"):
        array.save(tmp_path / "a.mla")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mmap_mode", ["r", "c"])
def test_who_has_a_file_mapped_keeps_it_when_it_is_replaced(path: Path, mmap_mode: str) -> None:
    with MLArray.open(path, mmap_mode=mmap_mode) as array:
        before = MLArray.load(path).to_numpy()
        MLArray(np.zeros((5, 5)), meta={"k": "new"}).save(path)
        np.testing.assert_array_equal(array.to_numpy(), before)
        assert array.meta.source.data["k"] == "v" * 500


@pytest.mark.parametrize("remove", [False, True])
def test_without_a_map_a_replaced_file_is_told_and_never_mixed_with_the_new_one(path: Path, *, remove: bool) -> None:
    array = MLArray.open(path, mmap_mode=None)
    assert array[0, 0, 0].shape == ()
    path.unlink()
    if not remove:
        MLArray(np.zeros(SHAPE, np.int16), meta={"k": "new"}).save(path)
    with pytest.raises(FormatError, match="was replaced or removed after it was opened"):
        array.to_numpy()
    with pytest.raises(FormatError, match="was replaced or removed"):
        open_without_map(path, remove=remove)


def open_without_map(path: Path, *, remove: bool) -> None:
    """Open, replace, and only then ask for what is stored beside the voxels."""
    MLArray(np.zeros((4, 4)), meta={"k": "old"}).save(path)
    store = open_store(path, mmap_mode=None)
    path.unlink()
    if not remove:
        MLArray(np.zeros((4, 4)), meta={"k": "new"}).save(path)
    store.record("mlarray")
