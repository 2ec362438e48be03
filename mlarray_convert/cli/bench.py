"""``mla bench``: options in, :func:`mlarray_convert.bench.bench`, a table, JSON and a plot out."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlarray.errors import UsageError
from mlarray.storage.publish import write_file
from mlarray_convert.bench.data import SYNTHETIC
from mlarray_convert.bench.measure import FLOOR
from mlarray_convert.bench.plot import check_plot, save_plot
from mlarray_convert.bench.run import DEFAULT_READERS, DEFAULT_SECONDS, bench
from mlarray_convert.cli.arguments import GivenPath
from mlarray_convert.cli.render import amount, by, duration, plain, table

if TYPE_CHECKING:
    from types import FrameType

    from mlarray_convert.bench.measure import Mode
    from mlarray_convert.bench.recommend import Spread
    from mlarray_convert.bench.report import BenchReport

_BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed}"


@click.command(short_help="Measure which layout reads your patches fastest.")
@click.argument("inputs", required=False, type=GivenPath(), metavar="[FILE|FOLDER]")
@click.option("--synthetic", type=click.Choice(SYNTHETIC), help="Made-up data instead of a file.")
@click.option("--patch-size", metavar="N|N,N,N", default="default", help="Patch that training reads.  [default: 192]")
@click.option("--scratch", type=GivenPath(), metavar="DIR",
              help="Folder on the storage to measure; cleaned up.  [default: the system's temporary folder]")  # fmt: skip
@click.option("--seconds", type=float, default=DEFAULT_SECONDS, show_default=True, metavar="N", help="Time to take.")
@click.option("--readers", metavar="N,N", default=",".join(map(str, DEFAULT_READERS)), show_default=True,
              help="Numbers of processes that read at once.")  # fmt: skip
@click.option("--codec", "codecs", multiple=True, metavar="NAME-LEVEL",
              help="Try this codec beside LZ4HC-5; may be repeated.  [default: LZ4-5, ZSTD-1]")  # fmt: skip
@click.option("--chunk-size", metavar="N|N,N,N", help="With --block-size: measure this layout too, per array axis.")
@click.option("--block-size", metavar="N|N,N,N", help="See --chunk-size.")
@click.option("--json", "json_path", metavar="FILE|-", help="Write every measurement as JSON.")
@click.option("--plot", type=GivenPath(), metavar="FILE.html|FILE.png", help="Draw size against time.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Show the traceback of an unexpected error.")
def command(
    inputs: Path | None,
    readers: str,
    codecs: tuple[str, ...],
    chunk_size: str | None,
    block_size: str | None,
    json_path: str | None,
    plot: Path | None,
    **options: Any,
) -> int:
    """Measure which layout, codec and filter read your patches fastest.

    Stores a part of an image, of some images of a folder, or of made-up data in a dozen ways, reads random patches from each,
    warm and cold, with one reader and with several, and ends with one setting to use, or with "keep the default".

    Let nothing else run meanwhile. Sizes beside times: a smaller file that reads slower may still suit you.
    """
    if plot is not None:
        check_plot(plot)
    if json_path not in (None, "-"):
        _check_writable(Path(str(json_path)))
    view = _TimeBar()
    with _stopped_by_signals(), contextlib.closing(view):
        report = bench(
            inputs,
            readers=_integers(readers, "--readers"),
            codecs=codecs or None,
            chunk_size=_extents(chunk_size, "--chunk-size"),
            block_size=_extents(block_size, "--block-size"),
            on_progress=view,
            **options,
        )
    text = json.dumps(report.to_json(), ensure_ascii=True, allow_nan=False, indent=1)
    if json_path == "-":
        click.echo(text)
    elif json_path is not None:
        write_file(Path(json_path), f"{text}\n".encode("ascii"))
    if plot is not None:
        save_plot(report, plot)
    click.echo(report_text(report), err=json_path == "-")
    return 0


def report_text(report: BenchReport) -> str:
    """Return a report for people: what was read, a table, what to know, what to do."""
    data = report.data
    names = ", ".join(str(volume["name"]) for volume in _dicts(data["volumes"]))
    lines = [
        click.style(plain(names), bold=True)
        + f": {data['dtype']}, {amount(report.raw_bytes)} of voxels; patches of {by(_list(data['patch_extent']))}; "
        f"{duration(report.seconds)}.",
        "Milliseconds per patch: median of the rounds, and half the distance of the quartiles. Cold: from storage, with opening.",
        f"x {max(mode.readers for mode in report.modes)}: so many readers at once, time until all are done divided by the "
        "patches of all. x default: all ways of reading.",
        "",
        _table(report),
        "",
    ]
    lines += [click.style("note: ", fg="yellow") + plain(note) for note in report.notes]
    advice = report.recommendation
    if advice.keep_default:
        lines.append(click.style("Keep the default. ", fg="green", bold=True) + plain(advice.reason))
    else:
        lines.append(click.style(f"Recommended: {advice.name}. ", fg="green", bold=True) + plain(advice.reason))
    lines += [f"  Python   {plain(advice.python)}", f"  convert  {plain(advice.command)}"]
    return "\n".join(lines)


def _table(report: BenchReport) -> str:
    header = ["#", "candidate", "blocks", "size", "write", *map(_heading, report.modes), "x default"]
    rows = []
    for number, one in enumerate(report.stored, 1):
        name = one.candidate.name
        comparison = report.comparison(name)
        mark = "<" if name == report.recommendation.name else ""
        rows.append(
            [
                str(number),
                name,
                by(one.blocks),
                amount(one.stored_bytes),
                duration(one.write_seconds),
                *(_milliseconds(report.spread(name, mode)) for mode in report.modes),
                "" if comparison is None else f"{comparison.total.median:.2f} {mark}".strip(),
            ]
        )
    reads = [_milliseconds(report.spread(FLOOR, mode)) for mode in report.modes]
    compared = report.comparison(FLOOR)
    total = "" if compared is None else f"{compared.total.median:.2f}"
    rows.append(["", FLOOR, "", amount(report.raw_bytes), "", *reads, total])
    return table(header, rows)


def _heading(mode: Mode) -> str:
    return f"{'cold' if mode.cold else 'warm'} x {mode.readers}"


def _milliseconds(spread: Spread | None) -> str:
    if spread is None:
        return ""
    around = (spread.high - spread.low) / 2 / spread.median if spread.median else 0.0
    return f"{_three_digits(spread.median * 1e3)} ±{around:.0%}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class _TimeBar:
    """A progress bar over the time, on a terminal only."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._shown = 0.0
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=100, file=sys.stderr, leave=False, dynamic_ncols=True, bar_format=_BAR)

    def __call__(self, what: str, share: float) -> None:
        if self._bar is not None:
            self._bar.set_description_str(plain(what).ljust(44), refresh=False)
            self._bar.update(max(0.0, share * 100 - self._shown))
            self._bar.refresh()
            self._shown = max(self._shown, share * 100)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM, and a terminal that is closed, end a run as Ctrl-C does, with its files removed."""
    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check_writable(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise UsageError(f"The folder {path.absolute().parent} does not exist.", hint="Create it first.")


def _extents(text: str | None, option: str) -> int | tuple[int, ...] | None:
    if text is None:
        return None
    extents = _integers(text, option)
    return extents[0] if len(extents) == 1 else extents


def _integers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"{option} takes one number or several with commas; got {text!r}.")
    return tuple(map(int, parts))


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, object]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]
