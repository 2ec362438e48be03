"""How does a number become one of another type? Never wrapped: what does not fit becomes the nearest value that does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mlarray.errors import TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import rounded_to
from mlarray.transforms.volume import Volume

NUMBER_TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)
_EXACT_BITS = {np.dtype(np.float16): 11, np.dtype(np.float32): 24, np.dtype(np.float64): 53}


def number_type(name: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype of a name.

    Raises
    ------
    UsageError
        Any other than :data:`NUMBER_TYPES`.
    """
    if isinstance(name, str):
        text = name
    else:
        try:
            text = np.dtype(name).name
        except TypeError:
            text = str(name)
    if text not in NUMBER_TYPES:
        why = "bfloat16 has no numpy type" if "bfloat16" in text else f"{text!r} is not a type of numbers here"
        raise UsageError(f"{why}; allowed are {', '.join(NUMBER_TYPES)}.", hint="Take float32 or float16.")
    return np.dtype(text)


def real(volume: Volume) -> Volume:
    """Return the volume, whose values have an order.

    Raises
    ------
    TransformError
        They are complex.
    """
    if volume.dtype.kind not in "biuf":
        raise TransformError(
            f"It takes real numbers, not {volume.dtype}.", hint="Store the magnitude, or the real part."
        )
    return volume


def holds_all(target: np.dtype[Any], stored: np.dtype[Any]) -> bool:
    """Tell whether the float type ``target`` holds every value of ``stored`` exactly; False for any other target.

    float32 holds those of up to 16 bits and itself, float64 those of up to 32 bits and itself.
    """
    if target not in (np.float32, np.float64) or stored.kind not in "biuf":
        return False
    if stored.kind == "f":
        return stored.itemsize <= target.itemsize
    return stored.kind == "b" or 8 * stored.itemsize <= _EXACT_BITS[target]


def truncated_to(values: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return values as another type: floats truncated toward zero and saturated in an integer type, integers saturated.

    A bool is whether the value is not 0. Always a new array, in C order.

    Raises
    ------
    TransformError
        NaN, for an integer type.
    """
    if dtype.kind == "b":
        return np.asarray(values != 0)
    if dtype.kind in "iu" and values.dtype.kind == "f":
        _refuse_nan(values, dtype)
        return rounded_to(np.trunc(_wide(values)), dtype)
    if dtype.kind in "iu" and values.dtype.kind in "iu":
        return saturated_to(values, dtype)
    with np.errstate(over="ignore"):  # beyond float16 lies infinity, as IEEE 754 rounds
        return values.astype(dtype)


def cast_back(values: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return results as the type they came from: rounded half to even and saturated in an integer type.

    Raises
    ------
    TransformError
        NaN, for an integer type.
    """
    if dtype.kind in "iu" and values.dtype.kind == "f":
        _refuse_nan(values, dtype)
        return rounded_to(_wide(values), dtype)
    return truncated_to(values, dtype)


def saturated_to(values: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return integers as another integer type; what lies beyond its ends becomes its end."""
    ours, theirs = np.iinfo(values.dtype), np.iinfo(dtype)
    low, high = max(ours.min, theirs.min), min(ours.max, theirs.max)
    if low > ours.min or high < ours.max:
        values = np.minimum(np.maximum(values, values.dtype.type(low)), values.dtype.type(high))
    return values.astype(dtype)


def constant(value: float, dtype: np.dtype[Any]) -> Any:
    """Return one number as a type, by the rules of :func:`truncated_to`.

    Raises
    ------
    TransformError
        NaN, for an integer type.
    """
    if dtype.kind in "iu" and isinstance(value, int):
        limits = np.iinfo(dtype)
        return dtype.type(min(max(value, int(limits.min)), int(limits.max)))
    return truncated_to(np.array([value], dtype=np.float64), dtype)[0]


def is_number(value: object) -> bool:
    """Tell whether a parameter is a real number; a bool is none."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Tell whether a parameter is a finite real number."""
    return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


def _wide(values: NDArray) -> NDArray:
    """Return floats in a type that holds the ends of every integer type without becoming infinite."""
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _refuse_nan(values: NDArray, dtype: np.dtype[Any]) -> None:
    if bool(np.isnan(values).any()):
        raise TransformError(
            f"NaN cannot become {dtype}.", hint="Replace NaN in the stored volume, or stay with a float type."
        )
