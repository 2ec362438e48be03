"""NIfTI files that are cut, corrupted or lie about themselves are refused with the numbers concerned."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from mlarray.errors import FormatError
from mlarray.formats.nifti import open_source
from mlarray.formats.nifti_header import encode_extensions
from mlarray.formats.nifti_layout import encode_header, lay_out
from tests.conformance.nifti_files import codes, everything, patch

NOISE = np.random.default_rng(5).integers(-1000, 1000, (30, 20, 10), dtype=np.int16)  # 12000 bytes behind 352 of header


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    nib.save(nib.Nifti1Image(NOISE, np.eye(4)), tmp_path / "a.nii")
    return tmp_path / "a.nii"


def compress(path: Path, *, level: int = 6) -> Path:
    target = path.with_suffix(".nii.gz")
    target.write_bytes(gzip.compress(path.read_bytes(), level))
    return target


def test_a_cut_file_is_refused_at_open_with_both_byte_counts(plain: Path) -> None:
    plain.write_bytes(plain.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"a\.nii is too short: 12352 bytes are needed, 12252 were found"):
        open_source(plain)


def test_a_cut_voxel_file_of_a_pair_is_refused_at_open(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Pair(NOISE, np.eye(4)), tmp_path / "a.img")
    (tmp_path / "a.img").write_bytes((tmp_path / "a.img").read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"a\.img is too short: 12000 bytes are needed, 11999 were found"):
        open_source(tmp_path / "a.hdr")


@pytest.mark.parametrize("size", [0, 3, 100, 347])
def test_a_file_shorter_than_its_header_is_refused(plain: Path, size: int) -> None:
    plain.write_bytes(plain.read_bytes()[:size])
    with pytest.raises(FormatError, match=f"348 bytes are needed, {size} were found"):
        open_source(plain)


def test_a_stream_that_holds_too_few_voxels_names_both_byte_counts(plain: Path) -> None:
    plain.write_bytes(plain.read_bytes()[:-100])
    with pytest.raises(FormatError, match="12352 bytes are needed, 12252 were found"):
        everything(open_source(compress(plain)))


def test_a_cut_stream_is_refused_while_reading(plain: Path) -> None:
    path = compress(plain)
    path.write_bytes(path.read_bytes()[:-2000])
    source = open_source(path)
    with pytest.raises(FormatError, match=r"cut in the middle.*: 12352 bytes are needed, \d+ were decoded"):
        everything(source)


def test_a_stream_without_its_checksum_is_refused(plain: Path) -> None:
    path = compress(plain)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FormatError, match=r"a\.nii\.gz is cut in the middle of its compressed stream"):
        everything(open_source(path))


@pytest.mark.parametrize("level", [0, 6])
def test_a_flipped_bit_in_a_stream_is_refused(plain: Path, level: int) -> None:
    path = compress(plain, level=level)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match=r"damaged|too short|cut in the middle"):
        everything(open_source(path))


def test_a_wrong_checksum_is_found_by_reading_the_last_voxels(plain: Path) -> None:
    path = compress(plain)
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="CRC"):
        everything(open_source(path))


def test_garbage_instead_of_deflate_is_refused(plain: Path) -> None:
    path = plain.with_name("b.nii.gz")
    path.write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 3000)
    with pytest.raises(FormatError, match=r"b\.nii\.gz is damaged"):
        open_source(path)


def test_several_gzip_members_are_one_stream(plain: Path) -> None:
    data = plain.read_bytes()
    path = plain.with_name("b.nii.gz")
    path.write_bytes(b"".join(gzip.compress(part) for part in (data[:200], data[200:5000], data[5000:])) + bytes(512))
    np.testing.assert_array_equal(everything(open_source(path)), NOISE.T)


def test_a_header_of_10_to_the_12_voxels_is_refused_at_open(plain: Path) -> None:
    patch(plain, 40, "<4h", 3, 10000, 10000, 10000)
    with pytest.raises(FormatError, match="2000000000352 bytes are needed, 12352 were found"):
        open_source(plain)
    path = compress(plain)
    with pytest.raises(FormatError, match=f"2000000000352 bytes of voxels, but its {path.stat().st_size} compressed"):
        open_source(path)


def test_a_highly_compressed_volume_of_zeros_is_not_taken_for_a_lie(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(np.zeros((200, 200, 100), np.uint8), np.eye(4)), tmp_path / "a.nii")
    path = compress(tmp_path / "a.nii", level=9)
    assert 4e6 / path.stat().st_size > 900
    assert not everything(open_source(path)).any()


@pytest.mark.parametrize(("code", "name"), [(1536, "float128"), (2048, "complex256"), (1, "binary"), (0, "unknown")])
def test_datatypes_that_cannot_be_read_are_refused_by_name(plain: Path, code: int, name: str) -> None:
    with pytest.raises(FormatError, match=f"datatype {code} \\({name}"):
        open_source(patch(plain, 70, "<h", code))


@pytest.mark.parametrize(("offset", "layout", "value"), [(40, "<h", 0), (40, "<h", 8), (40, "<h", -1), (44, "<h", 0)])
def test_impossible_dimensions_are_refused(plain: Path, offset: int, layout: str, value: int) -> None:
    with pytest.raises(FormatError, match=r"dimensions in its header|shape"):
        open_source(patch(plain, offset, layout, value))


def test_a_time_axis_of_zero_is_taken_as_one(plain: Path) -> None:
    source = open_source(patch(plain, 40, "<5h", 4, 30, 20, 10, 0))
    assert source.spec.shape == (10, 20, 30)
    assert "dim-repaired" in codes(source)


@pytest.mark.parametrize("value", [np.nan, np.inf, -352])
def test_an_impossible_voxel_offset_is_refused(plain: Path, value: float) -> None:
    with pytest.raises(FormatError, match="places its voxels at byte"):
        open_source(patch(plain, 108, "<f", value))


def test_a_voxel_offset_inside_the_header_is_repaired(plain: Path) -> None:
    source = open_source(patch(plain, 108, "<f", 0))
    assert codes(source) == {"offset-repaired"}
    np.testing.assert_array_equal(everything(source), NOISE.T)


def test_a_file_without_magic_bytes_is_refused(plain: Path) -> None:
    with pytest.raises(FormatError, match="magic"):
        open_source(patch(plain, 344, "<4s", b"abc\x00"))
    plain.write_bytes(b"hello, this is no image" * 40)
    with pytest.raises(FormatError, match="it starts with b'hell'"):
        open_source(plain)


def extended(plain: Path, block: bytes) -> Path:
    """Put ``block`` (extension flag and extensions) between header and voxels."""
    data = plain.read_bytes()
    plain.write_bytes(data[:108] + struct.pack("<f", 348 + len(block)) + data[112:348] + block + data[352:])
    return plain


def test_extensions_are_kept(plain: Path) -> None:
    image = nib.Nifti1Image(NOISE, np.eye(4))
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"hello"))
    image.header.extensions.append(nib.nifti1.Nifti1Extension(4242, bytes(range(1, 100))))
    nib.save(image, plain)
    source = open_source(plain)
    assert source.info.header["extensions"] == [
        {"code": 6, "content": b"hello"},
        {"code": 4242, "content": bytes(range(1, 100))},
    ]
    np.testing.assert_array_equal(everything(source), NOISE.T)


@pytest.mark.parametrize("size", [0, 7, -16, 4096])
def test_an_extension_of_impossible_size_is_ignored_and_noted(plain: Path, size: int) -> None:
    block = b"\x01\x00\x00\x00" + struct.pack("<ii", size, 6) + bytes(8)
    source = open_source(extended(plain, block))
    assert source.info.header["extensions"] == []
    assert codes(source) == {"extension-damaged"}
    np.testing.assert_array_equal(everything(source), NOISE.T)


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff", b'{"a":' * 60000, b'{"a":"' + b"x" * (1 << 20) + b'"}'])
def test_a_damaged_or_oversized_record_is_ignored_and_noted(plain: Path, text: bytes) -> None:
    source = open_source(extended(plain, encode_extensions([(6, b"mlarray-record:" + text)])))
    assert source.info.record == {}
    assert codes(source) == {"record-unreadable"}


def test_extensions_of_a_pair_lie_in_its_header_file(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Pair(NOISE, np.eye(4)), tmp_path / "a.img")
    header = (tmp_path / "a.hdr").read_bytes()[:348]
    (tmp_path / "a.hdr").write_bytes(header + encode_extensions([(6, b"hello")]))
    source = open_source(tmp_path / "a.img")
    assert source.info.header["extensions"] == [{"code": 6, "content": b"hello"}]
    np.testing.assert_array_equal(everything(source), NOISE.T)


def test_an_absurd_slope_gives_float64_without_overflow(tmp_path: Path) -> None:
    nib.save(nib.Nifti2Image(np.array([[[0, 1, 7]]], np.int16), np.eye(4)), tmp_path / "a.nii")
    source = open_source(patch(tmp_path / "a.nii", 176, "<2d", 1e300, 0.5))
    assert source.spec.dtype == np.float64
    assert everything(source).ravel().tolist() == [0.5, 1e300, 7e300]


@pytest.mark.parametrize("value", [1e-300, 1e200, -1e200])
def test_absurd_voxel_sizes_and_affines_do_not_become_geometry(tmp_path: Path, value: float) -> None:
    nib.save(nib.Nifti2Image(NOISE, np.eye(4)), tmp_path / "a.nii")
    patch(tmp_path / "a.nii", 112, "<d", value)  # pixdim[1]
    source = open_source(patch(tmp_path / "a.nii", 400, "<d", value))  # srow_x[0]
    assert "sform-unusable" in codes(source)
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (1, 1, 1)
    assert source.spec.geometry.known == set()
    assert "geometry-assumed" in codes(source)


def test_random_bytes_in_a_header_are_read_or_refused_and_never_crash(tmp_path: Path) -> None:
    image = nib.Nifti1Image(np.arange(120, dtype=np.int16).reshape(2, 3, 4, 5), np.eye(4))
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"hello"))
    nib.save(image, tmp_path / "a.nii")
    data, rng, read = (tmp_path / "a.nii").read_bytes(), np.random.default_rng(1), 0
    for _ in range(400):
        broken = bytearray(data)
        for position in rng.integers(4, 400, 4):
            broken[position] = rng.choice([0, 127, 128, 255])
        (tmp_path / "b.nii").write_bytes(bytes(broken))
        try:
            source = open_source(tmp_path / "b.nii")
        except FormatError:
            continue
        file = lay_out(source.spec, source.info)
        assert len(encode_header(file, source.info, {})) % 16 == 0
        read += 1
    assert read > 200
