"""What does planning cost, and how fast and in how much memory do preprocessed patches come out of a file?

1. *fold*: microseconds in which a patch is folded back through chains of five stages to one region;
2. *executor*: what folding and running the stages adds to the time of the transforms alone, on the same block in memory;
3. *memory*: the most that a process holds which takes the statistics of a volume and reads patches of its preprocessed result,
   from an uncompressed ``.mha`` and from an ``.mla``. Pages of a mapped file are counted as well, and beside them the memory
   without those, which the system can take back at any time;
4. *rate*: patches per second from both files, warm and after the pages of the files were dropped.

The volume is made here, in bounded memory: CT-like int16, sagittal planes (so that ``Canonical`` exchanges and mirrors axes) of
0.8 mm, 1.2 mm apart. It is removed at the end unless ``--keep`` is given.

    python benchmarks/compare/streaming.py SCRATCH [--gib 4] [--rounds 15] [--only cpu|files] [--keep] [--json FILE]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from peer_process import Peer
from spreads import bounded, machine, quartiles, ratio, show_bounds, text_of, write_json
from streaming_reader import CHAIN

from mlarray import Geometry
from mlarray import transforms as T
from mlarray.streaming import plan
from mlarray.streaming.execute import execute
from mlarray.testing.transforms import source_of
from mlarray.transforms.base import Context

HERE = Path(__file__).parent
PLANE = (1024, 1024)
SAGITTAL = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])  # columns: z to Left, y to Inferior, x to Posterior
SPACING = (1.2, 0.8, 0.8)
PATCH = 64
FOLD_BOUND_US = 30
EXECUTOR_BOUND = 1.10
MEMORY_BOUND = 250e6
MEMORY_PATCHES = 300
PATCHES = {"warm": 24, "cold": 8}  # of a round
CHAINS = {
    "preprocessing": CHAIN,
    "neighbourhoods": (T.Gradient(), T.Flip("0"), T.Dilate(2), T.Permute("2|0|1"), T.Clip(0, 1)),
    "regridding": (T.Flip("0"), T.ResampleToShape([96, 96, 96]), T.Permute("2|0|1"), T.Dilate(1), T.Gradient()),
    "values": (T.TensorCast(), T.Clip(-200, 400), T.Normalize(), T.UnNormalize(), T.Standardize()),
}


# --- data ------------------------------------------------------------------------------------------------------------------


def planes(count: int) -> Iterator[np.ndarray]:
    """Yield planes of noisy organs in air, no two alike."""
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 18, (32, *PLANE)).astype(np.int16)
    y, x = (np.linspace(-1, 1, n, dtype=np.float32).reshape(s) for n, s in zip(PLANE, ((-1, 1), (1, -1)), strict=True))
    waves = [60 * np.sin(7 * x + phase) * np.cos(5 * y - phase) + 40 for phase in np.arange(4, dtype=np.float32)]
    radius = (x / 0.8) ** 2 + (y / 0.9) ** 2
    for z in range(count):
        first, second = (waves[(z // 128 + one) % 4] for one in (0, 1))
        plane = ((second - first) * np.float32(z % 128 / 128) + first).astype(np.int16)
        plane[radius >= 1 - (2 * z / count - 1) ** 2] = -1000
        shift = (z // 32) * 37 % PLANE[1]
        plane[:, shift:] += noise[z % 32, :, : PLANE[1] - shift]
        plane[:, :shift] += noise[z % 32, :, PLANE[1] - shift :]
        yield plane


def write_mha(path: Path, count: int) -> None:
    """Write planes as an uncompressed MetaImage."""
    columns = " ".join(f"{value:g}" for value in SAGITTAL[:, ::-1].T.ravel())  # of x, y, z, as MetaImage names axes
    header = (
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = False\n"
        f"TransformMatrix = {columns}\nOffset = 0 0 0\nElementSpacing = {' '.join(map(str, SPACING[::-1]))}\n"
        f"DimSize = {PLANE[1]} {PLANE[0]} {count}\nElementType = MET_SHORT\nElementDataFile = LOCAL\n"
    )
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        file.write(header.encode())
        for plane in planes(count):
            file.write(plane.tobytes())
    unfinished.rename(path)


def make_files(folder: Path, count: int) -> dict[str, Path]:
    """Write the volume as both files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"volume.{kind}" for kind in ("mha", "mla")}
    if not paths["mha"].exists():
        print(f"making {paths['mha'].name}", flush=True)
        write_mha(paths["mha"], count)
    if not paths["mla"].exists():
        print(f"making {paths['mla'].name}", flush=True)
        convert = [str(Path(sys.executable).with_name("mla")), "convert", str(paths["mha"]), "-o", str(paths["mla"])]
        subprocess.run([*convert, "--patch-size", str(PATCH), "--memory", "1GB", "--quiet"], check=True)
    return paths


