"""``mla convert`` as a user meets it: the recorded cases, exit codes, reports, and what is on disk afterwards."""

import json
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from mlarray import MLArray
from mlarray_convert import Report, convert
from mlarray_convert.batch import Began, run_request
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from mlarray_convert.request import make_request
from mlarray_convert.run import Failure, Status
from tests.cli.samples import AFFINE, files_below, ramp, write_nifti
from tests.unit import pool_work


def rows(text: str) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write_nifti(tmp_path / "data" / f"{name}.nii.gz", ramp())
    return tmp_path / "data"


# --- outcomes and exit codes ----------------------------------------------------------------------------------------


def test_a_folder_is_converted_beside_itself_and_values_and_places_are_kept(data: Path) -> None:
    assert run(["convert", str(data), "--verify", "full"]) == ExitCode.OK
    assert files_below(data.with_name("data_mla")) == ["a.mla", "b.mla", "c.mla"]
    with MLArray.open(data.with_name("data_mla") / "a.mla") as array:
        np.testing.assert_array_equal(array.to_numpy(), ramp().T)
        geometry = array.spec.geometry
        assert geometry is not None
        np.testing.assert_allclose(geometry.in_frame("RAS").world((4, 5, 6)), (AFFINE @ (6, 5, 4, 1))[:3], atol=1e-3)


def test_one_bad_case_among_good_ones_fails_alone(data: Path, capsys: pytest.CaptureFixture) -> None:
    (data / "bad.nii.gz").write_text("no image")
    assert run(["convert", str(data), "--json", "-"]) == ExitCode.SOME_FAILED
    captured = capsys.readouterr()
    *cases, summary = rows(captured.out)
    assert {row["case"]: row["status"] for row in cases} == {"a": "ok", "b": "ok", "c": "ok", "bad": "failed"}
    assert summary["failed_cases"] == ["bad"]
    assert (summary["ok"], summary["failed"], summary["exit_code"]) == (3, 1, 4)
    assert "bad.nii.gz" in captured.err
    assert files_below(data.with_name("data_mla")) == ["a.mla", "b.mla", "c.mla"]


def test_all_failed_and_nothing_found_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.nii.gz").write_text("no image")
    (tmp_path / "empty").mkdir()
    assert run(["convert", str(tmp_path / "bad")]) == ExitCode.ALL_FAILED
    assert run(["convert", str(tmp_path / "empty")]) == ExitCode.NOTHING
    assert run(["convert", str(tmp_path / "nowhere")]) == ExitCode.USAGE
    assert run(["convert", str(tmp_path / "bad"), "--memory", "much"]) == ExitCode.USAGE
    assert run(["convert", "--no-such-option", "x"]) == ExitCode.USAGE


def test_fail_fast_starts_nothing_after_a_failure(data: Path, capsys: pytest.CaptureFixture) -> None:
    request = make_request(data, workers=1, fail_fast=True)
    report = run_request(request, work=pool_work.fail)
    assert [outcome.case.name for outcome in report.failed] == ["a"]
    assert report.not_started == ("b", "c")
    assert report.summary()["not_started"] == ["b", "c"]


def test_the_json_report_has_the_promised_fields_in_strict_json(data: Path, tmp_path: Path) -> None:
    assert run(["convert", str(data), "--json", str(tmp_path / "report.json")]) == 0
    first = rows((tmp_path / "report.json").read_text())[0]
    assert set(first) >= {
        *("case", "source", "output", "status", "reason", "dtype", "shape"),
        *("seconds", "bytes_in", "bytes_out", "checksum"),
    }
    assert first["dtype"] == "int16"
    assert first["shape"] == [5, 6, 7]
    output = Path(first["output"])
    assert first["bytes_out"] == output.stat().st_size
    import xxhash

    assert first["checksum"] == f"xxh3:{xxhash.xxh3_64_hexdigest(output.read_bytes())}"


# --- what exists already --------------------------------------------------------------------------------------------


def statuses(report: Report) -> list[tuple[str, str]]:
    return [(outcome.status.value, outcome.reason) for outcome in report.outcomes]


def test_a_second_run_skips_what_is_up_to_date(data: Path) -> None:
    convert(data)
    before = (data.with_name("data_mla") / "a.mla").stat().st_mtime_ns
    assert statuses(convert(data)) == [("skipped", "up to date")] * 3
    assert (data.with_name("data_mla") / "a.mla").stat().st_mtime_ns == before


