"""Which axis of a volume runs where, and which way?

Mirroring and exchanging axes moves voxels in memory and leaves them where they are in the world: spacing and direction follow
the axes, the origin is the centre of the voxel that comes first then. The box of a later ``Crop``, which is known on the stored
grid, follows as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Locality, Orientation, WholeVolume
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume

SIGNED_PERMUTATION_ATOL = 1e-5
"""How far a matrix may be from a signed permutation: about what float32 direction cosines in headers hold."""

_LINE_BYTES, _LINES_OF_A_PLACE, _SAME_PLACE_BYTES = 64, 8, 4096  # of a processor's first cache
_SPREAD_BYTES = 8 << 20  # a whole volume is not copied twice

Axes = tuple[tuple[int, ...], tuple[bool, ...]]
"""Output axis ``i`` is input axis ``order[i]``, backwards where ``mirrored[i]``."""


# --- what axes are ---------------------------------------------------------------------------------------------------------


def oriented(volume: Volume, order: Sequence[int], mirrored: Sequence[bool]) -> Volume:
    """Return the volume after exchanging and mirroring axes; its geometry and the box of ``Crop`` follow."""
    shape = tuple(volume.shape[axis] for axis in order)
    geometry, attributes = volume.geometry, volume.attributes
    if geometry is not None:
        geometry = geometry.permuted(order)
        for axis, backwards in enumerate(mirrored):
            if backwards:
                geometry = geometry.flipped(axis, shape[axis])
    box = attributes.get("box")
    if box is not None and volume.on_stored_grid:
        moved = tuple(
            tuple(reversed(box[axis])) if backwards else tuple(box[axis])
            for axis, backwards in zip(order, mirrored, strict=True)
        )
        attributes = attributes.pop("box").push("box", moved)
    return volume.with_(shape=shape, geometry=geometry, attributes=attributes)


def reordered(block: NDArray, order: Sequence[int], mirrored: Sequence[bool]) -> NDArray:
    """Return an array ``[C, spatial...]`` with its spatial axes exchanged and mirrored, in C order."""
    axes = (0, *(axis + 1 for axis in order))
    moved = _spread(block, axes[-1]).transpose(axes)
    return np.ascontiguousarray(moved[(slice(None), *(slice(None, None, -1 if flip else 1) for flip in mirrored))])


def _spread(block: NDArray, axis: int) -> NDArray:
    """Return an array whose values can be read quickly along an axis: itself, or a copy with a gap after each step.

    What lies a multiple of 4 KiB apart has the same place in a processor's cache, which holds 8 to 12 lines for each place. A
    step along z of a patch of 64 x 64 is such a multiple: its 64 values displace each other, and every access waits. With gaps,
    exchanging the axes of a patch of int16 takes 0.11 ms instead of 0.29, of 128^3 2 ms instead of 11, both copies counted.
    """
    step = math.prod(block.shape[axis + 1 :])
    crowd = block.shape[axis] * math.gcd(step * block.itemsize, _SAME_PLACE_BYTES) // _SAME_PLACE_BYTES
    if crowd < _LINES_OF_A_PLACE or block.nbytes > _SPREAD_BYTES:
        return block
    gap = _LINE_BYTES // block.itemsize
    spread = np.empty((*block.shape[: axis + 1], step + gap), block.dtype)[..., :step].reshape(block.shape)
    spread[...] = block
    return spread


def signed_permutation(matrix: npt.NDArray[np.float64]) -> Axes | None:
    """Return the axes of a matrix that is a signed permutation, else None.

    Parameters
    ----------
    matrix : ndarray, shape (n, n)
        Output axis ``c`` runs along input axis ``r`` where ``matrix[r, c]`` is 1 or -1. Every entry is within
        :data:`SIGNED_PERMUTATION_ATOL` of -1, 0 or 1: columns that merely add up to 1 are not taken for one.
    """
    size = np.abs(matrix)
    order = tuple(int(row) for row in size.argmax(axis=0))
    expected = np.zeros_like(size)
    expected[list(order), range(len(order))] = 1.0
    if sorted(order) != list(range(len(order))) or not bool(np.all(np.abs(size - expected) <= SIGNED_PERMUTATION_ATOL)):
        return None
    return order, tuple(bool(matrix[row, column] < 0) for column, row in enumerate(order))


def parsed_axes(dims: str | int | Sequence[int], what: str) -> tuple[int, ...]:
    """Return axes given as ``"1|0|2"``, as integers, or as one of them.

    Raises
    ------
    UsageError
        Not integers from 0 on, or one twice.
    """
    try:
        given = dims.split("|") if isinstance(dims, str) else [dims] if isinstance(dims, int) else dims
        found = tuple(int(one) for one in given)
    except (TypeError, ValueError):
        found = (-1,)
    if any(axis < 0 for axis in found) or len(set(found)) != len(found):
        raise UsageError(f"{what} takes spatial axes such as '1|0|2', each once, counted from 0; got {dims!r}.")
    return found


@dataclass(frozen=True, slots=True)
class Reoriented(Transform):
    """Axes exchanged and mirrored: what ``Flip``, ``Permute`` and quarter turns are.

    Parameters
    ----------
    order : tuple of int
        Output axis ``i`` is input axis ``order[i]``.
    mirrored : tuple of bool
        Per output axis.
    label : str
        Name for messages.
    inverse : bool
        Whether carrying a prediction back undoes it.
    """

    order: tuple[int, ...]
    mirrored: tuple[bool, ...]
    label: str = "Reoriented"
    inverse: bool = True
    invertible = True

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label

    def locality(self, volume: Volume) -> Locality:
        """Return the orientation."""
        if len(self.order) != volume.ndim:
            return WholeVolume(f"its axes are not those of {volume.ndim} dimensions")
        return Orientation(self.order, self.mirrored)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume with its axes exchanged."""
        if len(self.order) != volume.ndim:
            raise TransformError(
                f"{self.label} is for {len(self.order)} spatial axes, the array has {volume.ndim}: {volume.shape}."
            )
        return oriented(volume, self.order, self.mirrored)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Move the voxels."""
        return reordered(block, self.order, self.mirrored)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the axes put back."""
        return Undo(self.label, reorientation_back(self.order, self.mirrored), before)


