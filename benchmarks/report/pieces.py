"""Which tables and pictures does the page show of each kind of measurement? One function per place of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import words
from words import spread, table

Kept = dict[str, Any]
NOT_MEASURED = "*Not measured: no results of this kind were kept.*"


def facts(kept: Kept) -> str:
    """Return the table of the machine and of what was run."""
    rows = []
    for kind, results in kept.items():
        machine = results["machine"]
        told = [machine.get("processor", ""), f"{machine['processors']} processors" if "processors" in machine else ""]
        if "memory_bytes" in machine:
            told.append(f"{machine['memory_bytes'] / 2**30:.0f} GiB")
        software = [f"{name} {machine[name]}" for name in ("python", "mlarray", "blosc2", "numpy") if name in machine]
        told = [one for one in told if one]
        rows.append([f"`{kind}.json`", ", ".join(told), machine["system"], ", ".join(software), _amount(kind, results)])
    versions = kept.get("peers", {}).get("versions", {})
    beside = ", ".join(f"{name} {number}" for name, number in versions.items())
    lines = [table(["Measurement", "Machine", "System", "Software", "Amount"], rows, numbers=False)]
    return "\n\n".join([*lines, *([f"Compared with: {beside}."] if beside else [])]) if rows else NOT_MEASURED


def opening(kept: Kept) -> str:
    """Return what opening costs."""
    peers = kept.get("peers", {})
    if not peers.get("opens"):
        return NOT_MEASURED
    names = sorted(peers["opens"], key=lambda name: float(peers["opens"][name]["median"]))
    rows = [[words.opener(name), spread(peers["opens"][name])] for name in names]
    return "\n\n".join(
        [
            "![Microseconds to open a file](performance/open.svg)",
            table(["Microseconds to open a file", "median (quartiles)"], rows),
            _bounds([row for row in peers["checks"] if row["check"].startswith("open")]),
        ]
    )


def warm(kept: Kept) -> str:
    """Return warm reads of all libraries, one table per patch."""
    peers = kept.get("peers", {})
    measured = [case for data in peers.get("reads", {}).values() for case in data.values()]
    if not any("over_memmap" in row for case in measured for row in case["rows"].values()):
        return NOT_MEASURED
    parts = ["![Warm reads as multiples of a copy out of a numpy memmap](performance/warm.svg)"]
    for case in _cases(peers):
        columns = [name for name in peers["reads"] if case in peers["reads"][name]]
        rows = []
        for name in _names(peers):
            found = [peers["reads"][column][case]["rows"].get(name, {}).get("over_memmap") for column in columns]
            rows.append([words.library(name), *(spread(one) if one else "" for one in found)])
        floor = [peers["reads"][column][case]["rows"].get("memmap") for column in columns]
        rows.append(
            ["*numpy memmap, milliseconds*", *(spread(one["milliseconds"]) if one else "" for one in floor)],
        )
        heads = [f"{words.case_of_run(case).capitalize()}, × numpy memmap", *map(words.data, columns)]
        parts.append(table(heads, rows))
    checks = [row for row in peers["checks"] if not row["check"].startswith("open") and "aligned" not in row["check"]]
    return "\n\n".join([*parts, _bounds(checks)])


def sizes(kept: Kept) -> str:
    """Return how large the files are that were read."""
    peers = kept.get("peers", {})
    if not peers.get("reads"):
        return NOT_MEASURED
    columns = [name for name in peers["reads"] if "128" in peers["reads"][name]]
    rows = []
    for name in _names(peers):
        found = [peers["reads"][column]["128"]["rows"].get(name, {}).get("megabytes") for column in columns]
        if any(found) and name not in words.READERS_ONLY:
            rows.append([words.library(name), *(words.number(one) if one else "" for one in found)])
    return table(["Size of the file, MB", *map(words.data, columns)], rows)


def sampling(kept: Kept) -> str:
    """Return what patches on the block grid gain."""
    rows = []
    for name, cases in kept.get("peers", {}).get("reads", {}).items():
        for case in cases.values():
            if "aligned_over_free" in case:
                over = [case["rows"][row].get("over_memmap") for row in ("ours small", "ours small aligned")]
                told = [spread(one) if one else "" for one in over]
                cells = [words.extent(case["grid"]), *told, spread(case["aligned_over_free"])]
                rows.append([f"{words.data(name)}, {words.case(case['patch'])}", *cells])
    if not rows:
        return NOT_MEASURED
    heads = ["small-blocks", "Grid", "anywhere, × memmap", "on the grid, × memmap", "on the grid / anywhere"]
    checks = [row for row in kept["peers"]["checks"] if "aligned" in row["check"]]
    return "\n\n".join([table(heads, rows), _bounds(checks)])


def cold(kept: Kept) -> str:
    """Return cold reads of every layout and place."""
    layouts = kept.get("cold", {}).get("layouts", {})
    if not layouts:
        return NOT_MEASURED
    parts = ["![Milliseconds per cold sample](performance/cold.svg)"]
    for layout, found in layouts.items():
        rows = []
        for name, place in found["places"].items():
            for count, one in place["cold"].items():
                told = [spread(one["milliseconds"][method]) for method in words.METHODS]
                rows.append(
                    [f"{words.place(name)}, {words.readers(count)}", *told, f"**{spread(one['plain_over_ours'])}**"]
                )
        heads = [f"Milliseconds per sample, {words.layout(layout)}", *words.METHODS.values(), "blosc2 / mlarray"]
        parts.append(table(heads, rows))
    methods = sorted({place["method"] for found in layouts.values() for place in found["places"].values()})
    checks = [
        {**row, "check": f"{row['check']}, {words.layout(layout)}"}
        for layout, found in layouts.items()
        for row in found["checks"]
        if row["check"].startswith("cold")
    ]
    used = ", ".join(f"`{method}`" for method in methods)
    return "\n\n".join([*parts, f"Method of read-ahead in use: {used}.", _bounds(checks)])


def prefetch(kept: Kept) -> str:
    """Return what a read costs that was announced before 50 ms of compute."""
    layouts = kept.get("cold", {}).get("layouts", {})
    if not layouts:
        return NOT_MEASURED
    rows = []
    for layout, found in layouts.items():
        for name, place in found["places"].items():
            one = place["announced"]
            times = [spread(one[f"{part}_milliseconds"]) for part in ("announce", "cold", "warm")]
            over = f"**{spread(one['cold_over_warm'])}**"
            rows.append([f"{words.place(name)}, {words.layout(layout)}", *times, over])
    heads = ["Milliseconds", "announcing", "announcing + cold read", "warm read", "cold / warm"]
    checks = [
        {**row, "check": f"{row['check']}, {words.layout(layout)}"}
        for layout, found in layouts.items()
        for row in found["checks"]
        if row["check"].startswith("announced")
    ]
    return "\n\n".join([table(heads, rows), _bounds(checks)])


def overhead(kept: Kept) -> str:
    """Return what read-ahead costs on warm data, and how it follows from cold to warm and back."""
    layouts = kept.get("cold", {}).get("layouts", {})
    if not layouts:
        return NOT_MEASURED
    rows = []
    for layout, found in layouts.items():
        for name, place in found["places"].items():
            for count, one in place["warm"].items():
                label = f"{words.place(name)}, {words.layout(layout)}, {words.readers(count)}"
                rows.append([label, spread(one["on_over_off"]), spread(one["off_over_off"])])
    checks = [
        {**row, "check": f"{row['check'].split(';')[0]}, {words.layout(layout)}"}
        for layout, found in layouts.items()
        for row in found["checks"]
        if row["check"].startswith("warm")
    ]
    parts = [table(["Warm samples", "on / off", "off / off"], rows), _bounds(checks)]
    return "\n\n".join([*parts, "![Samples from cold to warm and back](performance/switching.svg)"])


def writing(kept: Kept) -> str:
    """Return rates of writing."""
    results = kept.get("writing", {})
    if not results:
        return NOT_MEASURED
    rows = []
    for name, layouts in results["writes"].items():
        for layout, found in layouts.items():
            for way, rate in found["rates"].items():
                file = found["files"][way]
                label = f"{words.data(name)}, {words.layout(layout)}, {words.WAYS.get(way, way)}"
                over = "" if way == "at once" else f"**{spread(found['over_at_once'][way])}**"
                rows.append(
                    [label, spread(rate), over, words.number(file["bytes"] / 1e6), words.extent(file["chunks"])]
                )
    heads = ["", "MiB of voxels per second", "rate / at once", "MB", "chunks"]
    return "\n\n".join(
        [
            "![Rates of writing](performance/writing.svg)",
            table(heads, rows),
            _bounds(results["checks"]),
        ]
    )


def scaling(kept: Kept) -> str:
    """Return rates of several readers, each with one decompression thread."""
    results = kept.get("scaling", {})
    if not results:
        return NOT_MEASURED
    chosen = [one["name"] for one in results["arrangements"] if one["decoding"] == 1]
    return "\n\n".join(
        ["![Rates of several readers](performance/scaling.svg)", _arrangements(results, chosen)],
    )


def decompression(kept: Kept) -> str:
    """Return rates with two decompression threads per reader beside those with one."""
    results = kept.get("scaling", {})
    if not results:
        return NOT_MEASURED
    chosen = [one["name"] for one in results["arrangements"] if one["threads"] == 1]
    return _arrangements(results, chosen)


def bench(kept: Kept) -> str:
    """Return what ``mla bench`` measured."""
    runs = kept.get("bench", {}).get("runs", {})
    if not runs:
        return NOT_MEASURED
    parts = ["![Read times of the candidates of mla bench, relative to the default](performance/bench.svg)"]
    for run in runs.values():
        modes = [mode["key"] for mode in run["modes"]]
        rows = []
        for name, one in run["candidates"].items():
            times = [spread(one["over_default"][mode]) if mode in one["over_default"] else "" for mode in modes]
            mark = f"**{name}**" if name == run["recommendation"]["name"] else name
            total = spread(one["over_default"]["total"]) if "total" in one["over_default"] else ""
            rows.append([mark, words.number(one["megabytes"]), words.number(one["write_seconds"]), total, *times])
        what = f"{', '.join(run['volumes'])} ({run['dtype']}, {words.extent(run['shape'])}), patch {run['patch_size']}"
        heads = [what, "MB", "write, s", "all, × default", *(f"{words.mode(mode)}, × default" for mode in modes)]
        advice = run["recommendation"]
        told = "keep the default" if advice["keep_default"] else advice["name"]
        parts += [table(heads, rows), f"Recommended after {run['seconds']:.0f} s: {told}. {advice['reason']}"]
    return "\n\n".join(parts)


def missed(kept: Kept) -> str:
    """Return every bound that was not kept."""
    rows = [(kind, row) for kind, row in _all_checks(kept)]
    if not rows:
        return NOT_MEASURED
    lost = [row for row in rows if not row[1]["kept"]]
    told = f"{len(rows) - len(lost)} of {len(rows)} bounds were kept."
    if not lost:
        return told
    return "\n\n".join([told, _bound_table([row for _, row in lost])])


PIECES: dict[str, Callable[[Kept], str]] = {
    "facts": facts,
    "open": opening,
    "warm": warm,
    "sizes": sizes,
    "sampling": sampling,
    "cold": cold,
    "prefetch": prefetch,
    "overhead": overhead,
    "writing": writing,
    "scaling": scaling,
    "decompression": decompression,
    "bench": bench,
    "missed": missed,
}


def _all_checks(kept: Kept) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, results in kept.items():
        yield from ((kind, row) for row in results.get("checks", ()))
        for layout, found in results.get("layouts", {}).items():
            told = words.layout(layout)
            yield from ((kind, {**row, "check": f"{row['check']}, {told}"}) for row in found["checks"])


def _bounds(rows: list[dict[str, Any]]) -> str:
    """Return the bounds of a section, folded away."""
    if not rows:
        return "No bound was checked."
    kept = sum(bool(row["kept"]) for row in rows)
    summary = f"<details><summary>{kept} of {len(rows)} bounds kept</summary>"
    return "\n\n".join([summary, _bound_table(rows), "</details>"])


def _bound_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        [row["check"].replace("|", "/"), spread(row), _bound(row), "kept" if row["kept"] else "**missed**"]
        for row in rows
    ]
    return table(["Bound", "measured", "bound", ""], lines)


def _bound(row: dict[str, Any]) -> str:
    if not isinstance(row["bound"], str):
        # A bare number: on which side of it the median may be follows from the verdict.
        return f"{'≤' if (row['median'] <= row['bound']) is row['kept'] else '≥'} {row['bound']}"
    return str(row["bound"]).replace(">=", "≥").replace("<=", "≤")


def _arrangements(results: dict[str, Any], chosen: list[str]) -> str:
    names = list(results["reads"])
    rows = [
        [name, *(cell for data in names for cell in _rate(results["reads"][data], name))]
        for name in chosen
        if all(name in results["reads"][data]["per_second"] for data in names)
    ]
    heads = ["", *(cell for data in names for cell in (f"{words.data(data)}, patches per second", "× one reader"))]
    return table(heads, rows)


def _rate(found: dict[str, Any], name: str) -> tuple[str, str]:
    return spread(found["per_second"][name]), f"**{spread(found['over_one'][name])}**"


def _amount(kind: str, results: dict[str, Any]) -> str:
    if kind == "peers":
        return f"{words.extent(results['shape'])} voxels, {results.get('rounds', 0)} rounds"
    if kind == "cold":
        found = [
            f"{words.layout(name)}: {words.extent(one['shape'])} voxels, "
            f"{max(place['rounds'] for place in one['places'].values())} rounds"
            for name, one in results["layouts"].items()
            if one["places"]
        ]
        return "; ".join(found)
    if kind == "bench":
        return "; ".join(
            f"{one['seconds']:.0f} s, {words.extent(one['shape'])} voxels" for one in results["runs"].values()
        )
    return f"{words.extent(results['shape'])} voxels, {results['rounds']} rounds"


def _cases(peers: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(case for cases in peers["reads"].values() for case in cases))


def _names(peers: dict[str, Any]) -> list[str]:
    """Return the rows of the tables, in the order they were measured in, without the floor and what reads on a grid."""
    found = dict.fromkeys(name for cases in peers["reads"].values() for case in cases.values() for name in case["rows"])
    return [name for name in found if "aligned" not in name and name != "memmap"]
