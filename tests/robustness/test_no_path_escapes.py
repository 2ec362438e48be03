"""A header names only what lies in its own folder, whatever it says; anything else is not opened, not even to look at it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from mlarray.errors import FormatError, MLArrayError
from mlarray.formats.detached import resolve_beside
from mlarray.formats.registry import items_of, open_source
from mlarray_convert.discovery import discover
from mlarray_convert.request import make_request
from tests.conformance.text_header_files import META_BASE, NRRD_BASE, write_meta, write_nrrd
from tests.conformance.zarr_files import multiscale, write_image

SECRET = b"\x2a" * 48


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that no header in ``tmp_path / "data"`` may reach; of the size that the headers ask for."""
    path = tmp_path / "secret.raw"
    path.write_bytes(SECRET)
    (tmp_path / "data").mkdir()
    return path


@pytest.fixture
def data(outside: Path) -> Path:
    return outside.parent / "data"


def names(outside: Path, data: Path) -> list[str]:
    """Ways to name it, and things that are no files."""
    (data / "link.raw").symlink_to(outside)
    (data / "folder").symlink_to(outside.parent)
    (data / "round").symlink_to("round")
    os.mkfifo(data / "pipe.raw")
    (data / "null.raw").symlink_to("/dev/zero")
    return [
        str(outside),
        "../secret.raw",
        "./../secret.raw",
        "folder/secret.raw",
        "folder/data/../secret.raw",
        "link.raw",
        "round",
        "pipe.raw",
        "null.raw",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        f"file://{outside}",
        "..",
        ".",
        "a\0b",
        "x" * 5000,
        "~/secret.raw",
        "$HOME/secret.raw",
        f"{outside}|",
        f"|cat {outside}",
    ]


