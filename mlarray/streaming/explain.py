"""What will happen to each stage, what does a patch read, and why? For people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from mlarray.region import Region
from mlarray.streaming.chain import Chain, Stage
from mlarray.streaming.rules import Verdict, sample_patches
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
    """What :meth:`Plan.explain` returns; ``str()`` gives a table.

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
    """

    case: str
    profile: str
    verdict: Verdict
    stored: tuple[int, ...]
    result: tuple[int, ...]
    patch: tuple[int, ...]
    rows: tuple[Row, ...]

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
        lines = [
            f"{self.case}: {self.verdict.regime.value} ({self.profile} profile)",
            f"  {_by(self.stored)} -> {_by(self.result)}, patch {_by(self.patch)}, "
            f"{self.verdict.cost:.3g} voxels read for each of a patch",
            f"  {self.verdict.reason}",
        ]
        if self.verdict.remedy:
            lines.append(f"  {self.verdict.remedy}")
        table = [("", "stage", "kind", "reads", "passes", "")]
        table += [
            (str(row.stage), row.name, row.kind, _by(row.reads), str(row.passes or ""), row.note) for row in self.rows
        ]
        widths = [max(len(line[column]) for line in table) for column in range(5)]
        for line in table:
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
            lines.append("  " + "  ".join([*cells, line[5]]).rstrip())
        return "\n".join(lines)


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
    )


def _row(stage: Stage, source: Region, verdict: Verdict, recorded: frozenset[tuple[int, Statistic]]) -> Row:
    notes = []
    if isinstance(stage.locality, Halo):
        notes.append(f"radius {_by(stage.locality.radius)}")
    if isinstance(stage.locality, WholeVolume):
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
    if verdict.stage == stage.index:
        notes.append("stands in the way of streaming")
    return Row(
        stage.index + 1,
        stage.transform.name,
        stage.locality.kind.value,
        source.shape,
        sum(one.passes for one in statistics if one not in held),
        "; ".join(notes),
    )


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))
