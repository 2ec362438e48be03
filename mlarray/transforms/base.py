"""What is a transform, and what may it say about itself?

A transform turns an array ``[C, spatial...]`` into another one. What it declares lets a planner compute a patch of its
result from a part of its input:

- :meth:`Transform.locality`: how an output voxel depends on the input. Declaring nothing means the whole volume, and is right.
- :meth:`Transform.outcome`: channels, shape, dtype, geometry and attributes of the output.
- :meth:`Transform.statistics`: what has to be measured over the whole input first.

A declaration is *read-only* (it gets frozen values), does *no I/O*, and is *total*: where something it needs is unknown, it
answers ``WholeVolume``, or raises :class:`~mlarray.errors.TransformError` from ``outcome`` where there can be no output at all.
:meth:`Transform.apply` then computes; it never changes its input, and whatever depends on where a voxel is follows from global
indices, so that a part comes out as it would within the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.transforms.locality import Locality, WholeVolume
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.volume import Volume


def _no_group(name: str, region: Region) -> NDArray:
    raise KeyError(name)


class Context(NamedTuple):
    """Where the block that a stage is given lies, and what is known. A named tuple: one is made for each stage of each patch.

    Parameters
    ----------
    before, after : Volume
        The stage's whole input and output.
    source : Region
        Spatial region of the input that the block holds.
    target : Region
        Spatial region of the output to compute.
    measured : mapping of Statistic to value
        The stage's statistics, measured over its whole input (see :meth:`Transform.statistics`).
    group : callable
        ``group(name, region)`` reads another group of the case, channels first, in a spatial region of the stage's input grid.
    """

    before: Volume
    after: Volume
    source: Region
    target: Region
    measured: Mapping[Statistic, Any] = MappingProxyType({})
    group: Callable[[str, Region], NDArray] = _no_group


class Transform:
    """Base of all transforms; subclasses are frozen dataclasses whose fields are the parameters.

    Parameters
    ----------
    inverse : bool
        Only of invertible transforms: whether carrying a prediction back undoes them.
    """

    invertible = False

    @property
    def name(self) -> str:
        """Name for messages and configurations: that of the class."""
        return type(self).__name__

    def locality(self, volume: Volume) -> Locality:
        """Return how an output voxel depends on an input that is like ``volume``."""
        return WholeVolume()

    def outcome(self, volume: Volume) -> Volume:
        """Return the output's volume. Default: as the input, on the grid that the locality says.

        Raises
        ------
        TransformError
            Where there is no output for such an input.
        """
        return volume

    def beforehand(self, stored: Volume) -> Mapping[str, Statistic]:
        """Return what has to be measured over the *stored* volume before shapes are known, by the attribute that will hold it.

        Only for what no header says and the output's shape depends on (the box of ``Crop``). Not measured where the case has
        the attribute already.
        """
        return {}

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        """Return what has to be measured over the whole input before :meth:`apply`."""
        return ()

    def references(self, volume: Volume) -> Mapping[str, tuple[Statistic, ...]]:
        """Return what has to be measured over other groups, by their names."""
        return {}

    def groups(self, volume: Volume) -> tuple[str, ...]:
        """Return the names of groups that :meth:`apply` reads, aligned with the input."""
        return ()

    def noted(self, after: Volume, measured: Mapping[Statistic, Any]) -> Volume:
        """Return the output's volume with what was measured put into its attributes. Default: nothing is."""
        return after

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Return the output.

        Parameters
        ----------
        block : ndarray, shape (C, *context.source.shape)
            Not to be changed.
        context : Context
            Where it lies.

        Returns
        -------
        ndarray
            Of ``context.after.dtype``, in the region that the locality's ``makes`` says: for most the target, for a halo the
            source, for a whole volume all.
        """
        raise TransformError(
            f"{self.name} does not define apply(block, context).", hint="That is what a transform does."
        )

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform | None:
        """Return the transform that undoes this one, which had this input, output and statistics; None where there is none."""
        return None


def rounded_to(values: NDArray, dtype: np.dtype[Any]) -> NDArray:
    """Return float values as ``dtype``: for integers rounded half to even and saturated, never wrapped.

    NaN becomes 0 in an integer type; a transform for which NaN is an error tests for it before.
    """
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return values.astype(dtype, copy=False)
    limits = np.iinfo(dtype)
    rounded = np.rint(values)
    if np.finfo(rounded.dtype).nmant >= 8 * dtype.itemsize:  # both ends are floats too
        np.clip(rounded, limits.min, limits.max, out=rounded)
        nan = np.isnan(rounded)
        if nan.any():
            rounded[nan] = 0
        return rounded.astype(dtype)
    # The largest float64 below 2**63 is not the largest int64: compare before casting.
    high = rounded >= float(limits.max)
    low = rounded <= float(limits.min)
    inside = np.where(high | low | np.isnan(rounded), 0, rounded).astype(dtype)
    inside[high] = limits.max
    inside[low] = limits.min
    return inside


def float_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the float type results of arithmetic have: float64 for float64, float32 for all else."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)
