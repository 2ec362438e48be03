"""How do arrays get from a worker process to the one that uses them? Through memory that has no name.

An answer is pickled without its arrays; those are written into anonymous memory (``memfd_create``, elsewhere a file that is
unlinked as soon as it is made), and its descriptor goes through the pipe. Nothing has a name, so nothing can be left behind,
however a process ends. Such memory is no part of ``/dev/shm``, whose size containers often limit to 64 MiB, and it is written by
``pwrite``: where there is no room the system says so, and the arrays go through the pipe instead. The receiver maps it, without a
copy, for as long as an array of the answer is in use.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

_SMALL_BYTES = 1 << 16  # below, the pipe is faster
_ALIGNMENT = 64  # what vector instructions and torch like
_MOST_MAPPED = 64  # each mapping holds a descriptor, and a process has 1024 of them by default
_PIECE_BYTES = 1 << 30  # one call writes less than 2 GiB
_COPIED_BYTES = 1 << 20


def give(pipe: Connection[Any, Any], answer: object) -> None:
    """Send an answer with its arrays.

    Raises
    ------
    OSError
        Nobody listens.
    """
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(answer, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = [view.nbytes for view in views]
    descriptor = _filled(views) if sum(sizes) >= _SMALL_BYTES else None
    try:
        pipe.send((text, sizes, descriptor is not None))
        if descriptor is not None:
            reduction.send_handle(pipe, descriptor, os.getppid())
            return
        for view in views:
            pipe.send_bytes(view)
    finally:
        if descriptor is not None:
            os.close(descriptor)


class Inbox:
    """Takes what :func:`give` sent; one for all pipes of a process, so that few descriptors are held."""

    def __init__(self) -> None:
        self._mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def take(self, pipe: Connection[Any, Any]) -> Any:
        """Wait for an answer and return it; its arrays are the caller's own and may be changed.

        Raises
        ------
        EOFError, OSError
            The other side is gone.
        """
        text, sizes, is_shared = pipe.recv()
        if not is_shared:
            return pickle.loads(text, buffers=[bytearray(pipe.recv_bytes()) for _ in sizes])
        descriptor = reduction.recv_handle(pipe)
        try:
            memory = self._mapping(descriptor, _places(sizes)[-1])
        finally:
            os.close(descriptor)
        return pickle.loads(
            text, buffers=[memory[at : at + size] for at, size in zip(_places(sizes), sizes, strict=False)]
        )

    def _mapping(self, descriptor: int, size: int) -> memoryview:
        if len(self._mapped) >= _MOST_MAPPED:
            copied = memoryview(bytearray(size))
            for start in range(0, size, _COPIED_BYTES):
                piece = os.pread(descriptor, _COPIED_BYTES, start)
                copied[start : start + len(piece)] = piece
            return copied
        mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self._mapped.add(mapped)
        return memoryview(mapped)


def _places(sizes: Sequence[int]) -> list[int]:
    """Return where each array begins, and where the last one ends."""
    places = [0]
    for size in sizes:
        places.append(-(-(places[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
    return places


def _filled(views: Sequence[memoryview]) -> int | None:
    """Return a descriptor of anonymous memory that holds the arrays, or None where there is no such memory or no room."""
    if sys.platform == "win32":
        return None
    places = _places([view.nbytes for view in views])
    descriptor = None
    try:
        descriptor = _anonymous()
        os.ftruncate(descriptor, places[-1])
        for place, view in zip(places, views, strict=False):
            done = 0
            while done < view.nbytes:
                done += os.pwrite(descriptor, view[done : done + _PIECE_BYTES], place + done)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mlarray-batch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
