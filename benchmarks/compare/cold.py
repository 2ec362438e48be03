"""How much does read-ahead gain where data comes from storage, and what does it cost where it does not?

A sample is: open a file, read one random 128^3 float32 patch. Before a cold sample the pages of the file are dropped. On the
local disk, and on slow file systems (a fixed delay per read request, page cache on) where FUSE is to be had:

4. cold: plain memory-mapped read / ours, with one reader and with four processes, each with a file of its own;
5. cold, with the next patch announced before 50 ms of compute / warm;
6. warm: read-ahead on / off with one and four readers, beside off / off; and a run that goes from cold to warm and back.

    python benchmarks/compare/cold.py SCRATCH [--json FILE] [--rounds 12] [--shape 256,384,384] [--layout nnunet|small-blocks]
        [--where disk,2ms,10ms,2ms-10,10ms-10]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from environments import python_of
from pages import drop
from peer_process import Peer, together
from peers import draw
from slow_mount import compiled, mounted, why_no_fuse
from spreads import bounded, extents, machine, quartiles, ratio, show_bounds, write_json
from volumes import float_volume

HERE = Path(__file__).parent
READERS = 4
COMPUTE_SECONDS = 0.05
WARM_ROUNDS = 5  # for a round of cold reads: differences of a few percent take many, and warm reads are quick
PLACES = {"disk": None, "2ms": (2.0, 64), "10ms": (10.0, 64), "2ms-10": (2.0, 10), "10ms-10": (10.0, 10)}
# Place: bounds of plain / ours with one reader and with four.
BOUNDS = {"disk": (3.5, 3.5), "2ms": (10, 5), "10ms": (15, 10), "2ms-10": (5.5, 1.7), "10ms-10": (5.5, 1.7)}


class Files:
    """One file per reader, and its patches.

    Parameters
    ----------
    folder : Path
        Where they are seen: the folder itself, or a slow mount of it.
    backing : Path
        Where they are.
    """

    def __init__(self, folder: Path, backing: Path, shape: tuple[int, ...], patch: tuple[int, ...]) -> None:
        self.paths = [str(folder / path.name) for path in sorted(backing.glob("*.mla"))]
        self._shape, self._patch = shape, patch
        self._rng = np.random.default_rng(11)

    def region(self) -> list[list[int]]:
        return draw(self._rng, self._shape, self._patch, None)


def make_files(folder: Path, shape: tuple[int, ...], layout: str) -> Path:
    """Write one file per reader unless they are there, flush them, and return the folder."""
    import os

    from mlarray import MLArray

    kept = folder / f"cold_{'x'.join(map(str, shape))}_{layout}"
    kept.mkdir(parents=True, exist_ok=True)
    for number in range(READERS):
        path = kept / f"case_{number}.mla"
        if not path.exists():
            print(f"making {path.name}", flush=True)
            raw = kept / "raw.npy"
            MLArray(float_volume(raw, shape, number), patch_size=128, layout=layout).save(path)
            raw.unlink()
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return kept


def cold_reads(peers: list[Peer], files: Files, rounds: int) -> dict[str, Any]:
    """Check 4: seconds of cold samples per method, for one reader and for all."""
    variants = {"ours": ("ours", True), "off": ("off", True), "plain": ("plain", True), "ours no map": ("ours", False)}
    found: dict[str, dict[str, list[float]]] = {str(n): {name: [] for name in variants} for n in (1, READERS)}
    rng = np.random.default_rng(12)
    for _ in range(rounds):
        for count in (1, READERS):
            regions = [files.region() for _ in range(count)]
            for name in rng.permutation(list(variants)):
                method, mmap = variants[str(name)]
                for path in files.paths:
                    drop(path)
                messages = [
                    {"do": "sample", "method": method, "path": path, "regions": [region], "mmap": mmap}
                    for path, region in zip(files.paths, regions, strict=False)
                ]
                found[str(count)][str(name)].append(together(peers[:count], messages))
    return {
        "seconds": found,
        "plain_over_ours": {count: ratio(times["plain"], times["ours"]) for count, times in found.items()},
        "off_over_ours": {count: ratio(times["off"], times["ours"]) for count, times in found.items()},
    }


def announced_reads(peer: Peer, files: Files, rounds: int) -> dict[str, Any]:
    """Check 5: cold reads that were announced, against warm ones of the same patch."""
    cold, warm, announce = [], [], []
    for number in range(rounds):
        path, region = files.paths[number % len(files.paths)], files.region()
        drop(path)
        answer = peer.ask(do="announced", path=path, region=region, compute_seconds=COMPUTE_SECONDS)
        cold.append(answer["announce"] + answer["read"])
        announce.append(answer["announce"])
        # The same pause, so that the processor comes from it as idle as before the cold read.
        again = peer.ask(do="announced", path=path, region=region, compute_seconds=COMPUTE_SECONDS)
        warm.append(again["read"])
    return {"cold": cold, "announce": announce, "warm": warm, "cold_over_warm": ratio(cold, warm)}


def warm_overhead(peers: list[Peer], files: Files, rounds: int, patches: int = 6) -> dict[str, Any]:
    """Check 6: warm samples with read-ahead on and off, and off against itself, paired."""
    found: dict[str, dict[str, list[float]]] = {str(n): {"on": [], "off": [], "again": []} for n in (1, READERS)}
    rng = np.random.default_rng(13)
    for path in files.paths:
        Path(path).read_bytes()
    for _ in range(WARM_ROUNDS * rounds + 1):
        for count in (1, READERS):
            regions = [[files.region() for _ in range(patches)] for _ in range(count)]
            for name in rng.permutation(["on", "off", "again"]):
                messages = [
                    {"do": "sample", "method": "ours" if name == "on" else "off", "path": path, "regions": chosen}
                    for path, chosen in zip(files.paths, regions, strict=False)
                ]
                found[str(count)][str(name)].append(together(peers[:count], messages))
    found = {count: {name: values[1:] for name, values in times.items()} for count, times in found.items()}
    return {
        "seconds": found,
        "on_over_off": {count: ratio(times["on"], times["off"]) for count, times in found.items()},
        "noise": {count: ratio(times["again"], times["off"]) for count, times in found.items()},
    }


def switching(peer: Peer, files: Files, length: int = 8) -> dict[str, Any]:
    """Check 6: a run of cold, warm and again cold samples, with read-ahead on and off: milliseconds of every phase."""
    regions = [[files.region() for _ in range(length)] for _ in range(3)]
    found: dict[str, Any] = {}
    for method in ("ours", "off"):
        seconds = []
        for phase, kind in enumerate(("cold", "warm", "cold")):
            steps = [
                {"path": files.paths[number % len(files.paths)], "region": region, "drop": kind == "cold"}
                for number, region in enumerate(regions[phase])
            ]
            if kind == "warm":
                for path in files.paths:
                    Path(path).read_bytes()
            seconds.append(peer.ask(do="sequence", method=method, steps=steps)["seconds"])
        found[method] = dict(zip(("cold", "warm", "cold again"), seconds, strict=True))
    return found


def measure(peers: list[Peer], files: Files, rounds: int) -> dict[str, Any]:
    """Return all checks in one place."""
    status = [peer.ask(do="start", path=path) for peer, path in zip(peers, files.paths, strict=True)]
    return {
        "status": status[0],
        "cold": cold_reads(peers, files, rounds),
        "announced": announced_reads(peers[0], files, rounds),
        "warm": warm_overhead(peers, files, rounds),
        "switching": switching(peers[0], files),
    }


def checks(name: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bounds of one place."""
    rows = []
    for count, least in zip(("1", str(READERS)), BOUNDS[name], strict=True):
        spread = found["cold"]["plain_over_ours"][count]
        rows.append(bounded(f"cold, {name}: plain / ours, {count} reader(s)", spread, least=least))
    spread = found["announced"]["cold_over_warm"]
    if not name.endswith("-10") and name != "disk":
        rows.append(bounded(f"announced, {name}: cold / warm", spread, most=1.5))
    for count, spread in found["warm"]["on_over_off"].items():
        noise = found["warm"]["noise"][count]
        beside = f"{noise['median']:.3f} ({noise['low']:.3f}-{noise['high']:.3f})"
        told = f"warm, {name}: on / off, {count} reader(s); off / off {beside}"
        rows.append(bounded(told, spread, most=1.02))
    return rows