# --- without files ---------------------------------------------------------------------------------------------------------


def seconds_of(work: Callable[[], object], count: int) -> float:
    """Return the seconds of one of ``count`` runs."""
    began = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - began) / count


def fold_and_executor(rounds: int) -> dict[str, Any]:
    """Return microseconds of folding, and times of transforms with and without what runs them, per chain and patch."""
    rng = np.random.default_rng(5)
    array = rng.normal(0, 300, (1, 150, 170, 190)).astype(np.int16)
    geometry = Geometry.from_parts(spacing=SPACING, direction=SAGITTAL)
    found: dict[str, Any] = {}
    for name, chain in CHAINS.items():
        for patch in (PATCH, PATCH // 2):
            planned = plan(source_of(array, geometry), chain, patch_size=patch)
            planned.measure()
            found[f"{name}, {patch}"] = executor_of(planned, rounds)
    return found


def executor_of(planned: Any, rounds: int) -> dict[str, Any]:
    """Compare one plan, for patches at a corner and in the middle."""
    rng = np.random.default_rng(6)
    fold, alone, run = [], [], []
    stages, volumes = planned.chain.stages, planned._resolved()
    for number in range(rounds + 1):
        target = planned.grid[len(planned.grid) // 2 if number % 2 else 0]
        regions = planned.chain.fold(target)
        block = planned.source.read(regions[0])
        block.setflags(write=False)
        prepared = []
        for stage in stages:
            source, wanted = regions[stage.index], regions[stage.index + 1]
            made = stage.locality.makes(source, wanted, stage.after.shape)
            context = Context(
                volumes[stage.index], volumes[stage.index + 1], source, made, planned._measured[stage.index]
            )
            prepared.append((stage.transform.apply, context, (slice(None), *wanted.relative_to(made).slices)))

        def transforms_alone(block: Any = block, prepared: Any = prepared) -> Any:
            for apply, context, cut in prepared:
                block = apply(block, context)[cut]
            return block

        def executed(block: Any = block, target: Any = target) -> Any:
            folded = planned.chain.fold(target)
            return execute(stages, volumes, folded, block, planned._measured, planned._group)

        assert np.array_equal(transforms_alone(), executed())
        count = max(3, min(300, round(0.05 / seconds_of(executed, 1))))
        times: dict[str, list[float]] = {"alone": [], "run": []}
        work = {"alone": transforms_alone, "run": executed}
        for _ in range(count):  # one call each in turn: what disturbs the machine disturbs both
            for which in rng.permutation(list(work)):
                times[which].append(seconds_of(work[which], 1))
        fold.append(seconds_of(lambda target=target: planned.chain.fold(target), 300) * 1e6)
        alone.append(float(np.median(times["alone"])) * 1e3)
        run.append(float(np.median(times["run"])) * 1e3)
    return {
        "fold_microseconds": quartiles(fold[1:]),
        "transforms_milliseconds": quartiles(alone[1:]),
        "run_over_transforms": ratio(run[1:], alone[1:]),
        "added_microseconds": quartiles([(a - b) * 1e3 for a, b in zip(run[1:], alone[1:], strict=True)]),
    }


# --- files -----------------------------------------------------------------------------------------------------------------


WAYS = {"mha": ("mha", True), "mla": ("mla", False), "mla mapped": ("mla", True)}


def read_files(paths: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Return memory and seconds of a process per way to read."""
    rng = np.random.default_rng(9)
    with ExitStack() as stack:
        peers, started, watched = {}, {}, {}
        for way, (kind, mapped) in WAYS.items():
            one = peers[way] = stack.enter_context(Peer(Path(sys.executable), HERE / "streaming_reader.py"))
            started[way] = one.ask(do="start", path=str(paths[kind]), patch=PATCH, mapped=mapped)
            assert started[way]["regime"] == "stream", started
        count = started["mha"]["patches"]
        numbers = rng.integers(0, count, MEMORY_PATCHES).tolist()
        for way, one in peers.items():
            watched[way] = one.ask(do="watched", numbers=numbers)
        assert len({one["deviation"] for one in watched.values()}) == 1, watched
        seconds: dict[str, Any] = {heat: {way: [] for way in WAYS} for heat in PATCHES}
        for _ in range(rounds):
            for heat, patches in PATCHES.items():
                numbers = rng.integers(0, count, patches).tolist()
                for way, found in in_turn(peers, numbers, rng, cold=heat == "cold").items():
                    seconds[heat][way].append(found / patches)
    return {
        "result": started["mha"]["result"],
        "memory": {way: one["memory"] for way, one in watched.items()},
        "statistics_seconds": {way: one["statistics_seconds"] for way, one in watched.items()},
        "seconds": seconds,
        "per_second": {
            h: {way: quartiles([1 / one for one in times]) for way, times in ways.items()}
            for h, ways in seconds.items()
        },
        "over_mha": {
            heat: {way: ratio(ways["mha"], ways[way]) for way in WAYS if way != "mha"} for heat, ways in seconds.items()
        },
    }


def in_turn(peers: dict[str, Peer], numbers: list[int], rng: np.random.Generator, *, cold: bool) -> dict[str, float]:
    """Return the seconds in which each process reads the same patches, in any order of processes."""
    if not cold:
        for one in peers.values():
            one.ask(do="read", numbers=numbers, cold=False)
    answers = {str(way): peers[way].ask(do="read", numbers=numbers, cold=cold) for way in rng.permutation(list(peers))}
    assert len({answer["sum"] for answer in answers.values()}) == 1, answers
    return {way: answer["seconds"] for way, answer in answers.items()}


# --- report ----------------------------------------------------------------------------------------------------------------


def checks_of_cpu(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bounds of folding and executing."""
    rows = []
    for name, one in found.items():
        rows.append(bounded(f"fold, microseconds: {name}", one["fold_microseconds"], most=FOLD_BOUND_US))
    for name, one in found.items():
        rows.append(bounded(f"executed / transforms alone: {name}", one["run_over_transforms"], most=EXECUTOR_BOUND))
    return rows


def checks_of_files(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bounds of memory and rate. The pages of a mapped file are no bound: the system takes them back when it wants."""
    rows = []
    for way, one in found["memory"].items():
        kind = "anonymous" if way.endswith("mapped") else "resident"
        megabytes = one["most_anonymous_bytes" if kind == "anonymous" else "peak_bytes"] / 1e6
        spread = {"median": megabytes, "low": megabytes, "high": megabytes}
        rows.append(bounded(f"peak MB, {kind}: {way}", spread, most=MEMORY_BOUND / 1e6))
    for heat, ways in found["over_mha"].items():
        for way, spread in ways.items():
            rows.append(bounded(f"patch rate, {heat}: {way} / mha", spread, least=1.0))
    return rows


def show(results: dict[str, Any]) -> None:
    """Print what is not among the bounds."""
    for name, one in results.get("cpu", {}).items():
        alone, added = text_of(one["transforms_milliseconds"]), text_of(one["added_microseconds"])
        print(f"{name:24} transforms {alone} ms, added {added} microseconds")
    if "files" in results:
        files = results["files"]
        print(f"volume {files['gib']:g} GiB, .mla {files['bytes']['mla'] / 2**30:.2f} GiB, result {files['result']}")
        for way, memory in files["memory"].items():
            rates = [f"{heat} {text_of(files['per_second'][heat][way])}" for heat in PATCHES]
            print(
                f"{way:12} statistics {files['statistics_seconds'][way]:.0f} s, patches per second: {', '.join(rates)}"
            )
            told = {
                "peak resident": "peak_bytes",
                "most anonymous": "most_anonymous_bytes",
                "pages of files": "file_bytes",
            }
            print(f"{'':12} MB: {', '.join(f'{key} {memory[name] / 1e6:.0f}' for key, name in told.items())}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["cpu", "files"])
    parser.add_argument("--keep", action="store_true", help="leave the files for another run")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    results: dict[str, Any] = {"kind": "streaming", "machine": machine(), "checks": []}
    if given.only != "files":
        results["cpu"] = fold_and_executor(given.rounds)
        results["checks"] += checks_of_cpu(results["cpu"])
    if given.only != "cpu":
        if sys.platform != "linux":
            sys.exit("Memory is looked at and pages are dropped on Linux only; use --only cpu.")
        folder = given.scratch.resolve() / f"streaming_{given.gib:g}"
        paths = make_files(folder, max(1, round(given.gib * 2**30 / (2 * PLANE[0] * PLANE[1]))))
        sizes = {kind: path.stat().st_size for kind, path in paths.items()}
        results["files"] = {"gib": given.gib, "bytes": sizes, **read_files(paths, given.rounds)}
        results["checks"] += checks_of_files(results["files"])
        if not given.keep:
            shutil.rmtree(folder)
    show(results)
    show_bounds(results["checks"])
    write_json(given.json, results)


if __name__ == "__main__":
    main()
