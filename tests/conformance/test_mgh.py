"""FreeSurfer files as nibabel writes them, cut ones, and those without a place in the world."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import nibabel
import numpy as np
import pytest

from mlarray.errors import FormatError
from mlarray.formats.registry import open_source
from mlarray.sources.base import Access, NDArray, Source
from mlarray.testing.conformance import SourceConformance
from tests.conformance.text_header_files import load, names, notes, position

AFFINE = np.array([[0, 0, 3, -10], [-2, 0, 0, 20], [0, -1.5, 0, 30], [0, 0, 0, 1]])  # columns x, y, z; RAS


def write_mgh(path: Path, array: NDArray, *, repetition_ms: float = 0) -> Path:
    """Write an array in our order (t, z, y, x) as MGH."""
    image = nibabel.MGHImage(array.transpose(), AFFINE)
    if repetition_ms:
        image.header["tr"] = repetition_ms
    nibabel.save(image, path)
    return path


def ramp(dtype: str = "i2", shape: tuple[int, ...] = (7, 10, 12)) -> NDArray:
    return (np.arange(np.prod(shape)).reshape(shape) - 300).astype(dtype)


class TestMgh(SourceConformance):
    def make(self, folder: Path) -> Source:
        return open_source(write_mgh(folder / "a.mgh", self.expected()))


class TestMgz(SourceConformance):
    def make(self, folder: Path) -> Source:
        return open_source(write_mgh(folder / "a.mgz", self.expected()))


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4"])
@pytest.mark.parametrize("suffix", [".mgh", ".mgz"])
def test_values_and_places_are_those_of_nibabel(tmp_path: Path, dtype: str, suffix: str) -> None:
    path = write_mgh(tmp_path / f"a{suffix}", np.abs(ramp(dtype, (3, 4, 5))))
    array, source = load(path)
    data = path.read_bytes()  # nibabel leaves a file that it loads by name open
    image = nibabel.MGHImage.from_bytes(data if suffix == ".mgh" else gzip.decompress(data))
    np.testing.assert_array_equal(array, np.asanyarray(image.dataobj).transpose(), strict=False)
    assert array.dtype == np.dtype(dtype)
    assert source.access is (Access.REGION if suffix == ".mgh" else Access.SLAB)
    assert names(source) == "zyx"
    geometry = source.spec.geometry
    assert geometry is not None
    assert geometry.coord_system == "LPS"
    assert geometry.known == {"spacing", "origin", "direction"}
    right, anterior, superior = nibabel.affines.apply_affine(image.affine, (4, 3, 2))
    assert geometry.world((2, 3, 4)) == pytest.approx((-right, -anterior, superior), abs=1e-4)


def test_a_voxel_is_where_the_header_says(tmp_path: Path) -> None:
    array, source = load(write_mgh(tmp_path / "a.mgh", ramp("i4", (2, 3, 4))))
    assert position(source, array, -300) == pytest.approx((10, -20, 30))
    assert position(source, array, -277) == pytest.approx((10 - 3, -20 + 2 * 3, 30 - 1.5 * 2))


def test_a_fourth_axis_is_time_with_the_repetition_time(tmp_path: Path) -> None:
    array, source = load(write_mgh(tmp_path / "a.mgh", ramp(shape=(5, 2, 3, 4)), repetition_ms=2500))
    assert names(source) == "tzyx"
    assert (source.spec.axes[0].step, source.spec.axes[0].unit) == (2.5, "second")
    assert source.info.header["tr"] == 2500
    np.testing.assert_array_equal(array, ramp(shape=(5, 2, 3, 4)))
    _, packed = load(write_mgh(tmp_path / "a.mgz", ramp(shape=(5, 2, 3, 4)), repetition_ms=2500))
    assert packed.spec.axes[0].step is None
    assert notes(packed) == {"step-unknown"}


def test_compression_is_told_by_the_bytes(tmp_path: Path) -> None:
    plain = write_mgh(tmp_path / "a.mgh", ramp())
    (tmp_path / "b.mgz").write_bytes(plain.read_bytes())
    (tmp_path / "c.mgh").write_bytes(gzip.compress(plain.read_bytes()))
    for name in ("b.mgz", "c.mgh"):
        np.testing.assert_array_equal(load(tmp_path / name)[0], ramp())


def test_without_a_good_place_nothing_is_known(tmp_path: Path) -> None:
    path = write_mgh(tmp_path / "a.mgh", ramp())
    data = bytearray(path.read_bytes())
    struct.pack_into(">h", data, 28, 0)
    path.write_bytes(data)
    _, source = load(path)
    assert source.spec.geometry is None
    assert notes(source) == {"geometry-unknown"}


def test_files_without_a_footer_are_read(tmp_path: Path) -> None:
    path = write_mgh(tmp_path / "a.mgh", ramp())
    os.truncate(path, 284 + ramp().nbytes)
    np.testing.assert_array_equal(load(path)[0], ramp())


def test_cut_files_are_refused(tmp_path: Path) -> None:
    path = write_mgh(tmp_path / "a.mgh", ramp())
    os.truncate(path, 1000)
    with pytest.raises(FormatError, match=r"a\.mgh is too short: 1964 bytes are needed, 1000 were found"):
        open_source(path)
    os.truncate(path, 50)
    with pytest.raises(FormatError, match="284 bytes are needed, 50 were found"):
        open_source(path)
    packed = write_mgh(tmp_path / "a.mgz", ramp())
    os.truncate(packed, packed.stat().st_size // 2)
    with pytest.raises(FormatError, match=r"a\.mgz is cut"):
        load(packed)


@pytest.mark.parametrize(
    ("offset", "form", "value", "words"),
    [
        (0, ">i", 2, "no MGH file"),
        (20, ">i", 99, "MGH type 99"),
        (4, ">i", -5, "extents"),
        (4, ">i", 0, "extents"),
        (4, ">i", 2**31 - 1, "too short"),
        (30, ">f", 0.0, "geometry that cannot be"),
        (30, ">f", float("nan"), "geometry that cannot be"),
    ],
)
def test_headers_that_cannot_be_are_refused(tmp_path: Path, offset: int, form: str, value: float, words: str) -> None:
    path = write_mgh(tmp_path / "a.mgh", ramp())
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, offset, value)
    path.write_bytes(data)
    with pytest.raises(FormatError, match=words):
        open_source(path)


def test_a_claim_that_the_compressed_bytes_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = write_mgh(tmp_path / "a.mgh", ramp())
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 4, 2**30)
    (tmp_path / "a.mgz").write_bytes(gzip.compress(data))
    with pytest.raises(FormatError, match="cannot hold more than"):
        open_source(tmp_path / "a.mgz")
