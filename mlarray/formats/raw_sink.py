"""A header and a raw voxel block, written into one file, plain or compressed.

Three formats are that and nothing more. A plain block takes its regions in any order; a compressed one is a stream and takes
them in storage order.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray
from mlarray.sources.raw import RawLayout
from mlarray.spec import ArraySpec
from mlarray.storage.publish import PendingFile


class RawSink:
    """Writes a raw voxel block behind a header.

    Parameters
    ----------
    final : Path
        Name of the finished file.
    spec : ArraySpec
        What is written, in array-axis order.
    layout : RawLayout
        How the voxels lie on disk.
    header : bytes
        Written first, as it is.
    compress : callable, optional
        ``compress(file)`` wraps the open file in a writable stream that takes the voxel block (and the header too, with
        ``whole``); the regions must then arrive in storage order.
    whole : bool
        Whether the header is part of the compressed stream (NIfTI) or stands before it (NRRD).
    patch : callable, optional
        ``patch(stored)`` gets the number of bytes behind the header, known only at the end, and returns an offset in the
        file and the bytes to put there (a size field that the header keeps room for).
    """

    def __init__(
        self,
        final: Path,
        spec: ArraySpec,
        layout: RawLayout,
        header: bytes,
        *,
        compress: Callable[[BinaryIO], Any] | None = None,
        whole: bool = False,
        patch: Callable[[int], tuple[int, bytes]] | None = None,
    ) -> None:
        self.spec = spec
        self.layout = layout
        self.access = Access.REGION if compress is None else Access.SLAB
        self.order = layout.order
        self.chunks: tuple[int, ...] | None = None
        self._pending = PendingFile(final)
        self.path = self._pending.path
        self._file: BinaryIO = self.path.open("wb")
        self._stream: Any = None
        self._next = 0
        self._start = len(header)
        self._patch = patch
        try:
            if compress is not None and whole:
                self._stream = compress(self._file)
                self._stream.write(header)
            else:
                self._file.write(header)
                self._stream = compress(self._file) if compress is not None else None
        except BaseException:
            self.abort()
            raise

    def write(self, region: Region, block: NDArray) -> None:
        """Store ``block`` at ``region``."""
        box = region.permute(self.layout.order)
        data = np.ascontiguousarray(block.transpose(self.layout.order), dtype=self.layout.dtype)
        itemsize = self.layout.dtype.itemsize
        for offset, piece in _runs(box, self.layout.shape, itemsize, data):
            if self._stream is None:
                self._file.seek(self._start + offset)
                self._file.write(piece)
            elif offset != self._next:
                raise UsageError(f"A compressed stream takes voxels in storage order: byte {self._next}, got {offset}.")
            else:
                self._stream.write(piece)
                self._next += len(piece)

    def finish(self) -> None:
        """Complete the voxel block and close the file under its temporary name."""
        if self._file.closed:
            return
        if self._stream is not None:
            if self._next != self.layout.nbytes:
                raise UsageError(f"A compressed stream needs all {self.layout.nbytes} voxel bytes, got {self._next}.")
            self._stream.close()
        elif self._file.seek(0, 2) < self._start + self.layout.nbytes:
            self._file.truncate(self._start + self.layout.nbytes)
        if self._patch is not None:
            offset, data = self._patch(self._file.seek(0, 2) - self._start)
            self._file.seek(offset)
            self._file.write(data)
        self._file.close()

    def publish(self) -> None:
        """Give the finished file its final name."""
        self.finish()
        self._pending.publish()

    def abort(self) -> None:
        """Remove what was written."""
        try:
            with contextlib.suppress(Exception):  # a full disk fails again when the rest is flushed
                if self._stream is not None and not self._file.closed:
                    self._stream.close()  # a compressor may own threads that write to the file
            with contextlib.suppress(OSError):
                self._file.close()
        finally:
            self._pending.abort()


def _runs(box: Region, shape: tuple[int, ...], itemsize: int, data: NDArray) -> Any:
    """Yield (byte offset, bytes) for each consecutive run of ``box`` in an array of ``shape``, in storage order."""
    inner = len(shape) - 1
    while inner > 0 and box.start[inner] == 0 and box.stop[inner] == shape[inner]:
        inner -= 1
    strides = [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    base = sum(a * s for a, s in zip(box.start, strides, strict=True))
    for index in itertools.product(*(range(n) for n in box.shape[:inner])):
        offset = base + sum(i * s for i, s in zip(index, strides[:inner], strict=True))
        yield offset, np.ascontiguousarray(data[index]).reshape(-1).view(np.uint8).data
