"""What does the memory of a training run look like over time? One panel per file, drawn from what ``compare/training.py`` wrote.

python benchmarks/report/training_picture.py RESULTS.json... PICTURE.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from charts import Lines, lines_picture

_POINTS = 12  # of a phase
_BOUND = 0.40
_WAYS = {"torch": "through torch's DataLoader", "numpy": "without torch"}
_FLOOR = "import torch"


def picture_of(memories: Sequence[dict[str, Any]]) -> str:
    """Return the picture of one or more results of memory."""
    return lines_picture(
        [panel for memory in memories for panel in _panels(memory)],
        "GiB of own memory, all processes",
        "the phases of a run, each stretched to one width",
        mark=_BOUND,
    )


def _panels(memory: dict[str, Any]) -> Iterator[Lines]:
    kinds = dict.fromkeys(name.split(", ")[0] for name in memory["runs"])
    for kind in kinds:
        runs = {way: memory["runs"][f"{kind}, {way}"] for way in _WAYS}
        phases = ["statistics", *(f"epoch {number + 1}" for number in range(len(runs["torch"]["epoch_gib"])))]
        series = [(told, [value for phase in _phases(runs[way]) for value in phase]) for way, told in _WAYS.items()]
        steps = [""] * (_POINTS * len(phases))
        series.append((_FLOOR, [memory["floors"][_FLOOR]] * len(steps)))
        title = f".{kind} of {memory['gib']:g} GiB" + ("" if kind == "mha" else f" ({runs['torch']['gib']:.1f} stored)")
        yield Lines(title, steps, series, [(phase, _POINTS) for phase in phases])


def _phases(run: dict[str, Any]) -> Iterator[list[float]]:
    """Yield the most of each part of each phase; a part without a sample has what was there before."""
    last = 0.0
    for began, ended in pairwise(run["marks"]):
        found = []
        for part in range(_POINTS):
            low, high = (began + (ended - began) * (part + more) / _POINTS for more in (0, 1))
            inside = [value for second, value in run["curve"] if low <= second < high]
            last = max(inside, default=last)
            found.append(last)
        yield found


def main() -> None:
    """Draw."""
    *results, picture = map(Path, sys.argv[1:])
    memories = [json.loads(path.read_text(encoding="utf-8"))["memory"] for path in results]
    picture.write_text(picture_of(memories), encoding="utf-8")


if __name__ == "__main__":
    main()
