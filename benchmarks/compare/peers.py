"""How fast are patches read and files opened, beside every other way to store a volume?

Makes environments for the peers and the data in SCRATCH, writes every volume with every library, and then measures in one run:
a round draws random patches and reads them with every library, one process each, in a new order. What is printed are medians
and quartiles of the ratios within a round, to a copy out of a numpy memory map, and the bounds this project sets itself.

    python benchmarks/compare/peers.py SCRATCH [--json FILE] [--rounds 15] [--data ct_int16,ct_float32,labels,mni]
        [--shape 400,512,512] [--libraries memmap,ours,...] [--cases 128,64,2d]
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from environments import python_of, versions_of
from peer_process import Peer
from spreads import bounded, extents, machine, quartiles, ratio, show_bounds, text_of, write_json
from volumes import DATA, FULL_SHAPE, volume_file

HERE = Path(__file__).parent
SMALL = (("layout", "small-blocks"),)
SAMPLE_SECONDS, MOST_PATCHES = 0.06, 48


@dataclass(frozen=True)
class Row:
    """A line of the table: a library, its environment, how it writes, whether its files depend on the patch."""

    name: str
    library: str
    environment: str
    file: str
    by_patch: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    writes: bool = True
    aligned: bool = False


ROWS = (
    Row("memmap", "memmap", "ours", "memmap"),
    Row("ours", "ours", "ours", "ours", by_patch=True),
    Row("ours small", "ours", "ours", "small", by_patch=True, options=SMALL),
    Row("ours small x[s]", "ours_indexed", "ours", "small", by_patch=True, writes=False),
    Row("blosc2 small", "blosc2", "ours", "small", by_patch=True, writes=False),
    Row("memmap aligned", "memmap", "ours", "memmap", writes=False, aligned=True),
    Row("ours small aligned", "ours", "ours", "small", by_patch=True, writes=False, aligned=True),
    Row("mla54", "mla54", "mla54", "mla54", by_patch=True),
    Row("mla54 default", "mla54", "mla54", "mla54_default", options=(("default_patch", True),)),
    Row("nnunet", "nnunet", "nnunet", "nnunet", by_patch=True),
    Row("zarr", "zarr", "others", "zarr"),
    Row("zarr sharded", "zarr_sharded", "others", "sharded"),
    Row("zarrs", "zarrs", "others", "sharded", writes=False),
    Row("tensorstore", "tensorstore", "others", "zarr", writes=False),
    Row("h5py gzip", "h5py_gzip", "others", "gzip"),
    Row("h5py blosc2", "h5py_blosc2", "others", "h5blosc2"),
    Row("nibabel", "nibabel", "others", "nifti"),
    Row("simpleitk", "simpleitk", "others", "mha"),
)
# Numerator, denominator, data, case, bound.
CT = ("ct_int16", "ct_float32")
BOUNDS = [
    *(("ours", "nnunet", data, case, bound) for data in CT for case, bound in (("128", 0.95), ("64", 0.85))),
    *(("ours small", "nnunet", data, case, bound) for data in CT for case, bound in (("128", 0.75), ("64", 0.65))),
    ("ours small", "mla54", "ct_float32", "128", 0.95),
    ("ours small", "mla54", "ct_int16", "128", 1.0),
    *(("ours small", "mla54", data, "64", 0.95) for data in CT),
    ("ours small", "mla54", "labels", "128", 0.30),
    # What it makes of a patch (1, 256, 256) reads slower than its default, which is the fairer opponent.
    *(("ours small", "mla54 default", data, "2d", 0.40) for data in CT),
    *(("ours small", "tensorstore", data, case, 0.6) for data in CT for case in ("128", "64")),
    *(("ours small", "zarr", data, case, 0.3) for data in CT for case in ("128", "64")),
    ("ours small", "memmap", "ct_float32", "128", 2.1),
    ("ours small", "memmap", "labels", "128", 1.0),
    *(("ours small aligned", "memmap aligned", data, "64", 1.15) for data in CT),
]
OPEN_ROWS = ("ours small", "blosc2 small", "mla54", "zarr", "tensorstore", "h5py gzip", "memmap")


def patch_of(case: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extent of a read: a cube, or a slice of 256 along the first axis."""
    extent = (1, 256, 256) if case == "2d" else (int(case),) * 3
    return tuple(min(p, n) for p, n in zip(extent, shape, strict=True))


