"""Which setting is best, and is it better than the default by more than chance?

The rule. In every round a candidate's time is divided by the default's, for each way of reading (warm, cold, one reader,
several); of these ratios the median and the quartiles count, and their geometric means over the ways of reading sum a
candidate up. Another setting than the default is recommended when

1. there were at least five rounds;
2. its median is at most 0.95 and its upper quartile below 1;
3. no way of reading is slower by more than 5 % with a lower quartile above 1;
4. its files are at most 10 % larger;
5. the same holds (2 and 3) for new patches, measured once more against the default alone: of a dozen candidates the best of one
   measurement is partly the luckiest.

Among several, those whose median is below the best one's upper quartile count as equal: the one that changes least wins, then
the one that stands first, which puts layouts that have a name before numbers. Times to write do not take part: a file is
written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlarray_convert.bench.candidates import Candidate
from mlarray_convert.bench.measure import FEWEST_ROUNDS, Rounds, Stored

BETTER, SLOWER, LARGER = 0.95, 1.05, 1.10


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles.

    Examples
    --------
    >>> spread_of([3, 1, 2, 4, 5])
    Spread(median=3.0, low=2.0, high=4.0, count=5)
    """

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against the default.

    Parameters
    ----------
    ratios : mapping
        Of the key of a mode to the spread of time / default's time over the rounds.
    total : Spread
        Geometric means over the modes; its count is the smallest of theirs.
    """

    ratios: Mapping[str, Spread]
    total: Spread

    @property
    def is_faster(self) -> bool:
        """Whether conditions 1, 2 and 3 of the rule hold."""
        total = self.total
        slower = any(one.low > 1 and one.median > SLOWER for one in self.ratios.values())
        return total.count >= FEWEST_ROUNDS and total.median <= BETTER and total.high < 1 and not slower


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do.

    Parameters
    ----------
    name : str
        Of the candidate; the default's for "keep the default".
    keep_default : bool
        Whether it is the default.
    reason : str
        With the numbers.
    python, command : str
        The exact arguments, for Python and for the command line; no command where it has no option for them.
    """

    name: str
    keep_default: bool
    reason: str
    python: str
    command: str


def spread_of(values: Sequence[float]) -> Spread:
    """Return median and quartiles (linear between neighbours, as numpy's default)."""
    ordered = sorted(values)

    def quantile(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))

    return Spread(quantile(0.5), quantile(0.25), quantile(0.75), len(ordered))


def compare(name: str, default: str, measured: Iterable[Rounds]) -> Comparison | None:
    """Compare a candidate with the default over all modes, or return None where it lacks one of them."""
    ratios: dict[str, Spread] = {}
    for rounds in measured:
        for mode, times in rounds.seconds.items():
            if name not in times:
                return None
            ratios[mode] = spread_of([a / b for a, b in zip(times[name], times[default], strict=True)])
    if not ratios:
        return None
    median, low, high = (
        math.exp(sum(math.log(getattr(one, part)) for one in ratios.values()) / len(ratios))
        for part in ("median", "low", "high")
    )
    return Comparison(ratios, Spread(median, low, high, min(one.count for one in ratios.values())))


def best_candidate(stored: Sequence[Stored], measured: Sequence[Rounds]) -> Stored | None:
    """Return the candidate that conditions 1 to 4 leave, or None where the default is to be kept.

    Parameters
    ----------
    stored : sequence of Stored
        The default first.
    measured : sequence of Rounds
        Warm, and cold where that was possible.
    """
    default, *others = stored
    faster = []
    for one in others:
        comparison = compare(one.candidate.name, default.candidate.name, measured)
        if comparison and comparison.is_faster and one.stored_bytes <= LARGER * default.stored_bytes:
            faster.append((comparison.total, one))
    if not faster:
        return None
    limit = min(faster, key=lambda pair: pair[0].median)[0].high
    equal = [pair for pair in faster if pair[0].median <= limit]
    return min(equal, key=lambda pair: pair[1].candidate.changes)[1]


