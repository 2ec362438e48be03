"""What does a training step get? One array per group, and for each patch in it where it was cut.

A batch is one block of memory per group; its samples are views of that block, also after the batch went to another process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming.arguments import listed

Stack: TypeAlias = Callable[[Sequence[NDArray]], NDArray]
_WORLD_AXES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One patch of one case: an array per group, and where they lie.

    Parameters
    ----------
    arrays : mapping of str to ndarray, shape (C, spatial...)
        Groups of the case; every one covers the same region.
    case : str
        Name of the case.
    copy : int
        0 is the case itself, above 0 an augmented copy.
    region : Region
        Spatial, on the grid of the result. An array may be larger: it is then filled up at the far side of each axis.
    geometry : mapping of str to Geometry or None
        Where the first voxel of the patch lies and how its axes run, as ``plan.geometry(region)`` says; None where the case does
        not say.
    repeated : bool
        Whether the epoch has this patch elsewhere too; it is here so that all ranks have equally many batches. Leave it out of
        sums that must count every patch once.
    """

    arrays: Mapping[str, NDArray]
    case: str
    copy: int
    region: Region
    geometry: Mapping[str, Geometry | None] = field(default_factory=dict)
    repeated: bool = False

    def affine(self, group: str) -> npt.NDArray[np.float64]:
        """Return the map from index within the patch to world position, as a homogeneous matrix.

        Parameters
        ----------
        group : str
            Whose geometry.

        Returns
        -------
        ndarray, shape (4, 4), float64
            Columns are array axes, rows world x, y, z in the world frame of the geometry, millimetres. A two-dimensional patch
            counts as the one slice of a volume: its first column is a step of 1 along world z.

        Raises
        ------
        UsageError
            There is no such group, it does not say where it lies, or it has another number of axes than 2 and 3.
        """
        if not isinstance(group, str) or group not in self.arrays:
            raise UsageError(f"Case {self.case!r} has no group {group!r}; it has {', '.join(map(repr, self.arrays))}.")
        geometry = self.geometry.get(group)
        if geometry is None:
            raise UsageError(f"Case {self.case!r} does not say where the voxels of {group!r} lie in the world.")
        if geometry.ndim not in (2, _WORLD_AXES):
            raise UsageError(f"An affine of 4 x 4 is for 2 or 3 spatial axes, {group!r} has {geometry.ndim}.")
        affine = np.zeros((_WORLD_AXES + 1, _WORLD_AXES + 1))
        affine[-1, -1] = 1
        affine[: geometry.ndim, -geometry.ndim - 1 :] = geometry.affine[:-1]
        if geometry.ndim < _WORLD_AXES:
            affine[-2, 0] = 1
        return affine


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Patches of one training step.

    Parameters
    ----------
    arrays : mapping of str to ndarray, shape (B, C, spatial...)
        One per group.
    samples : tuple of Sample
        ``B`` of them; the arrays of each become views of ``arrays``.

    Raises
    ------
    UsageError
        An array has another first extent than there are samples.

    Examples
    --------
    >>> import numpy as np
    >>> from mlarray import Region
    >>> sample = Sample({"CT": np.ones((1, 4, 4))}, "case_1", 0, Region((8, 0), (12, 4)))
    >>> Batch.of([sample, sample])["CT"].shape
    (2, 1, 4, 4)
    """

    arrays: Mapping[str, NDArray]
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        for group, array in self.arrays.items():
            if len(array) != len(self.samples):
                raise UsageError(
                    f"{len(self.samples)} samples need arrays as long, {group!r} has {len(array)} entries."
                )
        views = ({group: array[i] for group, array in self.arrays.items()} for i in range(len(self.samples)))
        samples = tuple(replace(sample, arrays=own) for sample, own in zip(self.samples, views, strict=True))
        object.__setattr__(self, "samples", samples)

    @classmethod
    def of(cls, samples: Sequence[Sample], *, stack: Stack = np.stack) -> Batch:
        """Return the batch of samples, whose arrays are copied into one block per group.

        Parameters
        ----------
        samples : sequence of Sample
            At least one.
        stack : callable
            Makes the block of arrays of one shape; called once per group, in order. Default: :func:`numpy.stack`.

        Raises
        ------
        UsageError
            There is none, or patches of one group differ in shape or dtype.
        """
        listed("samples", samples, Sample, "Batch.of([sample, ...])")
        if not samples:
            raise UsageError("A batch holds at least one sample.")
        arrays = {}
        for group in samples[0].arrays:
            kinds = {(sample.arrays[group].shape, sample.arrays[group].dtype) for sample in samples}
            if len(kinds) > 1:
                raise _mixed(group, kinds)
            arrays[group] = stack([sample.arrays[group] for sample in samples])
        return cls(arrays, tuple(samples))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, group: str) -> NDArray:
        return self.arrays[group]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __reduce__(self) -> tuple[object, ...]:
        bare = tuple(replace(sample, arrays={}) for sample in self.samples)  # each view would be pickled as a copy
        return (Batch, (self.arrays, bare))


def _mixed(group: str, kinds: Collection[tuple[tuple[int, ...], np.dtype[Any]]]) -> UsageError:
    """Return the error for patches that no one array holds."""
    listed = ", ".join(sorted(f"{shape} {dtype}" for shape, dtype in kinds))
    hint = "Give a patch size without free axes, or batch_size=1."
    if len({dtype for _, dtype in kinds}) > 1:
        hint = f'Append TensorCast("float32") to the transforms of {group!r}, or take batch_size=1.'
    elif len({shape[0] for shape, _ in kinds}) > 1:
        hint = f"End the transforms of {group!r} with one number of channels for all cases, or take batch_size=1."
    return UsageError(f"Patches of one batch have one shape and dtype, those of {group!r} have {listed}.", hint=hint)
