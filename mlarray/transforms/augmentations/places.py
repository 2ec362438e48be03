"""Copies whose voxels change by where they are: noise, a box that is cut out, a mask."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlarray.errors import TransformError, UsageError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.transforms.affine import slabs
from mlarray.transforms.augmentations.drawing import integer_below, key_of, normal_field, uniforms
from mlarray.transforms.augmentations.lists import Augmentation, Draw, Group
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.casting import constant
from mlarray.transforms.locality import Kind, Locality, Pointwise, Regrid
from mlarray.transforms.padding import Window
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Noise(Augmentation):
    """Mix with normal noise, as far as a random step ``t`` of a diffusion: ``sqrt(A[t]) x + sqrt(1 - A[t]) n_std N(0, 1)``.

    ``A`` is the cumulative product of ``1 - beta`` with ``beta`` linear, rescaled so that nothing of the image is left at the
    last step (Lin et al. 2024, "Common diffusion noise schedules and sample steps are flawed"); ``A[0]`` is 1. Every copy is
    selected; ``prob`` limits the steps: ``t`` is uniform from 0 to below ``int(prob * noise_step)``.

    Parameters
    ----------
    n_std : float
        Standard deviation in the units of the voxels.
    noise_step : int
        Number of steps.
    beta_start, beta_end : float
        Of the schedule.
    prob : float
        Share of the steps.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    n_std: float
    noise_step: int = 1000
    beta_start: float = 1e-4
    beta_end: float = 0.02
    prob: float = 1.0
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.noise_step < 1 or not 0 < self.beta_start <= self.beta_end < 1:
            raise UsageError(
                "Noise needs at least one step and 0 < beta_start <= beta_end < 1, "
                f"got {self.noise_step!r}, {self.beta_start!r}, {self.beta_end!r}."
            )

    def is_selected(self, uniform: float) -> bool:
        """Return True: how much noise there is depends on ``prob``, not whether."""
        return True

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the mixture."""
        step = integer_below(uniforms(draw.key, 1)[0], int(self.prob * self.noise_step))
        kept = noise_schedule(self.noise_step, self.beta_start, self.beta_end)[step]
        return NoiseField(math.sqrt(kept), math.sqrt(1.0 - kept) * self.n_std, draw.key)


def noise_schedule(steps: int, beta_start: float, beta_end: float) -> list[float]:
    """Return ``A[0]`` to ``A[steps]``: 1, then the rescaled cumulative products, the last of them 0."""
    products, product = [], 1.0
    for index in range(steps):
        beta = beta_start + (beta_end - beta_start) * (index / (steps - 1) if steps > 1 else 0.0)
        product *= 1.0 - beta
        products.append(math.sqrt(product))
    first, last = products[0], products[-1]
    if steps == 1:
        return [1.0, 0.0]
    return [1.0, *(((one - last) * first / (first - last)) ** 2 for one in products)]


@dataclass(frozen=True, slots=True)
class NoiseField(Transform):
    """``signal * x + noise * N(0, 1)``; the number of a voxel is a function of key, channel and its global index. float32.

    Parameters
    ----------
    signal, noise : float
        Factors.
    key : int
        Of the field.
    """

    signal: float
    noise: float
    key: int

    @property
    def name(self) -> str:
        """Name for messages."""
        return "Noise"

    def locality(self, volume: Volume) -> Locality:
        """Return pointwise; the published rules load the volume."""
        return Pointwise(strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume in float32, or float64 where it was."""
        if volume.dtype.kind == "c":
            raise TransformError(f"Noise is for real numbers, the array is {volume.dtype}.")
        return volume.with_(dtype=np.dtype(np.float64 if volume.dtype == np.float64 else np.float32))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Mix."""
        out = np.empty(block.shape, dtype=context.after.dtype)
        for channel, slab in itertools.product(range(len(block)), slabs(context.target)):
            mixed = normal_field(key_of(self.key, channel), _linear_indices(slab, context.before.shape))
            mixed *= self.noise
            place: Any = (channel, *slab.relative_to(context.target).slices)
            mixed += block[place].astype(np.float64) * self.signal
            out[place] = mixed
        return out


@dataclass(frozen=True, slots=True)
class CutOUT(Augmentation):
    """Replace a box of ``cutout_size`` of each extent, about a random point, by a value.

    Voxel ``i`` is kept if on any axis ``abs((i + 0.5) / n - c) >= cutout_size / 2``, with ``c`` uniform from 0 to 1.

    Parameters
    ----------
    c_prob : float
        How probable it is that a selected copy has a box.
    cutout_size : float
        Share of each extent.
    value : float
        What is put into the box; in integers truncated toward zero and saturated.
    prob : float
        How probable it is that a copy is selected.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    c_prob: float
    cutout_size: float
    value: float
    prob: float = 1.0
    groups: Sequence[str] | None = None

    def drawn(self, volume: Volume, draw: Draw) -> Transform | None:
        """Return the box."""
        gate, *centre = uniforms(draw.key, 1 + volume.ndim)
        return Hole(tuple(centre[::-1]), self.cutout_size, self.value) if gate < self.c_prob else None


