"""What do all comparisons say in the same words? Medians with quartiles, bounds kept or missed, and the machine they ran on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return median and quartiles."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "low": low, "high": high}


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Return the spread of a ratio within rounds."""
    return quartiles([a / b for a, b in zip(over, under, strict=True)])


def text_of(spread: dict[str, Any]) -> str:
    """Return median and quartiles as they are printed."""
    return f"{spread['median']:.3g} ({spread['low']:.3g}-{spread['high']:.3g})"


def bounded(
    check: str, spread: dict[str, float], *, most: float | None = None, least: float | None = None
) -> dict[str, Any]:
    """Return a row of the bounds: what was checked, its spread, and whether the median keeps the one bound that is given."""
    if least is not None:
        return {"check": check, **spread, "bound": f">= {least}", "kept": spread["median"] >= least}
    assert most is not None
    return {"check": check, **spread, "bound": f"<= {most}", "kept": spread["median"] <= most}


def show_bounds(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of :func:`bounded`."""
    print("\nbounds")
    for row in rows:
        told = "PASS" if row["kept"] else "FAIL"
        print(f"{told} {row['check']:56} {text_of(row):>24}   bound {row['bound']}")


def extents(text: str) -> tuple[int, ...]:
    """Return the shape that an option names: ``400,512,512``."""
    return tuple(map(int, text.split(",")))


def machine() -> dict[str, Any]:
    """Return what a reader must know of the machine to judge a number; nothing that names it."""
    available = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "processors": len(available),
        "memory_bytes": _memory_bytes(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("mlarray", "blosc2", "numpy")},
    }


def write_json(path: Path | None, results: dict[str, Any]) -> None:
    """Write results where a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        for line in listed.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)
