"""OME-Zarr on other machines: servers of files and of objects, started here."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlarray.errors import FormatError, UsageError
from mlarray.formats import ome_zarr
from mlarray.formats.registry import format_named, items_of, open_as, open_source
from mlarray.region import Region
from mlarray.sources.base import SinkOptions, Source, SourceInfo
from mlarray.spec import ArraySpec
from mlarray.storage.remote import RemotePath, as_path, filesystem
from mlarray.testing.conformance import SourceConformance
from mlarray_convert.cli import run
from mlarray_convert.report import ExitCode
from tests.conformance.servers import http_server, s3_server
from tests.conformance.text_header_files import load
from tests.conformance.zarr_files import chunk_files, multiscale, ramp, write_image

pytest.importorskip("s3fs")
pytest.importorskip("aiohttp")
BUCKET = "cases"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "www").mkdir()
    with http_server(tmp_path / "www") as address:
        yield address


@pytest.fixture(scope="module")
def _store() -> Iterator[dict[str, str]]:
    pytest.importorskip("moto")
    with s3_server(BUCKET) as environment:
        yield environment


@pytest.fixture
def bucket(_store: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in _store.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name.translate(str.maketrans('[]', '__'))}"


def keys(url: str) -> list[str]:
    fs, root = filesystem(as_path(url))
    fs.invalidate_cache()
    return sorted(key.removeprefix(f"{root}/") for key in fs.find(root))


class TestOverHttp(SourceConformance):
    @pytest.fixture(autouse=True)
    def _serve(self, web: str) -> None:
        self.address = web

    def make(self, folder: Path) -> Source:
        write_image(folder / "www" / "a.zarr", self.expected(), multiscale("zyx"), chunks=(2, 5, 3), shards=(4, 10, 6))
        return open_source(f"{self.address}/a.zarr")


def test_images_labels_and_levels_are_found_over_http(web: str, tmp_path: Path) -> None:
    path = tmp_path / "www" / "a.ome.zarr"
    write_image(path, ramp(4, 4, 4), multiscale("zyx", paths=("0", "1")), levels=[ramp(2, 2, 2)], version="0.4")
    write_image(path / "labels" / "cells", ramp(4, 4, 4, dtype=np.uint8), multiscale("zyx"), version="0.4")
    (path / "labels" / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "labels" / ".zattrs").write_text('{"labels": ["cells"]}')
    assert [item.name for item in items_of(f"{web}/a.ome.zarr")] == ["0", "labels/cells"]
    assert open_source(f"{web}/a.ome.zarr@1").spec.shape == (2, 2, 2)
    assert open_source(f"{web}/a.ome.zarr", item="labels/cells").info.is_seg is True


def test_missing_chunks_hold_the_fill_value_and_torn_ones_are_named(web: str, tmp_path: Path) -> None:
    from zarr.codecs import BloscCodec

    path = write_image(
        tmp_path / "www" / "a.zarr", ramp(4, 4), multiscale("yx"), chunks=(2, 2), compressors=BloscCodec()
    )
    files = chunk_files(path)
    files[3].unlink()
    back, _ = load(as_path(f"{web}/a.zarr"))
    assert back[2:, 2:].tolist() == [[0, 0], [0, 0]]
    files[0].write_bytes(files[0].read_bytes()[:-3])
    with pytest.raises(FormatError, match=r"a\.zarr/0: the chunk \(0, 0\) is damaged.*torn"):
        load(as_path(f"{web}/a.zarr"))


def test_a_server_that_ignores_ranges_is_told_and_never_believed(tmp_path: Path) -> None:
    write_image(tmp_path / "a.zarr", ramp(64, 64), multiscale("yx"), chunks=(8, 8), shards=(64, 64))
    with (
        http_server(tmp_path, ranges=False) as address,
        open_source(f"{address}/a.zarr") as source,
        pytest.raises(FormatError, match=r"bytes .*were asked for, \d+ came"),
    ):
        source.read(Region((0, 0), (8, 8)))


def test_what_is_not_there_is_told(web: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*/nothing\.zarr"):
        open_source(f"{web}/nothing.zarr")
    with pytest.raises(UsageError, match="from this machine only"):
        open_as(format_named("nifti"), as_path(f"{web}/a.nii.gz"))


def test_a_server_that_does_not_answer_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with http_server(tmp_path) as address:
        gone = address
    assert run(["convert", f"{gone}/a.zarr", "-o", str(tmp_path / "out")]) != ExitCode.OK
    told = capsys.readouterr().err
    assert told == f"Error: There is no such file or folder: {gone}/a.zarr.\n"


def test_an_address_is_converted_into_a_folder(web: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image(tmp_path / "www" / "x.zarr", ramp(6, 7, 8), multiscale("zyx", [3, 2, 1], [0, 0, 0]))
    for word in ("1 converted", "1 skipped"):
        capsys.readouterr()
        assert run(["convert", f"{web}/x.zarr", "-o", str(tmp_path / "out"), "--verify", "full"]) == ExitCode.OK
        assert word in capsys.readouterr().err
    back, source = load(tmp_path / "out" / "x.mla")
    np.testing.assert_array_equal(back, ramp(6, 7, 8))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == (3.0, 2.0, 1.0)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_file_is_converted_into_a_store_of_objects_and_back(bucket: str, tmp_path: Path, version: str) -> None:
    write_image(tmp_path / "a.zarr", ramp(16, 17, 18), multiscale("zyx", [3, 2, 1], [7, 8, 9]))
    assert run(["convert", str(tmp_path / "a.zarr"), "-o", str(tmp_path / "a.mla")]) == ExitCode.OK
    arguments = ["--to", "ome-zarr", "--ome-version", version, "--patch-size", "4", "--verify", "full"]
    target = f"{bucket}/a.ome.zarr"
    assert run(["convert", str(tmp_path / "a.mla"), "-o", target, *arguments]) == ExitCode.OK
    assert ("zarr.json" if version == "0.5" else ".zattrs") in keys(target)
    assert run(["convert", target, "-o", str(tmp_path / "back.mla")]) == ExitCode.OK
    first, second = load(tmp_path / "a.mla"), load(tmp_path / "back.mla")
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1].spec == second[1].spec


def test_a_second_run_skips_what_is_in_the_store(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    write_image(tmp_path / "in" / "a.zarr", ramp(6, 7, 8), multiscale("zyx"))
    assert run(["convert", str(tmp_path / "in"), "-o", str(tmp_path / "mla")]) == ExitCode.OK
    for word in ("1 converted", "1 skipped"):
        capsys.readouterr()
        assert run(["convert", str(tmp_path / "mla"), "-o", bucket, "--to", "ome-zarr"]) == ExitCode.OK
        assert word in capsys.readouterr().err
    assert run(["verify", f"{bucket}/a.ome.zarr"]) == ExitCode.OK


def test_an_unfinished_store_has_no_metadata_and_an_aborted_one_nothing(bucket: str) -> None:
    array = ramp(8, 8)
    spec = ArraySpec(array.shape, array.dtype)
    target = as_path(f"{bucket}/a.zarr")
    for old in (False, True):
        sink = ome_zarr.open_sink(target, spec, SourceInfo(), SinkOptions({"patch_size": 2}))
        sink.write(spec.region, array)
        assert not any("/" not in key for key in keys(str(target)))
        with pytest.raises(FileNotFoundError):
            open_source(target)
        sink.abort()
        assert keys(str(target)) == []
        if not old:
            again = ome_zarr.open_sink(target, spec, SourceInfo(), SinkOptions({"patch_size": 2}))
            again.write(spec.region, array)
            again.publish()
            again.abort()
            np.testing.assert_array_equal(load(target)[0], array)


def test_only_ome_zarr_goes_to_a_store_and_nothing_to_a_web_server(bucket: str, web: str, tmp_path: Path) -> None:
    write_image(tmp_path / "a.zarr", ramp(6, 7, 8), multiscale("zyx"))
    assert run(["convert", str(tmp_path / "a.zarr"), "-o", bucket]) == ExitCode.USAGE
    assert run(["convert", str(tmp_path / "a.zarr"), "-o", bucket, "--to", "nifti"]) == ExitCode.USAGE
    image = tmp_path / "a.mla"
    assert run(["convert", str(tmp_path / "a.zarr"), "-o", str(image)]) == ExitCode.OK
    assert run(["convert", str(image), "-o", f"{web}/b.ome.zarr"]) == ExitCode.ALL_FAILED


def test_remote_paths_join_and_travel_as_text() -> None:
    path = as_path("s3://bucket/cases/a.ome.zarr")
    assert isinstance(path, RemotePath)
    assert str(path) == "s3://bucket/cases/a.ome.zarr"
    assert str(path.parent / "b.zarr") == "s3://bucket/cases/b.zarr"
    assert str(path.with_name("c.zarr")) == "s3://bucket/cases/c.zarr"
    assert str(pickle.loads(pickle.dumps(path))) == str(path)
    assert path.name == "a.ome.zarr"
    assert as_path("file:///a/b") == Path("/a/b")
    with pytest.raises(UsageError, match="unknown scheme 'ftp'"):
        as_path("ftp://host/a.zarr")
