"""Damage is found, and reading what is damaged ends with voxels or an error of ours, also without verification."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import blosc2
import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import FormatError, UsageError
from mlarray.storage.blosc import open_store
from mlarray.storage.frame import FrameHeader, FrameSizes, read_header
from mlarray.storage.guards import UndecodableError, refuse_chunk
from mlarray_convert.verify import check_file

CAMPAIGN = Path(__file__).resolve().parents[2] / "benchmarks" / "damage.py"
VOXELS = np.arange(12 * 8 * 8, dtype=np.int16).reshape(12, 8, 8)
PLUGIN = 36  # a number for which blosc2 runs a module of the environment


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MLArray(VOXELS, chunk_size=(4, 8, 8), block_size=(2, 8, 8), meta={"k": "v"}).save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


def edited(path: Path, *edits: tuple[int, bytes]) -> Path:
    data = bytearray(path.read_bytes())
    for place, content in edits:
        data[place : place + len(content)] = content
    path.write_bytes(data)
    return path


def plugin_edits(path: Path, chunk: int) -> list[tuple[int, bytes]]:
    """Let a chunk name a codec of a plugin."""
    flags = path.read_bytes()[chunk + 2]
    return [(chunk + 2, bytes([0xC0 | flags & 0x15])), (chunk + 22, bytes([PLUGIN]))]


def record_place(header: FrameHeader, data: bytes, name: bytes) -> int:
    """Return where the chunk of a record begins: its place in the trailer stands behind its name."""
    begin = header.frame_bytes - int.from_bytes(data[header.frame_bytes - 22 : header.frame_bytes - 18], "big")
    at = data.index(bytes([0xA0 | len(name)]) + name, begin) + 1 + len(name)
    return begin + int(struct.unpack_from(">i", data, at + 1)[0]) + 5


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and what /proc tells")
def test_every_damage_of_a_campaign_is_found_and_none_takes_a_reader_down() -> None:
    command = [sys.executable, str(CAMPAIGN), "--count", "400", "--seed", "7", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    told = json.loads(done.stdout)
    assert told["findings"] == []
    assert told["missed"] == {}
    assert told["found"] == told["checked"] > 200
    assert told["damages"] > 300


@pytest.mark.parametrize("mmap_mode", ["r", "c", "r+", None])
@pytest.mark.parametrize(
    ("place", "content"),
    [
        (4, struct.pack("<i", 2**31 - 1)),
        (8, struct.pack("<i", 1)),
        (3, b"\x01"),
        (2, b"\x00"),
        (16, b"\xaa"),
        (0, b"\x06"),
        (30, b"\x01"),
        (32, struct.pack("<i", 5)),
        (36, struct.pack("<i", 2**30)),
    ],
)
def test_a_chunk_that_contradicts_its_frame_is_not_decoded_and_the_others_are(
    path: Path, mmap_mode: str | None, place: int, content: bytes
) -> None:
    header = read_header(path)
    second = path.read_bytes().index(path.read_bytes()[header.header_bytes :][:12], header.header_bytes + 32)
    edited(path, (second + place, content))
    with MLArray.open(path, mmap_mode=mmap_mode) as image:
        np.testing.assert_array_equal(image[:4], VOXELS[:4])
        with pytest.raises(FormatError, match=r"a\.mla is damaged.*chunk 1"):
            image.to_numpy()
        with pytest.raises(FormatError, match=r"a\.mla is damaged"):
            image[5, 0, 0]
        np.testing.assert_array_equal(image[8:], VOXELS[8:])
    with pytest.raises(FormatError, match=r"a\.mla is damaged"):
        MLArray.load(path)
    assert not check_file(path).ok


def test_a_first_chunk_that_claims_more_blocks_than_there_can_be_is_refused_when_opened(path: Path) -> None:
    edited(path, (read_header(path).header_bytes + 4, struct.pack("<ii", 2**31 - 64, 1)))
    with pytest.raises(FormatError, match="chunk 0 claims 2147483584 bytes in blocks of 1"):
        MLArray.open(path)


@pytest.mark.skipif(sys.platform != "linux", reason="a script in the place of an interpreter")
@pytest.mark.parametrize("part", ["chunk", "index", "record", "frame"])
def test_a_codec_of_a_plugin_is_refused_and_nothing_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    for name in ("python", "python3"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\necho run >> {tmp_path / 'ran'}\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    header, data = read_header(path), path.read_bytes()
    places = {
        "chunk": header.header_bytes,
        "index": header.data_end,
        "record": record_place(header, data, b"mla_integrity"),
    }
    edits = [(27, b"\x56"), (77, bytes([PLUGIN]))] if part == "frame" else plugin_edits(path, places[part])
    edited(path, *edits)
    if part == "record":
        with MLArray.open(path) as image:
            np.testing.assert_array_equal(image.to_numpy(), VOXELS)
            with pytest.raises(FormatError, match="record 'mla_integrity' cannot be decoded"):
                image._store.record("mla_integrity")
    else:
        with pytest.raises(FormatError, match="not compiled into blosc2"):
            MLArray.open(path).to_numpy()
    assert not check_file(path).ok
    assert not (tmp_path / "ran").exists()


def test_a_record_that_is_written_anew_can_be_read_again(path: Path) -> None:
    header, data = read_header(path), path.read_bytes()
    edited(path, *plugin_edits(path, record_place(header, data, b"mla_layout")))
    store = open_store(path, mode="a", mmap_mode=None)
    with pytest.raises(FormatError, match="record 'mla_layout' cannot be decoded"):
        store.record("mla_layout")
    store.put_record("mla_layout", {"layout": "new"})
    assert store.record("mla_layout") == {"layout": "new"}
    store.close()


def test_a_chunk_without_a_whole_header_is_refused() -> None:
    with pytest.raises(UndecodableError, match="its header is cut off"):
        refuse_chunk(b"\x05\x01", FrameSizes(1, 8, 8, 1))


@pytest.mark.parametrize("cparams", [{"codec": blosc2.Codec.ZFP_RATE}, blosc2.CParams(filters=[blosc2.Filter.NDMEAN])])
def test_what_reading_would_refuse_cannot_be_written(tmp_path: Path, cparams: object) -> None:
    with pytest.raises(UsageError, match="codecs are"):
        MLArray(VOXELS.astype(np.float32), cparams=cparams).save(tmp_path / "a.mla")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [blosc2.Filter.BYTEDELTA, blosc2.Filter.INT_TRUNC, blosc2.Filter.TRUNC_PREC])
def test_a_filter_that_is_compiled_in_is_written_and_read(tmp_path: Path, given: blosc2.Filter) -> None:
    params = {
        "codec": blosc2.Codec.ZSTD,
        "filters": [given],
        "filters_meta": [10 * (given is not blosc2.Filter.BYTEDELTA)],
        "typesize": 4,
    }
    voxels = VOXELS.astype(np.float32 if given is blosc2.Filter.TRUNC_PREC else np.int32)
    MLArray(voxels, cparams=params).save(tmp_path / "a.mla")
    assert MLArray.load(tmp_path / "a.mla").shape == VOXELS.shape
