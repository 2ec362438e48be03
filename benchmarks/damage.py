"""Is all damage of an ``.mla`` found, and does none of it take the reading process down?

``python benchmarks/damage.py --count 20000`` damages sample files in many ways (``damage_files.py``). Each damaged file is
checked as ``mla verify`` does, and then read in every way without being checked. Checking must report it; reading must end
with voxels, right or wrong, or with an error of this package, within :data:`SECONDS` and :data:`MORE_BYTES`. This happens in
forked children: one that dies, hangs or grows names the damage, and another one goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from damage_files import Damage, all_damages, damaged, make_samples, parts_of, random_damages

from mlarray import MLArray
from mlarray.errors import MLArrayError
from mlarray_convert.verify import check_file

SECONDS = 10
MORE_BYTES = 64 << 20  # beside the file and two copies of the array
ADDRESS_BYTES = 4 << 30  # what a child may reserve, so that one that grows does not take the machine
_RESULT = struct.Struct("<IBB")  # index of the damage, phase, verdict
CHECK, READ = 0, 1
BEGUN, GOOD, MISSED, FOREIGN, GROWN = range(5)
VERDICTS = {MISSED: "missed", FOREIGN: "foreign error", GROWN: "grown"}


@dataclass(slots=True)
class Tally:
    """What a campaign showed: damages by kind and part, those found, and the findings."""

    damages: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    found: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


def main() -> int:
    """Run a campaign; the exit code is 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="random damages over all files")
    parser.add_argument(
        "--every", action="store_true", help="also every single bit, number, length and page of the small parts"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", action="append", help="only files with this name (without the suffix)")
    parser.add_argument("--part", action="append", help="only damages that begin in this part of a file")
    parser.add_argument("--no-check", action="store_true", help="only read")
    parser.add_argument("--trace", action="store_true", help="print what was raised")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        samples = make_samples(Path(folder))
        chosen = [path for path in samples if not arguments.file or path.stem in arguments.file]
        for number, path in enumerate(chosen):
            data, parts = path.read_bytes(), parts_of(path)
            count = (number + 1) * arguments.count // len(chosen) - number * arguments.count // len(chosen)
            damages = list(random_damages(data, parts, count, arguments.seed + number))
            if arguments.every:
                damages += all_damages(data, parts)
            if arguments.part:
                damages = [damage for damage in damages if _part(damage, parts) in arguments.part]
            run(path, data, parts, damages, tally, check=not arguments.no_check and not path.stem.startswith("golden"))
            if not arguments.json:
                print(
                    f"{path.stem}: {len(damages)} damages, {len(tally.findings)} findings so far",
                    file=sys.stderr,
                    flush=True,
                )
    print(json.dumps(summary(tally)) if arguments.json else told(tally))
    return 1 if tally.findings or tally.missed else 0


def summary(tally: Tally) -> dict[str, object]:
    """Return the numbers of a campaign."""
    return {
        "damages": sum(tally.damages.values()),
        "checked": tally.checked,
        "found": tally.found,
        "missed": dict(tally.missed.most_common()),
        "findings": tally.findings,
        "by_kind_and_part": dict(sorted(tally.damages.items())),
    }


def told(tally: Tally) -> str:
    """Return the same as text."""
    lines = [f"{count:8} {name}" for name, count in sorted(tally.damages.items())]
    lines += [f"{sum(tally.damages.values()):8} damages, {tally.checked} checked, {tally.found} of them found"]
    lines += [f"missed {count:6} {name}" for name, count in tally.missed.most_common()]
    return "\n".join(lines + tally.findings)


def run(path: Path, data: bytes, parts: list[str], damages: Sequence[Damage], tally: Tally, *, check: bool) -> None:
    """Try all damages of a file, in as many children as it takes."""
    first = 0
    while first < len(damages):
        first = _in_a_child(path, data, parts, damages, first, tally, check=check)


def _in_a_child(
    path: Path, data: bytes, parts: list[str], damages: Sequence[Damage], first: int, tally: Tally, *, check: bool
) -> int:
    """Let one child work from damage ``first`` on; return where the next one has to begin."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _work(path, data, damages, first, writing, check=check)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    index, phase, hung = first, CHECK, False
    while True:
        if not select.select([reading], [], [], SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
            hung = True
            break
        if not (raw := os.read(reading, _RESULT.size)):
            break
        index, phase, verdict = _RESULT.unpack(raw)
        _count(tally, path.stem, damages[index], parts, phase, verdict)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        return len(damages)
    how = "hangs" if hung else f"dies of signal {-status}" if status < 0 else f"ends with code {status}"
    _tell(tally, path.stem, damages[index], parts, phase, how)
    return index + 1


def _count(tally: Tally, name: str, damage: Damage, parts: list[str], phase: int, verdict: int) -> None:
    place = f"{damage.kind} in {_part(damage, parts)}"
    if verdict == BEGUN:
        tally.damages[place] += phase == READ
    elif phase == CHECK and verdict in (GOOD, MISSED):
        tally.checked += 1
        tally.found += verdict == GOOD
        if verdict == MISSED:
            tally.missed[f"{place} of {name}"] += 1
    elif verdict in VERDICTS:
        _tell(tally, name, damage, parts, phase, VERDICTS[verdict])


def _tell(tally: Tally, name: str, damage: Damage, parts: list[str], phase: int, how: str) -> None:
    doing = "checking" if phase == CHECK else "reading"
    tally.findings.append(f"{name}, {_part(damage, parts)}: {tuple(damage)}: {doing} {how}")
    print(tally.findings[-1], file=sys.stderr, flush=True)


def _part(damage: Damage, parts: list[str]) -> str:
    return parts[damage.at] if damage.at < len(parts) else "behind"


def _work(path: Path, data: bytes, damages: Sequence[Damage], first: int, results: int, *, check: bool) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    with MLArray.open(path) as image:
        allowed = 3 * len(data) + 3 * np.prod(image.shape or (0,)) * 16 + MORE_BYTES
    target = path.with_name(f"damaged-{os.getpid()}.mla")
    try:
        for index in range(first, len(damages)):
            content = damaged(data, damages[index])
            if content == data:
                continue
            target.write_bytes(content)
            phases = ((CHECK, _checked), (READ, _read)) if check else ((READ, _read),)
            for phase, act in phases:
                os.write(results, _RESULT.pack(index, phase, BEGUN))
                verdict = _judged(act, target, allowed)
                os.write(results, _RESULT.pack(index, phase, verdict))
            target.unlink()
    finally:
        target.unlink(missing_ok=True)


def _judged(act: Callable[[Path], bool], target: Path, allowed: int) -> int:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = _peak_bytes()
    try:
        verdict = GOOD if act(target) else MISSED
    except Exception:
        if "--trace" in sys.argv:
            traceback.print_exc()
        return FOREIGN
    return GROWN if _peak_bytes() - before > allowed else verdict


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _checked(path: Path) -> bool:
    return not check_file(path).ok


def _read(path: Path) -> bool:
    for act in (_read_mapped, _read_unmapped, _read_copy, _loaded, _loaded_compressed):
        with suppress(MLArrayError):
            act(path)
    return True


def _read_mapped(path: Path) -> None:
    with MLArray.open(path) as image:
        _read_all(image)


def _read_unmapped(path: Path) -> None:
    with MLArray.open(path, mmap_mode=None) as image:
        _read_all(image)


def _read_copy(path: Path) -> None:
    with MLArray.open(path, mmap_mode="c") as image:
        _read_all(image)


def _loaded(path: Path) -> None:
    MLArray.load(path, compressed=False)


def _loaded_compressed(path: Path) -> None:
    _read_all(MLArray.load(path))


def _read_all(image: MLArray) -> None:
    source = random.Random(1)
    for _ in range(3 if image.shape is not None else 0):
        with suppress(MLArrayError):
            low = [source.randrange(max(1, extent)) for extent in image.shape]
            image[tuple(slice(begin, begin + 1 + source.randrange(8)) for begin in low)]
    for act in (
        image.to_numpy,
        lambda: (image.meta, image.affine, image.layout),
        lambda: image.spec,
        lambda: repr(image),
    ):
        with suppress(MLArrayError):
            act()


if __name__ == "__main__":
    sys.exit(main())
