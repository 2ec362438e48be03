"""A machine divided among workers."""

from mlarray.machine import Machine
from mlarray_convert.share import share_out

MACHINE = Machine(processors=8, memory_bytes=20_000_000_000, reason="test")


def test_there_are_never_more_workers_than_cases() -> None:
    share = share_out(MACHINE, cases=3)
    assert (share.workers, share.threads) == (3, 2)


def test_workers_times_threads_stay_within_the_processors() -> None:
    for cases in range(1, 20):
        share = share_out(MACHINE, cases=cases)
        assert share.workers * share.threads <= 8


def test_memory_is_shared_and_limits_the_workers() -> None:
    share = share_out(Machine(64, 4_000_000_000, ""), cases=100)
    assert (share.workers, share.memory_bytes) == (3, 1_066_666_666)


def test_what_is_asked_for_is_kept() -> None:
    share = share_out(MACHINE, cases=100, workers=2, memory_bytes=10**9)
    assert (share.workers, share.threads, share.memory_bytes) == (2, 4, 10**9)


def test_a_memory_limit_per_worker_bounds_how_many_are_started() -> None:
    assert share_out(MACHINE, cases=100, memory_bytes=8_000_000_000).workers == 2
