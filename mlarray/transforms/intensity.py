"""What becomes of the value of a voxel, whatever its neighbours are? Casts, bounds and fixed scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mlarray.errors import UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.arithmetic import mapped
from mlarray.transforms.base import Context, Transform, float_of
from mlarray.transforms.captured import fill, leave
from mlarray.transforms.casting import (
    cast_back,
    holds_all,
    is_finite,
    is_number,
    number_type,
    real,
    truncated_to,
)
from mlarray.transforms.locality import GlobalStatistic, Kind, Locality, Pointwise
from mlarray.transforms.quantiles import Percentiles
from mlarray.transforms.statistics import Moments, Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class TensorCast(Transform):
    """Give the values another type: ``out = x`` as ``dtype``.

    Floats are truncated toward zero in an integer type; what an integer type cannot hold becomes its nearest end, and NaN there
    is an error. Beyond float16 lies infinity. Statistics of the input stay those of the output only where float32 or float64
    holds every value of the input's type.

    Parameters
    ----------
    dtype : str
        ``"bool"``, ``"int8"`` ... ``"uint64"``, ``"float16"``, ``"float32"`` or ``"float64"``.
    inverse : bool
        Whether carrying a prediction back casts it to the input's type; there it is rounded half to even.

    Raises
    ------
    UsageError
        Another type; bfloat16, which numpy does not have.

    Notes
    -----
    Pushes ``dtype``: the name of the input's type.

    Examples
    --------
    >>> TensorCast("uint8").outcome(Volume(1, (4, 4), np.dtype("i2"))).dtype
    dtype('uint8')
    """

    dtype: str = "float32"
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", number_type(self.dtype).name)

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise(preserves_statistics=holds_all(np.dtype(self.dtype), volume.dtype))

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume with the type, and the old one noted."""
        return real(volume).with_(dtype=np.dtype(self.dtype)).push("dtype", volume.dtype.name)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Cast."""
        return truncated_to(block, context.after.dtype)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the cast to the type before."""
        return Undo(self.name, CastBack(before.dtype.name), before)


@dataclass(frozen=True, slots=True)
class CastBack(Transform):
    """Values as a type, rounded half to even and saturated in an integer type."""

    dtype: str

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume with the type."""
        return real(volume).with_(dtype=np.dtype(self.dtype))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Cast."""
        return cast_back(block, context.after.dtype)


@dataclass(frozen=True, slots=True)
class Clip(Transform):
    """Keep values within bounds: ``out = min(max(x, low), high)``; where the bounds cross, the upper one counts.

    A bound of an integer volume is rounded inward (the lower one up, the upper one down), a bound that the type cannot hold is
    its end. NaN voxels stay NaN, and a bound that is NaN changes nothing.

    Parameters
    ----------
    min_value, max_value : number or str
        A number; ``"min"`` / ``"max"``, the extremes of the volume; or ``"percentile:<p>"``, with p from 0 to 100, over all
        channels: exactly the linear one of ``numpy.percentile`` (Hyndman and Fan 1996, definition 7).
    save_clip_min, save_clip_max : bool
        Push the bound that was used as ``Min`` / ``Max``. A later ``Normalize`` takes it instead of measuring.
    mask : str, optional
        Name of a group; extremes and percentiles are those of the voxels where it is not 0. All voxels are clipped.

    Raises
    ------
    UsageError
        Another string, or numbers that leave nothing between them.
    """

    min_value: float | str = -1024
    max_value: float | str = 1024
    save_clip_min: bool = False
    save_clip_max: bool = False
    mask: str | None = None

    def __post_init__(self) -> None:
        low, high = _bound(self.min_value, "min"), _bound(self.max_value, "max")
        if is_number(low) and is_number(high) and low >= high:  # type: ignore[operator]
            raise UsageError(f"Clip needs max_value above min_value, got {low} and {high}.")

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself, once the bounds are known."""
        bounds = [_bound(self.min_value, "min"), _bound(self.max_value, "max")]
        strict = Kind.WHOLE_VOLUME if self.mask is not None or any(isinstance(one, tuple) for one in bounds) else None
        if all(is_number(one) for one in bounds):
            return Pointwise(strict_kind=strict or Kind.POINTWISE)
        return GlobalStatistic(strict_kind=strict or Kind.GLOBAL_STAT)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume, with the bounds announced that are saved."""
        return leave(real(volume), self._saved())

    def groups(self, volume: Volume) -> tuple[str, ...]:
        """Return the mask's name."""
        return () if self.mask is None else (self.mask,)

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        """Return the extremes and percentiles that the bounds need; extremes without a mask change nothing."""
        bounds = (_bound(self.min_value, "min"), _bound(self.max_value, "max"))
        if bounds == ("min", "max") and self.mask is None and not self._saved():
            return ()
        found: list[Statistic] = []
        if any(isinstance(one, str) for one in bounds):
            found.append(Moments(mask=self.mask))
        if any(isinstance(one, tuple) for one in bounds):
            found.append(self._percentiles(volume))
        return tuple(found)

    def noted(self, after: Volume, measured: Mapping[Statistic, Any]) -> Volume:
        """Return the volume with the bounds that are saved."""
        for key, value in zip(("Min", "Max"), self._bounds(after, measured), strict=True):
            if key in self._saved():
                after = fill(after, key, float("nan") if value is None else _plain(value))
        return after

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Clip."""
        if not self.statistics(context.before) and not is_number(self.min_value):
            return block
        low, high = self._bounds(context.before, context.measured)
        return clipped(block, low, high)

    def _saved(self) -> tuple[str, ...]:
        return (*(("Min",) if self.save_clip_min else ()), *(("Max",) if self.save_clip_max else ()))

    def _percentiles(self, volume: Volume) -> Percentiles:
        bounds = (_bound(self.min_value, "min"), _bound(self.max_value, "max"))
        wanted = sorted({one[1] for one in bounds if isinstance(one, tuple)})
        return Percentiles(tuple(wanted), volume.dtype.name, self.mask)

    def _bounds(self, volume: Volume, measured: Mapping[Statistic, Any]) -> tuple[Any, Any]:
        """Return the bounds as values of the volume's type; None where one changes nothing."""
        found = []
        for given, extreme, inward in ((self.min_value, "min", math.ceil), (self.max_value, "max", math.floor)):
            bound = _bound(given, extreme)
            if bound == "min":
                value = measured[Moments(mask=self.mask)].minimum if self.statistics(volume) else math.nan
            elif bound == "max":
                value = measured[Moments(mask=self.mask)].maximum if self.statistics(volume) else math.nan
            elif isinstance(bound, tuple):
                percentiles = self._percentiles(volume)
                value = measured[percentiles][percentiles.percentiles.index(bound[1])]
            else:
                value = bound
            found.append(_of_type(value, volume.dtype, inward))
        return found[0], found[1]


