"""Which statistic did an earlier stage leave for a later one?

Every stage that needs a statistic measures its own input, and notes what it found for its inverse. Only what a stage leaves on
purpose (``lazy=True``, ``save_clip_min=True``) is for the next stage that takes such a statistic, which then does not measure.
The attribute ``captured`` lists what is left and not yet taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlarray.transforms.volume import MEASURED, Volume

CAPTURED = "captured"


def left(volume: Volume, key: str) -> bool:
    """Tell whether the attribute ``key`` was left by an earlier stage for this one."""
    return key in volume.attributes and key in volume.attributes.get(CAPTURED, ())


def leave(volume: Volume, keys: Iterable[str]) -> Volume:
    """Return the volume with attributes announced that a later stage is to take."""
    keys = tuple(keys)
    if not keys:
        return volume
    for key in keys:
        volume = volume.push(key, MEASURED)
    return _listing(volume, {*volume.attributes.get(CAPTURED, ()), *keys})


def take(volume: Volume, keys: Iterable[str]) -> Volume:
    """Return the volume with attributes taken where they were left, and announced where they are to be measured."""
    keys = tuple(keys)
    for key in keys:
        if not left(volume, key):
            volume = volume.push(key, MEASURED)
    return _listing(volume, set(volume.attributes.get(CAPTURED, ())) - set(keys))


def fill(volume: Volume, key: str, value: Any) -> Volume:
    """Return the volume with the newest value of an announced attribute in place of the announcement."""
    return volume.pop(key).push(key, value)


def _listing(volume: Volume, keys: set[str]) -> Volume:
    if CAPTURED in volume.attributes:
        volume = volume.pop(CAPTURED)
    return volume.push(CAPTURED, tuple(sorted(keys))) if keys else volume
