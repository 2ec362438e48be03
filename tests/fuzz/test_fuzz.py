"""Inputs that once did harm, and some thousand new ones, end in a result or a documented error, for every parser."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.campaign import CORPUS
from tests.fuzz.inputs import pack, unpack
from tests.fuzz.parsers import NAMES

ROOT = Path(__file__).parents[2]
CORPUS_BYTES = 500_000
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes, and forks")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own: pytest's has threads, which a fork does not copy."""
    full = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(full, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_no_input_of_the_corpus_or_of_a_short_campaign_does_harm(name: str) -> None:
    result = command(name, "--ci")
    assert result.returncode == 0, result.stdout + result.stderr
    corpus, runs = map(int, re.findall(r"(\d+) executions", result.stdout))
    assert corpus == len(list((CORPUS / name).glob("*")))
    assert runs > 0


def test_the_corpus_is_small_and_belongs_to_parsers() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < CORPUS_BYTES
    assert {path.parent.name for path in files} <= set(NAMES)
    assert all(unpack(path.read_bytes()) for path in files)


def test_files_are_packed_and_unpacked() -> None:
    files = {"a.nhdr": b"x\nfuzz-input 3 b\nabc", "d/b": b"", "c": bytes(range(256))}
    assert unpack(pack(files)) == files
    assert unpack(pack(files), frozenset({"c"})) == {"c": files["c"]}
    for size in range(len(pack(files))):
        assert set(unpack(pack(files)[:size])) <= set(files)


@pytest.mark.parametrize("name", ["nifti", "nrrd", "yaml", "pickle", "tiff", "ome-zarr"])
def test_valid_inputs_are_read(name: str) -> None:
    script = f"""
from tests.fuzz.campaign import _run, made_seeds
from tests.fuzz.parsers import load
parser = load({name!r})
seeds = made_seeds(parser)
result = _run(parser, lambda random, pool, runs: iter(seeds[runs:]), 0, len(seeds), [])
assert result.runs == len(seeds), result
assert not result.findings, result.findings
assert result.kinds >= 2, result
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)


HARM = """
import ctypes, os, sys, time, warnings
from tests.fuzz.campaign import campaign
from tests.fuzz.parser import Parser

held = []

def run(folder, files):
    kind = files["a"][:1]
    if kind == b"s": ctypes.string_at(0)
    if kind == b"h":
        while True: pass
    if kind == b"e": raise KeyError("k")
    if kind == b"m": bytearray(2 << 30)
    if kind == b"w": warnings.warn("x", RuntimeWarning)
    if kind == b"p": print("x", file=sys.stderr)
    if kind == b"f": held.append(os.open("/dev/null", os.O_RDONLY))
    if kind == b"o": raise OSError("no number")
    if kind == b"v": raise ValueError("v")
    return kind

class Given(Parser):
    __slots__ = ()
    def mutate(self, random, files):
        return {"a": random.choice(GIVEN)}

GIVEN = [bytes([one]) for one in sys.argv[1].encode()]
import tests.fuzz.campaign as module
module.SECONDS_PER_INPUT = 0.3
result = campaign(Given("x", run, lambda folder: [{"a": b"0"}]), int(sys.argv[2]), 0)
print(result.runs, sorted({finding.kind for finding in result.findings}))
assert all(files["a"].decode() in sys.argv[1] for files in result.findings.values()), result.findings
"""


@pytest.mark.parametrize(
    ("letters", "runs", "kinds"),
    [
        ("s0", 8, ["signal"]),
        ("h0", 8, ["hang"]),
        ("emwpov0", 60, ["KeyError", "MemoryError", "OSError", "ValueError", "output", "warning"]),
        ("f", 1600, ["descriptors"]),
        ("0", 100, []),
    ],
)
def test_each_kind_of_harm_is_noticed_and_names_its_input(letters: str, runs: int, kinds: list[str]) -> None:
    full = [sys.executable, "-W", "error", "-c", HARM, letters, str(runs)]
    result = subprocess.run(full, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().split(" ", 1) == [str(runs), str(kinds)]
