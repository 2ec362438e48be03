"""What is told about a run? One line of JSON per case and one for the whole, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from mlarray_convert.outcome import Failure, Outcome, Status
from mlarray_convert.plan import CasePlan
from mlarray_convert.request import Shard


class ExitCode(IntEnum):
    """What the command line returns.

    ``OK``: all converted, or up to date. ``INTERNAL``: an error of this program. ``USAGE``: nothing was started, because the
    request cannot be carried out. ``NOTHING``: there was nothing to convert. ``SOME_FAILED``, ``ALL_FAILED``: of the cases.
    ``VERIFICATION``: an output did not hold what was written. ``LOST``: the cluster that did the work was lost before every case
    was decided. ``INTERRUPTED``: by Ctrl-C or SIGTERM.
    """

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NOTHING = 3
    SOME_FAILED = 4
    ALL_FAILED = 5
    VERIFICATION = 6
    LOST = 7
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Report:
    """How a run ended.

    Parameters
    ----------
    outcomes : tuple of Outcome
        One per case that was decided, in the order of their names.
    seconds : float
        Time taken.
    dry_run : bool
        Whether cases were only planned.
    not_started : tuple of str
        Cases that are not decided because an earlier one failed, or the run was interrupted, or the cluster was lost.
    interrupted : bool
        Whether it was interrupted.
    lost : str
        How the cluster was lost; empty when it was not.
    shard : Shard or None
        Which part of the cases this is.
    elsewhere : int
        How many cases belong to other parts.

    Examples
    --------
    >>> Report(()).exit_code
    <ExitCode.NOTHING: 3>
    """

    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0
    dry_run: bool = False
    not_started: tuple[str, ...] = ()
    interrupted: bool = False
    lost: str = ""
    shard: Shard | None = None
    elsewhere: int = 0

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The cases that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.status is Status.FAILED)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that fits."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.lost:
            return ExitCode.LOST
        if not self.outcomes:  # a part may be empty: jobs of an array that outnumber the cases have not failed
            return ExitCode.OK if self.elsewhere else ExitCode.NOTHING
        if any(outcome.failure is Failure.VERIFICATION for outcome in self.failed):
            return ExitCode.VERIFICATION
        if not self.failed:
            return ExitCode.OK
        return ExitCode.ALL_FAILED if len(self.failed) == len(self.outcomes) else ExitCode.SOME_FAILED

    def count(self, *statuses: Status) -> int:
        """Return how many cases ended in one of ``statuses``."""
        return sum(outcome.status in statuses for outcome in self.outcomes)

    def summary(self) -> dict[str, object]:
        """Return the last line of the JSON report."""
        written = [o for o in self.outcomes if o.status in (Status.OK, Status.WARNED)]
        return {
            "summary": True,
            "cases": len(self.outcomes) + len(self.not_started),
            **{status.value: self.count(status) for status in Status},
            "not_started": list(self.not_started),
            "failed_cases": [outcome.case.name for outcome in self.failed],
            "bytes_in": sum(outcome.bytes_in for outcome in written),
            "bytes_out": sum(outcome.bytes_out for outcome in written),
            "seconds": round(self.seconds, 3),
            "dry_run": self.dry_run,
            "interrupted": self.interrupted,
            "lost": self.lost,
            "shard": str(self.shard) if self.shard is not None else "",
            "exit_code": int(self.exit_code),
        }


def case_fields(outcome: Outcome) -> dict[str, object]:
    """Return the line of the JSON report for one case."""
    fields: dict[str, object] = {
        "case": outcome.case.name,
        "source": str(outcome.case.source),
        "item": outcome.case.item,
        "output": str(outcome.case.output),
        "status": outcome.status.value,
        "reason": outcome.reason,
        "warnings": list(outcome.warnings),
        "notes": list(outcome.notes),
        "dtype": outcome.dtype,
        "shape": list(outcome.shape),
        "seconds": round(outcome.seconds, 3),
        "bytes_in": outcome.bytes_in,
        "bytes_out": outcome.bytes_out,
        "checksum": outcome.checksum,
        "failure": outcome.failure.value,
    }
    if outcome.plan is not None:
        fields["plan"] = plan_fields(outcome.plan)
    return fields


def plan_fields(plan: CasePlan) -> dict[str, object]:
    """Return the plan of a case as plain JSON values."""
    geometry = plan.spec.geometry
    layout = plan.layout
    return {
        "dtype_in": str(plan.source_spec.dtype),
        "dtype_out": str(plan.spec.dtype),
        "dtype_reason": plan.dtype_reason,
        "axes": [axis.name for axis in plan.spec.axes],
        "spacing_mm": list(geometry.spacing) if geometry is not None and "spacing" in geometry.known else None,
        "orientation": geometry.orientation if geometry is not None else None,
        "label": plan.case.is_label,
        "chunks": list(layout.chunks) if layout is not None and layout.chunks is not None else None,
        "blocks": list(layout.blocks) if layout is not None and layout.blocks is not None else None,
        "layout_reason": layout.reason if layout is not None else "",
        "tile": list(plan.tiles.tile),
        "tiles": len(plan.tiles),
        "decoded_to_disk_first": plan.spool,
        "chunks_as_stored": plan.as_stored,
        "peak_bytes": plan.peak_bytes,
        "memory_bytes": plan.limit_bytes,
        "estimated_bytes": plan.estimated_bytes,
        "notes": [{"code": note.code, "message": note.message} for note in plan.notes],
    }


def json_lines(rows: Iterable[dict[str, object]]) -> str:
    """Return rows as lines of strict JSON, in ASCII: file names may hold anything."""
    return "".join(json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n" for row in rows)
