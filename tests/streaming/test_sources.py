"""Patches of one chain from every format: the same voxels, and only the part of the file that a patch needs."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import FormatError, UsageError
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source
from mlarray.streaming import Plan, plan, volume_source
from mlarray.testing.transforms import source_of
from mlarray_convert import convert
from tests.conformance.dicom_files import stack

VOXELS = np.random.default_rng(2).integers(-1000, 2000, (40, 64, 72)).astype(np.int16)
CHAIN = [T.Flip("0|2"), T.Gradient(), T.Clip(-500, 500)]


def made(folder: Path, kind: str) -> tuple[Path | str, str | None]:
    """Write the voxels and return what opens them: a path, and an item."""
    place = folder / {"hdf5": "a.h5", "dicom": "series", "ome-zarr": "a.ome.zarr"}.get(kind, f"a.{kind}")
    if kind == "hdf5":
        with h5py.File(place, "w") as file:
            file.create_dataset("CT/case 1", data=VOXELS, chunks=(8, 16, 16), compression="gzip")
            file.create_dataset("CT/case 2", data=VOXELS + 1)
        return place, "/CT/case 1"
    if kind == "dicom":
        slices = tuple(VOXELS)
        stack(place, [2.0 * k for k in range(len(slices))], array=slices, PixelSpacing=[1.0, 1.0])
    elif kind == "npy":
        np.save(place, VOXELS)
    elif kind in ("nii", "nii.gz"):
        nib.save(nib.Nifti1Image(VOXELS.T, np.diag([1.0, 1.0, 2.0, 1.0])), place)
    elif kind in ("mha", "mhd", "nrrd"):
        itk_image(place, compressed=False)
    else:
        first = folder / "first.mla"
        MLArray(VOXELS, axes="zyx", spacing=(2, 1, 1), patch_size=8).save(first)
        if kind == "mla":
            return first, None
        convert(first, place, workers=1, storage={"chunk_size": 16})
    return place, None


def itk_image(place: Path, *, compressed: bool) -> None:
    import SimpleITK

    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(VOXELS), str(place), useCompression=compressed)


def expected() -> NDArray:
    """Return the chain's result, as computed from an array in memory."""
    return plan(source_of(VOXELS[np.newaxis]), CHAIN, patch_size=8).read_whole()


def bytes_read_by_process() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    return int(fields["rchar"])


