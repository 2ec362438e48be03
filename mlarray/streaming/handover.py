"""How do batches get from a worker process to the one that uses them? In memory that both have mapped, and that is used again.

Each worker has a :class:`Ring`: a few places in one piece of anonymous memory, made before the worker starts. The worker puts
the arrays of a batch into a free place as it stacks them, and sends only where they are. The receiver's arrays are views of that
place, which is free again when the last of them is gone. New memory for each batch would cost more than filling it: 0.9 ms for
2 MiB that the system makes, clears, maps twice and takes back, 0.1 in a place that is there.

The memory has no name (``memfd_create``, elsewhere a file that is unlinked as soon as it is made), so nothing can be left behind,
however a process ends. It is no part of ``/dev/shm``, whose size containers often limit to 64 MiB. What a place is to hold is
first written by ``pwrite``: where there is no room the system says so, and arrays go through the pipe instead, as do those for
which no place is free or large enough.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from mlarray.sources.base import NDArray

_ALIGNMENT = 64  # what vector instructions and torch like
_SMALL_BYTES = 1 << 12  # below, an array is sent as it is
_PIECE_BYTES = 1 << 20
_FREE, _FILLED, _LENT = 0, 1, 2  # states of a place: one byte for each, in the first page
_ZEROS = bytes(_PIECE_BYTES)

# Of this process; a parcel knows the name.
_RINGS: weakref.WeakValueDictionary[str, Ring] = weakref.WeakValueDictionary()

HELD = 3
"""Places of a ring beside those that a worker fills ahead: for a batch in use, the next one, and one that waits."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is sent: an answer without its arrays, and where they are.

    Parameters
    ----------
    text : bytes
        The pickled answer.
    place : (str, int) or None
        Name of the ring and number of the place; None where nothing lies in one.
    arrays : tuple of ((int, int) or bytearray)
        For each array where it begins in the place and how many bytes it has, or the bytes.
    """

    text: bytes
    place: tuple[str, int] | None
    arrays: tuple[tuple[int, int] | bytearray, ...]


class Ring:
    """Places for the batches of one worker.

    Parameters
    ----------
    places : int
        How many.
    place_bytes : int
        Most that a batch takes. Room that is not used takes no memory.

    Raises
    ------
    OSError
        There is no such memory here, or not that much.
    """

    def __init__(self, places: int, place_bytes: int) -> None:
        self.places = places
        self.place_bytes = (place_bytes // mmap.PAGESIZE + 2) * mmap.PAGESIZE  # one for the gaps between arrays
        self.name = uuid.uuid4().hex
        self._user = os.getpid()
        self._owner = 0
        descriptor = _anonymous()
        try:
            os.ftruncate(descriptor, self._start(places))
            self._open(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        _RINGS[self.name] = self

    def _open(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, self._start(self.places))
        self._claimed = [0] * self.places  # bytes of each place that the system has given, as far as this process knows
        weakref.finalize(self, os.close, descriptor).atexit = False

    def take(self) -> Place | None:
        """Return a free place to fill, or None. It is free again when its arrays are gone before they were sent."""
        for number in range(self.places):
            if self._memory[number] == _FREE:
                self._memory[number] = _FILLED
                return Place(self, number)
        return None

    def own(self) -> bool:
        """Tell whether this process alone fills the ring; what one before it filled and did not send is free again.

        Needed where workers are started by others, who might start two for one ring.
        """
        if self._owner != os.getpid():
            import fcntl  # where there are rings, there is this

            with suppress(OSError):  # somebody else has it
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._owner = os.getpid()
                for number in range(self.places):
                    if self._memory[number] == _FILLED:
                        self.mark(number, _FREE)
        return self._owner == os.getpid()

    def lent(self, number: int, extent: int) -> NDArray:
        """Return the bytes of a place that was sent; called by the process that made the ring, once for each parcel.

        The worker gets the place back when nothing is left that lies in them. Where no other place is free they are a copy, so
        that who keeps every batch does not stop the worker.
        """
        found = self.bytes_of(number)
        if all(self._memory[other] != _FREE for other in range(self.places)):
            found = found[:extent].copy()
            self.mark(number, _FREE)
        else:
            weakref.finalize(found, self._give_back, number).atexit = False
        return found

    def mark(self, number: int, state: int) -> None:
        """Say what a place is."""
        self._memory[number] = state

    def claim(self, number: int, size: int) -> None:
        """Get memory for the first bytes of a place.

        Raises
        ------
        OSError
            There is none.
        """
        while self._claimed[number] < size:
            done = self._claimed[number]
            piece = memoryview(_ZEROS)[: min(_PIECE_BYTES, self.place_bytes - done)]
            self._claimed[number] += os.pwrite(self._descriptor, piece, self._start(number) + done)

    def bytes_of(self, number: int) -> NDArray:
        """Return the bytes of a place; a new array, which ends when nothing is left that lies in it."""
        return np.frombuffer(self._memory, np.uint8, self.place_bytes, self._start(number))

    def _start(self, number: int) -> int:
        return -(-self.places // mmap.PAGESIZE) * mmap.PAGESIZE + number * self.place_bytes

    def _give_back(self, number: int) -> None:
        if os.getpid() == self._user:  # a fork of it has copies of the arrays, and no say
            self.mark(number, _FREE)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a process needs that is being started; anybody else gets None."""
        if get_spawning_popen() is None:
            return (type(None), ())
        return (_ring_of_another, (self.places, self.place_bytes, self.name, reduction.DupFd(self._descriptor)))


