"""A process that writes and reads one format with one library, told what to do by lines of JSON on standard input.

Runs in the environment of its library and imports nothing of this project but what that library is. Answers are lines of JSON
on what was standard output; whatever a library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from typing import Any

import numpy as np

CHUNK = 64  # of the formats that are not told the patch: a common choice for patches of 64 to 128


class Memmap:
    """A copy out of numpy's memory map: the floor."""

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        np.save(path, array)

    def open(self, path: str) -> Any:
        return np.load(path + ".npy", mmap_mode="r")

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> None:
        out[...] = image[slices]


class Ours:
    """This project: ``image.read(region, out)``."""

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        from mlarray import MLArray

        MLArray(array, patch_size=tuple(patch), **options).save(path + ".mla")

    def open(self, path: str) -> Any:
        from mlarray import MLArray

        return MLArray.open(path + ".mla")

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> None:
        from mlarray import Region

        image.read(Region(tuple(s.start for s in slices), tuple(s.stop for s in slices)), out)


class OursIndexed(Ours):
    """This project: ``image[slices]``."""

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> Any:
        return image[slices]


class Blosc2(Ours):
    """A bare ``blosc2.open`` of our file, and the lowest call that fills an array."""

    def __init__(self) -> None:
        import blosc2

        self._one_thread = blosc2.DParams(nthreads=1)  # ready made, which saves 40 microseconds an open

    def open(self, path: str) -> Any:
        import blosc2

        return blosc2.open(path + ".mla", mmap_mode="r", dparams=self._one_thread)

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> None:
        image.get_slice_numpy(out, (tuple(s.start for s in slices), tuple(s.stop for s in slices)))


class Mla54(OursIndexed):
    """mlarray 0.0.54, in an environment of its own."""

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        from mlarray import MLArray

        size = {} if options.get("default_patch") else {"patch_size": tuple(patch)}
        MLArray(array, **size).save(path + ".mla")


class NnUnet:
    """nnU-Net's own 4D files through its own dataset class."""

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        from nnunetv2.training.dataloading.nnunet_dataset import comp_blosc2_params, nnUNetDatasetBlosc2

        data = array[None]
        size = tuple(patch[1:]) if patch[0] == 1 else tuple(patch)
        blocks, chunks = comp_blosc2_params(data.shape, size, data.itemsize)
        seg = np.zeros((1, *array.shape), np.int8)
        for suffix in (".b2nd", "_seg.b2nd", ".pkl"):
            if os.path.exists(path + suffix):
                os.remove(path + suffix)
        nnUNetDatasetBlosc2.save_case(data, seg, {}, path, chunks, blocks)

    def open(self, path: str) -> Any:
        from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2

        folder, name = os.path.split(path)
        return nnUNetDatasetBlosc2(folder, [name]).load_case(name)[0]

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> Any:
        return image[(slice(0, 1), *slices)][0]


class Zarr:
    """zarr-python 3, LZ4 in chunks of 64, without or with shards."""

    sharded = False

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        import zarr

        chunks = tuple(min(CHUNK, n) for n in array.shape)
        sizes = zip(array.shape, chunks, strict=True)
        shards = tuple(-(-min(4 * CHUNK, n) // c) * c for n, c in sizes) if self.sharded else None
        codec = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
        stored = zarr.create_array(
            store=path + ".zarr", shape=array.shape, dtype=array.dtype, chunks=chunks, shards=shards,
            compressors=codec, overwrite=True,
        )  # fmt: skip
        stored[...] = array

    def open(self, path: str) -> Any:
        import zarr

        return zarr.open_array(path + ".zarr", mode="r")

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> Any:
        return image[slices]


class ZarrSharded(Zarr):
    """The same with shards of 256."""

    sharded = True


class Zarrs(ZarrSharded):
    """zarr-python with the codec pipeline of zarrs, on the sharded array."""

    def open(self, path: str) -> Any:
        import zarr

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": 1})
        return super().open(path)


class TensorStore(Zarr):
    """tensorstore on the unsharded zarr array, one thread."""

    def open(self, path: str) -> Any:
        import tensorstore

        one = {"limit": 1}
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path + ".zarr/"}}
        context = tensorstore.Context({"data_copy_concurrency": one, "file_io_concurrency": one})
        return tensorstore.open(spec, open=True, read=True, context=context).result()

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> Any:
        return image[slices].read().result()


