"""How are values mapped by a few operations, one after the other, in a float type?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mlarray.errors import TransformError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform, float_of
from mlarray.transforms.casting import real
from mlarray.transforms.locality import Locality, Pointwise
from mlarray.transforms.volume import Volume

Operand: TypeAlias = "float | tuple[float, ...]"
Step: TypeAlias = tuple[np.ufunc, Operand]
"""A function of two numbers and its second argument: one for all channels, or one per channel."""


def mapped(block: NDArray, *steps: Step, channels: tuple[int, ...] | None = None) -> NDArray:
    """Return values after some steps, as float32, or as float64 where they are that.

    Integers that float32 does not hold exactly are mapped in float64 and rounded at the end. Infinities and NaN pass through
    without a warning.

    Parameters
    ----------
    block : ndarray, shape (C, spatial...)
        Not changed.
    *steps : (ufunc, number or one number per channel)
        In order.
    channels : tuple of int, optional
        Only these are mapped.
    """
    result = float_of(block.dtype)
    exact = block.dtype.kind == "f" or block.dtype.itemsize <= 2
    values = block.astype(result if exact else np.float64)
    part = values if channels is None else values[list(channels)]
    with np.errstate(all="ignore"):
        for function, operand in steps:
            second: Any = operand
            if isinstance(operand, tuple):
                second = np.asarray(operand, part.dtype).reshape(-1, *([1] * (part.ndim - 1)))
            function(part, second, out=part)
        if channels is not None:
            values[list(channels)] = part
        return values.astype(result, copy=False)


@dataclass(frozen=True, slots=True)
class Mapped(Transform):
    """Values through some steps: what inverses are made of.

    Parameters
    ----------
    label : str
        Name for messages.
    steps : tuple of Step
        See :func:`mapped`.
    channels : tuple of int, optional
        Only these.
    """

    label: str
    steps: tuple[Step, ...]
    channels: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return a float volume."""
        check_channels(self.channels, volume)
        for _, operand in self.steps:
            if isinstance(operand, tuple) and len(operand) not in (1, volume.channels):
                raise TransformError(f"It has {len(operand)} values for {volume.channels} channels.")
        return real(volume).with_(dtype=float_of(volume.dtype))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Map the values."""
        return mapped(block, *self.steps, channels=self.channels)


def check_channels(channels: tuple[int, ...] | None, volume: Volume) -> None:
    """Refuse channels that the volume does not have.

    Raises
    ------
    TransformError
        One is not below the number of channels.
    """
    if channels is not None and max(channels) >= volume.channels:
        raise TransformError(
            f"channels={list(channels)} names one that is not there: the array has {volume.channels}, counted from 0."
        )
