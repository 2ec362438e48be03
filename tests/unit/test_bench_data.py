"""What a benchmark reads: volumes in the scratch folder and random patches of them; pages that are dropped."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray, Region
from mlarray.errors import MissingFileError, UsageError
from mlarray.spec import ArraySpec
from mlarray_convert.bench.data import (
    draw_patches,
    find_origins,
    fitted_shape,
    patch_extent,
    store_volumes,
    synthetic_source,
)
from mlarray_convert.bench.evict import cached_share, evict, flush, why_not_cold
from mlarray_convert.bench.readers import Patch, Readers, prepared


def stored(folder: Path, array: np.ndarray, **arguments: object) -> Path:
    path = folder / "case.mla"
    MLArray(array, **arguments).save(path)
    return path


def test_a_volume_is_cut_around_its_centre_and_keeps_its_voxels(tmp_path: Path) -> None:
    array = np.arange(40 * 30 * 20, dtype=np.int32).reshape(40, 30, 20)
    origins, notes = find_origins(stored(tmp_path, array), None)
    shares: list[float] = []
    volume = store_volumes(origins, tmp_path, 8, budget_bytes=4 * 16 * 16 * 16, progress=shares.append)[0]
    assert volume.spec.shape == (16, 16, 16)
    assert np.array_equal(volume.voxels(), array[12:28, 7:23, 2:18])
    assert (notes, volume.full_shape, shares[-1]) == ((), (40, 30, 20), 1.0)


def test_no_axis_is_cut_below_two_patches(tmp_path: Path) -> None:
    spec = ArraySpec((100, 100, 10), np.dtype(np.uint8))
    assert fitted_shape(spec, (20, 20, 10), 1) == (40, 40, 10)
    assert fitted_shape(spec, (20, 20, 10), 10**9) == spec.shape


def test_patches_are_whole_along_space_and_single_elsewhere(tmp_path: Path) -> None:
    path = stored(tmp_path, np.zeros((3, 20, 30, 40), np.float32), axes="czyx")
    origins, _ = find_origins(path, None)
    assert patch_extent(origins[0].source.spec, 25) == (1, 20, 25, 25)
    assert patch_extent(origins[0].source.spec, (16, 8)) == (1, 1, 16, 8)
    volumes = store_volumes(origins, tmp_path, 25, budget_bytes=10**9, progress=lambda _: None)
    drawn = list(draw_patches(volumes, 25, 50, np.random.default_rng(0)))
    assert {region.shape for _, region in drawn} == {(1, 20, 25, 25)}
    assert all(region.is_within((3, 20, 30, 40)) for _, region in drawn)
    assert {region.start[0] for _, region in drawn} == {0, 1, 2}


def test_a_folder_gives_images_of_one_type_spread_over_its_names(tmp_path: Path) -> None:
    for number in range(8):
        dtype = np.uint8 if number == 4 else np.int16
        MLArray(np.zeros((4, 4, 4), dtype)).save(tmp_path / f"{number}.mla")
    (tmp_path / "notes.txt").write_text("no image")
    origins, notes = find_origins(tmp_path, None)
    assert [origin.name for origin in origins] == ["0.mla", "2.mla", "6.mla"]
    assert "3 of the 8 images" in notes[0]
    assert "int16" in notes[1]


def test_what_to_read_must_be_said_once(tmp_path: Path) -> None:
    for arguments in ((None, None), (tmp_path, "ct"), (tmp_path, None)):
        with pytest.raises(UsageError):
            find_origins(*arguments)
    with pytest.raises(MissingFileError):
        find_origins(tmp_path / "none.nii", None)
    with pytest.raises(UsageError, match="ct, mr, labels"):
        synthetic_source("pet")


@pytest.mark.parametrize(
    ("kind", "dtype", "shape"),
    [("ct", "int16", (400, 512, 512)), ("mr", "float32", (240, 320, 320)), ("labels", "uint8", (400, 512, 512))],
)
def test_synthetic_data_is_the_same_wherever_it_is_read(kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    source = synthetic_source(kind)
    assert (source.spec.dtype, source.spec.shape) == (np.dtype(dtype), shape)
    outer, inner = Region((100, 100, 90), (104, 140, 150)), Region((101, 110, 100), (103, 130, 140))
    whole = source.read(outer)
    assert np.array_equal(whole[inner.relative_to(outer).slices], source.read(inner))
    assert len(np.unique(whole)) > {"ct": 100, "mr": 1000, "labels": 1}[kind]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are in memory")
def test_a_file_is_dropped_from_memory_unless_its_file_system_is_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 2**20)
    flush(path)
    assert cached_share(path) == 1.0
    assert evict(path)
    share = cached_share(path)
    assert (why_not_cold(path) == "") is (share is not None and share < 0.05)
    memory = Path("/dev/shm")
    if memory.is_dir():
        held = memory / f"mla-test-{path.parent.name}"
        held.write_bytes(b"x" * 2**20)
        try:
            assert "100% of a file stayed in memory" in why_not_cold(held)
        finally:
            held.unlink()


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert cached_share(tmp_path / "a") is None


@pytest.mark.parametrize("cold", [False, True])
def test_patches_are_read_from_both_kinds_of_files(tmp_path: Path, cold: bool) -> None:
    array = np.arange(4096, dtype=np.int16).reshape(16, 16, 16)
    np.save(tmp_path / "raw.npy", array)
    region = Region((1, 2, 3), (9, 9, 9))
    files = [str(stored(tmp_path, array)), str(tmp_path / "raw.npy")]
    assert 0 < prepared([Patch(path, region) for path in files], cold=cold)() < 60


def test_several_readers_answer_and_end(tmp_path: Path) -> None:
    path = str(stored(tmp_path, np.zeros((16, 16, 16), np.int16)))
    share = [Patch(path, Region((0, 0, 0), (8, 8, 8)))]
    with Readers(2) as readers:
        for cold in (False, True):
            assert readers.seconds([share, share], cold=cold) > 0
        processes = list(readers._processes)
    assert all(process.exitcode == 0 for process in processes)


def test_a_failure_in_a_reader_is_raised_here(tmp_path: Path) -> None:
    share = [Patch(str(tmp_path / "none.mla"), Region((0,), (1,)))]
    with Readers(2) as readers, pytest.raises(Exception, match=r"A reader failed: MissingFileError.*none\.mla"):
        readers.seconds([share, share], cold=False)
