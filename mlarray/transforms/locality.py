"""How does an output voxel depend on the input? Coordinate maths, one value per way.

A locality answers three questions about its stage: the output's spatial shape, the input region that an output region needs
(*pull*), and which output region the stage computes from it (*makes*: usually what was asked for, more where a border is
computed and cut off). The planner and the executor ask these questions and never look at the kind, which is there for people
and for the published rules.

Regions are spatial (no channel axis), in array order. ``pull`` clamps to the input, so that a stage meets the true border of
the volume exactly where the volume ends, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

from mlarray.region import Region, trusted_region

Shape: TypeAlias = tuple[int, ...]


class Kind(Enum):
    """The kinds of dependence, by their published names."""

    POINTWISE = "pointwise"
    HALO = "halo"
    ORIENTATION = "orientation"
    CROP = "crop"
    GLOBAL_STAT = "global statistic"
    RESCALE = "rescale"
    REGRID = "regrid"
    WHOLE_VOLUME = "whole volume"


@runtime_checkable
class Locality(Protocol):
    """What every locality answers. Total and pure: no file is read, and every shape has an answer."""

    @property
    def kind(self) -> Kind:
        """For people and for the published rules."""

    @property
    def preserves_statistics(self) -> bool:
        """Whether minimum, maximum, mean and deviation of the output are exactly those of the input."""

    @property
    def strict_kind(self) -> Kind:
        """What the published rules take it for; another than ``kind`` where they are more cautious."""

    def out_shape(self, shape: Shape) -> Shape:
        """Return the spatial shape of the output."""

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return the input region, within ``shape`` (of the input), that the output region ``target`` depends on."""

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the output region that the stage computes from ``source``; it contains ``target``."""


@dataclass(frozen=True, slots=True)
class _Same:
    """Shared answers: the output has the shape of the input, and what is computed is what was asked for."""

    def out_shape(self, shape: Shape) -> Shape:
        """Return the input's shape."""
        return shape

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return the region itself."""
        return target

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the target."""
        return target


@dataclass(frozen=True, slots=True)
class Pointwise(_Same):
    """Each output voxel depends on the input voxel at the same place (all its channels), and perhaps on where that is.

    Parameters
    ----------
    preserves_statistics : bool
        Whether values stay exactly as they are.
    strict_kind : Kind
        ``WHOLE_VOLUME`` for what the published rules load the volume for.
    """

    preserves_statistics: bool = False
    strict_kind: Kind = Kind.POINTWISE
    kind = Kind.POINTWISE


@dataclass(frozen=True, slots=True)
class GlobalStatistic(_Same):
    """As pointwise, once statistics of the whole input are known (see :meth:`Transform.statistics`).

    Parameters
    ----------
    strict_kind : Kind
        ``WHOLE_VOLUME`` where the published rules know no such statistic (percentiles, masks).
    """

    strict_kind: Kind = Kind.GLOBAL_STAT
    preserves_statistics: bool = False
    kind = Kind.GLOBAL_STAT


@dataclass(frozen=True, slots=True)
class Halo:
    """Each output voxel depends on the input within ``radius`` voxels of its place.

    Parameters
    ----------
    radius : tuple of int
        Per spatial axis.
    strict_kind : Kind
        See :class:`Pointwise`.
    """

    radius: Shape
    strict_kind: Kind = Kind.HALO
    kind = Kind.HALO
    preserves_statistics = False

    def out_shape(self, shape: Shape) -> Shape:
        """Return the input's shape."""
        return shape

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return the target grown by the radius, within the volume."""
        # Comparisons, not min and max: a patch is folded for every sample, and calls are most of what that costs.
        start = [a - r if a > r else 0 for a, r in zip(target.start, self.radius, strict=True)]
        stop = [b + r if b + r < n else n for b, r, n in zip(target.stop, self.radius, shape, strict=True)]
        return trusted_region(tuple(start), tuple(stop))

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the source: the border is computed and cut off."""
        return source