def reorientation_back(order: tuple[int, ...], mirrored: tuple[bool, ...]) -> Reoriented:
    """Return the transform that undoes an exchange of axes."""
    places = [order.index(axis) for axis in range(len(order))]
    return Reoriented(tuple(places), tuple(mirrored[place] for place in places))


# --- the transforms --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flip(Transform):
    """Reverse axes.

    Parameters
    ----------
    dims : str or sequence of int
        Spatial axes in array order, from 0, joined by ``|``. The default reverses all three.
    inverse : bool
        Whether carrying a prediction back undoes it.

    Examples
    --------
    >>> from mlarray.geometry import Geometry
    >>> Flip("0").outcome(Volume(1, (4, 5, 6), np.dtype("f4"), Geometry.from_parts(spacing=(3, 1, 1)))).geometry.origin
    (9.0, 0.0, 0.0)
    """

    dims: str | int | Sequence[int] = "1|0|2"
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        parsed_axes(self.dims, "Flip")

    def locality(self, volume: Volume) -> Locality:
        """Return the orientation."""
        mirrored = self._mirrored(volume)
        return WholeVolume("it names an axis that there is not") if mirrored is None else _turned(mirrored)

    def outcome(self, volume: Volume) -> Volume:
        """Return the mirrored volume."""
        mirrored = self._mirrored(volume)
        if mirrored is None:
            raise TransformError(
                f"dims {self.dims!r} names an axis that an array with {volume.ndim} spatial axes does not have.",
                hint=f"Axes are counted from 0 to {volume.ndim - 1}, without the channels.",
            )
        return oriented(volume, range(volume.ndim), mirrored)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Reverse the axes."""
        axes = parsed_axes(self.dims, "Flip")
        return np.ascontiguousarray(np.flip(block, tuple(axis + 1 for axis in axes)))

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the same flip."""
        return Undo(self.name, Flip(self.dims), before)

    def _mirrored(self, volume: Volume) -> tuple[bool, ...] | None:
        axes = parsed_axes(self.dims, "Flip")
        return None if max(axes, default=0) >= volume.ndim else tuple(axis in axes for axis in range(volume.ndim))


@dataclass(frozen=True, slots=True)
class Permute(Transform):
    """Exchange axes: output axis ``k`` is input axis ``dims[k]``.

    Parameters
    ----------
    dims : str or sequence of int
        Spatial axes in array order, from 0, each once, joined by ``|``.
    inverse : bool
        Whether carrying a prediction back undoes it.
    """

    dims: str | int | Sequence[int] = "1|0|2"
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        axes = parsed_axes(self.dims, "Permute")
        if sorted(axes) != list(range(len(axes))):
            raise UsageError(f"Permute needs every axis once, such as '1|0|2', got {self.dims!r}.")

    def locality(self, volume: Volume) -> Locality:
        """Return the orientation."""
        return self._axes().locality(volume)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume with its axes exchanged."""
        return self._axes().outcome(volume)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Exchange the axes."""
        return self._axes().apply(block, context)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the axes put back."""
        return self._axes().inverted(before, after, measured)

    def _axes(self) -> Reoriented:
        order = parsed_axes(self.dims, "Permute")
        return Reoriented(order, (False,) * len(order), self.name)


def _turned(mirrored: tuple[bool, ...]) -> Orientation:
    return Orientation(tuple(range(len(mirrored))), mirrored)
