"""How are a million inputs run through code that may crash? In forked children, each of which notes what it is about to run.

A child writes every input into memory that it shares with its parent before it runs it, so that a crash names its input.
Processor time, memory, open files and what is printed are limited or watched. Inputs that end in a new kind of result (another
line of the package that refuses them, another kind of image) are kept and changed further.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.inputs import Files, pack, unpack
from tests.fuzz.parser import Finding, Parser, outcome

CORPUS = Path(__file__).parent / "corpus"
SECONDS_PER_INPUT = 5.0
"""Of processor time; in real time twelve times as long, because the machine may be busy."""
MEMORY_BYTES = 1 << 30
"""What a child may map beyond what it began with; inputs are at most 64 KiB a file, and reading is limited to a few MiB."""
GROWTH_BYTES = 400 << 20
CHILD_RUNS = 20_000
POOL = 400
_HEAD = struct.Struct("<QQ")
_SHARED_BYTES = 4 << 20


@dataclass(slots=True)
class Result:
    """What a campaign showed: executions, seconds of processor time, and per finding the first input and how often it came."""

    runs: int = 0
    seconds: float = 0.0
    findings: dict[Finding, Files] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: int = 0

    def add(self, finding: Finding, files: Files) -> None:
        key = (finding.kind, finding.place)
        if not self.counts[key]:
            self.findings[finding] = files
        self.counts[key] += 1


def replay(parser: Parser, corpus: Path = CORPUS) -> Result:
    """Run every input of a parser's corpus, as they are, in children."""
    entries = [unpack(path.read_bytes()) for path in sorted((corpus / parser.name).glob("*"))]
    return _run(parser, lambda random, pool, runs: iter(entries[runs:]), 0, len(entries), [])


def campaign(
    parser: Parser, count: int, seed: int, *, seconds: float | None = None, tell: Callable[[Result], None] | None = None
) -> Result:
    """Run ``count`` changed inputs, the corpus among those that are changed."""
    seeds = made_seeds(parser)
    entries = [unpack(path.read_bytes()) for path in sorted((CORPUS / parser.name).glob("*"))]

    def inputs(random: Random, pool: list[Files], runs: int) -> Iterator[Files]:
        if runs == 0:
            yield from seeds
        while True:
            base = random.choice(pool) if pool and random.random() < 0.5 else random.choice(seeds)
            yield parser.mutate(random, base)

    return _run(parser, inputs, seed, count, [entry for entry in entries if entry], seconds=seconds, tell=tell)


