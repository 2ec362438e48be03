"""Size against read time, one point per candidate, as a picture.

HTML with SVG inside needs nothing but a browser and loads nothing. PNG is drawn by matplotlib, where that is installed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mlarray.errors import MissingDependencyError, UsageError
from mlarray.storage.publish import write_file
from mlarray_convert.bench.measure import FLOOR, Mode
from mlarray_convert.bench.report import BenchReport

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#555555")
_WIDTH, _HEIGHT = 560, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 18, 40, 50
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; margin: 2em auto; padding: 0 1em;
  max-width: 1180px; }
svg { font: 12px system-ui, sans-serif; max-width: 100%; height: auto; }
.panels { display: flex; flex-wrap: wrap; gap: 16px; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 3px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid #ddd; }
th { white-space: normal; } th:nth-child(2), td:nth-child(2), th:nth-child(3), td:nth-child(3) { text-align: left; }
.wide { overflow-x: auto; } code { background: #f2f2f2; padding: 1px 4px; }
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate in one panel.

    Parameters
    ----------
    number : int
        Its number in the table, from 1.
    name : str
        Of the candidate.
    megabytes : float
        Size of its files.
    median, low, high : float
        Milliseconds per patch.
    colour : str
        Of its layout.
    is_default, is_recommended : bool
        Whether it is marked.
    """

    number: int
    name: str
    megabytes: float
    median: float
    low: float
    high: float
    colour: str
    is_default: bool
    is_recommended: bool


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis with round ticks.

    Examples
    --------
    >>> axis_for([1.2, 3.4]).ticks
    (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
    """

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, start: float, stop: float) -> float:
        """Return where a value lies between two pixels."""
        return start + (value - self.low) / (self.high - self.low) * (stop - start)


def save_plot(report: BenchReport, path: str | Path) -> None:
    """Draw a report into a file.

    Parameters
    ----------
    report : BenchReport
        What was measured.
    path : str or Path
        Ends in ``.html`` or ``.png``.

    Raises
    ------
    UsageError
        Another suffix.
    MissingDependencyError
        A PNG is wanted and matplotlib is not installed.
    """
    place = Path(path)
    check_plot(place)
    if place.suffix.lower() == ".html":
        write_file(place, html_page(report).encode())
    else:
        _save_png(report, place)


def check_plot(path: Path) -> None:
    """Raise what :func:`save_plot` would raise, before anything is measured."""
    suffix = path.suffix.lower()
    if suffix not in (".html", ".png"):
        raise UsageError(f"A plot is written as .html or .png; got {path.name}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"The folder {path.absolute().parent} does not exist.", hint="Create it first.")
    if suffix == ".png":
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                "A PNG is drawn by matplotlib, which is not installed.",
                hint="Install it with `pip install mlarray[plot]`, or write .html, which needs nothing.",
            ) from error


def points_of(report: BenchReport, mode: Mode) -> tuple[Point, ...]:
    """Return the points of the panel of one mode; candidates that were not measured so are left out."""
    layouts = list(dict.fromkeys(one.candidate.layout for one in report.stored))
    points = []
    for number, one in enumerate(report.stored, 1):
        spread = report.spread(one.candidate.name, mode)
        if spread is not None:
            points.append(
                Point(
                    number=number,
                    name=one.candidate.name,
                    megabytes=one.stored_bytes / 1e6,
                    median=spread.median * 1e3,
                    low=spread.low * 1e3,
                    high=spread.high * 1e3,
                    colour=_COLOURS[layouts.index(one.candidate.layout) % len(_COLOURS)],
                    is_default=one.candidate.is_default,
                    is_recommended=one.candidate.name == report.recommendation.name,
                )
            )
    return tuple(points)


def title_of(mode: Mode) -> str:
    """Return what a panel shows."""
    readers = "one reader" if mode.readers == 1 else f"{mode.readers} readers together"
    return f"{'Cold' if mode.cold else 'Warm'} reads, {readers}"


def axis_for(values: Sequence[float]) -> Axis:
    """Return an axis around values, with about five ticks."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    raw = span / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= raw)
    if step > raw * 1.6:
        step /= 2
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(round(number * step, 12) for number in range(first, max(last, first + 1) + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def html_page(report: BenchReport) -> str:
    """Return a page that stands alone: panels, a table of all candidates, the recommendation."""
    panels = "\n".join(panel for mode in report.modes if (panel := svg_panel(report, mode)))
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    advice = report.recommendation
    heading = "Keep the default" if advice.keep_default else f"Recommended: {advice.name}"
    data = report.data
    extents = escape(" x ".join(str(extent) for extent in _numbers(data["patch_extent"])))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>mla bench</title><style>{_STYLE}</style></head><body>
<h1>mla bench</h1>
<p>Patches of {extents} voxels, {escape(str(data["dtype"]))}, {report.raw_bytes / 1e6:.0f} MB of voxels. Down and left is better.
Bars are quartiles over rounds; the dashed line is a copy out of an uncompressed numpy memmap.</p>
<div class="panels">
{panels}
</div>
<h2>{escape(heading)}</h2>
<p>{escape(advice.reason)}</p>
<p><code>{escape(advice.python)}</code><br><code>{escape(advice.command)}</code></p>
<div class="wide">{_html_table(report)}</div>
<ul>{notes}</ul>
</body></html>
"""


def svg_panel(report: BenchReport, mode: Mode) -> str:
    """Return one panel as SVG, or an empty text where nothing was measured so."""
    points = points_of(report, mode)
    if not points:
        return ""
    floor = report.spread(FLOOR, mode)
    x = axis_for([point.megabytes for point in points])
    times = [value for point in points for value in (point.low, point.high)]
    y = axis_for([*times, 0.0, *(() if floor is None else (floor.median * 1e3,))])
    return "\n".join(
        (
            f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            f'<text x="{_LEFT}" y="20" font-size="15" font-weight="bold">{escape(title_of(mode))}</text>',
            *_frame(x, y),
            *(() if floor is None else _floor_line(y, floor.median * 1e3)),
            *(text for point in points for text in _mark(point, x, y)),
            *_labels(points, x, y),
            "</svg>",
        )
    )


def _frame(x: Axis, y: Axis) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in y.ticks:
        at = y.place(tick, bottom, _TOP)
        yield f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#555">{tick:g}</text>'
    for tick in x.ticks:
        at = x.place(tick, _LEFT, right)
        yield f'<line x1="{at:.1f}" y1="{bottom}" x2="{at:.1f}" y2="{bottom + 5}" stroke="#555"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 19}" text-anchor="middle" fill="#555">{tick:g}</text>'
    yield f'<path d="M{_LEFT} {_TOP} V{bottom} H{right}" fill="none" stroke="#555"/>'
    yield f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">size, MB</text>'
    middle = (_TOP + bottom) / 2
    yield (
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">milliseconds per patch</text>'
    )


def _floor_line(y: Axis, milliseconds: float) -> Iterator[str]:
    at = y.place(milliseconds, _HEIGHT - _BOTTOM, _TOP)
    yield f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" stroke="#888" stroke-dasharray="6 4"/>'
    yield f'<text x="{_WIDTH - _RIGHT - 4}" y="{at - 5:.1f}" text-anchor="end" fill="#666">numpy memmap</text>'


def _mark(point: Point, x: Axis, y: Axis) -> Iterator[str]:
    at, bottom = x.place(point.megabytes, _LEFT, _WIDTH - _RIGHT), _HEIGHT - _BOTTOM
    middle, low, high = (y.place(value, bottom, _TOP) for value in (point.median, point.low, point.high))
    told = f"{point.number}  {point.name}: {point.megabytes:.1f} MB, {point.median:.3g} ms ({point.low:.3g} to {point.high:.3g})"
    yield f'<line x1="{at:.1f}" y1="{low:.1f}" x2="{at:.1f}" y2="{high:.1f}" stroke="{point.colour}" stroke-opacity="0.6"/>'
    if point.is_default:
        yield f'<rect x="{at - 9:.1f}" y="{middle - 9:.1f}" width="18" height="18" fill="none" stroke="#222" stroke-width="1.5"/>'
    if point.is_recommended:
        yield f'<circle cx="{at:.1f}" cy="{middle:.1f}" r="10" fill="none" stroke="#118833" stroke-width="2.5"/>'
    yield f'<circle cx="{at:.1f}" cy="{middle:.1f}" r="5" fill="{point.colour}"><title>{escape(told)}</title></circle>'


def _labels(points: Sequence[Point], x: Axis, y: Axis) -> Iterator[str]:
    """Yield the number of every point where it covers nothing else, as far as there is such a place; the marked ones first."""
    places = {
        point.number: (
            x.place(point.megabytes, _LEFT, _WIDTH - _RIGHT),
            y.place(point.median, _HEIGHT - _BOTTOM, _TOP),
        )
        for point in points
    }
    taken = []
    for point in points:
        (across, down), half = places[point.number], 11 if point.is_default or point.is_recommended else 7
        taken.append((across - half, down - half, across + half, down + half))
    for point in sorted(points, key=lambda one: not (one.is_default or one.is_recommended)):
        words = _words(point)
        boxes = list(_around(*places[point.number], 6.6 * len(words)))
        best = min(boxes, key=lambda box: sum(_overlap(box, other) for other in taken) + 50 * _outside(box))
        taken.append(best)
        yield f'<text x="{best[0]:.1f}" y="{best[3] - 2:.1f}">{escape(words)}</text>'


def _around(across: float, down: float, width: float) -> Iterator[tuple[float, float, float, float]]:
    """Yield boxes of one line of text around a point: right, left, above, below, then the corners, near ones first."""
    for gap in (13, 24, 40):
        for left, top in (
            (across + gap, down - 7),
            (across - gap - width, down - 7),
            (across - width / 2, down - gap - 13),
            (across - width / 2, down + gap),
            (across + gap - 4, down - gap - 8),
            (across + gap - 4, down + gap - 5),
            (across - gap + 4 - width, down - gap - 8),
            (across - gap + 4 - width, down + gap - 5),
        ):
            yield left, top, left + width, top + 13


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)


def _outside(box: tuple[float, float, float, float]) -> float:
    left, top, right, bottom = box
    return max(0.0, _LEFT + 2 - left, _TOP - top, right - _WIDTH + _RIGHT, bottom - _HEIGHT + _BOTTOM)


def _words(point: Point) -> str:
    if point.is_default:
        return f"{point.number} default{', to keep' if point.is_recommended else ''}"
    return f"{point.number}{' recommended' if point.is_recommended else ''}"


def _html_table(report: BenchReport) -> str:
    heads = ["", "candidate", "chunks / blocks", "MB", "write s", *(f"{title_of(mode)}, ms" for mode in report.modes)]
    rows = []
    for number, one in enumerate(report.stored, 1):
        spreads = [report.spread(one.candidate.name, mode) for mode in report.modes]
        cells = [
            str(number),
            one.candidate.name,
            f"{' x '.join(map(str, one.chunks))} / {' x '.join(map(str, one.blocks))}",
            f"{one.stored_bytes / 1e6:.1f}",
            f"{one.write_seconds:.2f}",
            *("" if s is None else f"{s.median * 1e3:.3g} ({s.low * 1e3:.3g} to {s.high * 1e3:.3g})" for s in spreads),
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _save_png(report: BenchReport, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [(mode, points) for mode in report.modes if (points := points_of(report, mode))]
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(6.4 * columns + 2.8, 4.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, (mode, points) in zip(panels, shown, strict=False):
        for point in points:
            errors = [[point.median - point.low], [point.high - point.median]]
            panel.errorbar(point.megabytes, point.median, errors, fmt="o", color=point.colour, ms=6)
            marks = [("s", "#222222", point.is_default), ("o", "#118833", point.is_recommended)]
            for shape, colour, is_so in marks:
                if is_so:
                    panel.plot(point.megabytes, point.median, shape, ms=13, mfc="none", mec=colour, mew=1.8)
            place = (point.megabytes, point.median)
            panel.annotate(_words(point), place, xytext=(9, 3), textcoords="offset points", fontsize=9)
        floor = report.spread(FLOOR, mode)
        if floor is not None:
            panel.axhline(floor.median * 1e3, color="#888888", ls="--", lw=1, label=FLOOR)
            panel.legend(loc="lower right", fontsize=8)
        panel.set(title=title_of(mode), xlabel="size, MB", ylabel="milliseconds per patch")
        panel.set_ylim(bottom=0)
    for panel in list(figure.axes)[len(shown) :]:
        panel.set_axis_off()
    names = "\n".join(f"{number}  {one.candidate.name}" for number, one in enumerate(report.stored, 1))
    figure.legend(handles=[], title=names, loc="outside right upper", alignment="left", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    write_file(path, picture.getvalue())


def _numbers(value: object) -> Sequence[int]:
    return value if isinstance(value, list | tuple) else ()
