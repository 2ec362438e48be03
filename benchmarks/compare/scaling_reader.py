"""A process that reads random patches of one ``.mla`` file with one or more threads, told how by lines of JSON."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from mlarray import MLArray, Region


class Worker:
    """Keeps the file open once per thread, as data loaders that read in threads do."""

    def __init__(self, path: str, threads: int, decoding: int) -> None:
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(threads))
        self._images = [
            self._stack.enter_context(MLArray.open(path, dparams={"nthreads": decoding})) for _ in range(threads)
        ]

    def read(self, regions: list[list[list[list[int]]]]) -> dict[str, Any]:
        """Read the patches of every thread at once."""
        list(self._pool.map(read_all, self._images, regions))
        return {"done": True}

    def close(self) -> None:
        """Close the files and end the threads."""
        self._stack.close()


def read_all(image: MLArray, regions: list[list[list[int]]]) -> None:
    """Read patches one after the other into the same array."""
    out = np.empty([b - a for a, b in zip(*regions[0], strict=True)], image.dtype)
    for start, stop in regions:
        image.read(Region(tuple(start), tuple(stop)), out)


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    path, threads, decoding = sys.argv[1:]
    worker = Worker(path, int(threads), int(decoding))
    for line in sys.stdin:
        answers.write(json.dumps(worker.read(json.loads(line)["regions"])) + "\n")
        answers.flush()
    worker.close()


if __name__ == "__main__":
    main()
