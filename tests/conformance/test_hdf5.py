"""HDF5: what is read, what is refused and why."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from mlarray import Axis, Geometry, Region, open_source
from mlarray.errors import FormatError, MissingDependencyError
from mlarray.formats import hdf5
from mlarray.formats.registry import format_of, items_of
from mlarray.region import Region as Box
from mlarray.sources.base import Access, NDArray, Source
from mlarray.testing.conformance import SourceConformance

RAMP = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)


def written(path: Path, array: NDArray = RAMP, name: str = "/raw", attributes: Any = None, **options: Any) -> Path:
    """Write one dataset as another program would."""
    with h5py.File(path, "a", libver=("v108", "v110")) as file:
        dataset = file.create_dataset(name, data=array, **options)
        for key, value in (attributes or {}).items():
            dataset.attrs[key] = value
    return path


def codes(source: Source) -> set[str]:
    return {note.code for note in source.info.notes}


class TestContiguous(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "a.h5"
        return open_source(path if path.exists() else written(path, self.expected()))


class TestChunkedGzipBigEndian(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "a.h5"
        data = self.expected().astype(">i2")
        return open_source(path if path.exists() else written(path, data, chunks=(3, 4, 12), compression="gzip"))


class TestBlosc2(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "a.h5"
        return open_source(
            path if path.exists() else written(path, self.expected(), chunks=(7, 5, 5), **hdf5plugin.Blosc2())
        )


class TestBool(SourceConformance):
    def expected(self) -> NDArray:
        return super().expected() % 3 == 0

    def make(self, folder: Path) -> Source:
        path = folder / "a.h5"
        return open_source(path if path.exists() else written(path, self.expected(), chunks=(2, 5, 6)))


def random_patches(source: Source, seed: int) -> list[tuple[Box, int]]:
    """Read 200 patches of 8^3 and return where they are and a checksum of each."""
    rng = np.random.default_rng(seed)
    regions = [Region.at(rng.integers(0, 33, 3).tolist(), (8, 8, 8)) for _ in range(200)]
    return [(region, int(source.read(region).astype(np.int64).sum())) for region in regions]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_open_source_is_read_by_four_processes(tmp_path: Path, method: str) -> None:  # H5F-01
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    array = np.random.default_rng(0).integers(-1000, 1000, (40, 40, 40)).astype(np.int16)
    with open_source(written(tmp_path / "a.h5", array, chunks=(8, 8, 40), compression="gzip")) as source:
        source.read(source.spec.region)
        with ProcessPoolExecutor(4, multiprocessing.get_context(method)) as pool:
            found = [pair for pairs in pool.map(random_patches, [source] * 4, range(4)) for pair in pairs]
    assert len(found) == 800
    assert all(total == int(array[region.slices].astype(np.int64).sum()) for region, total in found)


def test_a_reader_neither_needs_a_lock_nor_stops_a_writer(tmp_path: Path) -> None:  # H5F-02
    path = written(tmp_path / "a.h5")
    code = f"import h5py; f = h5py.File({str(path)!r}, 'r+'); f['raw'][0, 0, 0] = 7; f.close()"
    environment = {name: value for name, value in os.environ.items() if name != "HDF5_USE_FILE_LOCKING"}
    with open_source(path) as source:
        source.read(source.spec.region)
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    with h5py.File(path, "r+") as writer:
        assert writer["raw"][0, 0, 0] == 7
        code = f"from mlarray import open_source; s = open_source({str(path)!r}); print(s.read(s.spec.region).sum())"
        read = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
        assert int(read.stdout) == int(RAMP.sum()) + 7


def test_a_file_in_a_read_only_folder_is_read(tmp_path: Path) -> None:  # H5F-02
    folder = tmp_path / "d"
    folder.mkdir()
    path = written(folder / "a.h5")
    path.chmod(0o444)
    folder.chmod(0o555)
    try:
        with open_source(path) as source:
            np.testing.assert_array_equal(source.read(source.spec.region), RAMP)
        assert [entry.name for entry in folder.iterdir()] == ["a.h5"]
    finally:
        folder.chmod(0o755)


def several(path: Path) -> Path:
    """The file of row H5F-03: two images in groups, a number, a text."""
    written(path, RAMP, "/a")
    written(path, RAMP.astype(np.float32) + 1, "/b/c")
    with h5py.File(path, "a") as file:
        file["meta"] = 3.0
        file["b/text"] = "hello"
        file["b/curve"] = np.arange(4)
        file["b/six"] = np.zeros((1,) * 6)
        file["b/names"] = np.array([[b"a", b"b"]])
        file["b/table"] = np.zeros((2, 2), [("a", "i2"), ("b", "f4")])
    return path


def test_several_datasets_are_listed_and_one_is_chosen(tmp_path: Path) -> None:  # H5F-03
    path = several(tmp_path / "a.h5")
    assert [(one.name, one.title) for one in items_of(path)] == [
        ("/a", "int16 3 x 4 x 5"),
        ("/b/c", "float32 3 x 4 x 5"),
    ]
    with pytest.raises(FormatError) as refused:
        open_source(path)
    for part in (str(path), "/a (int16 3 x 4 x 5)", "/b/c (float32 3 x 4 x 5)", "--item"):
        assert part in str(refused.value)
    for name in ("/b/c", "b/c"):
        with open_source(path, item=name) as source:
            assert source.info.item == "/b/c"
            np.testing.assert_array_equal(source.read(source.spec.region), RAMP.astype(np.float32) + 1)
    assert open_source(path, item="b/curve").spec.shape == (4,)
    for name, told in (("/meta", "single value"), ("/b/text", "no array of numbers"), ("/b/table", "no array of numbers"),
                       ("/b", r"no dataset '/b'; it has /a \(int16 3 x 4 x 5\), /b/c"), ("/z", "no dataset")):  # fmt: skip
        with pytest.raises(FormatError, match=told):
            open_source(path, item=name)


def test_the_only_image_is_used_and_its_axes_stay_unnamed(tmp_path: Path) -> None:  # H5F-03
    path = written(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file["meta"] = 3.0
    with open_source(path) as source:
        assert [axis.name for axis in source.spec.axes] == ["d0", "d1", "d2"]
        assert source.spec.geometry is None
        assert codes(source) == {"axes-unknown"}
        assert source.access is Access.REGION


def test_a_file_without_images_says_so(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["meta"] = 3.0
    with pytest.raises(FormatError, match="holds no image"):
        open_source(tmp_path / "a.h5")


def names(source: Source) -> str:
    return "".join(axis.name for axis in source.spec.axes)


def test_axes_are_those_of_the_dimension_labels(tmp_path: Path) -> None:  # H5F-03
    path = written(tmp_path / "a.h5", np.zeros((2, 3, 4, 5), np.uint8))
    with h5py.File(path, "a") as file:
        for dimension, label in zip(file["raw"].dims, "TZYX", strict=True):
            dimension.label = label
    with open_source(path) as source:
        assert names(source) == "tzyx"
        assert [axis.type for axis in source.spec.axes] == ["time", "space", "space", "space"]


def test_axes_are_those_of_vigra(tmp_path: Path) -> None:  # H5F-03
    tags = {"axes": [{"key": key, "typeFlags": 2, "resolution": 0, "description": ""} for key in "tzyxc"]}
    path = written(tmp_path / "a.h5", np.zeros((1, 2, 3, 4, 5)), attributes={"axistags": json.dumps(tags)})
    with open_source(path) as source:
        assert names(source) == "tzyxc"


@pytest.mark.parametrize("axes", ["zyx", json.dumps(["z", "y", "x"]), np.array([b"z", b"y", b"x"])])
def test_axes_may_be_letters_or_a_list(tmp_path: Path, axes: Any) -> None:
    with open_source(written(tmp_path / "a.h5", attributes={"axes": axes})) as source:
        assert names(source) == "zyx"


def test_element_sizes_are_micrometres_from_z_to_x(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", attributes={"element_size_um": [2.0, 0.5, 0.25]})
    with open_source(path) as source:
        assert names(source) == "zyx"
        assert source.spec.geometry == Geometry.from_parts(spacing=(0.002, 0.0005, 0.00025))
        assert source.spec.geometry.known == {"spacing"}
        assert source.info.notes == ()


def test_element_sizes_follow_named_axes(tmp_path: Path) -> None:
    attributes = {"element_size_um": [2.0, 0.5, 0.25], "axes": "cxyz"}
    with open_source(written(tmp_path / "a.h5", np.zeros((2, 3, 4, 5)), attributes=attributes)) as source:
        assert source.spec.geometry is not None
        assert source.spec.geometry.spacing == (0.00025, 0.0005, 0.002)


def test_a_spacing_is_taken_as_millimetres_with_a_note(tmp_path: Path) -> None:
    with open_source(written(tmp_path / "a.h5", attributes={"spacing": [3.0, 1.0, 2.0]})) as source:
        assert source.spec.geometry == Geometry.from_parts(spacing=(3, 1, 2))
        assert codes(source) == {"spacing-assumed", "axes-unknown"}


def test_scale_and_translation_need_units(tmp_path: Path) -> None:
    axes = [{"name": "t", "type": "time", "unit": "s"}] + [
        {"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"
    ]
    given = {"axes": json.dumps(axes), "scale": [1.0, 2.0, 0.5, 0.25], "translation": [0.0, 1000.0, 0.0, 5.0]}
    array = np.zeros((1, 2, 3, 4))
    with open_source(written(tmp_path / "a.h5", array, attributes=given)) as source:
        assert source.spec.axes == (Axis("t", unit="second"), *(Axis(name, unit="millimeter") for name in "zyx"))
        assert source.spec.geometry is not None
        np.testing.assert_allclose(source.spec.geometry.spacing, (0.002, 0.0005, 0.00025), rtol=1e-12)
        np.testing.assert_allclose(source.spec.geometry.origin, (1.0, 0.0, 0.005), rtol=1e-12)
    with open_source(written(tmp_path / "b.h5", array, attributes=given | {"axes": "tzyx"})) as source:
        assert source.spec.geometry is None
        assert "spacing-unknown" in codes(source)


@pytest.mark.parametrize("spacing", [[0.0, 1, 1], [-1.0, 1, 1], [float("nan"), 1, 1], [1.0, 1], "1 1 1", [[1.0, 1, 1]]])
def test_a_spacing_that_cannot_be_is_told_and_not_used(tmp_path: Path, spacing: Any) -> None:
    with open_source(written(tmp_path / "a.h5", attributes={"spacing": spacing})) as source:
        assert source.spec.geometry is None
        assert codes(source) == {"spacing-unknown", "axes-unknown"}


@pytest.mark.parametrize("axes", ["zzx", "{", "[1, 2, 3]", '{"a": 1}', "zy", '[{"name": "z", "odd": 1}, "y", "x"]'])
def test_names_of_axes_that_cannot_be_used_are_left_out(tmp_path: Path, axes: str) -> None:
    with open_source(written(tmp_path / "a.h5", attributes={"axes": axes})) as source:
        assert names(source) in ("d0d1d2", "zyx")
        np.testing.assert_array_equal(source.read(source.spec.region), RAMP)


def test_other_attributes_are_kept_as_plain_values(tmp_path: Path) -> None:
    given = {
        "Modality": "CT",
        "bytes": np.bytes_(b"\xe9"),
        "table": np.eye(2),
        "scale_factor": 2.0,
        "big": np.zeros(9000),
    }
    path = written(tmp_path / "a.h5", attributes=given)
    with h5py.File(path, "a") as file:
        file["raw"].attrs["ref"] = file["raw"].ref
    with open_source(path) as source:
        assert source.info.header == {
            "Modality": "CT",
            "bytes": "\ufffd",
            "table": [[1.0, 0.0], [0.0, 1.0]],
            "scale_factor": 2.0,
        }
        assert codes(source) == {"axes-unknown", "scaling-ignored", "attributes-skipped"}


def test_a_patch_decodes_every_chunk_once(tmp_path: Path) -> None:  # H5F-04
    array = np.random.default_rng(0).integers(0, 9, (64, 64, 64)).astype(np.int16)
    path = written(tmp_path / "a.h5", array, chunks=(64, 64, 1), compression="gzip")
    with open_source(path) as source:
        assert isinstance(source, hdf5.Hdf5Source)
        region = Region((8, 8, 8), (24, 24, 24))
        np.testing.assert_array_equal(source.read(region), array[region.slices])
        path.write_bytes(path.read_bytes()[:4096])  # what is read now comes from the cache
        np.testing.assert_array_equal(source.read(region), array[region.slices])
        assert source.held_bytes >= 16 * 1024 * 1024
        source.resize_cache(0)
        assert source.held_bytes == 4 * 64 * 64 * 2


@pytest.mark.parametrize("cut", [4, 100, 3000])
def test_a_file_that_was_cut_is_refused_by_name(tmp_path: Path, cut: int) -> None:  # H5F-05
    path = written(tmp_path / "a.h5", np.zeros((30, 30, 30), np.int16))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(FormatError) as refused:
        open_source(path)
    for part in (str(path), f"should have {len(whole)} bytes and has {len(whole) - cut}"):
        assert part in str(refused.value)


def test_chunks_that_nobody_wrote_are_refused(tmp_path: Path) -> None:  # H5F-05
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("raw", (8, 8, 8), "i2", chunks=(4, 4, 4))
        dataset[:4] = 1
    with pytest.raises(FormatError, match="4 of 8 chunks of /raw were never written"):
        open_source(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("raw", (8, 8, 8), "i2")
    with pytest.raises(FormatError, match="1 of 1 chunks"):
        open_source(tmp_path / "b.h5")


def test_a_stated_fill_value_stands_for_chunks_that_were_left_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", (8, 8, 8), "i2", chunks=(4, 4, 4), fillvalue=-5)[:4] = 1
    with open_source(tmp_path / "a.h5") as source:
        assert codes(source) == {"axes-unknown", "chunks-unwritten"}
        assert np.unique(source.read(source.spec.region)).tolist() == [-5, 1]


@pytest.mark.parametrize("content", [b"", b"no HDF5", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(5000)])
def test_what_is_no_hdf5_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.h5"):
        open_source(path)


def test_every_damaged_byte_is_an_error_that_names_the_file_or_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", RAMP, chunks=(2, 2, 5), compression="gzip", fletcher32=True)
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    told = []
    for position in rng.integers(0, len(whole), 150).tolist():
        broken = bytearray(whole)
        broken[position] ^= 0xFF
        path.write_bytes(bytes(broken))
        try:
            with open_source(path) as source:
                source.read(source.spec.region)
        except (FormatError, MissingDependencyError) as error:
            told.append(str(error))
    assert len(told) > 20
    assert [line for line in told if "a.h5" not in line] == []


def test_a_file_whose_writer_has_not_ended_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    code = (
        "import h5py, os, numpy as np\n"
        f"f = h5py.File({str(path)!r}, 'w', libver='latest')\n"
        "f['raw'] = np.ones((4, 4)); f.flush(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(FormatError, match=r"a\.h5.*writer did not end"):
        open_source(path)


def outside(folder: Path) -> Path:
    return written(folder / "secret.h5", RAMP, "/raw")


def external_link(file: h5py.File, folder: Path) -> str:
    file["link"] = h5py.ExternalLink(str(outside(folder)), "/raw")
    return "/link"


def external_group(file: h5py.File, folder: Path) -> str:
    file["link"] = h5py.ExternalLink(str(outside(folder)), "/")
    return "/link/raw"


def soft_link_to_external(file: h5py.File, folder: Path) -> str:
    file["group/ext"] = h5py.ExternalLink(str(outside(folder)), "/raw")
    file["soft"] = h5py.SoftLink("group/ext")
    return "/soft"


def external_storage(file: h5py.File, folder: Path) -> str:
    (folder / "secret.raw").write_bytes(RAMP.tobytes())
    file.create_dataset("raw", RAMP.shape, "i2", external=[(str(folder / "secret.raw"), 0, RAMP.nbytes)])
    return "/raw"


def virtual_of_another_file(file: h5py.File, folder: Path) -> str:
    layout = h5py.VirtualLayout(RAMP.shape, "i2")
    layout[...] = h5py.VirtualSource(str(outside(folder)), "/raw", RAMP.shape)
    file.create_virtual_dataset("raw", layout)
    return "/raw"


def virtual_of_external_storage(file: h5py.File, folder: Path) -> str:
    layout = h5py.VirtualLayout(RAMP.shape, "i2")
    layout[...] = h5py.VirtualSource(file[external_storage(file, folder)])
    file.create_virtual_dataset("view", layout)
    return "/view"


def virtual_of_an_external_link(file: h5py.File, folder: Path) -> str:
    layout = h5py.VirtualLayout(RAMP.shape, "i2")
    layout[...] = h5py.VirtualSource(".", external_link(file, folder), RAMP.shape)
    file.create_virtual_dataset("view", layout)
    return "/view"


@pytest.mark.parametrize(
    "make",
    [
        external_link,
        external_group,
        soft_link_to_external,
        external_storage,
        virtual_of_another_file,
        virtual_of_external_storage,
        virtual_of_an_external_link,
    ],
)
def test_nothing_but_the_named_file_is_opened(tmp_path: Path, make: Callable[[h5py.File, Path], str]) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        name = make(file, tmp_path)
    for secret in tmp_path.glob("secret.*"):
        secret.unlink()
        os.mkfifo(secret)  # who opens a pipe that nobody writes waits for ever
    code = (
        "from mlarray import open_source\nfrom mlarray.errors import FormatError\n"
        f"for item in ({name!r}, None):\n"
        f"    try:\n        open_source({str(path)!r}, item=item)\n"
        "    except FormatError as error:\n        print(error)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    named, listed = process.stdout.splitlines()
    assert "a.h5" in named
    assert "other file" in named or "another file" in named
    assert "a.h5" in listed


def test_links_and_views_within_the_file_are_followed(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", RAMP, "/g/raw")
    with h5py.File(path, "a") as file:
        file["soft"] = h5py.SoftLink("/g/raw")
        file["again"] = file["g/raw"]
        file["g/loop"] = file["/"]
        layout = h5py.VirtualLayout((2, *RAMP.shape), "i2")
        layout[0] = layout[1] = h5py.VirtualSource(file["g/raw"])
        file.create_virtual_dataset("view", layout)
        file["circle"] = h5py.SoftLink("/circle")
    assert [one.name for one in items_of(path)] == ["/again", "/view"]
    for name in ("soft", "/g/raw", "/again", "/g/loop/g/raw"):
        with open_source(path, item=name) as source:
            np.testing.assert_array_equal(source.read(source.spec.region), RAMP)
    with open_source(path, item="view") as source:
        np.testing.assert_array_equal(source.read(source.spec.region), np.stack([RAMP, RAMP]))
    with pytest.raises(FormatError, match="circle"):
        open_source(path, item="circle")


def test_a_filter_that_is_not_installed_is_named_with_its_package(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", RAMP, chunks=(3, 4, 5), **hdf5plugin.Blosc2())
    code = (
        "import sys; sys.modules['hdf5plugin'] = None\n"
        "from mlarray import open_source\nfrom mlarray.errors import MissingDependencyError\n"
        f"try:\n    open_source({str(path)!r})\n"
        "except MissingDependencyError as error:\n    print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for part in (str(path), "/raw is compressed with Blosc2 (HDF5 filter 32026)", "pip install mlarray[hdf5plugin]"):
        assert part in told


def test_an_unknown_filter_is_named_by_its_number(tmp_path: Path) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((3, 4, 5))
    plist.set_filter(40000, h5py.h5z.FLAG_OPTIONAL, ())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple(RAMP.shape)
        h5py.h5d.create(file.id, b"raw", h5py.h5t.NATIVE_INT16, space, plist).write_direct_chunk(
            (0, 0, 0), RAMP.tobytes()
        )
    with pytest.raises(MissingDependencyError, match="HDF5 filter 40000"):
        open_source(tmp_path / "a.h5")


def test_minc_is_not_read_as_plain_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", RAMP, "/minc-2.0/image/0/image")
    with pytest.raises(FormatError, match="MINC 2"):
        open_source(path)


def test_a_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    assert format_of(written(tmp_path / "volume")).name == "hdf5"


@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", "f4", "f8", "c8", "c16", ">f8", ">u2"])
def test_every_type_of_number_is_read(tmp_path: Path, dtype: str) -> None:
    array = (RAMP % 2 == 0) if dtype == "?" else RAMP.astype(dtype)
    with open_source(written(tmp_path / "a.h5", array)) as source:
        assert source.spec.dtype == np.dtype(dtype).newbyteorder("=")
        np.testing.assert_array_equal(source.read(source.spec.region), array)


def test_two_sources_of_one_file_are_apart(tmp_path: Path) -> None:
    path = several(tmp_path / "a.h5")
    first, second = open_source(path, item="/a"), open_source(path, item="/b/c")
    whole = first.spec.region
    first.read(whole)
    second.read(whole)
    first.close()
    np.testing.assert_array_equal(second.read(whole), RAMP.astype(np.float32) + 1)
    second.close()


def test_a_dataset_that_was_replaced_while_in_use_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    source = open_source(path)
    path.unlink()
    written(path, np.zeros((9, 9)))
    with pytest.raises(FormatError, match="replaced by another dataset"):
        source.read(source.spec.region)


def test_an_enumeration_is_read_as_its_numbers(tmp_path: Path) -> None:
    kind = h5py.enum_dtype({"none": 0, "liver": 1}, "u1")
    with open_source(written(tmp_path / "a.h5", (RAMP % 2).astype(kind))) as source:
        assert source.spec.dtype == np.uint8


def test_a_file_without_an_image_says_why_each_dataset_is_none(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["curve"] = np.arange(5.0)
        file["g/six"] = np.zeros((1, 2, 1, 2, 1, 2))
        file["g/zero"] = np.zeros((0, 4, 5))
        file["none"] = h5py.Empty("f")
        file["one"] = 3.0
        file["text"] = "hello"
    told = r"/curve \(1 axis\), /none \(empty\), /one \(a single value\), /text \(no numbers\), /g/six \(6 axes\), "
    told += r"/g/zero \(0 x 4 x 5, no voxel\)"
    with pytest.raises(FormatError, match=rf"holds no image: {told}\. .*--item NAME"):
        open_source(tmp_path / "a.h5")
    with pytest.raises(FormatError, match=rf"holds no dataset '/x'; it has {told}"):
        open_source(tmp_path / "a.h5", item="/x")
