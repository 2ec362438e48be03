"""The voxels of a DICOM volume as a source: a region reads the files of its slices, and no other.

Nothing is held open between reads, so that a source can be used by many threads, be pickled and be forked, and a series of
thousands of files costs no file handles. What is not compressed is read row by row; a compressed frame is decoded whole, and
the last few are kept, because neighbouring patches need the same ones.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

import numpy as np

from mlarray.errors import FormatError
from mlarray.formats.dicom_frames import Frame
from mlarray.formats.dicom_group import Volume
from mlarray.formats.dicom_pixels import decode, read_rows
from mlarray.locks import ForkSafeLock
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, SourceBase, SourceInfo
from mlarray.spec import ArraySpec

CACHE_BYTES = 32 * 1024 * 1024  # decoded frames: 60 slices of a CT


class DicomSource(SourceBase):
    """A volume of a series.

    Parameters
    ----------
    volume : Volume
        What the headers say.

    Raises
    ------
    FormatError
        When it cannot be read; the message says why.
    """

    one_pass = True  # a compressed frame that is read twice is decoded twice

    def __init__(self, volume: Volume) -> None:
        if volume.problem:
            raise FormatError(f"{volume.name}: {volume.problem}", hint=volume.hint or None)
        self._volume = volume
        self.spec = ArraySpec(volume.shape, np.dtype(volume.dtype), volume.axes, volume.geometry)
        self.order = tuple(range(self.spec.ndim))
        self.access = Access.REGION
        self.info = SourceInfo(
            format="dicom",
            files=volume.files,
            header=volume.header,
            notes=volume.notes,
            is_seg=None,
            item=volume.name,
        )
        self._lock = ForkSafeLock()
        self._decoded: OrderedDict[tuple[str, int], NDArray] = OrderedDict()

    @property
    def chunks(self) -> tuple[int, ...]:
        """What is cheapest to read: one frame."""
        return (*(1,) * (self.spec.ndim - 2), *self.spec.shape[-2:])

    @property
    def grain(self) -> tuple[int, ...]:
        """What is opened or decoded at once: one frame."""
        return self.chunks

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the values of ``region``."""
        target = self._target(region, out)
        rows, columns = slice(region.start[-2], region.stop[-2]), slice(region.start[-1], region.stop[-1])
        outer = [range(low, high) for low, high in zip(region.start[:-2], region.stop[:-2], strict=True)]
        if target.size == 0:
            return target
        for place in itertools.product(*outer):
            number = int(np.ravel_multi_index(place, self.spec.shape[:-2])) if place else 0
            frame = self._volume.frames[number]
            index = tuple(at - low for at, low in zip(place, region.start[:-2], strict=True))
            self._scale(self._stored(frame, rows)[:, columns], frame, target[index])
        return target

    def close(self) -> None:
        """Forget decoded frames; no file is ever left open."""
        with self._lock:
            self._decoded.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return (DicomSource, (self._volume,))

    def _stored(self, frame: Frame, rows: slice) -> NDArray:
        if frame.instance.pixels.is_native:
            return read_rows(frame.instance, frame.index, rows)
        key = (str(frame.instance.path), frame.index)
        with self._lock:
            found = self._decoded.get(key)
            if found is not None:
                self._decoded.move_to_end(key)
        if found is None:
            found = decode(frame.instance, frame.index)
            self._keep(key, found)
        return found[rows]

    def _keep(self, key: tuple[str, int], frame: NDArray) -> None:
        with self._lock:
            self._decoded[key] = frame
            while len(self._decoded) > 1 and len(self._decoded) * frame.nbytes > CACHE_BYTES:
                self._decoded.popitem(last=False)

    def _scale(self, stored: NDArray, frame: Frame, target: NDArray) -> None:
        """Write ``stored * slope + intercept`` into ``target``: exactly for integers, else in float64, rounded once."""
        slope, intercept = frame.slope, frame.intercept
        kind = self.spec.dtype
        if slope == 1 and intercept == 0:
            np.copyto(target, stored, casting="unsafe")  # the type was chosen to hold them
        elif kind.kind in "iu":
            self._scale_integers(stored, int(slope), int(intercept), target)
        else:
            target[...] = stored.astype(np.float64) * slope + intercept

    def _scale_integers(self, stored: NDArray, slope: int, intercept: int, target: NDArray) -> None:
        # Modulo 2**bits, as numpy computes, is exact where the result fits the type, and it was chosen so.
        kind = self.spec.dtype
        bits = 8 * kind.itemsize
        unsigned = np.dtype(f"u{kind.itemsize}")
        if slope == 1 and stored.dtype.itemsize == kind.itemsize:
            np.add(stored.view(unsigned), unsigned.type(intercept % (1 << bits)), out=target.view(unsigned))
            return
        work = stored.astype(kind).view(unsigned) if stored.dtype.itemsize <= kind.itemsize else stored.astype(unsigned)
        if slope != 1:
            work = work * unsigned.type(slope % (1 << bits))
        if intercept:
            work = work + unsigned.type(intercept % (1 << bits))
        target[...] = work.view(kind)
