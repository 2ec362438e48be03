"""Which patches cover a volume?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming.arguments import whole

Overlap = int | float | str | Sequence[int | float | str] | None
FREE_AXIS_OVERLAP = 0.2


@dataclass(frozen=True, slots=True)
class PatchGrid(Sequence[Region]):
    """Overlapping patches, last axis fastest; each is within the volume.

    Parameters
    ----------
    shape : tuple of int
        Spatial extents.
    patch_size : tuple of int
        Extent of a patch, at most the volume's.
    starts : tuple of tuple of int
        First voxels per axis.
    """

    shape: tuple[int, ...]
    patch_size: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return math.prod(len(line) for line in self.starts)

    def __getitem__(self, index: int) -> Region:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(f"Patch {index} of {len(self)}.")
        places = np.unravel_index(index % len(self), [len(line) for line in self.starts])
        return self._patch([line[int(i)] for line, i in zip(self.starts, places, strict=True)])

    def __iter__(self) -> Iterator[Region]:
        return (self._patch(start) for start in itertools.product(*self.starts))

    def _patch(self, start: Sequence[int]) -> Region:
        return Region(
            tuple(start), tuple(min(a + p, n) for a, p, n in zip(start, self.patch_size, self.shape, strict=True))
        )


def extents_of(name: str, shape: object) -> tuple[int, ...]:
    """Return the extents of an array: whole numbers from 0 on.

    Raises
    ------
    UsageError
        Anything else.
    """
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise UsageError(f"{name} has a whole number for each axis, got {shape!r}.")
    return tuple(whole(f"An extent of {name}", n, 0) for n in shape)


def patch_grid(shape: Sequence[int], patch_size: int | Sequence[int] | None, overlap: Overlap = None) -> PatchGrid:
    """Return the patches that cover a volume.

    Parameters
    ----------
    shape : sequence of int
        Spatial extents.
    patch_size : int, sequence of int or None
        Per axis: above 0 fixed, 0 free (the whole extent); None: the whole volume.
    overlap : optional
        Voxels (int), a share of the patch (float below 1, or ``"20%"``), or one of these per axis. None spreads the patches
        evenly with the least overlap, or, where an axis is free, takes 20 % on the others.

    Raises
    ------
    UsageError
        Wrong number of entries, negative extents, or an overlap that is not below the patch.

    Examples
    --------
    >>> [patch.start[0] for patch in patch_grid((10,), 4)]
    [0, 3, 6]
    >>> [(patch.start[0], patch.stop[0]) for patch in patch_grid((10,), 4, overlap=0)]
    [(0, 4), (4, 8), (8, 10)]
    """
    extents = extents_of("shape", shape)
    wanted = _per_axis(0 if patch_size is None else patch_size, len(extents), "patch_size")
    if any(size < 0 for size in wanted):
        raise UsageError(f"A patch has extents from 0 (free) on, got {wanted}.")
    patch = tuple(min(size, n) if size else n for size, n in zip(wanted, extents, strict=True))
    overlaps = _overlaps(extents, patch, overlap, free=any(size == 0 for size in wanted) and patch_size is not None)
    lines = []
    for n, size, shared in zip(extents, patch, overlaps, strict=True):
        starts = [0]
        while starts[-1] + size < n:
            starts.append(starts[-1] + size - shared)
        lines.append(tuple(starts))
    return PatchGrid(extents, patch, tuple(lines))


def padded(patch: NDArray, patch_size: Sequence[int], value: float | None = None) -> NDArray:
    """Return a patch filled up at the far side of each axis to the declared size.

    Parameters
    ----------
    patch : ndarray, shape (C, spatial...)
        Not changed.
    patch_size : sequence of int
        Per spatial axis; 0 keeps the extent.
    value : float, optional
        Default: 0 for uint8 and bool, else the least value of the patch that is not NaN.
    """
    patch_size = extents_of("patch_size", patch_size)
    if not isinstance(patch, np.ndarray) or patch.ndim != len(patch_size) + 1:
        raise UsageError(
            f"A patch has a channel axis and {len(patch_size)} spatial axes, as patch_size says, got {patch!r:.60}."
        )
    missing = [max(0, size - n) if size else 0 for size, n in zip(patch_size, patch.shape[1:], strict=True)]
    if not any(missing):
        return patch
    if value is not None and not isinstance(value, (bool, int, float, np.number, np.bool_)):
        raise UsageError(f"value is a number, got {value!r}.")
    if value is None:
        value = 0 if patch.dtype in (np.uint8, np.bool_) or not patch.size else patch.min()
        if value != value:  # NaN in the patch does not spread to what is filled up
            value = np.fmin.reduce(patch, axis=None)
    return np.pad(patch, [(0, 0), *((0, n) for n in missing)], constant_values=value)


def _overlaps(shape: tuple[int, ...], patch: tuple[int, ...], overlap: Overlap, *, free: bool) -> tuple[int, ...]:
    if overlap is None or (isinstance(overlap, int) and overlap < 0):
        if free:
            return tuple(int(p * FREE_AXIS_OVERLAP) if n > p else 0 for n, p in zip(shape, patch, strict=True))
        return tuple(_even(n, p) for n, p in zip(shape, patch, strict=True))
    if isinstance(overlap, int):
        shared = tuple(overlap if p > 1 else 0 for p in patch)
    else:
        if not isinstance(overlap, (float, str, Iterable)) or isinstance(overlap, (bytes, type)):
            raise UsageError(f"An overlap is voxels, a share below 1 or a percentage, got {overlap!r}.")
        given = [overlap] * len(patch) if isinstance(overlap, (float, str)) else list(overlap)
        if len(given) != len(patch):
            raise UsageError(f"overlap needs one entry per axis of {shape}, got {len(given)}.")
        shared = tuple(
            0 if p == 1 or p >= n else _voxels(one, p) for one, p, n in zip(given, patch, shape, strict=True)
        )
    if any(one >= p for one, p in zip(shared, patch, strict=True)):
        raise UsageError(f"An overlap of {shared} voxels is not below the patch {patch}.", hint="Choose a smaller one.")
    return shared


def _even(n: int, p: int) -> int:
    if n <= p:
        return 0
    count = -(-n // p)
    return ((p - n % p) % p) // (count - 1)


def _voxels(one: float | str, patch: int) -> int:
    try:
        share = float(one.strip().rstrip("%")) / 100 if isinstance(one, str) else one
    except ValueError:
        share = None
    if isinstance(share, bool) or not isinstance(share, (int, float, np.integer, np.floating)):
        raise UsageError(f"An overlap is voxels, a share below 1 or a percentage, got {one!r}.")
    if isinstance(share, (int, np.integer)):
        return whole("An overlap in voxels", share, 0)
    if not 0 <= share < 1:
        raise UsageError(f"An overlap given as a share lies within 0 and 1, got {one!r}.")
    return int(patch * share)


def _per_axis(value: int | Sequence[int], count: int, name: str) -> tuple[int, ...]:
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        sizes = tuple(whole(f"An extent of {name}", entry, 0) for entry in value)
    else:
        sizes = (whole(name, value, 0),) * count
    if len(sizes) != count:
        raise UsageError(f"{name} needs one entry per spatial axis, {count} here, got {len(sizes)}: {sizes}.")
    return sizes
