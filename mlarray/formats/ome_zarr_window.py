"""Between which values should a viewer show an image? Found while the voxels pass by.

Least and greatest value are exact, and so are the percentiles of types of 8 and 16 bits: every value is counted. Wider types
are counted by the upper half of their float32 form (sign, exponent and 7 bits of mantissa), which places a percentile within
0.8 % of its size whatever the range, in one pass. What is not finite is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlarray.region import Region
from mlarray.sources.base import NDArray

LOW, HIGH = 0.005, 0.995  # shares of voxels below and above the window, those that nnU-Net clips by
_MOST_CHANNELS = 64
_PIECE = 1 << 20
_SIGN = np.uint32(0x80000000)
_COLOURS = ("FF0000", "00FF00", "0000FF", "FF00FF", "00FFFF", "FFFF00", "FFFFFF")


class Windows:
    """Counts the values of each channel.

    Parameters
    ----------
    dtype : numpy dtype
        Of the voxels; for complex ones there is no window.
    channels : int
        How many there are.
    axis : int or None
        Along which; None: the image has no such axis.
    """

    def __init__(self, dtype: np.dtype[Any], channels: int, axis: int | None) -> None:
        self._dtype = dtype
        self._axis = axis
        self._narrow = dtype.kind in "iub" and dtype.itemsize <= 2
        self._usable = dtype.kind in "iufb" and 1 <= channels <= _MOST_CHANNELS
        bins = 1 << 8 * dtype.itemsize if self._narrow else 1 << 16
        count = channels if self._usable else 0
        self._counts = [np.zeros(bins, np.int64) for _ in range(count)]
        self._least = [np.inf] * count
        self._most = [-np.inf] * count

    def see(self, region: Region, block: NDArray) -> None:
        """Count the voxels of a block at ``region``."""
        if not self._usable:
            return
        if self._axis is None:
            self._see(0, block)
            return
        for offset in range(block.shape[self._axis]):
            self._see(region.start[self._axis] + offset, block.take(offset, axis=self._axis))

    def channels(self) -> list[dict[str, float]] | None:
        """Return ``min``, ``max``, ``start`` and ``end`` per channel, or None where a channel has no finite value."""
        if not self._usable or not all(least <= most for least, most in zip(self._least, self._most, strict=True)):
            return None
        return [self._window(channel) for channel in range(len(self._counts))]

    def _see(self, channel: int, values: NDArray) -> None:
        flat = np.ascontiguousarray(values).reshape(-1)
        for start in range(0, flat.size, _PIECE):
            piece = flat[start : start + _PIECE]
            if self._dtype.kind == "f":
                piece = piece[np.isfinite(piece)]
            if not piece.size:
                continue
            self._least[channel] = min(self._least[channel], float(piece.min()))
            self._most[channel] = max(self._most[channel], float(piece.max()))
            counts = self._counts[channel]
            counts += np.bincount(self._keys(piece), minlength=counts.size)

    def _keys(self, piece: NDArray) -> NDArray:
        if self._narrow:
            if self._dtype.kind in "ub":
                return piece
            # An index that grows with the value: the sign bit turned around.
            unsigned = np.dtype(f"u{self._dtype.itemsize}")
            return np.asarray(piece.view(unsigned) ^ unsigned.type(1 << (8 * self._dtype.itemsize - 1)))
        with np.errstate(over="ignore"):
            bits = np.clip(piece, -3.4e38, 3.4e38).astype(np.float32).view(np.uint32)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN) >> np.uint32(16)

    def _window(self, channel: int) -> dict[str, float]:
        least, most = self._least[channel], self._most[channel]
        total = np.cumsum(self._counts[channel])
        places = np.searchsorted(total, [max(1.0, LOW * total[-1]), HIGH * total[-1]])
        start, end = (min(max(self._value(int(place)), least), most) for place in places)
        if not start < end:
            start, end = least, most
        if not start < end:
            end = start + 1.0
        return {"min": least, "max": most, "start": start, "end": end}

    def _value(self, key: int) -> float:
        if self._narrow:
            return float(key - (self._counts[0].size // 2 if self._dtype.kind == "i" else 0))
        ordered = np.uint32((key << 16) | 0x8000)
        bits = ordered & ~_SIGN if ordered & _SIGN else ~ordered
        return float(np.array([bits], np.uint32).view(np.float32)[0])


def omero(windows: Sequence[Mapping[str, float]], names: Sequence[str], source: object) -> dict[str, Any]:
    """Return the ``omero`` of an image: a window, a colour and a label per channel.

    Parameters
    ----------
    windows : sequence of mapping
        Of :meth:`Windows.channels`.
    names : sequence of str
        One per channel.
    source : object
        The ``omero`` of the image that this one was made from, whose labels and colours are kept.
    """
    given = source.get("channels") if isinstance(source, Mapping) else None
    known = given if isinstance(given, list) and len(given) == len(windows) else [{}] * len(windows)
    channels = []
    for number, (window, name, before) in enumerate(zip(windows, names, known, strict=True)):
        colour = "FFFFFF" if len(windows) == 1 else _COLOURS[number % len(_COLOURS)]
        before = before if isinstance(before, Mapping) else {}
        kept = before.get("color")
        is_colour = isinstance(kept, str) and len(kept) == 6 and all(c in "0123456789abcdefABCDEF" for c in kept)
        label = before.get("label")
        channels.append(
            {
                "active": True,
                "coefficient": 1,
                "color": kept if is_colour else colour,
                "family": "linear",
                "inverted": False,
                "label": label if isinstance(label, str) else name,
                "window": dict(window),
            }
        )
    model = "greyscale" if len(windows) == 1 else "color"
    return {"channels": channels, "rdefs": {"defaultT": 0, "defaultZ": 0, "model": model}}
