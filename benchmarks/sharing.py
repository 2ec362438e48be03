"""Do many readers and writers at once get what one at a time would?

``replaced``: threads and processes (forked and spawned) read random patches while the file is replaced; every handle must return
patches of one version only, or say that the file was replaced. ``forks``: children are forked while threads read; each must read
right and end by itself.

    python benchmarks/sharing.py replaced --replacements 50 --rounds 3
    python benchmarks/sharing.py forks --children 500

Both print one line of JSON per setting and end with 1 when something was wrong. Versions differ in every voxel.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlarray import MLArray
from mlarray.errors import FormatError, MissingFileError, UnfinishedError

CHILD_SECONDS = 20.0
SIZE = 48
READS_PER_HANDLE = 12
VERSIONS = ("same", "layout", "dtype", "shape")
WRITERS = ("save", "convert", "create")
PLACES = 4096


@dataclass(frozen=True)
class Setting:
    """How versions differ, who replaces the file, and how readers open it."""

    versions: str
    by: str
    mmap_mode: str | None
    threads: int = 1


def version(number: int, kind: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, dtype and patch size of a version."""
    shape, dtype, patch = (SIZE, SIZE, SIZE), np.dtype(np.int32), 16
    if kind == "layout":
        patch = (8, 16, 24)[number % 3]
    if kind == "dtype":
        dtype = np.dtype((np.int32, np.int64, np.float32)[number % 3])
    if kind == "shape":
        shape = tuple(SIZE + extra * (number % 3) for extra in (0, 3, 8))
    return shape, dtype, patch


def voxels_of(number: int, kind: str, start: tuple[int, ...], extent: tuple[int, ...]) -> np.ndarray:
    """Return part of a version: its number, and in which of 4096 places a voxel is."""
    shape, dtype, _ = version(number, kind)
    z, y, x = (np.arange(low, low + size) for low, size in zip(start, extent, strict=True))
    places = (z[:, None, None] * shape[1] + y[:, None]) * shape[2] + x
    return (places % PLACES + PLACES * number).astype(dtype)


def number_of(patch: np.ndarray, start: tuple[int, ...], kind: str) -> int:
    """Return which version a patch is of, or -1 for a mixture."""
    number = int(patch.flat[0]) // PLACES
    expected = voxels_of(number, kind, start, patch.shape)
    return number if patch.dtype == expected.dtype and np.array_equal(patch, expected) else -1


def replace(path: Path, number: int, setting: Setting) -> None:
    """Put a version in the place of the file."""
    shape, _, patch_size = version(number, setting.versions)
    voxels = voxels_of(number, setting.versions, (0, 0, 0), shape)
    if setting.by == "convert":
        source = path.with_suffix(".npy")
        np.save(source, voxels)
        command = [sys.executable, "-c", "from mlarray_convert.cli import main; main()", "convert", str(source)]
        command += ["-o", str(path), "--if-exists", "overwrite", "--patch-size", str(patch_size), "--workers", "1"]
        subprocess.run(command, check=True, capture_output=True)
    elif setting.by == "create":
        # In a process of its own: the one that writes a file may look at it before it is finished.
        process = multiprocessing.get_context("spawn").Process(target=create, args=(path, voxels, patch_size))
        process.start()
        process.join()
    else:
        MLArray(voxels, patch_size=patch_size).save(path)


def create(path: Path, voxels: np.ndarray, patch_size: int) -> None:
    """Write a new file plane by plane."""
    with MLArray.create(path, voxels.shape, voxels.dtype, patch_size=patch_size) as image:
        for plane, values in enumerate(voxels):
            image[plane] = values


def read(path: Path, setting: Setting, seed: int, stop: Callable[[], bool], least: int = 1) -> Counter[str]:
    """Open the file again and again and read patches through each handle, until told to stop."""
    rng, seen = np.random.default_rng(seed), Counter()
    while not stop() or seen["handles"] < least:
        try:
            image = MLArray.open(path, mmap_mode=setting.mmap_mode, dparams={"nthreads": setting.threads})  # type: ignore[arg-type]
        except UnfinishedError:
            seen["unfinished"] += 1
            continue
        except MissingFileError:
            seen["wrong: missing"] += 1
            continue
        except FormatError as error:
            seen["replaced while opened" if "replaced" in str(error) else f"wrong: {error}"] += 1
            continue
        read_through(image, setting, rng, seen)
    return seen


def read_through(image: MLArray, setting: Setting, rng: np.random.Generator, seen: Counter[str]) -> None:
    """Read patches through one handle and count what came."""
    of: set[int] = set()
    seen["handles"] += 1
    for _ in range(READS_PER_HANDLE):
        start = tuple(int(rng.integers(0, extent - 10)) for extent in image.shape or ())
        extent = rng.integers(1, SIZE, 3)
        where = tuple(
            slice(low, min(low + int(size), top))
            for low, size, top in zip(start, extent, image.shape or (), strict=True)
        )
        try:
            of.add(number_of(image[where], start, setting.versions))
        except FormatError as error:
            seen["replaced" if "replaced" in str(error) else f"wrong: {error}"] += 1
            break
        seen["patches"] += 1
    if len(of) > 1 or -1 in of:
        seen["wrong: mixtures"] += 1
    image.close()


