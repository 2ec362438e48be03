"""MINC 1 and 2: the files that nibabel ships as sources, scaling per slice, names of dimensions, damage."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest

from mlarray.errors import FormatError
from mlarray.formats.registry import open_source
from mlarray.sources.base import Access, NDArray, Source
from mlarray.testing.conformance import SHAPE, SourceConformance
from tests.conformance.text_header_files import load, names, notes

DATA = Path(nibabel.__file__).parent / "tests" / "data"


def write_minc2(
    path: Path,
    stored: NDArray,
    low: NDArray | float,
    high: NDArray | float,
    *,
    dimensions: str = "zspace,yspace,xspace",
    unit: str = "mm",
    valid: tuple[float, float] | None = None,
) -> Path:
    """Write a MINC 2 file; ``low`` and ``high`` are scalars or one number per slice of the first dimension."""
    with h5py.File(path, "w") as file:
        for name, extent in zip(dimensions.split(","), stored.shape, strict=True):
            place = file.create_dataset(f"minc-2.0/dimensions/{name}", data=0)
            place.attrs.update({"step": 2.0, "start": -10.0, "units": np.bytes_(unit), "length": extent})
            place.attrs["spacing"] = np.bytes_("regular__")
        image = file.create_dataset("minc-2.0/image/0/image", data=stored)
        image.attrs["dimorder"] = np.bytes_(dimensions)
        if valid is not None:
            image.attrs["valid_range"] = np.array(valid)
        for name, values in (("min", low), ("max", high)):
            end = file.create_dataset(f"minc-2.0/image/0/image-{name}", data=np.asarray(values, dtype=np.float64))
            if np.ndim(values):
                end.attrs["dimorder"] = np.bytes_(dimensions.split(",")[0])
    return path


class TestMinc1(SourceConformance):
    def make(self, folder: Path) -> Source:
        return open_source(DATA / "tiny.mnc")

    def expected(self) -> NDArray:
        return np.asanyarray(nibabel.load(DATA / "tiny.mnc").dataobj).astype(np.float32)


class TestMinc2OfFourAxes(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "a.mnc"  # HDF5 refuses to open one file with and without locks, which is how nibabel does it
        path.write_bytes((DATA / "minc2_4d.mnc").read_bytes())
        return open_source(path)

    def expected(self) -> NDArray:
        return np.asanyarray(nibabel.load(DATA / "minc2_4d.mnc").dataobj).astype(np.float32)


class TestMinc2OfWholeNumbers(SourceConformance):
    def make(self, folder: Path) -> Source:
        return open_source(write_minc2(folder / "a.mnc", self.expected(), -32768.0, 32767.0))


def test_each_slice_has_its_range_and_a_type_that_keeps_neighbours_apart(tmp_path: Path) -> None:
    stored = np.arange(np.prod(SHAPE), dtype=np.uint16).reshape(SHAPE)
    low, high = np.arange(7) * -1.5, np.arange(7) * 10.0 + 1
    path = write_minc2(tmp_path / "a.mnc", stored, low, high)
    array, source = load(path)
    source.close()
    expected = np.asanyarray(nibabel.load(path).dataobj)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, expected.astype(np.float32))
    np.testing.assert_allclose(array[3], stored[3] / 65535 * (31 + 4.5) - 4.5, rtol=1e-6)
    assert source.access is Access.REGION


def test_whole_numbers_stay_whole_numbers(tmp_path: Path) -> None:
    """Labels: a valid range that stands for itself."""
    stored = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    array, _ = load(write_minc2(tmp_path / "a.mnc", stored, 0.0, 255.0))
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, stored)


def test_numbers_outside_of_the_valid_range_are_limited_as_nibabel_does(tmp_path: Path) -> None:
    stored = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    path = write_minc2(tmp_path / "a.mnc", stored, 0.0, 1.0, valid=(4, 20))
    array, source = load(path)
    source.close()
    np.testing.assert_array_equal(array, np.asanyarray(nibabel.load(path).dataobj).astype(array.dtype))
    assert (array.min(), array.max()) == (0, 1)


def test_dimensions_are_axes_by_their_names(tmp_path: Path) -> None:
    stored = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    path = write_minc2(tmp_path / "a.mnc", stored, 0, 1, dimensions="xspace,time,zspace,yspace")
    array, source = load(path)
    assert names(source) == "tzyx"
    np.testing.assert_array_equal(array, stored.transpose(1, 2, 3, 0))
    geometry = source.spec.geometry
    assert geometry is not None
    assert geometry.world((0, 0, 0)) == (10, 10, -10)
    assert geometry.world((1, 2, 3)) == (10 - 6, 10 - 4, -10 + 2)


def test_units_of_length_become_millimetres(tmp_path: Path) -> None:
    stored = np.zeros((2, 3, 4), np.float32)
    _, source = load(write_minc2(tmp_path / "a.mnc", stored, 0, 1, unit="um"))
    assert source.spec.geometry is not None
    assert source.spec.geometry.spacing == pytest.approx((0.002,) * 3)
    assert notes(source) == {"unit-converted"}
    with pytest.raises(FormatError, match="parsec"):
        open_source(write_minc2(tmp_path / "b.mnc", stored, 0, 1, unit="parsec"))


@pytest.mark.parametrize("name", ["minc1-no-att.mnc", "minc2-no-att.mnc"])
def test_what_a_file_does_not_state_is_not_known(name: str) -> None:
    _, source = load(DATA / name)
    assert source.spec.geometry is not None
    assert source.spec.geometry.known == {"direction"}, "dimensions are named after the axes they run along"
    assert notes(source) == {"geometry-assumed"}


# --- damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny.mnc", "minc1_4d.mnc", "small.mnc", "minc2_4d.mnc"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.7, 0.98])
def test_cut_files_are_refused_before_a_voxel_is_read(tmp_path: Path, name: str, part: float) -> None:
    path = tmp_path / name
    path.write_bytes((DATA / name).read_bytes())
    os.truncate(path, int(path.stat().st_size * part))
    with pytest.raises(FormatError, match=name):
        open_source(path)


def test_an_hdf5_file_without_an_image_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.mnc", "w") as file:
        file["data"] = np.zeros(3)
    with pytest.raises(FormatError, match=r"a\.mnc is no MINC file"):
        open_source(tmp_path / "a.mnc")


def test_voxels_in_another_file_are_not_followed(tmp_path: Path) -> None:
    stored = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_minc2(tmp_path / "secret.h5", stored, 0, 255)
    (tmp_path / "secret.raw").write_bytes(bytes(24))
    for kind in ("link", "external", "virtual"):
        path = write_minc2(tmp_path / f"{kind}.mnc", stored, 0, 255)
        with h5py.File(path, "r+") as file:
            place = file["minc-2.0/image/0"]
            attributes = dict(place["image"].attrs)
            del place["image"]
            if kind == "link":
                place["image"] = h5py.ExternalLink("secret.h5", "minc-2.0/image/0/image")
            elif kind == "external":
                outside = [(str(tmp_path / "secret.raw"), 0, 24)]
                place.create_dataset("image", (2, 3, 4), "u1", external=outside).attrs.update(attributes)
            else:
                layout = h5py.VirtualLayout((2, 3, 4), "u1")
                layout[...] = h5py.VirtualSource(tmp_path / "secret.h5", "minc-2.0/image/0/image", (2, 3, 4))
                place.create_virtual_dataset("image", layout).attrs.update(attributes)
        with pytest.raises(FormatError, match="in another file, which is not read"):
            open_source(path)


def test_single_bytes_that_change_are_an_error_or_an_image(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    for name in ("tiny.mnc", "minc2_1_scale.mnc"):
        good = (DATA / name).read_bytes()
        path = tmp_path / name
        for _ in range(150):
            data = bytearray(good)
            data[int(rng.integers(0, 3000))] = rng.integers(256)
            path.write_bytes(data)
            try:
                with open_source(path) as source:
                    source.read(source.spec.region)
            except FormatError:
                continue
