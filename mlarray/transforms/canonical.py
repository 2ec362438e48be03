"""How does a volume lie the way radiologists agree on, and what is a volume on a grid that is turned against its own?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import TransformError
from mlarray.geometry import Geometry
from mlarray.orientation import closest_permutation
from mlarray.sources.base import NDArray
from mlarray.transforms.affine import AffineMap, sampled
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Kind, Locality, Orientation, Regrid, WholeVolume
from mlarray.transforms.orientation import Axes, oriented, reordered, reorientation_back, signed_permutation
from mlarray.transforms.sampling import check_interpolation, is_linear
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Canonical(Transform):
    """Turn a volume so that x runs to the patient's Right, y to Anterior and z to Superior: direction ``diag(-1, -1, 1)`` in LPS.

    Where the axes are the anatomical ones in another order, they are exchanged and mirrored and no value changes. An oblique
    volume is sampled anew in millimetres about its centre, on a grid with the extents and spacings of the axes that are
    closest; beyond the volume it is reflected about the border voxels.

    Parameters
    ----------
    inverse : bool
        Whether carrying a prediction back undoes it.
    interpolation : {"linear", "nearest"}, optional
        Of oblique volumes. Default: nearest for bool, uint8 and labels, else linear.
    """

    inverse: bool = True
    interpolation: str | None = None
    invertible = True

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)

    def locality(self, volume: Volume) -> Locality:
        """Return an orientation, or a regridding for oblique volumes."""
        geometry = volume.geometry
        if geometry is None or not _has_direction(volume):
            return WholeVolume("the direction of its input is not known")
        axes = canonical_axes(geometry)
        if axes is not None:
            return Orientation(*axes)
        grid, placed = _straight(geometry, volume.shape)
        linear = is_linear(volume, self.interpolation, integers=True)
        return Regrid(grid, partial(placed.window, linear), strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the turned volume."""
        geometry = volume.geometry
        if geometry is None or not _has_direction(volume):
            raise TransformError(
                f"A volume of {volume.ndim} spatial axes whose direction is not known cannot be turned.",
                hint="Canonical needs three spatial axes with a direction in the header.",
            )
        axes = canonical_axes(geometry)
        if axes is not None:
            return oriented(volume, *axes)
        if "spacing" not in geometry.known:
            raise TransformError(
                "An oblique volume whose spacing is not known cannot be turned.",
                hint="State the spacing in the header.",
            )
        grid, placed = _straight(geometry, volume.shape)
        return volume.with_(shape=grid, geometry=placed.geometry(geometry), on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Turn the voxels."""
        geometry = context.before.geometry
        assert geometry is not None
        axes = canonical_axes(geometry)
        if axes is not None:
            return reordered(block, *axes)
        shape = context.before.shape
        _, placed = _straight(geometry, shape)
        linear = is_linear(context.before, self.interpolation, integers=True)
        places = partial(placed.coordinates, shape=shape)
        return sampled(block, context.source, context.target, shape, places, linear=linear)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the way back to the stored axes."""
        geometry = before.geometry
        assert geometry is not None
        axes = canonical_axes(geometry)
        if axes is not None:
            return Undo(self.name, reorientation_back(*axes), before)
        _, placed = _straight(geometry, before.shape)
        return Undo(self.name, Sampled(placed.inverted(), before.shape, self.name, self.interpolation), before)


@dataclass(frozen=True, slots=True)
class Sampled(Transform):
    """A volume sampled where an affine map says, each voxel keeping its place in the world.

    Parameters
    ----------
    placed : AffineMap
        From output index to input index.
    shape : tuple of int
        Of the output.
    label : str
        Name for messages.
    interpolation : {"linear", "nearest"}, optional
        Default: nearest for bool, uint8 and labels, else linear.
    integers : bool
        Whether other integers are interpolated too.
    inverse : bool
        Whether carrying a prediction back undoes it.
    """

    placed: AffineMap
    shape: tuple[int, ...]
    label: str = "Sampled"
    interpolation: str | None = None
    integers: bool = True
    inverse: bool = True
    invertible = True

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label

    def locality(self, volume: Volume) -> Locality:
        """Return a regridding."""
        return Regrid(self.shape, partial(self.placed.window, self._is_linear(volume)), strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the sampled volume."""
        return volume.with_(shape=self.shape, geometry=self.placed.geometry(volume.geometry), on_stored_grid=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Sample the voxels."""
        shape, linear = context.before.shape, self._is_linear(context.before)
        places = partial(self.placed.coordinates, shape=shape)
        return sampled(block, context.source, context.target, shape, places, linear=linear)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the map back."""
        back = Sampled(self.placed.inverted(), before.shape, self.label, self.interpolation, self.integers)
        return Undo(self.label, back, before)

    def _is_linear(self, volume: Volume) -> bool:
        return is_linear(volume, self.interpolation, integers=self.integers)


def canonical_direction(geometry: Geometry) -> npt.NDArray[np.float64]:
    """Return the canonical direction in the volume's own frame, columns per array axis z, y, x: that of ITK's LPS if unknown."""
    in_ras = (geometry.coord_system or "").rstrip("+") == "RAS"
    columns_xyz = np.diag([1.0, 1.0, 1.0] if in_ras else [-1.0, -1.0, 1.0])
    return np.asarray(columns_xyz[:, ::-1])


@lru_cache(maxsize=256)
def canonical_axes(geometry: Geometry) -> Axes | None:
    """Return the axes of the canonical orientation, or None for an oblique volume. Every patch of a volume asks."""
    return signed_permutation(np.linalg.inv(geometry.direction) @ canonical_direction(geometry))


def _straight(geometry: Geometry, shape: tuple[int, ...]) -> tuple[tuple[int, ...], AffineMap]:
    """Return the canonical grid of an oblique volume, and where its voxels lie in the volume."""
    target = canonical_direction(geometry)
    order = [axis for axis, _ in closest_permutation(np.linalg.inv(geometry.direction) @ target)]
    grid = tuple(shape[axis] for axis in order)
    step = target * np.array([geometry.spacing[axis] for axis in order])
    matrix = np.linalg.inv(geometry.linear) @ step
    centre_in = (np.array(shape) - 1) / 2
    centre_out = (np.array(grid) - 1) / 2
    return grid, AffineMap.of(matrix, centre_in - matrix @ centre_out)


def _has_direction(volume: Volume) -> bool:
    return volume.ndim == 3 and volume.geometry is not None and "direction" in volume.geometry.known
