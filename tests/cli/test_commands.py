"""``mla info``, ``verify``, ``formats``, ``demo`` and the group itself."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

import mlarray
from mlarray.formats.table import FORMATS
from mlarray_convert import convert
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from tests.cli.samples import AFFINE, files_below, ramp, write_nifti


def told(capsys: pytest.CaptureFixture, *arguments: object) -> dict:
    assert run([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


# --- info -----------------------------------------------------------------------------------------------------------


def test_info_of_a_nifti_file_is_its_header_in_json(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_nifti(tmp_path / "a.nii.gz", ramp())
    info = told(capsys, "info", path, "--json")
    assert (info["format"], info["shape"], info["dtype"]) == ("nifti", [5, 6, 7], "int16")
    assert [axis["name"] for axis in info["axes"]] == ["z", "y", "x"]
    assert (info["spacing_mm"], info["orientation"], info["access"]) == ([2.0, 1.5, 1.0], "SAR", "slab")


def test_info_of_an_mla_file_says_how_and_why_it_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_nifti(tmp_path / "a.nii.gz", ramp((40, 40, 40)))
    convert(tmp_path / "a.nii.gz", patch_size=16, layout="small-blocks")
    info = told(capsys, "info", tmp_path / "a.mla", "--json")
    storage = info["storage"]
    assert (storage["codec"], storage["level"]) == ("LZ4HC", 5)
    assert storage["blocks"] == [16, 16, 16]
    assert storage["layout_reason"].startswith("Layout small-blocks, made for the patch 16 x 16 x 16 at 2 bytes")
    assert storage["ratio"] > 1
    assert storage["checksum"].startswith("xxh3:")
    assert info["record"]["sources"][0]["name"] == "a.nii.gz"
    assert run(["info", str(tmp_path / "a.mla")]) == 0
    shown = capsys.readouterr().out
    assert "40 x 40 x 40  (z, y, x)" in shown
    assert "made from" in shown


def test_info_of_something_else_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.nii.gz").write_text("no image")
    assert run(["info", str(tmp_path / "a.nii.gz")]) == ExitCode.SOME_FAILED
    assert run(["info", str(tmp_path / "missing.nii")]) == ExitCode.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("Error: ") for line in lines)


def test_info_of_a_folder_and_of_dicom_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "CT.1.2.840").write_bytes(bytes(128) + b"DICM" + bytes(100))
    assert run(["info", str(tmp_path / "empty")]) == ExitCode.SOME_FAILED
    assert run(["info", str(tmp_path / "CT.1.2.840")]) == ExitCode.SOME_FAILED
    folder, dicom = capsys.readouterr().err.splitlines()
    assert (
        folder
        == f"Error: {tmp_path / 'empty'} is a folder, not an image, and holds no DICOM files. `mla convert` takes folders."
    )
    assert dicom.startswith(f"Error: {tmp_path / 'CT.1.2.840'} is a DICOM file without pixels")


def test_info_works_for_every_format_that_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_nifti(tmp_path / "d" / "a.nii", ramp())
    for row in FORMATS:
        if row.writes:
            output = tmp_path / row.name / f"a{row.suffixes[0]}"
            output.parent.mkdir()
            if row.name != "nifti":
                assert convert(tmp_path / "d" / "a.nii", output).exit_code is ExitCode.OK
                info = told(capsys, "info", output, "--json")
                assert (info["format"], info["shape"]) == (row.name, [5, 6, 7])


# --- verify ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    source = write_nifti(tmp_path / "a.nii.gz", ramp((40, 40, 40)))
    convert(source)
    return source, tmp_path / "a.mla"


def test_verify_needs_no_source_and_finds_damage(pair: tuple[Path, Path], capsys: pytest.CaptureFixture) -> None:
    _, path = pair
    assert told(capsys, "verify", path, "--json") == {
        "path": str(path),
        "ok": True,
        "how": "checksums",
        "problems": [],
        "remarks": [],
    }
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))
    assert run(["verify", str(path)]) == ExitCode.VERIFICATION
    assert "1 of 1 chunks do not match" in capsys.readouterr().out


def test_verify_decodes_files_that_have_no_checksums(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    source, _ = pair
    assert run(["verify", str(source)]) == 0
    content = bytearray(source.read_bytes())
    content[-8] ^= 1  # the CRC of the gzip stream
    source.write_bytes(bytes(content))
    assert run(["verify", str(source)]) == ExitCode.VERIFICATION


def test_verify_against_the_source_compares_values_and_places(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source, path = pair
    assert run(["verify", str(path), "--against", str(source)]) == 0
    changed = ramp((40, 40, 40))
    changed[3, 2, 1] += 1
    write_nifti(tmp_path / "changed.nii", changed)
    moved = AFFINE.copy()
    moved[2, 3] = 12
    write_nifti(tmp_path / "moved.nii", ramp((40, 40, 40)), moved)
    capsys.readouterr()
    assert run(["verify", str(path), "--against", str(tmp_path / "changed.nii")]) == ExitCode.VERIFICATION
    assert "1 of 64000 voxels differ, the first at index (1, 2, 3)" in capsys.readouterr().out
    assert run(["verify", str(path), "--against", str(tmp_path / "moved.nii")]) == ExitCode.VERIFICATION
    assert "origin along world z is 12 and 0 mm" in capsys.readouterr().out


def test_verify_accepts_a_file_whose_axes_were_reordered(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, path = pair
    turned = nib.as_closest_canonical(
        nib.Nifti1Image(np.flip(ramp((40, 40, 40)), 0).transpose(1, 0, 2), _turned_affine())
    )
    nib.save(turned, tmp_path / "turned.nii")
    assert run(["verify", str(path), "--against", str(tmp_path / "turned.nii")]) == 0


def _turned_affine() -> np.ndarray:
    flip = np.diag([-1.0, 1, 1, 1])
    flip[0, 3] = 39
    swap = np.eye(4)[[1, 0, 2, 3]]
    return AFFINE @ flip @ swap


def test_verify_of_a_folder_checks_each_image_in_it(pair: tuple[Path, Path], capsys: pytest.CaptureFixture) -> None:
    _, path = pair
    assert run(["verify", str(path.parent), "--json"]) == 0
    assert [json.loads(line)["ok"] for line in capsys.readouterr().out.splitlines()] == [True, True]


# --- formats, demo, the group ---------------------------------------------------------------------------------------


def test_formats_lists_every_row(capsys: pytest.CaptureFixture) -> None:
    listed = told(capsys, "formats", "--json")
    assert [row["name"] for row in listed] == [row.name for row in FORMATS]
    assert run(["formats"]) == 0
    shown = capsys.readouterr().out
    assert all(row.title in shown for row in FORMATS)


def test_the_demo_makes_converts_and_reads_a_data_set_and_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for _ in range(2):
        assert run(["demo", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr().out
    assert "the values of both files are equal" in shown
    assert files_below(tmp_path / "demo" / "dataset_mla") == [
        "brain/EPI.mla",
        "brain/SEG.mla",
        "head/T1.mla",
        "rest/BOLD.mla",
    ]


def test_what_the_demo_suggests_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo"]) == 0
    suggested = capsys.readouterr().out.split("What to try next")[1]
    commands = [line.split("$ mla ")[1].split() for line in suggested.splitlines() if "$ mla " in line]
    assert len(commands) == 5
    for command in commands:
        assert run(command) == 0, command


def test_the_demo_leaves_a_folder_of_others_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "mine").touch()
    assert run(["demo", str(tmp_path)]) == ExitCode.USAGE
    assert "not made by `mla demo`" in capsys.readouterr().err
    assert files_below(tmp_path) == ["mine"]


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"mla {mlarray.__version__}\n"


def test_without_a_command_the_help_is_shown_as_with_help(capsys: pytest.CaptureFixture) -> None:
    assert run(["--help"]) == 0
    asked = capsys.readouterr().out
    assert run([]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == asked
    assert asked.startswith("Usage: mla [OPTIONS] COMMAND [ARGS]...\n")


def test_a_command_that_does_not_exist_is_a_usage_error(capsys: pytest.CaptureFixture) -> None:
    assert run(["transmogrify"]) == ExitCode.USAGE
    assert "Error:" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["convert", "info", "verify", "formats", "demo"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture) -> None:
    assert run([command, "--help"]) == 0
    assert f"Usage: mla {command}" in capsys.readouterr().out


def test_an_unexpected_error_is_one_line_and_a_traceback_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    import mlarray_convert.cli.info as info

    monkeypatch.setattr(info, "describe", lambda path, source: 1 / 0)
    write_nifti(tmp_path / "a.nii", ramp())
    assert run(["info", str(tmp_path / "a.nii")]) == ExitCode.INTERNAL
    short = capsys.readouterr().err
    assert short == "Error: Unexpected ZeroDivisionError: division by zero Run again with -v for the traceback.\n"
    assert run(["-v", "info", str(tmp_path / "a.nii")]) == ExitCode.INTERNAL
    assert "Traceback" in capsys.readouterr().err
