"""How does everything look on a terminal? All text for people is made here.

File names and messages may hold anything, also characters that move the cursor or recolour the screen: they are escaped.
Colour and the progress bar appear on a terminal only; a log file gets plain lines.
"""

from __future__ import annotations

import io
import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from pathlib import Path

    from mlarray_convert.batch import Event, Found
    from mlarray_convert.discovery import Case
    from mlarray_convert.plan import CasePlan
    from mlarray_convert.report import Report
    from mlarray_convert.run import Outcome

_COLOURS = {"ok": "green", "warned": "yellow", "skipped": "blue", "failed": "red"}
_SHOWN_WARNINGS = 20
_BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"


def plain(text: str, *, keep: str = "") -> str:
    r"""Return ``text`` with control and other invisible characters written as escapes.

    Examples
    --------
    >>> plain("red\x1b[31m.nii")
    'red\\x1b[31m.nii'
    """
    return "".join(
        c if c in keep or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else _escaped(c) for c in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def error_text(message: str, hint: str = "") -> str:
    """Return the line that reports an error."""
    return click.style("Error: ", fg="red", bold=True) + plain(f"{message} {hint}".strip())


def amount(count: float) -> str:
    """Return a number of bytes in decimal units.

    Examples
    --------
    >>> amount(0), amount(1536), amount(2_400_000)
    ('0 B', '1.5 kB', '2.4 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(count: int, what: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> number(1, "case"), number(2, "case")
    ('1 case', '2 cases')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def by(extents: Iterable[object]) -> str:
    """Return extents joined by a multiplication sign a terminal of any encoding can show."""
    return " x ".join(str(extent) for extent in extents)


def duration(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def fields(rows: Mapping[str, object]) -> str:
    """Return names and values in two columns; rows without a value are left out."""
    shown = {name: value for name, value in rows.items() if value not in (None, "", (), [])}
    width = max((len(name) for name in shown), default=0)
    return "\n".join(
        f"{click.style(name.ljust(width), bold=True)}  {plain(str(value))}" for name, value in shown.items()
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns that are as wide as they need."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    lines = [click.style("  ".join(name.ljust(w) for name, w in zip(header, widths, strict=True)).rstrip(), bold=True)]
    lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


class ConvertView:
    """Shows a run of the converter as it goes, on standard error.

    Parameters
    ----------
    quiet : bool
        Only failures.
    verbose : bool
        Also notes of every case, what was ignored, tracebacks.
    dry_run : bool
        Whether plans are shown.
    """

    def __init__(self, *, quiet: bool, verbose: bool, dry_run: bool, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._verbose = verbose
        self._dry_run = dry_run
        self._stream: TextIO = stream or sys.stderr or io.StringIO()  # a process may be started without standard error
        self._bar: Any = None
        self._sizes: tuple[int, ...] = ()
        self._others = 0
        self._counted: dict[int, int] = {}
        self._done = 0
        self._decided: set[int] = set()
        self._warned: set[str] = set()
        self._shown: set[str] = set()
        self._waiting: dict[int, Outcome] = {}

    def __call__(self, event: Event) -> None:
        """Show what happened."""
        from mlarray_convert.batch import Began, Ended, Found, Moved

        if isinstance(event, Found):
            self._found(event)
        elif isinstance(event, Began) and self._verbose and not self._dry_run:
            self._line(
                click.style(
                    f"    begin {plain(event.case.name)} (worker process {event.pid}{plain(_on(event.host))})", dim=True
                )
            )
        elif isinstance(event, Moved):
            self._advance(event.index, event.share)
        elif isinstance(event, Ended) and self._dry_run:
            # Plans are shown in the order of names; they are made by several workers.
            self._waiting[event.index] = event.outcome
            while self._done in self._waiting:
                self._ended(self._done, self._waiting.pop(self._done))
        elif isinstance(event, Ended) and event.index not in self._decided:  # what failed later, the summary tells
            self._ended(event.index, event.outcome)

    def remark(self, text: str) -> None:
        """Show a sentence that the user should read."""
        self._line(click.style("warning: ", fg="yellow") + plain(text))

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def summary(self, report: Report) -> None:
        """Show how the run ended."""
        from mlarray_convert.run import Status

        self.close()
        hidden = len(self._warned) - _SHOWN_WARNINGS
        if hidden > 0 and not self._verbose and not self._quiet:
            self._line(f"Not shown: {number(hidden, 'more warning')}. -v shows them, --json has all.")
        if self._quiet and report.outcomes and not report.failed:
            return
        for outcome in report.failed:
            source = str(outcome.case.place)
            told = outcome.reason if outcome.reason.startswith(source) else f"{source}: {outcome.reason}"
            self._line(click.style("failed  ", fg="red", bold=True) + plain(told))
            if outcome.trace and self._verbose:
                self._line(plain(outcome.trace.rstrip(), keep="\n\t"))
            elif outcome.trace:
                self._line("        Run again with -v for the traceback.")
        if report.lost:
            self._line(error_text(report.lost, "Run the same command again for what is left."))
        if not report.outcomes and not report.interrupted and not report.lost:
            part = f"Part {report.shard} has no case: there are {report.elsewhere} in all."
            self._line(part if report.elsewhere else _nothing(self._others))
            return
        written = [o for o in report.outcomes if o.status in (Status.OK, Status.WARNED)]
        sizes = f"{amount(sum(o.bytes_in for o in written))} in, {amount(sum(o.bytes_out for o in written))} out"
        verb = "to convert" if self._dry_run else "converted"
        parts = [f"{len(written)} {verb}" + (f" ({sizes}{', estimated' if self._dry_run else ''})" if written else "")]
        parts += [f"{report.count(Status.WARNED)} of them with warnings"] if report.count(Status.WARNED) else []
        parts += [f"{report.count(Status.SKIPPED)} skipped"] if report.count(Status.SKIPPED) else []
        parts += [click.style(f"{len(report.failed)} failed", fg="red")] if report.failed else []
        parts += [f"{len(report.not_started)} not started"] if report.not_started else []
        self._line(", ".join(parts) + f", in {duration(report.seconds)}.")
        if self._dry_run:
            self._line("Nothing was written: this was a dry run.")

    def _found(self, event: Found) -> None:
        self._sizes = event.sizes
        self._others = event.discovery.others
        found, share = event.discovery, event.share
        if self._quiet or not found.cases:
            return
        if event.elsewhere:
            every = len(found.cases) + event.elsewhere
            self._line(f"This part: {len(found.cases)} of {number(every, 'case')}.")
        total = sum(self._sizes)
        self._line(
            f"{number(len(found.cases), 'case')}, {amount(total)}{plain(_destination(found.cases, found.store))}; "
            f"{number(share.workers, 'worker')}, {number(share.threads, 'thread')} each, "
            f"at most {amount(share.memory_bytes)} each{plain(_on(share.place))}."
        )
        if found.others and not self._verbose:
            self._line(f"{number(found.others, 'other file')} left out: not of a format that is converted.")
        if self._verbose:
            self._line(
                f"Available: {share.reason}. Ignored: {number(found.junk, 'junk file')}, {number(found.others, 'other')}."
            )
        for path in event.removed:
            self._line(plain(f"Removed {path}, left by an interrupted run."))
        for remark in found.remarks:
            self._line(plain(remark))
        if self._stream.isatty() and not self._dry_run:
            from tqdm import tqdm

            self._bar = tqdm(
                total=max(1, total),
                unit="B",
                unit_scale=True,
                file=self._stream,
                leave=False,
                dynamic_ncols=True,
                bar_format=_BAR,
                desc=f"0/{number(len(found.cases), 'case')}",
            )

    def _advance(self, index: int, share: float) -> None:
        if self._bar is not None:
            now = int(self._sizes[index] * share)
            self._bar.update(max(0, now - self._counted.get(index, 0)))
            self._counted[index] = max(now, self._counted.get(index, 0))

    def _ended(self, index: int, outcome: Outcome) -> None:
        self._done += 1
        self._decided.add(index)
        self._advance(index, 1.0)
        if self._bar is not None:
            self._bar.set_description_str(f"{self._done}/{number(len(self._sizes), 'case')}")
        if self._quiet:
            return
        status = outcome.status.value
        word = "plan" if status == "ok" and self._dry_run else status
        head = f"[{self._done}/{len(self._sizes)}] {click.style(word.ljust(7), fg=_COLOURS[status])} "
        again = outcome.warnings and not self._verbose and self._shown.issuperset(outcome.warnings)
        detail = _detail(outcome, dry_run=self._dry_run) + ("  (warnings as above)" if again else "")
        self._line(head + plain(f"{outcome.case.name}{detail}"))
        if outcome.plan is not None:
            self._line(_plan_text(outcome.plan))
        for warning in outcome.warnings:
            self._warn(warning)
        for note in outcome.notes if self._verbose else ():
            self._line("        " + click.style("note: ", dim=True) + plain(note))

    def _warn(self, warning: str) -> None:
        first = warning not in self._warned and len(self._warned) < _SHOWN_WARNINGS
        self._warned.add(warning)
        if first or self._verbose:
            self._shown.add(warning)
            self._line("        " + click.style("warning: ", fg="yellow") + plain(warning))

    def _line(self, text: str) -> None:
        shown = text if self._stream.isatty() else click.unstyle(text)
        if self._bar is not None:
            self._bar.write(shown, file=self._stream)
            return
        try:
            print(shown, file=self._stream, flush=True)
        except OSError:  # nobody can read it any more, or its disk is full: hours of work do not end for that
            self._stream = io.StringIO()
        except UnicodeEncodeError:  # a terminal that cannot show the name of a file
            encoding = self._stream.encoding or "ascii"
            print(shown.encode(encoding, "backslashreplace").decode(encoding), file=self._stream, flush=True)


class ByteBar:
    """A progress bar over bytes, on a terminal only.

    Parameters
    ----------
    total : int
        Bytes.
    what : str
        Stands before the bar.
    """

    def __init__(self, total: int, what: str) -> None:
        self._bar: Any = None
        self._began = time.monotonic()
        if sys.stderr.isatty() and total > 0:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, unit="B", unit_scale=True, leave=False, desc=plain(what), dynamic_ncols=True, delay=0.5
            )

    def __enter__(self) -> ByteBar:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, count: int) -> None:
        """Count bytes."""
        if self._bar is not None:
            self._bar.update(count)


def _on(place: str) -> str:
    return f" on {place}" if place else ""


def _nothing(others: int) -> str:
    if not others:
        return "There is nothing to convert: no image was found."
    files = "the one file that was found is" if others == 1 else f"the {others} files that were found are"
    return (
        f"There is nothing to convert: {files} of no format that can be read (`mla formats` lists those; DICOM needs "
        "dcm2niix first), or in the target format already."
    )


def _destination(cases: Sequence[Case], store: Path | None) -> str:
    """Return where the outputs go, as the end of a sentence, or nothing where there is no one place."""
    if store is not None or len(cases) == 1:
        return f", to {store or cases[0].output}"
    try:
        place = os.path.commonpath([case.output.parent for case in cases])
    except ValueError:  # absolute and relative paths, or several drives
        return ""
    return f", to {place}{os.sep}" if place.rstrip(os.sep) else ""


def _detail(outcome: Outcome, *, dry_run: bool) -> str:
    if outcome.status.value == "failed":
        return ""
    if outcome.status.value == "skipped":
        return f"  {outcome.reason}"
    if dry_run:
        return f"  ({outcome.reason})" if outcome.reason else ""
    sizes = f"{amount(outcome.bytes_in)} -> {amount(outcome.bytes_out)}"
    reason = f"  ({outcome.reason})" if outcome.reason else ""
    return f"  {by(outcome.shape)} {outcome.dtype}  {sizes}  {duration(outcome.seconds)}{reason}"


def _plan_text(plan: CasePlan) -> str:
    geometry = plan.spec.geometry
    kind = str(plan.spec.dtype)
    if plan.source_spec.dtype.newbyteorder("=") != plan.spec.dtype:
        kind = f"{plan.source_spec.dtype} -> {kind}"
    rows: list[tuple[str, str]] = [
        ("source", f"{plan.case.place} ({amount(plan.bytes_in)})"),
        ("output", f"{plan.case.output} (about {amount(plan.estimated_bytes)})"),
        ("voxels", f"{by(plan.spec.shape)} ({', '.join(axis.name for axis in plan.spec.axes)})  {kind}"),
    ]
    if plan.dtype_reason:
        rows.append(("", plan.dtype_reason))
    if geometry is not None and "spacing" in geometry.known:
        spacing = by(f"{step:.6g}" for step in geometry.spacing)
        rows.append(("spacing", f"{spacing} mm, orientation {geometry.orientation or 'unknown'}"))
    else:
        rows.append(("spacing", "unknown"))
    if plan.layout is not None:
        rows.append(("layout", plan.layout.reason))
    tile = f"{number(len(plan.tiles), 'tile')} of {by(plan.tiles.tile)} ({plan.tiles.reason})"
    if plan.as_stored:
        tile = "chunks are copied as they are, not compressed again"
    if plan.spool:
        tile += ", decoded into a temporary file first"
    rows += [
        ("copy", tile),
        ("memory", f"{amount(plan.peak_bytes)} at most, limit {amount(plan.limit_bytes)}"),
    ]
    return "\n".join(f"        {click.style(name.ljust(8), dim=True)}{plain(text)}" for name, text in rows)
