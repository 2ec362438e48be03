"""What is an array at one place of a chain? Everything about it but the voxels.

Arrays run through a chain as ``[C, spatial...]``, channels first. A :class:`Volume` says what such an array is between two
stages; a stage maps one to the next before any voxel is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from mlarray.geometry import Geometry
from mlarray.region import Region


class Pending(Enum):
    """Values of attributes that stand for something else."""

    MEASURED = "measured"


MEASURED = Pending.MEASURED
"""Value of an attribute that is known once the volume has been measured. The same in every process."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stages have noted about a case, newest last: a stage pushes a value, its inverse takes it away.

    Parameters
    ----------
    stacks : mapping of str to tuple
        Per key the values pushed so far.

    Examples
    --------
    >>> noted = Attributes().push("Min", -1024.0).push("Min", 0.0)
    >>> noted["Min"], noted.pop("Min")["Min"], "Max" in noted
    (0.0, -1024.0, False)
    """

    stacks: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stacks", MappingProxyType(dict(self.stacks)))

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Attributes:
        """Return attributes with one value per key."""
        return cls({key: (value,) for key, value in values.items()})

    def push(self, key: str, value: object) -> Attributes:
        """Return attributes with ``value`` on top of ``key``."""
        return Attributes({**self.stacks, key: (*self.stacks.get(key, ()), value)})

    def pop(self, key: str) -> Attributes:
        """Return attributes without the newest value of ``key``; a key without values is gone."""
        rest = self.stacks[key][:-1]
        others = {name: stack for name, stack in self.stacks.items() if name != key}
        return Attributes({**others, key: rest} if rest else others)

    def get(self, key: str, default: object = None) -> Any:
        """Return the newest value of ``key``."""
        stack = self.stacks.get(key)
        return stack[-1] if stack else default

    def __getitem__(self, key: str) -> Any:
        return self.stacks[key][-1]

    def __contains__(self, key: str) -> bool:
        return key in self.stacks

    def __iter__(self) -> Iterator[str]:
        return iter(self.stacks)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Attributes, (dict(self.stacks),))


@dataclass(frozen=True, slots=True)
class Volume:
    """An array ``[channels, *shape]`` without its voxels.

    Parameters
    ----------
    channels : int
        Extent of the first axis.
    shape : tuple of int
        Extent per spatial axis, in array order (z, y, x).
    dtype : numpy dtype
        In native byte order.
    geometry : Geometry or None
        Of the spatial axes in array order; None when nothing is known.
    is_label : bool
        Whether the values are labels.
    attributes : Attributes
        What stages have noted.
    case : str
        Name for messages.
    on_stored_grid : bool
        Whether its voxels are those of the stored volume, perhaps mirrored or exchanged: False once resampled or padded.
    """

    channels: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    geometry: Geometry | None = None
    is_label: bool = False
    attributes: Attributes = Attributes()
    case: str = ""
    on_stored_grid: bool = True

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.shape)

    @property
    def region(self) -> Region:
        """The region of all spatial voxels."""
        return Region.full(self.shape)

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Shape of the array: channels, then spatial axes."""
        return (self.channels, *self.shape)

    def bytes_of(self, region: Region) -> int:
        """Return the bytes of all channels of a region."""
        return self.channels * math.prod(region.shape) * self.dtype.itemsize

    def with_(self, **changes: Any) -> Volume:
        """Return the volume with some fields replaced."""
        return replace(self, **changes)

    def push(self, key: str, value: object) -> Volume:
        """Return the volume with an attribute pushed."""
        return replace(self, attributes=self.attributes.push(key, value))

    def pop(self, key: str) -> Volume:
        """Return the volume with the newest value of an attribute taken away."""
        return replace(self, attributes=self.attributes.pop(key))

    @property
    def spacing_xyz(self) -> tuple[float, ...] | None:
        """Spacing in physical order x, y, z (the reverse of the array axes), or None when it was not stated."""
        if self.geometry is None or "spacing" not in self.geometry.known:
            return None
        return self.geometry.spacing[::-1]
