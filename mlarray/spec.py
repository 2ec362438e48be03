"""What is known about an array before a voxel is read."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.axes import Axis, default_axes, spatial_mask
from mlarray.errors import DTypeError, UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape, dtype, axes and geometry.

    Parameters
    ----------
    shape : tuple of int
        Extent per array axis.
    dtype : numpy dtype
        Bool, integer, float or complex, any byte order.
    axes : tuple of Axis, optional
        One per array axis; default: unnamed spatial axes.
    geometry : Geometry, optional
        Of the spatial axes, in array order; None when nothing is known about it.

    Raises
    ------
    UsageError
        When lengths disagree or an extent is negative.
    DTypeError
        For dtypes that are not plain numbers (objects, strings, structures).
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[Axis, ...] = ()
    geometry: Geometry | None = None

    def __post_init__(self) -> None:
        try:
            shape = tuple(operator.index(extent) for extent in self.shape)
        except TypeError:
            raise UsageError(f"A shape is made of integers, got {self.shape!r}.") from None
        dtype = np.dtype(self.dtype)
        axes = tuple(self.axes) or default_axes(len(shape))
        if any(extent < 0 for extent in shape):
            raise UsageError(f"An array cannot have a negative extent, got shape {shape}.")
        if dtype.kind not in "biufc":
            raise DTypeError(
                f"dtype {dtype} cannot be stored; bool, integer, float and complex numbers can.",
                hint="Split a structured array into a components axis, or convert it to a number type.",
            )
        if len(axes) != len(shape):
            raise UsageError(f"{len(axes)} axes were given for an array of shape {shape}.")
        names = [axis.name for axis in axes]
        if len(set(names)) != len(names):
            raise UsageError(f"Axis names must be unique, got {names}.")
        if self.geometry is not None and self.geometry.ndim != sum(spatial_mask(axes)):
            raise UsageError(
                f"The geometry has {self.geometry.ndim} axes, the array has {sum(spatial_mask(axes))} spatial ones."
            )
        for name, value in (("shape", shape), ("dtype", dtype), ("axes", axes)):
            object.__setattr__(self, name, value)

    @property
    def ndim(self) -> int:
        """Number of array axes."""
        return len(self.shape)

    @property
    def spatial(self) -> tuple[bool, ...]:
        """Per array axis, whether it is spatial."""
        return spatial_mask(self.axes)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Extent of the spatial axes, in array order."""
        return tuple(extent for extent, axis in zip(self.shape, self.axes, strict=True) if axis.is_spatial)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the decompressed array."""
        return self.size * self.dtype.itemsize

    @property
    def region(self) -> Region:
        """The region of the whole array."""
        return Region.full(self.shape)

    def permuted(self, order: Sequence[int]) -> ArraySpec:
        """Return the spec after ``array.transpose(order)``."""
        spatial_position = {axis: i for i, axis in enumerate(i for i, is_space in enumerate(self.spatial) if is_space)}
        spatial_order = [spatial_position[axis] for axis in order if self.axes[axis].is_spatial]
        return ArraySpec(
            tuple(self.shape[i] for i in order),
            self.dtype,
            tuple(self.axes[i] for i in order),
            None if self.geometry is None else self.geometry.permuted(spatial_order),
        )
