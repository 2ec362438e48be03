"""python -m tests.fuzz PARSER --count N --seed S: run a campaign; without --count, only the corpus.

Prints executions, rate and findings; each finding is written to the corpus of its parser with --keep. Exit code 1 where there
is any.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from tests.fuzz.campaign import CORPUS, Result, campaign, replay
from tests.fuzz.inputs import Files, pack
from tests.fuzz.parser import Finding, Parser
from tests.fuzz.parsers import NAMES, load


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    reader = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    reader.add_argument("parser", choices=[*NAMES, "all"])
    reader.add_argument("--count", type=int, default=0, help="executions for each parser; 0: only the corpus")
    reader.add_argument("--ci", action="store_true", help="as many executions as the test of the parser")
    reader.add_argument("--seed", type=int, default=0)
    reader.add_argument("--seconds", type=float, help="stop a parser after this processor time")
    reader.add_argument(
        "--keep", type=Path, nargs="?", const=CORPUS, help="write what is found to this folder (the corpus)"
    )
    given = reader.parse_args(arguments)
    failed = False
    for name in NAMES if given.parser == "all" else [given.parser]:
        parser = load(name)
        results = [("corpus", replay(parser))]
        count = parser.ci_count if given.ci else given.count
        if count:
            results.append(("campaign", campaign(parser, count, given.seed, seconds=given.seconds, tell=_progress)))
        for what, result in results:
            _report(parser, what, result)
            failed |= bool(result.findings)
            if given.keep is not None and what == "campaign":
                for finding, files in result.findings.items():
                    _keep(given.keep / name, finding, files)
    return 1 if failed else 0


def _progress(result: Result) -> None:
    if sys.stderr.isatty():
        print(f"\r{result.runs} executions, {len(result.findings)} findings ", end="", file=sys.stderr, flush=True)


def _report(parser: Parser, what: str, result: Result) -> None:
    rate = result.runs / max(result.seconds, 1e-9)
    print(
        f"{parser.name} {what}: {result.runs} executions, {rate:.0f} a second of processor time, "
        f"{result.kinds} kinds of results, "
        f"{len(result.findings)} findings",
        flush=True,
    )
    for finding in result.findings:
        count = result.counts[finding.kind, finding.place]
        detail = "\n    ".join(finding.detail.rstrip().splitlines()[-40:])
        print(f"  {finding.kind} at {finding.place}, {count} times\n    {detail}", flush=True)


def _keep(folder: Path, finding: Finding, files: Files) -> None:
    data = pack(files)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.kind}-{hashlib.sha256(data).hexdigest()[:10]}"
    path.write_bytes(data)
    print(f"  written: {path}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
