"""Copies that are mirrored, with axes exchanged, or turned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.affine import AffineMap
from mlarray.transforms.augmentations.drawing import integer_below, uniforms
from mlarray.transforms.augmentations.lists import Augmentation, Draw
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.canonical import Sampled
from mlarray.transforms.locality import Kind, Locality, Orientation
from mlarray.transforms.orientation import Flip as FlipAxes
from mlarray.transforms.orientation import Reoriented, oriented, reordered, signed_permutation
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Flip(Augmentation):
    """Mirror each axis with its own probability.

    Parameters
    ----------
    f_prob : sequence of float
        Per spatial axis in array order.
    vector_field : bool
        Whether the channels of a volume with as many as axes are a vector in the axes' directions, x first: the component of a
        mirrored axis changes its sign.
    prob : float
        How probable it is that a copy is selected.
    """

    f_prob: Sequence[float] = (0.33, 0.33, 0.33)
    vector_field: bool = False
    prob: float = 1.0

    def drawn(self, volume: Volume, draw: Draw) -> Transform | None:
        """Return the flip."""
        if len(self.f_prob) < volume.ndim:
            raise TransformError(f"Flip has {len(self.f_prob)} probabilities for {volume.ndim} spatial axes.")
        shares = uniforms(draw.key, len(self.f_prob))
        axes = [axis for axis in range(volume.ndim) if shares[axis] < self.f_prob[axis]]
        if not axes:
            return None
        if self.vector_field and volume.channels == volume.ndim:
            if volume.dtype.kind not in "ifc":
                raise TransformError(
                    f"Vectors of {volume.dtype} cannot change their sign.", hint="Cast to float32 first."
                )
            return VectorFlip(tuple(axis in axes for axis in range(volume.ndim)))
        return FlipAxes("|".join(map(str, axes)))


@dataclass(frozen=True, slots=True)
class VectorFlip(Transform):
    """Axes reversed in a field of vectors, with the sign of these components.

    Parameters
    ----------
    mirrored : tuple of bool
        Per spatial axis, array order. Channel 0 is the component along the last axis (x).
    inverse : bool
        Whether carrying a prediction back undoes it.
    """

    mirrored: tuple[bool, ...]
    inverse: bool = True
    invertible = True

    @property
    def name(self) -> str:
        """Name for messages."""
        return "Flip"

    def locality(self, volume: Volume) -> Locality:
        """Return an orientation that changes values."""
        order = tuple(range(len(self.mirrored)))
        return Orientation(order, self.mirrored, preserves_statistics=False, strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the mirrored volume."""
        return oriented(volume, range(len(self.mirrored)), self.mirrored)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Reverse the axes and the components."""
        moved = reordered(block, range(len(self.mirrored)), self.mirrored)
        moved = moved.copy() if np.shares_memory(moved, block) else moved
        is_vector = len(block) == len(self.mirrored) and block.dtype.kind in "ifc"  # a prediction need not be
        for channel, backwards in enumerate(reversed(self.mirrored)):
            if backwards and is_vector:
                if block.dtype.kind == "i":  # the least integer has no counterpart: saturate
                    np.maximum(moved[channel], -np.iinfo(block.dtype).max, out=moved[channel])
                np.negative(moved[channel], out=moved[channel])
        return moved

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the same flip; of a prediction with other channels, the axes alone."""
        return Undo(self.name, VectorFlip(self.mirrored), before)


@dataclass(frozen=True, slots=True)
class Permute(Augmentation):
    """Exchange axes of a 3-D volume, (z, y, x) reading (y, z, x), then (x, z, y), each with its own probability.

    Parameters
    ----------
    prob_permute : sequence of two floats, or None
        Probabilities of the two exchanges. None: of exactly two selected copies, the first gets the first exchange, the second
        the second.
    prob : float
        How probable it is that a copy is selected.
    """

    prob_permute: Sequence[float] | None = (0.5, 0.5)
    prob: float = 1.0

    def __post_init__(self) -> None:
        if self.prob_permute is not None and len(self.prob_permute) != 2:
            raise UsageError(f"prob_permute has two probabilities, got {self.prob_permute!r}.")

    def drawn(self, volume: Volume, draw: Draw) -> Transform | None:
        """Return the exchange."""
        if volume.ndim != 3:
            raise TransformError(f"Permute is for three spatial axes, the array has {volume.ndim}.")
        if self.prob_permute is None:
            if draw.selected != 2:
                raise UsageError(
                    f"Permute with prob_permute=None makes two copies, the list selects {draw.selected}.",
                    hint="Set nb=2 and prob=1, or give probabilities.",
                )
            first, second = draw.rank == 0, draw.rank == 1
        else:
            shares = uniforms(draw.key, 2)
            first, second = (share < wanted for share, wanted in zip(shares, self.prob_permute, strict=True))
        order = (1, 0, 2) if first else (0, 1, 2)
        if second:
            order = (order[2], order[0], order[1])
        return Reoriented(order, (False,) * 3, self.name) if first or second else None


@dataclass(frozen=True, slots=True)
class Rotate(Augmentation):
    """Turn a volume about its centre, in millimetres and about its own axes x, y, z.

    Output point ``p`` shows input point ``R p`` with ``R = Rz Ry Rx``. Turns that exchange axes (quarters) move voxels and
    change none; others keep the grid's extents, reflect about the border voxels, and interpolate floats only.

    Parameters
    ----------
    a_min, a_max : float
        Degrees; one angle per axis is drawn between them.
    is_quarter : bool
        Draw from 90, 180 and 270 instead.
    prob : float
        How probable it is that a copy is selected.
    """

    a_min: float = 0.0
    a_max: float = 360.0
    is_quarter: bool = False
    prob: float = 1.0

    def drawn(self, volume: Volume, draw: Draw) -> Transform | None:
        """Return the turn."""
        if volume.ndim not in (2, 3):
            raise TransformError(f"Rotate is for two or three spatial axes, the array has {volume.ndim}.")
        shares = uniforms(draw.key, 3)
        if self.is_quarter:
            angles = [90.0 * (1 + integer_below(share, 3)) for share in shares]
        else:
            angles = [self.a_min + (self.a_max - self.a_min) * share for share in shares]
        # Rows and columns in array order from here on.
        matrix = rotation_xyz(angles[: 1 if volume.ndim == 2 else 3])[::-1, ::-1]
        axes = signed_permutation(matrix)
        if axes is not None:
            return None if axes == ((*range(volume.ndim),), (False,) * volume.ndim) else Reoriented(*axes, self.name)
        spacing = np.ones(volume.ndim) if volume.geometry is None else np.array(volume.geometry.spacing)
        scaled = matrix * (spacing / spacing[:, np.newaxis])
        centre = (np.array(volume.shape) - 1) / 2
        placed = AffineMap.of(scaled, centre - (scaled * centre).sum(axis=1))
        return Sampled(placed, volume.shape, self.name, integers=False)


def rotation_xyz(angles: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the rotation of points (x, y) by one angle in degrees, or of points (x, y, z) as ``Rz Ry Rx``."""
    turns = []
    for angle, (a, b) in zip(angles, ((1, 2), (2, 0), (0, 1)), strict=False):
        cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        if len(angles) == 1:
            return np.array([[cosine, -sine], [sine, cosine]])
        turn = np.eye(3)
        turn[a, a], turn[a, b], turn[b, a], turn[b, b] = cosine, -sine, sine, cosine
        turns.append(turn)
    return np.asarray(turns[2] @ turns[1] @ turns[0])
