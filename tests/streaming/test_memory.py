"""How much memory does a patch take, in truth? What the plan says is compared with what Python allocates."""

from __future__ import annotations

import contextlib
import itertools
import math
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.streaming import plan
from mlarray.streaming.plan import WORKING_BYTES, WORKING_BYTES_PER_VOXEL

from ..transforms.references import OBLIQUE, grid
from .drawn import MAKERS, Case

SIDE, PATCH = 60, 48
KINDS = [("u1", 1), ("i2", 1), ("f4", 3), ("f8", 1)]
STREAMED = [name for name in MAKERS if name != "Flatten"]


def cases(name: str) -> Iterator[Case]:
    """A transform, drawn twice, on volumes of several types; those that it does not take are left out."""
    for (dtype, channels), seed in itertools.product(KINDS, (1, 2)):
        array = np.random.default_rng(0).integers(0, 4, (channels, SIDE, SIDE, SIDE)).astype(dtype)
        attributes = {"number_of_channels_per_model": (4,) * channels, "box": ((2, 2),) * 3}
        case = Case(array, grid(direction_xyz=OBLIQUE), is_label=name == "OneHot", attributes=attributes)
        transform = MAKERS[name](np.random.default_rng(seed), case.volume, case)
        with contextlib.suppress(TransformError):
            if transform is not None:
                transform.outcome(case.volume)
                case.chain.append(transform)
                yield case


@pytest.mark.parametrize("name", STREAMED)
def test_a_patch_takes_no_more_than_the_plan_says(name: str) -> None:
    """Voxels between stages, and what a stage needs while it computes."""
    measured = 0
    for case in cases(name):
        planned = plan(case.source, case.chain, groups=case.groups, attributes=case.attributes, cost_limit=math.inf)
        planned.measure()
        shape = planned.result.shape
        target = Region(tuple(min(3, n - 1) for n in shape), tuple(min(3 + PATCH, n) for n in shape))
        voxels = max(case.array.shape[0] * planned.fold(target).size, planned.result.channels * target.size)
        tracemalloc.start()
        planned.read(target)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= planned.peak_bytes(target) + WORKING_BYTES_PER_VOXEL * voxels + WORKING_BYTES, case
        measured += 1
    assert measured