def reader_process(path: Path, setting: Setting, seed: int, stop: Any, answers: Any) -> None:
    """Read in a process of its own."""
    answers.put(read(path, setting, seed, stop.is_set))


def replaced(
    folder: Path, setting: Setting, *, replacements: int, threads: int = 8, processes: int = 4
) -> Counter[str]:
    """Replace a file while threads and processes read it, and return what they saw."""
    path = folder / "shared.mla"
    replace(path, 0, setting)
    seen: Counter[str] = Counter()
    results: list[Counter[str]] = []
    ended = threading.Event()
    team = []
    for number in range(processes):
        context: Any = multiprocessing.get_context("fork" if number % 2 and hasattr(os, "fork") else "spawn")
        stop, answers = context.Event(), context.Queue()
        process = context.Process(target=reader_process, args=(path, setting, number, stop, answers))
        process.start()
        team.append((process, stop, answers))
    inside = [
        threading.Thread(target=lambda seed=seed: results.append(read(path, setting, seed, ended.is_set)))
        for seed in range(100, 100 + threads)
    ]
    for thread in inside:
        thread.start()
    for number in range(1, replacements + 1):
        replace(path, number, setting)
    ended.set()
    for _, stop, _ in team:
        stop.set()
    for thread in inside:
        thread.join()
    for process, _, answers in team:
        try:
            results.append(answers.get(timeout=CHILD_SECONDS))
        except Exception:
            seen["wrong: a process hangs"] += 1
            process.kill()
        process.join()
    for result in results:
        seen += result
    seen["readers"] = len(results)
    return seen


def forks(folder: Path, setting: Setting, *, children: int, threads: int = 8) -> Counter[str]:
    """Fork children while threads read through the handle that the children read through too."""
    path = folder / "shared.mla"
    replace(path, 1, setting)
    image = MLArray.open(path, mmap_mode=setting.mmap_mode, dparams={"nthreads": setting.threads})  # type: ignore[arg-type]
    seen: Counter[str] = Counter()
    ended = threading.Event()
    sys.setswitchinterval(1e-4)

    def use(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not ended.is_set():
            start = tuple(int(place) for place in rng.integers(0, SIZE - 12, 3))
            patch = image[tuple(slice(low, low + 12) for low in start)]
            seen["wrong: in a thread" if number_of(patch, start, setting.versions) != 1 else "patches"] += 1

    inside = [threading.Thread(target=use, args=(seed,)) for seed in range(threads)]
    for thread in inside:
        thread.start()
    for _ in range(children):
        code = forked(lambda: number_of(image[3:40, 1:2, 5:33], (3, 1, 5), setting.versions) == 1)
        seen["children" if code == 0 else f"wrong: a child {code}"] += 1
    ended.set()
    for thread in inside:
        thread.join()
    return seen


def forked(work: Callable[[], bool]) -> int | str:
    """Return the exit code of a forked child that does ``work`` and ends as programs do, or ``"hangs"``."""
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        raise SystemExit(0 if work() else 3)
    until = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


def settings(action: str, versions: list[str], writers: list[str]) -> list[Setting]:
    """Return what is tried."""
    modes: tuple[str | None, ...] = ("r", None)
    if action == "forks":
        return [Setting("same", "save", mode, threads) for mode in modes for threads in (1, 4)]
    return [
        Setting(kind, by, mode, threads)
        for by in writers
        for kind in versions
        for mode in modes
        for threads in ((1, 4) if by == "save" else (1,))
    ]


def main() -> int:
    """Run the campaign that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["replaced", "forks"])
    parser.add_argument("--replacements", type=int, default=50)
    parser.add_argument("--children", type=int, default=200)
    parser.add_argument(
        "--versions", choices=VERSIONS, action="append", help="In what versions differ.  [default: all]"
    )
    parser.add_argument("--by", choices=WRITERS, action="append", help="Who replaces the file.  [default: all]")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    wrong, owner = 0, os.getpid()
    for _ in range(given.rounds):
        for setting in settings(given.action, given.versions or list(VERSIONS), given.by or list(WRITERS)):
            folder = Path(tempfile.mkdtemp(dir=given.scratch))
            try:
                if given.action == "forks":
                    seen = forks(folder, setting, children=given.children)
                else:
                    seen = replaced(folder, setting, replacements=given.replacements)
            finally:
                if os.getpid() == owner:  # forked children pass here, too
                    shutil.rmtree(folder)
            wrong += sum(count for what, count in seen.items() if what.startswith("wrong"))
            print(json.dumps({**vars(setting), **seen}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
