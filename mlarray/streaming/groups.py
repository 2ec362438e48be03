"""Does another group of a case lie on the grid of the array that a stage gets?

What was not said is not known: parts of the geometry are compared where both headers state them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mlarray.geometry import POSITION_ATOL_MM, SPACING_RTOL, Geometry
from mlarray.transforms.volume import Volume

_DIRECTION_ATOL = 1e-4


def misplaced(group: Volume, array: Volume) -> str:
    """Return how the grid of a group differs from that of an array, as the end of a sentence; empty where it does not."""
    if group.shape != array.shape:
        return f"has the shape {group.shape}, the array {array.shape}"
    theirs, ours = group.geometry, array.geometry
    if theirs is None or ours is None:
        return ""
    common = theirs.known & ours.known
    different: list[str] = [
        part for part in ("spacing", "direction", "origin") if part in common and _differs(part, theirs, ours)
    ]
    if theirs.known == ours.known:  # all that is known of one is comparable, as a whole
        different = [] if not common or theirs.is_close(ours) else different or ["affine"]
    if not different:
        return ""
    told = "; ".join(f"{part} {_shown(theirs, part)}, the array's {_shown(ours, part)}" for part in different)
    return f"lies elsewhere in space than the array: {told}"


def _differs(part: str, theirs: Geometry, ours: Geometry) -> bool:
    relative, absolute = {
        "spacing": (SPACING_RTOL, 0.0),
        "direction": (0.0, _DIRECTION_ATOL),
        "origin": (SPACING_RTOL, POSITION_ATOL_MM),
    }[part]
    return not np.allclose(getattr(theirs, part), getattr(ours, part), rtol=relative, atol=absolute)


def _shown(geometry: Geometry, part: str) -> str:
    values: Iterable[float] = np.ravel(getattr(geometry, part)).tolist()
    return f"({', '.join(f'{value:.6g}' for value in values)})"
