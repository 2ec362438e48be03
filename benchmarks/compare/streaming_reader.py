"""A process that reads preprocessed patches of one file, told what to do by lines of JSON on standard input."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pages import drop

import mlarray
from mlarray import transforms as T
from mlarray.streaming import plan

SAMPLE_SECONDS = 0.002
CHAIN = (T.Canonical(), T.ResampleToResolution([1, 1, 1]), T.Clip(-200, 400), T.Standardize(), T.Padding([8] * 6))


class Worker:
    """One plan, bound to one file."""

    def start(self, path: str, patch: int, mapped: bool) -> dict[str, Any]:  # noqa: FBT001
        """Open the file and plan from its header."""
        self._path = path
        began = time.perf_counter()
        self._source = mlarray.open_source(path, mapped=mapped)
        self._plan = plan(self._source, CHAIN, patch_size=patch, case=Path(path).name)
        seconds = time.perf_counter() - began
        shapes = {"stored": self._plan.chain.stored.shape, "result": self._plan.result.shape}
        return {"seconds": seconds, "regime": self._plan.regime, "patches": len(self._plan.grid), **shapes}

    def read(self, numbers: list[int], cold: bool) -> dict[str, Any]:  # noqa: FBT001
        """Read patches of the grid; return the seconds, and a sum that tells one patch from another."""
        if cold:
            self._source.close()  # nobody may have the file mapped
            drop(self._path)
        total = 0.0
        began = time.perf_counter()
        for number in numbers:
            total += float(self._plan.read(self._plan.grid[number])[0, 0, 0, 0])
        return {"seconds": time.perf_counter() - began, "sum": total}

    def watched(self, numbers: list[int]) -> dict[str, Any]:
        """Take the statistics and read patches; return the most memory that was held on the way."""
        with Watch() as watch:
            began = time.perf_counter()
            self._plan.measure()
            seconds = time.perf_counter() - began
            self.read(numbers, cold=False)
        memory = {**status(), "most_anonymous_bytes": watch.most}
        return {"statistics_seconds": seconds, "deviation": self._plan.attributes["Std"], "memory": memory}


class Watch:
    """Looks at the anonymous memory of this process every few milliseconds; the system keeps no peak of it."""

    def __init__(self) -> None:
        self.most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.most = max(self.most, status()["anonymous_bytes"])
            if self._done.wait(SAMPLE_SECONDS):
                return


def status() -> dict[str, int]:
    """Return resident memory of this process, in bytes: its peak, and now of which kind."""
    names = {"VmHWM": "peak_bytes", "VmRSS": "resident_bytes", "RssAnon": "anonymous_bytes", "RssFile": "file_bytes"}
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {told: int(found[name].split()[0]) * 1024 for name, told in names.items()}


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
