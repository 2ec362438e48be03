"""What of the measurements is kept beside the page? Medians, quartiles, ratios and the machine; neither single times nor paths.

A file is recognised by what it holds, not by its name. Several files of one kind are joined: data sets and cases of ``peers.py``,
layouts and places of ``cold.py``, runs of ``mla bench``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "compare"))

from spreads import quartiles, ratio

KINDS = ("peers", "cold", "writing", "scaling", "bench")
SHOWN_PACKAGES = (
    "mlarray", "blosc2", "numpy", "nnunetv2", "zarr", "zarrs", "tensorstore", "h5py", "hdf5plugin", "nibabel", "SimpleITK",
)  # fmt: skip
_DIGITS = 4


def kind_of(results: Mapping[str, Any]) -> str:
    """Return the kind of a file of results, or an empty text."""
    if "opens" in results:
        return "peers"
    if "places" in results:
        return "cold"
    if "recommendation" in results and "candidates" in results:
        return "bench"
    kind = str(results.get("kind", ""))
    return kind if kind in KINDS else ""


def condensed(folder: Path) -> dict[str, Any]:
    """Return what is kept of all files of a folder, by kind; kinds that were not measured are absent."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            results = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise SystemExit(f"{path} is not JSON: {error}. Was the measurement stopped?") from error
        kind = kind_of(results) if isinstance(results, dict) else ""
        if kind:
            found.setdefault(kind, {})[path.stem] = results
    makers = {"peers": _peers, "cold": _cold, "writing": _writing, "scaling": _scaling, "bench": _bench}
    return {kind: _rounded(makers[kind](files)) for kind, files in found.items()}


