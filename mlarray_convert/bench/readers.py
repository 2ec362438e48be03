"""How long does it take to read these patches, by one process or by several at once?

One reader is this process. More are processes of their own, since blosc2 holds the interpreter's lock while it decodes; they
prepare, wait, and start together at a word, and the time is that until the last one is done.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import numpy as np

from mlarray.array import MLArray
from mlarray.errors import MLArrayError
from mlarray.region import Region
from mlarray.sources.base import NDArray

STOP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Patch:
    """One read.

    Parameters
    ----------
    path : str
        An ``.mla`` file, or an ``.npy`` file to be read through ``numpy.load(mmap_mode="r")``.
    region : Region
        Within the array.
    """

    path: str
    region: Region


def prepared(patches: Sequence[Patch], *, cold: bool) -> Callable[[], float]:
    """Return a function that reads the patches, one after the other, and returns the seconds it took.

    Warm reads find their files open and fill the same buffers; what is timed is the read alone. A cold read opens the file
    too, since that reads from it.
    """
    if cold:
        return lambda: sum(_open_and_read(patch) for patch in patches)
    opened = {path: _opened(path) for path in dict.fromkeys(patch.path for patch in patches)}
    buffers = {
        (patch.path, patch.region.shape): np.zeros(patch.region.shape, opened[patch.path].dtype) for patch in patches
    }

    def read() -> float:
        began = time.perf_counter()
        for patch in patches:
            _fill(opened[patch.path], patch.region, buffers[patch.path, patch.region.shape])
        seconds = time.perf_counter() - began
        for image in opened.values():
            _close(image)
        opened.clear()  # a file that stays mapped somewhere cannot be made cold
        return seconds

    return read


class Readers:
    """Processes that read at the same time; a context manager.

    Parameters
    ----------
    count : int
        How many. They are started at once; 1 starts none.
    """

    def __init__(self, count: int) -> None:
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        context = multiprocessing.get_context("spawn")
        try:
            for _ in range(count if count > 1 else 0):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join(STOP_SECONDS)
        self._processes, self._pipes = [], []

    def seconds(self, shares: Sequence[Sequence[Patch]], *, cold: bool) -> float:
        """Return the seconds until every share of patches is read, each by a reader of its own.

        Parameters
        ----------
        shares : sequence of sequence of Patch
            As many shares as readers are to work; one share is read by this process.
        cold : bool
            Whether opening the file counts, see :func:`prepared`.
        """
        if len(shares) == 1:
            return prepared(shares[0], cold=cold)()
        pipes = self._pipes[: len(shares)]
        for pipe, share in zip(pipes, shares, strict=True):
            self._send(pipe, (tuple(share), cold))
        for pipe in pipes:
            self._answer(pipe)
        began = time.perf_counter()
        for pipe in pipes:
            self._send(pipe, None)
        for pipe in pipes:
            self._answer(pipe)
        return time.perf_counter() - began

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except OSError as error:
            raise self._lost() from error

    def _answer(self, pipe: Connection) -> None:
        try:
            problem = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if problem is not None:
            raise problem

    def _lost(self) -> MLArrayError:
        for process in self._processes:
            process.join(STOP_SECONDS / 10)
        codes = ", ".join(str(process.exitcode) for process in self._processes if process.exitcode is not None)
        return MLArrayError(
            f"A reader process ended while it measured (exit code {codes or 'unknown'}).",
            hint="A script calls bench() below `if __name__ == '__main__':`; the command line does so by itself.",
        )


def _serve(pipe: Connection) -> None:
    """Prepare, say so, read at the word, say so; until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us by the pipe
    with contextlib.suppress(EOFError, OSError):
        while True:
            patches, cold = pipe.recv()
            try:
                read = prepared(patches, cold=cold)
                pipe.send(None)
                pipe.recv()
                read()
                pipe.send(None)
            except Exception as error:  # told to the parent, which raises it
                pipe.send(MLArrayError(f"A reader failed: {type(error).__name__}: {error}"))


def _open_and_read(patch: Patch) -> float:
    began = time.perf_counter()
    image = _opened(patch.path)
    _fill(image, patch.region, np.empty(patch.region.shape, image.dtype))
    seconds = time.perf_counter() - began
    _close(image)
    return seconds


def _opened(path: str) -> Any:
    return np.load(path, mmap_mode="r") if path.endswith(".npy") else MLArray.open(path)


def _fill(image: Any, region: Region, out: NDArray) -> None:
    if isinstance(image, np.ndarray):
        out[...] = image[region.slices]
    else:
        image.read(region, out)


def _close(image: Any) -> None:
    if isinstance(image, MLArray):
        image.close()
