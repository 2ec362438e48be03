"""Every source and every sink of the library keeps the contract."""

from __future__ import annotations

import bz2
import gzip
from functools import partial
from pathlib import Path

import numpy as np

from mlarray import MLArray
from mlarray.formats import mla
from mlarray.formats.raw_sink import RawSink
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Sink, SinkOptions, Source, SourceInfo
from mlarray.sources.bytes import FileBytes, JoinedBytes, StreamBytes, open_bzip2, open_gzip
from mlarray.sources.memory import ArraySource, GeneratedSource, flat_index
from mlarray.sources.raw import RawLayout, RawSource
from mlarray.sources.scaled import ScaledSource
from mlarray.spec import ArraySpec
from mlarray.testing.conformance import SHAPE, SinkConformance, SourceConformance

HEADER = b"a header of another program\n"
SLOPE, INTERCEPT = 0.5, -10.0


def fill_by_position(shape: tuple[int, ...], region: Region, target: NDArray) -> None:
    target[...] = flat_index(region, shape) - 300


class TestArraySource(SourceConformance):
    def make(self, folder: Path) -> Source:
        return ArraySource(self.expected())


class TestArraySourceOfAnotherLayout(SourceConformance):
    def make(self, folder: Path) -> Source:
        return ArraySource(np.asfortranarray(self.expected().astype(">i2")), ArraySpec(SHAPE, np.dtype(np.int16)))


class TestGeneratedSource(SourceConformance):
    def make(self, folder: Path) -> Source:
        return GeneratedSource(ArraySpec(SHAPE, np.dtype(np.int16)), partial(fill_by_position, SHAPE))


class TestRawFile(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "voxels.raw"
        path.write_bytes(HEADER + self.expected().tobytes())
        layout = RawLayout.in_order(SHAPE, np.dtype(np.int16))
        spec = ArraySpec(SHAPE, np.dtype(np.int16))
        return RawSource(FileBytes(path, len(HEADER)), layout, spec, access=Access.REGION)


class TestRawFileOfOtherOrderAndBytes(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "voxels.raw"
        order = (2, 0, 1)
        stored = np.ascontiguousarray(self.expected().transpose(order), dtype=">i2")
        path.write_bytes(stored.tobytes())
        layout = RawLayout(stored.shape, stored.dtype, order)
        return RawSource(FileBytes(path), layout, ArraySpec(SHAPE, np.dtype(np.int16)), access=Access.REGION)


class TestRawFilesJoined(SourceConformance):
    def make(self, folder: Path) -> Source:
        parts = []
        for number, plane in enumerate(self.expected()):
            path = folder / f"slice{number}.raw"
            path.write_bytes(HEADER + plane.tobytes())
            parts.append((FileBytes(path, len(HEADER)), plane.nbytes))
        layout = RawLayout.in_order(SHAPE, np.dtype(np.int16))
        return RawSource(JoinedBytes(parts), layout, ArraySpec(SHAPE, np.dtype(np.int16)), access=Access.REGION)


class TestGzipStream(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "voxels.raw.gz"
        path.write_bytes(gzip.compress(HEADER + self.expected().tobytes()))
        data = StreamBytes(path, open_gzip, self.expected().nbytes, len(HEADER))
        layout = RawLayout.in_order(SHAPE, np.dtype(np.int16))
        return RawSource(data, layout, ArraySpec(SHAPE, np.dtype(np.int16)), access=Access.SLAB)


class TestBzip2Stream(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "voxels.raw.bz2"
        path.write_bytes(bz2.compress(self.expected().tobytes()))
        data = StreamBytes(path, open_bzip2, self.expected().nbytes)
        layout = RawLayout.in_order(SHAPE, np.dtype(np.int16))
        return RawSource(data, layout, ArraySpec(SHAPE, np.dtype(np.int16)), access=Access.SLAB)


class TestScaledSource(SourceConformance):
    def make(self, folder: Path) -> Source:
        return ScaledSource(ArraySource(super().expected()), SLOPE, INTERCEPT)

    def expected(self) -> NDArray:
        return (super().expected() * SLOPE + INTERCEPT).astype(np.float32)


class TestMlaSource(SourceConformance):
    def make(self, folder: Path) -> Source:
        path = folder / "case.mla"
        MLArray(self.expected(), chunk_size=(4, 5, 6), block_size=(2, 2, 3)).save(path)
        return mla.open_source(path)


class TestMlaSourceOfBigEndianVoxels(SourceConformance):
    def make(self, folder: Path) -> Source:
        import blosc2

        path = folder / "case.mla"
        blosc2.asarray(self.expected().astype(">i2"), urlpath=str(path), mode="w", chunks=(4, 5, 6), blocks=(2, 2, 3))
        return mla.open_source(path)


class TestMlaSink(SinkConformance):
    suffix = ".mla"

    def make(self, path: Path, spec: ArraySpec) -> Sink:
        storage = {"chunk_size": (4, 5, 6), "block_size": (2, 2, 3)}
        return mla.open_sink(path, spec, SourceInfo(), SinkOptions(storage=storage, hold_bytes=1 << 20))

    def stored(self, path: Path) -> NDArray:
        with mla.open_source(path) as source:
            return source.read(source.spec.region)


class TestMlaSinkThatMayHoldNothing(TestMlaSink):
    def make(self, path: Path, spec: ArraySpec) -> Sink:
        return mla.open_sink(path, spec, SourceInfo(), SinkOptions(storage={"patch_size": 4}))


class TestRawSink(SinkConformance):
    suffix = ".raw"

    def make(self, path: Path, spec: ArraySpec) -> Sink:
        return RawSink(path, spec, RawLayout.in_order(spec.shape, spec.dtype), HEADER)

    def stored(self, path: Path) -> NDArray:
        return np.frombuffer(path.read_bytes()[len(HEADER) :], np.int16).reshape(SHAPE)


class TestRawSinkCompressed(SinkConformance):
    suffix = ".raw.gz"

    def make(self, path: Path, spec: ArraySpec) -> Sink:
        order = (1, 2, 0)
        shape = tuple(spec.shape[axis] for axis in order)
        layout = RawLayout(shape, np.dtype(">i2"), order)
        return RawSink(path, spec, layout, HEADER, compress=lambda file: gzip.GzipFile(fileobj=file, mode="wb"))

    def stored(self, path: Path) -> NDArray:
        voxels = np.frombuffer(gzip.decompress(path.read_bytes()[len(HEADER) :]), ">i2").reshape(10, 12, 7)
        return voxels.transpose(2, 0, 1).astype(np.int16)