def _peers(files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    kept: dict[str, Any] = {"reads": {}, "opens": {}, "checks": []}
    for results in files.values():
        for data, cases in results["reads"].items():
            for case, measured in cases.items():
                kept["reads"].setdefault(data, {})[case] = _reads(measured)
        if results["opens"]:
            kept["opens"] = {name: _scaled(times, 1e6) for name, times in results["opens"].items()}
            kept["rounds"] = len(next(iter(results["opens"].values())))
        kept["checks"] = _joined(kept["checks"], results["checks"])
        kept |= {"shape": results["shape"], "machine": _machine(results), "versions": _versions(results)}
    return kept


def _reads(measured: Mapping[str, Any]) -> dict[str, Any]:
    seconds = measured["seconds"]
    rows = {}
    for name, times in seconds.items():
        floor = seconds.get("memmap aligned" if "aligned" in name else "memmap")
        row: dict[str, Any] = {"milliseconds": _scaled(times, 1e3)}
        if floor:
            row["over_memmap"] = ratio(times, floor)
        if name in measured["files"]:
            row["megabytes"] = measured["files"][name]["bytes"] / 1e6
        rows[name] = row
    kept = {"patch": measured["patch"], "rounds": len(next(iter(seconds.values()))), "rows": rows}
    if {"ours small", "ours small aligned"} <= seconds.keys():
        kept["aligned_over_free"] = ratio(seconds["ours small aligned"], seconds["ours small"])
        kept["grid"] = measured["grid"]
    return kept


def _cold(files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    layouts: dict[str, Any] = {}
    kept: dict[str, Any] = {"layouts": layouts}
    for results in files.values():
        kept["machine"] = _machine(results)
        if not results["places"]:  # only slow places were asked for, where FUSE is not to be had
            continue
        layout = layouts.setdefault(results["layout"], {"places": {}, "checks": []})
        layout["shape"] = results["shape"]
        layout["places"] |= {name: _place(found) for name, found in results["places"].items()}
        layout["checks"] = _joined(layout["checks"], results["checks"])
    return kept


def _place(found: Mapping[str, Any]) -> dict[str, Any]:
    status = str(found["status"]["status"])
    method = re.search(r"method='([^']*)'", status)
    cold, announced, warm = found["cold"], found["announced"], found["warm"]
    return {
        "method": method[1] if method else status,
        "rounds": len(announced["cold"]),
        "cold": {
            readers: {
                "milliseconds": {name: _scaled(values, 1e3) for name, values in times.items()},
                "plain_over_ours": cold["plain_over_ours"][readers],
            }
            for readers, times in cold["seconds"].items()
        },
        "announced": {
            **{f"{name}_milliseconds": _scaled(announced[name], 1e3) for name in ("cold", "announce", "warm")},
            "cold_over_warm": announced["cold_over_warm"],
        },
        "warm": {
            readers: {"on_over_off": warm["on_over_off"][readers], "off_over_off": warm["noise"][readers]}
            for readers in warm["on_over_off"]
        },
        "switching_milliseconds": {
            method: {phase: [value * 1e3 for value in values] for phase, values in phases.items()}
            for method, phases in found["switching"].items()
        },
    }


def _writing(files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    kept: dict[str, Any] = {"writes": {}, "checks": []}
    for results in files.values():
        for data, layouts in results["writes"].items():
            for layout, found in layouts.items():
                wanted = ("rates", "over_at_once", "files")
                kept["writes"].setdefault(data, {})[layout] = {name: found[name] for name in wanted}
        kept["checks"] = _joined(kept["checks"], results["checks"])
        kept |= {name: results[name] for name in ("shape", "patch", "planes", "rounds")}
        kept["machine"] = _machine(results)
    return kept


def _scaling(files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    kept: dict[str, Any] = {"reads": {}}
    for results in files.values():
        for data, found in results["reads"].items():
            kept["reads"][data] = {name: found[name] for name in ("per_second", "over_one")}
        kept |= {name: results[name] for name in ("shape", "patch", "rounds", "arrangements")}
        kept["machine"] = _machine(results)
    return kept


def _bench(files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    kept: dict[str, Any] = {"runs": {}}
    for name, results in files.items():
        candidates = {
            one["name"]: {
                "megabytes": one["bytes"] / 1e6,
                "write_seconds": one["write_seconds"],
                "milliseconds": {mode: _times(spread, 1e3) for mode, spread in one["reads"].items()},
                "over_default": {mode: _times(spread, 1) for mode, spread in one["over_default"].items()},
                "default": one["default"],
            }
            for one in results["candidates"]
        }
        advice = results["recommendation"]
        kept["runs"][name] = {
            "volumes": [Path(volume["name"]).name for volume in results["data"]["volumes"]],
            "shape": results["data"]["volumes"][0]["shape"],
            "dtype": results["data"]["dtype"],
            "patch_size": results["data"]["patch_size"],
            "seconds": results["seconds"],
            "modes": results["modes"],
            "candidates": candidates,
            "recommendation": {name: advice[name] for name in ("name", "keep_default", "reason")},
        }
        kept["machine"] = _machine(results)
    return kept


def _joined(rows: list[dict[str, Any]], more: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of bounds; a later one of the same check replaces the earlier."""
    # What a check has beside its name is told after a semicolon and differs between runs.
    by_name = {str(row["check"]).split(";")[0]: row for row in rows}
    return list((by_name | {str(row["check"]).split(";")[0]: row for row in more}).values())


def _machine(results: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("system", "processor", "processors", "memory_bytes", "python", "mlarray", "blosc2", "numpy")
    return {name: results["machine"][name] for name in wanted if name in results["machine"]}


def _versions(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the libraries that are compared, each from the first environment that has it."""
    found: dict[str, str] = {}
    for environment, packages in results.get("versions", {}).items():
        lowered = {name.lower(): number for name, number in packages.items()}
        for name in SHOWN_PACKAGES:
            if name.lower() in lowered:
                if name == "mlarray" and environment == "mla54":
                    continue
                found.setdefault(name, lowered[name.lower()])
    return dict(sorted(found.items(), key=lambda entry: entry[0].lower()))


def _scaled(values: Iterable[float], factor: float) -> dict[str, float]:
    return quartiles([value * factor for value in values])


def _times(spread: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: spread[name] * factor for name in ("median", "low", "high")}


def _rounded(value: Any) -> Any:
    """Return a value with its fractions cut to four digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return value
