"""Hierarchies that are damaged, or made to do harm: one clear error each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from mlarray.errors import FormatError
from mlarray.formats.registry import items_of, open_source
from mlarray.limits import ZARR_DOCUMENT_BYTES
from tests.cli.samples import mla
from tests.conformance.text_header_files import load
from tests.conformance.zarr_files import change, chunk_files, multiscale, ramp, write_image


def image(folder: Path, **options: Any) -> Path:
    return write_image(folder / "a.ome.zarr", ramp(8, 8, 8), multiscale("zyx"), chunks=(4, 4, 4), **options)


def blosc(version: str) -> dict[str, Any]:
    if version == "0.4":
        from numcodecs import Blosc

        return {"compressors": Blosc("lz4"), "version": version}
    return {"compressors": zarr.codecs.BloscCodec(cname="lz4"), "version": version}


# --- torn objects (OMZ-08) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [1, 5, 100, -1])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_torn_chunk_is_named(tmp_path: Path, version: str, missing: int) -> None:
    path = image(tmp_path, **blosc(version))
    victim = chunk_files(path)[3]
    data = victim.read_bytes()
    victim.write_bytes(data[: len(data) - missing] if missing > 0 else b"")
    with pytest.raises(FormatError, match=r"a\.ome\.zarr/0: the chunk \(0, 1, 1\) is damaged"):
        load(path)


@pytest.mark.parametrize("codec", ["none", "zstd", "gzip"])
def test_a_torn_chunk_of_another_codec_is_named(tmp_path: Path, codec: str) -> None:
    codecs = {"none": None, "zstd": zarr.codecs.ZstdCodec(), "gzip": zarr.codecs.GzipCodec()}
    path = image(tmp_path, compressors=codecs[codec])
    victim = chunk_files(path)[0]
    victim.write_bytes(victim.read_bytes()[:-5])
    with pytest.raises(FormatError, match=r"the chunk \(0, 0, 0\) is damaged"):
        load(path)


@pytest.mark.parametrize("missing", [5, 40, -1])
def test_a_torn_shard_is_named(tmp_path: Path, missing: int) -> None:
    path = image(tmp_path, shards=(8, 8, 8))
    (shard,) = chunk_files(path)
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) - missing] if missing > 0 else b"")
    with pytest.raises(FormatError, match=r"the chunk \(0, 0, 0\) is damaged"):
        load(path)


def test_a_frame_that_holds_more_than_a_chunk_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = image(tmp_path, **blosc("0.5"))
    victim = chunk_files(path)[0]
    frame = bytearray(victim.read_bytes())
    frame[4:8] = (2**31 - 20).to_bytes(4, "little")
    victim.write_bytes(bytes(frame))
    with pytest.raises(FormatError, match="holds 2147483628 bytes of voxels, a chunk has 128"):
        load(path)


# --- descriptions that must not be followed ------------------------------------------------------------------------


def edit_array(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.__setitem__(name, value)


@pytest.mark.parametrize("codec", ["pickle", "json2", "msgpack2", "vlen-utf8", "nonsense", None, 7])
def test_a_codec_that_does_more_than_decode_numbers_is_refused_by_name(tmp_path: Path, codec: Any) -> None:
    path = image(tmp_path, **blosc("0.4"))
    change(path / "0", ".zarray", edit_array("compressor", {"id": codec}))
    with pytest.raises(FormatError, match=r"the codec .* is not one that only decodes numbers"):
        open_source(path)
    change(path / "0", ".zarray", edit_array("compressor", None))
    change(path / "0", ".zarray", edit_array("filters", [{"id": codec}]))
    with pytest.raises(FormatError, match="the codec"):
        open_source(path)


@pytest.mark.parametrize("codec", ["numcodecs.pickle", "vlen-bytes", "nonsense"])
def test_the_same_for_version_3(tmp_path: Path, codec: str) -> None:
    path = image(tmp_path)
    change(path / "0", "zarr.json", lambda document: document["codecs"].append({"name": codec}))
    with pytest.raises(FormatError, match=f"the codec '{codec}'"):
        open_source(path)


def test_a_codec_hidden_in_shards_is_found(tmp_path: Path) -> None:
    path = image(tmp_path, shards=(8, 8, 8))

    def hide(document: dict[str, Any]) -> None:
        document["codecs"][0]["configuration"]["codecs"].append({"name": "numcodecs.pickle"})

    change(path / "0", "zarr.json", hide)
    with pytest.raises(FormatError, match=r"the codec 'numcodecs\.pickle'"):
        open_source(path)


@pytest.mark.parametrize(
    "where", ["../other", "/etc", "a/../../b", "C:/x", "a\\b", "", "s3://bucket/x", "x" * 5000, 7, None]
)
def test_a_path_that_leads_out_of_the_store_is_not_followed(tmp_path: Path, where: Any) -> None:
    write_image(tmp_path / "other", ramp(2, 2), multiscale("yx"))
    path = image(tmp_path)
    change(
        path,
        "zarr.json",
        lambda document: document["attributes"]["ome"]["multiscales"][0]["datasets"][0].__setitem__("path", where),
    )
    with pytest.raises(FormatError, match=r"a\.ome\.zarr"):
        open_source(path)


@pytest.mark.parametrize("where", ["../../other", "/etc", 7])
def test_labels_that_lead_out_of_the_store_are_not_followed(tmp_path: Path, where: Any) -> None:
    path = image(tmp_path)
    zarr.open_group(path / "labels", mode="w").attrs["ome"] = {"labels": [where]}
    with pytest.raises(FormatError, match="not one below the store"):
        items_of(path)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("shape", [8, 8, -8], "shape"),
        ("shape", [8, 8], "chunks of"),
        ("shape", [8, 8, 2**70], "shape"),
        ("shape", "8", "shape"),
        ("shape", [8.0, 8, 8], "shape"),
        ("data_type", "string", "not plain numbers"),
        ("data_type", {"name": "struct"}, "not plain numbers"),
        ("chunk_grid", {"name": "rectilinear"}, "chunk grid"),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [2**20, 2**20, 1]}}, "more than"),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [0, 1, 1]}}, "chunk shape"),
        ("codecs", [], "codecs"),
        ("codecs", "bytes", "codecs"),
        ("storage_transformers", [{"name": "x"}], "storage transformers"),
        ("zarr_format", 4, "neither a group nor an array"),
        ("node_type", "thing", "neither a group nor an array"),
        ("chunk_key_encoding", {"name": "nonsense"}, "zarr refuses|damaged|cannot be read"),
        ("fill_value", "nonsense", "zarr refuses|damaged|cannot be read"),
    ],
)
def test_a_description_that_cannot_be_is_refused(tmp_path: Path, name: str, value: Any, told: str) -> None:
    path = image(tmp_path)
    change(path / "0", "zarr.json", edit_array(name, value))
    with pytest.raises(FormatError, match=told):
        load(path)


def test_a_shard_of_too_many_chunks_is_refused(tmp_path: Path) -> None:
    path = image(tmp_path, shards=(8, 8, 8))

    def edit(document: dict[str, Any]) -> None:
        document["chunk_grid"]["configuration"]["chunk_shape"] = [1024, 1024, 1024]
        document["codecs"][0]["configuration"]["chunk_shape"] = [1, 1, 1]

    change(path / "0", "zarr.json", edit)
    with pytest.raises(FormatError, match=r"more than 1048576 chunks.*MLARRAY_LIMIT_ZARR_SHARD_CHUNKS"):
        open_source(path)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda one: one.__setitem__("axes", "zyx"), "no list of axes"),
        (lambda one: one.__setitem__("axes", [{"name": "z"}] * 3), "more than once"),
        (lambda one: one["axes"].pop(), "needs 2 numbers"),
        (lambda one: one["axes"][0].pop("name"), "is no axis"),
        (lambda one: one.__setitem__("datasets", []), "datasets"),
        (lambda one: one.__setitem__("datasets", [{}]), "no dataset"),
        (lambda one: one["datasets"][0].__setitem__("path", "5"), "'5' is not there"),
        (lambda one: transformation(one, {"type": "affine", "affine": []}), "'affine'"),
        (lambda one: transformation(one, {"type": "scale", "path": "scale_array"}), "a file of its own"),
        (lambda one: transformation(one, {"type": "scale", "scale": [1, 2]}), "needs 3 numbers"),
        (lambda one: transformation(one, {"type": "scale", "scale": [1, 2, "3"]}), "needs 3 numbers"),
        (lambda one: transformation(one, {"type": "scale", "scale": [1, 2, True]}), "needs 3 numbers"),
        (lambda one: transformation(one, {"type": "scale", "scale": [1, 2, float("nan")]}), "needs 3 numbers"),
        (lambda one: transformation(one, {"type": "translation", "translation": [1, 2, 1e305]}), "needs 3 numbers"),
        (lambda one: one["datasets"][0].__setitem__("coordinateTransformations", {}), "no list"),
    ],
)
def test_multiscales_that_cannot_be_are_refused(tmp_path: Path, edit: Callable[[Any], Any], told: str) -> None:
    path = image(tmp_path)
    change(path, "zarr.json", lambda document: edit(document["attributes"]["ome"]["multiscales"][0]))
    with pytest.raises(FormatError, match=told) as caught:
        open_source(path)
    assert "a.ome.zarr" in str(caught.value)


def transformation(entry: dict[str, Any], one: dict[str, Any]) -> None:
    entry["datasets"][0]["coordinateTransformations"] = [one]


@pytest.mark.parametrize(
    "content",
    [b"", b"no json", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"zarr_format": ' + b"9" * 5000 + b"}"],
)
def test_a_document_that_is_no_json_object_is_named(tmp_path: Path, content: bytes) -> None:
    path = image(tmp_path)
    (path / "zarr.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.ome\.zarr/zarr\.json"):
        open_source(path)


def test_a_document_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = image(tmp_path)
    with (path / "zarr.json").open("r+b") as file:
        file.truncate(ZARR_DOCUMENT_BYTES + 1)
    with pytest.raises(FormatError, match="at most"):
        open_source(path)


def test_a_folder_that_is_being_written_is_no_image_yet(tmp_path: Path) -> None:
    path = image(tmp_path)
    (path / "zarr.json").unlink()
    with pytest.raises(FormatError, match="holds no zarr metadata"):
        open_source(path)


def test_what_this_package_kept_may_be_anything(tmp_path: Path) -> None:
    path = image(tmp_path)
    for kept in (
        7,
        [],
        {"version": 1},
        {"version": 1, "meta": [], "order": ["x"]},
        {"version": 2},
        {"version": 1, "meta": {}},
    ):
        change(path, "zarr.json", lambda document, kept=kept: document["attributes"].__setitem__("mlarray", kept))
        back, _ = load(path)
        np.testing.assert_array_equal(back, ramp(8, 8, 8))


def test_no_message_is_longer_than_it_helps(tmp_path: Path) -> None:
    path = image(tmp_path)
    document = json.loads((path / "0" / "zarr.json").read_text(encoding="utf-8"))
    document["data_type"] = "x" * 1_000_000
    (path / "0" / "zarr.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FormatError) as caught:
        open_source(path)
    assert len(str(caught.value)) < 1000


def test_chunks_that_cannot_be_decoded_are_one_message_without_noise_of_asyncio(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.zarr", ramp(64, 64, 64), multiscale("zyx"), chunks=(8, 8, 8))
    for file in chunk_files(path)[::2]:
        file.write_bytes(file.read_bytes()[:20])
    done = mla("verify", path)
    assert done.returncode == 6
    assert "the chunk (0, 0, 0) is damaged" in done.stdout
    assert done.stderr == ""
