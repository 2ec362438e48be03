"""Small streams for the tests of loaders: every batch says by its voxels which one it is, and who computed it."""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import signal
import threading
from collections.abc import Callable

import numpy as np

from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.streaming.batch import Batch, Sample, Stack

GEOMETRY = Geometry.from_parts(spacing=(3.0, 2.0, 1.0), origin=(-10.0, 20.0, 30.0), coord_system="LPS")


class Numbers:
    """Batches of two patches filled with ``epoch * 1000 + index``; the copy of a sample is the process that computed it."""

    def __init__(self, count: int = 8, shape: tuple[int, ...] = (32, 32, 32)) -> None:
        self.count = count
        self.shape = shape
        self.epoch = 0
        self.first = 0
        self.batch_bytes = 2 * 5 * math.prod(shape)

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.first = epoch, 0

    def batch(self, index: int, *, stack: Stack = np.stack) -> Batch:
        region = Region.at((index,) * len(self.shape), self.shape)
        value = self.epoch * 1000 + index
        arrays = {"CT": np.full((1, *self.shape), value, np.float32), "SEG": np.full((1, *self.shape), index, np.uint8)}
        geometry = {"CT": GEOMETRY.cropped(region), "SEG": GEOMETRY.cropped(region)} if len(self.shape) == 3 else {}
        return Batch.of([Sample(arrays, f"case_{index}", os.getpid(), region, geometry) for _ in range(2)], stack=stack)


class Acting(Numbers):
    """Does something at batch 3."""

    def __init__(self, action: Callable[[], None], count: int = 8) -> None:
        super().__init__(count)
        self.action = action

    def batch(self, index: int, *, stack: Stack = np.stack) -> Batch:
        if index == 3:
            self.action()
        return super().batch(index, stack=stack)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    faulthandler.disable()  # which would write a traceback of every thread to the terminal
    ctypes.string_at(0)


def leave() -> None:
    os._exit(7)


def fail() -> None:
    raise UsageError("The patch is too large.", hint="Take a smaller one.")


class UnpicklableError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.lock,))


def fail_unpicklably() -> None:
    raise UnpicklableError("voxels are missing", "x")


class OneWayError(Exception):
    """Pickles, and cannot be unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (int, ("no number",))


def fail_in_a_way_that_does_not_come_back() -> None:
    raise OneWayError("voxels are missing")


def wait_for_ever() -> None:
    threading.Event().wait()
