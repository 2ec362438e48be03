"""How did a data set go that was converted in parts? The reports of several runs, read back and taken as one.

A batch system starts the parts, so nobody sees them together, and one that is killed says nothing at all. The reports say which
parts there should be, so what is missing can be named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlarray.errors import UsageError
from mlarray_convert.discovery import Case
from mlarray_convert.outcome import Failure, Outcome, Status
from mlarray_convert.report import ExitCode, Report
from mlarray_convert.request import Shard, parse_shard

_WRITTEN = (Status.OK, Status.WARNED)


@dataclass(frozen=True, slots=True)
class Joined:
    """Several reports as one.

    Parameters
    ----------
    report : Report
        One outcome per output, the last that was reported; ``seconds`` are those of all runs together.
    problems : tuple of str
        Sentences about reports that are missing or end early.
    """

    report: Report
    problems: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """That of the cases; when cases are not accounted for, at least ``SOME_FAILED``."""
        code = self.report.exit_code
        incomplete = bool(self.problems or self.report.not_started)
        return ExitCode.SOME_FAILED if incomplete and code in (ExitCode.OK, ExitCode.NOTHING) else code


@dataclass(slots=True)
class _Read:
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    summaries: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def join_reports(texts: Iterable[tuple[str, str]]) -> Joined:
    """Take reports as one.

    Parameters
    ----------
    texts : iterable of (str, str)
        Names and contents of reports, as ``mla convert --json`` writes them, the oldest first. Of two runs of one case the
        later one counts; a case that was converted and later skipped as up to date is converted.

    Raises
    ------
    UsageError
        For a line that is not of such a report.
    """
    read = _Read()
    for name, text in texts:
        _read(name, text, read)
    decided = {outcome.case.name for outcome in read.outcomes.values()}
    listed = (case for summary in read.summaries.values() for case in summary["not_started"])
    outcomes = sorted(read.outcomes.values(), key=lambda outcome: outcome.case.name)
    seconds = sum(float(summary["seconds"]) for summary in read.summaries.values())
    dry_run = any(summary["dry_run"] for summary in read.summaries.values())
    report = Report(tuple(outcomes), seconds, dry_run, tuple(dict.fromkeys(c for c in listed if c not in decided)))
    return Joined(report, (*read.problems, *_missing_parts(read.summaries)))


def _read(name: str, text: str, read: _Read) -> None:
    summary = None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            if row.get("summary") is True:
                summary = {key: row[key] for key in ("dry_run", "shard")}
                summary |= {"not_started": [str(name) for name in row["not_started"]], "seconds": float(row["seconds"])}
                if summary["shard"]:
                    parse_shard(str(summary["shard"]))
                continue
            outcome = _outcome(row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if number == len(text.splitlines()) and not text.endswith("\n"):
                continue  # its writer was killed in the middle of a line
            raise UsageError(
                f"Line {number} of {name} is not of a report of `mla convert --json`.",
                hint="Name the files that --json wrote.",
            ) from error
        before = read.outcomes.get(str(row["output"]))
        if before is None or before.status not in _WRITTEN or outcome.status is not Status.SKIPPED:
            read.outcomes[str(row["output"])] = outcome
    if summary is None:
        read.problems.append(f"{name} ends without a summary: its run was killed, or still goes on.")
    else:
        read.summaries[name] = summary


def _missing_parts(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    parts: dict[int, set[int]] = {}
    for summary in summaries.values():
        if summary["shard"]:
            shard: Shard = parse_shard(str(summary["shard"]))
            parts.setdefault(shard.count, set()).add(shard.number)
    if len(parts) > 1:
        counts = " and ".join(map(str, sorted(parts)))
        return [f"The reports belong to divisions into {counts} parts, which do not have the same cases."]
    problems = []
    for count, present in parts.items():
        missing = [f"{number}/{count}" for number in range(1, count + 1) if number not in present]
        if missing:
            problems.append(f"No complete report of part {', '.join(missing)}.")
    return problems


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(
        Case(str(row["case"]), Path(row["source"]), Path(row["output"])),
        Status(row["status"]),
        str(row["reason"]),
        tuple(row["warnings"]),
        tuple(row["notes"]),
        str(row["dtype"]),
        tuple(row["shape"]),
        float(row["seconds"]),
        int(row["bytes_in"]),
        int(row["bytes_out"]),
        str(row["checksum"]),
        Failure(row["failure"]),
    )
