"""TIFF files that were cut, lie, or were made to do harm: each is refused by name, before a voxel is read."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile

from mlarray.errors import FormatError
from mlarray.formats.registry import items_of, open_source
from mlarray.formats.tiff_library import load_decoder
from mlarray.formats.tiff_ome import DEEPEST, read_ome
from mlarray.limits import TIFF_TEXT_CHARACTERS
from tests.conformance.tiff_files import (
    BASE,
    LAYOUTS,
    cut_after_first_directory,
    first_directory,
    ome_set_xml,
    ome_xml,
    write_layout,
    write_ome_set,
)


def write_ome(folder: Path, xml: str) -> Path:
    path = folder / "a.ome.tif"
    tifffile.imwrite(path, BASE[:6], photometric="minisblack", description=xml, metadata=None)
    return path


# --- cut files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plain", "plain with a directory a page", "tiles", "bigtiff", "imagej", "ome", "strips"]
)
@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.9, 0.999])
def test_a_cut_file_is_refused_before_a_voxel_is_read(tmp_path: Path, name: str, part: float) -> None:
    path = write_layout(tmp_path, name)
    size = path.stat().st_size
    os.truncate(path, int(size * part))
    with pytest.raises(FormatError, match=f"{path.name}"):
        open_source(path)


def test_a_cut_file_names_what_is_needed_and_what_was_found(tmp_path: Path) -> None:
    path = write_layout(tmp_path, "imagej")
    cut_after_first_directory(path)
    os.truncate(path, path.stat().st_size - 5000)
    with pytest.raises(
        FormatError, match=rf"too short: .*7 planes \({BASE.nbytes} bytes\).*has {path.stat().st_size} bytes"
    ):
        open_source(path)
    plain = write_layout(tmp_path, "plain")
    os.truncate(plain, plain.stat().st_size - 100)
    with pytest.raises(FormatError, match=r"too short: \d+ bytes are needed for its directory \d, \d+ were found"):
        open_source(plain)


@pytest.mark.parametrize(
    "data", [b"", b"II", b"II*\0", b"II*\0\0\0\0\0", b"MM\0*\0\0\0\x08", b"II+\0\x08\0\0\0", b"II\x55\0\x08\0\0\0"]
)
def test_a_head_without_an_image_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.tif"):
        open_source(tmp_path / "a.tif")


@pytest.mark.parametrize("pages", [1, 3, 250])
def test_a_chain_of_directories_that_leads_back_is_refused(tmp_path: Path, pages: int) -> None:
    """A library that follows it never ends, or notices after a hundred pages."""
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        for _ in range(pages):
            writer.write(BASE[0, :2, :2], contiguous=False, metadata=None)
    with tifffile.TiffFile(path) as file:
        last = file.pages[pages - 1].offset
    data = bytearray(path.read_bytes())
    tags = struct.unpack_from("<H", data, last)[0]
    struct.pack_into("<I", data, last + 2 + 12 * tags, first_directory(path))
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"directory {pages} that leads back"):
        open_source(path)


def test_a_subdirectory_that_leads_to_its_parent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(BASE[0], subifds=1)
        writer.write(BASE[0, ::2, ::2], subfiletype=1)
    with tifffile.TiffFile(path) as file:
        tag = file.pages[0].tags[330]
        place = tag.valueoffset
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, place, first_directory(path))
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.tif is no TIFF file that can be read: maximum recursion depth"):
        open_source(path)


# --- damaged segments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiles", "lzw", "lzma", "zstd", "jpeg in tiles", "jpeg xl", "png", "packbits"])
def test_a_segment_that_cannot_be_decoded_is_named(tmp_path: Path, name: str) -> None:
    path = write_layout(tmp_path, name)
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        offset, count = page.dataoffsets[0], page.databytecounts[0]
    data = bytearray(path.read_bytes())
    data[offset : offset + count] = b"\x81" * count if name != "packbits" else b"\0" * count
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(FormatError, match=r"a\.tif is damaged: segment 0 of page 0"):
        source.read(source.spec.region)


def test_any_byte_that_changes_is_an_error_or_an_image_and_never_a_crash(tmp_path: Path) -> None:
    """1,000 single bytes of the headers of four files."""
    rng = np.random.default_rng(5)
    for name in ("imagej", "ome in tiles", "plain with a directory a page", "rgb in strips"):
        folder = tmp_path / name
        folder.mkdir()
        path = write_layout(folder, name)
        good = path.read_bytes()
        with tifffile.TiffFile(path) as file:
            heads = [(page.offset, page.offset + 300) for page in file.pages] + [(0, 600)]
        for _ in range(250):
            low, high = heads[rng.integers(len(heads))]
            data = bytearray(good)
            data[min(len(data) - 1, int(rng.integers(low, high)))] = rng.integers(256)
            path.write_bytes(data)
            try:
                items_of(path)
                with open_source(path) as source:
                    if source.spec.nbytes < 1 << 24:
                        source.read(source.spec.region)
            except FormatError:
                continue


# --- OME-XML of a stranger ----------------------------------------------------------------------------------------------

BOMB = "<!DOCTYPE o [" + "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(1, 9)) + ' <!ENTITY e1 "x">]>'
OUTSIDE = '<!DOCTYPE o [<!ENTITY e SYSTEM "file:///etc/hostname">]>'
ONE = '<TiffData IFD="0" PlaneCount="6"/>'


def sized(**sizes: object) -> str:
    order = sizes.pop("order", "XYZCT")
    given = {"X": 45, "Y": 34, "C": 2, "Z": 3, "T": 1} | sizes
    return " ".join(f'Size{axis}="{size}"' for axis, size in given.items()) + f' DimensionOrder="{order}"'


@pytest.mark.parametrize(
    ("xml", "words"),
    [
        (ome_xml(ONE, head=BOMB), "document type"),
        (ome_xml(ONE, head=OUTSIDE), "document type"),
        (ome_xml(ONE, tail="<a>" * (DEEPEST + 1) + "</a>" * (DEEPEST + 1)), "nested deeper"),
        (ome_xml(ONE, tail="<a>"), "cannot be read"),
        (ome_xml(ONE, pixels=sized(T=10**12)), "SizeT is 1000000000000"),
        (ome_xml(ONE, pixels=sized(T=10**6, Z=10**6)), "planes are named"),
        (ome_xml(ONE, pixels=sized(T=7)), "names 42 planes in its OME-XML, 6 were found"),
        (ome_xml(ONE, pixels=sized(Z=0)), "SizeZ is 0"),
        (ome_xml(ONE, pixels=sized(Z="many")), "cannot be read"),
        (ome_xml(ONE, pixels=sized(order="XYZZT")), "DimensionOrder"),
        (ome_xml(ONE, pixels='SizeX="45"'), "DimensionOrder"),
        (ome_xml('<TiffData IFD="0" PlaneCount="10000000000"/>'), "PlaneCount is 10000000000"),
        (ome_xml('<TiffData IFD="99" PlaneCount="1"/>'), "lacks plane|0 can be found"),
        (ome_xml('<TiffData IFD="0" FirstZ="3" PlaneCount="1"/>'), "FirstZ is 3"),
        (ome_xml('<TiffData IFD="0" FirstZ="1" PlaneCount="2"/>'), "lacks plane"),
        (ome_xml(""), "without an image"),
        (ome_xml(ONE, tail='<StructuredAnnotations><X><Y><Z><ModuloAlongZ Start="0" End="1e9" Step="1e-9"/></Z></Y></X>'
                           "</StructuredAnnotations>"), "ModuloAlongZ"),
        ('<OME UUID="u"><BinaryOnly MetadataFile="m.ome" UUID="v"/></OME>', "one part of an OME-TIFF data set"),
        ("<OME/><x/></OME>", "cannot be read"),
    ],
)  # fmt: skip
def test_xml_that_lies_or_attacks_is_refused(tmp_path: Path, xml: str, words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        open_source(write_ome(tmp_path, xml))
    assert "a.ome.tif" in caught.value.message
    assert len(caught.value.message) < 1000


def test_xml_that_does_not_end_is_told_and_not_kept(tmp_path: Path) -> None:
    with open_source(write_ome(tmp_path, ome_xml(ONE).replace("</OME>", "</OMX>"))) as source:
        (note,) = [note for note in source.info.notes if note.code == "metadata-unreadable"]
        assert "OME-XML does not end as it should" in note.message
        assert "ImageDescription" not in source.info.header


def test_xml_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"at most {TIFF_TEXT_CHARACTERS}"):
        read_ome(" " * (TIFF_TEXT_CHARACTERS + 1), tmp_path / "a.ome.tif")


@pytest.mark.parametrize(
    "name",
    ["../secret.ome.tif", "link.ome.tif", "/etc/hostname", "https://example.org/a.tif", "missing.ome.tif", ".", ""],
)
def test_a_set_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    channels, paths = write_ome_set(tmp_path)
    folder = tmp_path / "case"
    folder.mkdir()
    paths[1].rename(tmp_path / "secret.ome.tif")
    (folder / "link.ome.tif").symlink_to(tmp_path / "secret.ome.tif")
    xml = ome_set_xml(0, ("a.ome.tif", name))
    path = folder / "a.ome.tif"
    tifffile.imwrite(path, channels[0], photometric="minisblack", description=xml, metadata=None)
    with pytest.raises(FormatError, match=r"a\.ome\.tif names the data file"):
        open_source(path)


def test_a_file_of_a_set_that_was_cut_is_named(tmp_path: Path) -> None:
    _, paths = write_ome_set(tmp_path)
    os.truncate(paths[1], paths[1].stat().st_size - 300)
    with pytest.raises(FormatError, match=r"set_c1\.ome\.tif is too short"):
        open_source(paths[0])


# --- without imagecodecs ------------------------------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["imagecodecs"] = None
from mlarray import open_source
from mlarray.errors import MissingDependencyError
for path in sys.argv[1:]:
    try:
        with open_source(path) as source:
            source.read(source.spec.region)
            print("read")
    except MissingDependencyError as error:
        print(error)
"""


