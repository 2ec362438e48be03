"""Do readers scale by threads or by processes, and does a reader gain from more than one decompression thread?

All readers read random patches of one file that is in the page cache. Per round every arrangement reads the same number of
patches per reader, in a new order of arrangements each time; its time is that until the last reader is done. Processes are
interpreters of their own, as a data loader that spawns its workers has them. Rates are patches per second of all readers
together, relative to one reader in the same round.

    python benchmarks/compare/scaling.py SCRATCH [--json FILE] [--rounds 15] [--data ct_int16,ct_float32]
        [--shape 400,512,512] [--patch 128] [--readers 1,2,4]
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from environments import python_of
from peer_process import Peer, together
from peers import draw
from spreads import extents, machine, quartiles, ratio, text_of, write_json
from volumes import FULL_SHAPE, volume_file

from mlarray import MLArray

HERE = Path(__file__).parent
SAMPLE_SECONDS, MOST_PATCHES = 0.1, 48


@dataclass(frozen=True)
class Arrangement:
    """Processes, reading threads in each, and the threads that decompress for one of them."""

    processes: int
    threads: int = 1
    decoding: int = 1

    @property
    def name(self) -> str:
        kind = "threads" if self.threads > 1 else "processes"
        readers = self.processes * self.threads
        told = "1 reader" if readers == 1 else f"{readers} {kind}"
        return told if self.decoding == 1 else f"{told}, {self.decoding} decompression threads"


def arrangements(readers: list[int]) -> list[Arrangement]:
    """Return what is compared: one reader, several threads, several processes, and decompression by two threads."""
    several = [count for count in readers if count > 1]
    return [
        Arrangement(1),
        *(Arrangement(1, threads=count) for count in several),
        *(Arrangement(count) for count in several),
        *(Arrangement(count, decoding=2) for count in readers),
    ]


def stored(scratch: Path, data: str, shape: tuple[int, ...], patch: int) -> Path:
    """Return the file that is read, in the default layout, written unless it is there."""
    folder = scratch / "scaling"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data}_{'x'.join(map(str, shape))}_{patch}.mla"
    if not path.exists():
        MLArray(np.load(volume_file(scratch, data, shape)), patch_size=patch).save(path)
    path.read_bytes()  # into the page cache
    return path


def reader(python: Path, path: Path, one: Arrangement) -> Peer:
    """Return a process; the variable would else overrule the number that the file is opened with."""
    arguments = [str(path), str(one.threads), str(one.decoding)]
    return Peer(python, HERE / "scaling_reader.py", arguments, {"BLOSC_NTHREADS": str(one.decoding)})


def measure(path: Path, python: Path, patch: int, compared: list[Arrangement], rounds: int) -> dict[str, Any]:
    """Return rates of every arrangement, absolute and relative to one reader."""
    rng = np.random.default_rng(17)
    with MLArray.open(path) as image:
        shape = tuple(image.shape)
    extent = tuple(min(patch, n) for n in shape)
    rates: dict[str, list[float]] = {one.name: [] for one in compared}
    with ExitStack() as stack:
        peers = {
            one.name: [stack.enter_context(reader(python, path, one)) for _ in range(one.processes)] for one in compared
        }

        def run(one: Arrangement, count: int) -> float:
            regions = [
                [[draw(rng, shape, extent, None) for _ in range(count)] for _ in range(one.threads)]
                for _ in range(one.processes)
            ]
            return together(peers[one.name], [{"regions": each} for each in regions])

        for one in compared:
            run(one, 2)  # loads modules, opens files
        began = time.perf_counter()
        run(compared[0], 4)
        count = max(2, min(MOST_PATCHES, round(SAMPLE_SECONDS / (time.perf_counter() - began) * 4)))
        for _ in range(rounds):
            for index in rng.permutation(len(compared)):
                one = compared[index]
                rates[one.name].append(one.processes * one.threads * count / run(one, count))
    alone = rates[compared[0].name]
    return {
        "patches_per_reader": count,
        "per_second": {name: quartiles(values) for name, values in rates.items()},
        "over_one": {name: ratio(values, alone) for name, values in rates.items()},
        "raw_per_second": rates,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data", type=lambda text: text.split(","), default=["ct_int16", "ct_float32"])
    parser.add_argument("--readers", type=lambda text: list(map(int, text.split(","))), default=[1, 2, 4])
    parser.add_argument("--shape", type=extents, default=FULL_SHAPE)
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    scratch = arguments.scratch.resolve()
    compared = arrangements(arguments.readers)
    reads: dict[str, Any] = {}
    for data in arguments.data:
        print(f"reading {data}", flush=True)
        path = stored(scratch, data, arguments.shape, arguments.patch)
        reads[data] = measure(path, python_of(scratch, "ours"), arguments.patch, compared, arguments.rounds)
    print(f"\n{'':52}{'patches per second':>24}{'rate / one reader':>24}")
    for data, found in reads.items():
        for name, rate in found["per_second"].items():
            print(f"{f'{data}, {name}':52}{text_of(rate):>24}{text_of(found['over_one'][name]):>24}")
    results = {
        "kind": "scaling",
        "reads": reads,
        "arrangements": [
            {"name": one.name, "processes": one.processes, "threads": one.threads, "decoding": one.decoding}
            for one in compared
        ],
        "shape": list(arguments.shape),
        "patch": arguments.patch,
        "rounds": arguments.rounds,
        "machine": machine(),
    }
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
