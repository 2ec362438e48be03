"""One HDF5 file for all cases: what is in it, what a second run does, and what a stopped one leaves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from mlarray import open_source
from mlarray.errors import FormatError, UsageError
from mlarray.formats.hdf5 import join
from mlarray.formats.registry import items_of
from mlarray_convert import convert
from mlarray_convert.report import ExitCode, Report
from mlarray_convert.run import Status

from .samples import files_below, mla, ramp, write_nifti


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    root = tmp_path / "d"
    for number, name in enumerate(("site1/a.nii.gz", "site1/b.nii", "site2/a.nii", "labels/a.nii")):
        write_nifti(root / name, ramp() + number * 1000)
    return root


def statuses(report: Report) -> dict[str, str]:
    return {outcome.case.name: outcome.status.value for outcome in report.outcomes}


def datasets(path: Path) -> dict[str, int]:
    """Path of every dataset and its smallest value."""
    return {one.name: int(open_source(path, item=one.name).read(open_source(path, item=one.name).spec.region).min())
            for one in items_of(path)}  # fmt: skip


ALL = {"/labels/a/image": 3000, "/site1/a/image": 0, "/site1/b/image": 1000, "/site2/a/image": 2000}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_case_is_a_group_of_one_file(cohort: Path, tmp_path: Path, workers: int) -> None:
    store = tmp_path / "cohort.h5"
    report = convert(cohort, store, workers=workers, codec="gzip")
    assert report.exit_code is ExitCode.OK
    assert files_below(tmp_path) == ["cohort.h5", *(f"d/{name}" for name in files_below(cohort))]
    assert not (tmp_path / "cohort.h5.parts").exists()
    assert datasets(store) == ALL
    with h5py.File(store) as file:
        dataset = file["site2/a/image"]
        np.testing.assert_array_equal(dataset[1:3, ::2], (ramp() + 2000).T[1:3, ::2])
        assert dataset.compression == "gzip"
        assert dataset.attrs["spacing"].tolist() == [2.0, 1.5, 1.0]
        assert bool(file["labels/a/image"].attrs["is_seg"])


def test_a_second_run_does_nothing_and_a_changed_case_is_made_again(cohort: Path, tmp_path: Path) -> None:
    store = tmp_path / "cohort.h5"
    convert(cohort, store)
    before = store.stat()
    assert set(statuses(convert(cohort, store)).values()) == {"skipped"}
    assert store.stat() == before
    write_nifti(cohort / "site1" / "b.nii", ramp() + 5000)
    write_nifti(cohort / "new.nii", ramp() + 6000)
    report = convert(cohort, store)
    assert statuses(report) == {
        "labels/a": "skipped",
        "new": "ok",
        "site1/a": "skipped",
        "site1/b": "ok",
        "site2/a": "skipped",
    }
    assert datasets(store) == ALL | {"/new/image": 6000, "/site1/b/image": 5000}
    assert not (tmp_path / "cohort.h5.parts").exists()


def test_a_case_that_fails_keeps_what_is_there_and_the_others_go_on(cohort: Path, tmp_path: Path) -> None:
    store = tmp_path / "cohort.h5"
    convert(cohort, store)
    (cohort / "site1" / "b.nii").write_bytes(b"no image")
    write_nifti(cohort / "site2" / "a.nii", ramp() + 7000)
    report = convert(cohort, store)
    assert report.exit_code is ExitCode.SOME_FAILED
    assert statuses(report)["site1/b"] == "failed"
    assert datasets(store) == ALL | {"/site2/a/image": 7000}


def test_a_case_and_a_folder_of_one_name_stay_two(tmp_path: Path) -> None:
    root = tmp_path / "d"
    write_nifti(root / "a.nii", ramp())
    write_nifti(root / "a" / "b.nii", ramp() + 9)
    assert convert(root, tmp_path / "c.h5").exit_code is ExitCode.OK
    write_nifti(root / "a.nii", ramp() + 1)
    assert convert(root, tmp_path / "c.h5").exit_code is ExitCode.OK
    assert datasets(tmp_path / "c.h5") == {"/a/image": 1, "/a/b/image": 9}


def test_a_dataset_of_another_name_replaces_the_one_of_its_case(cohort: Path, tmp_path: Path) -> None:
    store = tmp_path / "cohort.h5"
    convert(cohort / "site1", store)
    assert list(datasets(store)) == ["/a/image", "/b/image"]
    for _ in range(2):
        assert convert(cohort / "site1", store, item="raw/ct").exit_code is ExitCode.OK
        assert list(datasets(store)) == ["/a/raw/ct", "/b/raw/ct"]


def test_several_files_go_into_one_and_several_folders_keep_their_names(cohort: Path, tmp_path: Path) -> None:
    convert([cohort / "site1" / "a.nii.gz", cohort / "site1" / "b.nii"], tmp_path / "two.h5")
    assert list(datasets(tmp_path / "two.h5")) == ["/a/image", "/b/image"]
    convert([cohort / "site1", cohort / "site2"], tmp_path / "folders.hdf5")
    assert list(datasets(tmp_path / "folders.hdf5")) == ["/site1/a/image", "/site1/b/image", "/site2/a/image"]


def test_a_file_of_somebody_else_is_not_replaced(cohort: Path, tmp_path: Path) -> None:
    store = tmp_path / "cohort.h5"
    with h5py.File(store, "w") as file:
        file["mine"] = 3
    before = store.read_bytes()
    with pytest.raises(FormatError, match="not made by converting several cases"):
        convert(cohort, store)
    assert store.read_bytes() == before
    with pytest.raises(UsageError, match="1 outputs exist"):
        convert(cohort, store, if_exists="error")


def test_the_store_is_no_input_of_itself(cohort: Path, tmp_path: Path) -> None:
    store = tmp_path / "cohort.h5"
    convert(cohort / "site1", store)
    with pytest.raises(UsageError, match="is also an input"):
        convert([cohort, store], store, item="/a/image")
    shown = mla("info", f"{store}@/a/image").stdout
    assert "chunks         5 x 6 x 7" in shown


def test_a_dry_run_writes_nothing(cohort: Path, tmp_path: Path) -> None:
    assert convert(cohort, tmp_path / "cohort.h5", dry_run=True).exit_code is ExitCode.OK
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


def test_the_store_is_converted_back_by_a_pattern(cohort: Path, tmp_path: Path) -> None:
    store = tmp_path / "cohort.h5"
    convert(cohort, store)
    result = mla("convert", store, "--item", "/site*/image", "-o", tmp_path / "back", "--json", "-")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(line["item"] for line in lines[:-1]) == ["/site1/a/image", "/site1/b/image", "/site2/a/image"]
    with open_source(tmp_path / "back" / "cohort" / "site1" / "b" / "image.mla") as source:
        assert int(source.read(source.spec.region).min()) == 1000
    assert mla("convert", store, "-o", tmp_path / "back").returncode == 5


def test_a_killed_run_leaves_what_the_next_one_goes_on_with(cohort: Path, tmp_path: Path) -> None:
    store = tmp_path / "cohort.h5"
    code = (
        "import os, sys; from pathlib import Path; import mlarray_convert.batch as batch\n"
        "batch._join = lambda *_: os.kill(os.getpid(), 9)\n"
        f"batch.convert({str(cohort)!r}, {str(store)!r}, workers=1)"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert killed.returncode == -signal.SIGKILL
    assert not store.exists()
    report = convert(cohort, store)
    assert {outcome.status for outcome in report.outcomes} == {Status.SKIPPED}
    assert datasets(store) == ALL
    assert not (tmp_path / "cohort.h5.parts").exists()


def test_a_join_that_fails_leaves_the_old_file_and_the_parts(tmp_path: Path) -> None:
    part = tmp_path / "part.h5"
    with h5py.File(part, "w") as file:
        file["image"] = np.arange(1000)
    join(tmp_path / "all.h5", {"a": part})
    before = (tmp_path / "all.h5").read_bytes()
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"part\.h5 is cut"):
        join(tmp_path / "all.h5", {"b": part})
    assert (tmp_path / "all.h5").read_bytes() == before
    assert files_below(tmp_path) == ["all.h5", "part.h5"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the size of files")
def test_cases_that_cannot_be_joined_are_reported_as_failed_and_wait_for_the_next_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        write_nifti(tmp_path / "d" / f"{name}.nii", rng.integers(-30000, 30000, (40, 40, 40), dtype=np.int16))
    store, report = tmp_path / "all.h5", tmp_path / "report"
    limited = ("bash", "-c", 'ulimit -f 180; exec "$@"', "bash")  # KiB: enough for one case, not for both
    done = mla("convert", tmp_path / "d", "-o", store, "--json", report, before=limited)
    assert done.returncode == 5
    assert f"a.nii: It could not be put into {store}: " in done.stderr
    assert "errno" not in done.stderr
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["status"] for line in lines[:-1]] == ["ok", "ok", "failed", "failed"]
    assert lines[-1]["failed_cases"] == ["a", "b"]
    assert mla("report", report).returncode == 5
    assert files_below(tmp_path) == ["all.h5.parts/a.h5", "all.h5.parts/b.h5", "d/a.nii", "d/b.nii", "report"]
    again = mla("convert", tmp_path / "d", "-o", store)
    assert (again.returncode, "2 skipped" in again.stderr) == (0, True)
    assert files_below(tmp_path) == ["all.h5", "d/a.nii", "d/b.nii", "report"]
