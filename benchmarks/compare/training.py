"""How much memory does a training run have of its own, and how fast does it get its patches?

1. *memory*: a volume larger than what a workstation has left (16 GiB of int16 by default), patches of 64^3, batches of 2, two
   workers, ``memory_budget=8`` (so that it streams), three epochs of 500 batches, statistics of the volume included. What counts
   is the sum of ``Pss_Anon`` over all processes of the run: memory of its own, pages that are shared after a fork counted once.
   Beside it what importing torch takes, and a loader of torch that hands out zeros. Batches on their way between processes lie
   in shared memory, which is shown by itself;
2. *rate*: patches per second from the same voxels as an uncompressed ``.mha`` and as an ``.mla``, through torch's ``DataLoader``
   with two workers, warm and after the pages of the file were dropped, for the shuffled grid and for random positions; and
   KonfAI on the ``.mha``, on a grid, with ``--konfai PYTHON``: the interpreter of an environment that has it. On this chain it
   loads the whole case into each worker, whatever the budget, which is beside what this project does with all in memory; with
   mean and deviation declared it streams. Loading, statistics and the start of workers are not counted.

The volume is made here, in bounded memory: CT-like int16, sagittal planes, so that ``Canonical`` exchanges and mirrors axes. One
file is there at a time when memory is measured.

    python benchmarks/compare/training.py SCRATCH [--gib 16] [--rate-gib 2] [--only memory|rate] [--formats mha,mla]
        [--konfai PYTHON] [--rounds 9] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from peer_process import Peer
from spreads import bounded, machine, quartiles, ratio, show_bounds, text_of, write_json
from streaming import PLANE, SAGITTAL, SPACING, planes, write_mha

from mlarray import MLArray

HERE = Path(__file__).parent
READER = HERE / "training_reader.py"
GIB = 1 << 30
PATCH, WORKERS, BUDGET_GIB = 64, 2, 8
EPOCHS, BATCHES = 3, 500
RATE_BATCHES = {"warm": 150, "cold": 40}
WAYS = {
    "mha, grid": ("mha", "grid", "stream"),
    "mha, random": ("mha", "random", "stream"),
    "mla, grid": ("mla", "grid", "stream"),
    "mla, random": ("mla", "random", "stream"),
    "in memory, grid": ("mla", "grid", "cache"),
}
SAMPLE_SECONDS = 0.05
MEMORY_BOUND = {"torch": 0.40, "numpy": 0.15}
FLAT_BOUND = 1.05
RATE_BOUND = {"mha": 1.5, "konfai": 2.0}


# --- data ------------------------------------------------------------------------------------------------------------------


def data_set(folder: Path, kind: str, gib: float) -> Path:
    """Return a data set of one case, whose one file is made unless it is there."""
    path = folder / f"{kind}_{gib:g}" / "case" / f"CT.{kind}"
    count = max(1, round(gib * GIB / (2 * PLANE[0] * PLANE[1])))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        (write_mha if kind == "mha" else write_mla)(path, count)
        size = path.stat().st_size / GIB
        print(f"made {path.name}, {size:.2f} GiB, in {time.perf_counter() - began:.0f} s", flush=True)
    return path.parents[1]


def write_mla(path: Path, count: int) -> None:
    """Write planes as an ``.mla`` for patches of 64, one row of chunks at a time."""
    shape = (count, *PLANE)
    with MLArray.create(path, shape, np.int16, patch_size=PATCH, mmap_mode=None) as image:
        image.spacing, image.direction, image.origin = SPACING, SAGITTAL, (0, 0, 0)
        slab = np.empty((image.meta.blosc2.chunk_size[0], *PLANE), np.int16)
        for z, plane in enumerate(planes(count)):
            slab[z % len(slab)] = plane
            if (z + 1) % len(slab) == 0 or z + 1 == count:
                held = z % len(slab) + 1
                image[z + 1 - held : z + 1] = slab[:held]


# --- memory ----------------------------------------------------------------------------------------------------------------


class Watch:
    """Looks at the memory of a process and all its children, until the ``with`` block ends."""

    def __init__(self, pid: int) -> None:
        self.samples: list[tuple[float, int, int]] = []  # when, own bytes, shared bytes
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def peak(self, began: float, ended: float) -> dict[str, float]:
        """Return the most of both kinds between two moments, in GiB."""
        inside = [sample for sample in self.samples if began <= sample[0] <= ended]
        return {"own": max(one[1] for one in inside) / GIB, "shared": max(one[2] for one in inside) / GIB}

    def curve(self, points: int = 300) -> list[list[float]]:
        """Return seconds and GiB, the most of each of so many stretches."""
        first = self.samples[0][0]
        return [
            [round(part[0][0] - first, 2), round(max(one[1] for one in part) / GIB, 4)]
            for part in np.array_split(np.array(self.samples), min(points, len(self.samples)))
        ]

    def _run(self) -> None:
        while True:
            own = shared = 0
            for process in (self._root, *self._root.children(recursive=True)):
                try:
                    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
                except OSError:
                    continue  # it ended meanwhile
                found = dict(line.split(":", 1) for line in text.splitlines()[1:])
                own += int(found["Pss_Anon"].split()[0]) * 1024
                shared += int(found["Pss_Shmem"].split()[0]) * 1024
            self.samples.append((time.monotonic(), own, shared))
            if self._done.wait(SAMPLE_SECONDS):
                return


def floors() -> dict[str, float]:
    """Return GiB of a process that imported torch, and of a loader of torch whose two workers hand out zeros."""
    found = {}
    with Peer(Path(sys.executable), READER, threads={}) as peer, Watch(peer.pid) as watch:
        for name, message in {"torch": {}, "zeros": {"workers": WORKERS, "batches": BATCHES}}.items():
            began = time.monotonic()
            peer.ask(do=name, **message)
            time.sleep(3 * SAMPLE_SECONDS)  # for a sample of what stays
            found[name] = watch.peak(began, time.monotonic())["own"]
    return {"import torch": found["torch"], "torch, two workers, zeros": found["zeros"]}


def run_of(data: Path, gib: float, *, torch: bool) -> dict[str, Any]:
    """Return memory per phase, and the curve, of one run of three epochs."""
    with Peer(Path(sys.executable), READER, threads={}) as peer, Watch(peer.pid) as watch:
        began = time.monotonic()
        settings = {
            "workers": WORKERS,
            "torch": torch,
            "budget": min(BUDGET_GIB, gib / 2),
            "positions": "random",
            "batches": BATCHES,
        }
        started = peer.ask(do="start", data=str(data), **settings)
        assert started["regime"] == "stream", started
        marks, rates = [began, time.monotonic()], []
        for number in range(EPOCHS):
            done = peer.ask(do="epoch", number=number)
            assert done["patches"] == 2 * BATCHES, done
            marks.append(time.monotonic())
            rates.append(done["patches"] / done["seconds"])
    phases = [watch.peak(*ends) for ends in pairwise(marks)]
    epochs = [phase["own"] for phase in phases[1:]]
    return {
        "gib": sum(path.stat().st_size for path in data.rglob("CT.*")) / GIB,
        "decision": started["decision"],
        "statistics_seconds": started["statistics_seconds"],
        "statistics_gib": phases[0]["own"],
        "epoch_gib": epochs,
        "peak_gib": max(phase["own"] for phase in phases),
        "shared_gib": max(phase["shared"] for phase in phases),
        "last_over_first": epochs[-1] / epochs[0],
        "patches_per_second": rates,
        "marks": [round(mark - watch.samples[0][0], 2) for mark in marks],
        "curve": watch.curve(),
    }


def measure_memory(folder: Path, gib: float, formats: Sequence[str]) -> dict[str, Any]:
    """Measure with and without torch, from one file after the other."""
    runs = {}
    for kind in formats:
        data = data_set(folder, kind, gib)
        for way in MEMORY_BOUND:
            print(f"run of three epochs: {kind}, {way}", flush=True)
            runs[f"{kind}, {way}"] = run_of(data, gib, torch=way == "torch")
        shutil.rmtree(data)
    return {"gib": gib, "floors": floors(), "runs": runs}


# --- rate ------------------------------------------------------------------------------------------------------------------


def measure_rate(folder: Path, gib: float, rounds: int, konfai: Path | None) -> dict[str, Any]:
    """Return seconds per patch of each way, in rounds in which all have their turn."""
    rng = np.random.default_rng(2)
    seconds: dict[str, dict[str, list[float]]] = {}
    statistics: dict[str, float] = {}
    for heat, batches in RATE_BATCHES.items():
        with ExitStack() as stack:
            peers = {}
            for way, (kind, positions, regime) in WAYS.items():
                if regime == "cache" and heat == "cold":
                    continue
                one = peers[way] = stack.enter_context(Peer(Path(sys.executable), READER))
                budget = gib / 2 if regime == "stream" else 4 * gib
                settings = {"workers": WORKERS, "torch": True, "budget": budget, "batches": batches}
                told = one.ask(do="start", data=str(data_set(folder, kind, gib)), positions=positions, **settings)
                assert told["regime"] == regime, told
                statistics[kind if regime == "stream" else "loading into memory"] = told["statistics_seconds"]
            if konfai is not None:
                for name, declared in (("konfai, grid", False), ("konfai streaming, grid", True)):
                    if heat == "cold" and not declared:
                        continue  # it begins by reading the whole case
                    one = peers[name] = stack.enter_context(Peer(konfai, HERE / "training_konfai.py"))
                    settings = {"workers": WORKERS, "budget": gib / 2, "batches": batches, "declared": declared}
                    one.ask(do="start", data=str(data_set(folder, "mha", gib)), folder=str(folder), **settings)
            found: dict[str, list[float]] = {way: [] for way in peers}
            for number in range(rounds + 1):
                for way in map(str, rng.permutation(list(peers))):
                    if heat == "cold":
                        for other in peers.values():  # nobody may have a file mapped when its pages are dropped
                            other.ask(do="forget")
                    done = peers[way].ask(do="epoch", number=number)
                    if number:  # the first round starts workers and warms pages
                        found[way].append(done["seconds"] / done["patches"])
            seconds[heat] = found
    return {
        "gib": gib,
        "statistics_seconds": statistics,
        "seconds": seconds,
        "per_second": {
            heat: {way: quartiles([1 / one for one in times]) for way, times in ways.items()}
            for heat, ways in seconds.items()
        },
        "ratios": {heat: _ratios(ways) for heat, ways in seconds.items()},
    }


def _ratios(ways: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    found = {f"mla / mha, {one}": ratio(ways[f"mha, {one}"], ways[f"mla, {one}"]) for one in ("grid", "random")}
    if "konfai, grid" in ways:
        found["in memory / konfai"] = ratio(ways["konfai, grid"], ways["in memory, grid"])
    if "konfai streaming, grid" in ways:
        streaming = ways["konfai streaming, grid"]
        found |= {f"{kind} / konfai streaming": ratio(streaming, ways[f"{kind}, grid"]) for kind in ("mla", "mha")}
    return found


# --- report ----------------------------------------------------------------------------------------------------------------


def checks_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bounds."""
    rows = []
    for name, run in results.get("memory", {}).get("runs", {}).items():
        way = name.split(", ")[1]
        rows.append(bounded(f"peak of own memory, GiB: {name}", _exactly(run["peak_gib"]), most=MEMORY_BOUND[way]))
        rows.append(bounded(f"peak of last epoch / first: {name}", _exactly(run["last_over_first"]), most=FLAT_BOUND))
    for heat, ratios in results.get("rate", {}).get("ratios", {}).items():
        for name, spread in ratios.items():
            if name.startswith("mla"):
                rows.append(
                    bounded(f"{heat}: {name}", spread, least=RATE_BOUND["konfai" if "konfai" in name else "mha"])
                )
    return rows