def clipped(block: NDArray, low: Any, high: Any) -> NDArray:
    """Return values within bounds of their own type; None is no bound."""
    if low is None and high is None:
        return block
    if block.dtype.kind == "b":
        return clipped(block.view(np.uint8), _as_uint8(low), _as_uint8(high)).view(np.bool_)
    values: NDArray = np.clip(
        block, low, high
    )  # ten times as fast as maximum and minimum for integers of 8 and 16 bits
    if block.dtype.kind == "f" and (low == 0 or high == 0):
        # Which of 0.0 and -0.0 is larger depends on where a vector loop ends; after adding 0 there is no -0.0.
        values += values.dtype.type(0)
    return values


def _as_uint8(bound: Any) -> Any:
    return None if bound is None else np.uint8(bound)


def _bound(given: float | str, extreme: str) -> float | str | tuple[str, float]:
    """Return a bound as a number, as ``"min"`` / ``"max"``, or as a percentile.

    Raises
    ------
    UsageError
        Anything else.
    """
    if is_number(given):
        return given
    if given == extreme:
        return extreme
    if isinstance(given, str) and given.startswith("percentile:"):
        try:
            percentile = float(given.removeprefix("percentile:"))
        except ValueError:
            percentile = math.nan
        if 0 <= percentile <= 100:
            return ("percentile", percentile)
    raise UsageError(
        f"Clip takes for {extreme}_value a number, {extreme!r}, or 'percentile:<p>' with p from 0 to 100; got {given!r}."
    )


@lru_cache(maxsize=256)
def _of_type(value: Any, dtype: np.dtype[Any], inward: Any) -> Any:
    """Return a bound as a value of a type: rounded inward for integers, at the end of the type where that is nearer.

    Every patch asks.
    """
    if math.isnan(value):
        return None
    if dtype.kind == "f":
        limit = float(np.finfo(dtype).max)
        if not math.isinf(value):
            value = min(max(float(value), -limit), limit)
        return dtype.type(value)
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if math.isinf(value):
        return dtype.type(low if value < 0 else high)
    return dtype.type(min(max(inward(value), low), high))


def _plain(value: Any) -> float | int:
    """Return a bound as a float, or as an int where a float would round it."""
    exact = value.item()
    return exact if isinstance(exact, int) and int(float(exact)) != exact else float(exact)


@dataclass(frozen=True, slots=True)
class UnNormalize(Transform):
    """Spread values of -1 to 1 over a range: ``out = (x + 1) / 2 * (max_value - min_value) + min_value``.

    The result is float32, float64 for float64.

    Parameters
    ----------
    min_value, max_value : float
        What -1 and 1 become.
    """

    min_value: float = -1024
    max_value: float = 3071

    def __post_init__(self) -> None:
        if not is_finite(self.min_value) or not is_finite(self.max_value):
            raise UsageError(f"UnNormalize takes two finite numbers, got {self.min_value!r} and {self.max_value!r}.")

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return a float volume."""
        return real(volume).with_(dtype=float_of(volume.dtype))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Spread the values."""
        low, high = float(self.min_value), float(self.max_value)
        return mapped(block, (np.add, 1.0), (np.divide, 2.0), (np.multiply, high - low), (np.add, low))


@dataclass(frozen=True, slots=True)
class Percentage(Transform):
    """Values as percent of a baseline: ``out = x / baseline * 100``; float32, float64 for float64.

    Parameters
    ----------
    baseline : float
        Not 0.
    """

    baseline: float

    def __post_init__(self) -> None:
        if not is_finite(self.baseline) or self.baseline == 0:
            raise UsageError(f"Percentage takes a finite baseline other than 0, got {self.baseline!r}.")

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return a float volume."""
        return real(volume).with_(dtype=float_of(volume.dtype))

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Divide and multiply."""
        return mapped(block, (np.divide, float(self.baseline)), (np.multiply, 100.0))