@dataclass(frozen=True, slots=True)
class Hole(Transform):
    """A box of a volume replaced by a value.

    Parameters
    ----------
    centre : tuple of float
        Per array axis, share of the extent.
    size : float
        Share of the extents.
    value : float
        In the box.
    """

    centre: tuple[float, ...]
    size: float
    value: float

    @property
    def name(self) -> str:
        """Name for messages."""
        return "CutOUT"

    def locality(self, volume: Volume) -> Locality:
        """Return pointwise; the published rules load the volume."""
        return Pointwise(strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume."""
        constant(self.value, volume.dtype)
        return volume

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Put in the box."""
        inside = np.ones((1,) * block.ndim, dtype=bool)
        for axis, (a, b, n, centre) in enumerate(
            zip(context.target.start, context.target.stop, context.before.shape, self.centre, strict=True)
        ):
            along = np.abs((np.arange(a, b) + 0.5) / n - centre) < self.size / 2
            inside = inside & along.reshape([-1 if other == axis + 1 else 1 for other in range(block.ndim)])
        if not inside.any():
            return block
        return np.where(inside, constant(self.value, block.dtype), block)


@dataclass(frozen=True, slots=True)
class Mask(Augmentation):
    """Show a random window of the volume through a mask: the grid of the mask, and a value where the mask is 0.

    Parameters
    ----------
    mask : str
        Name of the mask among the groups of the plan, or a path, where ``plan(..., opener=mlarray.open_source)`` says how it is
        opened.
    value : float
        Outside of the mask, and beyond a volume that is smaller than the mask.
    prob : float
        How probable it is that a copy is selected.
    groups : sequence of str, optional
        Only for these groups of the case.
    """

    mask: str
    value: float = 0.0
    prob: float = 1.0
    groups: Sequence[str] | None = None

    @property
    def wanted_groups(self) -> tuple[str, ...]:
        """Name of the mask."""
        return (self.mask,)

    def drawn(self, volume: Volume, draw: Draw) -> Transform:
        """Return the window."""
        if self.mask not in draw.groups:
            known = ", ".join(map(repr, draw.groups)) or "none"
            raise UsageError(
                f"Mask: there is no group {self.mask!r}; known are {known}.",
                hint=f"Pass it: plan(..., groups={{{self.mask!r}: source}}).",
            )
        mask = draw.groups[self.mask]
        if mask.volume.ndim != volume.ndim or mask.volume.channels not in (1, volume.channels):
            raise TransformError(
                f"Mask: {self.mask!r} has the shape {mask.volume.array_shape}, the array {volume.array_shape}.",
                hint="A mask has as many spatial axes, and one channel or as many.",
            )
        shares = uniforms(draw.key, volume.ndim)[::-1]
        room = [max(0, n - m) for n, m in zip(volume.shape, mask.volume.shape, strict=True)]
        start = tuple(math.floor(share * free) for share, free in zip(shares, room, strict=True))
        return MaskWindow(start, self.mask, 0.0 if volume.dtype == np.uint8 else self.value, mask)


@dataclass(frozen=True, slots=True)
class MaskWindow(Transform):
    """A box of a volume seen through a mask of the same extents.

    Parameters
    ----------
    start : tuple of int
        First voxel.
    label : str
        Name of the mask.
    value : float
        Where nothing is seen.
    mask : Group
        Read in the region that is computed.
    """

    start: tuple[int, ...]
    label: str
    value: float
    mask: Group = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name for messages."""
        return "Mask"

    def locality(self, volume: Volume) -> Locality:
        """Return that of the window; the published rules load the volume."""
        window = self._window
        inner = window.locality(volume)
        return Regrid(window.shape, inner.pull, strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the window's volume."""
        return self._window.outcome(volume)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Put the value where the mask is 0."""
        window = self._window.apply(block, context)
        mask = self.mask.read(context.target)
        return np.where(mask != 0, window, constant(self.value, block.dtype))

    @property
    def _window(self) -> Window:
        return Window(self.start, self.mask.volume.shape, self.label, self.value)


def _linear_indices(region: Region, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Return the C-order index of each voxel of a region within a volume."""
    index = np.zeros((1,) * len(shape), dtype=np.uint64)
    for axis, (a, b, n) in enumerate(zip(region.start, region.stop, shape, strict=True)):
        along = np.arange(a, b, dtype=np.uint64)
        index = index * np.uint64(n) + along.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    return np.ascontiguousarray(index)
