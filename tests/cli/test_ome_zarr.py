"""``mla convert`` to and from OME-Zarr as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from mlarray import Meta, MLArray
from mlarray.formats.registry import open_source
from mlarray.storage.publish import is_part
from mlarray_convert import convert
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from mlarray_convert.run import Status
from mlarray_convert.verify import check_file
from tests.cli.samples import MLA, ROOT, files_below, mla, ramp, write_nifti
from tests.conformance.text_header_files import load
from tests.conformance.zarr_files import change, chunk_files, multiscale, ome, write_array, write_image
from tests.conformance.zarr_files import ramp as zarr_ramp

COSINE, SINE = np.cos(np.pi / 6), 0.5
OBLIQUE = np.array([[COSINE, -2 * SINE, 0, 5], [SINE, 2 * COSINE, 0, -7], [0, 0, 3, 11], [0, 0, 0, 1]])
ORDERED = np.array([[0, 0, 3, 5], [-1, 0, 0, -7], [0, -2, 0, 11], [0, 0, 0, 1]], dtype=np.float64)  # P, I, R in RAS


def checks(source: Path, output: Path) -> bool:
    return run(["verify", str(output), "--against", str(source)]) == ExitCode.OK


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("affine", [OBLIQUE, ORDERED], ids=["oblique", "P I R"])
def test_a_medical_image_goes_to_ome_zarr_and_back(tmp_path: Path, affine: np.ndarray, version: str) -> None:
    source = write_nifti(tmp_path / "a.nii", ramp((2, 3, 4)), affine)
    between, back = tmp_path / "a.ome.zarr", tmp_path / "back.nii"
    assert (
        run(["convert", str(source), "-o", str(between), "--ome-version", version, "--verify", "full"]) == ExitCode.OK
    )
    assert run(["convert", str(between), "-o", str(back), "--verify", "full"]) == ExitCode.OK
    assert checks(source, between)
    assert checks(source, back)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_an_mla_comes_back_as_it_was(tmp_path: Path, version: str) -> None:
    array = np.random.default_rng(0).integers(0, 9, (2, 20, 30, 40), dtype=np.int16)
    meta = Meta(source={"Modality": "CT", "slope": float("nan")}, extra={"fold": 3}, is_seg=True)
    labels = ["channel", "spatial_z", "spatial_y", "spatial_x"]
    first = tmp_path / "a.mla"
    MLArray(array, spacing=(3, 1, 2), origin=(1, 2, 3), meta=meta, axis_labels=labels).save(first)
    for source, output in ((first, "b.ome.zarr"), (tmp_path / "b.ome.zarr", "c.mla")):
        extra = ["--ome-version", version] if output.endswith("zarr") else []
        assert run(["convert", str(source), "-o", str(tmp_path / output), "--patch-size", "8", *extra]) == ExitCode.OK
    before, after = load(first), load(tmp_path / "c.mla")
    np.testing.assert_array_equal(before[0], after[0], strict=True)
    assert before[1].spec == after[1].spec
    assert after[1].info.is_seg is True
    assert repr(before[1].info.header) == repr(after[1].info.header)


def test_segmentations_become_label_images(tmp_path: Path) -> None:
    write_nifti(tmp_path / "in" / "images" / "a.nii.gz", ramp((8, 8, 8)))
    write_nifti(tmp_path / "in" / "labels" / "a.nii.gz", np.full((8, 8, 8), 7, np.float32))
    assert run(["convert", str(tmp_path / "in"), "--to", "ome-zarr", "--workers", "1"]) == ExitCode.OK
    folder = tmp_path / "in_ome-zarr"
    assert "omero" in ome(folder / "images" / "a.ome.zarr")
    label = ome(folder / "labels" / "a.ome.zarr")
    assert "image-label" in label
    assert "omero" not in label
    assert zarr.open_array(folder / "labels" / "a.ome.zarr" / "0", mode="r").dtype == np.uint8


def test_series_and_labels_of_one_hierarchy_are_cases_of_their_own(tmp_path: Path) -> None:
    path = write_image(tmp_path / "in" / "scan.ome.zarr", zarr_ramp(4, 5, 6), multiscale("zyx"))
    group = zarr.open_group(path / "labels", mode="w")
    group.attrs["ome"] = {"labels": ["cells"]}
    write_image(path / "labels" / "cells", zarr_ramp(4, 5, 6, dtype=np.uint8), multiscale("zyx"))
    root = zarr.open_group(tmp_path / "in" / "raw.zarr", mode="w", zarr_format=2)
    root.attrs["bioformats2raw.layout"] = 3
    for number in ("0", "1"):
        write_image(tmp_path / "in" / "raw.zarr" / number, zarr_ramp(2, 3), multiscale("yx"), version="0.4")
    report = convert(tmp_path / "in", tmp_path / "out", workers=1)
    assert [outcome.case.name for outcome in report.outcomes] == ["raw/0", "raw/1", "scan", "scan/labels/cells"]
    assert files_below(tmp_path / "out") == ["raw/0.mla", "raw/1.mla", "scan.mla", "scan/labels/cells.mla"]
    assert load(tmp_path / "out" / "scan" / "labels" / "cells.mla")[1].info.is_seg is True


def test_a_label_that_is_not_there_fails_and_the_image_and_other_labels_are_converted(tmp_path: Path) -> None:
    path = write_image(tmp_path / "scan.ome.zarr", zarr_ramp(4, 5, 6), multiscale("zyx"))
    zarr.open_group(path / "labels", mode="w").attrs["ome"] = {"labels": ["missing", "cells"]}
    write_image(path / "labels" / "cells", zarr_ramp(4, 5, 6, dtype=np.uint8), multiscale("zyx"))
    report = convert(path, tmp_path / "out", workers=1)
    found = {outcome.case.name: outcome for outcome in report.outcomes}
    assert {name: outcome.status for name, outcome in found.items()} == {
        "scan": Status.OK,
        "scan/labels/cells": Status.OK,
        "scan/labels/missing": Status.FAILED,
    }
    assert "lists the image 'labels/missing', which is not there" in str(found["scan/labels/missing"])
    assert open_source(path).spec.shape == (4, 5, 6)
    assert not check_file(path).ok


def test_a_plain_array_is_converted_with_a_warning_and_a_plate_refused(tmp_path: Path) -> None:
    write_array(zarr.open_group(tmp_path / "in" / "plain.zarr", mode="w"), "0", zarr_ramp(3, 4, 5))
    plate = zarr.open_group(tmp_path / "in" / "plate.zarr", mode="w")
    plate.attrs["ome"] = {"version": "0.5", "plate": {"wells": [{"path": "A/1"}]}}
    report = convert(tmp_path / "in", tmp_path / "out", workers=1)
    plain, refused = report.outcomes
    assert plain.status is Status.WARNED
    assert "is unknown" in plain.warnings[0]
    assert refused.status is Status.FAILED
    assert "plate of 1 wells" in refused.reason
    assert report.exit_code is ExitCode.SOME_FAILED
    assert files_below(tmp_path / "out") == ["plain.mla"]


@pytest.mark.parametrize("option", ["--level", "--item"])
def test_a_level_is_chosen_by_option_or_in_the_path(tmp_path: Path, option: str) -> None:
    source = write_nifti(tmp_path / "a.nii", ramp((40, 40, 40)), np.eye(4))
    path = tmp_path / "a.ome.zarr"
    assert run(["convert", str(source), "-o", str(path), "--patch-size", "8"]) == ExitCode.OK
    for number, arguments in enumerate(([str(path), option, "1"], [f"{path}@1"])):
        output = tmp_path / f"{number}.mla"
        assert run(["convert", *arguments, "-o", str(output)]) == ExitCode.OK
        back, source_of = load(output)
        assert back.shape == (20, 20, 20)
        np.testing.assert_array_equal(back, zarr.open_array(path / "1", mode="r")[...])
        assert source_of.spec.geometry is not None
        assert source_of.spec.geometry.spacing == (2.0, 2.0, 2.0)


# --- shards, torn shards, resuming (OMZ-07, OMZ-08) -----------------------------------------------------------------


def test_parallel_workers_write_whole_shards(tmp_path: Path) -> None:
    array = np.arange(100**3, dtype=np.int32).reshape(100, 100, 100)
    for name in "abcd":
        write_nifti(tmp_path / "in" / f"{name}.nii", array + ord(name))
    storage = {"chunk_size": 25, "shard_size": 50}
    report = convert(tmp_path / "in", tmp_path / "out", to="ome-zarr", storage=storage, workers=4, verify="full")
    assert report.exit_code is ExitCode.OK
    for name in "abcd":
        stored = zarr.open_array(tmp_path / "out" / f"{name}.ome.zarr" / "0", mode="r")
        assert (stored.chunks, stored.shards) == ((25,) * 3, (50,) * 3)
        found = stored[...]
        assert int(found.astype(np.int64).sum()) == int((array.astype(np.int64) + ord(name)).sum())
        np.testing.assert_array_equal(found, array.T + ord(name))


def test_a_torn_shard_is_reported_and_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_nifti(tmp_path / "in" / "a.nii", ramp((16, 16, 16)))
    write_nifti(tmp_path / "in" / "b.nii", ramp((16, 16, 16)))
    command = ["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--to", "ome-zarr", "--shards", "auto"]
    assert run(command) == ExitCode.OK
    (shard,) = chunk_files(tmp_path / "out" / "a.ome.zarr")
    shard.write_bytes(shard.read_bytes()[:-5])
    capsys.readouterr()
    assert run(["verify", str(tmp_path / "out")]) == ExitCode.VERIFICATION
    told = capsys.readouterr().out
    assert "failed " in told
    assert "does not match its checksum" in told
    assert told.count("ok ") == 1
    back = ["convert", str(tmp_path / "out"), "-o", str(tmp_path / "back"), "--workers", "1"]
    assert run(back) == ExitCode.SOME_FAILED
    assert "Level 0 of " in (told := " ".join(capsys.readouterr().err.split()))
    assert "does not match its checksum: it is damaged" in told
    assert files_below(tmp_path / "back") == ["b.mla"]
    assert run([*command, "--if-exists", "overwrite"]) == ExitCode.OK
    assert run(["verify", str(tmp_path / "out")]) == ExitCode.OK


def test_a_second_run_skips_and_another_setting_makes_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_nifti(tmp_path / "in" / "a.nii", ramp((16, 16, 16)))
    command = ["convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--to", "ome-zarr"]
    for extra, word in (([], "1 converted"), ([], "1 skipped"), (["--ome-version", "0.4"], "1 converted")):
        capsys.readouterr()
        assert run([*command, *extra]) == ExitCode.OK
        assert word in capsys.readouterr().err
    assert not (tmp_path / "out" / "a.ome.zarr" / "zarr.json").exists()
    assert run(["verify", str(tmp_path / "out")]) == ExitCode.OK


def test_a_source_of_many_files_is_stale_when_one_of_them_changes(tmp_path: Path) -> None:
    path = write_image(tmp_path / "in" / "a.zarr", zarr_ramp(8, 8), multiscale("yx"), chunks=(4, 4), compressors=None)
    for expected in (Status.OK, Status.SKIPPED):
        report = convert(tmp_path / "in", tmp_path / "out", workers=1)
        assert report.outcomes[0].status is expected
    chunk_files(path)[2].unlink()
    (outcome,) = convert(tmp_path / "in", tmp_path / "out", workers=1).outcomes
    assert outcome.status is Status.OK
    assert "has changed" in outcome.reason
    change(path, "zarr.json", lambda document: document["attributes"]["ome"].__setitem__("x", 1))
    assert convert(tmp_path / "in", tmp_path / "out", workers=1).outcomes[0].status is Status.OK


def test_an_image_of_another_program_is_left_alone(tmp_path: Path) -> None:
    write_nifti(tmp_path / "in" / "a.nii", ramp())
    theirs = write_image(tmp_path / "out" / "a.ome.zarr", zarr_ramp(4, 4), multiscale("yx"))
    (outcome,) = convert(tmp_path / "in", tmp_path / "out", to="ome-zarr", workers=1).outcomes
    assert outcome.status is Status.SKIPPED
    assert "was not made by this converter" in outcome.warnings[-1]
    np.testing.assert_array_equal(load(theirs)[0], zarr_ramp(4, 4))
    (outcome,) = convert(tmp_path / "in", tmp_path / "out", to="ome-zarr", workers=1, if_exists="overwrite").outcomes
    assert outcome.status is Status.OK
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["a.ome.zarr"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_killed_writer_leaves_no_image_and_the_next_run_cleans_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_nifti(tmp_path / "in" / "a.nii", rng.integers(0, 30000, (200, 200, 200), dtype=np.int16))
    output = tmp_path / "out"
    arguments = ["convert", str(tmp_path / "in"), "-o", str(output), "--to", "ome-zarr", "--patch-size", "16"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*MLA, *arguments, "--workers", "1"], env=environment, cwd=ROOT, start_new_session=True
    ) as child:
        while child.poll() is None and not any(is_part(path.name) for path in output.glob(".*") if any(path.iterdir())):
            pass
        os.killpg(child.pid, signal.SIGKILL)
    assert not (output / "a.ome.zarr").exists()
    assert any(is_part(path.name) for path in output.iterdir())
    done = mla(*arguments, "--workers", "1")
    assert done.returncode == ExitCode.OK, done.stderr
    assert [entry.name for entry in output.iterdir()] == ["a.ome.zarr"]
    assert checks(tmp_path / "in" / "a.nii", output / "a.ome.zarr")


# --- wrong use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ome-version", "0.4"], "ome_version is for OME-Zarr"),
        (["--shards", "auto", "--to", "nifti"], "shard_size is for OME-Zarr"),
        (["--to", "ome-zarr", "--shards", "many"], "is not a patch size"),
    ],
)
def test_options_that_do_not_fit_are_told(
    tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_nifti(tmp_path / "a.nii", ramp())
    assert run(["convert", str(source), "-o", str(tmp_path / "out"), *arguments]) == ExitCode.USAGE
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_shards_in_version_4_fail_by_name(tmp_path: Path) -> None:
    source = write_nifti(tmp_path / "a.nii", ramp())
    (outcome,) = convert(source, tmp_path / "out", to="ome-zarr", ome_version="0.4", shards="auto").outcomes
    assert outcome.status is Status.FAILED
    assert "no shards" in outcome.reason
    assert list((tmp_path / "out").glob("*")) == []


def test_axes_that_ome_zarr_does_not_know_fail_by_name(tmp_path: Path) -> None:
    MLArray(np.zeros((4, 5), np.uint8), axis_labels=["channel", "temporal"]).save(tmp_path / "a.mla")
    (outcome,) = convert(tmp_path / "a.mla", tmp_path / "out", to="ome-zarr").outcomes
    assert outcome.status is Status.FAILED
    assert "2 or 3 axes of space" in outcome.reason


def test_a_dry_run_shows_chunks_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_nifti(tmp_path / "a.nii", ramp((60, 60, 60)))
    arguments = ["-o", str(tmp_path / "out"), "--to", "ome-zarr", "--patch-size", "16", "--dry-run", "--json", "-"]
    assert run(["convert", str(source), *arguments]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out.splitlines()[0])["plan"]
    assert plan["chunks"] == [24, 24, 24]
    assert "each an object of the store" in plan["layout_reason"]
    assert not (tmp_path / "out").exists()


def test_info_lists_images_and_says_how_one_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_nifti(tmp_path / "a.nii", ramp((40, 40, 40)), np.eye(4))
    path = tmp_path / "a.ome.zarr"
    assert run(["convert", str(source), "-o", str(path), "--patch-size", "8"]) == ExitCode.OK
    capsys.readouterr()
    assert run(["info", str(path), "--json"]) == ExitCode.OK
    described = json.loads(capsys.readouterr().out)
    assert described["storage"] == {
        "version": "OME-NGFF 0.5, zarr 3",
        "chunks": [12, 12, 12],
        "shards": "none",
        "levels": {"0": [40, 40, 40], "1": [20, 20, 20], "2": [10, 10, 10]},
    }
    assert described["file_bytes"] == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert open_source(path).info.record["tool"] == "mlarray"


def test_a_source_that_lost_a_chunk_is_an_error_unless_told_to_take_it(tmp_path: Path) -> None:
    voxels = np.random.default_rng(0).integers(1, 100, (40, 50, 60)).astype(np.int16)
    MLArray(voxels, axes="zyx", spacing=(2, 1, 1)).save(tmp_path / "a.mla")
    assert run(["convert", str(tmp_path / "a.mla"), "-o", str(tmp_path / "a.ome.zarr"), "--patch-size", "16"]) == 0
    store = tmp_path / "a.ome.zarr"
    next(path for path in sorted((store / "0" / "c").rglob("*")) if path.is_file()).unlink()
    outcome = convert(store, tmp_path / "back.mla").outcomes[0]
    assert outcome.status is Status.FAILED
    assert "Level 0" in outcome.reason
    assert "does not match its checksum" in outcome.reason
    assert "--verify none" in outcome.reason
    assert not (tmp_path / "back.mla").exists()
    assert convert(store, tmp_path / "back.mla", verify="none").outcomes[0].status is not Status.FAILED
    # Another level is not concerned.
    assert convert(store, tmp_path / "level.mla", item="1").outcomes[0].status is not Status.FAILED


def test_a_source_with_a_changed_chunk_is_an_error_when_it_is_stored_anew(tmp_path: Path) -> None:
    voxels = np.random.default_rng(0).integers(1, 100, (40, 50, 60)).astype(np.int16)
    path = tmp_path / "a.mla"
    MLArray(voxels, patch_size=16, axes="zyx").save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    outcome = convert(path, tmp_path / "a.nii.gz").outcomes[0]
    assert outcome.status is Status.FAILED
    assert "chunks do not match their checksums" in outcome.reason or "cannot be decoded" in outcome.reason
    assert not (tmp_path / "a.nii.gz").exists()