def refused(path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the message with which a file is refused, after checking that the secret was not opened on the way."""
    opened: list[str] = []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open":
            opened.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")

    watching = True
    sys.addaudithook(watch)  # cannot be removed: it looks at nothing once the flag is down
    try:
        with pytest.raises(MLArrayError) as caught, open_source(path) as source:
            source.read(source.spec.region)
    finally:
        watching = False
    real = {os.path.realpath(name) for name in opened if name and "\0" not in name}
    assert str(outside) not in real
    assert not real & {"/dev/zero", "/dev/stdin", "/proc/self/environ"}
    return str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
@pytest.mark.parametrize("number", range(21))
@pytest.mark.parametrize("kind", ["nrrd", "nrrd-list", "nrrd-pattern", "mhd", "mhd-list"])
def test_a_detached_header_reaches_nothing_outside_of_its_folder(
    outside: Path, data: Path, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = names(outside, data)[number]
    if kind == "nrrd":
        path = write_nrrd(data / "a.nhdr", NRRD_BASE | {"data file": name}, b"")
    elif kind == "nrrd-list":
        path = write_nrrd(data / "a.nhdr", NRRD_BASE, b"", keys=f"data file: LIST\n{name}\n")
    elif kind == "nrrd-pattern":
        path = write_nrrd(data / "a.nhdr", NRRD_BASE | {"data file": f"{name}%d 1 1 1"}, b"")
    elif kind == "mhd":
        path = write_meta(data / "a.mhd", META_BASE, b"", file=name)
    else:
        path = write_meta(data / "a.mhd", META_BASE, f"{name}\n".encode() * 4, file="LIST")
    assert len(refused(path, outside, monkeypatch)) < 1000


def test_one_function_decides_and_says_so(outside: Path, data: Path) -> None:
    with pytest.raises(FormatError, match="outside of the header's folder and is not read"):
        resolve_beside(data / "a.nhdr", "../secret.raw", expected_bytes=48)
    (data / "inside.raw").write_bytes(SECRET)
    assert resolve_beside(data / "a.nhdr", "inside.raw", expected_bytes=48) == data / "inside.raw"


def external_link(file: h5py.File, outside: Path) -> None:
    file["image"] = h5py.ExternalLink(str(outside), "/image")


def external_storage(file: h5py.File, outside: Path) -> None:
    file.create_dataset("image", (2, 4, 6), "u1", external=[(str(outside), 0, 48)])


def external_relative(file: h5py.File, outside: Path) -> None:
    file.create_dataset("image", (2, 4, 6), "u1", external=[("../secret.raw", 0, 48)])


def virtual(file: h5py.File, outside: Path) -> None:
    layout = h5py.VirtualLayout((2, 4, 6), "u1")
    layout[...] = h5py.VirtualSource(str(outside), "image", (2, 4, 6))
    file.create_virtual_dataset("image", layout)


def soft_to_external(file: h5py.File, outside: Path) -> None:
    file["there"] = h5py.ExternalLink(str(outside), "/")
    file["image"] = h5py.SoftLink("/there/image")


@pytest.mark.parametrize("make", [external_link, external_storage, external_relative, virtual, soft_to_external])
def test_hdf5_reaches_no_other_file(
    outside: Path, data: Path, make: Callable[[h5py.File, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(data / "a.h5", "w") as file:
        make(file, outside)
    for item in (None, "/image"):
        with pytest.raises(FormatError), open_source(data / "a.h5", item=item) as source:
            source.read(source.spec.region)


def test_groups_of_hdf5_that_contain_themselves_are_listed_once(data: Path) -> None:
    with h5py.File(data / "a.h5", "w") as file:
        group = file.create_group("a/b/c")
        group["again"] = file["a"]
        group["soft"] = h5py.SoftLink("/a/b/c/soft")
        file["a/image"] = np.zeros((2, 2, 2), np.uint8)
    assert [item.name for item in items_of(data / "a.h5")] == ["/a/image"]
    with pytest.raises(FormatError, match=r"circle.*MLARRAY_LIMIT_HDF5_LINKS"):
        open_source(data / "a.h5", item="/a/b/c/soft")


PATHS = ["../other.zarr/0", "/etc", "file:///etc", "..", "a/../../x", "s3://bucket/x", "0\0", "C:\\x", "", {"a": 1}, 7]


@pytest.mark.parametrize("where", PATHS)
def test_a_level_of_ome_zarr_lies_below_its_store(outside: Path, data: Path, where: object) -> None:
    write_image(outside.parent / "other.zarr", np.zeros((4, 4, 4), np.uint8), multiscale("zyx"))
    path = write_image(data / "a.zarr", np.zeros((4, 4, 4), np.uint8), multiscale("zyx"))
    document = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
    document["attributes"]["ome"]["multiscales"][0]["datasets"][0]["path"] = where
    (path / "zarr.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FormatError):
        open_source(path)


def test_references_of_kerchunk_are_no_store(outside: Path, data: Path) -> None:
    references = {"version": 1, "refs": {".zgroup": '{"zarr_format": 2}', "0/0.0.0": [str(outside), 0, 48]}}
    (data / "a.json").write_text(json.dumps(references), encoding="ascii")
    with pytest.raises(MLArrayError):
        open_source(data / "a.json")


def test_the_other_half_of_a_nifti_pair_stands_beside_it_only(outside: Path, data: Path) -> None:
    header = bytearray(348)
    header[:4] = (348).to_bytes(4, "little")
    header[40:48] = np.array([3, 4, 4, 3], "<i2").tobytes()
    header[70:74] = np.array([2, 8], "<i2").tobytes()
    header[344:348] = b"ni1\0"
    (data / "a.hdr").write_bytes(header)
    (data / "a.img").symlink_to(
        outside
    )  # the user's own link beside the header is followed as every path of the user's
    (data / "b.hdr").write_bytes(header)
    with pytest.raises(MLArrayError, match=r"b\.img"):
        open_source(data / "b.hdr")


def test_folders_that_contain_themselves_by_links_are_walked_once(data: Path) -> None:
    np.save(data / "a.npy", np.zeros((2, 2, 2)))
    (data / "loop").symlink_to(data)
    (data / "inner").mkdir()
    (data / "inner" / "up").symlink_to("..")
    found = discover(make_request(data, data.parent / "out"))
    assert [case.name for case in found.cases] == ["a"]
