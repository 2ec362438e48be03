"""Stored numbers to measured ones: ``value = raw * slope + intercept``, and the dtype that can hold it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlarray.region import Region
from mlarray.sources.base import NDArray, Source, SourceBase
from mlarray.spec import ArraySpec

_PIECE_ELEMENTS = 1 << 18  # the float64 scratch of one piece stays in the second-level cache


def scaled_dtype(raw: np.dtype[Any], slope: float, intercept: float) -> np.dtype[Any]:
    """Return the smallest dtype that holds ``raw * slope + intercept``.

    Integers with a whole slope and intercept stay integers, wide enough for the full range of ``raw``. Otherwise float32,
    when it tells neighbouring raw values apart everywhere: for raw integers of at most 16 bits unless the intercept is very
    large, and for raw float16 and float32. Else float64.
    """
    if raw.kind == "c":
        return np.dtype(raw.newbyteorder("="))
    if raw.kind == "f":
        return np.dtype(np.float32 if raw.itemsize <= 4 else np.float64)
    low, high = (0, 1) if raw.kind == "b" else _integer_range(raw)
    if float(slope).is_integer() and float(intercept).is_integer():
        ends = [low * int(slope) + int(intercept), high * int(slope) + int(intercept)]
        candidates: list[np.dtype[Any]] = [] if raw.kind == "b" else [raw]
        candidates += [np.dtype(kind) for kind in ("i2", "i4", "i8")]
        for candidate in candidates:
            least, most = _integer_range(candidate)
            if least <= min(ends) and max(ends) <= most:
                return candidate.newbyteorder("=")
        return np.dtype(np.float64)
    largest = max(abs(low * slope + intercept), abs(high * slope + intercept))
    # Neighbouring raw values stay apart when a float32 step at the largest value is at most half a raw step.
    fits = largest <= float(np.finfo(np.float32).max)
    apart = fits and float(np.spacing(np.float32(largest))) <= abs(slope) / 2
    return np.dtype(np.float32 if apart and raw.itemsize <= 2 else np.float64)


def _integer_range(kind: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(kind)
    return int(info.min), int(info.max)


class ScaledSource(SourceBase):
    """A source whose values are ``raw * slope + intercept``, computed in float64 and rounded once.

    Parameters
    ----------
    raw : Source
        The stored values.
    slope, intercept : float
        Finite; the slope not zero.
    dtype : numpy dtype, optional
        Default: :func:`scaled_dtype`.
    """

    def __init__(self, raw: Source, slope: float, intercept: float, dtype: np.dtype[Any] | None = None) -> None:
        self._raw = raw
        self._slope = float(slope)
        self._intercept = float(intercept)
        self.access = raw.access
        self.order = raw.order
        self.info = raw.info
        kind = scaled_dtype(raw.spec.dtype, slope, intercept) if dtype is None else np.dtype(dtype)
        self.spec = ArraySpec(raw.spec.shape, kind, raw.spec.axes, raw.spec.geometry)

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the scaled values of ``region``."""
        target = self._target(region, out)
        raw = self._raw.read(region)
        with np.errstate(over="ignore", invalid="ignore"):  # what no float can hold is infinite
            if not target.flags.c_contiguous:
                target[...] = self._scale(raw)
                return target
            source, result = raw.reshape(-1), target.reshape(-1)
            for low in range(0, source.size, _PIECE_ELEMENTS):
                piece = slice(low, low + _PIECE_ELEMENTS)
                result[piece] = self._scale(source[piece])
            return target

    def close(self) -> None:
        """Close the stored source."""
        self._raw.close()

    def _scale(self, raw: NDArray) -> NDArray:
        kind = self.spec.dtype
        if kind.kind in "iu":
            return raw.astype(np.int64) * int(self._slope) + int(self._intercept)
        work = np.complex128 if kind.kind == "c" else np.float64
        return raw.astype(work) * self._slope + self._intercept
