"""A training run without the training: batches of one data set through a loader, told what to do by lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from pages import drop

from mlarray import transforms as T
from mlarray.streaming import PatchStream
from mlarray.streaming.batch import Batch, Stack
from mlarray.streaming.loader import WorkerLoader
from mlarray.streaming.meter import measure_rate
from mlarray.streaming.samplers import GridPatches, RandomPatches

CHAIN = (T.Canonical(), T.Clip(-200, 400), T.Standardize())
PATCH, BATCH = 64, 2


class Zeros:
    """Batches of zeros, of the size of real ones: what a loader costs when nothing is read."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.from_numpy(np.zeros((BATCH, 1, PATCH, PATCH, PATCH), np.float32))


class Beginning:
    """The first batches of each epoch of a stream; a loader ends with them and has nothing begun in vain."""

    def __init__(self, stream: PatchStream, batches: int) -> None:
        self.stream, self.batches = stream, min(batches, len(stream))

    epoch = property(lambda self: self.stream.epoch)
    first = property(lambda self: self.stream.first)
    batch_bytes = property(lambda self: self.stream.batch_bytes)

    def __len__(self) -> int:
        return self.batches

    def set_epoch(self, epoch: int) -> None:
        self.stream.set_epoch(epoch)

    def batch(self, index: int, *, stack: Stack = np.stack) -> Batch:
        return self.stream.batch(index, stack=stack)


class Trainer:
    """One stream with its loader."""

    def torch(self) -> dict[str, Any]:
        """Import torch."""
        import torch

        return {"version": torch.__version__}

    def zeros(self, workers: int, batches: int) -> dict[str, Any]:
        """Go through batches of zeros."""
        from torch.utils.data import DataLoader

        self._loader = DataLoader(Zeros(batches), batch_size=None, num_workers=workers, persistent_workers=True)  # type: ignore[arg-type,var-annotated]
        return {"batches": sum(1 for _ in self._loader)}

    def start(
        self,
        data: str,
        *,
        workers: int,
        torch: bool,
        budget: float,
        positions: str,
        batches: int,
    ) -> dict[str, Any]:
        """Plan from headers, take the statistics of the volume, and make the loader."""
        sampler = RandomPatches(batches * BATCH) if positions == "random" else GridPatches()
        self._data, self._workers, self._torch = Path(data), workers, torch
        began = time.perf_counter()
        stream = PatchStream(
            data, {"CT": CHAIN}, patch_size=PATCH, sampler=sampler, memory_budget=budget, batch_size=BATCH
        )
        planned = time.perf_counter()
        stream.prepare()
        measured = time.perf_counter()
        self._stream = Beginning(stream, batches)
        self._begin()
        return {
            "planned_seconds": planned - began,
            "statistics_seconds": measured - planned,
            "regime": stream.decision.regime.value,
            "decision": stream.decision.line,
        }

    def epoch(self, number: int) -> dict[str, Any]:
        """Go through an epoch."""
        self._stream.set_epoch(number)
        rate = measure_rate(self._loader)
        return {"patches": rate.patches, "seconds": rate.seconds, "first_seconds": rate.first_seconds}

    def forget(self) -> dict[str, Any]:
        """End the workers, close the files and drop their pages, so that the next epoch comes from the disk."""
        if isinstance(self._loader, WorkerLoader):
            self._loader.close()
        self._loader = None
        self._stream.stream.close()
        for path in self._data.rglob("CT.*"):
            drop(str(path))
        self._begin()
        return {}

    def _begin(self) -> None:
        if self._torch:
            from mlarray.integrations.torch import torch_loader

            self._loader: Any = torch_loader(self._stream, workers=self._workers)
        else:
            self._loader = WorkerLoader(self._stream, workers=self._workers)


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    trainer = Trainer()
    for line in sys.stdin:
        message = json.loads(line)
        answers.write(json.dumps(getattr(trainer, message.pop("do"))(**message)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
