"""A small file takes little memory, whatever it claims or expands to: opened and read in a process with a limit."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import blosc2
import h5py
import numpy as np
import pytest
import zarr
from pydicom import uid
from pydicom.encaps import encapsulate

from mlarray import MLArray
from tests.conformance.dicom_files import dataset
from tests.conformance.text_header_files import META_BASE, NRRD_BASE, write_meta, write_nrrd
from tests.conformance.zarr_files import multiscale, write_image

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux's")
ROOM = 400 << 20  # beyond what the interpreter and the libraries take
BOMB = 600 << 20
# Opens a file, reads a corner of it, and tells what came of it and what it took at most.
CHILD = """
import resource, sys, warnings
from mlarray.errors import MLArrayError
from mlarray.formats.registry import open_source
from mlarray.region import Region
import h5py, isal.isal_zlib, nibabel, numcodecs, pydicom.pixels, tifffile, zarr, zarr.storage, SimpleITK
warnings.simplefilter("ignore")
def taken():
    return int(open("/proc/self/statm").read().split()[0]) * 4096
limit = taken() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    with open_source(sys.argv[1]) as source:
        source.read(Region((0,) * source.spec.ndim, tuple(min(4, extent) for extent in source.spec.shape)))
        str(source.info)
    print("read")
except MLArrayError as error:
    print(type(error).__name__, str(error)[:600])
"""


def outcome(path: Path, room: int = ROOM) -> str:
    """What opening a file and reading its corner comes to; running out of memory is none of the answers."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(room)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def deflated(window: int, head: bytes = b"") -> bytes:
    stream = zlib.compressobj(9, wbits=window)
    zeros = bytes(1 << 20)
    return b"".join([stream.compress(head), *(stream.compress(zeros) for _ in range(BOMB >> 20)), stream.flush()])


def zstd() -> bytes:
    """A frame of blocks that repeat one byte, which does not say how much it holds."""
    count = BOMB >> 17
    blocks = (((131072 << 3) | 2 | (number == count - 1)).to_bytes(3, "little") + b"\0" for number in range(count))
    return bytes.fromhex("28b52ffd0058") + b"".join(blocks)


STREAMS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: deflated(31),
    "zlib": lambda: deflated(15),
    "zstd": zstd,
    "lz4": lambda: struct.pack("<i", 2**31 - 1) + bytes(100),
    "blosc": lambda: (
        blosc2.compress(bytes(64)).replace(struct.pack("<I", 64), struct.pack("<I", 2**31 - 64), 1) + bytes(32)
    ),
}


@pytest.mark.parametrize("codec", STREAMS)
def test_a_chunk_of_zarr_2_expands_to_a_chunk(tmp_path: Path, codec: str) -> None:
    path = write_image(
        tmp_path / "a.zarr", np.zeros((8, 8, 8), np.uint8), multiscale("zyx"), version="0.4", chunks=(8, 8, 8)
    )
    (description,) = path.glob("*/.zarray")
    document = json.loads(description.read_text(encoding="ascii")) | {"compressor": {"id": codec}, "filters": None}
    description.write_text(json.dumps(document), encoding="ascii")
    separator = document.get("dimension_separator", ".")
    place = description.parent / separator.join("000")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(STREAMS[codec]())
    assert outcome(path).startswith("FormatError")


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_chunk_of_zarr_3_and_of_a_shard_expands_to_a_chunk(tmp_path: Path, codec: str) -> None:
    compressor = {"gzip": zarr.codecs.GzipCodec, "zstd": zarr.codecs.ZstdCodec}[codec]()
    path = write_image(
        tmp_path / "a.zarr", np.ones((8, 8, 8), np.uint8), multiscale("zyx"), chunks=(4, 4, 4), shards=(8, 8, 8),
        compressors=compressor,
    )  # fmt: skip
    (shard,) = [one for one in path.rglob("0") if one.is_file()]
    content = shard.read_bytes()
    index = np.frombuffer(content[-132:-4], "<u8").reshape(8, 2).copy()
    bomb = STREAMS[codec]()
    index[:] = (0, len(bomb))
    import numcodecs

    shard.write_bytes(bomb + bytes(numcodecs.CRC32C(location="end").encode(np.frombuffer(index.tobytes(), "u1"))))
    assert "expand to more than" in outcome(path)


def test_a_deflated_chunk_of_hdf5_expands_to_a_chunk(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        image = file.create_dataset("image", (8, 8, 8), "u1", chunks=(8, 8, 8), compression="gzip")
        image.id.write_direct_chunk((0, 0, 0), deflated(15))
    assert "expand to more than" in outcome(tmp_path / "a.h5")


def test_a_chunk_of_hdf5_that_nobody_can_hold_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        image = file.create_dataset(
            "image", (4, 4, 4), "u1", chunks=(2000, 1000, 1999), maxshape=(None,) * 3, compression="gzip"
        )
        image.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(100)))
    assert "MLARRAY_LIMIT_CHUNK_BYTES" in outcome(tmp_path / "a.h5")


def test_a_record_of_two_gigabytes_in_some_bytes_is_not_decompressed(tmp_path: Path) -> None:
    MLArray(np.zeros((8, 8, 8), np.uint8)).save(tmp_path / "a.mla")
    array = blosc2.open(str(tmp_path / "a.mla"), mode="a")
    array.schunk.vlmeta.set_vlmeta("mlarray", bytes(1 << 30))
    del array
    assert (tmp_path / "a.mla").stat().st_size < 100_000_000
    assert outcome(tmp_path / "a.mla") == "read"


