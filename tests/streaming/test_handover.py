"""Memory that a worker and its user share: places are free again when they should be, and only then."""

from __future__ import annotations

import gc
import os
import pickle
import sys

import numpy as np
import pytest

from mlarray.sources.base import NDArray
from mlarray.streaming.handover import Parcel, Place, Ring, packed, ring_for, unpacked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such memory")
LARGE = np.arange(20_000, dtype=np.float32).reshape(2, 10_000)


def sent(ring: Ring, array: NDArray = LARGE) -> Parcel:
    place = ring.take()
    assert place is not None
    return packed({"a": place.stack([array, array + 1]), "b": "text"}, place)


def taken(ring: Ring) -> list[Place]:
    found = []
    while (place := ring.take()) is not None:
        found.append(place)
    return found


def in_child(question: object) -> bool:
    """Tell what a function says in a forked process."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if question() else 1)  # type: ignore[operator]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_was_stacked_in_a_place_comes_without_a_copy_and_may_be_changed() -> None:
    ring = Ring(2, 400_000)
    parcel = sent(ring)
    assert len(parcel.text) < 1000
    answer = unpacked(parcel)
    assert answer["b"] == "text"
    assert np.array_equal(answer["a"], [LARGE, LARGE + 1])
    assert answer["a"].ctypes.data % 64 == 0
    answer["a"] += 1


def test_a_place_is_free_again_when_nothing_is_left_that_lies_in_it() -> None:
    ring = Ring(3, 400_000)
    answer = unpacked(sent(ring))
    view = answer["a"][1, :, 5:]
    del answer
    assert len(taken(ring)) == 2
    del view
    assert len(taken(ring)) == 3


def test_a_place_that_was_not_sent_is_free_again() -> None:
    ring = Ring(2, 400_000)
    place = ring.take()
    assert place is not None
    array = place.stack([LARGE, LARGE])
    del place
    assert len(taken(ring)) == 1
    del array
    assert len(taken(ring)) == 2
    assert packed("no array", ring.take()) == Parcel(pickle.dumps("no array", 5), None, ())
    assert len(taken(ring)) == 2


def test_who_keeps_every_batch_gets_a_copy_of_the_last_and_stops_nobody() -> None:
    ring = Ring(2, 400_000)
    kept = [unpacked(sent(ring, LARGE + 10 * number))["a"] for number in range(6)]
    for number, array in enumerate(kept):
        assert np.array_equal(array[0], LARGE + 10 * number)
    kept[5][...] = 0


def test_arrays_from_elsewhere_are_put_into_the_place_and_small_or_too_large_ones_are_sent() -> None:
    ring = Ring(1, 100_000)
    arrays = [LARGE.astype(">f4"), np.arange(3), np.zeros(200_000, np.uint8), np.zeros((0, 3)), LARGE[:, ::2]]
    parcel = packed(arrays, ring.take())
    assert [type(one) for one in parcel.arrays] == [tuple, bytearray, bytearray, bytearray]
    for back, array in zip(unpacked(parcel), arrays, strict=True):
        assert np.array_equal(back, array)
        assert back.dtype == array.dtype


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_where_the_system_has_no_memory_left_arrays_are_sent() -> None:
    ring = Ring(1, 400_000)
    full = os.open("/dev/full", os.O_RDWR)
    ring._descriptor, own = full, ring._descriptor
    parcel = sent(ring)
    ring._descriptor = own
    os.close(full)
    assert parcel.place is None
    assert np.array_equal(unpacked(parcel)["a"][1], LARGE + 1)


def test_a_fork_of_the_user_frees_nothing() -> None:
    ring = Ring(2, 400_000)
    answer = unpacked(sent(ring))

    def forget() -> bool:
        answer.clear()
        gc.collect()
        return True

    assert in_child(forget)
    assert len(taken(ring)) == 1
    assert np.array_equal(answer["a"][0], LARGE)


def test_a_ring_is_filled_by_one_process_and_what_that_left_unsent_by_the_next() -> None:
    ring = Ring(2, 400_000)

    def leave_one() -> bool:
        owned = ring.own()
        place = ring.take()
        assert place is not None
        place._unsent.detach()  # as if it was killed
        return owned

    assert in_child(leave_one)
    assert len(taken(ring)) == 1
    assert ring.own()
    assert ring.own()
    assert len(taken(ring)) == 2
    assert not in_child(ring.own)


def test_a_ring_that_is_pickled_for_no_new_process_stays_behind() -> None:
    ring = ring_for(2, 1000)
    assert ring is not None
    assert pickle.loads(pickle.dumps([ring])) == [None]
    assert ring_for(2, 0) is None
