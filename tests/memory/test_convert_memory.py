"""The converter stays within its memory limit, and its prediction is one.

Every conversion runs in a process of its own, whose peak is what Linux reports as VmHWM.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import tifffile

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux"),
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[2]
MIB = 1 << 20
# The prediction counts buffers; the allocator rounds up, keeps freed pieces, and the kernel batches its counters per CPU.
PREDICTION_SLACK = 1.15


def converted(source: Path, output: Path, *, limit: int, verify: str = "quick") -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.peak", source, output, str(limit), verify],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: dict = json.loads(done.stdout)
    assert results["status"] == "ok", results
    return results


def sparse_nifti(path: Path, shape: tuple[int, int, int]) -> Path:
    """Write the header of an int16 image and let the file system make up the zeros."""
    header = nib.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape)
    header.set_zooms((1, 1, 1))
    header.set_sform(np.eye(4), code=1)
    header["vox_offset"] = 352
    header["magic"] = b"n+1"
    with path.open("wb") as file:
        file.write(header.binaryblock + bytes(4))
        file.truncate(352 + int(np.prod(shape)) * 2)
    return path


def smooth(shape: tuple[int, ...]) -> np.ndarray:
    """Return int16 values that compress about as an image does."""
    z, y, x = np.ogrid[: shape[0], : shape[1], : shape[2]]
    noise = np.random.default_rng(0).integers(0, 16, (1, *shape[1:]), dtype=np.int16)
    return (z * 3 + y * 2 + x).astype(np.int16) + noise


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One volume of 256 MiB, plain and compressed."""
    folder = tmp_path_factory.mktemp("volumes")
    nib.save(nib.Nifti1Image(smooth((512, 512, 512)), np.eye(4)), folder / "plain.nii")
    with gzip.open(folder / "packed.nii.gz", "wb", compresslevel=1) as file:
        file.write((folder / "plain.nii").read_bytes())
    return folder


@pytest.mark.parametrize("limit_mb", [200, 1000])
@pytest.mark.parametrize("name", ["plain.nii", "packed.nii.gz"])
@pytest.mark.parametrize("suffix", [".mla", ".nii.gz", ".nii", ".ome.zarr"])
def test_the_measured_peak_is_the_predicted_one_or_less(
    volumes: Path, tmp_path: Path, name: str, suffix: str, limit_mb: int
) -> None:
    result = converted(volumes / name, tmp_path / f"out{suffix}", limit=limit_mb * 10**6)
    assert result["predicted"] <= limit_mb * 10**6
    assert result["measured"] <= result["predicted"] * PREDICTION_SLACK


def test_a_stream_larger_than_the_limit_gives_the_same_file_as_one_within(volumes: Path, tmp_path: Path) -> None:
    small = converted(volumes / "packed.nii.gz", tmp_path / "small.mla", limit=200 * 10**6, verify="full")
    large = converted(volumes / "packed.nii.gz", tmp_path / "large.mla", limit=2 * 10**9, verify="full")
    assert (small["spool"], large["spool"]) == (True, False)
    from mlarray import MLArray

    with MLArray.open(tmp_path / "small.mla") as one, MLArray.open(tmp_path / "large.mla") as other:
        for z in range(0, 512, 64):
            np.testing.assert_array_equal(one[z : z + 64], other[z : z + 64])


def test_the_peak_does_not_grow_with_the_size_of_the_output(tmp_path: Path) -> None:
    peaks = []
    for name, shape in (("small", (512, 512, 512)), ("large", (512, 1024, 1024))):
        source = sparse_nifti(tmp_path / f"{name}.nii", shape)
        peaks.append(converted(source, tmp_path / f"{name}.mla", limit=400 * 10**6)["measured"])
        peaks.append(converted(tmp_path / f"{name}.mla", tmp_path / f"{name}2.nii", limit=400 * 10**6)["measured"])
        (tmp_path / f"{name}2.nii").unlink()
    assert max(peaks) < 400 * 10**6
    assert abs(peaks[2] - peaks[0]) < 64 * MIB
    assert abs(peaks[3] - peaks[1]) < 64 * MIB


def test_chunks_whose_row_does_not_fit_are_decoded_to_disk_before_a_stream_is_written(tmp_path: Path) -> None:
    source = sparse_nifti(tmp_path / "a.nii", (512, 1024, 512))
    converted(source, tmp_path / "a.mla", limit=400 * 10**6)
    result = converted(tmp_path / "a.mla", tmp_path / "b.nii.gz", limit=300 * 10**6, verify="full")
    assert result["spool"] is True
    assert result["measured"] <= result["predicted"] * PREDICTION_SLACK
    assert result["predicted"] <= 300 * 10**6


def test_one_byte_volumes_are_not_widened_on_the_way(tmp_path: Path) -> None:
    array = (np.arange(400**3) % 251).astype(np.uint8).reshape(400, 400, 400)
    nib.save(nib.Nifti1Image(array, np.eye(4)), tmp_path / "a.nii.gz")
    result = converted(tmp_path / "a.nii.gz", tmp_path / "a.mla", limit=8 * 10**9)
    assert result["measured"] < 2 * array.nbytes + 300 * 10**6


def test_a_compressed_source_is_read_no_more_than_twice(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 4000, (256, 256, 256), dtype=np.int16)
    nib.save(nib.Nifti1Image(noise, np.eye(4)), tmp_path / "a.nii.gz")
    size = (tmp_path / "a.nii.gz").stat().st_size
    result = converted(tmp_path / "a.nii.gz", tmp_path / "a.mla", limit=10**9, verify="none")
    output = (tmp_path / "a.mla").stat().st_size
    libraries = 30 * 10**6  # Python reads its own modules too
    assert result["read"] < 2 * size + 2 * output + libraries


@pytest.fixture(scope="module")
def tiffs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One stack of 256 MiB in compressed tiles, and as one compressed strip of 8 MiB a page."""
    folder = tmp_path_factory.mktemp("tiffs")
    stack = smooth((128, 1024, 1024)).view(np.uint16)
    more = {"imagej": True, "compression": "zlib", "compressionargs": {"level": 1}, "metadata": {"axes": "ZYX"}}
    tifffile.imwrite(folder / "tiles.tif", stack, tile=(256, 256), **more)
    tifffile.imwrite(folder / "strips.tif", stack.reshape(32, 2048, 2048), rowsperstrip=2048, **more)
    return folder


@pytest.mark.parametrize("name", ["tiles.tif", "strips.tif"])
def test_a_compressed_tiff_is_converted_within_the_limit(tiffs: Path, tmp_path: Path, name: str) -> None:
    result = converted(tiffs / name, tmp_path / "out.mla", limit=250 * 10**6)
    assert result["predicted"] <= 250 * 10**6
    assert result["measured"] <= 250 * 10**6  # what the limit leaves is given to the cache of segments


def test_a_pyramid_and_its_source_stay_within_the_limit(volumes: Path, tmp_path: Path) -> None:
    there = converted(volumes / "plain.nii", tmp_path / "a.ome.zarr", limit=250 * 10**6)
    back = converted(tmp_path / "a.ome.zarr", tmp_path / "b.mla", limit=250 * 10**6, verify="full")
    again = converted(tmp_path / "a.ome.zarr", tmp_path / "c.ome.zarr", limit=250 * 10**6)
    for result in (there, back, again):
        assert result["predicted"] <= 250 * 10**6
        assert result["measured"] <= result["predicted"] * PREDICTION_SLACK
