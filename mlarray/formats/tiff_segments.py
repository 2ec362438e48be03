"""How does a region of a TIFF image become reads of its strips and tiles?

An image is a row of pages, a page is cut into segments (strips or tiles). Where a page lies in one piece and as it is, its bytes
are read in place. Any other page is decoded segment by segment, only those that the region touches; the decoder is tifffile's,
made anew in every process that reads.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import FormatError
from mlarray.formats.expansion import DEFLATE_RATIO
from mlarray.locks import ForkSafeLock
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SourceBase, SourceInfo
from mlarray.sources.bytes import FileBytes
from mlarray.spec import ArraySpec

CACHE_BYTES = 16 * 1024 * 1024
SMALL_SEGMENT_BYTES = 1024 * 1024  # a region that touches a corner of a larger one pays for much that it does not need


@dataclass(frozen=True, slots=True, eq=False)
class PageTable:
    """Where the segments of every page are.

    Parameters
    ----------
    files : tuple of Path
        The files that hold pages.
    file : ndarray of int, shape (pages,)
        Per page, which of them.
    offsets, counts : ndarray of int64, shape (pages, segments)
        First byte and number of bytes of each segment as stored; a count of 0 is a segment that was never written.
    """

    files: tuple[Path, ...]
    file: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @property
    def ends(self) -> Iterator[tuple[Path, int]]:
        """Per file, the first byte behind everything that is needed of it."""
        ends = np.where(self.counts > 0, self.offsets + self.counts, 0).max(axis=1)
        for number, path in enumerate(self.files):
            mine = ends[self.file == number]
            yield path, int(mine.max()) if mine.size else 0


class SegmentFiles:
    """Positioned reads from one file or from several; of several, none stays open."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._only = FileBytes(self._files[0]) if len(self._files) == 1 else None

    def readinto(self, file: int, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``offset`` of a file."""
        if self._only is not None:
            self._only.readinto(offset, buffer)
            return
        with closing(FileBytes(self._files[file])) as data:
            data.readinto(offset, buffer)

    def close(self) -> None:
        """Close what is open; a later read opens it again."""
        if self._only is not None:
            self._only.close()


class PagedBytes:
    """Pages that each lie in one piece, read as one block.

    Parameters
    ----------
    table : PageTable
        One segment a page.
    page_bytes : int
        Bytes of a page.
    """

    def __init__(self, table: PageTable, page_bytes: int) -> None:
        self._table = table
        self._page_bytes = page_bytes
        self._files = SegmentFiles(table.files)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset``, across page borders."""
        done = 0
        while done < len(buffer):
            page, start = divmod(offset + done, self._page_bytes)
            count = min(len(buffer) - done, self._page_bytes - start)
            place = int(self._table.offsets[page, 0]) + start
            self._files.readinto(int(self._table.file[page]), place, buffer[done : done + count])
            done += count

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        self._files.close()


@dataclass(frozen=True, slots=True)
class PageGrid:
    """How a page is cut into segments.

    Parameters
    ----------
    shape : tuple of int
        Of the page: separate samples, depth, rows, columns, interleaved samples (the five axes of tifffile).
    segment : tuple of int
        Depth, rows and columns of a full segment.
    """

    shape: tuple[int, int, int, int, int]
    segment: tuple[int, int, int]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Segments along depth, rows and columns."""
        depth, rows, columns = (-(-extent // part) for extent, part in zip(self.shape[1:4], self.segment, strict=True))
        return depth, rows, columns

    @property
    def count(self) -> int:
        """Segments of a page."""
        return self.shape[0] * math.prod(self.counts)

    @property
    def segment_size(self) -> int:
        """Elements of a full segment."""
        return math.prod(self.segment) * self.shape[4]

    def touched(self, low: Sequence[int], high: Sequence[int]) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Yield number and first element (sample, depth, row, column) of every segment that meets a box of the page."""
        counts = self.counts
        along = [range(low[axis + 1] // part, -(-high[axis + 1] // part)) for axis, part in enumerate(self.segment)]
        for sample, *place in itertools.product(range(low[0], high[0]), *along):
            number = sample
            for index, count in zip(place, counts, strict=True):
                number = number * count + index
            first = [index * part for index, part in zip(place, self.segment, strict=True)]
            yield number, (sample, first[0], first[1], first[2])


@dataclass(frozen=True, slots=True)
class PageDecoder:
    """How segments are decoded: which page of which file says it.

    Parameters
    ----------
    path : Path
        The file.
    offset : int
        Where the directory of that page is.
    index : tuple of int
        Its place in the tree of directories.
    compression : str
        Name of the compression, for messages.
    code : int
        Its number.
    most_bytes : int
        What a segment decodes to at most.
    tables : tuple of (bytes or None)
        JPEG tables per page; empty where none has any.
    header : bytes or None
        JPEG header of the file, where segments lack it.
    fill : int or float
        Value of segments that were never written.
    """

    path: Path
    offset: int
    index: tuple[int, ...]
    compression: str
    code: int
    most_bytes: int
    tables: tuple[bytes | None, ...] = ()
    header: bytes | None = None
    fill: int | float = 0

    def load(self) -> Callable[..., Any]:
        """Return tifffile's decode function of the page."""
        from mlarray.formats.tiff_library import load_decoder

        return load_decoder(self.path, self.offset, self.index, code=self.code, most_bytes=self.most_bytes)


class SegmentSource(SourceBase):
    """An image whose pages are decoded by strips or tiles.

    Parameters
    ----------
    table : PageTable
        Where the segments are.
    grid : PageGrid
        How a page is cut.
    decoder : PageDecoder
        How they are decoded.
    disk : tuple of (int, int or None)
        Per disk axis, its extent and the axis of the page (0 to 4) it is; None for axes along which pages follow each other.
    order : tuple of int
        Per disk axis, the array axis it becomes.
    spec : ArraySpec
        What ``read`` returns.
    info : SourceInfo
        What the file says beyond its voxels.
    """

    def __init__(
        self,
        table: PageTable,
        grid: PageGrid,
        decoder: PageDecoder,
        *,
        disk: tuple[tuple[int, int | None], ...],
        order: tuple[int, ...],
        spec: ArraySpec,
        info: SourceInfo,
    ) -> None:
        self._table, self._grid, self._decoder, self._disk = table, grid, decoder, disk
        self.order, self.spec, self.info = order, spec, info
        small = grid.segment_size * spec.dtype.itemsize <= SMALL_SEGMENT_BYTES
        self.access = Access.REGION if small else Access.SLAB
        self._files = SegmentFiles(table.files)
        self._lock = ForkSafeLock()
        self._decode: Callable[..., Any] | None = None
        self._kept: OrderedDict[tuple[int, int], NDArray] = OrderedDict()
        self._kept_bytes = 0
        self._cache_bytes = CACHE_BYTES

    @property
    def chunks(self) -> tuple[int, ...]:
        """Extent of a segment per array axis."""
        parts = (1, *self._grid.segment, self._grid.shape[4])
        result = [1] * len(self._disk)
        for (extent, axis), place in zip(self._disk, self.order, strict=True):
            result[place] = 1 if axis is None else min(parts[axis], extent)
        return tuple(result)

    @property
    def held_bytes(self) -> int:
        """Memory that reading takes besides the voxels: segments kept, and one while it is decoded."""
        return self._cache_bytes + 3 * self._grid.segment_size * self.spec.dtype.itemsize

    def resize_cache(self, nbytes: int) -> None:
        """Let at most ``nbytes`` of decoded segments stay in memory; one always may."""
        with self._lock:
            self._cache_bytes = nbytes
            self._trim()

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of ``region``; only segments that it touches are read."""
        target = self._target(region, out)
        if region.is_empty():
            return target
        box, disk = region.permute(self.order), target.transpose(self.order)
        outer = [axis for axis, (_, inner) in enumerate(self._disk) if inner is None]
        low, high = [0] * 5, list(self._grid.shape)
        for axis, (_, inner) in enumerate(self._disk):
            if inner is not None:
                low[inner], high[inner] = box.start[axis], box.stop[axis]
        for index in itertools.product(*(range(box.start[axis], box.stop[axis]) for axis in outer)):
            page, key = 0, [slice(None)] * len(self._disk)
            place: list[Any] = list(key)
            for axis, value in zip(outer, index, strict=True):
                page = page * self._disk[axis][0] + value
                place[axis] = value - box.start[axis]
            self._fill(page, low, high, self._as_page(disk[tuple(place)]))
        return target

    def close(self) -> None:
        """Close the file and drop decoded segments; a later read opens it again."""
        self._files.close()
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        details = {"disk": self._disk, "order": self.order, "spec": self.spec, "info": self.info}
        return (_rebuilt, (self._table, self._grid, self._decoder, details))

    def _as_page(self, view: NDArray) -> NDArray:
        """Return a view with the five axes of a page of one with those that the array has."""
        present = [inner for _, inner in self._disk if inner is not None]
        return view[tuple(slice(None) if axis in present else None for axis in range(5))]

    def _fill(self, page: int, low: Sequence[int], high: Sequence[int], target: NDArray) -> None:
        for number, first in self._grid.touched(low, high):
            block = self._segment(page, number)
            place: list[Any] = [first[0] - low[0]]
            inner: list[Any] = []
            for axis in (1, 2, 3):
                start = max(low[axis], first[axis])
                stop = min(high[axis], first[axis] + self._grid.segment[axis - 1])
                place.append(slice(start - low[axis], stop - low[axis]))
                inner.append(slice(start - first[axis], stop - first[axis]))
            inner.append(slice(low[4], high[4]))
            view = target[tuple(place)]
            if block is None:
                view[...] = self._decoder.fill
                continue
            piece = block[tuple(inner)]
            if piece.shape != view.shape:  # numpy would repeat a single sample or row
                raise FormatError(
                    f"{self._table.files[int(self._table.file[page])]} is damaged: segment {number} of page {page} holds "
                    f"{block.shape} voxels, which is not what its page needs.",
                    hint="Copy or export it again.",
                )
            view[...] = piece

    def _segment(self, page: int, number: int) -> NDArray | None:
        """Return a segment, axes depth, row, column and sample; None where it was never written."""
        with self._lock:
            block = self._kept.get((page, number))
            if block is not None:
                self._kept.move_to_end((page, number))
                return block
        count = int(self._table.counts[page, number])
        if count == 0:
            return None
        data = bytearray(count)
        self._files.readinto(int(self._table.file[page]), int(self._table.offsets[page, number]), memoryview(data))
        block = self._decoded(page, number, bytes(data))
        with self._lock:
            if (page, number) not in self._kept:  # another thread may have been faster
                self._kept[page, number] = block
                self._kept_bytes += block.nbytes
            self._trim()
        return block

    def _trim(self) -> None:
        """Drop what was used longest ago until the rest fits; called with the lock held."""
        while self._kept_bytes > self._cache_bytes and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes

    def _decoded(self, page: int, number: int, data: bytes) -> NDArray:
        path = self._table.files[int(self._table.file[page])]
        with self._lock:
            if self._decode is None:
                self._decode = self._decoder.load()
        more: dict[str, Any] = {}
        if self._decoder.tables or self._decoder.header is not None:
            tables = self._decoder.tables[page] if self._decoder.tables else None
            more = {"jpegtables": tables, "jpegheader": self._decoder.header}
        try:
            block, _, _ = self._decode(data, number, **more)
        except FormatError:
            raise
        except Exception as error:  # each codec raises what its library does
            if isinstance(error, MemoryError) and self._decoder.most_bytes <= len(data) * DEFLATE_RATIO:
                raise  # it may well hold so much
            raise FormatError(
                f"{path} is damaged: segment {number} of page {page} ({self._decoder.compression}, {len(data)} bytes) cannot "
                f"be decoded: {' '.join(str(error).split()) or type(error).__name__}.",
                hint="Copy or export it again.",
            ) from error
        result: NDArray = block
        return result


def _rebuilt(table: PageTable, grid: PageGrid, decoder: PageDecoder, details: dict[str, Any]) -> SegmentSource:
    return SegmentSource(table, grid, decoder, **details)
