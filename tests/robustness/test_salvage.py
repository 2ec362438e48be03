"""What is intact of a damaged or unfinished file is written to a new one, and what is lost is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import FormatError, UsageError
from mlarray.region import Region
from mlarray.storage.blosc import open_store
from mlarray.storage.frame import read_header
from mlarray.storage.integrity import SALVAGE_RECORD
from mlarray.storage.salvage import Salvaged, salvage
from mlarray_convert import convert
from mlarray_convert.outcome import Failure
from mlarray_convert.verify import salvaged
from tests.cli.samples import mla

VOXELS = np.random.default_rng(6).integers(1, 1000, (12, 16, 16)).astype(np.int16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    image = MLArray(VOXELS, chunk_size=(4, 16, 16), block_size=(2, 8, 8), axes="zyx", spacing=(3, 2, 1))
    image.save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


def damage(path: Path, begin: int, count: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for place in range(begin, begin + count):
        data[place] ^= 0xFF
    path.write_bytes(data)


def kept_of(path: Path) -> tuple[Salvaged, np.ndarray, object]:
    result = salvage(path, path.with_name("kept.mla"))
    with MLArray.open(result.path, verify="full") as image:
        return result, image.to_numpy(), image.spacing


def test_a_damaged_chunk_is_lost_and_all_else_is_kept(path: Path) -> None:
    chunk = open_store(path).chunk_bytes(1)
    damage(path, path.read_bytes().index(chunk) + len(chunk) // 2)
    result, voxels, spacing = kept_of(path)
    assert result.lost == (Region((4, 0, 0), (8, 16, 16)),)
    assert result.lost_records == ()
    assert np.array_equal(voxels, np.concatenate([VOXELS[:4], np.zeros_like(VOXELS[4:8]), VOXELS[8:]]))
    assert spacing == [3, 2, 1]
    assert open_store(result.path).record(SALVAGE_RECORD) == {"lost": [[[4, 0, 0], [8, 16, 16]]]}


def test_what_is_lost_is_said_by_copies_too(path: Path) -> None:
    chunk = open_store(path).chunk_bytes(1)
    damage(path, path.read_bytes().index(chunk) + len(chunk) // 2)
    kept = salvage(path, path.with_name("kept.mla")).path
    with MLArray.open(kept) as image:
        image.save(path.with_name("saved.mla"))
    MLArray.load(kept).save(path.with_name("loaded.mla"))
    assert convert(kept, path.with_name("converted.mla")).outcomes[0].failure is Failure.NONE
    for name in ("saved", "loaded", "converted"):
        assert open_store(path.with_name(f"{name}.mla")).record(SALVAGE_RECORD) == {"lost": [[[4, 0, 0], [8, 16, 16]]]}


@pytest.mark.parametrize("part", ["index", "end of the trailer", "fields of the header", "seal"])
def test_every_voxel_survives_damage_around_the_chunks(path: Path, part: str) -> None:
    header = read_header(path)
    begin, count = {
        "index": (header.data_end, 30),
        "end of the trailer": (header.frame_bytes - 20, 20),
        "fields of the header": (60, 2),
        "seal": (header.frame_bytes, 40),
    }[part]
    damage(path, begin, count)
    result, voxels, spacing = kept_of(path)
    assert np.array_equal(voxels, VOXELS)
    assert (result.lost, result.lost_records, spacing) == ((), (), [3, 2, 1])


def test_a_lost_record_is_named(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"mla_axes", b"mla_axis", 1))
    result, voxels, spacing = kept_of(path)
    assert np.array_equal(voxels, VOXELS)
    assert result.lost_records == ("mla_axes",)
    assert spacing == [3, 2, 1]


def test_of_an_unfinished_file_what_was_written_is_kept(tmp_path: Path) -> None:
    image = MLArray.create(
        tmp_path / "a.mla", (12, 16, 16), np.int16, mmap_mode=None, chunk_size=(4, 16, 16), block_size=(2, 8, 8)
    )
    image[0:4] = VOXELS[0:4]
    image[8:12] = VOXELS[8:12]
    (tmp_path / "dead.mla").write_bytes((tmp_path / "a.mla").read_bytes())
    image.close()
    result, voxels, _ = kept_of(tmp_path / "dead.mla")
    assert (result.lost, result.unwritten) == ((), 1)
    assert np.array_equal(voxels, np.concatenate([VOXELS[:4], np.zeros_like(VOXELS[4:8]), VOXELS[8:]]))


def test_chunks_of_one_value_are_kept(tmp_path: Path) -> None:
    voxels = np.full((12, 16, 16), np.nan, np.float32)
    voxels[4:8] = 0
    MLArray(voxels, chunk_size=(4, 16, 16), block_size=(2, 8, 8)).save(tmp_path / "a.mla")
    _, kept, _ = kept_of(tmp_path / "a.mla")
    assert np.array_equal(kept, voxels, equal_nan=True)


def test_without_header_or_without_index_and_checksums_nothing_is_written(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    damage(path, read_header(path).header_bytes - 60, 40)
    with pytest.raises(FormatError):
        salvage(path, tmp_path / "kept.mla")
    path.write_bytes(whole)
    header = read_header(path)
    damage(path, header.data_end, header.frame_bytes - header.data_end)
    with pytest.raises(FormatError, match="its index is lost, and it has no checksums to tell the chunks by"):
        salvage(path, tmp_path / "kept.mla")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.mla"]


def test_nothing_is_overwritten_and_other_formats_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.mla exists"):
        salvage(path, path)
    with pytest.raises(UsageError, match=r"got b\.nii and kept\.mla"):
        salvaged(tmp_path / "b.nii", tmp_path / "kept.mla")


def test_the_command_says_what_is_lost(path: Path, tmp_path: Path) -> None:
    chunk = open_store(path).chunk_bytes(1)
    damage(path, path.read_bytes().index(chunk) + 40)
    result = mla("verify", "--salvage", tmp_path / "kept.mla", path)
    assert result.returncode == 6
    assert "kept.mla  (2 of 3 chunks)" in result.stdout
    assert "Lost, and 0 here: voxels (4, 0, 0) to (8, 16, 16)." in result.stdout
    again = mla("verify", "--salvage", tmp_path / "kept2.mla", "--json", tmp_path / "kept.mla")
    assert again.returncode == 0
    assert json.loads(again.stdout)["ok"] is True
    assert mla("verify", tmp_path / "kept2.mla").returncode == 0
    refused = mla("verify", "--salvage", tmp_path / "kept2.mla", path)
    assert refused.returncode == 2
    assert "exists" in refused.stderr