class Place:
    """A place of a ring that is being filled: the arrays of a batch go there, one behind the other."""

    def __init__(self, ring: Ring, number: int) -> None:
        self._ring, self._number = ring, number
        self._bytes = ring.bytes_of(number)
        self._used = 0
        self._unsent = weakref.finalize(self._bytes, ring.mark, number, _FREE)
        self._unsent.atexit = False

    def stack(self, arrays: Sequence[NDArray]) -> NDArray:
        """Return arrays of one shape and dtype as one, in the place while there is room, see :meth:`Batch.of`."""
        first = arrays[0]
        shape = (len(arrays), *first.shape)
        room = self._room(len(arrays) * first.nbytes) if first.dtype.isnative else None
        return np.stack(arrays, out=None if room is None else room.view(first.dtype).reshape(shape))

    def put(self, array: NDArray) -> tuple[int, int] | None:
        """Return where the bytes of an array begin in the place, and how many they are; None where they have no room.

        Those that lie there already are not moved.
        """
        begin = _address(array) - _address(self._bytes)
        if 0 <= begin < self._used:
            return begin, array.nbytes
        room = self._room(array.nbytes)
        if room is None:
            return None
        room[...] = array
        return _address(room) - _address(self._bytes), array.nbytes

    def send(self) -> tuple[str, int] | None:
        """Return the name of the place and leave it to the receiver; where nothing lies in it, free it and return None."""
        self._unsent.detach()
        self._ring.mark(self._number, _LENT if self._used else _FREE)
        return (self._ring.name, self._number) if self._used else None

    def _room(self, size: int) -> NDArray | None:
        """Return room for an array, or None where there is none."""
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if not size or begin + size > self._ring.place_bytes:
            return None
        try:
            self._ring.claim(self._number, begin + size)
        except OSError:
            return None
        self._used = begin + size
        return self._bytes[begin : self._used]


def packed(answer: object, place: Place | None) -> Parcel:
    """Return an answer as it is sent: its arrays in a place, where there is one that has room."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(answer, protocol=5, buffer_callback=buffers.append)
    arrays = []
    for buffer in buffers:
        array = np.frombuffer(buffer.raw(), np.uint8)
        put = place.put(array) if place is not None and array.nbytes >= _SMALL_BYTES else None
        arrays.append(bytearray(array) if put is None else put)
    return Parcel(text, None if place is None else place.send(), tuple(arrays))


def unpacked(parcel: Parcel) -> Any:
    """Return the answer of a parcel. Its arrays are the caller's own and may be changed."""
    if parcel.place is None:
        return pickle.loads(parcel.text, buffers=parcel.arrays)
    ring, number = parcel.place
    extent = max((sum(one) for one in parcel.arrays if isinstance(one, tuple)), default=0)
    lent = _RINGS[ring].lent(number, extent).data
    buffers = [lent[one[0] : sum(one)] if isinstance(one, tuple) else one for one in parcel.arrays]
    return pickle.loads(parcel.text, buffers=buffers)


def ring_for(places: int, place_bytes: int) -> Ring | None:
    """Return a ring, or None where the system has no such memory."""
    if sys.platform == "win32" or not place_bytes:
        return None
    try:
        return Ring(places, place_bytes)
    except (OSError, OverflowError, ValueError):
        return None


def _ring_of_another(places: int, place_bytes: int, name: str, descriptor: Any) -> Ring:
    ring = object.__new__(Ring)
    ring.places, ring.place_bytes, ring.name = places, place_bytes, name
    ring._user = ring._owner = 0
    ring._open(descriptor.detach())
    return ring


def _address(array: NDArray) -> int:
    return int(array.__array_interface__["data"][0])


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mlarray-batch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
