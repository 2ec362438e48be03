"""What of blosc2 does not survive a fork?

A fork copies the thread that forks and no other. What is left of the others is a trap (seen with blosc2 4.14.1):

- blosc2 keeps one pool of threads per number of threads. A child has the pools of its parent without their threads: the first use
  waits for ever, and so does, or crashes, freeing an array that uses one, also when the process ends. A forked process therefore
  uses one thread, which needs no pool, and never frees what its parent made.
- An array is locked while it is read. A fork at that moment copies the lock, which nobody will open. A fork therefore waits until
  no other thread is within a read (:func:`in_turn`); where that takes too long, the child gets the array anew.

The handles of a process are known to it (:func:`watch`): a fork asks all of them, so this is shared state of the process.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

FORK_WAIT_SECONDS = 10.0
_FORKED_NO_EXEC = 0x40  # PF_FORKNOEXEC of linux/sched.h


class Handle(Protocol):
    """What threads use one after the other, and a forked child goes on with."""

    lock: Any  # what watch() returned

    def __hash__(self) -> int: ...

    def ready(self) -> None:
        """Make it usable in this process, or raise."""

    def in_child(self, *, at_rest: bool) -> None:
        """Be told, in a forked child, whether no other thread was using it."""


_H = TypeVar("_H", bound=Handle)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def in_turn(method: Callable[Concatenate[_H, _P], _R]) -> Callable[Concatenate[_H, _P], _R]:
    """Let one thread at a time into the methods of a handle, and none while it forks."""

    @wraps(method)
    def turned(self: _H, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not _gate.is_set() and not self.lock._is_owned():
            _gate.wait(FORK_WAIT_SECONDS)
        with self.lock:
            self.ready()
            return method(self, *args, **kwargs)

    return turned


def watch(handle: Handle) -> Any:
    """Let forks wait for a handle and tell it of them; return its lock, a ``threading.RLock``."""
    _handles.add(weakref.ref(handle, _handles.discard))
    return threading.RLock()


def keep_for_ever(*values: object) -> None:
    """Never free some objects."""
    for value in values:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def is_forked() -> bool:
    """Tell whether this process was forked after the package was imported, or after blosc2 was."""
    return os.getpid() != _started_in


def with_safe_threads(params: Any) -> Any:
    """Return compression or decompression parameters that ask for one thread in a forked process."""
    plain = dict(params) if isinstance(params, Mapping) else params
    if not is_forked():
        return plain
    return {**plain, "nthreads": 1} if isinstance(plain, dict) else replace(plain, nthreads=1)


_handles: set[weakref.ref[Handle]] = set()
_waiting = threading.local()  # several threads may fork at once
_gate = threading.Event()  # closed while a fork waits: locks are not fair, and readers would go on for seconds
_gate.set()


def _living() -> list[Handle]:
    return [handle for reference in tuple(_handles) if (handle := reference()) is not None]


def _before_fork() -> None:
    # Locks of handles are never taken within each other, so that the order does not matter.
    until = time.monotonic() + FORK_WAIT_SECONDS
    _waiting.held = []
    _gate.clear()
    for handle in _living():
        if handle.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            _waiting.held.append(handle)


def _after_fork_in_parent() -> None:
    held, _waiting.held = _waiting.held, []
    for handle in held:
        handle.lock.release()
    _gate.set()


def _after_fork_in_child() -> None:
    global _gate
    _gate = threading.Event()  # the other may be in use by threads that are not here
    _gate.set()
    held, _waiting.held = {id(handle) for handle in _waiting.held}, []
    for handle in _living():
        handle.in_child(at_rest=id(handle) in held)
    extension = sys.modules.get("blosc2.blosc2_ext")
    if extension is not None and hasattr(extension, "destroy"):
        atexit.unregister(extension.destroy)  # at its end the process would wait for threads of its parent


def _is_forked_since_blosc2() -> bool:
    """Tell whether a process that has blosc2 already may have it from its parent."""
    if "blosc2" not in sys.modules:
        return False
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return bool(int(fields[6]) & _FORKED_NO_EXEC)
    except (OSError, ValueError, IndexError):  # no Linux
        return multiprocessing.parent_process() is not None


_started_in = 0 if _is_forked_since_blosc2() else os.getpid()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
