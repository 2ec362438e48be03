"""What will happen to each stage, what does a patch read, and why? For people and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from mlarray.region import Region
from mlarray.streaming.chain import Chain, Stage
from mlarray.streaming.rules import Regime, Verdict, sample_patches
from mlarray.transforms.locality import Halo, WholeVolume
from mlarray.transforms.statistics import Statistic


@dataclass(frozen=True, slots=True)
class Row:
    """One stage of an :class:`Explanation`.

    Parameters
    ----------
    stage : int
        From 1; 0 is the read of the stored volume.
    name : str
        Of the transform.
    kind : str
        Of its dependence.
    reads : tuple of int
        Extents of the region it needs for the patch in the middle.
    passes : int
        Passes over the volume to measure statistics first.
    note : str
        Details: radius, statistics, the rule that it breaks.
    """

    stage: int
    name: str
    kind: str
    reads: tuple[int, ...]
    passes: int
    note: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What :meth:`Plan.explain` returns; ``str()`` gives a table, :meth:`text` one of a given width.

    Parameters
    ----------
    case : str
        Which volume.
    profile : str
        ``"strict"`` or ``"extended"``.
    verdict : Verdict
        Regime, rule, reason.
    stored, result : tuple of int
        Shapes with channels.
    patch : tuple of int
        Spatial extents of the patch that is looked at.
    rows : tuple of Row
        One per stage, in order.
    whole_bytes : int
        Size of the whole result, which is held where it is not streamed.
    problems : tuple of str
        What is wrong with groups that stages read; reading would raise it.
    done : int
        How many stages at the beginning a saved result stands for.
    promised : str
        The file that will hold this result; empty where it is there.
    """

    case: str
    profile: str
    verdict: Verdict
    stored: tuple[int, ...]
    result: tuple[int, ...]
    patch: tuple[int, ...]
    rows: tuple[Row, ...]
    whole_bytes: int = 0
    problems: tuple[str, ...] = ()
    done: int = 0
    promised: str = ""

    def with_promise(self, path: str) -> Explanation:
        """Return the explanation of a plan on a saved result that is yet to be written to a file."""
        return replace(self, promised=path)

    def with_problems(self, problems: Sequence[str]) -> Explanation:
        """Return the explanation with problems."""
        return replace(self, problems=tuple(problems))

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        plain = asdict(self)
        plain["verdict"] = {
            "regime": self.verdict.regime.value,
            "rule": None if self.verdict.rule is None else self.verdict.rule.name.lower().replace("_", "-"),
            "stage": None if self.verdict.stage is None else self.verdict.stage + 1,
            "reason": self.verdict.reason,
            "remedy": self.verdict.remedy,
            "cost": self.verdict.cost,
        }
        return plain

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return sentences and a table, wrapped to ``width`` columns; None: each on one line, however long."""
        sentences = [
            f"{_by(self.stored)} -> {_by(self.result)}, in patches of {_by(self.patch)}.",
            self.verdict.reason,
            self.verdict.remedy,
            self._saved(),
            *self._beforehand(),
            *(f"Problem: {problem}" for problem in self.problems),
        ]
        lines = [f"{self.case}: {self.verdict.regime.value} ({self.profile} profile)"]
        for sentence in filter(None, sentences):
            lines += _wrapped(f"  {sentence}", "    ", width)
        return "\n".join([*lines, *self._table(width)])

    def _saved(self) -> str:
        if self.promised:
            held = f" with the result of stages 1 to {self.done}" if self.done else ""
            return f"Save writes {self.promised}{held} before its first patch; all patches are read from it."
        return f"Stages 1 to {self.done} are in the saved result that is read." if self.done else ""

    def _beforehand(self) -> list[str]:
        told = []
        if self.verdict.regime is Regime.BUFFER:
            told.append(
                f"The result is computed once, whole ({_amount(self.whole_bytes)}), and cut; the voxels are the same."
            )
        passes = sum(row.passes for row in self.rows)
        if passes:
            told.append(
                f"Before the first patch, statistics are measured in {passes} pass{'es' * (passes > 1)} over the volume."
            )
        return told

    def _table(self, width: int | None) -> list[str]:
        if not self.rows:
            return []
        table = [("", "stage", "kind", "reads", "passes", "")]
        table += [
            (str(row.stage), row.name, row.kind, _by(row.reads), str(row.passes or ""), row.note) for row in self.rows
        ]
        widths = [max(len(line[column]) for line in table) for column in range(5)]
        kept = [column for column in range(5) if any(line[column] for line in table[1:])]
        indent = 2 + sum(widths[column] + 2 for column in kept)
        lines = []
        for line in table:
            cells = "  ".join(line[column].ljust(widths[column]) for column in kept)
            if width is None or width - indent >= _NARROWEST:
                lines += _wrapped(f"  {cells}  {line[5]}", " " * indent, width)
            else:  # no room beside the columns: below them
                lines += [f"  {cells}".rstrip(), *(_wrapped(f"     {line[5]}", "     ", width) if line[5] else [])]
        return lines


_NARROWEST = 24


def _wrapped(text: str, indent: str, width: int | None) -> list[str]:
    """Return a line as lines of at most ``width`` columns, cut between words; what stands before the first stays."""
    if width is None or len(text) <= width:
        return [text.rstrip()]
    held = text.replace(" x ", "\0x\0").replace(" -> ", "\0-> ")  # shapes stay together, and numbers with their words
    held = held.replace("radius ", "radius\0").replace("(rule ", "(rule\0").replace("stage ", "stage\0")
    lines = textwrap.wrap(held, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _amount(count: int) -> str:
    """Return bytes as people read them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def explanation(
    chain: Chain,
    verdict: Verdict,
    patch_size: Sequence[int],
    *,
    strict: bool,
    name: str,
    recorded: frozenset[tuple[int, Statistic]] = frozenset(),
) -> Explanation:
    """Return the explanation of a verdict; ``recorded`` are statistics, with the index of their stage, that the file holds."""
    targets = list(sample_patches(chain, patch_size))
    target = targets[len(targets) // 2] if targets else Region.full(chain.result.shape)
    regions = chain.fold(target)
    rows = tuple(_row(stage, regions[stage.index], verdict, recorded) for stage in chain.stages)
    return Explanation(
        name,
        "strict" if strict else "extended",
        verdict,
        chain.stored.array_shape,
        chain.result.array_shape,
        target.shape,
        rows,
        chain.result.bytes_of(chain.result.region),
        done=chain.stages[0].done if chain.stages else 0,
    )


def _row(stage: Stage, source: Region, verdict: Verdict, recorded: frozenset[tuple[int, Statistic]]) -> Row:
    notes = []
    if isinstance(stage.locality, Halo):
        notes.append(f"radius {_by(stage.locality.radius)}")
    if isinstance(stage.locality, WholeVolume) and verdict.stage != stage.number - 1:
        notes.append(stage.locality.reason)
    references = stage.transform.references(stage.before)
    statistics: tuple[Statistic, ...] = (*stage.statistics, *(one for group in references.values() for one in group))
    held = [one for one in stage.statistics if (stage.index, one) in recorded]
    if held:
        notes.append("statistics are in the file")
    notes += [f"reads group {group}" for group in stage.transform.groups(stage.before)]
    if stage.before.array_shape != stage.after.array_shape:
        notes.append(f"{_by(stage.before.array_shape)} -> {_by(stage.after.array_shape)}")
    if stage.before.dtype != stage.after.dtype:
        notes.append(f"{stage.before.dtype} -> {stage.after.dtype}")
    if verdict.stage == stage.number - 1:
        notes.insert(0, "stands in the way of streaming")
    return Row(
        stage.number,
        stage.transform.name,
        stage.locality.kind.value,
        source.shape,
        sum(one.passes for one in statistics if one not in held),
        "; ".join(notes),
    )


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))
