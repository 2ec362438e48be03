"""Copies that are shifted, scaled or warped: sampled at other places, floats linearly, integers at the nearest voxel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region, trusted_region
from mlarray.sources.base import NDArray
from mlarray.transforms.affine import axis_window, sampled
from mlarray.transforms.augmentations.drawing import normals, uniforms
from mlarray.transforms.augmentations.lists import Augmentation, Draw
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Kind, Locality, Regrid
from mlarray.transforms.sampling import AxisMap, Coordinates, along_axes, is_linear, nearest_along_axes
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume

WINDOW_SLACK = 1e-6
"""Voxels by which a warp's window is wider than its control values say: weights add up to 1 but for rounding."""


@dataclass(frozen=True, slots=True)
class Translate(Augmentation):
    """Shift a volume: output voxel ``o`` shows input voxel ``o + t``, reflected about the border voxels.

    Parameters
    ----------
    t_min, t_max : float
        Voxels; one shift per axis is drawn between them, x first.
    is_int : bool
        Round shifts to whole voxels.
    prob : float
        How probable it is that a copy is selected.
    """

    t_min: float = -10.0
    t_max: float = 10.0
    is_int: bool = False
    prob: float = 1.0

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the shift."""
        shifts = [self.t_min + (self.t_max - self.t_min) * share for share in uniforms(draw.key, volume.ndim)][::-1]
        if self.is_int:
            shifts = [float(round(shift)) for shift in shifts]
        radius = tuple(math.ceil(abs(shift)) + 1 for shift in shifts)
        return AxisSampled(AxisMap((1.0,) * volume.ndim, tuple(shifts)), self.name, radius)


@dataclass(frozen=True, slots=True)
class Scale(Augmentation):
    """Scale a volume about its centre: output point ``p`` shows input point ``s p``, reflected about the border voxels.

    Parameters
    ----------
    s_std : float
        ``s = 2 ** (s_std * N(0, 1))``; above 1 more is seen.
    prob : float
        How probable it is that a copy is selected.
    """

    s_std: float = 0.2
    prob: float = 1.0

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the scaling."""
        scale = 2.0 ** (self.s_std * normals(draw.key, 1)[0])
        offset = tuple((n - 1) / 2 - scale * ((n - 1) / 2) for n in volume.shape)
        return AxisSampled(AxisMap((scale,) * volume.ndim, offset), self.name)


