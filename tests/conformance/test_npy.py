"""NumPy's own files: values in either order, members as items, nothing unpickled."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import open_source
from mlarray.errors import FormatError, UsageError
from mlarray.formats.registry import format_of, items_of
from mlarray.sources.base import Access, NDArray, Source
from mlarray.testing.conformance import SourceConformance
from mlarray_convert import convert
from mlarray_convert.report import ExitCode

RAMP = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)


class TestNpy(SourceConformance):
    def make(self, folder: Path) -> Source:
        np.save(folder / "a.npy", self.expected())
        return open_source(folder / "a.npy")


class TestNpyInFortranOrderAndOtherBytes(SourceConformance):
    def make(self, folder: Path) -> Source:
        np.save(folder / "a.npy", np.asfortranarray(self.expected().astype(">i2")))
        return open_source(folder / "a.npy")


class TestStoredMember(SourceConformance):
    def make(self, folder: Path) -> Source:
        np.savez(folder / "a.npz", image=self.expected(), other=RAMP)
        return open_source(folder / "a.npz", item="image")


class TestCompressedMember(SourceConformance):
    def make(self, folder: Path) -> Source:
        np.savez_compressed(folder / "a.npz", image=np.asfortranarray(self.expected()))
        return open_source(folder / "a.npz")


@pytest.mark.parametrize("array", [RAMP, np.asfortranarray(RAMP)], ids=["C", "Fortran"])
def test_either_order_gives_equal_values_and_no_geometry(tmp_path: Path, array: NDArray) -> None:  # NPY-01
    np.save(tmp_path / "a.npy", array)
    with open_source(tmp_path / "a.npy") as source:
        assert source.access is Access.REGION
        assert source.spec.geometry is None
        assert {note.code for note in source.info.notes} == {"axes-unknown"}
        np.testing.assert_array_equal(source.read(source.spec.region), RAMP, strict=True)
    report = convert(tmp_path / "a.npy", tmp_path / "a.mla", verify="full")
    assert report.exit_code is ExitCode.OK
    with open_source(tmp_path / "a.mla") as source:
        np.testing.assert_array_equal(source.read(source.spec.region), RAMP)
        assert source.spec.geometry is None


def test_an_archive_of_several_arrays_needs_a_choice(tmp_path: Path) -> None:  # NPY-01
    path = tmp_path / "a.npz"
    np.savez(path, a=RAMP, b=RAMP.astype(np.float32) / 2)
    assert [(one.name, one.title) for one in items_of(path)] == [("a", "int16 3 x 4 x 5"), ("b", "float32 3 x 4 x 5")]
    with pytest.raises(FormatError, match=r"2 images: a \(int16 3 x 4 x 5\), b \(float32 3 x 4 x 5\)"):
        open_source(path)
    for name in ("b", "b.npy"):
        with open_source(path, item=name) as source:
            assert source.info.item == "b"
            np.testing.assert_array_equal(source.read(source.spec.region), RAMP.astype(np.float32) / 2)
    with pytest.raises(FormatError, match="no image 'c'; it has a"):
        open_source(path, item="c")
    assert convert(path, tmp_path / "b.mla", item="b").exit_code is ExitCode.OK


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("unpickled",))


def test_objects_are_refused_and_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # NPY-01
    monkeypatch.chdir(tmp_path)
    objects = np.array([Bomb(), Bomb()], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", bad=objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", bad=objects, good=RAMP)
    for path, item in (("a.npy", None), ("a.npz", None), ("b.npz", "bad")):
        with pytest.raises(FormatError, match=r"[ab]\.np.*pickle, which is never loaded"):
            open_source(tmp_path / path, item=item)
    with open_source(tmp_path / "b.npz") as source:
        assert source.info.item == "good"
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros(3, [("x", "f4"), ("y", "i2")]), "structured array with the fields x, y"),
        (np.array(["a", "b"]), "not numbers"),
        (np.array(["2020-01-01"], "M8[D]"), "not numbers"),
        (np.float32(3), "single value"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_name(tmp_path: Path, array: NDArray, told: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FormatError, match=told) as refused:
        open_source(tmp_path / "a.npy")
    assert str(tmp_path / "a.npy") in str(refused.value)


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", ">f8", "c16"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_number_and_every_version_is_read(tmp_path: Path, dtype: str, version: tuple[int, int]) -> None:
    array = RAMP.astype(dtype)
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    with open_source(tmp_path / "a.npy") as source:
        np.testing.assert_array_equal(source.read(source.spec.region), array.astype(array.dtype.newbyteorder("=")))


@pytest.mark.parametrize("change", [-10, -1, 1, 500])
def test_a_size_that_is_wrong_is_told_with_both_counts(tmp_path: Path, change: int) -> None:
    path = tmp_path / "a.npy"
    np.save(path, RAMP)
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(FormatError, match=rf"120 bytes of voxels are expected, {120 + change} were found"):
        open_source(path)


def header(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUM",
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
        header(b"{"),
        header(b"{'descr': '<i2', 'fortran_order': False, 'shape': (3,"),
        header(b"{'descr': '<i2', 'fortran_order': False}"),
        header(b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,)}"),
        header(b"{'descr': '<i2', 'fortran_order': False, 'shape': (-3,)}"),
        header(b"{'descr': '<i2', 'fortran_order': False, 'shape': (99999999999, 99999999999, 99999999999)}"),
        header(b"__import__('os').mkdir('x')"),
        header(b"(" * 5000),
    ],
)
def test_a_header_that_cannot_be_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.npy"):
        open_source(path)


def test_a_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RAMP)
    (tmp_path / "a.npy").rename(tmp_path / "volume")
    assert format_of(tmp_path / "volume").name == "npy"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_damaged_byte_of_an_archive_is_an_error_or_changes_nothing(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    save(path, image=np.random.default_rng(0).integers(0, 9, (6, 7, 8)).astype(np.int16))
    whole = path.read_bytes()
    told = []
    for position in range(0, len(whole), 5):
        broken = bytearray(whole)
        broken[position] ^= 0xFF
        path.write_bytes(bytes(broken))
        try:
            with open_source(path) as source:
                source.read(source.spec.region)
        except FormatError as error:
            told.append(str(error))
    assert len(told) > 10
    assert [line for line in told if "a.npz" not in line] == []


def test_members_that_lie_about_their_size_are_refused(tmp_path: Path) -> None:
    raw = io.BytesIO()
    np.save(raw, RAMP)
    for name, data, told in (("short", raw.getvalue()[:-8], "too short"), ("long", raw.getvalue() + b"12", "too long")):
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", data)
        with pytest.raises(FormatError, match=f"a is {told}"):
            open_source(tmp_path / f"{name}.npz")


def test_an_archive_without_numbers_says_what_each_member_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", who=np.array(["x", "y"]), what=np.array([None, 1], object))
    with pytest.raises(
        FormatError, match=r"holds no image: who \(holds <U1, not numbers\), what \(holds Python objects"
    ):
        open_source(tmp_path / "a.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("kept", [4, 100, -23, -1])
def test_an_archive_that_was_cut_is_damaged_not_of_another_format(tmp_path: Path, save: Any, kept: int) -> None:
    save(tmp_path / "a.npz", RAMP)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:kept])
    with pytest.raises(FormatError, match=r"a\.npz is a numpy archive that was cut"):
        open_source(tmp_path / "a.npz")


def test_a_barely_begun_file_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "c.npy").write_bytes(b"\x93NUM")
    with pytest.raises(FormatError, match=r"c\.npy is a numpy file that was cut after 4 bytes"):
        open_source(tmp_path / "c.npy")


def test_archives_without_arrays_and_files_that_are_none(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 nothing")
    for name in ("a.npz", "b.npz"):
        with pytest.raises(FormatError, match=name):
            open_source(tmp_path / name)
    np.save(tmp_path / "c.npy", RAMP)
    with pytest.raises(UsageError, match="holds one image"):
        open_source(tmp_path / "c.npy", item="a")


def test_a_compressed_member_is_converted_in_one_pass(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(20, 30, 40)).astype(np.float32)
    np.savez_compressed(tmp_path / "a.npz", image=array)
    with open_source(tmp_path / "a.npz") as source:
        assert source.access is Access.SLAB
    assert convert(tmp_path / "a.npz", tmp_path / "a.mla", verify="full").exit_code is ExitCode.OK
    with open_source(tmp_path / "a.mla") as source:
        np.testing.assert_array_equal(source.read(source.spec.region), array)
