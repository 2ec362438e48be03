"""Nothing of a DICOM header that tells who somebody is reaches an output, a report or a message, unless it is asked for."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from mlarray.formats.registry import open_source
from mlarray_convert.cli import run
from tests.cli.samples import mla
from tests.conformance.dicom_files import dataset

CANARY = "Canary"
FIELDS = {
    "PatientName": f"{CANARY}Name^Ann",
    "PatientID": f"{CANARY}Id",
    "PatientAddress": f"{CANARY}Street",
    "OtherPatientIDs": f"{CANARY}Other",
    "PatientComments": f"{CANARY}Comment",
    "InstitutionName": f"{CANARY}Hospital",
    "InstitutionAddress": f"{CANARY}Town",
    "ReferringPhysicianName": f"{CANARY}Doctor",
    "OperatorsName": f"{CANARY}Operator",
    "AccessionNumber": f"{CANARY}Acc",
    "StudyDescription": f"{CANARY}Study",
    "SeriesDescription": f"{CANARY}Series",
    "ProtocolName": f"{CANARY}Protocol",
    "StationName": f"{CANARY}Station",
    "DeviceSerialNumber": f"{CANARY}Serial",
    "StudyID": f"{CANARY}StudyId",
    "ImageComments": f"{CANARY}Image",
    "PatientBirthDate": "19010203",
    "StudyDate": "19010204",
    "SeriesDate": "19010205",
    "AcquisitionDate": "19010206",
    "ContentDate": "19010207",
    "StudyInstanceUID": "1.2.3.19010208.1",
    "FrameOfReferenceUID": "1.2.3.19010208.3",
}
MARKS = [CANARY.encode(), b"190102", b"1.2.3.19010208", CANARY.encode("utf-16-le")]
SERIES = "1.2.3.19010208.2"


@pytest.fixture
def series(tmp_path: Path) -> Path:
    folder = tmp_path / "series"
    folder.mkdir()
    for number in range(3):
        place = {"ImagePositionPatient": [0, 0, number], "InstanceNumber": number + 1}
        data = dataset(np.full((8, 8), number, np.int16), series=SERIES, **place, **FIELDS)
        block = data.private_block(0x0029, f"{CANARY} MAKER", create=True)
        block.add_new(1, "LO", f"{CANARY}Private")
        data.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
        data.PixelData = np.full((8, 8), number, np.int16).tobytes()
        data["PixelData"].VR = "OW"
        data.save_as(folder / f"{number}.dcm", enforce_file_format=True)
    return folder


def marks_in(*contents: bytes) -> set[bytes]:
    return {mark for mark in MARKS for content in contents if mark in content}


def readable(path: Path) -> list[bytes]:
    """The bytes of an output and the texts of its metadata, which may be compressed."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    with open_source(path) as source:
        told = repr(source.info).encode()  # of .mla, metadata and records, which are compressed in the file
    contents = [one.read_bytes() for one in files]
    contents += [gzip.decompress(content) for content in contents if content.startswith(b"\x1f\x8b")]
    return [told, *contents, said("info", "--json", path), said("info", path)]


def said(*arguments: object) -> bytes:
    """What a command writes, run in this process."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        run([str(argument) for argument in arguments])
    return told.getvalue().encode()


@pytest.mark.parametrize("target", ["a.mla", "a.b2nd", "a.nii", "a.nii.gz", "a.nrrd", "a.mha", "a.h5", "a.zarr"])
def test_no_target_format_keeps_who_it_is(series: Path, tmp_path: Path, target: str) -> None:
    report = tmp_path / "report.jsonl"
    done = mla("convert", series, "-o", tmp_path / target, "--json", report, "-v")
    assert done.returncode == 0, done.stderr
    everything = [*readable(tmp_path / target), report.read_bytes(), done.stdout.encode(), done.stderr.encode()]
    assert marks_in(*everything) == set()


def test_what_is_asked_for_is_kept(series: Path, tmp_path: Path) -> None:
    assert mla("convert", series, "-o", tmp_path / "a.mla", "--keep-private").returncode == 0
    assert CANARY.encode() in b"".join(readable(tmp_path / "a.mla"))


@pytest.mark.parametrize("damage", ["gap", "cut", "syntax", "scale"])
def test_no_message_about_a_damaged_series_says_who_it_is(series: Path, tmp_path: Path, damage: str) -> None:
    path = series / "1.dcm"
    content = path.read_bytes()
    if damage == "gap":
        (series / "9.dcm").write_bytes((series / "2.dcm").read_bytes().replace(b"0\\0\\2 ", b"0\\0\\9 "))
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "syntax":
        path.write_bytes(content.replace(b"1.2.840.10008.1.2.1\0", f"{CANARY}Syntax12345678".encode(), 1))
    else:
        path.write_bytes(content.replace(b"MONOCHROME2 ", f"{CANARY}XXXXXX".encode(), 1))
    report = tmp_path / "report.jsonl"
    done = mla("convert", series, "-o", tmp_path / "out", "--json", report, "-v")
    told = [
        done.stdout.encode(),
        done.stderr.encode(),
        said("info", series),
        said("info", path),
        said("verify", series),
    ]
    assert marks_in(*told, report.read_bytes() if report.exists() else b"") == set()
    assert all(json.loads(line) for line in report.read_text(encoding="ascii").splitlines())
