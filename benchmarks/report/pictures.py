"""Which pictures are drawn of each kind of measurement? Names of files and the text of each."""

from __future__ import annotations

from typing import Any

import words
from charts import Dot, Dots, Lines, dots_picture, linear, lines_picture, logarithmic

Kept = dict[str, Any]
_OURS = ("ours", "ours small", "ours small x[s]")
_PANELS = 4  # of the picture of candidates: one reader and several, warm and cold


def pictures_of(kept: Kept) -> dict[str, str]:
    """Return the text of every picture by the name of its file; of kinds that were not measured there is none."""
    found: dict[str, str] = {}
    peers, cold = kept.get("peers", {}), kept.get("cold", {})
    if peers.get("opens"):
        found["open.svg"] = _opening(peers)
    cases = [case for data in peers.get("reads", {}).values() for case in data.values()]
    if any("over_memmap" in row for case in cases for row in case["rows"].values()):
        found["warm.svg"] = _warm(peers)
    if cold.get("layouts"):
        found["cold.svg"] = _cold(cold)
        found["switching.svg"] = _switching(cold)
    if "writing" in kept:
        found["writing.svg"] = _writing(kept["writing"])
    if "scaling" in kept:
        found["scaling.svg"] = _scaling(kept["scaling"])
    if kept.get("bench", {}).get("runs"):
        found["bench.svg"] = _bench(kept["bench"])
    return found


def _opening(peers: dict[str, Any]) -> str:
    names = sorted(peers["opens"], key=lambda name: float(peers["opens"][name]["median"]))
    dots = {words.opener(name): _dot(peers["opens"][name]) for name in names}
    ours = frozenset(words.opener(name) for name in names if name in _OURS)
    panel = Dots("Opening a file", list(dots), (("", dots),), ours)
    return dots_picture([panel], "microseconds", columns=1)


def _warm(peers: dict[str, Any]) -> str:
    panels = []
    cases = list(dict.fromkeys(case for one in peers["reads"].values() for case in one))
    for data, measured in peers["reads"].items():
        names = [
            name
            for name in dict.fromkeys(name for case in measured.values() for name in case["rows"])
            if name != "memmap" and "aligned" not in name
        ]
        series = []
        for case in cases:
            rows = measured[case]["rows"] if case in measured else {}
            over = {
                words.library(name): rows[name]["over_memmap"] for name in names if "over_memmap" in rows.get(name, {})
            }
            series.append((words.case_of_run(case), {name: _dot(one) for name, one in over.items()}))
        panels.append(Dots(words.data(data), [words.library(name) for name in names], series, _ours(names)))
    return dots_picture(panels, "time, × a copy out of a numpy memmap", mark=1.0)


def _cold(cold: dict[str, Any]) -> str:
    panels = []
    for layout, found in cold["layouts"].items():
        counts = list(dict.fromkeys(count for place in found["places"].values() for count in place["cold"]))
        for count in counts:
            series = [
                (
                    title,
                    {
                        words.place(name): _dot(place["cold"][count]["milliseconds"][method])
                        for name, place in found["places"].items()
                    },
                )
                for method, title in words.METHODS.items()
            ]
            rows = [words.place(name) for name in found["places"]]
            panels.append(Dots(f"{words.layout(layout)}, {words.readers(count)}", rows, series))
    return dots_picture(panels, "milliseconds per cold sample")


def _switching(cold: dict[str, Any]) -> str:
    found = cold["layouts"].get("nnunet") or next(iter(cold["layouts"].values()))
    panels = []
    usual = [name for name in found["places"] if not name.endswith("-10")]
    for name in usual or found["places"]:
        place = found["places"][name]
        phases = place["switching_milliseconds"]
        series = [
            (words.METHODS[method], [value for values in phases[method].values() for value in values])
            for method in ("ours", "off")
        ]
        spans = [(phase, len(values)) for phase, values in phases["ours"].items()]
        steps = [str(number) for number in range(1, len(series[0][1]) + 1)]
        panels.append(Lines(words.place(name), steps, series, spans))
    return lines_picture(panels, "milliseconds per sample", "samples one after the other", scale=logarithmic, columns=3)


def _writing(results: dict[str, Any]) -> str:
    panels = []
    for data, layouts in results["writes"].items():
        ways = list(next(iter(layouts.values()))["rates"])
        rows = [words.WAYS.get(way, way) for way in ways]
        series = [
            (words.layout(layout), {words.WAYS.get(way, way): _dot(found["rates"][way]) for way in ways})
            for layout, found in layouts.items()
        ]
        panels.append(Dots(words.data(data), rows, series))
    return dots_picture(panels, "MiB of voxels per second", scale=linear)


def _scaling(results: dict[str, Any]) -> str:
    counts = sorted({one["processes"] * one["threads"] for one in results["arrangements"]})
    panels = []
    for data, found in results["reads"].items():
        series = []
        for title, kind, decoding in (
            ("processes", "processes", 1),
            ("threads", "threads", 1),
            ("processes, 2 decompression threads each", "processes", 2),
        ):
            values: dict[int, float] = {}
            for one in results["arrangements"]:
                other = one["threads"] if kind == "processes" else one["processes"]
                if other == 1 and one["decoding"] == decoding and one["name"] in found["over_one"]:
                    values[one["processes"] * one["threads"]] = found["over_one"][one["name"]]["median"]
            series.append((title, [values.get(count) for count in counts]))
        panels.append(Lines(words.data(data), [str(count) for count in counts], series))
    return lines_picture(panels, "patches per second, × one reader", "readers at once", mark=1.0)


def _bench(results: dict[str, Any]) -> str:
    panels = []
    for run in results["runs"].values():
        rows = {
            name: f"{'default: ' if one['default'] else ''}{name}, {words.number(one['megabytes'])} MB"
            for name, one in run["candidates"].items()
        }
        marked = frozenset(rows[name] for name in rows if name == run["recommendation"]["name"])
        series = [
            (
                words.mode(mode["key"]),
                {
                    rows[name]: _dot(one["over_default"][mode["key"]])
                    for name, one in run["candidates"].items()
                    if mode["key"] in one["over_default"]
                },
            )
            for mode in run["modes"][:_PANELS]
        ]
        panels.append(Dots(f"{', '.join(run['volumes'])}, {run['dtype']}", list(rows.values()), series, marked))
    return dots_picture(panels, "time per patch, × the default", scale=linear, mark=1.0)


def _dot(one: dict[str, float]) -> Dot:
    return Dot(one["median"], one["low"], one["high"])


def _ours(names: list[str]) -> frozenset[str]:
    return frozenset(words.library(name) for name in names if name in _OURS)
