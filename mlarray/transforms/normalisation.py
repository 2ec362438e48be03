"""How are values brought to a common scale? By statistics of the whole volume: measured, given, or left by an earlier stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.errors import TransformError, UsageError
from mlarray.notice import notice
from mlarray.sources.base import NDArray
from mlarray.transforms.arithmetic import Mapped, Operand, check_channels, mapped
from mlarray.transforms.base import Context, Transform, float_of
from mlarray.transforms.captured import fill, leave, left, take
from mlarray.transforms.casting import is_finite, real
from mlarray.transforms.locality import GlobalStatistic, Kind, Locality, Pointwise
from mlarray.transforms.statistics import Moments, Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import MEASURED, Volume


@dataclass(frozen=True, slots=True)
class Normalize(Transform):
    """Spread the volume's range over another: ``out = (max_value - min_value) * (x - a) / (b - a) + min_value``.

    a and b are ``Min`` and ``Max`` where a stage of the chain left them (``Normalize(lazy=True)``, ``Clip(save_clip_min=True)``),
    else the extremes of this stage's own input. The result is float32, float64 for float64; NaN in the volume makes all of it
    NaN, with a warning. A constant volume becomes ``min_value``, with a warning.

    Parameters
    ----------
    lazy : bool
        Only leave ``Min`` and ``Max`` for a later stage; the values stay.
    channels : sequence of int, optional
        Only these are measured and mapped. Default: all, with one range.
    min_value, max_value : float
        The new range.
    inverse : bool
        Whether carrying a prediction back undoes it, by ``(x - min_value) * (b - a) / (max_value - min_value) + a``: the stored
        values to a few roundings of the result's type.

    Raises
    ------
    UsageError
        A range that is empty or not finite, or channels that are not integers from 0 on.
    """

    lazy: bool = False
    channels: Sequence[int] | None = None
    min_value: float = -1
    max_value: float = 1
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        if not is_finite(self.min_value) or not is_finite(self.max_value) or self.max_value <= self.min_value:
            raise UsageError(
                f"Normalize needs finite numbers, max_value above min_value, got {self.min_value!r} and {self.max_value!r}."
            )
        object.__setattr__(self, "channels", _channels(self.channels))

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself, once the range is known."""
        return GlobalStatistic()

    def outcome(self, volume: Volume) -> Volume:
        """Return a float volume; with ``lazy``, the volume."""
        check_channels(self._chosen, real(volume))
        if self.lazy:
            return leave(volume, ("Min", "Max"))
        return take(volume, ("Min", "Max")).with_(dtype=float_of(volume.dtype))

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        """Return the extremes, unless they were left for this stage."""
        return () if not self.lazy and left(volume, "Min") and left(volume, "Max") else (Moments(self._chosen),)

    def noted(self, after: Volume, measured: Mapping[Statistic, Any]) -> Volume:
        """Return the volume with ``Min`` and ``Max``."""
        for key, field in (("Min", "minimum"), ("Max", "maximum")):
            if after.attributes[key] is MEASURED:
                after = fill(after, key, getattr(measured[Moments(self._chosen)], field))
        if not self.lazy and after.attributes["Min"] == after.attributes["Max"]:
            _warn(after, f"all values are {after.attributes['Min']:g}; Normalize makes them {self.min_value:g}")
        return after

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Spread the values."""
        if self.lazy:
            return block
        low, high = context.after.attributes["Min"], context.after.attributes["Max"]
        start, width = float(self.min_value), float(self.max_value) - float(self.min_value)
        if low == high:
            values = mapped(block)
            values[slice(None) if self._chosen is None else list(self._chosen)] = start
            return values
        steps = ((np.subtract, float(low)), (np.multiply, width), (np.divide, float(high - low)), (np.add, start))
        return mapped(block, *steps, channels=self._chosen)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform | None:
        """Return the range spread back; None where nothing was changed."""
        if self.lazy:
            return None
        low, high = float(after.attributes["Min"]), float(after.attributes["Max"])
        start, width = float(self.min_value), float(self.max_value) - float(self.min_value)
        steps = ((np.subtract, start), (np.multiply, high - low), (np.divide, width), (np.add, low))
        return Undo(self.name, Mapped(self.name, steps, self._chosen), before)

    @property
    def _chosen(self) -> tuple[int, ...] | None:
        return self.channels  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Standardize(Transform):
    """Bring the volume to mean 0 and deviation 1: ``out = (x - mean) / std``, with ``n - 1`` in the deviation.

    mean and std are ``Mean`` and ``Std`` where ``Standardize(lazy=True)`` left them, else those given, else those of this stage's
    own input: one number over all channels. The result is float32, float64 for float64; NaN in the volume makes all of it NaN,
    with a warning. A constant volume becomes 0 (a deviation of 0 divides by 1), with a warning.

    Parameters
    ----------
    lazy : bool
        Only leave ``Mean`` and ``Std`` for a later stage; the values stay.
    mean, std : float or sequence of float, optional
        One number, or one per channel; std above 0.
    mask : str, optional
        Name of a group; only voxels where it is not 0 are measured. All voxels are mapped.
    inverse : bool
        Whether carrying a prediction back undoes it, by ``x * std + mean``: the stored values to a few roundings of the result's
        type.

    Raises
    ------
    UsageError
        mean or std that are not finite, or a std that is not above 0.
    """

    lazy: bool = False
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None
    mask: str | None = None
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            values = given if given is None or isinstance(given, (Sequence, np.ndarray)) else (given,)
            if values is None:
                continue
            wrong = not len(values) or not all(is_finite(one) for one in values)
            if wrong or (name == "std" and min(values) <= 0):
                raise UsageError(
                    f"Standardize takes for {name} finite numbers{' above 0' if name == 'std' else ''}, one or one per channel; "
                    f"got {given!r}."
                )
            object.__setattr__(self, name, tuple(float(one) for one in values))

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself, once mean and deviation are known."""
        strict = None if self.mask is None else Kind.WHOLE_VOLUME
        if self.mean is not None and self.std is not None:
            return Pointwise(strict_kind=strict or Kind.POINTWISE)
        return GlobalStatistic(strict_kind=strict or Kind.GLOBAL_STAT)

    def outcome(self, volume: Volume) -> Volume:
        """Return a float volume; with ``lazy``, the volume."""
        for name, given in (("mean", self.mean), ("std", self.std)):
            if isinstance(given, tuple) and len(given) not in (1, volume.channels):
                raise TransformError(
                    f"Standardize has {len(given)} values for {name}, the array {volume.channels} channels.",
                    hint="Give one, or one per channel.",
                )
        if self.lazy:
            return leave(real(volume), ("Mean", "Std"))
        return take(real(volume), ("Mean", "Std")).with_(dtype=float_of(volume.dtype))

    def groups(self, volume: Volume) -> tuple[str, ...]:
        """Return the mask's name."""
        return () if self.mask is None else (self.mask,)

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        """Return mean and deviation, unless they are given, or were left for this stage."""
        known = [
            given is not None or (not self.lazy and left(volume, key))
            for key, given in (("Mean", self.mean), ("Std", self.std))
        ]
        return () if all(known) else (Moments(mask=self.mask),)

    def noted(self, after: Volume, measured: Mapping[Statistic, Any]) -> Volume:
        """Return the volume with ``Mean`` and ``Std``."""
        for key, given, field in (("Mean", self.mean, "mean"), ("Std", self.std, "std")):
            if after.attributes[key] is MEASURED:
                value = getattr(measured[Moments(mask=self.mask)], field) if given is None else _plain(given)
                after = fill(after, key, value)
        if not self.lazy and after.attributes["Std"] == 0:
            _warn(
                after,
                f"all measured values are {after.attributes['Mean']}; Standardize divides by 1 instead of their deviation 0",
            )
        return after

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Subtract and divide."""
        if self.lazy:
            return block
        mean, std = _mean_and_std(context.after)
        return mapped(block, (np.subtract, mean), (np.divide, std))

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform | None:
        """Return multiplication and addition; None where nothing was changed."""
        if self.lazy:
            return None
        mean, std = _mean_and_std(after)
        return Undo(self.name, Mapped(self.name, ((np.multiply, std), (np.add, mean))), before)


@dataclass(frozen=True, slots=True)
class Statistics(Transform):
    """Note ``ImageMin``, ``ImageMax``, ``ImageMean`` and ``ImageStd`` (with ``n - 1``) of the volume; the values stay."""

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return GlobalStatistic(strict_kind=Kind.WHOLE_VOLUME, preserves_statistics=True)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume, with the statistics announced."""
        for key in _IMAGE_KEYS:
            volume = volume.push(key, MEASURED)
        return real(volume)

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        """Return the moments."""
        return (Moments(),)

    def noted(self, after: Volume, measured: Mapping[Statistic, Any]) -> Volume:
        """Return the volume with the statistics."""
        for key, field in _IMAGE_KEYS.items():
            after = fill(after, key, getattr(measured[Moments()], field))
        return after

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Return the block."""
        return block


_IMAGE_KEYS = {"ImageMin": "minimum", "ImageMax": "maximum", "ImageMean": "mean", "ImageStd": "std"}


def _channels(given: Any) -> tuple[int, ...] | None:
    """Return channels in order, each once.

    Raises
    ------
    UsageError
        Other than integers from 0 on.
    """
    if given is None:
        return None
    listed = given if isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, str) else (given,)
    if not len(listed) or not all(
        isinstance(one, (int, np.integer)) and not isinstance(one, bool) and one >= 0 for one in listed
    ):
        raise UsageError(f"Normalize takes for channels integers from 0 on, got {given!r}.")
    return tuple(sorted({int(one) for one in listed}))


def _mean_and_std(volume: Volume) -> tuple[Operand, Operand]:
    """Return what was noted; a deviation of 0 counts as 1."""
    mean, std = volume.attributes["Mean"], volume.attributes["Std"]
    return mean, 1.0 if std == 0 else std


def _plain(given: float | Sequence[float]) -> float | tuple[float, ...]:
    values = tuple(given) if isinstance(given, Sequence) else (given,)
    return values[0] if len(values) == 1 else values


def _warn(volume: Volume, what: str) -> None:
    case = f"Case {volume.case!r}" if volume.case else "A volume"
    notice(f"{case} is constant: {what}.")