def show(name: str, found: dict[str, Any]) -> None:
    """Print one place."""
    print(f"\n{name}: read-ahead {found['status']['read_ahead']}, {found['status']['status']}")
    for count, times in found["cold"]["seconds"].items():
        told = ", ".join(f"{method} {quartiles(values)['median'] * 1e3:.1f}" for method, values in times.items())
        print(f"  cold, {count} reader(s), ms per sample: {told}")
    one = found["announced"]
    told = ", ".join(f"{key} {quartiles(one[key])['median'] * 1e3:.2f}" for key in ("cold", "announce", "warm"))
    print(f"  announced before {COMPUTE_SECONDS * 1e3:.0f} ms of compute, ms: {told}")
    for method, phases in found["switching"].items():
        told = ", ".join(f"{phase} {' '.join(f'{s * 1e3:.0f}' for s in values)}" for phase, values in phases.items())
        print(f"  from cold to warm and back, {method}, ms: {told}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--shape", type=extents, default=(256, 384, 384))
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--layout", choices=["nnunet", "small-blocks"], default="nnunet")
    parser.add_argument("--where", type=lambda text: text.split(","), default=list(PLACES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("Dropping pages from the cache is known on Linux only; nothing was measured.")
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    scratch = arguments.scratch.resolve()
    backing = make_files(scratch, arguments.shape, arguments.layout)
    problem = why_no_fuse()
    if problem:
        print(f"Slow file systems are skipped: {problem}.")
    results: dict[str, Any] = {"shape": list(arguments.shape), "layout": arguments.layout, "places": {}, "checks": []}
    results["machine"] = machine()
    for name in arguments.where:
        slow = PLACES[name]
        if slow is not None and problem:
            continue
        place: Any = nullcontext(backing)
        if slow is not None:
            place = mounted(compiled(scratch), backing, scratch / "mounts" / name, delay_ms=slow[0], parallel=slow[1])
        with place as folder, ExitStack() as stack:
            files = Files(folder, backing, arguments.shape, (arguments.patch,) * 3)
            peers = [
                stack.enter_context(Peer(python_of(scratch, "ours"), HERE / "cold_reader.py")) for _ in range(READERS)
            ]
            found = measure(peers, files, arguments.rounds)
        show(name, found)
        results["places"][name] = found
        results["checks"] += checks(name, found)
    show_bounds(results["checks"])
    if problem:
        results["skipped"] = problem
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
