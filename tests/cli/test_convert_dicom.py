"""``mla convert`` of DICOM folders: a case per volume, what is left out, and nothing of a person in any output."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import pytest
from pydicom.datadict import DicomDictionary
from pydicom.dataset import Dataset
from pydicom.uid import RLELossless

from mlarray import MLArray, open_source
from mlarray.formats.dicom_fields import KEPT
from mlarray_convert import convert
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from tests.cli.samples import files_below, mla, write_nifti
from tests.conformance.dicom_files import dataset, plane, stack, write

MARKS = ("PHIMARK", "1.2.999.7777", "19991231", "235959", "077Y")
_BY_KIND = {"PN": "PHIMARK^N", "LO": "PHIMARK", "SH": "PHIMARK", "ST": "PHIMARK", "LT": "PHIMARK", "UT": "PHIMARK",
            "UC": "PHIMARK", "UR": "PHIMARK", "AE": "PHIMARK", "UI": "1.2.999.7777.1", "DA": "19991231", "TM": "235959",
            "DT": "19991231235959", "AS": "077Y", "CS": "PHIMARK"}  # fmt: skip
_NEEDED = {"SOPClassUID", "SeriesInstanceUID", "SpecificCharacterSet", "ImageType", "Modality", "TransferSyntaxUID"}


def marked(array: Any, **fields: Any) -> Dataset:
    """Return a slice in which every field that may tell of a person is filled."""
    data = dataset(array, **fields)
    for tag, (kind, _, _, _, keyword) in DicomDictionary.items():
        group = tag >> 16
        if (
            kind not in _BY_KIND
            or keyword in KEPT
            or keyword in _NEEDED
            or group in (0, 2, 4, 0x0028, 0x5200)
            or not keyword
        ):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            setattr(data, keyword, _BY_KIND[kind])
    data.SeriesInstanceUID = "1.2.999.7777.2"
    data.StudyDate, data.PatientID, data.PatientName = "19991231", "PHIMARK", "PHIMARK^N"
    private = data.private_block(0x0029, "PHIMARK CREATOR", create=True)
    private.add_new(0x01, "LO", "PHIMARK")
    item = Dataset()
    item.PatientName = "PHIMARK^N"
    data.ReferencedPatientSequence = pydicom.Sequence([item])
    return data


def marked_series(folder: Path, count: int = 3) -> Path:
    folder.mkdir(parents=True)
    for k in range(count):
        data = marked(plane(k, (8, 8)), ImagePositionPatient=[0, 0, 2.0 * k], InstanceNumber=k + 1)
        data.SOPInstanceUID = f"1.2.999.7777.3.{k}"
        data.save_as(folder / f"1.2.999.7777.3.{k}.dcm", enforce_file_format=True)
    return folder


def marks_in(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    return [mark for mark in MARKS if mark.encode() in data]


@pytest.mark.parametrize("target", ["mla", "b2nd", "nifti", "nrrd", "metaimage"])
def test_nothing_that_identifies_a_person_is_in_any_output(tmp_path: Path, target: str) -> None:
    marked_series(tmp_path / "in" / "good")
    bad = marked_series(tmp_path / "in" / "bad", 4)
    (bad / "1.2.999.7777.3.1.dcm").unlink()
    ran = mla("convert", tmp_path / "in", "-o", tmp_path / "out", "--to", target, "--json", tmp_path / "report", "-v")
    assert ran.returncode == ExitCode.SOME_FAILED, ran.stderr
    (made,) = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert marks_in(made.read_bytes()) == []
    assert marks_in(made.name) == []
    assert marks_in((tmp_path / "report").read_bytes()) == []
    assert marks_in(ran.stdout + ran.stderr) == []
    source = open_source(made)
    assert marks_in(repr((source.info.header, source.info.record, source.info.notes, source.info.meta))) == []


def test_technical_fields_are_kept_in_the_metadata(tmp_path: Path) -> None:
    stack(tmp_path / "in", (0, 2), KVP=120, Manufacturer="MAKER", EchoTime=4.5, SoftwareVersions="1", StationName="X")
    assert run(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == ExitCode.OK
    with MLArray.open(tmp_path / "out" / "series-1.mla") as array:
        kept = dict(array.meta.source.data)
    assert (kept["KVP"], kept["Manufacturer"], kept["EchoTime"], kept["Modality"]) == (120, "MAKER", 4.5, "CT")
    assert not {"SoftwareVersions", "StationName", "SOPInstanceUID", "private"} & set(kept)


def test_keep_private_keeps_everything(tmp_path: Path) -> None:
    marked_series(tmp_path / "in")
    assert run(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--keep-private"]) == ExitCode.OK
    with MLArray.open(tmp_path / "out" / "series-1.mla") as array:
        private = array.meta.source.data["private"]
    assert (private["PatientName"], private["StudyDate"]) == ("PHIMARK^N", "19991231")


def test_a_tree_gives_a_case_per_volume_and_names_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    top = tmp_path / "in"
    stack(top / "p1", (0, 2, 4), series="1.2.3.4", SeriesNumber=2)
    stack(top / "p1", (0, 3, 6), ["x", "y", "z"], series="1.2.3.5", SeriesNumber=7)
    stack(top / "p2" / "deep", (0, 1, 3), series="1.2.3.6", SeriesNumber=9)
    report = dataset(plane(0), series="1.2.3.7", SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11")
    del report.PixelData
    report.save_as(top / "sr", enforce_file_format=True)
    (top / "notes.txt").write_text("no image")
    (top / "broken.dcm").write_bytes(b"nothing")
    write_nifti(top / "other.nii.gz", np.zeros((2, 2, 2), "int16"))
    assert run(["convert", str(top), "-o", str(tmp_path / "out"), "--json", "-"]) == ExitCode.SOME_FAILED
    captured = capsys.readouterr()
    *cases, summary = [json.loads(line) for line in captured.out.splitlines()]
    assert {row["case"]: row["status"] for row in cases} == {
        "p1/series-2": "ok",
        "p1/series-7": "ok",
        "p2/deep/series-9": "failed",
        "broken": "failed",
        "other": "ok",
    }
    assert files_below(tmp_path / "out") == ["other.mla", "p1/series-2.mla", "p1/series-7.mla"]
    assert "missing between" in captured.err
    assert "1 Basic Text SR" in captured.err
    assert summary["failed"] == 2


def test_a_folder_is_written_to_a_file_of_a_name(tmp_path: Path) -> None:
    stack(tmp_path / "in", (0, 2, 4), PixelSpacing=[0.8, 0.5])
    assert run(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "ct.nii.gz")]) == ExitCode.OK
    image = nib.load(tmp_path / "ct.nii.gz")
    assert image.header.get_zooms() == pytest.approx((0.5, 0.8, 2))
    np.testing.assert_array_equal(np.asanyarray(image.dataobj)[0, 0], [0, 1, 2])
    np.testing.assert_allclose((image.affine @ (1, 2, 1, 1))[:3], (-0.5, -1.6, 2), atol=1e-3)


def test_files_named_one_by_one_are_a_series(tmp_path: Path) -> None:
    paths = stack(tmp_path / "in", (0, 2, 4))
    assert run(["convert", *map(str, paths), "-o", str(tmp_path / "out")]) == ExitCode.OK
    assert files_below(tmp_path / "out") == ["series-1.mla"]


def test_one_volume_is_chosen_by_item(tmp_path: Path) -> None:
    for number in (3, 4):
        stack(tmp_path / "in", (0, 2), [f"{number}a", f"{number}b"], series=f"1.2.{number}", SeriesNumber=number)
    assert run(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--item", "series-4"]) == ExitCode.OK
    assert files_below(tmp_path / "out") == ["series-4.mla"]
    assert run(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--item", "series-9"]) == ExitCode.USAGE
    assert run(["convert", f"{tmp_path / 'in'}@series-3", "-o", str(tmp_path / "one.mla")]) == ExitCode.OK
    assert (tmp_path / "one.mla").is_file()


def test_a_second_run_skips_and_one_after_a_change_does_not(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    stack(tmp_path / "in", (0, 2, 4))
    command = ["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--json", "-"]

    def status() -> str:
        run(command)
        return json.loads(capsys.readouterr().out.splitlines()[0])["status"]

    assert [status(), status()] == ["ok", "skipped"]
    write(tmp_path / "in" / "IM0001", plane(77), ImagePositionPatient=[0, 0, 2])
    assert status() == "ok"
    stack(tmp_path / "in", (6,), ["IM0009"])
    assert status() == "ok"
    command += ["--slice-tolerance", "0.02"]
    assert [status(), status()] == ["ok", "skipped"]


def test_irregular_slices_are_kept_on_request(tmp_path: Path) -> None:
    stack(tmp_path / "in", (0, 1, 3))
    command = ["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    assert run(command) == ExitCode.ALL_FAILED
    assert run([*command, "--irregular-slices", "keep"]) == ExitCode.OK
    with MLArray.open(tmp_path / "out" / "series-1.mla") as array:
        assert array.spec.geometry is not None
        assert "spacing" not in array.spec.geometry.known
        assert array.meta.source.data["slice_offsets_mm"] == [0, 1, 3]


def test_wrong_tolerances_are_wrong_use(tmp_path: Path) -> None:
    stack(tmp_path / "in", (0, 1))
    assert run(["convert", str(tmp_path / "in"), "--slice-tolerance", "7"]) == ExitCode.USAGE


def test_info_shows_a_folder_and_lists_several(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    stack(tmp_path / "in", (0, 2, 4))
    assert run(["info", str(tmp_path / "in")]) == ExitCode.OK
    assert "3 x 4 x 4" in capsys.readouterr().out
    stack(tmp_path / "in", (0, 2), ["x", "y"], series="1.2.9", SeriesNumber=8)
    assert run(["info", str(tmp_path / "in"), "--json"]) == ExitCode.OK
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["items"]] == ["series-1", "series-8"]
    assert run(["info", f"{tmp_path / 'in'}@series-8"]) == ExitCode.OK


def test_outputs_do_not_depend_on_the_names_of_the_files(tmp_path: Path) -> None:
    names = [f"{number:03}" for number in range(12)]
    for folder, seed in (("a", 1), ("b", 2)):
        random.Random(seed).shuffle(names)
        for k in range(12):
            path = write(tmp_path / folder / names[k], plane(k), ImagePositionPatient=[0, 0, 2.0 * k], InstanceNumber=1)
            assert path.is_file()
    reports = [convert(tmp_path / folder, tmp_path / f"{folder}.nii", workers=1) for folder in ("a", "b")]
    assert [report.exit_code for report in reports] == [ExitCode.OK] * 2
    first, second = (nib.load(tmp_path / f"{folder}.nii") for folder in ("a", "b"))
    np.testing.assert_array_equal(np.asanyarray(first.dataobj), np.asanyarray(second.dataobj))
    np.testing.assert_array_equal(first.affine, second.affine)


def test_compressed_slices_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlarray.formats import dicom_source
    from mlarray_convert.discovery import discover
    from mlarray_convert.request import make_request
    from mlarray_convert.run import Job, run_case

    noise = np.random.default_rng(0).integers(-500, 500, (12, 64, 64), dtype="i2")
    (tmp_path / "in").mkdir()
    for k, pixels in enumerate(noise):
        data = dataset(pixels, ImagePositionPatient=[0, 0, 2.0 * k])
        data.compress(RLELossless, generate_instance_uid=False)
        data.save_as(tmp_path / "in" / str(k), enforce_file_format=True)
    decoded: list[Path] = []
    original = dicom_source.decode

    def counted(instance: Any, index: int) -> Any:
        decoded.append(instance.path)
        return original(instance, index)

    monkeypatch.setattr(dicom_source, "decode", counted)
    request = make_request(tmp_path / "in", tmp_path / "out", patch_size=16, verify="full")
    (case,) = discover(request).cases
    outcome = run_case(Job(case, request, 10**11, 1), lambda share: None)
    assert outcome.reason == ""
    assert sorted(decoded) == sorted(tmp_path / "in" / str(k) for k in range(12))
    with MLArray.open(tmp_path / "out" / "series-1.mla") as array:
        np.testing.assert_array_equal(array.to_numpy(), noise)