def made_seeds(parser: Parser) -> list[Files]:
    """Return the valid inputs of a parser, made in a child: the libraries that write them may start threads."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "seeds"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                (Path(folder) / "made").mkdir()
                target.write_bytes(pickle.dumps(list(parser.seeds(Path(folder) / "made"))))
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            finally:
                sys.stderr.flush()
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError(f"The seeds of {parser.name} cannot be made.")
        seeds: list[Files] = pickle.loads(target.read_bytes())
        return seeds


def _run(
    parser: Parser,
    inputs: Callable[[Random, list[Files], int], Iterator[Files]],
    seed: int,
    count: int,
    pool: list[Files],
    *,
    seconds: float | None = None,
    tell: Callable[[Result], None] | None = None,
) -> Result:
    result, kinds = Result(), set[Hashable]()
    spent = _spent()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="mlarray-fuzz-", dir=base))
    shared = mmap.mmap(-1, _SHARED_BYTES)
    try:
        while result.runs < count and (seconds is None or result.seconds < seconds):
            limit = min(CHILD_RUNS, count - result.runs)
            until = None if seconds is None else seconds - result.seconds
            random = Random(f"{seed} {result.runs}")
            shared[: _HEAD.size] = _HEAD.pack(0, 0)
            child = os.fork()
            if child == 0:
                _child(parser, inputs(random, pool, result.runs), limit, until, shared, scratch, kinds)
            status, hung = _wait(child, shared)
            runs, length = _HEAD.unpack(shared[: _HEAD.size])
            last = unpack(shared[_HEAD.size : _HEAD.size + length])
            for finding, files, kind in _noted(scratch / "notes"):
                if finding is not None:
                    result.add(finding, files)
                else:
                    kinds.add(kind)
                    pool.append(files)
            del pool[: max(0, len(pool) - POOL)]
            if hung or status:
                result.add(_ended(status, hung, scratch), last)
            if not runs and status:
                raise RuntimeError(f"A child of {parser.name} ended before its first input, status {status}.")
            result.runs += runs
            result.seconds, result.kinds = _spent() - spent, len(kinds)
            if tell is not None:
                tell(result)
            if not runs or (runs < limit and not (hung or status) and seconds is None):
                break  # the inputs have ended
    finally:
        shared.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return result


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ended(status: int, hung: bool, scratch: Path) -> Finding:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    told = (scratch / "output").read_text(errors="replace")[-1500:] if (scratch / "output").exists() else ""
    if hung or number == signal.SIGPROF:
        where = told.rsplit("most recent call first", 1)[-1][-1000:]
        return Finding("hang", "", f"more than {SECONDS_PER_INPUT} s of processor time, or stuck\n{where}")
    place = next((line.strip() for line in told.splitlines() if "/mlarray" in line), "")
    return Finding("signal", f"{number or status} {place}", told)


def _wait(child: int, shared: mmap.mmap) -> tuple[int, bool]:
    """Wait for a child; one that does not get on is killed."""
    seen, since = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status, False
        runs = _HEAD.unpack(shared[: _HEAD.size])[0]
        if runs != seen:
            seen, since = runs, time.monotonic()
        elif time.monotonic() - since > 12 * SECONDS_PER_INPUT:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], True
        time.sleep(0.01)


def _noted(path: Path) -> list[tuple[Finding | None, Files, Hashable]]:
    found: list[tuple[Finding | None, Files, Hashable]] = []
    if path.exists():
        with path.open("rb") as file:
            while True:
                try:
                    found.append(pickle.load(file))
                except (EOFError, pickle.UnpicklingError):
                    break
        path.unlink()
    return found


# --- the child -----------------------------------------------------------------------------------------------------------


def _child(
    parser: Parser,
    inputs: Iterator[Files],
    limit: int,
    until: float | None,
    shared: mmap.mmap,
    scratch: Path,
    kinds: set[Hashable],
) -> None:
    code = 1
    try:
        _work(parser, inputs, limit, until, shared, scratch, kinds)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
    finally:
        os._exit(code)


def _work(
    parser: Parser,
    inputs: Iterator[Files],
    limit: int,
    until: float | None,
    shared: mmap.mmap,
    scratch: Path,
    kinds: set[Hashable],
) -> None:
    import faulthandler

    notes = (scratch / "notes").open("ab", buffering=0)
    output = os.open(scratch / "output", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, all_threads=False, chain=True)
    warnings.simplefilter("always")
    unraisable: list[str] = []
    sys.unraisablehook = lambda told: unraisable.append(
        f"{told.exc_type.__name__}: {told.exc_value} in {told.object!r}"
    )
    work = scratch / f"{os.getpid()}"
    work.mkdir()
    watch, parent = _Watch(), os.getppid()
    for index, files in enumerate(inputs):
        if index == limit or (until is not None and time.process_time() > until) or os.getppid() != parent:
            break
        data = pack(files)[: _SHARED_BYTES - _HEAD.size]
        shared[: _HEAD.size + len(data)] = _HEAD.pack(index + 1, len(data)) + data
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
        found = outcome(parser, work / str(index), files)
        printed = os.fstat(output).st_size
        if printed:
            text = os.pread(output, 2000, 0).decode(errors="replace")
            os.ftruncate(output, 0)
            found = found if isinstance(found, Finding) else Finding("output", _stable(text), text)
        if unraisable:
            found = Finding("unraisable", _stable(unraisable[0]), "\n".join(unraisable))
            unraisable.clear()
        grown = watch.problem(index)
        if grown is not None and not isinstance(found, Finding):
            found = grown
        if isinstance(found, Finding):
            notes.write(pickle.dumps((found, files, None)))
        elif found not in kinds:
            kinds.add(found)
            notes.write(pickle.dumps((None, files, found)))
    signal.setitimer(signal.ITIMER_PROF, 0)
    shutil.rmtree(work, ignore_errors=True)


def _stable(text: str) -> str:
    return "".join(letter for letter in text.splitlines()[0][:120] if not letter.isdigit())


class _Watch:
    """Memory and open files of this process, compared with those at its beginning."""

    def __init__(self) -> None:
        sizes = self._pages()
        limit = sizes[0] + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        self._settled: tuple[int, int] | None = None

    def problem(self, index: int) -> Finding | None:
        if index % 500 != 499:
            return None
        gc.collect()
        files, memory = len(os.listdir("/proc/self/fd")), self._pages()[1]
        if self._settled is None:
            self._settled = files, memory
            return None
        if files > self._settled[0] + 20:
            return Finding("descriptors", "", f"{files} open files, {self._settled[0]} before")
        if memory > self._settled[1] + GROWTH_BYTES:
            return Finding("growth", "", f"{memory >> 20} MiB of memory, {self._settled[1] >> 20} before")
        return None

    @staticmethod
    def _pages() -> Sequence[int]:
        page = os.sysconf("SC_PAGE_SIZE")
        fields: Any = Path("/proc/self/statm").read_text().split()
        return [int(one) * page for one in fields[:2]]
