"""A process that reads patches of ``.mla`` files, cold or warm, told what to do by lines of JSON on standard input."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import blosc2
import numpy as np
from pages import drop

import mlarray
from mlarray import MLArray, Region


class Worker:
    """Does what it is told. Methods are ``ours``, ``off`` (read-ahead turned off) and ``plain`` (blosc2, memory-mapped)."""

    def __init__(self) -> None:
        self._default = -1
        self._one_thread = blosc2.DParams(nthreads=1)

    def _set(self, method: str) -> None:
        if method == "plain":
            return
        if self._default < 0:
            self._default = mlarray.get_read_ahead()
        wanted = 0 if method == "off" else self._default
        if mlarray.get_read_ahead() != wanted:
            mlarray.set_read_ahead(wanted)

    def start(self, path: str) -> dict[str, Any]:
        """Open a file, which turns read-ahead on, and say what it is set to."""
        with MLArray.open(path) as image:
            shape, dtype = list(image.shape), str(image.dtype)
        self._default = mlarray.get_read_ahead()
        return {"shape": shape, "dtype": dtype, "read_ahead": self._default, "status": str(mlarray.read_ahead_status())}

    def sample(self, method: str, path: str, regions: list[list[list[int]]], mmap: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """Open a file and read patches; return the seconds."""
        self._set(method)
        out = np.zeros([b - a for a, b in zip(*regions[0], strict=True)], np.float32)
        mode = "r" if mmap else None
        began = time.perf_counter()
        if method == "plain":
            array = blosc2.open(path, mode="r", mmap_mode=mode, dparams=self._one_thread)
            for start, stop in regions:
                array.get_slice_numpy(out, (tuple(start), tuple(stop)))
            return {"seconds": time.perf_counter() - began}
        with MLArray.open(path, mmap_mode=mode) as image:
            for start, stop in regions:
                image.read(Region(tuple(start), tuple(stop)), out)
            return {"seconds": time.perf_counter() - began}

    def announced(self, path: str, region: list[list[int]], compute_seconds: float) -> dict[str, Any]:
        """Announce a patch, compute (the lock of the interpreter released), then read it; return all three times."""
        self._set("ours")
        box = Region(tuple(region[0]), tuple(region[1]))
        out = np.zeros(box.shape, np.float32)
        with MLArray.open(path) as image:
            began = time.perf_counter()
            image.prefetch([box])
            announced = time.perf_counter()
            time.sleep(compute_seconds)
            computed = time.perf_counter()
            image.read(box, out)
            done = time.perf_counter()
        return {"announce": announced - began, "compute": computed - announced, "read": done - computed}

    def sequence(self, method: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
        """Read samples one after the other, dropping the pages of a file before it where the step says so."""
        seconds = []
        for step in steps:
            if step["drop"]:
                drop(step["path"])
            seconds.append(self.sample(method, step["path"], [step["region"]])["seconds"])
        return {"seconds": seconds}


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        message = json.loads(line)
        answers.write(json.dumps(getattr(worker, message.pop("do"))(**message)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
