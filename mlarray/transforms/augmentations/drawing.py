"""Which numbers does a copy get, and how do they stay the same on every machine?

A draw is a function of what it is for: seed, epoch, case, list, copy, position. These are hashed (BLAKE2b) to a 64-bit *key*,
and the numbers of a key are those of a counter: ``mix(key + i * golden ratio)``, the SplitMix64 generator of Steele, Lea and
Flood (2014), which can be asked for its number ``i`` directly. Nothing depends on who asked for what before.

Normal numbers come from the inverse of the normal distribution (Wichura 1988, AS 241) by additions, multiplications,
divisions and square roots alone, which IEEE 754 fixes to the last bit; so does the logarithm that its tails need.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

UInts = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_GOLDEN = 0x9E3779B97F4A7C15
_FIELD_VOXELS = 1 << 14  # a chunk of 128 KiB per array stays in the cache
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476

# Wichura (1988), PPND16: numerators and denominators, highest power first.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
     5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip


def key_of(*words: object) -> int:
    """Return the 64-bit key of what a draw is for; strings, numbers and tuples of them."""
    text = "\x1f".join(f"{type(word).__name__}:{len(str(word))}:{word}" for word in words)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def numbers(key: int, counters: UInts) -> UInts:
    """Return the 64 random bits of each counter; ``counters`` is the caller's own and is changed."""
    counters *= np.uint64(_GOLDEN)
    counters += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        counters ^= counters >> np.uint64(shift)
        counters *= np.uint64(factor)
    counters ^= counters >> np.uint64(31)
    return counters


def uniforms(key: int, count: int) -> list[float]:
    """Return ``count`` numbers from 0 to below 1, in steps of 2**-53."""
    bits = numbers(key, np.arange(1, count + 1, dtype=np.uint64))
    return [int(one) / 2.0**53 for one in (bits >> np.uint64(11)).tolist()]


def normals(key: int, count: int) -> list[float]:
    """Return ``count`` numbers of the standard normal distribution."""
    found = _normal(numbers(key, np.arange(1, count + 1, dtype=np.uint64)))
    return [float(one) for one in found]


def normal_field(key: int, indices: UInts) -> Floats:
    """Return a standard normal number per voxel index; ``indices`` is the caller's own and is changed.

    Parameters
    ----------
    key : int
        Of the field.
    indices : ndarray of uint64
        Global linear indices of voxels, any shape, in C order.
    """
    flat = indices.reshape(-1)
    out = np.empty(flat.shape)
    for start in range(0, flat.size, _FIELD_VOXELS):
        part = flat[start : start + _FIELD_VOXELS]
        out[start : start + _FIELD_VOXELS] = _normal(numbers(key, part))
    return out.reshape(indices.shape)


def _normal(bits: UInts) -> Floats:
    """Return the normal quantile of each number's upper 32 bits, taken as the middle of a step; at most 6.3 in size."""
    share = (bits >> np.uint64(32)).astype(np.float64)
    share += 0.5
    share *= 2.0**-32
    centred = share - 0.5
    square = 0.180625 - centred * centred
    value = _ratio(_CENTRE, square)
    value *= centred
    outer = np.flatnonzero(square < 0)
    if outer.size:
        below = centred[outer] < 0
        tail = np.where(below, share[outer], 1.0 - share[outer])
        far = _ratio(_TAIL, np.sqrt(-_logarithm(tail)) - 1.6)
        value[outer] = np.where(below, -far, far)
    return value


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Floats) -> Floats:
    parts = []
    for first, *rest in coefficients:
        total = np.full_like(x, first)
        for one in rest:
            total *= x
            total += one
        parts.append(total)
    parts[0] /= parts[1]
    return parts[0]


def _logarithm(x: Floats) -> Floats:
    """Return the natural logarithm of numbers from 2**-33 to 1, to 1e-15.

    ``ln(m 2**e) = e ln 2 + 2 artanh((m - 1) / (m + 1))`` with ``m`` from ``sqrt(1/2)`` to ``sqrt(2)``, artanh by its series.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    power = np.where(small, exponent - 1, exponent).astype(np.float64)
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    series = np.full_like(z, 1.0 / 21.0)
    for odd in range(19, 0, -2):
        series *= square
        series += 1.0 / odd
    return np.asarray(power * _LN2 + 2.0 * z * series)


def integer_below(uniform: float, high: int) -> int:
    """Return a whole number from 0 to ``high - 1``; 0 where there is no other."""
    return min(math.floor(uniform * high), high - 1) if high > 0 else 0
