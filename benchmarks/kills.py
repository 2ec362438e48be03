"""Is nothing lost and nothing half-taken when a process is killed at any moment?

    python benchmarks/kills.py SCRATCH [DEED ...] [--count 200] [--seed 0]

A deed of deeds.py is begun in a process of its own, which is killed with SIGKILL at a random moment, half of them in the last
fifth of the work, where files are finished and get their names. What is left must be the old, nothing, or say that it is
unfinished; then the deed is done again, must succeed, and may leave nothing temporary of the run before. Of a conversion with
worker processes sometimes only the first process is killed: the workers must end by themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from deeds import Deed, deeds, emptied

SKIPPED = ("bench",)  # measures, and makes nothing that is kept
_AGE_SECONDS = 2 * 3600.0
_END_SECONDS = 60.0


def begin(deed: Deed, folder: Path) -> int:
    """Begin a deed in a process group of its own and return its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            deed.do(folder)
        code = 0
    finally:
        os._exit(code)


def wait_for_group(group: int) -> None:
    """Wait until every process of a group has ended."""
    until = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)
        raise AssertionError(f"processes were left after {_END_SECONDS} seconds")


def kill_once(deed: Deed, folder: Path, after: float, *, whole_group: bool) -> str:
    """Begin a deed, kill it after some seconds, and return what is left."""
    child = begin(deed, folder)
    time.sleep(after)
    if whole_group:
        with contextlib.suppress(ProcessLookupError):  # it has not become a group yet, or has ended
            os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait_for_group(child)
    state = deed.look(folder)
    assert state in deed.may_leave, f"left it {state}"
    return state


def do_again(deed: Deed, folder: Path) -> None:
    """Do the deed again; nothing temporary may be left."""
    long_ago = time.time() - _AGE_SECONDS
    for path in folder.rglob("*.part"):
        os.utime(path, (long_ago, long_ago))
    child = begin(deed, folder)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the next run failed"
    assert deed.look(folder) == "new"
    left = [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".tmp"))]
    assert not left, f"the next run left {left}"


def prepared(deed: Deed, scratch: Path) -> float:
    """Prepare a deed, keep the folder for copies, and return how long the deed takes."""
    emptied(scratch / "kept")
    deed.prepare(scratch / "kept")
    shutil.rmtree(scratch / "work", ignore_errors=True)
    shutil.copytree(scratch / "kept", scratch / "work")
    before = time.perf_counter()
    do_again(deed, scratch / "work")
    return time.perf_counter() - before


def campaign(
    scratch: Path, chosen: Mapping[str, Deed], *, count: int, seed: int
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Kill ``count`` times, as often in each deed; return what was left, and what was wrong."""
    outcomes: dict[str, Counter[str]] = {}
    wrong = []
    for place, (name, deed) in enumerate(chosen.items()):
        rng = random.Random(f"{seed} {name}")
        took = prepared(deed, scratch)
        found: Counter[str] = Counter()
        for number in range(count // len(chosen) + (place < count % len(chosen))):
            shutil.rmtree(scratch / "work")
            shutil.copytree(scratch / "kept", scratch / "work")
            after = took * (rng.uniform(0, 1) if number % 2 else rng.uniform(0.8, 1.05))
            try:
                found[kill_once(deed, scratch / "work", after, whole_group=rng.random() < 0.5)] += 1
                do_again(deed, scratch / "work")
            except Exception as error:
                found["wrong"] += 1
                wrong.append(f"{name}, killed after {after:.4f} s: {type(error).__name__}: {error}"[:800])
        outcomes[name] = found
    return outcomes, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("deeds", nargs="*")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chosen = {name: deed for name, deed in deeds() if name not in SKIPPED and (not given.deeds or name in given.deeds)}
    outcomes, wrong = campaign(given.scratch.absolute(), chosen, count=given.count, seed=given.seed)
    for name, found in outcomes.items():
        print(json.dumps({"deed": name, **found}))
    for line in wrong:
        print(line)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