def draw(
    rng: np.random.Generator, shape: tuple[int, ...], patch: tuple[int, ...], grid: list[int] | None
) -> list[list[int]]:
    """Return start and stop of a random patch; with a grid, its start is a multiple of it."""
    start = [int(rng.integers(n - p + 1)) for n, p in zip(shape, patch, strict=True)]
    if grid is not None:
        start = [low // step * step for low, step in zip(start, grid, strict=True)]
    return [start, [low + p for low, p in zip(start, patch, strict=True)]]


class Run:
    """One run over all data and cases."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.scratch: Path = arguments.scratch
        self.rounds: int = arguments.rounds
        self.shape: tuple[int, ...] = arguments.shape
        wanted = arguments.libraries
        self.rows = [row for row in ROWS if wanted is None or row.name in wanted or row.library in wanted]
        self.pythons = {name: python_of(self.scratch, name) for name in {row.environment for row in self.rows}}
        self.peers = {
            row.name: stack.enter_context(Peer(self.pythons[row.environment], HERE / "peer_reader.py", [row.library]))
            for row in self.rows
        }

    def path(self, row: Row, data: str, case: str) -> str:
        """Return the path of a row's file, without suffix."""
        folder = self.scratch / "files" / f"{data}_{'x'.join(map(str, self.shape))}" / row.file
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder / (f"patch_{case}" if row.by_patch else "all"))

    def write(self, data: str, case: str, patch: tuple[int, ...]) -> dict[str, Any]:
        """Write the files of a case that are not there, and return seconds and sizes."""
        source = volume_file(self.scratch, data, self.shape)
        facts: dict[str, Any] = {}
        for row in self.rows:
            path = self.path(row, data, case)
            done = Path(path + ".written.json")
            if row.writes and not done.exists():
                answer = self.peers[row.name].ask(
                    do="write", source=str(source), path=path, patch=list(patch), options=dict(row.options)
                )
                done.write_text(json.dumps({"seconds": answer["seconds"], "bytes": _size(path)}), encoding="utf-8")
            if done.exists():
                facts[row.name] = json.loads(done.read_text(encoding="utf-8"))
        return facts

    def measure(self, data: str, case: str) -> dict[str, Any]:
        """Return seconds per patch of every row and round."""
        array = np.load(volume_file(self.scratch, data, self.shape), mmap_mode="r")
        patch = patch_of(case, array.shape)
        files = self.write(data, case, patch)
        rng = np.random.default_rng(5)
        grid = self._grid(data, case)
        counts, found = {}, {row.name: [] for row in self.rows}
        for row in self.rows:
            region = draw(rng, array.shape, patch, grid if row.aligned else None)
            expected = zlib.crc32(np.ascontiguousarray(array[tuple(map(slice, *region))]).view(np.uint8).reshape(-1))
            ask = {"do": "read", "path": self.path(row, data, case), "dtype": str(array.dtype)}
            first = self.peers[row.name].ask(**ask, regions=[region], check=True)
            if first["checksum"] != expected:
                raise SystemExit(f"{row.name} reads other values from {data} than were written.")
            again = [draw(rng, array.shape, patch, grid if row.aligned else None) for _ in range(2)]
            seconds = self.peers[row.name].ask(**ask, regions=again)["seconds"] / 2
            counts[row.name] = max(1, min(MOST_PATCHES, round(SAMPLE_SECONDS / seconds)))
        for _ in range(self.rounds):
            free = [draw(rng, array.shape, patch, None) for _ in range(max(counts.values()))]
            snapped = [draw(rng, array.shape, patch, grid) for _ in range(max(counts.values()))]
            for index in rng.permutation(len(self.rows)):
                row = self.rows[index]
                regions = (snapped if row.aligned else free)[: counts[row.name]]
                answer = self.peers[row.name].ask(
                    do="read", path=self.path(row, data, case), dtype=str(array.dtype), regions=regions
                )
                found[row.name].append(answer["seconds"] / len(regions))
        for peer in self.peers.values():
            peer.ask(do="forget")
        return {"patch": list(patch), "files": files, "patches_per_round": counts, "seconds": found, "grid": grid}

    def opens(self, data: str, case: str, count: int = 40) -> dict[str, list[float]]:
        """Return seconds per opening of every row and round."""
        array = np.load(volume_file(self.scratch, data, self.shape), mmap_mode="r")
        self.write(data, case, patch_of(case, array.shape))
        rows = [row for row in self.rows if row.name in OPEN_ROWS]
        found: dict[str, list[float]] = {row.name: [] for row in rows}
        rng = np.random.default_rng(6)
        for number in range(self.rounds + 1):
            for index in rng.permutation(len(rows)):
                row = rows[index]
                answer = self.peers[row.name].ask(do="open", path=self.path(row, data, case), count=count)
                if number:  # the first round loads modules
                    found[row.name].append(answer["seconds"] / count)
        return found

    def _grid(self, data: str, case: str) -> list[int]:
        import blosc2

        row = next((row for row in self.rows if row.file == "small"), None)
        if row is None:
            return [1, 1, 1]
        return list(blosc2.open(self.path(row, data, case) + ".mla", mmap_mode="r").blocks)


