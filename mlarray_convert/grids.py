"""Do two images lie on the same grid, and if not, where do they differ?

Compared with a tolerance, because headers hold float32: spacing within 1e-5 relative, positions within 1e-3 mm. A real
difference is told with both values and the axis, so that a user knows which file to mend; nothing is mended here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlarray.geometry import ALL_PARTS, POSITION_ATOL_MM, SPACING_RTOL, Geometry
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.spec import ArraySpec

_INDEX_ATOL = 1e-2  # of a voxel: float32 headers place the far corner of a large volume no better


@dataclass(frozen=True, slots=True)
class AxisMap:
    """How the array axes of one image become those of another that shows the same voxels.

    Parameters
    ----------
    ndim : int
        Axes of the first array; those that are no axis of the second have one voxel.
    order : tuple of int or None
        ``order[i]`` is the axis of the first array that axis ``i`` of the second one is; None for an axis of one voxel that
        the first does not have.
    flipped : tuple of bool
        Per axis of the second array, whether it runs the other way.
    """

    ndim: int
    order: tuple[int | None, ...]
    flipped: tuple[bool, ...]

    def region(self, region: Region, shape: tuple[int, ...]) -> Region:
        """Return the region of the second array, of ``shape``, that a region of the first one is."""
        start, stop = [], []
        for axis, (source, flip) in enumerate(zip(self.order, self.flipped, strict=True)):
            low, high = (0, 1) if source is None else (region.start[source], region.stop[source])
            start.append(shape[axis] - high if flip else low)
            stop.append(shape[axis] - low if flip else high)
        return Region(tuple(start), tuple(stop))

    def back(self, block: NDArray) -> NDArray:
        """Return voxels of the second array in the axis order of the first."""
        unflipped = block[tuple(slice(None, None, -1 if flip else 1) for flip in self.flipped)]
        kept = unflipped.squeeze(tuple(axis for axis, source in enumerate(self.order) if source is None))
        present = [source for source in self.order if source is not None]
        turned = kept.transpose([present.index(source) for source in sorted(present)])
        return np.expand_dims(turned, tuple(axis for axis in range(self.ndim) if axis not in present))


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

    Time is matched with time, other non-spatial axes in the order in which they stand; those of one voxel are left out
    where only one array has them. Parts of a geometry that one side does not know are not compared, and the axes must then
    agree as they are.
    """
    spatial = _spatial_map(first, second)
    if spatial is None:
        return None
    positions = [axis for axis, is_space in enumerate(first.spatial) if is_space]
    others = [axis for axis, is_space in enumerate(first.spatial) if not is_space]
    theirs = [axis for axis, is_space in enumerate(second.spatial) if not is_space]
    if len(others) != len(theirs):
        others = [axis for axis in others if first.shape[axis] != 1]
        theirs = [axis for axis in theirs if second.shape[axis] != 1]
        if len(others) != len(theirs):
            return None
    matched = {axis: (source, False) for axis, source in zip(theirs, _like(first, others, second, theirs), strict=True)}
    spaces = [axis for axis, is_space in enumerate(second.spatial) if is_space]
    matched |= {axis: (positions[source], flip) for axis, (source, flip) in zip(spaces, spatial, strict=True)}
    if any(first.shape[source] != second.shape[axis] for axis, (source, _) in matched.items()):
        return None
    order = tuple(matched[axis][0] if axis in matched else None for axis in range(second.ndim))
    return AxisMap(first.ndim, order, tuple(matched.get(axis, (0, False))[1] for axis in range(second.ndim)))


def _like(first: ArraySpec, others: Sequence[int], second: ArraySpec, theirs: Sequence[int]) -> list[int]:
    """Return ``others`` in the order of ``theirs``: formats differ in whether time or channels come first."""
    times = [second.axes[axis].type == "time" for axis in theirs]
    if sum(times) != sum(first.axes[axis].type == "time" for axis in others):
        return list(others)
    of_time = iter([axis for axis in others if first.axes[axis].type == "time"])
    of_rest = iter([axis for axis in others if first.axes[axis].type != "time"])
    return [next(of_time if is_time else of_rest) for is_time in times]


def same_frame(first: Geometry, second: Geometry) -> tuple[Geometry, Geometry]:
    """Return both in one world frame where that is known to be the same up to signs; otherwise as they are."""
    frames = [(geometry.coord_system or "").rstrip("+") for geometry in (first, second)]
    if all(frame in ("RAS", "LPS") for frame in frames):
        return first.in_frame("LPS"), second.in_frame("LPS")
    return first, second


def _spatial_map(first: ArraySpec, second: ArraySpec) -> list[tuple[int, bool]] | None:
    count = sum(first.spatial)
    if count != sum(second.spatial):
        return None
    as_they_are = [(axis, False) for axis in range(count)]
    if first.geometry is None or second.geometry is None:
        return as_they_are
    one, other = same_frame(first.geometry, second.geometry)
    if one.known != ALL_PARTS or other.known != ALL_PARTS:
        return None if differences(first, second) else as_they_are
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
