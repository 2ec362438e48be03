"""What stands beyond the border of a volume when it is made larger?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region, trusted_region
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.casting import constant
from mlarray.transforms.locality import Cropping, Kind, Locality, Regrid, WholeVolume
from mlarray.transforms.sampling import nearest_along_axes
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume

Shape = tuple[int, ...]
_MODES = ("constant", "reflect", "replicate", "circular")


@dataclass(frozen=True, slots=True)
class Padding(Transform):
    """Put voxels around a volume; the geometry of those that were there stays.

    Parameters
    ----------
    padding : sequence of int
        Voxels ``(x before, x after, y before, y after, ...)``, the last array axis first; axes that are not named get none.
    mode : str
        ``"constant"`` (0) or ``"constant:<value>"``; ``"reflect"`` about the centres of the border voxels, period
        ``2 (n - 1)``; ``"replicate"`` the border voxels; ``"circular"``, the volume repeated. Any number of voxels may be asked
        for. A constant in an integer volume is truncated toward zero and saturated.
    inverse : bool
        Whether carrying a prediction back cuts them off.

    Examples
    --------
    >>> Padding([1, 0, 2, 0, 3, 0]).outcome(Volume(1, (5, 5, 5), np.dtype("f4"))).shape
    (8, 7, 6)
    """

    padding: Sequence[int] = (0, 0, 0, 0, 0, 0)
    mode: str = "constant"
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        try:
            counts = tuple(value.__index__() for value in self.padding)
        except (AttributeError, TypeError):
            counts = (-1,)
        if any(count < 0 for count in counts) or len(counts) % 2:
            raise UsageError(
                f"padding is (x before, x after, y before, ...), whole numbers from 0 on, got {self.padding!r}."
            )
        object.__setattr__(self, "padding", counts)
        kind, value = _parsed(self.mode)
        if (
            kind not in _MODES
            or (value is None) != (":" not in self.mode)
            or (value is not None and kind != "constant")
        ):
            raise UsageError(
                f"mode is 'constant', 'constant:<number>', 'reflect', 'replicate' or 'circular', got {self.mode!r}."
            )

    def locality(self, volume: Volume) -> Locality:
        """Return a regridding; the published rules let it stream."""
        margins = self._margins(volume)
        if margins is None:
            return WholeVolume("it names axes that there are not")
        before, after = margins
        shape = tuple(n + a + b for n, a, b in zip(volume.shape, before, after, strict=True))
        return Regrid(shape, partial(padding_window, self._kind, before), strict_kind=Kind.REGRID)

    def outcome(self, volume: Volume) -> Volume:
        """Return the larger volume."""
        margins = self._margins(volume)
        if margins is None:
            raise TransformError(
                f"padding {list(self.padding)} names more axes than the {volume.ndim} of the shape {volume.shape}.",
                hint="Give two numbers per spatial axis, the last axis first.",
            )
        before, after = margins
        if not any(before) and not any(after):
            return volume
        if 0 in volume.shape:
            raise TransformError(f"A volume without voxels, {volume.shape}, cannot be padded.")
        if self._kind == "constant":
            constant(_parsed(self.mode)[1] or 0.0, volume.dtype)
        shape = tuple(n + a + b for n, a, b in zip(volume.shape, before, after, strict=True))
        geometry = _moved(volume.geometry, before, volume.shape)
        return volume.with_(shape=shape, geometry=geometry, on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Fill the target."""
        margins = self._margins(context.before)
        assert margins is not None
        before, _ = margins
        inner = context.target.translate([-margin for margin in before])
        if self._kind == "constant":
            value = constant(_parsed(self.mode)[1] or 0.0, block.dtype)
            return placed(block, context.source, inner, context.before.shape, value)
        axes = zip(inner.start, inner.stop, context.before.shape, strict=True)
        indices = [_indices(self._kind, a, b, n) for a, b, n in axes]
        return nearest_along_axes(block, context.source.start, indices)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the padding cut off."""
        margins = self._margins(before)
        assert margins is not None
        return Undo(self.name, Window(margins[0], before.shape, self.name), before)

    @property
    def _kind(self) -> str:
        return _parsed(self.mode)[0]

    def _margins(self, volume: Volume) -> tuple[Shape, Shape] | None:
        """Return the voxels before and after, per array axis."""
        pairs = [(self.padding[i], self.padding[i + 1]) for i in range(0, len(self.padding), 2)]
        while len(pairs) > volume.ndim and pairs[-1] == (0, 0):
            pairs.pop()
        if len(pairs) > volume.ndim:
            return None
        pairs += [(0, 0)] * (volume.ndim - len(pairs))
        return tuple(a for a, _ in reversed(pairs)), tuple(b for _, b in reversed(pairs))


@dataclass(frozen=True, slots=True)
class Window(Transform):
    """A box of a volume that may reach beyond it, where it holds a constant.

    Parameters
    ----------
    start : tuple of int
        First voxel, in the array axes of the input; may be negative.
    shape : tuple of int
        Extents.
    label : str
        Name for messages.
    value : float
        Beyond the volume.
    """

    start: Shape
    shape: Shape
    label: str = "Window"
    value: float = 0.0

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label

    def locality(self, volume: Volume) -> Locality:
        """Return a cut where the box lies within the volume, else a regridding."""
        if self._is_inside(volume):
            after = tuple(n - a - m for n, a, m in zip(volume.shape, self.start, self.shape, strict=True))
            return Cropping(self.start, after)
        return Regrid(self.shape, partial(padding_window, "constant", tuple(-a for a in self.start)))

    def outcome(self, volume: Volume) -> Volume:
        """Return the box's volume."""
        constant(self.value, volume.dtype)
        geometry = _moved(volume.geometry, tuple(-a for a in self.start), self.shape)
        return volume.with_(shape=self.shape, geometry=geometry, on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Fill the box."""
        if self._is_inside(context.before):
            return block
        value = constant(self.value, block.dtype)
        inner = context.target.translate(self.start)
        return placed(block, context.source, inner, context.before.shape, value)

    def _is_inside(self, volume: Volume) -> bool:
        return Region.at(self.start, self.shape).is_within(volume.shape)


def padding_window(kind: str, before: Shape, target: Region, shape: Shape) -> Region:
    """Return the input voxels that a region of a padded volume shows; where it shows none, one voxel, which is not used."""
    start, stop, beyond = [], [], False
    for low, high, margin, n in zip(target.start, target.stop, before, shape, strict=True):
        a, b = low - margin, high - margin
        if a == b or not n:
            a = b = min(max(a, 0), n)
        elif a < 0 or b > n:
            if kind == "constant":
                beyond = beyond or b <= 0 or a >= n
                a, b = min(max(a, 0), n - 1), min(max(b, 1), n)
            elif kind == "replicate":
                a, b = min(max(a, 0), n - 1), min(max(b, 1), n)
            elif kind == "circular":
                wraps = a // n != (b - 1) // n
                a, b = (0, n) if wraps else (a % n, (b - 1) % n + 1)
            else:
                a, b = _reflected_window(a, b, n)
        start.append(a)
        stop.append(b)
    if beyond:
        stop = [min(a + 1, b) for a, b in zip(start, stop, strict=True)]
    return trusted_region(tuple(start), tuple(stop))


def placed(block: NDArray, source: Region, inner: Region, shape: Shape, value: Any) -> NDArray:
    """Return the region ``inner`` of a volume, ``value`` where it reaches beyond ``shape``."""
    shown = inner.clamp(shape)
    if shown == inner:
        return block
    out = np.full((block.shape[0], *inner.shape), value, dtype=block.dtype)
    if not shown.is_empty():
        out[(slice(None), *shown.relative_to(inner).slices)] = block[(slice(None), *shown.relative_to(source).slices)]
    return out


def _reflected_window(a: int, b: int, n: int) -> tuple[int, int]:
    if n == 1:
        return 0, 1
    last = n - 1
    first, final = a // last, (b - 1) // last
    if final - first > 1:
        return 0, n
    ends = [_reflected(a, n), _reflected(b - 1, n)]
    if first != final:
        ends.append(last if final % 2 else 0)
    return min(ends), max(ends) + 1


def _reflected(index: int, n: int) -> int:
    folded = index % (2 * (n - 1))
    return min(folded, 2 * (n - 1) - folded)


def _indices(kind: str, a: int, b: int, n: int) -> npt.NDArray[np.intp] | None:
    """Return the input indices of ``a <= index < b``, or None where they are these."""
    if 0 <= a and b <= n:
        return None
    index = np.arange(a, b, dtype=np.intp)
    if kind == "replicate" or n == 1:
        return np.clip(index, 0, n - 1)
    if kind == "circular":
        return index % n
    folded = index % (2 * (n - 1))
    return np.minimum(folded, 2 * (n - 1) - folded)


def _moved(geometry: Geometry | None, before: Shape, shape: Shape) -> Geometry | None:
    return None if geometry is None else geometry.cropped(Region.at([-margin for margin in before], shape))


def _parsed(mode: str) -> tuple[str, float | None]:
    kind, _, text = str(mode).partition(":")
    try:
        return kind, float(text) if text else None
    except ValueError:
        return kind, None
