"""Which part of a volume is worth keeping, and what stands beyond its border?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.errors import TransformError
from mlarray.notice import notice
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.casting import real
from mlarray.transforms.locality import Cropping, Locality, WholeVolume
from mlarray.transforms.padding import Padding
from mlarray.transforms.quantiles import Percentiles
from mlarray.transforms.statistics import Blocks, Statistic, statistic_blocks
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume

BACKGROUND_PERCENTILE = 5.0
"""Values up to this percentile of the stored volume are background."""

Box = tuple[tuple[int, int], ...]
"""Voxels outside the box before and after it, per array axis."""


@dataclass(frozen=True, slots=True)
class ForegroundBox:
    """The smallest box with every voxel that is above a percentile of the volume in any channel.

    Parameters
    ----------
    channels : int
        Of the volume.
    shape : tuple of int
        Its spatial extents.
    dtype : str
        Of its voxels, native.
    percentile : float
        From 0 to 100.
    """

    channels: int
    shape: tuple[int, ...]
    dtype: str
    percentile: float = BACKGROUND_PERCENTILE
    mask = None

    @property
    def passes(self) -> int:
        """How often the volume is read: for the percentile, and for the box."""
        return Percentiles((self.percentile,), self.dtype).passes + 1

    def measure(self, blocks: Blocks) -> Box:
        """Return the margins before and after the box; none, with a warning, where no voxel is above the percentile."""
        (threshold,) = Percentiles((self.percentile,), self.dtype).measure(blocks)
        box = Region((0,) * len(self.shape), (0,) * len(self.shape))
        for region, (block, _) in zip(statistic_blocks(self.channels, self.shape), blocks(), strict=True):
            foreground = (block > threshold).any(axis=0)
            if foreground.any():
                box = box.union(_bounds(foreground).translate(region.start))
        if box.is_empty():
            if 0 not in self.shape:
                notice(
                    f"No voxel is above the {self.percentile:g}th percentile ({threshold}): the volume is constant or holds NaN. "
                    "Nothing is cropped."
                )
            return ((0, 0),) * len(self.shape)
        return tuple((a, n - b) for a, b, n in zip(box.start, box.stop, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Crop(Transform):
    """Cut out the box of the foreground.

    Foreground is what is strictly above the 5th percentile of all voxels of the *stored* volume, in any channel. The box is
    measured once per case and kept as the attribute ``box``: margins before and after it per array axis. A case that has this
    attribute is not measured. Mirroring and exchanging axes before it carry the box along.

    Parameters
    ----------
    inverse : bool
        Whether carrying a prediction back undoes it, by repeating the border voxels.

    Examples
    --------
    >>> Crop().outcome(Volume(1, (10, 20, 30), np.dtype("i2")).push("box", [[2, 3], [1, 1], [4, 2]])).shape
    (5, 18, 24)
    """

    inverse: bool = True
    invertible = True

    def beforehand(self, stored: Volume) -> Mapping[str, Statistic]:
        """Return what measures the box."""
        if stored.dtype.kind not in "biuf":
            return {}
        return {"box": ForegroundBox(stored.channels, stored.shape, stored.dtype.str)}

    def locality(self, volume: Volume) -> Locality:
        """Return the cut, once the box is known."""
        margins = _margins(volume)
        return WholeVolume("its box is not known yet") if margins is None else Cropping(*margins)

    def outcome(self, volume: Volume) -> Volume:
        """Return the box's volume."""
        margins = _margins(real(volume))
        if not volume.on_stored_grid:
            raise TransformError(
                "The box of Crop belongs to the stored grid, which an earlier stage has changed.",
                hint="Put Crop before stages that resample, pad or crop.",
            )
        if margins is not None:
            return Cut(*margins, self.name).outcome(volume)
        if "box" in volume.attributes:
            raise TransformError(
                f"The box {volume.attributes['box']!r} is not [[before, after], ...] for each of {volume.ndim} axes."
            )
        return volume.with_(on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Return the block, which is the target."""
        if "box" not in context.before.attributes:
            raise TransformError(
                "Crop does not know its box.",
                hint="Plan with measure=True, or give it: attributes={'box': [[2, 3], ...]}.",
            )
        return block

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the margins put back, with the border voxels repeated."""
        margins = _margins(before)
        assert margins is not None
        flat = tuple(one for pair in zip(margins[0][::-1], margins[1][::-1], strict=True) for one in pair)
        return Undo(self.name, Padding(flat, "replicate"), before)


@dataclass(frozen=True, slots=True)
class Cut(Transform):
    """Voxels cut off at the borders.

    Parameters
    ----------
    before, after : tuple of int
        How many per spatial axis.
    label : str
        Name for messages.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    label: str = "Cut"

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label

    def locality(self, volume: Volume) -> Locality:
        """Return the cut."""
        return Cropping(self.before, self.after)

    def outcome(self, volume: Volume) -> Volume:
        """Return the part's volume."""
        if len(self.before) != volume.ndim or any(
            a < 0 or b < 0 or a + b >= n for a, b, n in zip(self.before, self.after, volume.shape, strict=True)
        ):
            raise TransformError(
                f"Margins {list(zip(self.before, self.after, strict=True))} leave nothing of the shape {volume.shape}.",
                hint="Give one pair per spatial axis, in array order.",
            )
        kept = Region(self.before, tuple(n - b for n, b in zip(volume.shape, self.after, strict=True)))
        geometry = None if volume.geometry is None else volume.geometry.cropped(kept)
        return volume.with_(shape=kept.shape, geometry=geometry, on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Return the block, which is the target."""
        return block


def _margins(volume: Volume) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the voxels before and after the box per axis, or None where it is not known."""
    try:
        before, after = zip(*volume.attributes["box"], strict=True)
        margins = tuple(map(int, before)), tuple(map(int, after))
    except (KeyError, TypeError, ValueError):
        return None
    return margins if len(margins[0]) == volume.ndim else None


def _bounds(foreground: NDArray) -> Region:
    start, stop = [], []
    for axis in range(foreground.ndim):
        found = np.flatnonzero(foreground.any(axis=tuple(other for other in range(foreground.ndim) if other != axis)))
        start.append(int(found[0]))
        stop.append(int(found[-1]) + 1)
    return Region(tuple(start), tuple(stop))
