"""How does a patch find its way back through a chain? The pictures of streaming.md, drawn from what the planner itself answers.

python docs/explanation/streaming/draw.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from mlarray import Geometry, Region
from mlarray import transforms as T
from mlarray.sources.base import NDArray
from mlarray.streaming.chain import resolve
from mlarray.transforms.base import Context
from mlarray.transforms.locality import Halo, Locality, Rescale, linear_coordinate
from mlarray.transforms.orientation import reordered
from mlarray.transforms.statistics import statistic_blocks
from mlarray.transforms.volume import Volume

HERE = Path(__file__).parent
INK, FAINT, PAPER, VOLUME, READ, ASKED, EDGE = "#222", "#555", "#ffffff", "#e9eef3", "#4477aa", "#ee6677", "#9aa7b3"
Point = tuple[float, float]


# --- pieces ----------------------------------------------------------------------------------------------------------------


def box(x: float, y: float, width: float, height: float, fill: str = "none", edge: str = EDGE, extra: str = "") -> str:
    """Return a rectangle."""
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {size} fill="{fill}" stroke="{edge}" {extra}/>'


def text(x: float, y: float, words: str, size: int = 12, anchor: str = "middle", **more: str) -> str:
    """Return one line of text."""
    style = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def line(a: Point, b: Point, colour: str = FAINT, extra: str = "") -> str:
    """Return a line."""
    return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{colour}" {extra}/>'


def arrow(a: Point, b: Point, colour: str = FAINT) -> str:
    """Return a line with a head at ``b``."""
    along = np.subtract(b, a) / np.hypot(*np.subtract(b, a))
    across = np.array([-along[1], along[0]])
    tip = [b, b - 9 * along + 4 * across, b - 9 * along - 4 * across]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in tip)
    return line(a, tuple(b - 7 * along), colour, 'stroke-width="1.5"') + f'<polygon points="{points}" fill="{colour}"/>'


def picture(width: int, height: int, parts: Iterator[str]) -> str:
    """Return the text of a file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = f'font-family="system-ui, sans-serif" fill="{INK}">'
    return "\n".join([f"{head} {style}", f'<rect width="100%" height="100%" fill="{PAPER}"/>', *parts, "</svg>\n"])


def spans(region: Region) -> str:
    """Return a region as numpy writes it."""
    return ", ".join(f"{a}:{b}" for a, b in zip(region.start, region.stop, strict=True))


def of(region: Region, x: float, y: float, scale: float) -> tuple[float, float, float, float]:
    """Return the place of a region on the picture of its volume, which begins at ``x, y``."""
    (top, left), (rows, columns) = region.start, region.shape
    return x + left * scale, y + top * scale, columns * scale, rows * scale


# --- 1: folding ------------------------------------------------------------------------------------------------------------


