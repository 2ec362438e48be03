"""How do the stages of a chain turn one block into the patch? The one way, for patches and for whole volumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming.chain import Stage, name_stage
from mlarray.transforms.base import Context
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.volume import Volume

GroupReader = Callable[[Stage, str, Region], NDArray]


def execute(
    stages: Sequence[Stage],
    volumes: Sequence[Volume],
    regions: Sequence[Region],
    block: NDArray,
    measured: Sequence[Mapping[Statistic, Any]],
    group: GroupReader,
) -> NDArray:
    """Run stages over a block.

    Parameters
    ----------
    stages : sequence of Stage
        In order.
    volumes : sequence of Volume
        Input of each stage and, last, the output, with measured attributes.
    regions : sequence of Region
        What :meth:`Chain.fold` gave: input region of each stage and, last, the target.
    block : ndarray, shape (C, *regions[0].shape)
        Voxels of the first region; the caller's own, stages may pass it through.
    measured : sequence of mapping
        Statistics per stage.
    group : callable
        ``group(stage, name, region)`` reads a group aligned with the input of a stage.

    Returns
    -------
    ndarray, shape (C, *regions[-1].shape)

    Raises
    ------
    TransformError
        A stage refuses its values, changed its input, or returned something else than it declared.
    """
    for stage, before, after, source, target, known in zip(
        stages, volumes, volumes[1:], regions, regions[1:], measured, strict=False
    ):
        made = stage.locality.makes(source, target, after.shape)
        context = Context(before, after, source, made, known, partial(group, stage))
        block.setflags(write=False)
        try:
            result = stage.transform.apply(block, context)
        except TransformError as error:
            name_stage(error, stage)
            raise
        except Exception as error:
            if not isinstance(error, ValueError) or "read-only" not in str(error):
                error.add_note(
                    f"In apply() of {stage.title}, block {block.dtype} {block.shape}, target {made.start} to {made.stop}."
                )
                raise
            raise TransformError(
                f"{stage.title} changes its input.", hint="Compute into an array of its own: others see the input too."
            ) from error
        expected = block.shape[1:] if made is source else made.shape
        if not isinstance(result, np.ndarray):
            raise TransformError(
                f"{stage.title} returned {type(result).__name__}, not an array.", hint="apply() returns the output."
            )
        if result.shape != (after.channels, *expected) or result.dtype != after.dtype:
            raise TransformError(
                f"{stage.title} returned {result.dtype} {result.shape}; it declared {after.dtype} "
                f"{(after.channels, *made.shape)}.",
                hint="outcome() must say exactly what apply() returns.",
            )
        block = result if made is target or made == target else result[(slice(None), *target.relative_to(made).slices)]
    return block