def test_a_changed_source_other_settings_and_a_broken_output_are_made_again(data: Path) -> None:
    convert(data)
    write_nifti(data / "a.nii.gz", ramp() + 1)
    (data.with_name("data_mla") / "b.mla").write_bytes(b"")
    report = convert(data)
    reasons = [reason for _, reason in statuses(report)]
    assert reasons[0] == "converted again: the source a.nii.gz has changed"
    assert reasons[1].startswith("converted again: the existing file cannot be opened")
    assert reasons[2] == "up to date"
    with MLArray.open(data.with_name("data_mla") / "a.mla") as array:
        np.testing.assert_array_equal(array.to_numpy(), ramp().T + 1)
    assert statuses(convert(data, patch_size=3)) == [("ok", "converted again: other settings than before")] * 3


def test_another_layout_makes_outputs_again_and_the_default_by_name_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write_nifti(tmp_path / "a.nii.gz", ramp((40, 40, 40)))
    found = []
    for options in ([], ["--layout", "nnunet"], ["--layout", "small-blocks"], ["--layout", "small-blocks"], []):
        assert run(["convert", str(tmp_path / "a.nii.gz"), *options, "--json", "-"]) == ExitCode.OK
        row = rows(capsys.readouterr().out)[0]
        with MLArray.open(tmp_path / "a.mla") as array:
            assert array.layout is not None
            found.append(
                (row["status"], array.layout.blocks, array.layout.reason.startswith("Layout small-blocks, made for"))
            )
    large, small = (40, 40, 40), (16, 16, 32)
    assert found == [
        ("ok", large, False),
        ("skipped", large, False),
        ("ok", small, True),
        ("skipped", small, True),
        ("ok", large, False),
    ]
    assert run(["convert", str(tmp_path / "a.nii.gz"), "--layout", "tiny"]) == ExitCode.USAGE
    assert "'nnunet', 'small-blocks'" in capsys.readouterr().err


def test_a_file_of_another_program_is_not_replaced_unasked(data: Path) -> None:
    theirs = data.with_name("data_mla") / "a.mla"
    theirs.parent.mkdir()
    MLArray.asarray(np.arange(3)).save(theirs)
    before = theirs.read_bytes()
    outcome = convert(data).outcomes[0]
    assert outcome.status is Status.SKIPPED
    assert "not made by this converter" in outcome.warnings[0]
    assert theirs.read_bytes() == before
    assert convert(data, if_exists="overwrite").count(Status.OK) == 3
    assert theirs.read_bytes() != before


def test_error_refuses_before_any_work_and_lists_what_exists(data: Path, capsys: pytest.CaptureFixture) -> None:
    convert(data / "b.nii.gz", data.with_name("data_mla"))
    assert run(["convert", str(data), "--if-exists", "error"]) == ExitCode.USAGE
    assert "b.mla" in capsys.readouterr().err
    assert files_below(data.with_name("data_mla")) == ["b.mla"]


def test_a_reader_that_has_the_old_file_mapped_keeps_its_values(data: Path) -> None:
    convert(data)
    path = data.with_name("data_mla") / "a.mla"
    with MLArray.open(path) as before:
        first = before[0].copy()
        write_nifti(data / "a.nii.gz", ramp() * -1)
        assert convert(data).count(Status.OK) == 1
        np.testing.assert_array_equal(before[0], first)
        np.testing.assert_array_equal(before[4], ramp().T[4])
    with MLArray.open(path) as after:
        np.testing.assert_array_equal(after.to_numpy(), -ramp().T)


# --- refused before any work ----------------------------------------------------------------------------------------


def test_collisions_are_refused_before_any_work_and_all_are_listed(data: Path, capsys: pytest.CaptureFixture) -> None:
    (data / "a.nrrd").touch()
    (data / "B.nii").touch()
    assert run(["convert", str(data)]) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert all(name in told for name in ("a.nii.gz", "a.nrrd", "b.nii.gz", "B.nii"))
    assert not data.with_name("data_mla").exists()


def test_the_input_folder_as_output_is_refused_and_one_inside_is_not_converted_again(data: Path) -> None:
    assert run(["convert", str(data), "-o", str(data)]) == ExitCode.USAGE
    assert convert(data, data / "out").count(Status.OK) == 3
    assert convert(data, data / "out").count(Status.SKIPPED) == 3
    assert files_below(data / "out") == ["a.mla", "b.mla", "c.mla"]


