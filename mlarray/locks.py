"""How is something shared by threads when the process may be forked?

A fork copies the thread that forks and no other: a lock that another one holds would stay locked in the child for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkSafeLock:
    """A lock for one thread at a time, which may take it again; it is free in a forked child.

    What it protects may be half changed in that child: whoever uses this lock begins anew in another process.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(weakref.ref(self, _locks.discard))

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.RLock()


_locks: set[weakref.ref[ForkSafeLock]] = set()


def _renew_all() -> None:
    for reference in tuple(_locks):
        lock = reference()
        if lock is not None:
            lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
