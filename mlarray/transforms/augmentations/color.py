"""Copies with other colours or grey values: an affine map of the channels.

All of them are matrices ``[A | b]`` of red, green and blue: three channels become ``A x + b``. One channel is taken as grey:
it is multiplied by the mean of the sums of ``A``'s rows and moved by the mean of ``b``, so that what only turns colours leaves
it alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlarray.errors import TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.augmentations.drawing import normals, uniforms
from mlarray.transforms.augmentations.lists import Augmentation, Draw
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Locality, Pointwise
from mlarray.transforms.volume import Volume

GREY = np.full(3, 1.0 / math.sqrt(3.0))
"""Direction of the greys among the colours."""


@dataclass(frozen=True, slots=True)
class ColorTransform(Transform):
    """Map one or three channels by a colour matrix; float32.

    Parameters
    ----------
    matrix : sequence of 3 rows of 4 numbers
        ``[A | b]``.
    label : str
        Name for messages.
    """

    matrix: Sequence[Sequence[float]]
    label: str = "ColorTransform"

    def __post_init__(self) -> None:
        rows = tuple(tuple(float(one) for one in row) for row in self.matrix)
        if [len(row) for row in rows] != [4, 4, 4] or not np.all(np.isfinite(rows)):
            raise UsageError(f"A colour matrix has 3 rows of 4 finite numbers, got {self.matrix!r}.")
        object.__setattr__(self, "matrix", rows)

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label

    def locality(self, volume: Volume) -> Locality:
        """Return pointwise."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return the float32 volume."""
        if volume.channels not in (1, 3) or volume.dtype.kind == "c":
            raise TransformError(
                f"{self.label} maps one or three channels of real numbers, the array has {volume.channels} of {volume.dtype}."
            )
        return volume.with_(dtype=np.dtype(np.float32))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Map the channels: products and sums in float32, or in float64 where the voxels need it."""
        real = np.dtype(np.float32 if block.dtype.itemsize <= 2 or block.dtype == np.float32 else np.float64)
        values = block.astype(real, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            if block.shape[0] == 1:
                gain, offset = self.grey
                return (values * real.type(gain) + real.type(offset)).astype(np.float32, copy=False)
            out = np.empty(block.shape, dtype=np.float32)
            for channel, row in enumerate(self.matrix):
                total = values[0] * real.type(row[0])
                total += values[1] * real.type(row[1])
                total += values[2] * real.type(row[2])
                total += real.type(row[3])
                out[channel] = total
        return out

    @property
    def grey(self) -> tuple[float, float]:
        """Gain and offset of a single channel; float32 numbers, so that rounding makes no difference to a gain of 1."""
        rows = np.array(self.matrix)
        return float(np.float32(rows[:, :3].sum() / 3.0)), float(np.float32(rows[:, 3].sum() / 3.0))


@dataclass(frozen=True, slots=True)
class Brightness(Augmentation):
    """Add ``b_std * N(0, 1)`` to every channel.

    Parameters
    ----------
    b_std : float
        In the units of the voxels.
    prob : float
        How probable it is that a copy is selected.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    b_std: float
    prob: float = 1.0
    groups: Sequence[str] | None = None

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the offset."""
        return _map(np.eye(3), self.b_std * normals(draw.key, 1)[0], self.name)


@dataclass(frozen=True, slots=True)
class Contrast(Augmentation):
    """Multiply every channel by ``2 ** (c_std * N(0, 1))``.

    Parameters
    ----------
    c_std : float
        In powers of 2.
    prob : float
        How probable it is that a copy is selected.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    c_std: float
    prob: float = 1.0
    groups: Sequence[str] | None = None

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the gain."""
        return _map(np.eye(3) * 2.0 ** (self.c_std * normals(draw.key, 1)[0]), 0.0, self.name)


@dataclass(frozen=True, slots=True)
class LumaFlip(Augmentation):
    """Mirror the luminance of every second copy: ``I - 2 v v^T`` with the direction ``v`` of the greys; grey changes its sign.

    Parameters
    ----------
    prob : float
        How probable it is that a copy is selected.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    prob: float = 1.0
    groups: Sequence[str] | None = None

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the mirror, or the identity."""
        flip = 1.0 if uniforms(draw.key, 1)[0] < 0.5 else 0.0
        return _map(np.eye(3) - 2.0 * flip * np.outer(GREY, GREY), 0.0, self.name)


@dataclass(frozen=True, slots=True)
class HUE(Augmentation):
    """Turn colours about the greys by up to ``hue_max`` half turns (Rodrigues' formula).

    Parameters
    ----------
    hue_max : float
        The angle is uniform between ``-pi * hue_max`` and ``pi * hue_max``.
    prob : float
        How probable it is that a copy is selected.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    hue_max: float
    prob: float = 1.0
    groups: Sequence[str] | None = None

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the turn."""
        angle = math.pi * self.hue_max * (2.0 * uniforms(draw.key, 1)[0] - 1.0)
        x, y, z = GREY
        cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
        along = np.outer(GREY, GREY)
        return _map(math.cos(angle) * (np.eye(3) - along) + along + math.sin(angle) * cross, 0.0, self.name)


@dataclass(frozen=True, slots=True)
class Saturation(Augmentation):
    """Scale the distance of colours from the greys by ``2 ** (s_std * N(0, 1))``.

    Parameters
    ----------
    s_std : float
        In powers of 2.
    prob : float
        How probable it is that a copy is selected.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    s_std: float
    prob: float = 1.0
    groups: Sequence[str] | None = None

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the scaling."""
        along = np.outer(GREY, GREY)
        return _map(along + 2.0 ** (self.s_std * normals(draw.key, 1)[0]) * (np.eye(3) - along), 0.0, self.name)


def _map(linear: npt.NDArray[np.float64], offset: float, label: str) -> ColorTransform:
    return ColorTransform(tuple((*row, offset) for row in linear.tolist()), label)
