"""The same run in KonfAI, in an environment of its own: its training data set without its trainer.

On the chain ``Canonical, Clip, Standardize`` it says itself that a statistic after a stage that changes values needs the whole
case, which each worker then holds; with ``mean`` and ``std`` declared it reads patches as regions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pages import drop

PATCH, BATCH = 64, 2
CONFIG = """Trainer:
  Dataset:
    dataset_filenames: ['{data}:a:mha']
    groups_src:
      CT:
        groups_dest:
          CT:
            transforms:
              Canonical: {{}}
              Clip: {{min_value: -200, max_value: 400}}
              Standardize: {{{standardize}}}
            patch_transforms: None
            is_input: true
    augmentations: None
    Patch: {{patch_size: [{patch}, {patch}, {patch}], overlap: None}}
    memory_budget: {budget}
    subset: None
    batch_size: {batch}
    validation: None
    num_workers: {workers}
    persistent_workers: true
"""


class Trainer:
    """One data set with its loader."""

    def start(
        self, data: str, *, folder: str, workers: int, budget: float, batches: int, declared: bool
    ) -> dict[str, Any]:
        """Prepare the data set and make the loader."""
        standardize = "mean: [0.0], std: [100.0]" if declared else ""
        values = {"data": data, "standardize": standardize, "patch": PATCH, "budget": budget, "batch": BATCH}
        config = Path(folder) / f"konfai_{os.getpid()}.yml"
        config.write_text(CONFIG.format(workers=workers, **values), encoding="utf-8")
        os.environ |= {"KONFAI_config_file": str(config), "KONFAI_CONFIG_MODE": "Done", "KONFAI_STATE": "TRAIN"}
        os.environ |= {"KONFAI_ROOT": "Trainer", "KONFAI_CONFIG_PATH": "Trainer"}
        from konfai.data.data_manager import DataTrain
        from konfai.utils.config import apply_config

        self._files, self._batches = list(Path(data).rglob("CT.mha")), batches
        self._data = apply_config("Trainer")(DataTrain)()
        self._data.prepare()
        self._begin()
        return {}

    def epoch(self, number: int) -> dict[str, Any]:
        """Go through the first batches of an epoch."""
        began, patches = time.perf_counter(), 0
        for count, batch in enumerate(self._loader, 1):
            patches += len(batch["CT"].tensor)
            if count == self._batches:
                break
        return {"patches": patches, "seconds": time.perf_counter() - began}

    def forget(self) -> dict[str, Any]:
        """End the workers and drop the pages of the file."""
        self._loader = None
        for path in self._files:
            drop(str(path))
        self._begin()
        return {}

    def _begin(self) -> None:
        self._loader: Any = self._data.get_data(1)[0][0][0]


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