def _exactly(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value}


def show(results: dict[str, Any]) -> None:
    """Print tables."""
    if "memory" in results:
        memory = results["memory"]
        print(f"\nvolume of {memory['gib']:g} GiB; GiB of own memory, all processes")
        for name, run in memory["runs"].items():
            epochs = " ".join(f"{one:.3f}" for one in run["epoch_gib"])
            rates = " ".join(f"{one:.0f}" for one in run["patches_per_second"])
            print(
                f"{name:12} file {run['gib']:.2f}, statistics {run['statistics_gib']:.3f} ({run['statistics_seconds']:.0f} s), "
                f"epochs {epochs}, peak {run['peak_gib']:.3f}, shared {run['shared_gib']:.3f}; patches per second {rates}"
            )
            print(
                "\n".join(f"  {second:6.1f} s {own:.3f} {'#' * round(own * 150)}" for second, own in run["curve"][::15])
            )
        for name, one in memory["floors"].items():
            print(f"floor: {name:28} {one:.3f}")
    if "rate" in results:
        rate = results["rate"]
        told = ", ".join(f"{name} {one:.1f} s" for name, one in rate["statistics_seconds"].items())
        print(f"\nvolume of {rate['gib']:g} GiB, statistics: {told}")
        for heat, ways in rate["per_second"].items():
            for way, spread in ways.items():
                print(f"{heat}: {way:24} {text_of(spread):>20} patches per second")
        for heat, ratios in rate["ratios"].items():
            for name, spread in ratios.items():
                print(f"{heat}: {name:24} {text_of(spread):>20}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--rate-gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=["memory", "rate"])
    parser.add_argument("--formats", default="mha,mla", help="of the volume whose memory is measured")
    parser.add_argument("--konfai", type=Path, help="interpreter of an environment with KonfAI")
    parser.add_argument("--keep", action="store_true", help="leave the files of the rate for another run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, help="picture of memory over time")
    given = parser.parse_args(arguments)
    if sys.platform != "linux":
        sys.exit("Memory is looked at and pages are dropped on Linux only.")
    results: dict[str, Any] = {"kind": "training", "machine": machine()}
    folder = given.scratch.resolve() / "training"
    if given.only != "rate":
        results["memory"] = measure_memory(folder, given.gib, given.formats.split(","))
    if given.only != "memory":
        results["rate"] = measure_rate(folder, given.rate_gib, given.rounds, given.konfai)
        if not given.keep:
            shutil.rmtree(folder)
    results["checks"] = checks_of(results)
    show(results)
    show_bounds(results["checks"])
    write_json(given.json, results)
    if given.svg is not None and "memory" in results:
        sys.path.append(str(HERE.parent / "report"))
        from training_picture import picture_of

        given.svg.write_text(picture_of([results["memory"]]), encoding="utf-8")


if __name__ == "__main__":
    main()