class H5Gzip:
    """h5py, gzip 4 with shuffle in chunks of 64."""

    def filters(self) -> dict[str, Any]:
        return {"compression": "gzip", "compression_opts": 4, "shuffle": True}

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        import h5py

        chunks = tuple(min(CHUNK, n) for n in array.shape)
        with h5py.File(path + ".h5", "w") as file:
            file.create_dataset("image", data=array, chunks=chunks, **self.filters())

    def open(self, path: str) -> Any:
        import h5py

        return h5py.File(path + ".h5", "r")["image"]

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> None:
        image.read_direct(out, slices)


class H5Blosc2(H5Gzip):
    """h5py with hdf5plugin's Blosc2: LZ4 5 with shuffle in chunks of 64."""

    def filters(self) -> dict[str, Any]:
        import hdf5plugin

        return dict(hdf5plugin.Blosc2(cname="lz4", clevel=5, filters=hdf5plugin.Blosc2.SHUFFLE))

    def open(self, path: str) -> Any:
        import hdf5plugin  # noqa: F401  registers its filters

        return super().open(path)


class Nibabel:
    """nibabel's array proxy on an uncompressed file."""

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        import nibabel as nib

        nib.Nifti1Image(array.T, np.eye(4), dtype=array.dtype).to_filename(path + ".nii")

    def open(self, path: str) -> Any:
        import nibabel as nib

        return nib.load(path + ".nii").dataobj

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> None:
        out[...] = image[slices[::-1]].T


class Sitk:
    """SimpleITK's region reader on an uncompressed file; it opens the file at every read."""

    def write(self, array: np.ndarray, path: str, patch: list[int], options: dict[str, Any]) -> None:
        import SimpleITK

        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array), path + ".mha", useCompression=False)

    def open(self, path: str) -> Any:
        import SimpleITK

        reader = SimpleITK.ImageFileReader()
        reader.SetFileName(path + ".mha")
        reader.ReadImageInformation()
        return reader

    def read(self, image: Any, slices: tuple[slice, ...], out: np.ndarray) -> None:
        import SimpleITK

        image.SetExtractIndex([s.start for s in slices[::-1]])
        image.SetExtractSize([s.stop - s.start for s in slices[::-1]])
        part = image.Execute()  # the view does not keep it alive
        out[...] = SimpleITK.GetArrayViewFromImage(part)


LIBRARIES = {
    "memmap": Memmap,
    "ours": Ours,
    "ours_indexed": OursIndexed,
    "blosc2": Blosc2,
    "mla54": Mla54,
    "nnunet": NnUnet,
    "zarr": Zarr,
    "zarr_sharded": ZarrSharded,
    "zarrs": Zarrs,
    "tensorstore": TensorStore,
    "h5py_gzip": H5Gzip,
    "h5py_blosc2": H5Blosc2,
    "nibabel": Nibabel,
    "simpleitk": Sitk,
}


class Worker:
    """Does what it is told, with one library."""

    def __init__(self, library: str) -> None:
        self._library: Any = LIBRARIES[library]()
        self._path = ""
        self._image: Any = None
        self._out: dict[tuple[int, ...], np.ndarray] = {}

    def write(self, source: str, path: str, patch: list[int], options: dict[str, Any]) -> dict[str, Any]:
        array = np.load(source, mmap_mode="r")
        began = time.perf_counter()
        self._library.write(array, path, patch, options)
        return {"seconds": time.perf_counter() - began}

    def read(self, path: str, dtype: str, regions: list[list[list[int]]], *, check: bool = False) -> dict[str, Any]:
        """Return seconds for all regions; with ``check`` also the checksum of the first."""
        if path != self._path:
            self._image, self._path = self._library.open(path), path
        slices = [tuple(slice(a, b) for a, b in zip(start, stop, strict=True)) for start, stop in regions]
        shape = tuple(s.stop - s.start for s in slices[0])
        if shape not in self._out:
            self._out = {shape: np.zeros(shape, np.dtype(dtype))}
        out, read = self._out[shape], self._library.read
        began = time.perf_counter()
        for one in slices:
            found = read(self._image, one, out)
        seconds = time.perf_counter() - began
        if not check:
            return {"seconds": seconds}
        read_back = self._library.read(self._image, slices[0], out)
        values = np.ascontiguousarray(out if read_back is None else read_back)
        del found
        return {
            "seconds": seconds,
            "checksum": zlib.crc32(values.view(np.uint8).reshape(-1)),
            "shape": list(values.shape),
        }

    def open(self, path: str, count: int) -> dict[str, Any]:
        """Return seconds for opening a file ``count`` times, dropping it included."""
        began = time.perf_counter()
        for _ in range(count):
            image = self._library.open(path)
            del image
        return {"seconds": time.perf_counter() - began}

    def forget(self) -> dict[str, Any]:
        self._image, self._path = None, ""
        return {}


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        answer = getattr(worker, message.pop("do"))(**message)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
