"""What does a stream say about itself? The decision, and per group how its patches are read and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mlarray.streaming.regimes import CaseRegime

if TYPE_CHECKING:
    from mlarray.streaming.patch_stream import PatchStream


def explained(stream: PatchStream) -> str:
    """Return the explanation of a stream as text, at most 80 characters wide but for tables."""
    lines = [stream.cases.told, _amount(stream), stream.decision.line]
    for group in stream.chains:
        lines += ["", _group(stream, group)]
    return "\n".join(lines)


def _amount(stream: PatchStream) -> str:
    size = " x ".join(str(n) if n else "free" for n in stream.patch_size)
    ranks = f" on each of {stream.rank.world_size} ranks" if stream.rank.world_size > 1 else ""
    copies = f", each with {stream.copies - 1} copies" if stream.copies > 1 else ""
    return (
        f"{len(stream.cases.cases)} cases{copies}: {stream.patches:,} patches of {size} in an epoch, "
        f"{len(stream):,} batches of {stream.batch_size}{ranks}."
    )


def _group(stream: PatchStream, group: str) -> str:
    """Say how many copies of cases take which way, and show the plan of one of each."""
    ways: Counter[CaseRegime] = Counter()
    examples: dict[CaseRegime, tuple[int, int]] = {}
    for number, case in enumerate(stream.cases.cases):
        for copy in range(stream.copies):
            way = stream.decision.of(case.name, copy, group)
            ways[way] += 1
            examples.setdefault(way, (number, copy))
    counted = ", ".join(f"{count} {way}" for way, count in ways.items())
    parts = [f"{group}: {counted}"]
    for way, (number, copy) in examples.items():
        plan = stream.plan_as_judged(number, group, copy)
        if way is not CaseRegime.CACHE and not plan.source.in_parts:
            parts.append("  Its files cannot be read in parts; `mla convert` makes files that can.")
        parts.append(str(plan.explain()))
    return "\n".join(parts)
