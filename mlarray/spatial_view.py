"""Geometry as attributes of an array: spacing, origin, direction, affine and what derives from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.axes import Axis
from mlarray.geometry import Geometry
from mlarray.metadata.spatial import axes_of, geometry_of

Numbers = Sequence[float]
Matrix = Sequence[Sequence[float]]


class SpatialView:
    """Attributes that show or change ``meta.spatial``. Lists are live: ``image.spacing[1] = 5.3`` changes the metadata."""

    _axes_record: object

    @property
    def meta(self) -> Any:
        """The metadata, or None after closing."""
        raise AttributeError("meta")

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Extent per array axis, or None without an array."""
        raise AttributeError("shape")

    @property
    def spacing(self) -> list[float] | None:
        """Spacing per spatial axis in array-axis order, or None when it is not stated."""
        return None if self.meta is None else self.meta.spatial.spacing

    @spacing.setter
    def spacing(self, value: Numbers | npt.NDArray[Any] | None) -> None:
        self._spatial().spacing = value

    @property
    def origin(self) -> list[float] | None:
        """World position of the first voxel, or None when it is not stated."""
        return None if self.meta is None else self.meta.spatial.origin

    @origin.setter
    def origin(self, value: Numbers | npt.NDArray[Any] | None) -> None:
        self._spatial().origin = value

    @property
    def direction(self) -> list[list[float]] | None:
        """Direction matrix, column ``i`` for spatial array axis ``i``, or None when it is not stated."""
        return None if self.meta is None else self.meta.spatial.direction

    @direction.setter
    def direction(self, value: Matrix | npt.NDArray[Any] | None) -> None:
        self._spatial().direction = value

    @property
    def affine(self) -> list[list[float]] | None:
        """Homogeneous matrix ``[direction @ diag(spacing) | origin]``; neutral where nothing is stated.

        Setting it needs spacing, origin and direction unset. None without an array.
        """
        if self.meta is None or self.spatial_ndim is None:
            return None
        spatial = self.meta.spatial
        if spatial.affine is not None:
            return list(spatial.affine)
        count = self.spatial_ndim
        affine = np.eye(count + 1)
        direction = np.eye(count) if spatial.direction is None else np.asarray(spatial.direction, dtype=float)
        affine[:count, :count] = direction * (
            1.0 if spatial.spacing is None else np.asarray(spatial.spacing, dtype=float)
        )
        if spatial.origin is not None:
            affine[:count, count] = spatial.origin
        return list(affine.tolist())

    @affine.setter
    def affine(self, value: Matrix | npt.NDArray[Any] | None) -> None:
        self._spatial().affine = value

    @property
    def translation(self) -> list[float] | None:
        """Last column of the affine, or None without an array."""
        affine = self.affine
        return None if affine is None else [row[-1] for row in affine[:-1]]

    @property
    def scale(self) -> list[float] | None:
        """Length of each column of the affine, or None without an array."""
        linear = self._linear()
        return None if linear is None else list(np.linalg.norm(linear, axis=0).tolist())

    @property
    def rotation(self) -> list[list[float]] | None:
        """Columns of the affine divided by their lengths, or None without an array."""
        linear = self._linear()
        return None if linear is None else list((linear / np.linalg.norm(linear, axis=0)).tolist())

    @property
    def shear(self) -> list[list[float]] | None:
        """Scalar products of the affine's columns, row ``i`` in units of column ``i`` squared: the identity without shear."""
        linear = self._linear()
        if linear is None:
            return None
        gram = linear.T @ linear
        return list((gram / np.diag(gram)[:, None]).tolist())

    @property
    def axes(self) -> tuple[Axis, ...] | None:
        """What each array axis means, or None without an array."""
        if self.meta is None or self.shape is None:
            return None
        return axes_of(self.meta.spatial, len(self.shape), self._axes_record)

    @property
    def geometry(self) -> Geometry | None:
        """The geometry as one value, also from an affine; None when nothing is stated or it is contradictory."""
        axes = self.axes
        return None if axes is None or self.meta is None else geometry_of(self.meta.spatial, axes)

    @property
    def spatial_ndim(self) -> int | None:
        """Number of spatial axes, or None without an array."""
        axes = self.axes
        return None if axes is None else sum(axis.is_spatial for axis in axes)

    def _spatial(self) -> Any:
        if self.meta is None:
            raise AttributeError("the array is closed; its metadata cannot be changed")
        return self.meta.spatial

    def _linear(self) -> npt.NDArray[np.float64] | None:
        affine = self.affine
        return None if affine is None else np.asarray(affine, dtype=np.float64)[:-1, :-1]
