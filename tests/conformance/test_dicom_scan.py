"""The scanner of ordinary DICOM headers finds what pydicom finds, and leaves to it what is not ordinary."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_files
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRBigEndian, ImplicitVRLittleEndian, RLELossless

from mlarray.errors import FormatError
from mlarray.formats import dicom, dicom_file
from mlarray.formats.dicom_fields import PIXEL_TAGS, TAGS
from mlarray.formats.dicom_scan import SCANNED_BYTES, scan_header
from mlarray_convert.discovery import discover
from mlarray_convert.request import make_request
from mlarray_convert.run import Job, run_case
from tests.conformance.dicom_files import dataset, everything, only, plane, stack, write

WANTED = frozenset(TAGS)


def content(data: Dataset, **options: Any) -> bytes:
    file = BytesIO()
    data.save_as(file, enforce_file_format=True, **options)
    return file.getvalue()


def scanned(buffer: bytes) -> tuple[Any, int] | None:
    return scan_header(buffer[:SCANNED_BYTES], WANTED, PIXEL_TAGS)


def read(path: Path, monkeypatch: pytest.MonkeyPatch, *, scan: bool) -> object:
    """Return what a file is read as, or why it is not, with and without the scanner."""
    with monkeypatch.context() as patch:
        if not scan:
            patch.setattr(dicom_file, "scan_header", lambda *_: None)
        try:
            return dicom._read(path, keep_private=False)
        except (FormatError, OSError) as error:
            return str(error)


def test_every_file_that_pydicom_ships_is_read_as_pydicom_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Path(name) for name in get_testdata_files() if Path(name).is_file()]
    count = 0
    for path in paths:
        assert read(path, monkeypatch, scan=True) == read(path, monkeypatch, scan=False), path
        count += scanned(path.read_bytes()) is not None
    assert count > len(paths) // 3  # of them many are odd on purpose


def nested(length: str) -> bytes:
    """Return a file with sequences in sequences before the pixels, of stated or open length."""
    data = dataset(plane(3))
    inner, outer = Dataset(), Dataset()
    inner.ReferencedSOPInstanceUID = "1.2.3.4"
    outer.PurposeOfReferenceCodeSequence = Sequence([inner, Dataset()])
    data.ReferencedImageSequence = Sequence([outer, outer])
    for sequence in (data["ReferencedImageSequence"], outer["PurposeOfReferenceCodeSequence"]):
        sequence.is_undefined_length = length == "open"
    for item in (inner, outer):
        item.is_undefined_length_sequence_item = length == "open"
    return content(data)


@pytest.mark.parametrize("length", ["stated", "open"])
def test_sequences_that_are_not_wanted_are_stepped_over(length: str) -> None:
    buffer = nested(length)
    found = scanned(buffer)
    assert found is not None
    header, at = found
    assert buffer[at : at + 4] == b"\xe0\x7f\x10\x00"
    assert header.get_item(0x00280010).value == b"\x04\x00"
    with pytest.raises(KeyError):
        header.get_item(0x00081155)  # of an item, not of the file


def test_implicit_value_representations_are_read_without_a_guess() -> None:
    found = scanned(content(dataset(plane(3), syntax=ImplicitVRLittleEndian)))
    assert found is not None
    assert found[0].original_encoding == (True, True)
    assert found[0].get_item(0x00280010).VR is None


@pytest.mark.parametrize("syntax", [ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian])
def test_other_encodings_are_left_to_pydicom(syntax: str) -> None:
    assert scanned(content(dataset(plane(3), syntax=syntax))) is None


def test_what_is_cut_off_out_of_order_or_too_long_is_left_to_pydicom() -> None:
    buffer = nested("open")
    at = scanned(buffer)[1]  # type: ignore[index]
    assert [end for end in range(at) if scanned(buffer[:end]) is not None] == []
    rows, columns = buffer.index(b"\x28\x00\x10\x00US"), buffer.index(b"\x28\x00\x11\x00US")
    swapped = buffer[:rows] + buffer[columns : columns + 10] + buffer[rows : rows + 10] + buffer[columns + 10 :]
    assert scanned(swapped) is None
    long = dataset(plane(3), ImageComments="x" * 10_000)
    long.add_new(0x00291010, "OB", b"\0" * SCANNED_BYTES)
    assert scanned(content(long)) is None


def test_any_damaged_byte_gives_what_pydicom_gives_or_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = nested("open")
    path = tmp_path / "IM"
    random = np.random.default_rng(11)
    differing = 0
    for place in random.integers(132, len(buffer) - 40, 250):
        damaged = bytearray(buffer)
        damaged[place] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        fast, slow = read(path, monkeypatch, scan=True), read(path, monkeypatch, scan=False)
        differing += fast != slow
    assert differing == 0


def test_pixels_of_odd_length_are_found_behind_the_scanned_header(tmp_path: Path) -> None:
    for k in range(3):
        write(tmp_path / f"IM{k}", np.full((3, 5), 40 + k, np.uint8), ImagePositionPatient=[0, 0, k], BitsStored=8)
    assert everything(only(tmp_path))[:, 2, 4].tolist() == [40, 41, 42]


@pytest.mark.parametrize("cut", [1, 2, 31])
def test_pixels_that_are_too_short_are_refused_by_name(tmp_path: Path, cut: int) -> None:
    paths = stack(tmp_path, range(3))
    paths[1].write_bytes(paths[1].read_bytes()[:-cut])
    with pytest.raises(FormatError, match="IM0001 is cut off"):
        only(tmp_path)


def converted(folder: Path, out: Path) -> Any:
    request = make_request(folder, out, memory="100GB", verify="full")
    (case,) = discover(request).cases
    return case, lambda: run_case(Job(case, request, 10**11, 2), lambda share: None)


def test_a_conversion_decodes_every_compressed_frame_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.random.default_rng(2).integers(0, 4000, (40, 256, 256)).astype(np.uint16)
    for k, pixels in enumerate(expected):
        data = dataset(pixels, ImagePositionPatient=[0, 0, k], BitsStored=12)
        data.compress(RLELossless, generate_instance_uid=False)
        (tmp_path / "in").mkdir(exist_ok=True)
        data.save_as(tmp_path / "in" / f"IM{k}", enforce_file_format=True)
    from mlarray import MLArray
    from mlarray.formats import dicom_source

    decoded: list[str] = []
    original = dicom_source.decode

    def counted(instance: Any, index: int) -> Any:
        decoded.append(instance.path.name)
        return original(instance, index)

    monkeypatch.setattr(dicom_source, "decode", counted)
    case, convert = converted(tmp_path / "in", tmp_path / "out")
    outcome = convert()
    assert outcome.reason == ""
    assert sorted(decoded) == sorted(f"IM{k}" for k in range(40))
    assert np.array_equal(MLArray.open(case.output)[...], expected)


def test_a_file_that_changes_between_headers_and_pixels_ends_the_case_and_leaves_nothing(tmp_path: Path) -> None:
    paths = stack(tmp_path / "in", range(5))
    _, convert = converted(tmp_path / "in", tmp_path / "out")
    paths[3].write_bytes(paths[3].read_bytes() + b"\0\0")
    outcome = convert()
    assert "IM0003 was changed after its header was read" in outcome.reason
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
    assert pydicom.dcmread(paths[3]).Rows == 4
