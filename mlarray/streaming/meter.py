"""How fast does a stream deliver, and how much memory do its processes have of their own?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from mlarray.streaming.batch import Sample

_PROPORTIONAL = "Pss_Anon:"


@dataclass(frozen=True, slots=True)
class Rate:
    """What a run through batches showed.

    Parameters
    ----------
    batches, patches : int
        How many came.
    seconds : float
        From the first request to the last batch.
    first_seconds : float
        Until the first batch came: workers start, files open.
    bytes : int
        Of the arrays.
    """

    batches: int
    patches: int
    seconds: float
    first_seconds: float
    bytes: int

    @property
    def patches_per_second(self) -> float:
        """Patches after the first batch, per second; NaN for a single batch."""
        left = self.seconds - self.first_seconds
        return self.patches * (self.batches - 1) / self.batches / left if self.batches > 1 and left > 0 else np.nan


def measure_rate(batches: Iterable[Iterable[Sample]], *, most: int | None = None) -> Rate:
    """Go through batches, of arrays or of tensors, and return how fast they came; at most ``most`` of them."""
    count = patches = held = 0
    start = time.perf_counter()
    first = 0.0
    for batch in batches:
        count += 1
        first = first or time.perf_counter() - start
        for sample in batch:
            patches += 1
            held += sum(int(array.nbytes) for array in sample.arrays.values())
        if count == most:
            break
    return Rate(count, patches, time.perf_counter() - start, first, held)


def own_bytes() -> int:
    """Return the memory that this process and its children have of their own, now.

    On Linux the sum of ``Pss_Anon`` (proc(5), smaps_rollup): anonymous memory, where pages that processes share after a fork
    count once. Elsewhere the sum of the unique set sizes.
    """
    import psutil

    me = psutil.Process()
    return sum(_own_bytes(process) for process in (me, *me.children(recursive=True)))


def _own_bytes(process: object) -> int:
    import psutil

    try:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as file:  # type: ignore[attr-defined]
            return sum(int(line.split()[1]) for line in file if line.startswith(_PROPORTIONAL)) * 1024
    except FileNotFoundError:
        try:
            return int(process.memory_full_info().uss)  # type: ignore[attr-defined]
        except psutil.Error:
            return 0
    except OSError:  # it ended meanwhile
        return 0


class MemoryCurve:
    """Memory over time, sampled by a thread while the ``with`` block runs.

    Parameters
    ----------
    interval : float
        Seconds between samples.

    Attributes
    ----------
    seconds, bytes : list
        When, from the start, and how much (:func:`own_bytes`).
    """

    def __init__(self, interval: float = 0.2) -> None:
        self.interval = interval
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory curve", daemon=True)

    @property
    def peak(self) -> int:
        """The largest sample."""
        return max(self.bytes, default=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        start = time.perf_counter()
        while True:
            self.seconds.append(time.perf_counter() - start)
            self.bytes.append(own_bytes())
            if self._stop.wait(self.interval):
                return
