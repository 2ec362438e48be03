"""How does a volume get the histogram of another one? By four landmarks of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlarray.errors import TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.casting import cast_back, real
from mlarray.transforms.locality import GlobalStatistic, Kind, Locality
from mlarray.transforms.statistics import Blocks, Moments, Statistic
from mlarray.transforms.volume import Volume

BINS = 256
"""Of the histogram of the voxels from the mean up."""

CHUNK_VOXELS = 1 << 16
"""Mapped at once: float64 values of a chunk stay in the cache, and a patch of bytes needs no eightfold memory."""


@dataclass(frozen=True, slots=True)
class LandmarkValues:
    """Minimum, mean, median of what is not below the mean (estimated from a histogram), and maximum."""

    minimum: float
    mean: float
    upper_median: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Landmarks:
    """Four numbers that describe the histogram of a scalar volume.

    The upper median is read off a histogram of :data:`BINS` equal bins from the mean to the maximum: from the top bin down, until
    half of the voxels that are not below the mean lie above; linear within the bin.

    Parameters
    ----------
    of : str
        Name of the group that is measured; empty for the stage's own input.
    """

    of: str = ""
    mask = None
    passes = 2

    def measure(self, blocks: Blocks) -> LandmarkValues:
        """Measure in two passes; all NaN where the volume holds NaN or an infinity.

        Raises
        ------
        TransformError
            There is more than one channel.
        """
        moments = Moments().measure(blocks)
        low, mean, high = float(moments.minimum), moments.mean, float(moments.maximum)
        if not np.isfinite([low, mean, high]).all():
            return LandmarkValues(np.nan, np.nan, np.nan, np.nan)
        counts = np.zeros(BINS, dtype=np.int64)
        for block, _ in blocks():
            if block.shape[0] != 1:
                raise TransformError(f"Group {self.of!r} has {block.shape[0]} channels; HistogramMatching takes one.")
            values = block.astype(np.float64)
            upper = values[values >= mean]
            if high > mean:
                places = np.minimum((upper - mean) * (BINS / (high - mean)), BINS - 1).astype(np.int64)
                counts += np.bincount(places, minlength=BINS)
        return LandmarkValues(low, mean, _upper_median(counts, mean, high), high)


@dataclass(frozen=True, slots=True)
class HistogramMatching(Transform):
    """Give a scalar volume the histogram of a reference, by the landmarks of both.

    The map is piecewise linear and takes minimum, mean, upper median and maximum of the volume to those of the reference; where
    two landmarks of the volume coincide it is constant, and what is not below the maximum becomes the reference's maximum. ITK's
    ``HistogramMatchingImageFilter`` (after Nyul, Udupa and Zhang 2000) computes the same with 256 levels, one match point and its
    threshold at the mean, to about 1e-7 of the range for floats. ITK rounds the landmarks of integer volumes to their type; here
    they are not, and results of integer volumes are rounded half to even: up to 3 levels apart.

    Parameters
    ----------
    reference_group : str
        Name of the group that is the reference; on whatever grid.
    """

    reference_group: str

    def __post_init__(self) -> None:
        if not isinstance(self.reference_group, str) or not self.reference_group:
            raise UsageError(f"HistogramMatching takes the name of a group, got {self.reference_group!r}.")

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself, once the landmarks are known."""
        return GlobalStatistic(strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume."""
        if volume.channels != 1:
            raise TransformError(f"HistogramMatching takes a scalar volume, not one of {volume.channels} channels.")
        return real(volume)

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        """Return the landmarks."""
        return (Landmarks(),)

    def references(self, volume: Volume) -> Mapping[str, tuple[Statistic, ...]]:
        """Return the landmarks of the reference."""
        return {self.reference_group: (Landmarks(self.reference_group),)}

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Map the values."""
        ours: LandmarkValues = context.measured[Landmarks()]
        theirs: LandmarkValues = context.measured[Landmarks(self.reference_group)]
        x = np.array([ours.minimum, ours.mean, ours.upper_median, ours.maximum])
        y = np.array([theirs.minimum, theirs.mean, theirs.upper_median, theirs.maximum])
        with np.errstate(all="ignore"):
            slopes = np.where(x[1:] > x[:-1], (y[1:] - y[:-1]) / (x[1:] - x[:-1]), 0.0)
            out, flat = np.empty(block.shape, context.after.dtype), np.ascontiguousarray(block).reshape(-1)
            for start in range(0, flat.size, CHUNK_VOXELS):
                part = slice(start, start + CHUNK_VOXELS)
                out.reshape(-1)[part] = cast_back(_landed(flat[part], x, y, slopes), out.dtype)
        return out


def _landed(block: NDArray, x: NDArray, y: NDArray, slopes: NDArray) -> NDArray:
    """Return where values land, in float64."""
    given, values, reach = block.astype(np.float64), np.full(block.shape, y[0]), np.empty(block.shape)
    for low, high, slope in zip(x, x[1:], slopes, strict=False):
        # How far a value reaches into each interval: sums of this are continuous, and need no choice per voxel.
        np.maximum(given, low, out=reach)
        np.minimum(reach, high, out=reach)
        reach -= low
        reach *= slope
        values += reach
    np.copyto(values, y[3], where=given >= x[3])
    return values


def _upper_median(counts: NDArray, mean: float, high: float) -> float:
    total = int(counts.sum())
    if not total:
        return high
    width, above = (high - mean) / BINS, 0
    for index in range(BINS - 1, -1, -1):
        if 2 * (above + int(counts[index])) >= total:
            share = (total / 2 - above) / int(counts[index])
            return mean + (index + 1 - share) * width
        above += int(counts[index])
    return mean
