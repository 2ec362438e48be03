"""HDF5: what is written, read by h5py alone and by us; nothing is lost on the way from .mla and back."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np
import pytest

from mlarray import Axis, Geometry, Meta, MLArray, open_source
from mlarray.errors import DTypeError, UsageError
from mlarray.formats import hdf5
from mlarray.sources.base import NDArray, Sink, SinkOptions, Source, SourceInfo
from mlarray.sources.copy import copy
from mlarray.sources.memory import ArraySource
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec
from mlarray.storage.publish import is_part
from mlarray.testing.conformance import SinkConformance, SourceConformance
from mlarray_convert import convert
from mlarray_convert.report import ExitCode

AFFINE = np.array([[0.0, 0.1, 2.0, -7.0], [0.0, 1.5, -0.2, 11.0], [3.0, 0.3, 0.1, 5.5], [0, 0, 0, 1]])


def stored(path: Path, array: NDArray, spec: ArraySpec | None = None, **options: Any) -> Path:
    """Write ``array`` through the sink."""
    source = ArraySource(array, spec)
    info = options.pop("info", SourceInfo())
    sink = hdf5.open_sink(path, source.spec, info, SinkOptions(**options))
    copy(source, sink, plan_tiles(source.spec, sink.chunks, access=sink.access, order=sink.order))
    sink.publish()
    return path


def with_h5py(path: Path, name: str = "image") -> NDArray:
    with h5py.File(path, "r") as file:
        return np.asarray(file[name][...])


class TestSink(SinkConformance):
    suffix = ".h5"
    storage: dict[str, object] = {"patch_size": (2, 3, 4)}  # noqa: RUF012  a constant of the test class

    def make(self, path: Path, spec: ArraySpec) -> Sink:
        return hdf5.open_sink(path, spec, SourceInfo(), SinkOptions(storage=self.storage))

    def stored(self, path: Path) -> NDArray:
        return with_h5py(path)


class TestSinkOfBlosc2(TestSink):
    storage = {"patch_size": 4, "codec": "blosc2"}  # noqa: RUF012


class TestSinkWithoutCompression(TestSink):
    storage = {"patch_size": 4, "codec": "none"}  # noqa: RUF012


class TestSinkOfZlib(TestSink):
    storage = {"patch_size": 4, "codec": "gzip-9"}  # noqa: RUF012


class TestOurOwnFile(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "a.h5"
        return open_source(path if path.exists() else stored(path, self.expected(), storage={"patch_size": 3}))


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "<i4", ">i4", "u8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("codec", ["gzip", "gzip-6", "blosc2", "none"])
@pytest.mark.parametrize("threads", [1, 3])
def test_slices_of_h5py_are_those_of_the_array(tmp_path: Path, dtype: str, codec: str, threads: int) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 100, (9, 11, 13)).astype(dtype)
    path = stored(
        tmp_path / "a.h5",
        array,
        storage={"codec": codec, "chunk_size": (4, 5, 6), "block_size": (4, 5, 6), "patch_size": None},
        threads=threads,
    )
    with h5py.File(path, "r") as file:
        dataset = file["image"]
        assert dataset.chunks == (4, 5, 6)
        assert dataset.dtype == array.dtype.newbyteorder("<")
        for index in (np.s_[:], np.s_[3], np.s_[-1, :, 2:9:3], np.s_[2:8, 3:4, ::5], np.s_[8, 10, 12], np.s_[..., 0]):
            np.testing.assert_array_equal(dataset[index], array[index])
        compression = {"gzip": "gzip", "gzip-6": "gzip", "blosc2": "unknown", "none": None}[codec]
        assert dataset.compression == compression
        assert dataset.fletcher32 == (codec == "none")


def test_chunks_are_those_of_the_patch_evened_out(tmp_path: Path) -> None:
    array = np.zeros((191, 167, 233), np.int16)
    with h5py.File(stored(tmp_path / "a.h5", array, storage={"patch_size": 192}), "r") as file:
        assert file["image"].chunks == (96, 84, 117)
    with h5py.File(
        stored(
            tmp_path / "b.h5",
            array,
            storage={"chunk_size": (50, 167, 200), "block_size": (50, 20, 20), "patch_size": None},
        ),
        "r",
    ) as file:
        assert file["image"].chunks == (50, 167, 200)
    # Stored in one piece, 3.4 times as much would be written without evening out.
    assert stored(tmp_path / "c.h5", array, storage={"codec": "none"}).stat().st_size < 1.05 * array.nbytes


def test_regions_that_cut_chunks_are_stored_too(tmp_path: Path) -> None:
    array = np.arange(7 * 8 * 9, dtype=np.int32).reshape(7, 8, 9)
    spec = ArraySpec(array.shape, array.dtype)
    sink = hdf5.open_sink(
        tmp_path / "a.h5",
        spec,
        SourceInfo(),
        SinkOptions(storage={"chunk_size": (4, 4, 4), "block_size": 4, "patch_size": None}),
    )
    for region in spec.region.split(0, 3):
        sink.write(region, array[region.slices])
    sink.publish()
    np.testing.assert_array_equal(with_h5py(tmp_path / "a.h5"), array)


@pytest.mark.parametrize("codec", ["lzma", "gzip-0", "gzip-12", "none-3", "", 3, "blosc2-"])
def test_a_codec_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, codec: object) -> None:
    with pytest.raises(UsageError, match="gzip, blosc2 or none"):
        stored(tmp_path / "a.h5", np.zeros((3, 3)), storage={"codec": codec})
    assert list(tmp_path.iterdir()) == []


def test_blosc2_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['hdf5plugin'] = None\n"
        "import numpy as np; from mlarray.formats.hdf5_write import chosen_codec\n"
        "try:\n    chosen_codec({'codec': 'blosc2'})\nexcept ImportError as error:\n    print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install mlarray[hdf5plugin]" in told


def test_geometry_and_axes_stand_in_readable_attributes(tmp_path: Path) -> None:
    axes = (Axis("t", unit="second", step=2.5), *(Axis(name, unit="millimeter") for name in "zyx"))
    geometry = Geometry.from_parts(spacing=(3, 0.5, 0.25), origin=(7, 8, 9), coord_system="LPS")
    array = np.zeros((2, 3, 4, 5), np.uint8)
    spec = ArraySpec(array.shape, array.dtype, axes, geometry)
    with h5py.File(stored(tmp_path / "a.h5", array, spec, info=SourceInfo(is_seg=True)), "r") as file:
        attributes = file["image"].attrs
        assert [dimension.label for dimension in file["image"].dims] == ["t", "z", "y", "x"]
        assert json.loads(attributes["axes"])[0] == {"name": "t", "type": "time", "unit": "second", "step": 2.5}
        assert attributes["spacing"].tolist() == [3.0, 0.5, 0.25]
        assert attributes["element_size_um"].tolist() == [3000.0, 500.0, 250.0]
        assert attributes["origin"].tolist() == [7.0, 8.0, 9.0]
        assert attributes["coord_system"] == "LPS"
        assert bool(attributes["is_seg"]) is True
        assert "direction" not in attributes  # nobody stated it


@pytest.mark.parametrize(
    "geometry",
    [
        None,
        Geometry(AFFINE, "LPS"),
        Geometry(AFFINE + np.pad(np.eye(3) * 1e-9, (0, 1)), "RAS"),
        Geometry.from_parts(spacing=(0.1, 1 / 3, 2e-7)),
        Geometry.from_parts(origin=(1e9, -0.0, 3), coord_system="a frame"),
    ],
)
def test_the_spec_comes_back_as_it_was(tmp_path: Path, geometry: Geometry | None) -> None:
    array = np.zeros((2, 3, 4), np.float32)
    axes = (Axis("höhe", "space", "millimeter"), Axis("y"), Axis("x"))
    spec = ArraySpec(array.shape, array.dtype, axes, geometry)
    mla = MLArray.from_source(ArraySource(array, spec))
    mla.save(tmp_path / "a.mla")
    with open_source(tmp_path / "a.mla") as source, open_source(stored(tmp_path / "a.h5", array, spec)) as again:
        assert again.spec == source.spec
        assert again.spec.axes == axes
        assert again.info.notes == ()


def test_mla_to_hdf5_to_mla_keeps_everything(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    array = rng.integers(-9, 9, (2, 6, 7, 8)).astype(np.float32)
    array[0, 0, 0, 0] = np.nan
    meta = Meta(
        source={"Modality": "CT", "slope": float("inf"), "raw": b"\x00\xff", "pair": (1, 2), "text": "ü\0\ud800"},
        extra={"who": {"deep": [1, None, {"__mla__": "x", "value": 3}]}, "big": "x" * 200_000},
        is_seg=False,
    )
    first = MLArray(array, axes="czyx", spacing=(3, 0.7, 0.7), origin=(1, 2, 3), meta=meta)
    first.meta.spatial.coord_system = "LPS"
    first.save(tmp_path / "a.mla")
    assert convert(tmp_path / "a.mla", tmp_path / "b.h5").exit_code is ExitCode.OK
    assert convert(tmp_path / "b.h5", tmp_path / "c.mla", verify="full").exit_code is ExitCode.OK
    np.testing.assert_array_equal(with_h5py(tmp_path / "b.h5"), array)
    with MLArray.open(tmp_path / "a.mla") as before, MLArray.open(tmp_path / "c.mla") as after:
        np.testing.assert_array_equal(before[...], after[...])
        one, other = before.meta.to_mapping(), after.meta.to_mapping()
        for each in (one, other):
            each.pop("_image_meta_format", None), each.pop("blosc2", None)
        assert one == other
    with open_source(tmp_path / "a.mla") as before, open_source(tmp_path / "c.mla") as after:
        assert before.spec == after.spec
        assert after.info.meta.source == before.info.meta.source  # type: ignore[attr-defined]


def test_nifti_to_hdf5_keeps_the_place_of_every_voxel(tmp_path: Path) -> None:
    array = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)
    affine = nib.affines.from_matvec(np.diag([-2.0, 1.0, 3.0]) @ nib.eulerangles.euler2mat(0.2, 0.1, 0.3), [5, -6, 7])
    nib.save(nib.Nifti1Image(array, affine), tmp_path / "a.nii")
    assert convert(tmp_path / "a.nii", tmp_path / "a.h5").exit_code is ExitCode.OK
    with h5py.File(tmp_path / "a.h5") as file:
        dataset = file["image"]
        attributes = {name: dataset.attrs[name] for name in ("spacing", "origin", "direction", "coord_system")}
        for index in ((0, 0, 0), (5, 4, 3), (2, 1, 3)):
            place = attributes["direction"] @ (attributes["spacing"] * index) + attributes["origin"]
            x, y, z = np.argwhere(array == dataset[index])[0]
            np.testing.assert_allclose(place * [-1, -1, 1], (affine @ [x, y, z, 1])[:3], atol=1e-4)
        assert attributes["coord_system"] == "LPS"
    assert convert(tmp_path / "a.h5", tmp_path / "b.nii", verify="full").exit_code is ExitCode.OK
    back = nib.load(tmp_path / "b.nii")
    np.testing.assert_array_equal(np.asarray(back.dataobj), array)
    np.testing.assert_allclose(back.affine, affine, atol=1e-5)


def test_a_dataset_gets_the_name_that_is_asked_for(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4)), tmp_path / "a.nii")
    assert convert(tmp_path / "a.nii", tmp_path / "a.h5", item="group/ct").exit_code is ExitCode.OK
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["group/ct"].shape == (5, 4, 3)
    again = convert(tmp_path / "a.nii", tmp_path / "a.h5", item="group/ct")
    assert again.outcomes[0].reason == "up to date"
    other = convert(tmp_path / "a.nii", tmp_path / "a.h5")
    assert other.outcomes[0].reason == "converted again: other settings than before"
    report = convert(tmp_path / "a.nii", tmp_path / "c.h5", item="a/./b")
    assert report.exit_code is ExitCode.ALL_FAILED
    assert "no name of a dataset" in report.outcomes[0].reason


def test_the_codec_is_an_option_of_the_converter(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(np.zeros((30, 40, 50), np.int16), np.eye(4)), tmp_path / "a.nii")
    assert convert(tmp_path / "a.nii", tmp_path / "a.h5", codec="Blosc2-3", patch_size=16).exit_code is ExitCode.OK
    with h5py.File(tmp_path / "a.h5") as file:
        assert list(file["image"]._filters) == ["32026"]
    assert (
        convert(tmp_path / "a.nii", tmp_path / "a.h5", patch_size=16).outcomes[0].reason.startswith("converted again")
    )
    with pytest.raises(UsageError, match="not written with the codec 'gzip'; it has no choice"):
        convert(tmp_path / "a.nii", tmp_path / "a.mla", codec="gzip")
    with pytest.raises(UsageError, match="it has gzip, blosc2, none"):
        convert(tmp_path / "a.nii", tmp_path / "a.h5", codec="zstd")


def test_a_damaged_chunk_is_found_by_verify(tmp_path: Path) -> None:
    from mlarray_convert.verify import check_file

    array = np.random.default_rng(0).integers(0, 255, (20, 30, 40)).astype(np.uint8)
    for codec in ("gzip", "none"):
        path = stored(
            tmp_path / f"{codec}.h5",
            array,
            storage={"codec": codec, "chunk_size": (10, 30, 40), "block_size": 10, "patch_size": None},
        )
        assert check_file(path).ok
        with h5py.File(path) as file:
            place = file["image"].id.get_chunk_info(1).byte_offset
        broken = bytearray(path.read_bytes())
        broken[place + 5000] ^= 1
        path.write_bytes(bytes(broken))
        assert str(path) in check_file(path).problems[0]


@pytest.mark.parametrize(("shape", "dtype"), [((0, 3), "i2"), ((), "f4"), ((2, 2), "longdouble")])
def test_what_it_cannot_hold_is_refused(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises((UsageError, DTypeError)):
        hdf5.losses(ArraySpec(shape, np.dtype(dtype)), SourceInfo())


def test_damaged_metadata_costs_the_metadata_only(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    for number, text in enumerate(("{", "[]", '{"meta": 3}', "[" * 100_000)):
        path = stored(tmp_path / f"{number}.h5", array)
        with h5py.File(path, "r+") as file:
            file["image"].attrs["mla_metadata"] = text
            file["image"].attrs["mla_record"] = text
        with open_source(path) as source:
            np.testing.assert_array_equal(source.read(source.spec.region), array)
            assert "metadata-unreadable" in {note.code for note in source.info.notes}


def test_a_stopped_writer_leaves_no_file_under_the_final_name(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; import numpy as np\n"
        "from mlarray.formats import hdf5; from mlarray.spec import ArraySpec\n"
        "from mlarray.sources.base import SinkOptions, SourceInfo\n"
        "spec = ArraySpec((8, 8), np.dtype('i2'))\n"
        f"sink = hdf5.open_sink(Path({str(tmp_path / 'a.h5')!r}), spec, SourceInfo(), SinkOptions())\n"
        "sink.write(spec.region, np.ones((8, 8), 'i2')); sink._file.flush(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = tmp_path.iterdir()
    assert is_part(left.name)
