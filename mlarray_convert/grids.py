"""Do two images lie on the same grid, and if not, where do they differ?

Compared with a tolerance, because headers hold float32: spacing within 1e-5 relative, positions within 1e-3 mm. A real
difference is told with both values and the axis, so that a user knows which file to mend; nothing is mended here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlarray.geometry import POSITION_ATOL_MM, SPACING_RTOL, Geometry
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.spec import ArraySpec

_INDEX_ATOL = 1e-2  # of a voxel: float32 headers place the far corner of a large volume no better


@dataclass(frozen=True, slots=True)
class AxisMap:
    """How the array axes of one image become those of another that shows the same voxels.

    Parameters
    ----------
    order : tuple of int
        ``order[i]`` is the axis of the first array that axis ``i`` of the second one is.
    flipped : tuple of bool
        Per axis of the second array, whether it runs the other way.
    """

    order: tuple[int, ...]
    flipped: tuple[bool, ...]

    def region(self, region: Region, shape: tuple[int, ...]) -> Region:
        """Return the region of the second array, of ``shape``, that a region of the first one is."""
        start, stop = [], []
        for axis, (source, flip) in enumerate(zip(self.order, self.flipped, strict=True)):
            low, high = region.start[source], region.stop[source]
            start.append(shape[axis] - high if flip else low)
            stop.append(shape[axis] - low if flip else high)
        return Region(tuple(start), tuple(stop))

    def back(self, block: NDArray) -> NDArray:
        """Return voxels of the second array in the axis order of the first."""
        unflipped = block[tuple(slice(None, None, -1 if flip else 1) for flip in self.flipped)]
        return unflipped.transpose([self.order.index(axis) for axis in range(block.ndim)])


def differences(first: ArraySpec, second: ArraySpec) -> tuple[str, ...]:
    """Name what differs between the grids of two images, one sentence part each; nothing where they are the same.

    Parameters
    ----------
    first, second : ArraySpec
        Only their spatial axes are compared; parts of a geometry that one of them does not know are not.
    """
    names = [axis.name for axis in first.axes if axis.is_spatial]
    if first.spatial_shape != second.spatial_shape:
        return (f"shape is {_numbers(first.spatial_shape)} and {_numbers(second.spatial_shape)} voxels",)
    if first.geometry is None or second.geometry is None:
        return ()
    one, other = same_frame(first.geometry, second.geometry)
    known = one.known & other.known
    found: list[str] = []
    if one.coord_system != other.coord_system and None not in (one.coord_system, other.coord_system):
        found.append(f"world frame is {one.coord_system} and {other.coord_system}")
    if "spacing" in known:
        for name, a, b in zip(names, one.spacing, other.spacing, strict=True):
            if not np.isclose(a, b, rtol=SPACING_RTOL, atol=0):
                found.append(f"spacing along axis {name} is {a:.6g} and {b:.6g} mm")
    if "direction" in known:
        for axis, name in enumerate(names):
            step, other_step = one.direction[:, axis], other.direction[:, axis]
            if not np.allclose(step, other_step, rtol=0, atol=SPACING_RTOL):
                found.append(f"direction of axis {name} is {_vector(step)} and {_vector(other_step)}")
    if "origin" in known:
        for world, (a, b) in enumerate(zip(one.origin, other.origin, strict=True)):
            if abs(a - b) > POSITION_ATOL_MM + SPACING_RTOL * abs(b):
                found.append(f"origin along world {'xyz'[world] if world < 3 else world} is {a:.6g} and {b:.6g} mm")
    return tuple(found)


def axis_map(first: ArraySpec, second: ArraySpec) -> AxisMap | None:
    """Return how the axes of ``first`` become those of ``second``, or None when no order of axes makes them one grid.

    Non-spatial axes are matched in the order in which they stand. Without geometry on both sides the axes must agree as
    they are.
    """
    if first.ndim != second.ndim or sum(first.spatial) != sum(second.spatial):
        return None
    spatial = _spatial_map(first, second)
    if spatial is None:
        return None
    positions = [i for i, is_space in enumerate(first.spatial) if is_space]
    others = iter([i for i, is_space in enumerate(first.spatial) if not is_space])
    pairs = iter(spatial)
    order, flipped = [], []
    for is_space in second.spatial:
        source, flip = next(pairs) if is_space else (0, False)
        order.append(positions[source] if is_space else next(others))
        flipped.append(flip)
    if tuple(first.shape[axis] for axis in order) != second.shape:
        return None
    return AxisMap(tuple(order), tuple(flipped))


def same_frame(first: Geometry, second: Geometry) -> tuple[Geometry, Geometry]:
    """Return both in one world frame where that is known to be the same up to signs; otherwise as they are."""
    frames = [(geometry.coord_system or "").rstrip("+") for geometry in (first, second)]
    if all(frame in ("RAS", "LPS") for frame in frames):
        return first.in_frame("LPS"), second.in_frame("LPS")
    return first, second


def _spatial_map(first: ArraySpec, second: ArraySpec) -> list[tuple[int, bool]] | None:
    count = sum(first.spatial)
    if first.geometry is None or second.geometry is None:
        return [(axis, False) for axis in range(count)]
    one, other = same_frame(first.geometry, second.geometry)
    if one.coord_system != other.coord_system and None not in (one.coord_system, other.coord_system):
        return None
    index_map = np.linalg.inv(other.affine) @ one.affine  # index of the first to index of the second
    far = np.array([max(1, extent - 1) for extent in first.spatial_shape])
    result = []
    for axis in range(count):
        row = index_map[axis, :count]
        source = int(np.abs(row).argmax())
        sign = 1.0 if row[source] > 0 else -1.0
        expected = np.zeros(count)
        expected[source] = sign
        shift = 0.0 if sign > 0 else second.spatial_shape[axis] - 1.0
        error = float(np.abs((row - expected) * far).sum() + abs(index_map[axis, count] - shift))
        if error > _INDEX_ATOL:
            return None
        result.append((source, sign < 0))
    return result if len({source for source, _ in result}) == count else None


def _numbers(values: tuple[int, ...]) -> str:
    return " x ".join(map(str, values))


def _vector(values: NDArray) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"