class Smooth(T.Transform):
    """Any filter with a radius of 5 voxels."""

    def locality(self, volume: Volume) -> Locality:
        """Return the radius."""
        return Halo((5,) * volume.ndim)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Not needed for a picture of regions."""
        return block


def folding() -> str:
    """Draw the volumes of a chain, and in each the region that a patch of the last one needs."""
    stored = Volume(1, (96, 60), np.dtype("f4"), Geometry.from_parts(spacing=(0.7, 1.4), ndim=2))
    stages = [T.Permute("1|0"), T.ResampleToResolution([1, 1]), Smooth(), T.Standardize(), T.Padding([9, 9, 9, 9])]
    chain = resolve(stored, stages)
    regions = chain.fold(Region((0, 40), (36, 76)))
    volumes = [chain.stored, *(stage.after for stage in chain.stages)]
    scale, step, left, middle = 1.2, 172, 24, 150.0

    def parts() -> Iterator[str]:
        places = []
        for number, (volume, region) in enumerate(zip(volumes, regions, strict=True)):
            rows, columns = volume.shape
            centre = left + 60 + number * step
            x, y = centre - columns * scale / 2, middle - rows * scale / 2
            places.append((x, x + columns * scale))
            last = number == len(stages)
            yield box(x, y, columns * scale, rows * scale, VOLUME)
            if last:
                inner = Region((9, 9), (rows - 9, columns - 9))
                yield box(*of(inner, x, y, scale), edge=EDGE, extra='stroke-dasharray="3 3"')
            yield box(*of(region, x, y, scale), ASKED if last else READ, INK, 'fill-opacity="0.75"')
            if isinstance(chain.stages[min(number, len(stages) - 1)].transform, Smooth) and not last:
                yield box(*of(regions[number + 1], x, y, scale), edge=PAPER, extra='stroke-dasharray="3 3"')
            yield text(centre, 252, f"{rows} x {columns}", 12, fill=FAINT)
            yield text(centre, 272, spans(region), 13, font_weight="bold", fill="#b03a4b" if last else "#2f5c8a")
        for number in range(len(stages)):
            a, b = places[number][1] + 7, places[number + 1][0] - 7
            yield arrow((a, middle), (b, middle), INK)
        names = ["Permute", "Resample", "filter, radius 5", "Standardize", "Padding 9"]
        kinds = ["orientation", "rescale", "halo", "global statistic", "regrid"]
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            at = left + 60 + (number + 0.5) * step
            yield text(at, 30, name, 13, font_weight="bold")
            yield text(at, 47, kind, 12, fill=FAINT)
        yield text(left + 60, 38, "stored", 13, fill=FAINT)
        yield text(left + 60 + len(stages) * step, 38, "result", 13, fill=FAINT)
        far = left + 60 + len(stages) * step
        yield arrow((far, 300), (left + 60, 300), READ)
        yield text((left + 60 + far) / 2, 320, "fold, from the patch to the file: regions only", 13, fill="#2f5c8a")
        yield arrow((left + 60, 346), (far, 346), ASKED)
        words = "read that one region, run the stages over it: voxels"
        yield text((left + 60 + far) / 2, 366, words, 13, fill="#b03a4b")

    return picture(left * 2 + 120 + len(stages) * step, 384, parts())


# --- 2: maps of regions ----------------------------------------------------------------------------------------------------


def cells(x: float, y: float, values: np.ndarray, side: float, colours: dict[int, str]) -> Iterator[str]:
    """Draw an array as squares."""
    for (row, column), value in np.ndenumerate(values):
        yield box(x + column * side, y + row * side, side, side, colours[int(value)], "#c3ccd5")


def halo_map(x: float) -> Iterator[str]:
    """Draw a target near the border and what it reads."""
    side, shape = 13.0, (10, 9)
    target = Region((1, 3), (5, 7))
    source = Halo((2, 2)).pull(target, shape)
    plain = np.zeros(shape, int)
    yield text(x, 26, "Halo: grown by the radius", 14, "start", font_weight="bold")
    for at, region, colour, told in ((x, source, READ, "input"), (x + 165, target, ASKED, "output")):
        yield from cells(at, 64, plain, side, {0: VOLUME})
        yield box(*of(region, at, 64, side), colour, INK, 'fill-opacity="0.75"')
        yield text(at + 58, 56, told, 12, fill=FAINT)
        yield text(at + 58, 214, spans(region), 13, font_weight="bold")
    yield box(*of(target, x, 64, side), edge=PAPER, extra='stroke-dasharray="4 3" stroke-width="1.5"')
    yield arrow((x + 158, 129), (x + 124, 129), INK)
    yield text(x, 240, "Clamped where the volume ends, so that a filter", 12, "start", fill=FAINT)
    yield text(x, 256, "meets the true border there and nowhere else.", 12, "start", fill=FAINT)


def rescale_map(x: float) -> Iterator[str]:
    """Draw an axis of 8 voxels that becomes one of 12, and the weights of four of these."""
    width, n, m = 288.0, 8, 12
    target = Region((5,), (9,))
    source = Rescale((m,), linear=True).pull(target, (n,))
    yield text(x, 26, "Rescale: the voxels with a weight", 14, "start", font_weight="bold")
    yield text(x, 56, f"output, {m} voxels: {spans(target)}", 12, "start", fill=FAINT)
    yield text(x, 214, f"input, {n} voxels: {spans(source)}", 12, "start", fill=FAINT)
    for count, top, region, colour in ((m, 64, target, ASKED), (n, 166, source, READ)):
        side = width / count
        for index in range(count):
            chosen = region.start[0] <= index < region.stop[0]
            yield box(x + index * side, top, side, 28, colour if chosen else VOLUME, "#c3ccd5", 'fill-opacity="0.75"')
            yield text(x + (index + 0.5) * side, top + 18, str(index), 11, fill=PAPER if chosen else FAINT)
    for o in range(target.start[0], target.stop[0]):
        place = linear_coordinate(o, n, m)
        low, share = int(place), place - int(place)
        for index, weight in ((low, 1 - share), (low + 1, share)):
            if weight:
                a, b = (x + (o + 0.5) * width / m, 93), (x + (index + 0.5) * width / n, 165)
                yield line(a, b, INK, f'stroke-width="{0.4 + 2.6 * weight:.1f}"')
    yield text(x, 240, "(o + 0.5) n / m - 0.5 of the global index o, in float64:", 12, "start", fill=FAINT)
    yield text(x, 256, "the same weights for a patch as for the whole.", 12, "start", fill=FAINT)


def orientation_map(x: float) -> Iterator[str]:
    """Draw a letter that is turned, and a target with its source."""
    side = 13.0
    letter = np.zeros((10, 8), int)
    letter[1:9, 2] = letter[1, 2:7] = letter[4, 2:5] = 1
    order, mirrored = (1, 0), (False, True)
    turned = reordered(letter[None], order, mirrored)[0]
    target = Region((1, 4), (5, 9))
    source = T.Orientation(order, mirrored).pull(target, letter.shape)
    yield text(x, 26, "Orientation: exchanged, mirrored", 14, "start", font_weight="bold")
    for at, values, region, colour, told in (
        (x, letter, source, READ, "input"),
        (x + 150, turned, target, ASKED, "output"),
    ):
        rows, columns = values.shape
        top = 129 - rows * side / 2
        yield from cells(at, top, values, side, {0: VOLUME, 1: "#7d8894"})
        yield box(*of(region, at, top, side), colour, INK, 'fill-opacity="0.55"')
        yield text(at + columns * side / 2, 56, told, 12, fill=FAINT)
        yield text(at + columns * side / 2, 214, spans(region), 13, font_weight="bold")
    yield arrow((x + 145, 129), (x + 109, 129), INK)
    yield text(x, 240, "As many voxels, in another order. No value changes,", 12, "start", fill=FAINT)
    yield text(x, 256, "and no statistic does.", 12, "start", fill=FAINT)


def maps() -> str:
    """Draw three kinds side by side."""
    return picture(
        1030, 270, (part for made in (halo_map(20), rescale_map(355), orientation_map(705)) for part in made)
    )


# --- 3: statistics ---------------------------------------------------------------------------------------------------------


def statistics() -> str:
    """Draw a volume in its fixed blocks, and what becomes of them."""
    shape = (2300, 2700)
    blocks = list(statistic_blocks(1, shape))
    scale, x, y = 0.075, 24, 60

    def parts() -> Iterator[str]:
        yield text(x, 26, "Fixed blocks of the input", 14, "start", font_weight="bold")
        yield text(x, 46, "that its shape alone decides", 12, "start", fill=FAINT)
        for number, block in enumerate(blocks):
            left, top, width, height = of(block, x, y, scale)
            chosen = number == 4
            yield box(left, top, width, height, READ if chosen else VOLUME, EDGE, 'fill-opacity="0.75"')
            middle = left + width / 2, top + height / 2 + 5
            yield text(*middle, str(number + 1), 14, fill=PAPER if chosen else FAINT)
        yield from _one_block(262, 120)
        yield from _folded(510, 60, len(blocks))
        yield from _users(796, 60)

    return picture(1010, 268, parts())


def _one_block(x: float, y: float) -> Iterator[str]:
    yield text(x, 26, "Each block, one at a time", 14, "start", font_weight="bold")
    yield text(x, 46, "is a patch of the stages before", 12, "start", fill=FAINT)
    yield arrow((234, y + 22), (x - 4, y + 22), INK)
    for number, words in enumerate(("folded to a region", "read, stages run", "n, mean, sum of squares")):
        top = y - 52 + number * 52
        yield box(x, top, 196, 34, VOLUME, EDGE, 'rx="5"')
        yield text(x + 98, top + 22, words, 13)
        if number:
            yield arrow((x + 98, top - 17), (x + 98, top - 1), FAINT)
    yield text(x + 98, y + 112, "in float64; the block is let go", 12, fill=FAINT)


def _folded(x: float, y: float, count: int) -> Iterator[str]:
    yield text(x, 26, "Merged in their order", 14, "start", font_weight="bold")
    yield text(x, 46, "by one formula", 12, "start", fill=FAINT)
    yield arrow((462, 142), (x - 6, 142), INK)
    shown = ["1", "2", "3", "...", str(count)]
    for number, words in enumerate(shown):
        top = y + number * 37
        chosen = words == "..."
        yield text(x + 14, top + 17, words, 14 if not chosen else 16)
        yield arrow((x + 30, top + 12), (x + 66, top + 12), FAINT)
        yield box(x + 70, top, 150, 25, VOLUME, EDGE, 'rx="5"')
        told = {"1": "of block 1", "...": "..."}.get(words, f"of blocks 1 to {words}")
        yield text(x + 145, top + 17, told, 13, font_weight="bold" if number == len(shown) - 1 else "normal")
        if number:
            yield arrow((x + 145, top - 12), (x + 145, top - 1), INK)
    yield text(x + 145, y + 194, "one mean, one deviation", 12, fill=FAINT)


def _users(x: float, y: float) -> Iterator[str]:
    yield text(x, 26, "The same number", 14, "start", font_weight="bold")
    yield text(x, 46, "to the last bit, whoever asks", 12, "start", fill=FAINT)
    for number, words in enumerate(("a patch", "the whole volume", "a worker process", "the next epoch")):
        top = y + number * 47
        yield arrow((732, y + 160), (x - 4, top + 16), FAINT)
        yield box(x, top, 190, 32, "#fbe3e6", ASKED, 'rx="5"')
        yield text(x + 95, top + 21, words, 13)


PICTURES = {"folding.svg": folding, "maps.svg": maps, "statistics.svg": statistics}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pictures, or tell which differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file would change")
    check = parser.parse_args(arguments).check
    made = {HERE / name: draw() for name, draw in PICTURES.items()}
    changed = [path for path, new in made.items() if not path.exists() or path.read_text(encoding="utf-8") != new]
    for path in changed:
        print(f"{'differs from what is drawn' if check else 'written'}: {path.name}")
        if not check:
            path.write_text(made[path], encoding="utf-8", newline="\n")
    sys.exit(1 if check and changed else 0)


if __name__ == "__main__":
    main()