@dataclass(frozen=True, slots=True)
class Orientation:
    """Axes are exchanged and mirrored.

    Parameters
    ----------
    order : tuple of int
        Output axis ``i`` is input axis ``order[i]``.
    mirrored : tuple of bool
        Per output axis, whether it runs backwards.
    preserves_statistics : bool
        False where values change too (components of vectors).
    """

    order: Shape
    mirrored: tuple[bool, ...]
    preserves_statistics: bool = True
    strict_kind: Kind = Kind.ORIENTATION
    kind = Kind.ORIENTATION

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape with its axes exchanged."""
        return tuple([shape[axis] for axis in self.order])

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return the mirrored and exchanged region."""
        start, stop = [0] * len(shape), [0] * len(shape)
        for a, b, axis, backwards in zip(target.start, target.stop, self.order, self.mirrored, strict=True):
            start[axis], stop[axis] = (shape[axis] - b, shape[axis] - a) if backwards else (a, b)
        return trusted_region(tuple(start), tuple(stop))

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the target."""
        return target


@dataclass(frozen=True, slots=True)
class Cropping:
    """A box is cut out; nothing is computed.

    Parameters
    ----------
    before, after : tuple of int
        Voxels cut off per spatial axis.
    """

    before: Shape
    after: Shape
    kind = Kind.CROP
    strict_kind = Kind.CROP
    preserves_statistics = False

    def out_shape(self, shape: Shape) -> Shape:
        """Return the shape of the box."""
        return tuple([n - a - b for n, a, b in zip(shape, self.before, self.after, strict=True)])

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return the target moved by the margin before the box."""
        return target.translate(self.before)

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the target."""
        return target


@dataclass(frozen=True, slots=True)
class Rescale:
    """The same extent in space is sampled with another number of voxels per axis.

    Parameters
    ----------
    shape : tuple of int
        Of the output.
    linear : bool
        Two input voxels per axis for an output voxel, centre-aligned; else the nearest one.
    """

    shape: Shape
    linear: bool
    kind = Kind.RESCALE
    strict_kind = Kind.RESCALE
    preserves_statistics = False

    def out_shape(self, shape: Shape) -> Shape:
        """Return the output's shape."""
        return self.shape

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return exactly the input voxels that have a weight."""
        start, stop = [], []
        for a, b, n, m in zip(target.start, target.stop, shape, self.shape, strict=True):
            if a == b:
                low, high = 0, 0
            elif n == m:
                low, high = a, b
            elif self.linear:
                low = math.floor(linear_coordinate(a, n, m))
                high = math.ceil(linear_coordinate(b - 1, n, m)) + 1
            else:
                low, high = nearest_index(a, n, m), nearest_index(b - 1, n, m) + 1
            start.append(low)
            stop.append(high)
        return trusted_region(tuple(start), tuple(stop))

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the target."""
        return target


def linear_coordinate(o: int, n: int, m: int) -> float:
    """Return where output voxel ``o`` lies among the input voxels (``n`` voxels become ``m``).

    ``(o + 0.5) * n / m - 0.5``, within the first and the last voxel; float64. The voxels on both sides have a weight, or the one
    that is hit.
    """
    place = (o + 0.5) * (n / m) - 0.5
    return 0.0 if place < 0.0 else float(n - 1) if place > n - 1 else place


def nearest_index(o: int, n: int, m: int) -> int:
    """Return the input voxel whose cell holds the centre of output voxel ``o``: ``floor((2 o + 1) n / (2 m))`` in integers."""
    return ((2 * o + 1) * n) // (2 * m)


@dataclass(frozen=True, slots=True)
class Regrid:
    """Output voxels are sampled at other places of the input: padding, affine maps, warps.

    Parameters
    ----------
    shape : tuple of int
        Of the output.
    window : callable
        ``window(target, input_shape)`` returns the input region needed, within the input. Picklable: a function of a module, a
        method of a frozen value, or a ``functools.partial`` of one.
    strict_kind : Kind
        ``WHOLE_VOLUME`` where the published rules load the volume.
    radius : tuple of int
        The halo per axis that the published rules judge, where ``strict_kind`` is ``HALO``: a shift reads less than that.
    """

    shape: Shape
    window: Callable[[Region, Shape], Region]
    strict_kind: Kind = Kind.WHOLE_VOLUME
    radius: Shape = ()
    kind = Kind.REGRID
    preserves_statistics = False

    def out_shape(self, shape: Shape) -> Shape:
        """Return the output's shape."""
        return self.shape

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return the window of the target."""
        return self.window(target, shape)

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the target."""
        return target


@dataclass(frozen=True, slots=True)
class WholeVolume:
    """Any output voxel may depend on any input voxel. Always right.

    Parameters
    ----------
    reason : str
        Why, for the explanation.
    shape : tuple of int, optional
        Of the output; default: as the input.
    """

    reason: str = "the transform declares no smaller dependence"
    shape: Shape | None = None
    kind = Kind.WHOLE_VOLUME
    strict_kind = Kind.WHOLE_VOLUME
    preserves_statistics = False

    def out_shape(self, shape: Shape) -> Shape:
        """Return the output's shape."""
        return shape if self.shape is None else self.shape

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return everything."""
        return Region.full(shape)

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return everything: the result is cut."""
        return Region.full(out_shape)


@dataclass(frozen=True, slots=True)
class FullAxis:
    """Each output voxel depends on the whole line through it along some axes (a reduction over a spatial axis).

    Parameters
    ----------
    axes : tuple of int
        Spatial axes of the input that are read from end to end, in order.
    shape : tuple of int
        Of the output: without these axes, or with them.
    """

    axes: Shape
    shape: Shape
    kind = Kind.REGRID
    strict_kind = Kind.WHOLE_VOLUME
    preserves_statistics = False

    def out_shape(self, shape: Shape) -> Shape:
        """Return the output's shape."""
        return self.shape

    def pull(self, target: Region, shape: Shape) -> Region:
        """Return the target with these axes whole."""
        start, stop = list(target.start), list(target.stop)
        kept = 1 if len(self.shape) == len(shape) else 0
        for axis in self.axes:
            start[axis : axis + kept], stop[axis : axis + kept] = [0], [shape[axis]]
        return trusted_region(tuple(start), tuple(stop))

    def makes(self, source: Region, target: Region, out_shape: Shape) -> Region:
        """Return the target, with these axes whole where the output has them."""
        return self.pull(target, out_shape) if target.ndim == source.ndim else target