def test_an_output_folder_that_cannot_be_written_fails_at_once(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run(["convert", str(data), "-o", str(tmp_path / "file" / "out")]) == ExitCode.USAGE
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if not os.access(locked, os.W_OK):  # a superuser may write everywhere
        assert run(["convert", str(data), "-o", str(locked / "out")]) == ExitCode.USAGE


# --- dry run --------------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_plan_and_writes_nothing(data: Path, capsys: pytest.CaptureFixture) -> None:
    write_nifti(data / "labelsTr" / "a.nii.gz", ramp(dtype="float32"))
    before = files_below(data.parent)
    assert run(["convert", str(data), "--dry-run", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert files_below(data.parent) == before
    *cases, summary = rows(captured.out)
    assert summary["dry_run"] is True
    plan = next(row for row in cases if row["case"] == "a")["plan"]
    assert (plan["dtype_in"], plan["dtype_out"], plan["spacing_mm"]) == ("int16", "int16", [2.0, 1.5, 1.0])
    assert (plan["orientation"], plan["chunks"]) == ("SAR", [5, 6, 7])
    assert 0 < plan["peak_bytes"] <= plan["memory_bytes"]
    label = next(row for row in cases if row["case"] == "labelsTr/a")["plan"]
    assert (label["dtype_in"], label["dtype_out"]) == ("float32", "uint8")
    for text in ("spacing", "layout", "memory", "float32 -> uint8", "Nothing was written"):
        assert text in captured.err


def test_a_dry_run_has_the_exit_code_of_the_real_run(data: Path) -> None:
    (data / "bad.nii.gz").write_text("no image")
    assert run(["convert", str(data), "--dry-run"]) == ExitCode.SOME_FAILED


# --- segmentations and grids ----------------------------------------------------------------------------------------


def test_segmentations_become_the_smallest_integers_and_say_what_they_are(tmp_path: Path) -> None:
    labels = np.zeros((20, 20, 20), np.float64)
    labels[5:9, 5:9, 5:9] = 3
    write_nifti(tmp_path / "d" / "labelsTr" / "x.nii.gz", labels)
    write_nifti(tmp_path / "d" / "labelsTr" / "y.nii.gz", (labels * 100).astype(np.int32))
    report = convert(tmp_path / "d", verify="full")
    assert [outcome.dtype for outcome in report.outcomes] == ["uint8", "int16"]
    assert report.outcomes[0].bytes_out < 0.05 * labels.nbytes
    with MLArray.open(tmp_path / "d_mla" / "labelsTr" / "x.mla") as array:
        assert array.meta.is_seg.is_seg is True
        np.testing.assert_array_equal(array.to_numpy(), labels.T)


def test_a_segmentation_of_nnunet_says_what_it_is_after_conversion(tmp_path: Path) -> None:
    (tmp_path / "labelsTr").mkdir()
    MLArray.asarray(np.zeros((1, 9, 9, 9), np.int16)).save(tmp_path / "x.mla")
    (tmp_path / "x.mla").rename(tmp_path / "labelsTr" / "x.b2nd")
    outcome = convert(tmp_path / "labelsTr").outcomes[0]
    assert outcome.dtype == "int16"  # its chunks are copied as they are
    with MLArray.open(outcome.case.output) as array:
        assert array.meta.is_seg.is_seg is True


def test_a_segmentation_that_is_not_whole_is_refused_unless_told_to_be_an_image(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "labelsTr" / "x.nii.gz", ramp(dtype="float32") + 0.5)
    outcome = convert(tmp_path / "d").outcomes[0]
    assert outcome.failure is Failure.INPUT
    assert "whole numbers" in outcome.reason
    assert "--labels none" in outcome.reason
    assert files_below(tmp_path / "d_mla") == []
    assert convert(tmp_path / "d", labels="none").outcomes[0].dtype == "float32"


def test_a_pair_that_differs_by_1e_10_is_fine_and_one_that_differs_by_12_mm_is_told(tmp_path: Path) -> None:
    for name, shift in (("x", 1e-10), ("y", 12.0)):
        write_nifti(tmp_path / "d" / "imagesTr" / f"{name}_0000.nii.gz", ramp())
        moved = AFFINE.copy()
        moved[0, 3] += shift
        write_nifti(tmp_path / "d" / "labelsTr" / f"{name}.nii.gz", ramp(dtype="uint8"), moved)
    report = convert(tmp_path / "d")
    told = {outcome.case.name: outcome.warnings for outcome in report.outcomes}
    assert told["labelsTr/x"] == ()
    (warning,) = told["labelsTr/y"]
    assert "y.nii.gz does not lie on the grid of y_0000.nii.gz: origin along world x is -12 and 0 mm" in warning
    assert "nothing was changed" in warning
    assert report.exit_code is ExitCode.OK
    assert report.count(Status.WARNED) == 1


def test_modalities_of_different_grids_stay_two_arrays(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "P1" / "CT.nii.gz", ramp((8, 8, 4)))
    write_nifti(tmp_path / "d" / "P1" / "PET.nii.gz", ramp((4, 4, 4)), np.diag([2.0, 3.0, 2.0, 1.0]))
    assert [o.shape for o in convert(tmp_path / "d").outcomes] == [(4, 8, 8), (4, 4, 4)]


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["with space", "Größe", unicodedata.normalize("NFD", "Größe"), "日本語" * 25, "a\nb\x1b[31m"]
)
def test_names_of_any_kind_work_and_do_not_reach_the_terminal(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture
) -> None:
    write_nifti(tmp_path / "d" / f"{name}.nii", ramp())
    assert run(["convert", str(tmp_path / "d")]) == 0
    assert files_below(tmp_path / "d_mla") == [f"{name}.mla"]
    assert "\x1b" not in capsys.readouterr().err


def test_paths_beyond_260_characters_work(tmp_path: Path) -> None:
    folder = tmp_path / "d" / Path(*["deep" * 15] * 6)
    write_nifti(folder / "a.nii", ramp())
    assert len(str(folder)) > 360
    assert convert(tmp_path / "d").exit_code is ExitCode.OK


# --- memory, workers, verification ----------------------------------------------------------------------------------


def test_a_worker_killed_by_the_system_is_one_failed_case_with_the_remedy(data: Path) -> None:
    write_nifti(data / "big.nii.gz", ramp())
    output = data.with_name("data_mla")
    output.mkdir()
    report = run_request(make_request(data, workers=2), work=pool_work.convert_or_die)
    assert [outcome.case.name for outcome in report.failed] == ["big"]
    assert "probably out of memory. Lower --workers or --memory." in report.failed[0].reason
    assert report.exit_code is ExitCode.SOME_FAILED
    assert files_below(output) == ["a.mla", "b.mla", "c.mla"]


def test_a_worker_that_crashes_is_one_failed_case_and_not_called_out_of_memory(data: Path) -> None:
    write_nifti(data / "torn.nii.gz", ramp())
    report = run_request(make_request(data, workers=2), work=pool_work.convert_or_die)
    assert [outcome.case.name for outcome in report.failed] == ["torn"]
    assert report.failed[0].reason.startswith("Its worker process crashed (SIGSEGV): its file is damaged, or a library")
    assert files_below(data.with_name("data_mla")) == ["a.mla", "b.mla", "c.mla"]


def test_parts_take_every_case_once_and_their_reports_join(data: Path, capsys: pytest.CaptureFixture) -> None:
    (data / "bad.nii.gz").write_text("no image")
    reports = [data.with_name(f"report{number}") for number in range(1, 8)]
    codes = [
        run(["convert", str(data), "--shard", f"{number}/7", "--json", str(path)])
        for number, path in enumerate(reports, 1)
    ]
    assert codes == [0, 0, 5, 0, 0, 0, 0]
    taken = [[row["case"] for row in rows(path.read_text()) if "case" in row] for path in reports]
    assert taken == [["a"], ["b"], ["bad"], ["c"], [], [], []]
    assert "Part 7/7 has no case: there are 4 in all." in capsys.readouterr().err
    assert files_below(data.with_name("data_mla")) == ["a.mla", "b.mla", "c.mla"]
    assert run(["report", *map(str, reports)]) == ExitCode.SOME_FAILED
    told = capsys.readouterr().err
    assert f"failed  {data / 'bad.nii.gz'} is no NIfTI" in told
    assert "3 converted" in told
    assert "1 failed" in told
    assert run(["report", *map(str, reports[:2]), "--json"]) == ExitCode.SOME_FAILED
    captured = capsys.readouterr()
    assert "No complete report of part 3/7, 4/7, 5/7, 6/7, 7/7." in captured.err
    assert rows(captured.out)[-1]["ok"] == 2


def test_segmentations_of_a_part_are_compared_with_images_of_another(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "imagesTr" / "x_0000.nii.gz", ramp())
    moved = AFFINE.copy()
    moved[0, 3] += 12
    write_nifti(tmp_path / "d" / "labelsTr" / "x.nii.gz", ramp(dtype="uint8"), moved)
    (outcome,) = convert(tmp_path / "d", shard="2/2").outcomes
    assert outcome.case.name == "labelsTr/x"
    assert "x.nii.gz does not lie on the grid of x_0000.nii.gz" in outcome.warnings[0]


def test_too_little_memory_is_refused_with_both_figures(data: Path) -> None:
    outcome = convert(data / "a.nii.gz", memory="60MB").outcomes[0]
    assert outcome.status is Status.FAILED
    assert "limit of 60 MB is too low" in outcome.reason
    told = re.search(r"at least --memory (\d+MB)", outcome.reason)
    assert told is not None
    assert convert(data / "a.nii.gz", memory=told[1]).exit_code is ExitCode.OK


def test_less_memory_than_any_worker_takes_is_wrong_use(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_below(data)
    for text in ("1KB", "39MB"):
        assert run(["convert", str(data / "a.nii.gz"), "--memory", text]) == ExitCode.USAGE
        assert "at least 40 MB" in capsys.readouterr().err
    assert files_below(data) == before


def test_a_damaged_checksum_of_the_source_is_a_failed_case_without_output(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "a.nii.gz", ramp((40, 40, 40)))
    content = bytearray(path.read_bytes())
    content[-8] ^= 0xFF  # the CRC that ends a gzip stream
    path.write_bytes(bytes(content))
    outcome = convert(path).outcomes[0]
    assert outcome.status is Status.FAILED
    assert files_below(tmp_path) == ["a.nii.gz"]


def test_an_output_that_does_not_read_back_is_not_published(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    report = run_request(make_request(data, verify="full", workers=1), work=damaging_work)
    assert report.exit_code is ExitCode.VERIFICATION
    assert {outcome.failure for outcome in report.failed} == {Failure.VERIFICATION}
    assert files_below(data.with_name("data_mla")) == []


def damaging_work(job, progress):
    """Convert through a disk that flips bits: what was finished is damaged before it is verified."""
    from mlarray.formats import mla
    from mlarray_convert.run import run_case

    class Damaging(mla.MlaSink):
        def finish(self) -> None:
            super().finish()
            content = bytearray(self.path.read_bytes())
            content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
            self.path.write_bytes(bytes(content))

    mla.MlaSink = Damaging  # in this worker process only
    return run_case(job, progress)


def test_every_format_goes_to_mla_and_back_with_equal_values(tmp_path: Path) -> None:
    write_nifti(tmp_path / "d" / "a.nii.gz", ramp())
    for target, suffix in (("nrrd", ".nrrd"), ("metaimage", ".mha"), ("nifti", ".nii.gz"), ("b2nd", ".b2nd")):
        there = convert(tmp_path / "d" / "a.nii.gz", tmp_path / f"x{suffix}", verify="full", labels="none")
        assert there.exit_code is ExitCode.OK, target
        back = convert(tmp_path / f"x{suffix}", tmp_path / f"back_{target}.mla", verify="full")
        assert back.exit_code is ExitCode.OK, target
        assert run(["verify", str(tmp_path / f"back_{target}.mla"), "--against", str(tmp_path / "d" / "a.nii.gz")]) == 0


def test_events_name_the_worker_of_a_case(data: Path) -> None:
    begun: list[Began] = []
    convert(data / "a.nii.gz", on_event=lambda event: begun.append(event) if isinstance(event, Began) else None)
    assert [event.case.name for event in begun] == ["a"]
    assert begun[0].pid != os.getpid()


def test_a_large_compressed_case_within_a_small_limit_is_decoded_to_disk_once(tmp_path: Path) -> None:
    array = (np.arange(220 * 220 * 300) % 251).reshape(220, 220, 300).astype(np.int16)
    write_nifti(tmp_path / "d" / "a.nii.gz", array)
    limit = "158MB"
    assert run(["convert", str(tmp_path / "d"), "--dry-run", "--memory", limit, "--json", str(tmp_path / "j")]) == 0
    assert rows((tmp_path / "j").read_text())[0]["plan"]["decoded_to_disk_first"] is True
    assert convert(tmp_path / "d", memory=limit, verify="full").exit_code is ExitCode.OK
    assert files_below(tmp_path / "d_mla") == ["a.mla"]
    with MLArray.open(tmp_path / "d_mla" / "a.mla") as stored:
        np.testing.assert_array_equal(stored.to_numpy(), array.T)


@pytest.fixture(autouse=True)
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    assert [name for name in files_below(tmp_path) if name.endswith(".part") or ".spool" in name] == []


def test_nibabel_reads_what_was_written(data: Path, tmp_path: Path) -> None:
    convert(data)
    convert(data.with_name("data_mla"), tmp_path / "back", to="nifti")
    image = nib.load(tmp_path / "back" / "a.nii.gz")
    np.testing.assert_array_equal(np.asarray(image.dataobj), ramp())
    np.testing.assert_allclose(image.affine, AFFINE)