def test_without_imagecodecs_a_compression_that_needs_it_is_named_with_the_remedy(tmp_path: Path) -> None:
    paths = []
    for name in ("lzw", "jpeg", "tiles", "lzma", "plain", "one bit"):
        folder = tmp_path / name
        folder.mkdir()
        paths.append(str(write_layout(folder, name)))
    command = [sys.executable, "-W", "error", "-c", WITHOUT, *paths]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    lzw, jpeg, *others = result.stdout.splitlines()
    assert "compression LZW (5), which imagecodecs decodes" in lzw
    assert "pip install 'mlarray[tiff]'" in lzw
    assert "compression JPEG (7)" in jpeg
    assert others == ["read"] * 4
    assert result.stderr == ""


def test_without_imagecodecs_a_stream_that_grows_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    path = write_layout(tmp_path, "tiles")
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        decode = load_decoder(path, page.offset, page.treeindex, code=8, most_bytes=16 * 16 * 2)
    with pytest.raises(ValueError, match="expands to more than 512"):
        decode(zlib.compress(bytes(10_000_000)), 0)
    assert decode(zlib.compress(bytes(512)), 0)[0].shape == (1, 16, 16, 1)


def test_the_table_of_layouts_is_not_empty() -> None:
    assert len(LAYOUTS) > 50
