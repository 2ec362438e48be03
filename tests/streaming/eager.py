"""What would a program do that knows nothing of regions? Each stage on the whole array that the one before it has made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlarray.region import Region
from mlarray.sources.base import NDArray, Source
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.save import Save
from mlarray.transforms.statistics import Moments, Statistic
from mlarray.transforms.volume import Volume

from .drawn import cut_blocks


def eager(
    array: NDArray, stored: Volume, chain: Iterable[Transform], groups: Mapping[str, Source]
) -> tuple[NDArray, Volume]:
    """Return the result of a chain and its volume, with everything that was noted; no planner and no executor is involved.

    Parameters
    ----------
    array : ndarray, shape (C, spatial...)
        Not changed.
    stored : Volume
        Of the array.
    chain : iterable of Transform
        In order.
    groups : mapping of str to Source
        Other volumes of the case, channels first.
    """
    arrays = {name: source.read(source.spec.region) for name, source in groups.items()}
    volume = stored
    valued = (
        array  # the array whose values the present one has: moments are measured over it, so that places do not matter
    )
    for transform in chain:
        measured: dict[Statistic, Any] = {}
        for statistic in transform.statistics(volume):
            mask = None if statistic.mask is None else arrays[statistic.mask]
            over = valued if statistic == Moments() else array
            measured[statistic] = statistic.measure(lambda over=over, mask=mask: cut_blocks(over, mask))  # type: ignore[misc]
        for name, wanted in transform.references(volume).items():
            for statistic in wanted:
                measured[statistic] = statistic.measure(lambda name=name: cut_blocks(arrays[name]))  # type: ignore[misc]
        after = transform.noted(transform.outcome(volume), measured)
        # A stage that only cuts gives its block back: it is given the part that its whole output needs, and no other.
        locality = transform.locality(volume)
        source = locality.pull(after.region, volume.shape)

        def group(name: str, region: Region) -> NDArray:
            return arrays[name][(slice(None), *region.slices)]

        context = Context(volume, after, source, after.region, measured, group)
        array, volume = transform.apply(array[(slice(None), *source.slices)], context), after
        if not locality.preserves_statistics or isinstance(transform, Save):
            valued = array
    return array, volume
