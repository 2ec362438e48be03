"""What is a volume on a finer or a coarser grid over the same extent in space?

The cells of both grids fill the same box, so that the centre of output voxel ``o`` lies at ``(o + 0.5) * n / m - 0.5`` of ``n``
input voxels where the output has ``m``; the geometry says so too. Nothing is smoothed before it is thinned out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Locality, Rescale, WholeVolume
from mlarray.transforms.sampling import (
    along_axes,
    check_interpolation,
    is_linear,
    nearest_along_axes,
    reduction_first,
    rescaled_coordinates,
    rescaled_nearest,
)
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume

EXTENT_SLACK = 1e-6
"""Added before an extent is truncated: 512 voxels of 0.9765625 mm are 500 of 1 mm, whatever float rounding says."""


@dataclass(frozen=True, slots=True)
class ResampleToResolution(Transform):
    """Sample a volume at another spacing.

    An axis of ``n`` voxels becomes ``max(1, trunc(n * spacing / target + 1e-6))`` voxels. The spacing of the result is the one
    at which they fill the same box, ``n * spacing / new n``.

    Parameters
    ----------
    spacing : sequence of float
        Millimetres in physical order x, y, z; 0 or less keeps that axis.
    interpolation : {"linear", "nearest"}, optional
        Default: nearest for bool, uint8 and labels, else linear.
    inverse : bool
        Whether carrying a prediction back undoes it.

    Examples
    --------
    >>> ct = Volume(1, (10, 512, 512), np.dtype("i2"), Geometry.from_parts(spacing=(3, 0.9765625, 0.9765625)))
    >>> ResampleToResolution([1, 1, 0]).outcome(ct).shape
    (10, 500, 500)
    """

    spacing: Sequence[float] = (1.0, 1.0, 1.0)
    interpolation: str | None = None
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "spacing", _numbers(self.spacing, float, "spacing"))
        check_interpolation(self.interpolation)

    def locality(self, volume: Volume) -> Locality:
        """Return a rescaling."""
        if self._problem(volume):
            return WholeVolume("the spacing of its input is not known")
        return Rescale(self._shape(volume), is_linear(volume, self.interpolation, integers=True))

    def outcome(self, volume: Volume) -> Volume:
        """Return the resampled volume."""
        problem = self._problem(volume)
        if problem:
            raise TransformError(problem, hint="State the spacing in the header, or use ResampleToShape.")
        return resampled_volume(volume, self._shape(volume))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Sample the voxels."""
        return resampled(block, context, self.interpolation)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the way back to as many voxels as there were."""
        return _back(self.name, before, self.interpolation)

    def _problem(self, volume: Volume) -> str:
        if volume.spacing_xyz is None:
            return "The spacing of the input is not known."
        if len(self.spacing) != volume.ndim:
            return f"{len(self.spacing)} spacings {list(self.spacing)} were given for {volume.ndim} spatial axes."
        return ""

    def _shape(self, volume: Volume) -> tuple[int, ...]:
        current = volume.spacing_xyz
        assert current is not None
        return tuple(
            n if wanted <= 0 else max(1, int(n * own / wanted + EXTENT_SLACK))
            for n, own, wanted in zip(volume.shape, current[::-1], self.spacing[::-1], strict=True)
        )


@dataclass(frozen=True, slots=True)
class ResampleToShape(Transform):
    """Sample a volume with another number of voxels per axis.

    Parameters
    ----------
    shape : sequence of int
        Spatial extents in array order; 0 or less keeps that axis.
    interpolation : {"linear", "nearest"}, optional
        Default: nearest for bool, uint8 and labels, else linear.
    inverse : bool
        Whether carrying a prediction back undoes it.
    """

    shape: Sequence[int] = (100, 256, 256)
    interpolation: str | None = None
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _numbers(self.shape, int, "shape"))
        check_interpolation(self.interpolation)

    def locality(self, volume: Volume) -> Locality:
        """Return a rescaling."""
        if len(self.shape) != volume.ndim:
            return WholeVolume("its shape is not that of the input's axes")
        return Rescale(self._shape(volume), is_linear(volume, self.interpolation, integers=True))

    def outcome(self, volume: Volume) -> Volume:
        """Return the resampled volume."""
        if len(self.shape) != volume.ndim:
            raise TransformError(f"The shape {list(self.shape)} was given for {volume.ndim} spatial axes.")
        return resampled_volume(volume, self._shape(volume))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Sample the voxels."""
        return resampled(block, context, self.interpolation)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the way back to as many voxels as there were."""
        return _back(self.name, before, self.interpolation)

    def _shape(self, volume: Volume) -> tuple[int, ...]:
        return tuple(wanted if wanted > 0 else n for wanted, n in zip(self.shape, volume.shape, strict=True))


def resampled_volume(volume: Volume, shape: tuple[int, ...]) -> Volume:
    """Return a volume with other extents over the same box; input and output extents are noted as ``Size``."""
    if any(n == 0 for n in volume.shape):
        raise TransformError(f"A volume without voxels, {volume.shape}, cannot be resampled.")
    after = volume.with_(
        shape=shape,
        geometry=rescaled_geometry(volume.geometry, volume.shape, shape),
        on_stored_grid=volume.on_stored_grid and shape == volume.shape,
    )
    return after.push("Size", volume.shape).push("Size", shape)


def rescaled_geometry(geometry: Geometry | None, before: tuple[int, ...], after: tuple[int, ...]) -> Geometry | None:
    """Return the geometry whose ``after`` voxels fill the box of ``before`` ones; its origin is the first voxel's centre."""
    if geometry is None or before == after:
        return geometry
    scale = np.array(before) / np.array(after)
    affine = geometry.affine.copy()
    affine[:-1, :-1] = geometry.linear * scale
    affine[:-1, -1] = geometry.world(0.5 * scale - 0.5)
    return Geometry(affine, geometry.coord_system, geometry.known)


def resampled(block: NDArray, context: Context, interpolation: str | None) -> NDArray:
    """Return the target of a context, sampled from the block of its source."""
    before, after, target = context.before.shape, context.after.shape, context.target
    start = context.source.start
    axes = zip(target.start, target.stop, before, after, strict=True)
    if not is_linear(context.before, interpolation, integers=True):
        return nearest_along_axes(block, start, [rescaled_nearest(a, b, n, m) for a, b, n, m in axes])
    places = [rescaled_coordinates(a, b, n, m) for a, b, n, m in axes]
    return along_axes(block, start, places, reduction_first(before, after))


def _back(name: str, before: Volume, interpolation: str | None) -> Transform:
    # "nearest" was asked for because of labels; "linear" may have been for an image whose prediction is labels.
    return Undo(name, ResampleToShape(before.shape, "nearest" if interpolation == "nearest" else None), before)


def _numbers(given: object, kind: type[float] | type[int], what: str) -> tuple[float, ...]:
    try:
        if isinstance(given, str):
            raise TypeError
        found = tuple(float(one) for one in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise UsageError(f"{what} is one number per spatial axis, got {given!r}.") from None
    if not all(np.isfinite(found)) or (kind is int and any(one != int(one) for one in found)):
        raise UsageError(f"{what} is one {'integer' if kind is int else 'finite number'} per axis, got {given!r}.")
    return tuple(kind(one) for one in found)