@dataclass(frozen=True, slots=True)
class AxisSampled(Transform):
    """A volume sampled along each axis on its own, each voxel keeping its place in the world.

    Parameters
    ----------
    placed : AxisMap
        From output index to input index.
    label : str
        Name for messages.
    radius : tuple of int, optional
        The halo that the published rules judge. Default: they load the volume.
    inverse : bool
        Whether carrying a prediction back undoes it.
    """

    placed: AxisMap
    label: str
    radius: tuple[int, ...] | None = None
    inverse: bool = True
    invertible = True

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label

    def locality(self, volume: Volume) -> Locality:
        """Return a regridding that reads what has a weight."""
        window = partial(self.placed.window, is_linear(volume, None, integers=False))
        if self.radius is None:
            return Regrid(volume.shape, window, strict_kind=Kind.WHOLE_VOLUME)
        return Regrid(volume.shape, window, strict_kind=Kind.HALO, radius=self.radius)

    def outcome(self, volume: Volume) -> Volume:
        """Return the sampled volume."""
        geometry = volume.geometry
        if geometry is not None:
            affine = geometry.affine.copy()
            affine[:-1, :-1] = geometry.linear * np.array(self.placed.step)
            affine[:-1, -1] = geometry.world(self.placed.offset)
            geometry = Geometry(affine, geometry.coord_system, geometry.known)
        return volume.with_(geometry=geometry, on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Sample the voxels."""
        shape, target, start = context.before.shape, context.target, context.source.start
        places = [
            self.placed.coordinates(axis, a, b, n)
            for axis, (a, b, n) in enumerate(zip(target.start, target.stop, shape, strict=True))
        ]
        if is_linear(context.before, None, integers=False):
            return along_axes(block, start, places, range(len(shape)))
        return nearest_along_axes(
            block, start, [None if one is None else np.rint(one).astype(np.intp) for one in places]
        )

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the map back."""
        step, offset = self.placed.step, self.placed.offset
        back = AxisMap(tuple(1.0 / s for s in step), tuple(-o / s for s, o in zip(step, offset, strict=True)))
        return Undo(self.label, AxisSampled(back, self.label, self.radius), before)


@dataclass(frozen=True, slots=True)
class Elastix(Augmentation):
    """Warp a volume by a cubic B-spline with random control values; the border voxels stand for what lies beyond.

    Control points lie on a lattice of ``max(1, round(extent / grid_spacing))`` cells per axis over the volume, and one node
    before and two after them. Voxel ``o`` shows the input at ``o + d(o) / spacing``, ``d`` in millimetres
    along the volume's axes.

    Parameters
    ----------
    grid_spacing : float
        Millimetres between control points.
    max_displacement : float
        Millimetres; control values are uniform between minus this and this.
    prob : float
        How probable it is that a copy is selected.
    """

    grid_spacing: float = 16.0
    max_displacement: float = 16.0
    prob: float = 1.0

    def __post_init__(self) -> None:
        if not self.grid_spacing > 0 or not self.max_displacement >= 0:
            raise UsageError(
                "grid_spacing is above 0 and max_displacement not below, "
                f"got {self.grid_spacing!r} and {self.max_displacement!r}."
            )

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the warp."""
        spacing = (1.0,) * volume.ndim if volume.geometry is None else volume.geometry.spacing
        mesh = tuple(max(1, round(n * s / self.grid_spacing)) for n, s in zip(volume.shape, spacing, strict=True))
        nodes = tuple(cells + 3 for cells in mesh)
        values = np.array(uniforms(draw.key, volume.ndim * math.prod(nodes))).reshape(volume.ndim, *nodes)
        values = (2.0 * values - 1.0) * self.max_displacement
        lattice = values / np.array(spacing).reshape(-1, *[1] * volume.ndim)
        lattice.setflags(write=False)
        return Warp(lattice, volume.shape, f"{draw.key:016x}")


@dataclass(frozen=True, slots=True)
class Warp(Transform):
    """A volume sampled at displaced places.

    Parameters
    ----------
    lattice : ndarray, shape (n, *nodes)
        Control values in voxels, one component per array axis.
    shape : tuple of int
        Of the volume.
    key : str
        Stands for the values when warps are compared and shown.
    """

    lattice: npt.NDArray[np.float64] = field(compare=False, repr=False)
    shape: tuple[int, ...]
    key: str

    @property
    def name(self) -> str:
        """Name for messages."""
        return "Elastix"

    def locality(self, volume: Volume) -> Locality:
        """Return a regridding; displacements are at most the largest control values nearby."""
        window = partial(self.window, is_linear(volume, None, integers=False))
        return Regrid(self.shape, window, strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the warped volume: on the same grid."""
        return volume.with_(on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Sample the voxels."""
        linear = is_linear(context.before, None, integers=False)
        return sampled(block, context.source, context.target, self.shape, self.coordinates, linear=linear)

    def window(self, linear: bool, target: Region, shape: tuple[int, ...]) -> Region:  # noqa: FBT001 - first in functools.partial
        """Return the input region within reach of ``target``."""
        if target.is_empty():
            return trusted_region((0,) * len(shape), (0,) * len(shape))
        near = self.lattice[(slice(None), *(slice(a, b + 4) for a, b in self._cells(target)))].reshape(len(shape), -1)
        start, stop = [], []
        for a, b, n, least, most in zip(
            target.start, target.stop, shape, near.min(axis=1).tolist(), near.max(axis=1).tolist(), strict=True
        ):
            low = min(max(a + least - WINDOW_SLACK, 0.0), n - 1.0)
            high = min(max(b - 1 + most + WINDOW_SLACK, 0.0), n - 1.0)
            first, last = axis_window(low, high, n, linear=linear)
            start.append(first)
            stop.append(last)
        return trusted_region(tuple(start), tuple(stop))

    def coordinates(self, target: Region) -> list[Coordinates]:
        """Return where the voxels of ``target`` are sampled, per axis, each of the shape of the target."""
        values = self.lattice
        for axis in reversed(range(target.ndim)):  # the first axis last: by then whole planes are added
            a, b, n = target.start[axis], target.stop[axis], self.shape[axis]
            cell, weights = _spline(a, b, n, values.shape[axis + 1] - 3)
            shape = [-1 if other == axis + 1 else 1 for other in range(values.ndim)]
            total = np.take(values, cell, axis=axis + 1) * weights[0].reshape(shape)
            for step in (1, 2, 3):
                total += np.take(values, cell + step, axis=axis + 1) * weights[step].reshape(shape)
            values = total
        found = []
        for axis, (a, b, n) in enumerate(zip(target.start, target.stop, self.shape, strict=True)):
            places = values[axis]
            places += np.arange(a, b).reshape([-1 if other == axis else 1 for other in range(target.ndim)])
            found.append(np.clip(places, 0.0, n - 1.0, out=places))
        return found

    def _cells(self, target: Region) -> list[tuple[int, int]]:
        """Return the first and the last lattice cell of a region per axis."""
        cells = []
        for a, b, n, nodes in zip(target.start, target.stop, self.shape, self.lattice.shape[1:], strict=True):
            first, last = ((o + 0.5) * ((nodes - 3) / n) for o in (a, b - 1))
            cells.append((min(math.floor(first), nodes - 4), min(math.floor(last), nodes - 4)))
        return cells


def _spline(a: int, b: int, n: int, mesh: int) -> tuple[npt.NDArray[np.intp], list[Coordinates]]:
    """Return the lattice cell of each voxel of ``a <= o < b`` of ``n`` and its four cubic B-spline weights (de Boor 1978)."""
    u = np.arange(a, b, dtype=np.float64)
    u += 0.5
    u *= mesh / n
    cell = np.minimum(np.floor(u), mesh - 1.0)
    t = u - cell
    rest = 1.0 - t
    square, cube = t * t, t * t * t
    weights = [
        rest * rest * rest / 6.0,
        (3.0 * cube - 6.0 * square + 4.0) / 6.0,
        (3.0 * square - 3.0 * cube + 3.0 * t + 1.0) / 6.0,
        cube / 6.0,
    ]
    return cell.astype(np.intp), weights