def checks(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every bound whose two sides were measured."""
    found = []
    for over, under, data, case, bound in BOUNDS:
        seconds = results["reads"].get(data, {}).get(case, {}).get("seconds", {})
        if over in seconds and under in seconds:
            found.append(bounded(f"{over} / {under}, {data} {case}", ratio(seconds[over], seconds[under]), most=bound))
    opens = results["opens"]
    for over, under, most, least in (("ours small", "blosc2 small", 1.3, None), ("mla54", "ours small", None, 4.5)):
        if over in opens and under in opens:
            found.append(bounded(f"open: {over} / {under}", ratio(opens[over], opens[under]), most=most, least=least))
    return found


def show(results: dict[str, Any]) -> None:
    """Print all tables."""
    columns = [(data, case) for data, cases in results["reads"].items() for case in cases]
    print("\nwarm random patches, multiples of a numpy memmap copy: median (quartiles)")
    print(f"{'':20}" + "".join(f"{f'{data} {case}':>24}" for data, case in columns))
    names = [row.name for row in ROWS if any(row.name in results["reads"][d][c]["seconds"] for d, c in columns)]
    for name in names:
        cells = []
        for data, case in columns:
            seconds = results["reads"][data][case]["seconds"]
            floor = seconds.get("memmap aligned" if "aligned" in name else "memmap")
            cells.append(text_of(ratio(seconds[name], floor)) if floor and name in seconds else "")
        print(f"{name:20}" + "".join(f"{cell:>24}" for cell in cells))
    print("\nopen, microseconds: median (quartiles)")
    for name, values in results["opens"].items():
        print(f"{name:20}" + f"{text_of(quartiles([value * 1e6 for value in values])):>24}")
    show_bounds(results["checks"])


def _size(path: str) -> int:
    """Return the bytes of everything that a path without suffix stands for."""
    found = [one for one in Path(path).parent.glob(Path(path).name + ".*") if not one.name.endswith(".json")]
    files = [file for one in found for file in (one.rglob("*") if one.is_dir() else [one]) if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data", type=_names, default=list(DATA))
    parser.add_argument("--cases", type=_names, default=["128", "64", "2d"])
    parser.add_argument("--shape", type=extents, default=FULL_SHAPE)
    parser.add_argument("--libraries", type=_names, help="names of rows or libraries; memmap should be among them")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    arguments.scratch = arguments.scratch.resolve()
    began = time.perf_counter()
    with ExitStack() as stack:
        run = Run(arguments, stack)
        reads: dict[str, Any] = {}
        for data in arguments.data:
            for case in arguments.cases:
                print(f"reading {data} {case}, {time.perf_counter() - began:.0f} s passed", flush=True)
                reads.setdefault(data, {})[case] = run.measure(data, case)
        opens = run.opens(arguments.data[0], arguments.cases[0])
        results: dict[str, Any] = {"reads": reads, "opens": opens, "shape": list(arguments.shape)}
        results["checks"] = checks(results)
        results["machine"] = machine()
        results["versions"] = {name: versions_of(python) for name, python in run.pythons.items()}
        results["seconds"] = time.perf_counter() - began
    show(results)
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
