"""What came out of a benchmark, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlarray_convert.bench.measure import FLOOR, Mode, Rounds, Stored
from mlarray_convert.bench.recommend import Comparison, Recommendation, Spread, compare, spread_of

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What was measured, and what to do.

    Parameters
    ----------
    data : mapping
        What was read: names, shape, dtype, bytes, patch extent.
    machine : mapping
        Where: processors, system, versions, folder.
    stored : tuple of Stored
        Every candidate that was written, the default first.
    modes : tuple of Mode
        The ways of reading that were measured.
    first : tuple of Rounds
        All candidates and the floor: warm, then cold.
    second : tuple of Rounds
        The confirmation: the chosen candidate and the default on new patches; empty where there was nothing to confirm.
    recommendation : Recommendation
        One setting.
    notes : tuple of str
        What was cut, left out or could not be measured.
    seconds : float
        Time taken.
    """

    data: Mapping[str, object]
    machine: Mapping[str, object]
    stored: tuple[Stored, ...]
    modes: tuple[Mode, ...]
    first: tuple[Rounds, ...]
    second: tuple[Rounds, ...]
    recommendation: Recommendation
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the uncompressed voxels."""
        return int(str(self.data["bytes"]))

    def spread(self, name: str, mode: Mode) -> Spread | None:
        """Return the seconds per patch of a candidate or the floor, or None where it was not measured so."""
        for rounds in self.first:
            values = rounds.seconds.get(mode.key, {}).get(name)
            if values:
                return spread_of(values)
        return None

    def comparison(self, name: str) -> Comparison | None:
        """Return a candidate against the default, or None where it lacks a mode."""
        return compare(name, self.stored[0].candidate.name, self.first)

    def to_json(self) -> dict[str, object]:
        """Return everything as plain values, every single measurement included."""
        return {
            "format_version": FORMAT_VERSION,
            "data": dict(self.data),
            "machine": dict(self.machine),
            "modes": [{"key": mode.key, "cold": mode.cold, "readers": mode.readers} for mode in self.modes],
            "candidates": [self._candidate(one) for one in self.stored],
            "floor": {"name": FLOOR, "bytes": self.raw_bytes, "reads": self._reads(FLOOR)},
            "rounds": [_rounds(rounds) for rounds in self.first],
            "confirmation": [_rounds(rounds) for rounds in self.second],
            "recommendation": {
                "name": self.recommendation.name,
                "keep_default": self.recommendation.keep_default,
                "reason": self.recommendation.reason,
                "python": self.recommendation.python,
                "command": self.recommendation.command,
            },
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }

    def _candidate(self, one: Stored) -> dict[str, object]:
        comparison = self.comparison(one.candidate.name)
        return {
            "name": one.candidate.name,
            "default": one.candidate.is_default,
            "layout": one.candidate.layout,
            "codec": str(one.candidate.codec),
            "filter": one.candidate.filter,
            "arguments": {name: _plain(value) for name, value in one.candidate.arguments.items()},
            "chunks": list(one.chunks),
            "blocks": list(one.blocks),
            "filters": list(one.filters),
            "bytes": one.stored_bytes,
            "ratio": self.raw_bytes / one.stored_bytes,
            "write_seconds": one.write_seconds,
            "reads": self._reads(one.candidate.name),
            "over_default": None
            if comparison is None
            else {
                "total": _spread(comparison.total),
                **{mode: _spread(ratio) for mode, ratio in comparison.ratios.items()},
            },
        }

    def _reads(self, name: str) -> dict[str, object]:
        found = {mode.key: self.spread(name, mode) for mode in self.modes}
        return {key: _spread(spread) for key, spread in found.items() if spread is not None}


def _spread(spread: Spread) -> dict[str, object]:
    return {"median": spread.median, "low": spread.low, "high": spread.high, "rounds": spread.count}


def _rounds(rounds: Rounds) -> dict[str, object]:
    return {
        "seconds_per_patch": {
            mode: {name: list(values) for name, values in times.items()} for mode, times in rounds.seconds.items()
        },
        "patches_per_reader": dict(rounds.patches),
        "left_out": list(rounds.dropped),
    }


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
