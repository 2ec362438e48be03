"""Reports of several runs are read as one, and what is missing is named."""

import json
from pathlib import Path

import pytest

from mlarray.errors import UsageError
from mlarray_convert.discovery import Case
from mlarray_convert.joined import join_reports
from mlarray_convert.report import ExitCode, Report, case_fields, json_lines
from mlarray_convert.request import Shard
from mlarray_convert.run import Failure, Outcome, Status


def outcome(name: str, status: Status = Status.OK, **fields: object) -> Outcome:
    failure = Failure.INPUT if status is Status.FAILED else Failure.NONE
    case = Case(name, Path(f"{name}.nii"), Path(f"{name}.mla"))
    return Outcome(case, status, failure=failure, **fields)  # type: ignore[arg-type]


def text(
    *outcomes: Outcome, shard: Shard | None = None, not_started: tuple[str, ...] = (), seconds: float = 1.0
) -> str:
    report = Report(outcomes, seconds, not_started=not_started, shard=shard)
    return json_lines([*map(case_fields, outcomes), report.summary()])


def test_outcomes_come_back_as_they_were() -> None:
    full = outcome(
        *("a", Status.WARNED),
        reason="r",
        warnings=("w",),
        notes=("n",),
        dtype="int16",
        shape=(1, 2),
        seconds=1.5,
        bytes_in=3,
        bytes_out=2,
        checksum="xxh3:0",
    )
    assert join_reports([("one", text(full))]).report.outcomes == (full,)


def test_the_later_of_two_runs_counts_and_what_was_made_stays_made() -> None:
    first = text(outcome("a"), outcome("b", Status.FAILED), not_started=("c",))
    second = text(outcome("a", Status.SKIPPED), outcome("b"), outcome("c"))
    joined = join_reports([("first", first), ("second", second)])
    assert [(o.case.name, o.status) for o in joined.report.outcomes] == [(name, Status.OK) for name in "abc"]
    assert joined.report.seconds == 2.0
    assert (joined.problems, joined.exit_code) == ((), ExitCode.OK)


def test_a_part_without_a_report_is_named_and_is_not_success() -> None:
    joined = join_reports([("1", text(outcome("a"), shard=Shard(1, 3))), ("3", text(outcome("c"), shard=Shard(3, 3)))])
    assert joined.problems == ("No complete report of part 2/3.",)
    assert joined.exit_code is ExitCode.SOME_FAILED


def test_a_report_that_ends_early_is_named_and_its_cases_are_kept() -> None:
    whole = text(outcome("a"), outcome("b"))
    lines = whole.splitlines(keepends=True)
    joined = join_reports([("x.jsonl", lines[0] + lines[1][:20])])
    assert [o.case.name for o in joined.report.outcomes] == ["a"]
    assert joined.problems == ("x.jsonl ends without a summary: its run was killed, or still goes on.",)
    assert joined.exit_code is ExitCode.SOME_FAILED


def test_cases_that_nobody_decided_are_listed() -> None:
    joined = join_reports([("x", text(outcome("a"), not_started=("b", "c")))])
    assert joined.report.not_started == ("b", "c")
    assert joined.exit_code is ExitCode.SOME_FAILED


def test_reports_of_two_divisions_are_told_apart() -> None:
    joined = join_reports([("1", text(shard=Shard(1, 2))), ("2", text(shard=Shard(2, 3)))])
    assert joined.problems == ("The reports belong to divisions into 2 and 3 parts, which do not have the same cases.",)


@pytest.mark.parametrize("line", ["no json", "[]", "{}", "3", json.dumps({"case": "a"}), json.dumps({"summary": True})])
def test_a_file_that_is_no_report_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(UsageError, match=r"Line 2 of x\.jsonl is not of a report"):
        join_reports([("x.jsonl", text(outcome("a")).splitlines()[0] + f"\n{line}\n")])


def test_an_empty_part_of_many_has_not_failed() -> None:
    assert Report((), shard=Shard(9, 9), elsewhere=8).exit_code is ExitCode.OK
    assert Report((), shard=Shard(1, 9)).exit_code is ExitCode.NOTHING


def test_a_lost_cluster_has_an_exit_code_of_its_own() -> None:
    assert Report((outcome("a"),), lost="gone", not_started=("b",)).exit_code is ExitCode.LOST
