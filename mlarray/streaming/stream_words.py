"""What does a stream say about itself? The decision, and per group how its patches are read and why."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from mlarray.streaming.regimes import CaseRegime
from mlarray.streaming.saving import PromisedVolume

if TYPE_CHECKING:
    from mlarray.streaming.patch_stream import PatchStream

_WIDTH = 80


def explained(stream: PatchStream) -> str:
    """Return the explanation of a stream as text, at most 80 columns wide."""
    lines = [_filled(stream.cases.told), _filled(_amount(stream)), stream.decision.line]
    for group in stream.chains:
        lines += ["", _group(stream, group)]
    return "\n".join(lines)


def _amount(stream: PatchStream) -> str:
    size = "\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}".join(str(n) if n else "free" for n in stream.patch_size)
    ranks = f" on each of {stream.rank.world_size} ranks" if stream.rank.world_size > 1 else ""
    copies = f", each with {_counted(stream.copies - 1, 'copy', 'copies')}" if stream.copies > 1 else ""
    return (
        f"{_counted(len(stream.cases.cases), 'case', 'cases')}{copies}: "
        f"{_counted(stream.patches, 'patch', 'patches')} of {size} in an epoch, "
        f"{_counted(len(stream), 'batch', 'batches')} of\N{NO-BREAK SPACE}{stream.batch_size}{ranks}."
    )


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _filled(text: str) -> str:
    """Return a sentence wrapped between words, never within a path or a shape."""
    filled = textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\N{NO-BREAK SPACE}", " ")


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
        told = plan.explain()
        if isinstance(plan.source, PromisedVolume):
            told = told.with_promise(str(plan.source.saved.path))
        parts.append(told.text(_WIDTH))
    return "\n".join(parts)
