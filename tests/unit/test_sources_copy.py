"""The copy loop: every tile once, in order, also where a thread reads ahead."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mlarray.region import Region
from mlarray.sources.base import Access, NDArray
from mlarray.sources.copy import copy
from mlarray.sources.memory import ArraySource
from mlarray.sources.tiles import plan_tiles

VOXELS = np.arange(7 * 6 * 5, dtype=np.int16).reshape(7, 6, 5)


class Recorder:
    """Keeps what is written."""

    def __init__(self, *, fails_at: int = -1) -> None:
        self.got = np.zeros_like(VOXELS)
        self.order: list[Region] = []
        self._fails_at = fails_at

    def write(self, region: Region, block: NDArray) -> None:
        if len(self.order) == self._fails_at:
            raise OSError("No space left")
        self.order.append(region)
        self.got[region.slices] = block


class Failing(ArraySource):
    """Cannot be read from its fifth plane on."""

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        if region.stop[0] > 5:
            raise ValueError("plane 5 is damaged")
        return super().read(region, out)


def tiles() -> list[Region]:
    return [Region((k, 0, 0), (min(7, k + 2), 6, 5)) for k in range(0, 7, 2)]


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mla-read")]


def test_reading_ahead_copies_the_same_tiles_in_the_same_order() -> None:
    source, plain, ahead = ArraySource(VOXELS), Recorder(), Recorder()
    digests = copy(source, plain, tiles())
    assert copy(source, ahead, tiles(), read_ahead=True) == digests
    assert ahead.order == plain.order == tiles()
    assert np.array_equal(ahead.got, VOXELS)
    assert readers() == []


def test_no_tile_and_one_tile_are_copied_ahead() -> None:
    sink = Recorder()
    assert copy(ArraySource(VOXELS), sink, [], read_ahead=True) == ()
    assert len(copy(ArraySource(VOXELS), sink, [Region.full(VOXELS.shape)], read_ahead=True)) == 1
    assert np.array_equal(sink.got, VOXELS)


def test_what_the_reading_thread_raises_is_raised_after_the_tiles_before_it_and_the_thread_ends() -> None:
    sink = Recorder()
    with pytest.raises(ValueError, match="plane 5 is damaged"):
        copy(Failing(VOXELS), sink, tiles(), read_ahead=True)
    assert sink.order in (tiles()[:1], tiles()[:2])
    assert readers() == []


def test_a_sink_that_fails_ends_the_reading_thread() -> None:
    with pytest.raises(OSError, match="No space left"):
        copy(ArraySource(VOXELS), Recorder(fails_at=1), tiles(), read_ahead=True)
    assert readers() == []


def test_the_tile_around_the_centre_may_come_first() -> None:
    plan = plan_tiles(ArraySource(VOXELS).spec, (2, 6, 5), access=Access.REGION, budget_bytes=130)
    assert [region.start[0] for region in plan] == [0, 2, 4, 6]
    assert [region.start[0] for region in plan.from_centre()] == [2, 0, 4, 6]
