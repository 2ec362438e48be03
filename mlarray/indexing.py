"""numpy's indexing dialect, turned into regions. The only place where it is spoken.

A key becomes, per axis, the *runs* of indices to read and a key to apply to the voxels that were read. Runs closer than
``merge`` (the block extent: those voxels are decoded anyway) are joined. ``numpy`` itself applies the inner key, so that
every rule of numpy's, from negative steps to the placement of broadcast index arrays, holds as it is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.errors import DTypeError
from mlarray.region import Region, trusted_region
from mlarray.sources.base import NDArray

_KINDS = "biufc"  # each may be assigned to those behind it
_ALL = slice(None)
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a key selects from an array.

    Parameters
    ----------
    runs : tuple of runs, one per axis
        Half-open index ranges to read, ascending.
    inner : tuple
        numpy key that, applied to the voxels of the runs put side by side, gives the result.
    """

    runs: tuple[Runs, ...]
    inner: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the voxels read, runs side by side."""
        return tuple(sum(b - a for a, b in axis) for axis in self.runs)

    def pieces(self) -> Iterator[tuple[Region, tuple[slice, ...]]]:
        """Yield each region to read with its place among the voxels of all runs."""
        placed = [_placed(axis) for axis in self.runs]
        for combination in itertools.product(*placed):
            region = Region(tuple(run[0] for run, _ in combination), tuple(run[1] for run, _ in combination))
            yield region, tuple(place for _, place in combination)

    @property
    def single(self) -> Region | None:
        """The one region that holds everything, when there is just one."""
        if any(len(axis) != 1 for axis in self.runs):
            return None
        return Region(tuple(axis[0][0] for axis in self.runs), tuple(axis[0][1] for axis in self.runs))


def plain_box(key: object, shape: tuple[int, ...]) -> tuple[Region, tuple[int | slice, ...] | None] | None:
    """Return the region of a key made of integers and slices without steps, or None for any other key.

    This is what patches are read with, so it is fast: a fifth of :func:`parse_key`.

    Returns
    -------
    region, inner
        ``inner`` is the numpy key for the voxels of the region: None for all of them as they are, else a zero for each
        axis that an integer takes away.
    """
    entries = key if type(key) is tuple else (key,)
    if len(entries) > len(shape):
        return None
    start, stop = [], []
    inner: list[int | slice] = []
    dropped = False
    for entry, extent in zip(entries, shape, strict=False):
        if type(entry) is slice:
            low, high, step = entry.indices(extent)
            if step != 1:
                return None
            start.append(low)
            stop.append(high if high > low else low)
            inner.append(_ALL)
        elif type(entry) is int and -extent <= entry < extent:
            low = entry if entry >= 0 else entry + extent
            start.append(low)
            stop.append(low + 1)
            inner.append(0)
            dropped = True
        else:
            return None
    rest = shape[len(entries) :]
    region = trusted_region((*start, *(0,) * len(rest)), (*stop, *rest))
    return region, tuple(inner) if dropped else None


def parse_key(key: object, shape: Sequence[int], merge: Sequence[int] | None = None) -> Selection:
    """Turn a numpy key into a selection.

    Parameters
    ----------
    key : object
        Anything that numpy takes: integers, slices, ellipsis, ``None``, boolean and integer arrays, and tuples of them.
    shape : sequence of int
        Of the array.
    merge : sequence of int, optional
        Per axis, indices at most this far apart are read in one run; default: all in one.

    Raises
    ------
    IndexError
        As numpy: index out of bounds, too many indices, mask of another shape, floats.
    """
    entries = _expand(key, shape)
    reach = tuple(merge) if merge is not None else tuple(max(1, n) for n in shape)
    runs: list[Runs] = []
    inner: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is None or entry is Ellipsis:
            inner.append(entry)
            continue
        extent = shape[axis]
        axis_inner: Any
        if isinstance(entry, slice):
            axis_runs, axis_inner = _slice_runs(entry, extent, reach[axis])
        elif isinstance(entry, int):
            position = _bounded(entry, extent, axis)
            axis_runs, axis_inner = ((position, position + 1),), 0
        else:
            axis_runs, axis_inner = _array_runs(entry, extent, reach[axis], axis)
        runs.append(axis_runs)
        inner.append(axis_inner)
        axis += 1
    return Selection(tuple(runs), tuple(inner))


def read_selection(
    selection: Selection, read: Callable[[Region, NDArray | None], NDArray], dtype: np.dtype[Any]
) -> Any:
    """Read what a selection needs and return what numpy would; ``read(region, out)`` fetches a region."""
    return _gather(selection, read, dtype)[selection.inner]


def write_selection(
    selection: Selection,
    value: NDArray,
    read: Callable[[Region, NDArray | None], NDArray],
    write: Callable[[Region, NDArray], None],
    dtype: np.dtype[Any],
) -> None:
    """Assign ``value``, already of a dtype that may be stored, to a selection."""
    region = selection.single
    inner = [entry for entry in selection.inner if entry is not Ellipsis]
    if region is not None and all(
        isinstance(entry, int) or (isinstance(entry, slice) and entry == slice(None)) for entry in inner
    ):
        kept = tuple(n for n, entry in zip(region.shape, inner, strict=True) if not isinstance(entry, int))
        write(region, np.broadcast_to(_without_leading_ones(value, len(kept)), kept).reshape(region.shape))
        return
    box = _gather(selection, read, dtype)
    box[selection.inner] = value
    for region, place in selection.pieces():
        write(region, box[place])


def castable(value: Any, dtype: np.dtype[Any]) -> NDArray:
    """Return ``value`` as an array that may be assigned to ``dtype``: same-kind casts only.

    Python numbers, also in lists, take the target's dtype when their kind allows it (an int that fits, never a float into
    integers). Arrays are cast within their kind, as ``numpy.can_cast(..., "same_kind")`` defines it.

    Raises
    ------
    DTypeError
        When the cast could lose a sign, a fraction or an imaginary part.
    OverflowError
        When a Python integer does not fit.
    """
    if not hasattr(value, "dtype"):
        array = np.asarray(value)
        if array.dtype.kind in _KINDS and _rank(array.dtype) <= _rank(dtype):
            cast = np.asarray(value, dtype=dtype)
            if dtype.kind in "iu" and not np.array_equal(cast, array):  # numpy integers in lists wrap without a word
                raise OverflowError(f"Integers from {array.min()} to {array.max()} do not all fit dtype {dtype}.")
            return cast
    else:
        array = np.asarray(value)
        if np.can_cast(array.dtype, dtype, casting="same_kind"):
            return array
    raise DTypeError(
        f"Values of dtype {array.dtype} cannot be assigned to an array of dtype {dtype} without changing them.",
        hint=f"Convert them yourself: value.astype({str(dtype)!r}).",
    )


def _rank(dtype: np.dtype[Any]) -> int:
    return _KINDS.index("i" if dtype.kind == "u" else dtype.kind)


def _gather(selection: Selection, read: Callable[[Region, NDArray | None], NDArray], dtype: np.dtype[Any]) -> NDArray:
    region = selection.single
    if region is not None:
        return read(region, None)
    box = np.empty(selection.shape, dtype)
    for region, place in selection.pieces():
        box[place] = read(region, None)
    return box


def _expand(key: object, shape: Sequence[int]) -> list[Any]:
    """Return one entry per axis (and Nones), masks replaced by index arrays and ellipsis by full slices."""
    given = list(key) if isinstance(key, tuple) else [key]
    entries: list[Any] = []
    axis_after = 0
    for entry in given:
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            entries.append(entry)
            axis_after += isinstance(entry, slice)
            continue
        converted = _convert(entry)
        if isinstance(converted, np.ndarray) and converted.dtype == bool:
            # The mask stands for as many axes as it has; which ones they are is known only behind an ellipsis.
            entries.append(converted)
            axis_after += converted.ndim
            continue
        entries.append(converted)
        axis_after += 1
    ellipses = sum(1 for entry in entries if entry is Ellipsis)
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if axis_after > len(shape):
        raise IndexError(
            f"too many indices for array: array is {len(shape)}-dimensional, but {axis_after} were indexed"
        )
    missing = [slice(None)] * (len(shape) - axis_after)
    # An ellipsis that stands for no axis stays: between two index arrays it still decides where their axes go.
    if ellipses and missing:
        at = next(i for i, entry in enumerate(entries) if entry is Ellipsis)
        entries[at : at + 1] = missing
    else:
        entries += missing
    return list(_without_masks(entries, shape))


def _without_masks(entries: list[Any], shape: Sequence[int]) -> Iterator[Any]:
    axis = 0
    for entry in entries:
        if isinstance(entry, np.ndarray) and entry.dtype == bool:
            expected = tuple(shape[axis : axis + entry.ndim])
            if entry.shape != expected:
                raise IndexError(f"boolean index has shape {entry.shape}, the indexed axes have {expected}")
            yield from entry.nonzero()
            axis += entry.ndim
        else:
            yield entry
            axis += entry is not None and entry is not Ellipsis


def _convert(entry: object) -> Any:
    if isinstance(entry, (bool, np.bool_)) or (
        isinstance(entry, np.ndarray) and entry.ndim == 0 and entry.dtype == bool
    ):
        raise IndexError("a single boolean is not an index here; use an array of booleans, or None for a new axis")
    if isinstance(entry, int):
        return entry
    array = np.asarray(entry)
    if array.size == 0 and not isinstance(entry, np.ndarray):
        array = array.astype(np.intp)
    if array.dtype == bool:
        return array
    if array.dtype.kind not in "iu":
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and integer or boolean arrays are valid indices, "
            f"got {type(entry).__name__}"
        )
    return int(array) if array.ndim == 0 else array.astype(np.intp)


def _bounded(index: int, extent: int, axis: int) -> int:
    if not -extent <= index < extent:
        raise IndexError(f"index {index} is out of bounds for axis {axis} with size {extent}")
    return index + extent if index < 0 else index


def _slice_runs(entry: slice, extent: int, reach: int) -> tuple[Runs, slice]:
    start, stop, step = entry.indices(extent)
    indices = range(start, stop, step)
    if not indices:
        return ((0, 0),), slice(None)
    low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
    if abs(step) > reach and len(indices) > 1:
        runs = tuple((i, i + 1) for i in (indices if step > 0 else reversed(indices)))
        return runs, slice(None, None, 1 if step > 0 else -1)
    return ((low, high + 1),), slice(None) if step == 1 else slice(None, None, step)


def _array_runs(indices: NDArray, extent: int, reach: int, axis: int) -> tuple[Runs, NDArray]:
    if indices.size == 0:
        return ((0, 0),), indices
    low, high = int(indices.min()), int(indices.max())
    for end in (low, high):
        _bounded(end, extent, axis)
    wrapped = np.where(indices < 0, indices + extent, indices)
    unique = np.unique(wrapped)
    breaks = np.flatnonzero(np.diff(unique) > reach) + 1
    groups = np.split(unique, breaks)
    runs = tuple((int(group[0]), int(group[-1]) + 1) for group in groups)
    firsts = np.array([a for a, _ in runs])
    offsets = np.concatenate([[0], np.cumsum([b - a for a, b in runs])[:-1]])
    group_of = np.searchsorted(firsts, wrapped, side="right") - 1
    return runs, wrapped - firsts[group_of] + offsets[group_of]


def _placed(axis: Runs) -> list[tuple[tuple[int, int], slice]]:
    placed, position = [], 0
    for low, high in axis:
        placed.append(((low, high), slice(position, position + high - low)))
        position += high - low
    return placed


def _without_leading_ones(value: NDArray, ndim: int) -> NDArray:
    """Drop leading axes of extent 1 that numpy's assignment ignores."""
    while value.ndim > ndim and value.shape[0] == 1:
        value = value[0]
    return value
