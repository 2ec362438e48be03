"""Is a full disk told, and is nothing lost by it, whichever call it is that finds no space?

    python benchmarks/full_disk.py SCRATCH [DEED ...] [--points 30] [--errno 28]    0: the process is killed by that call

Every deed of deeds.py is done once to count its calls that write, then again and again with calls from the n-th on failing, for
up to ``--points`` values of n. A library that is loaded before all others lets them fail (faults.c, Linux). Half of the runs
write half of the first call that fails, as a disk does that fills up. Each run must end in one error that says so and names a
file, leave nothing temporary, and leave what was there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
_FIELDS = struct.Struct("=qqqq")  # calls so far, first that fails, error, whether that one writes half
SPACE = ("full", "No space", "space left", "quota", "too large")


def library(scratch: Path) -> Path:
    """Compile faults.c and return the library."""
    made = scratch / "faults.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("A C compiler is needed.")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, HERE / "faults.c", "-ldl"], check=True)
    return made


def environment(scratch: Path) -> dict[str, str]:
    """Return the variables of a process whose calls can be let fail."""
    (scratch / "control").write_bytes(bytes(_FIELDS.size))
    return {
        **os.environ,
        "LD_PRELOAD": str(library(scratch)),
        "FAULT_DIR": str(scratch / "disk"),
        "FAULT_CONTROL": str(scratch / "control"),
        "TMPDIR": str(scratch / "disk"),
    }


class Disk:
    """The disk that is full when it is told to be."""

    def __init__(self, scratch: Path) -> None:
        with (scratch / "control").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FIELDS.size)

    def fill(self, first: int, error: int = 0, *, half: bool = False) -> None:
        """Let calls fail from the ``first`` on; 0: none."""
        self._map[:] = _FIELDS.pack(0, first, error, int(half))

    @property
    def calls(self) -> int:
        """How many calls wrote."""
        return int(_FIELDS.unpack(self._map[:])[0])


def attempt(deed: str, folder: Path) -> tuple[int, str]:
    """Do a deed in a forked process; return its exit code (negative: killed by a signal) and what it said."""
    from deeds import deeds

    from mlarray.errors import MLArrayError

    told = folder.parent.parent / "told"
    told.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code, text = 0, io.StringIO()
        try:
            with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dict(deeds())[deed].do(folder)
        except SystemExit as error:
            code = int(error.code or 0)
        except (OSError, MLArrayError) as error:
            code = 100
            text.write(f"{type(error).__name__}: {error}")
        except BaseException:
            code = 101
            text.write(traceback.format_exc())
        told.write_text(text.getvalue())
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told.read_text() if told.exists() else ""


def problems(deed: str, folder: Path, code: int, told: str, error: int) -> tuple[list[str], str]:
    """Return what is wrong after a run on a full disk, and what the folder holds."""
    from deeds import deeds

    found = []
    killed = error == 0 and code == -signal.SIGKILL
    if code < 0 and not killed:
        found.append(f"killed by signal {-code}")
    if "Traceback" in told or "Unexpected" in told or code == 101:
        found.append("a traceback")
    if code and not killed and not any(word in told for word in SPACE):
        found.append("does not say that the disk is full")
    if code and not killed and str(folder) not in told:
        found.append("names no file")
    left = [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".tmp")) or "mla-" in path.name]
    if left and not killed:
        found.append(f"left {left}")
    try:
        state = dict(deeds())[deed].look(folder)
    except Exception as problem:
        return [*found, f"neither old nor new: {type(problem).__name__}: {problem}"[:500]], "wrong"
    if code == 0 and state != "new" and deed != "kept":  # what is not kept is measured again
        found.append("no error, and nothing new")
    if code and state not in dict(deeds())[deed].may_leave:
        found.append(f"left it {state}")
    return found, state


def campaign(scratch: Path, deed: str, *, points: int, error: int) -> tuple[Counter[str], list[str]]:
    """Do a deed on a disk that is full at one call after the other."""
    from deeds import deeds, emptied

    disk, folder, kept = Disk(scratch), scratch / "disk" / "work", scratch / "kept"
    disk.fill(0)
    emptied(folder)
    dict(deeds())[deed].prepare(folder)
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept)
    disk.fill(0)
    code, told = attempt(deed, folder)
    count = disk.calls
    if code:
        raise SystemExit(f"{deed} fails on a disk with space: {told}")
    points = min(points, count)
    chosen = sorted({1 + round(i * (count - 1) / max(1, points - 1)) for i in range(points)})
    outcomes: Counter[str] = Counter()
    wrong = []
    for number, first in enumerate(chosen):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        disk.fill(first, error, half=bool(number % 2))
        code, told = attempt(deed, folder)
        disk.fill(0)
        found, state = problems(deed, folder, code, told, error)
        outcomes[f"{state}, {'told' if code else 'no error'}"] += 1
        if found:
            wrong.append(f"{deed} at call {first} of {count} (exit code {code}): {'; '.join(found)}: {told[-700:]!r}")
    return outcomes, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("deeds", nargs="*")
    parser.add_argument("--points", type=int, default=30)
    parser.add_argument("--errno", type=int, default=28)
    given = parser.parse_args()
    scratch = given.scratch.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    if "FAULT_CONTROL" not in os.environ:
        command = [sys.executable, __file__, *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, env=environment(scratch), check=False).returncode)
    sys.path.insert(0, str(HERE))
    from deeds import deeds

    failures = 0
    for name, _ in deeds():
        if given.deeds and name not in given.deeds:
            continue
        outcomes, wrong = campaign(scratch, name, points=given.points, error=given.errno)
        print(json.dumps({"deed": name, **outcomes, "wrong": len(wrong)}), flush=True)
        for line in wrong[:5]:
            print("  " + line, flush=True)
        failures += len(wrong)
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