def recommend(
    stored: Sequence[Stored], chosen: Stored | None, first: Sequence[Rounds], second: Sequence[Rounds]
) -> Recommendation:
    """Turn two measurements into one setting.

    Parameters
    ----------
    stored : sequence of Stored
        The default first.
    chosen : Stored or None
        What :func:`best_candidate` found in the first measurement.
    first, second : sequence of Rounds
        Of all candidates, and of the chosen one and the default on new patches.
    """
    default = stored[0]
    if chosen is None:
        return _kept(default, _why_none(stored, first))
    before = compare(chosen.candidate.name, default.candidate.name, first)
    again = compare(chosen.candidate.name, default.candidate.name, second)
    assert before is not None
    if again is None or not again.is_faster:
        told = "no time was left to confirm it" if again is None else f"{_times(again.total)} on new patches"
        return _kept(default, f"{chosen.candidate.name} took {_times(before.total)} of the default's time, but {told}.")
    size = chosen.stored_bytes / default.stored_bytes
    reason = (
        f"It reads in {_times(before.total)} of the default's time, in {_times(again.total)} on new patches, "
        f"and its files have {size:.2f} of the default's size."
    )
    return Recommendation(
        name=chosen.candidate.name,
        keep_default=False,
        reason=reason,
        python=python_text(chosen.candidate),
        command=command_text(chosen.candidate),
    )


def python_text(candidate: Candidate) -> str:
    """Return the call that stores an array like a candidate.

    Examples
    --------
    >>> from mlarray_convert.bench.candidates import DEFAULT_CODEC
    >>> python_text(Candidate("x", "nnunet", DEFAULT_CODEC, "auto", {"patch_size": 128}))
    'MLArray(array, patch_size=128)'
    """
    return _call("MLArray", "array", _needed(candidate))


def command_text(candidate: Candidate) -> str:
    """Return how a data set is converted like a candidate: a command, or the Python function where no option does it.

    Examples
    --------
    >>> from mlarray_convert.bench.candidates import DEFAULT_CODEC
    >>> command_text(Candidate("x", "nnunet", DEFAULT_CODEC, "auto", {"patch_size": (64, 192, 192)}))
    'mla convert DATASET --patch-size 64,192,192'
    """
    storage = _needed(candidate)
    # What convert and its command have an option for; patch_size=None, blosc2's own choice, is none of them.
    direct = {name: storage.pop(name) for name in ("patch_size", "layout") if storage.get(name) is not None}
    if storage:
        return _call("mlarray_convert.convert", "'DATASET'", {**direct, "storage": storage})
    return " ".join(("mla convert DATASET", *(f"--{name.replace('_', '-')} {_word(direct[name])}" for name in direct)))


def _needed(candidate: Candidate) -> dict[str, object]:
    """Return the arguments without the patch size that holds anyway."""
    return {name: value for name, value in candidate.arguments.items() if (name, value) != ("patch_size", "default")}


def _call(function: str, subject: str, arguments: Mapping[str, object]) -> str:
    return f"{function}({', '.join((subject, *(f'{name}={value!r}' for name, value in arguments.items())))})"


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, Iterable) and not isinstance(value, str) else str(value)


def _kept(default: Stored, reason: str) -> Recommendation:
    candidate = default.candidate
    return Recommendation(
        name=candidate.name,
        keep_default=True,
        reason=reason,
        python=python_text(candidate),
        command=command_text(candidate),
    )


def _why_none(stored: Sequence[Stored], measured: Sequence[Rounds]) -> str:
    default, *others = stored
    compared = [
        (comparison, one)
        for one in others
        if (comparison := compare(one.candidate.name, default.candidate.name, measured)) is not None
    ]
    if not compared:
        return "There was no time to compare it with another setting; give more --seconds."
    best, one = min(compared, key=lambda pair: pair[0].total.median)
    told = f"The fastest other setting, {one.candidate.name}, took {_times(best.total)} of the default's time"
    if best.total.count < FEWEST_ROUNDS:
        return f"{told} in {best.total.count} rounds, too few to tell; give more --seconds."
    size = one.stored_bytes / default.stored_bytes
    if best.is_faster and size > LARGER:
        return f"{told}, but its files are {size:.2f} times as large; nothing of about the default's size was clearly faster."
    return f"{told}: not clearly faster in every way of reading."


def _times(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"