def patches_of(planned: Plan) -> list[Region]:
    return [planned.grid[index] for index in (0, len(planned.grid) // 2, len(planned.grid) - 1)]


@pytest.mark.parametrize("kind", ["mla", "npy", "nii", "mha", "mhd", "nrrd", "hdf5", "dicom", "ome-zarr"])
def test_a_patch_reads_its_region_and_little_more(tmp_path: Path, kind: str) -> None:
    place, item = made(tmp_path, kind)
    whole = expected()
    with warnings.catch_warnings(), open_source(place, item=item, mapped=False) as source:
        warnings.simplefilter("error", UserWarning)
        planned = plan(source, CHAIN, patch_size=8)
        assert (planned.regime, planned.result.array_shape) == ("stream", (1, 40, 64, 72))
        for count, target in enumerate(patches_of(planned), 1):
            before = bytes_read_by_process() if Path("/proc/self/io").exists() else 0
            patch = planned.read(target)
            if before:
                assert bytes_read_by_process() - before < VOXELS.nbytes // 3
            assert np.array_equal(patch, whole[(slice(None), *target.slices)])
            assert planned.source.reads == count
        wanted = sum(planned.fold(target).size for target in patches_of(planned))
        assert planned.source.bytes_read == wanted * VOXELS.itemsize


class Counted:
    """A source that counts how often it is read."""

    def __init__(self, source: Source) -> None:
        self.spec, self.order, self.info, self.access = source.spec, source.order, source.info, source.access
        self._source = source
        self.reads = 0

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        self.reads += 1
        return self._source.read(region, out)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@pytest.mark.parametrize(("kind", "name"), [("nii.gz", "nifti"), ("gz.nrrd", "nrrd"), ("zlib.mha", "metaimage")])
def test_a_compressed_file_is_decoded_once_per_case_and_told_once_per_format(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_source, "_warned", set())
    if kind == "nii.gz":
        place, _ = made(tmp_path, kind)
    else:
        place = tmp_path / f"a.{kind}"
        itk_image(place, compressed=True)
    whole = expected()
    told: list[warnings.WarningMessage] = []
    for _ in range(2):  # two cases
        source = Counted(open_source(place))
        planned = plan(source, [*CHAIN, T.Standardize()], patch_size=8)
        assert (planned.regime, source.reads) == ("stream", 0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for target in patches_of(planned):
                patch = planned.read(target)
        told += caught
        assert (source.reads, planned.source.bytes_read) == (1, VOXELS.nbytes)
        reference = (whole[(slice(None), *target.slices)] - planned.attributes["Mean"]) / planned.attributes["Std"]
        assert np.allclose(patch, reference, atol=1e-6)
    assert len(told) == 1
    message = str(told[0].message)
    assert all(word in message for word in (name, "decoded once", "0.369 MB", "`mla convert`")), message


def test_a_dataset_is_named_in_four_ways(tmp_path: Path) -> None:
    place, item = made(tmp_path, "hdf5")
    assert item is not None
    sources = (
        open_source(f"{place}::{item}"),
        open_source(f"{place}@{item}"),
        open_source(place, dataset=item),
        open_source(place, item="CT/case 1"),
    )
    for source in sources:
        with source:
            assert source.info.item == item
            assert np.array_equal(plan(source, [], patch_size=8).read_whole()[0], VOXELS)
    with pytest.raises(FormatError, match=r"holds 2 images: /CT/case 1 .*/CT/case 2"):
        open_source(place)
    with pytest.raises(UsageError, match="two names for the same"):
        open_source(place, dataset=item, item=item)
    with pytest.raises(UsageError, match="names the item '/CT/case 2', and '/CT/case 1' was given"):
        open_source(f"{place}::/CT/case 2", dataset=item)
    with pytest.raises(FormatError, match="holds no dataset '/CT/none'"):
        open_source(f"{place}::/CT/none")
    with pytest.raises(FileNotFoundError):
        open_source(f"{tmp_path / 'none.h5'}::{item}")


def test_a_level_of_a_pyramid_is_a_source_with_its_own_spacing(tmp_path: Path) -> None:
    place, _ = made(tmp_path, "ome-zarr")
    with open_source(f"{place}@1") as half, open_source(place) as full:
        chain = [T.ResampleToResolution([2, 2, 2])]
        patches = [plan(source, chain, patch_size=8) for source in (half, full)]
        assert [one.source.volume.shape for one in patches] == [(40, 32, 36), (40, 64, 72)]
        assert patches[0].result.shape == patches[1].result.shape == (40, 32, 36)
        assert np.array_equal(patches[0].read_whole(), half.read(half.spec.region)[np.newaxis])
    with pytest.raises(FormatError, match="no image"):
        open_source(f"{place}@9")


def test_a_file_named_with_the_mark_is_no_item(tmp_path: Path) -> None:
    np.save(tmp_path / "a::b.npy", VOXELS)
    with open_source(tmp_path / "a::b.npy") as source:
        assert source.spec.shape == VOXELS.shape


def test_a_truncated_compressed_file_is_an_error_at_the_first_patch(tmp_path: Path) -> None:
    place, _ = made(tmp_path, "nii.gz")
    data = gzip.compress(gzip.decompress(Path(place).read_bytes()))
    Path(place).write_bytes(data[: len(data) // 2])
    planned = plan(open_source(place), CHAIN, patch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(FormatError):
            planned.read(planned.grid[0])
