"""How is a chain bound to a stored volume? From headers, but for what only voxels tell about the shape of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mlarray.sources.base import Source
from mlarray.streaming.arguments import flag, mapping, number, source_of, whole
from mlarray.streaming.chain import checked, resolve
from mlarray.streaming.declared import asked
from mlarray.streaming.grid import Overlap
from mlarray.streaming.plan import Opener, Plan, is_path, measured_over
from mlarray.streaming.rules import COST_LIMIT
from mlarray.streaming.volume_source import Stored, VolumeSource
from mlarray.transforms.augmentations.lists import Lists, draw, wanted_groups
from mlarray.transforms.base import Transform
from mlarray.transforms.save import Save
from mlarray.transforms.volume import Attributes

Saved = Callable[[Sequence[Transform]], Source | Stored | None]


def plan(
    source: Source | Stored,
    chain: Iterable[Transform],
    *,
    patch_size: int | Sequence[int] | None = None,
    overlap: Overlap = None,
    groups: Mapping[str, Source] | None = None,
    attributes: Mapping[str, object] | None = None,
    case: str = "",
    augmentations: Lists = (),
    copy: int = 0,
    seed: int = 0,
    epoch: int = 0,
    group: str | None = None,
    strict: bool = False,
    cost_limit: float = COST_LIMIT,
    measure: bool = True,
    opener: Opener | None = None,
    saved: Saved | None = None,
) -> Plan:
    """Plan how patches of a chain's result are read from a stored volume.

    Only headers are read, unless a stage needs a measurement to know the shape of its output (``Crop``).

    Parameters
    ----------
    source : Source
        What :func:`mlarray.open_source` returns, or any other; read as ``[C, spatial...]``.
    chain : iterable of Transform
        In the order they run.
    patch_size : int, sequence of int or None
        Of the result, per spatial axis in array order; 0 is free, None the whole volume.
    overlap : optional
        Of the patches of ``plan(...).grid``, see :func:`mlarray.streaming.patch_grid`.
    groups : mapping of str to Source, optional
        Other volumes of the case by name: masks, references.
    attributes : mapping, optional
        What is known about the case, such as ``number_of_channels_per_model``.
    case : str
        Name for messages; draws of augmentations depend on it.
    augmentations : sequence or mapping of AugmentationList
        Lists that make the copies of a case, see :func:`mlarray.transforms.augmentations.draw`.
    copy, seed, epoch : int
        Which copy (0 is the case itself), and with which numbers. The transforms that it draws follow those of the chain.
    group : str, optional
        Name of this volume among the groups of the case, for augmentations that are meant for some of them only.
    strict : bool
        Follow the published rules to the letter; the voxels are the same.
    cost_limit : float
        Most voxels read for each voxel of a patch; above it the case is loaded whole. Not used in the strict profile.
    measure : bool
        False: read headers only, whatever that leaves unknown.
    opener : callable, optional
        ``opener(path)``, such as ``mlarray.open_source``, opens a group that is not among ``groups`` and whose name is a path: it
        has a suffix or a folder. Each is opened once and serves all patches. A function of a module, for plans that are pickled.
    saved : callable, optional
        ``saved(transforms)`` returns the source that holds the result of the chain up to a ``Save``, the last of ``transforms``,
        or None where there is none. The last one that there is becomes the stored volume, and what is before it is left out.

    Raises
    ------
    TransformError
        A stage cannot take its input.
    UsageError
        A patch size or overlap that fits no axis.

    Examples
    --------
    >>> import numpy as np
    >>> from mlarray import MLArray, transforms as T
    >>> from mlarray.streaming import plan
    """
    cost_limit = number("cost_limit", cost_limit, "a number above 0", above=0)
    copy, seed, epoch = whole("copy", copy, 0), whole("seed", seed), whole("epoch", epoch, 0)
    flag("strict", strict)
    flag("measure", measure)
    mapping("attributes", {} if attributes is None else attributes, 'Like {"box": ...}.')
    if isinstance(source, type) or not isinstance(source, Stored):
        source_of("source", source)
    for name, other in mapping("groups", {} if groups is None else groups, 'Like {"SEG": source}.').items():
        source_of(f"Group {name!r}", other)
    wanted_groups(augmentations)  # refuses what is no list
    transforms = checked(chain)
    source, done = _last_saved(source, transforms, saved)
    transforms = transforms[done:]
    if isinstance(source, Stored):
        stored: Stored = source
    else:
        stored = VolumeSource(source, case=case, attributes=Attributes.of(attributes or {}))
    if measure:
        for index, transform in enumerate(transforms):
            wanted = asked(transform, "beforehand", stored.volume, f"Stage {index + done + 1} ({transform.name})")
            for key, statistic in wanted.items():
                if key not in stored.volume.attributes:
                    stored.volume = stored.volume.push(key, measured_over(stored, statistic))
    others = {name: VolumeSource(other, case=name) for name, other in (groups or {}).items()}
    resolved = resolve(stored.volume, transforms, done=done)
    if copy or augmentations:
        for name in wanted_groups(augmentations):
            if name not in others and opener is not None and is_path(name):
                others[name] = VolumeSource(opener(name), case=name)
        drawn = draw(
            augmentations, resolved.result, copy=copy, seed=seed, epoch=epoch, case=case, group=group, groups=others
        )
        resolved = resolve(stored.volume, [*transforms, *drawn], done=done)
    return Plan(
        stored,
        resolved,
        others,
        patch_size=patch_size,
        overlap=overlap,
        strict=strict,
        cost_limit=cost_limit,
        opener=opener,
    )


def _last_saved(
    source: Source | Stored, transforms: Sequence[Transform], saved: Saved | None
) -> tuple[Source | Stored, int]:
    """Return where a chain begins, and how many of its transforms are done there."""
    for index in range(len(transforms) if saved is not None else 0, 0, -1):
        if isinstance(transforms[index - 1], Save):
            assert saved is not None
            found = saved(transforms[:index])
            if found is not None:
                return found, index
    return source, 0
