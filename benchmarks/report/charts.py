"""How do measurements become pictures that need nothing but a browser? SVG text: dots with whiskers, and lines.

Equal input gives equal text, so that a picture can be compared with what would be drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mlarray_convert.bench.plot import axis_for

COLOURS = ("#4477aa", "#ee6677", "#228833", "#b8960b", "#66ccee", "#aa3377")
_ROW, _TITLE, _FOOT, _GAP, _LEGEND = 22, 30, 44, 24, 30
_PLOT_WIDTH, _LINES_HEIGHT = 300, 190
_LETTER = 7.1  # pixels of a wide letter of the 12 pixel font, bold ones included
_MARGIN = 28  # right of a panel, for half a label of the axis


@dataclass(frozen=True, slots=True)
class Dot:
    """One measurement: where it stands and how far it spreads."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Dots:
    """A panel with one row per thing compared and one colour per series.

    Parameters
    ----------
    title : str
        Above the panel.
    rows : sequence of str
        Labels; those in ``ours`` stand out.
    series : sequence of (str, mapping of row to Dot)
        Names must agree between the panels of one picture.
    """

    title: str
    rows: Sequence[str]
    series: Sequence[tuple[str, dict[str, Dot]]]
    ours: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lines:
    """A panel with values over steps: ``steps`` labels the horizontal axis; ``spans`` names stretches of it."""

    title: str
    steps: Sequence[str]
    series: Sequence[tuple[str, Sequence[float | None]]]
    spans: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: ticks, and the place of a value between 0 and 1."""

    ticks: tuple[float, ...]
    place: Callable[[float], float]


def linear(values: Sequence[float]) -> Scale:
    """Return an axis from zero."""
    axis = axis_for([0.0, *values])
    return Scale(axis.ticks, lambda value: (value - axis.low) / (axis.high - axis.low))


def logarithmic(values: Sequence[float]) -> Scale:
    """Return an axis of powers of ten, with 2 and 5 between them where there is room."""
    steps = [factor * 10.0**power for power in range(-4, 7) for factor in (1, 2, 5)]
    low = max(step for step in steps if step <= min(values) * 1.0001)
    high = min(step for step in steps if step >= max(values) * 0.9999 and step > low)
    inside = [step for step in steps if low <= step <= high]
    if len(inside) > 8:
        inside = [step for step in inside if abs(math.log10(step) - round(math.log10(step))) < 1e-9]
    span = math.log10(high / low)
    return Scale(tuple(inside), lambda value: math.log10(value / low) / span)


def dots_picture(
    panels: Sequence[Dots],
    unit: str,
    *,
    scale: Callable[[Sequence[float]], Scale] = logarithmic,
    columns: int = 2,
    mark: float | None = None,
) -> str:
    """Return a picture of panels that share one horizontal axis.

    Parameters
    ----------
    unit : str
        Below the axis.
    mark : float, optional
        A dashed line, such as the value of what all others are compared with.
    """
    found = [dot for panel in panels for _, dots in panel.series for dot in dots.values()]
    axis = scale([value for dot in found for value in (dot.low, dot.high)] + ([mark] if mark is not None else []))
    left = 18 + _LETTER * max(len(row) for panel in panels for row in panel.rows)
    heights = [_TITLE + _ROW * len(panel.rows) + _FOOT for panel in panels]
    insides = [_dots_panel(panel, axis, left, unit, mark) for panel in panels]
    return _picture(insides, heights, left + _PLOT_WIDTH + _MARGIN, columns, [name for name, _ in panels[0].series])


def lines_picture(
    panels: Sequence[Lines],
    unit: str,
    below: str,
    *,
    scale: Callable[[Sequence[float]], Scale] = linear,
    columns: int = 2,
    mark: float | None = None,
) -> str:
    """Return a picture of panels of lines, with one vertical axis for all."""
    found = [value for panel in panels for _, values in panel.series for value in values if value is not None]
    axis = scale(found + ([mark] if mark is not None else []))
    insides = [_lines_panel(panel, axis, unit, below, mark) for panel in panels]
    heights = [_TITLE + _LINES_HEIGHT + _FOOT] * len(panels)
    return _picture(insides, heights, 64 + _PLOT_WIDTH + _MARGIN, columns, [name for name, _ in panels[0].series])


def _picture(
    insides: Sequence[Iterator[str]], heights: Sequence[int], width: float, columns: int, names: Sequence[str]
) -> str:
    """Return panels side by side, row below row, each row as high as its highest panel; the legend above all."""
    parts, top = [], _LEGEND if len(names) > 1 else 4
    for first in range(0, len(insides), columns):
        for number, inside in enumerate(insides[first : first + columns]):
            parts.append(f'<g transform="translate({number * (width + _GAP):.1f} {top})">')
            parts += [*inside, "</g>"]
        top += max(heights[first : first + columns])
    legend, x = [], 14.0
    for name, colour in zip(names, COLOURS, strict=False):
        if len(names) > 1:
            legend.append(f'<circle cx="{x:.1f}" cy="14" r="5" fill="{colour}"/>')
            legend.append(f'<text x="{x + 10:.1f}" y="18">{escape(name)}</text>')
            x += 34 + _LETTER * len(name)
    across = min(columns, len(insides))
    size = f"{max(x, across * (width + _GAP) - _GAP):.0f}", f"{top}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}"'
    return "\n".join(
        (
            f'{head} font-family="system-ui, sans-serif" font-size="12" fill="#222">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *legend,
            *parts,
            "</svg>\n",
        )
    )


def _dots_panel(panel: Dots, axis: Scale, left: float, unit: str, mark: float | None) -> Iterator[str]:
    bottom = _TITLE + _ROW * len(panel.rows)

    def across(value: float) -> float:
        return left + axis.place(value) * _PLOT_WIDTH

    yield f'<text x="{left:.1f}" y="18" font-size="14" font-weight="bold">{escape(panel.title)}</text>'
    for number, row in enumerate(panel.rows):
        top = _TITLE + _ROW * number
        weight = ' font-weight="bold"' if row in panel.ours else ""
        yield f'<line x1="{left:.1f}" y1="{top + _ROW}" x2="{left + _PLOT_WIDTH:.1f}" y2="{top + _ROW}" stroke="#eeeeee"/>'
        if row in panel.ours:
            yield f'<rect x="4" y="{top}" width="{left + _PLOT_WIDTH - 4:.1f}" height="{_ROW}" fill="#eaf1f8"/>'
        yield f'<text x="{left - 10:.1f}" y="{top + 15}" text-anchor="end"{weight}>{escape(row)}</text>'
    for tick in axis.ticks:
        at = across(tick)
        yield f'<line x1="{at:.1f}" y1="{_TITLE}" x2="{at:.1f}" y2="{bottom}" stroke="#d8d8d8"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#555">{tick:g}</text>'
    if mark is not None:
        at = across(mark)
        yield f'<line x1="{at:.1f}" y1="{_TITLE}" x2="{at:.1f}" y2="{bottom}" stroke="#555" stroke-dasharray="5 4"/>'
    yield (
        f'<text x="{left + _PLOT_WIDTH / 2:.1f}" y="{bottom + 33}" text-anchor="middle" fill="#555">{escape(unit)}</text>'
    )
    step = min(4.0, 12 / len(panel.series))  # colours of one row a little apart, so that none covers another
    for position, (colour, (name, found)) in enumerate(zip(COLOURS, panel.series, strict=False)):
        for number, row in enumerate(panel.rows):
            if row in found:
                middle = _TITLE + _ROW * (number + 0.5) + step * (position - (len(panel.series) - 1) / 2)
                yield from _dot(found[row], f"{row}, {name}", colour, middle, across)


def _dot(dot: Dot, told: str, colour: str, middle: float, across: Callable[[float], float]) -> Iterator[str]:
    yield (
        f'<line x1="{across(dot.low):.1f}" y1="{middle:.1f}" x2="{across(dot.high):.1f}" y2="{middle:.1f}" '
        f'stroke="{colour}" stroke-width="2" stroke-opacity="0.5"/>'
    )
    told = f"{told.removesuffix(', ')}: {dot.median:.3g} ({dot.low:.3g} to {dot.high:.3g})"
    yield (
        f'<circle cx="{across(dot.median):.1f}" cy="{middle:.1f}" r="4.5" fill="{colour}">'
        f"<title>{escape(told)}</title></circle>"
    )


def _lines_panel(panel: Lines, axis: Scale, unit: str, below: str, mark: float | None) -> Iterator[str]:
    left, right, bottom = 64, 64 + _PLOT_WIDTH, _TITLE + _LINES_HEIGHT

    def down(value: float) -> float:
        return bottom - axis.place(value) * _LINES_HEIGHT

    def across(position: float) -> float:
        return left + (position + 0.5) / len(panel.steps) * _PLOT_WIDTH

    yield f'<text x="{left}" y="18" font-size="14" font-weight="bold">{escape(panel.title)}</text>'
    for tick in axis.ticks:
        yield f'<line x1="{left}" y1="{down(tick):.1f}" x2="{right}" y2="{down(tick):.1f}" stroke="#d8d8d8"/>'
        yield f'<text x="{left - 8}" y="{down(tick) + 4:.1f}" text-anchor="end" fill="#555">{tick:g}</text>'
    if mark is not None:
        yield (
            f'<line x1="{left}" y1="{down(mark):.1f}" x2="{right}" y2="{down(mark):.1f}" stroke="#555" '
            'stroke-dasharray="5 4"/>'
        )
    began = 0
    for name, length in panel.spans:
        middle, end = across(began + length / 2 - 0.5), across(began + length - 0.5)
        yield f'<text x="{middle:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#555">{escape(name)}</text>'
        if began + length < len(panel.steps):
            yield f'<line x1="{end:.1f}" y1="{_TITLE}" x2="{end:.1f}" y2="{bottom}" stroke="#999"/>'
        began += length
    if not panel.spans:
        for position, step in enumerate(panel.steps):
            yield f'<text x="{across(position):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#555">{escape(step)}</text>'
    yield f'<path d="M{left} {_TITLE} V{bottom} H{right}" fill="none" stroke="#555"/>'
    yield f'<text x="{(left + right) / 2}" y="{bottom + 33}" text-anchor="middle" fill="#555">{escape(below)}</text>'
    middle = (_TITLE + bottom) / 2
    yield (
        f'<text x="16" y="{middle}" text-anchor="middle" fill="#555" transform="rotate(-90 16 {middle})">{escape(unit)}</text>'
    )
    for colour, (_, values) in zip(COLOURS, panel.series, strict=False):
        places = [(across(p), down(value)) for p, value in enumerate(values) if value is not None]
        if places:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places)