@pytest.mark.parametrize("suffix", ["nii.gz", "nrrd", "mhd", "mgz", "npz"])
def test_a_header_that_claims_10_to_the_12_voxels_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "nii.gz":
        header = bytearray(352)
        header[:4] = struct.pack("<i", 348)
        header[40:56] = np.array([3, 10000, 10000, 10000, 1, 1, 1, 1], "<i2").tobytes()
        header[70:74], header[108:112], header[344:348] = struct.pack("<hh", 2, 8), struct.pack("<f", 352), b"n+1\0"
        path.write_bytes(gzip.compress(bytes(header) + bytes(5000)))
    elif suffix == "nrrd":
        write_nrrd(path, NRRD_BASE | {"sizes": "10000 10000 10000", "encoding": "gzip"}, gzip.compress(bytes(5000)))
    elif suffix == "mhd":
        big = META_BASE | {"DimSize": "10000 10000 10000", "CompressedData": "True"}
        write_meta(path, big, zlib.compress(bytes(5000)))
    elif suffix == "mgz":
        path.write_bytes(gzip.compress(struct.pack(">7i", 1, 10000, 10000, 10000, 1, 0, 0) + bytes(5000)))
    else:
        member = io.BytesIO()
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (10**12,)})
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", member.getvalue() + bytes(5000))
    assert outcome(path).startswith("FormatError")


def test_an_lzma_member_does_not_choose_how_much_memory_it_takes(tmp_path: Path) -> None:
    member = io.BytesIO()
    np.save(member, np.zeros((8, 8, 8)))
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", member.getvalue())
    content = bytearray(path.read_bytes())
    at = content.index(b"a.npy") + len("a.npy")
    content[at + 5 : at + 9] = struct.pack("<I", 2**32 - 1)
    path.write_bytes(content)
    assert "MLARRAY_LIMIT_LZMA_DICTIONARY_BYTES" in outcome(path)


def write_dicom(path: Path, syntax: str, pixels: bytes, **fields: object) -> Path:
    data = dataset(np.zeros((16, 16), np.uint8), **fields)
    data.file_meta.TransferSyntaxUID = syntax
    data.file_meta.MediaStorageSOPClassUID, data.file_meta.MediaStorageSOPInstanceUID = (
        data.SOPClassUID,
        data.SOPInstanceUID,
    )
    data.PixelData = pixels
    data["PixelData"].VR = "OB"
    data.save_as(path, enforce_file_format=True)
    return path


def test_a_deflated_dicom_file_is_inflated_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLARRAY_LIMIT_DICOM_INFLATED_BYTES", str(1 << 20))
    path = write_dicom(tmp_path / "a.dcm", uid.DeflatedExplicitVRLittleEndian, bytes(256))
    content = path.read_bytes()
    at = 144 + struct.unpack("<I", content[140:144])[0]
    behind = struct.pack("<HH2sHI", 0x7FE1, 0x10, b"OB", 0, 0xFFFFFFF0)
    path.write_bytes(content[:at] + deflated(-15, zlib.decompress(content[at:], -15) + behind))
    assert "MLARRAY_LIMIT_DICOM_INFLATED_BYTES" in outcome(path)


LARGE = {
    "jpeg": (uid.JPEGBaseline8Bit, bytes.fromhex("ffd8ffc0000b08ea60ea6001011100") + bytes(64)),
    "jpeg-ls": (uid.JPEGLSLossless, bytes.fromhex("ffd8fff7000b08ea60ea6001011100") + bytes(64)),
    "jpeg-2000": (
        uid.JPEG2000Lossless,
        b"\xff\x4f\xff\x51" + struct.pack(">HH8IH", 41, 0, 60000, 60000, 0, 0, 60000, 60000, 0, 0, 1) + bytes(67),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_a_frame_that_says_it_is_larger_than_its_header_is_not_decoded(tmp_path: Path, kind: str) -> None:
    syntax, stream = LARGE[kind]
    told = outcome(write_dicom(tmp_path / "a.dcm", syntax, encapsulate([stream])))
    assert (
        "says rows, columns and samples (60000, 60000, 1), the header states (16, 16, 1)" in told
        or "No decoder" in told
    )


def test_frames_that_a_header_makes_huge_are_refused(tmp_path: Path) -> None:
    pixels = encapsulate([LARGE["jpeg-2000"][1]])
    path = write_dicom(tmp_path / "a.dcm", uid.JPEG2000Lossless, pixels, Rows=60000, Columns=60000)
    assert "MLARRAY_LIMIT_DICOM_FRAME_BYTES" in outcome(path)


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-2000"])
def test_a_tile_of_tiff_that_says_it_is_larger_is_not_decoded(tmp_path: Path, kind: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((64, 64), np.uint8), compression={"jpeg": "jpeg", "jpeg-2000": "jpeg2000"}[kind])
    with tifffile.TiffFile(path) as file:
        (at,), (count,) = file.pages[0].dataoffsets, file.pages[0].databytecounts
    content = bytearray(path.read_bytes())
    stream = LARGE[kind][1][:count]
    content[at : at + len(stream)] = stream
    path.write_bytes(content)
    assert "is an image of (60000, 60000, 1)" in outcome(path)
