"""Do the arguments of a stream make sense, each by itself and together? Said before a file is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from mlarray.errors import UsageError
from mlarray.streaming.arguments import whole
from mlarray.streaming.case_plans import GroupChain
from mlarray.streaming.case_set import CaseFiles
from mlarray.streaming.samplers import Sampler
from mlarray.transforms.base import Transform
from mlarray.transforms.save import Save

PatchSize = int | Sequence[int] | None
_GROUPS = 'Write groups={"CT": [...]}, a chain for each group.'


def patch_extents(value: object) -> PatchSize:
    """Return a patch size: None, a whole number, or one per axis; 0 and None are free axes.

    Raises
    ------
    UsageError
        Anything else.
    """
    if value is None:
        return None
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        return whole("patch_size", value, 0)
    return tuple(0 if one is None else whole("An extent of patch_size", one, 0) for one in value)


def chains_of(groups: object) -> dict[str, GroupChain]:
    """Return the chain of each group.

    Raises
    ------
    UsageError
        No mapping, none in it, or a value that is no chain.
    """
    if not isinstance(groups, Mapping) or not groups:
        raise UsageError(f"groups names no group: {groups!r}.", hint=_GROUPS)
    return {str(name): _chain(name, value) for name, value in groups.items()}


def check_sampler(sampler: object, chains: Mapping[str, GroupChain]) -> None:
    """Refuse what is no sampler, and one that needs a group which the stream has not.

    Raises
    ------
    UsageError
        Names the groups that there are.
    """
    if isinstance(sampler, type) or not isinstance(sampler, Sampler):
        raise UsageError(
            f"sampler is {sampler!r}, not a sampler.",
            hint="Make one: GridPatches(), RandomPatches(8) or ForegroundPatches(8, 'SEG').",
        )
    if sampler.group is not None and sampler.group not in chains:
        raise UsageError(
            f"{type(sampler).__name__} looks for labels in {sampler.group!r}, which is no group of this stream; there are "
            f"{', '.join(map(repr, chains))}.",
            hint="Name the group of the segmentation, or add it to groups.",
        )


def check_saves(cases: Sequence[CaseFiles], chains: Mapping[str, GroupChain]) -> None:
    """Refuse a ``Save`` that would write over a file of the data set, or over what another one writes.

    Raises
    ------
    UsageError
        Names both.
    """
    saves = [
        (f"stage {index + 1} of {group!r}", group, one)
        for group, chain in chains.items()
        for index, one in enumerate(chain.transforms)
        if isinstance(one, Save)
    ]
    for case in cases if saves else ():
        sources = {os.path.realpath(place.path): place for place in case.places.values()}
        writers: dict[str, str] = {}
        for told, group, save in saves:
            path = os.path.realpath(save.place(case.name, group))
            if path in sources:
                raise UsageError(
                    f"Save ({told}) would write over {sources[path]}, which is a file of the data set.",
                    hint="Save into another folder.",
                )
            if path in writers:
                raise UsageError(
                    f"Save ({told}) and {writers[path]} would both write {path}.",
                    hint="Give one another folder, or another group=...",
                )
            writers[path] = told


def _chain(name: object, value: Any) -> GroupChain:
    if isinstance(value, GroupChain):
        return value
    if value is None:
        return GroupChain()
    if isinstance(value, (str, Mapping, Transform, type)) or not hasattr(value, "__iter__"):
        raise UsageError(f"The chain of {name!r} is {value!r}, not a list of transforms.", hint=_GROUPS)
    return GroupChain(tuple(value))
