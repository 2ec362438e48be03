"""Which augmentations does a copy of a case get, and with which numbers?

A case has copies 0 to N; copy 0 is the case itself. Each *list* of augmentations makes ``nb`` copies, in the order of the lists.
All augmentations of a list are done to each of its copies, in order, each with its own probability. What comes out is a tuple of
ordinary transforms, so that a copy is a longer chain and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.transforms.augmentations.drawing import key_of, uniforms
from mlarray.transforms.base import Transform
from mlarray.transforms.volume import Volume


class Group(Protocol):
    """Another volume of the case, as a plan holds it."""

    volume: Volume

    def read(self, region: Region) -> NDArray:
        """Return the voxels of a spatial region, channels first."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What an augmentation draws its numbers from, for one copy.

    Parameters
    ----------
    key : int
        Of the numbers, see :mod:`mlarray.transforms.augmentations.drawing`.
    rank : int
        How many copies of the list before this one were selected.
    selected : int
        How many copies of the list are selected at all.
    groups : mapping of str to Group
        Other volumes of the case.
    """

    key: int
    rank: int = 0
    selected: int = 1
    groups: Mapping[str, Group] = field(default_factory=dict, compare=False, repr=False)


class Augmentation:
    """Base of all augmentations; subclasses are frozen dataclasses whose fields are the parameters.

    Parameters
    ----------
    prob : float
        How probable it is that a copy is selected, 0 to 1.
    groups : sequence of str, optional
        Only for these groups of a case, where the augmentation takes it; default: all.
    """

    prob: float
    groups: Sequence[str] | None = None

    @property
    def name(self) -> str:
        """Name for messages and configurations: that of the class."""
        return type(self).__name__

    @property
    def wanted_groups(self) -> tuple[str, ...]:
        """Names of other groups of the case, or paths, that a draw needs."""
        return ()

    def is_selected(self, uniform: float) -> bool:
        """Tell whether a copy is selected that drew ``uniform``."""
        return uniform < self.prob

    def drawn(self, volume: Volume, draw: Draw) -> Transform | None:
        """Return the transform of a selected copy, or None where the draw changes nothing.

        Parameters
        ----------
        volume : Volume
            What it will be done to.
        draw : Draw
            The same for all groups of a case.
        """
        raise TypeError(f"{self.name} does not define drawn(volume, draw).")


@dataclass(frozen=True, slots=True)
class AugmentationList:
    """Augmentations that make ``nb`` copies of each case.

    Parameters
    ----------
    augmentations : sequence of Augmentation
        In the order they are done.
    nb : int
        Number of copies.
    """

    augmentations: Sequence[Augmentation]
    nb: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "augmentations", tuple(self.augmentations))
        wrong = [one for one in self.augmentations if not isinstance(one, Augmentation)]
        if wrong:
            raise UsageError(
                f"{type(wrong[0]).__name__} is not an augmentation.",
                hint="A transform that is the same for every copy belongs into the chain.",
            )
        if not isinstance(self.nb, int) or self.nb < 0:
            raise UsageError(f"nb is a number of copies from 0 on, got {self.nb!r}.")
        for one in self.augmentations:
            if not 0 <= one.prob <= 1:
                raise UsageError(f"prob of {one.name} is a probability from 0 to 1, got {one.prob!r}.")


Lists = Sequence[AugmentationList] | Mapping[str, AugmentationList]


def draw(
    lists: Lists,
    volume: Volume,
    *,
    copy: int,
    seed: int = 0,
    epoch: int = 0,
    case: str = "",
    group: str | None = None,
    groups: Mapping[str, Group] | None = None,
) -> tuple[Transform, ...]:
    """Return the transforms of one copy of a case: a function of the arguments, never of what was drawn before.

    Parameters
    ----------
    lists : sequence or mapping of AugmentationList
        In order; names do not count.
    volume : Volume
        What they will be done to: the result of the chain.
    copy : int
        0 is the case itself; the copies of the first list are 1 to its ``nb``, and so on.
    seed, epoch : int
        Other numbers for another run or epoch.
    case : str
        Which case. All groups of a case draw the same numbers.
    group : str, optional
        Name of this volume among the groups of the case, for augmentations that are meant for some of them only.
    groups : mapping, optional
        Other volumes of the case (``Mask`` needs one).

    Raises
    ------
    UsageError
        There is no such copy, or a group would have to be known and is not given.
    """
    found = _list_of(_listed(lists), copy)
    if found is None:
        return ()
    position, chosen, within = found
    transforms: list[Transform] = []
    for place, augmentation in enumerate(chosen.augmentations):
        # Numbers of a copy do not change when lists are made longer: within, not copy.
        gates = [
            augmentation.is_selected(uniforms(key_of(seed, epoch, case, position, other, place, "gate"), 1)[0])
            for other in range(chosen.nb)
        ]
        if not gates[within] or not _is_meant(augmentation, group):
            continue
        key = key_of(seed, epoch, case, position, within, place, "draw")
        transform = augmentation.drawn(volume, Draw(key, sum(gates[:within]), sum(gates), groups or {}))
        if transform is not None:
            transforms.append(transform)
            volume = transform.outcome(volume)
    return tuple(transforms)


def wanted_groups(lists: Lists) -> tuple[str, ...]:
    """Return the names of groups, or the paths, that draws need."""
    found = (name for listed in _listed(lists) for one in listed.augmentations for name in one.wanted_groups)
    return tuple(dict.fromkeys(found))


def _list_of(lists: Sequence[AugmentationList], copy: int) -> tuple[int, AugmentationList, int] | None:
    """Return the position of the list that makes a copy, the list, and which of its copies it is; None for copy 0."""
    if copy == 0:
        return None
    within = copy - 1
    for position, listed in enumerate(lists):
        if 0 <= within < listed.nb:
            return position, listed, within
        within -= listed.nb
    raise UsageError(f"There is no copy {copy!r}; a case has copies 0 to {sum(listed.nb for listed in lists)}.")


def _listed(lists: Lists) -> list[AugmentationList]:
    if isinstance(lists, (AugmentationList, str, bytes, type)) or not isinstance(lists, Iterable):
        raise UsageError(
            f"Augmentations come in lists, got {type(lists).__name__}.",
            hint="Write [AugmentationList([Flip()], nb=10)].",
        )
    found = list(lists.values() if isinstance(lists, Mapping) else lists)
    wrong = [one for one in found if not isinstance(one, AugmentationList)]
    if wrong:
        raise UsageError(
            f"Augmentations come in lists, got {type(wrong[0]).__name__}.",
            hint="Write AugmentationList([Flip()], nb=10).",
        )
    return found


def _is_meant(augmentation: Augmentation, group: str | None) -> bool:
    if augmentation.groups is None:
        return True
    if group is None:
        raise UsageError(
            f"{augmentation.name} is meant for the groups {list(augmentation.groups)}, and which this volume is was not said.",
            hint="Pass group= with the name of the volume.",
        )
    return group in augmentation.groups
