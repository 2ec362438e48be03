"""A chain bound to one stored volume: patches of its result, each from one bounded read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from mlarray.errors import MLArrayError, PlanError, TransformError
from mlarray.geometry import Geometry
from mlarray.locks import ForkSafeLock
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source
from mlarray.streaming.arguments import flag, instance, listed, source_of
from mlarray.streaming.chain import Chain, Stage, checked, measured_before, name_stage, resolve
from mlarray.streaming.execute import execute
from mlarray.streaming.explain import Explanation, explanation
from mlarray.streaming.finite import tell_of_unfinite
from mlarray.streaming.grid import Overlap, PatchGrid, padded, patch_grid
from mlarray.streaming.groups import misplaced
from mlarray.streaming.recorded import blocks_of, recorded
from mlarray.streaming.rules import Regime, Verdict, judge
from mlarray.streaming.sweep import SWEEP_BYTES, swept
from mlarray.streaming.volume_source import ResidentVolume, Stored, VolumeSource
from mlarray.transforms.base import Transform
from mlarray.transforms.locality import Kind, WholeVolume
from mlarray.transforms.statistics import Block, Statistic, statistic_blocks
from mlarray.transforms.volume import Attributes, Volume

WORKING_BYTES_PER_VOXEL = 32
"""Most bytes that a stage needs for a voxel while it computes: values, weights and indices of 64 bits."""

WORKING_BYTES = 16 << 20
"""Most bytes that a stage needs for the slab that it works on, however large the patch is."""

_LIGHT_KINDS = (Kind.POINTWISE, Kind.GLOBAL_STAT, Kind.ORIENTATION, Kind.CROP)
_MOVING_KINDS = (Kind.ORIENTATION, Kind.CROP, Kind.RESCALE, Kind.REGRID)
Measured = dict[Statistic, Any]
Opener = Callable[[str], Source]


class Plan:
    """What :func:`plan` returns. Safe to use from threads; pickles, and reopens its files elsewhere.

    Attributes
    ----------
    chain : Chain
        The stages, resolved from headers alone.
    grid : PatchGrid
        Patches that cover the result.
    patch_size : tuple of int
        As declared, per spatial axis; 0 is free.
    verdict : Verdict
        Streamed or not, and why.
    """

    def __init__(
        self,
        source: Stored,
        chain: Chain,
        groups: Mapping[str, Stored],
        *,
        patch_size: int | Sequence[int] | None,
        overlap: Overlap,
        strict: bool,
        cost_limit: float,
        opener: Opener | None = None,
        prefix: Plan | None = None,
        origin: Plan | None = None,
    ) -> None:
        self.source = source
        self.chain = chain
        self.groups = dict(groups)
        self.opener = opener
        self._patch_size, self._overlap = patch_size, overlap
        self.grid: PatchGrid = patch_grid(chain.result.shape, patch_size, overlap)
        declared = 0 if patch_size is None else patch_size
        self.patch_size = tuple(declared) if isinstance(declared, Sequence) else (int(declared),) * chain.result.ndim
        self.verdict: Verdict = judge(chain, self.patch_size, strict=strict, cost_limit=cost_limit)
        self.strict = strict
        self.cost_limit = cost_limit
        self.origin = origin
        self._prefix = prefix  # its stages are the first of these, and it measures for them
        self._volumes: list[Volume] = [chain.stored]
        self._measured: list[Measured] = []
        self._found: dict[tuple[int, Statistic], Any] = {}
        self._wholes: dict[int, NDArray] = {}
        self._aligned: set[tuple[int, str]] = set()
        self._lock = ForkSafeLock()

    @property
    def regime(self) -> str:
        """``"stream"``: a patch is computed from its region. ``"buffer"``: the result is computed once and cut."""
        return self.verdict.regime.value

    @property
    def streams(self) -> bool:
        """Whether a patch costs no more than its region: the chain streams, and the file can be read in parts."""
        return self.verdict.regime is Regime.STREAM and self.source.in_parts

    @property
    def result(self) -> Volume:
        """Shape, dtype, geometry of the result, from headers alone."""
        return self.chain.result

    @property
    def measured_result(self) -> Volume:
        """The result with what the stages have noted about the case; measures what has to be measured."""
        return self._resolved()[-1]

    @property
    def attributes(self) -> Attributes:
        """What the stages have noted about the case; measures what has to be measured."""
        return self.measured_result.attributes

    @property
    def wanted_groups(self) -> tuple[str, ...]:
        """Names of other groups of the case that the stages read or refer to."""
        found = (name for stage in self.chain.stages for name in _groups_of(stage))
        return tuple(dict.fromkeys(found))

    def group_problems(self) -> tuple[str, ...]:
        """Return what is wrong with the groups that the stages want, from headers alone: missing, or on another grid."""
        problems = []
        for stage in self.chain.stages:
            aligned = stage.transform.groups(stage.before)
            for name in _groups_of(stage):
                try:
                    _ = self._aligned_group(stage, name) if name in aligned else self._group_source(stage, name)
                except (MLArrayError, OSError) as error:
                    problems.append(str(error))
        return tuple(dict.fromkeys(problems))

    def fold(self, target: Region) -> Region:
        """Return the region of the stored volume that a region of the result needs."""
        return self.chain.fold(_region(target))[0]

    def read(self, target: Region, *, pad: bool = False) -> NDArray:
        """Return a region of the result, computed from one read of the stored volume.

        Parameters
        ----------
        target : Region
            Spatial, within the result.
        pad : bool
            Fill up to the declared patch size at the far side of each axis, see :func:`mlarray.streaming.padded`.

        Returns
        -------
        ndarray, shape (C, *target.shape)
            The caller's own; equal to the same part of :meth:`read_whole` to the last bit.
        """
        _region(target)
        flag("pad", pad)
        if len(target.start) != self.result.ndim or not target.is_within(self.result.shape):
            raise IndexError(
                f"Region {target.start}..{target.stop} is not within the result of shape {self.result.shape}."
            )
        if self.verdict.regime is Regime.STREAM:
            patch = self._computed(len(self.chain.stages), target)
        else:
            patch = self._whole(len(self.chain.stages))[(slice(None), *target.slices)]
        patch = padded(patch, self.patch_size) if pad else patch
        return patch if patch.flags.writeable and patch.base is None else patch.copy()

    def read_whole(self) -> NDArray:
        """Return the whole result: the same code with the whole volume as the target."""
        return self._computed(len(self.chain.stages), self.result.region)

    def geometry(self, target: Region) -> Geometry | None:
        """Return where a region of the result lies, or None when that is not known."""
        geometry = self.result.geometry
        return None if geometry is None else geometry.cropped(_region(target))

    def prefetch(self, targets: Iterable[Region]) -> None:
        """Announce patches to come, so that storage works while the caller computes."""
        if self.verdict.regime is Regime.STREAM:
            self.source.prefetch(
                [self.fold(target) for target in listed("targets", targets, Region, "plan.grid holds some.")]
            )

    def measure(self) -> None:
        """Measure now what patches need, instead of at the first read."""
        self._resolved()

    def explain(self) -> Explanation:
        """Return what happens and why, stage by stage; printing it shows a table. Reads headers at most."""
        known = frozenset(
            (stage.index, statistic)
            for stage in self.chain.stages
            for statistic in stage.statistics
            if measured_before(self.chain, stage, statistic) == 0
            and recorded(self.source, statistic, proven=False) is not None
        )
        return explanation(
            self.chain, self.verdict, self.patch_size, strict=self.strict, name=self.source.name, recorded=known
        ).with_problems(self.group_problems())

    def peak_bytes(self, target: Region) -> int:
        """Return the most bytes of voxels that a read of ``target`` holds between stages.

        That is the block that is read, input and output of each stage, or the result and the caller's copy of it. What a stage of
        this package allocates while it computes comes on top: at most :data:`WORKING_BYTES_PER_VOXEL` for each voxel and channel
        of the larger of its input and output, and :data:`WORKING_BYTES`.
        """
        return self._held_bytes(target, len(self.chain.stages))

    def _held_bytes(self, target: Region, length: int) -> int:
        """Return what :meth:`peak_bytes` does, for the output of the first ``length`` stages."""
        regions = self.chain.fold(target, length)
        held = [self.source.bytes_of_read(regions[0])]
        made = target
        after = self.chain.stages[length - 1].after if length else self.chain.stored
        for stage, (source, wanted) in zip(self.chain.stages[:length], itertools.pairwise(regions), strict=True):
            made = stage.locality.makes(source, wanted, stage.after.shape)
            held.append(stage.before.bytes_of(source) + stage.after.bytes_of(made))
        if made != target:
            held.append(after.bytes_of(made) + after.bytes_of(target))
        return max(held)

    def extended(self, transforms: Iterable[Transform]) -> Plan:
        """Return the plan of a longer chain on the same source; what this plan measures, the other does not measure again."""
        transforms = checked(transforms)
        known = [stage.transform for stage in self.chain.stages]
        done = self.chain.stages[0].done if known else 0
        chain = resolve(self.chain.stored, [*known, *transforms], done=done)
        return self._like(self.source, chain, prefix=self)

    def held(self, array: NDArray) -> Plan:
        """Return a plan without stages whose stored volume is this plan's result, held in memory.

        Parameters
        ----------
        array : ndarray, shape (C, *result.shape)
            What :meth:`read_whole` gives; not copied, and not to be changed.
        """
        instance("array", array, np.ndarray, "plan.read_whole() gives it.")
        source = ResidentVolume(array, self._resolved()[-1])
        return self._like(source, resolve(source.volume, ()))

    def release(self) -> None:
        """Let go of results and decoded files that are kept in memory; a later read computes them again."""
        with self._lock:
            self._wholes.clear()
            self.source.release()
            for group in self.groups.values():
                group.release()

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        self.source.close()
        for group in self.groups.values():
            group.close()

    @property
    def held_bytes(self) -> int:
        """Bytes of the results that are kept in memory now."""
        return sum(array.nbytes for array in self._wholes.values())

    def inverse(self, prediction: Source, *, patch_size: int | Sequence[int] | None = None) -> Plan:
        """Return the plan that carries an array on the result's grid back to the stored grid.

        Parameters
        ----------
        prediction : Source
            On the grid of the result; its own channels and dtype.
        patch_size : optional
            Of the patches on the stored grid.

        Raises
        ------
        PlanError
            The prediction has another shape, or a stage that changed the grid cannot be undone.
        """
        volumes, stored = (
            self._resolved(),
            VolumeSource(source_of("A prediction", prediction), case=self.source.volume.case),
        )
        if stored.volume.shape != self.result.shape:
            raise PlanError(
                f"The prediction has the shape {stored.volume.shape}, the result of the chain {self.result.shape}.",
                hint="Predict on the grid of the result.",
            )
        backwards: list[Transform] = []
        part: Plan | None = self
        while part is not None:
            backwards += part._undone()
            part = part.origin
        start = stored.volume.with_(geometry=volumes[-1].geometry, attributes=volumes[-1].attributes)
        stored.volume = start
        return Plan(
            stored,
            resolve(start, backwards),
            self.groups,
            patch_size=patch_size,
            overlap=0,
            strict=self.strict,
            cost_limit=float("inf"),
            opener=self.opener,
        )

    def _undone(self) -> list[Transform]:
        """Return what undoes the stages, the last one first."""
        volumes = self._resolved()
        found: list[Transform] = []
        for index, stage in reversed(list(enumerate(self.chain.stages))):
            undo = None
            if stage.transform.invertible and getattr(stage.transform, "inverse", True):
                undo = stage.transform.inverted(volumes[index], volumes[index + 1], self._measured[index])
            if undo is not None:
                found.append(undo)
            elif stage.before.shape != stage.after.shape or (
                not stage.transform.invertible and stage.locality.kind in _MOVING_KINDS
            ):
                raise PlanError(
                    f"{stage.label} changed the grid and cannot be undone.", hint="Leave it out of the chain."
                )
        return found

    def _like(self, source: Stored, chain: Chain, *, prefix: Plan | None = None) -> Plan:
        """Return a plan with the settings and groups of this one."""
        return Plan(
            source,
            chain,
            self.groups,
            patch_size=self._patch_size,
            overlap=self._overlap,
            strict=self.strict,
            cost_limit=self.cost_limit,
            opener=self.opener,
            prefix=prefix,
            origin=self if isinstance(source, ResidentVolume) else self.origin,
        )

    def _computed(self, length: int, target: Region) -> NDArray:
        volumes = self._resolved(length)
        stages, regions = self.chain.stages[:length], self.chain.fold(target, length)
        return execute(stages, volumes, regions, self.source.read(regions[0]), self._measured, self._group)

    def _whole(self, length: int) -> NDArray:
        with self._lock:
            if length not in self._wholes:
                region = (
                    self.chain.result.region
                    if length == len(self.chain.stages)
                    else self.chain.stages[length].before.region
                )
                self._wholes[length] = self._computed(length, region)
                self._wholes[length].setflags(write=False)
            return self._wholes[length]

    def _resolved(self, length: int | None = None) -> list[Volume]:
        """Return the volumes before each stage and after the last, measured as far as ``length`` stages need."""
        length = len(self.chain.stages) if length is None else length
        if len(self._measured) < length:
            with self._lock:
                if self._prefix is not None:
                    known = min(length, len(self._prefix.chain.stages))
                    volumes = self._prefix._resolved(known)
                    if len(self._measured) < known:
                        self._volumes, self._measured = volumes[: known + 1], self._prefix._measured[:known]
                for stage in self.chain.stages[len(self._measured) : length]:
                    volume = self._volumes[-1]
                    try:
                        for name in stage.transform.groups(volume):
                            self._aligned_group(stage, name)
                        measured = self._measure(stage)
                        after = stage.transform.outcome(volume) if volume is not stage.before else stage.after
                        self._volumes.append(stage.transform.noted(after, measured))
                    except TransformError as error:
                        name_stage(error, stage)
                        raise
                    self._measured.append(measured)
                    self._wholes.pop(stage.index, None)
        return self._volumes

    def _measure(self, stage: Stage) -> Measured:
        measured: Measured = {}
        own = stage.transform.statistics(self._volumes[-1])
        for statistic in own:
            measured[statistic] = self._measured_of(stage, statistic)
        for name, statistics in stage.transform.references(self._volumes[-1]).items():
            group = self._group_source(stage, name)
            for statistic in statistics:
                measured[statistic] = measured_over(group, statistic)
                where = f"{self._title(stage)}, group {name!r}"
                tell_of_unfinite(measured[statistic], statistic, partial(blocks_of, group), where)
        return measured

    def _measured_of(self, stage: Stage, statistic: Statistic) -> Any:
        """Return a statistic of a stage's input: found before, stored in the file, or measured now."""
        index = measured_before(self.chain, stage, statistic)
        if (index, statistic) not in self._found:
            known = recorded(self.source, statistic) if index == 0 else None
            blocks = partial(self._blocks, self.chain.stages[index], statistic.mask)
            if known is None:
                known = statistic.measure(blocks)
            tell_of_unfinite(known, statistic, blocks, self._title(stage))
            self._found[index, statistic] = known
        return self._found[index, statistic]

    def _title(self, stage: Stage) -> str:
        """Return what to call a stage of this case, and the file that it is done to, in a warning."""
        case = f", case {stage.before.case!r}" if stage.before.case else ""
        files = self.source.info.files
        return f"{stage.title}{case}{f' ({files[0]})' if files else ''}"

    def _blocks(self, stage: Stage, mask: str | None) -> Iterator[Block]:
        """Give the fixed blocks of a stage's input, each computed from its own region where that is bounded."""
        before, length = stage.before, stage.index
        earlier = self.chain.stages[:length]
        group = None if mask is None else self._aligned_group(stage, mask)
        if any(isinstance(one.locality, WholeVolume) for one in earlier):
            whole = self._whole(length)
            for region in statistic_blocks(before.channels, before.shape):
                yield whole[(slice(None), *region.slices)], None if group is None else group.read(region)
            return

        def read(region: Region) -> Block:
            return self._computed(length, region), None if group is None else group.read(region)

        def held(region: Region) -> int:
            if not all(one.locality.kind in _LIGHT_KINDS for one in earlier):
                return SWEEP_BYTES + 1  # what is computed of a block counts more than how it is read
            masked = 0 if group is None else 2 * group.volume.bytes_of(region)
            return self._held_bytes(region, length) + before.bytes_of(region) + masked

        yield from swept(before.channels, before.shape, read, bytes_of=held)

    def _group(self, stage: Stage, name: str, region: Region) -> NDArray:
        return self._aligned_group(stage, name).read(region)

    def _aligned_group(self, stage: Stage, name: str) -> Stored:
        """Return a group after comparing, once, its grid with that of a stage's input."""
        group = self._group_source(stage, name)
        if (stage.index, name) in self._aligned:
            return group
        told = misplaced(group.volume, stage.before)
        if told:
            raise TransformError(
                f"{stage.title}: group {name!r} {told}.",
                hint="It must lie on the grid that the stage gets: move the stage before what changes the grid, or resample it.",
            )
        self._aligned.add((stage.index, name))
        return group

    def _group_source(self, stage: Stage, name: str) -> Stored:
        if name in self.groups:  # also asked by the thread that sweeps, while the one that measures has the lock
            return self.groups[name]
        with self._lock:
            if name not in self.groups and self.opener is not None and is_path(name):
                self.groups[name] = VolumeSource(self.opener(name), case=name)
            if name in self.groups:
                return self.groups[name]
        known = ", ".join(map(repr, self.groups)) or "none"
        hint = f"Pass it: plan(..., groups={{{name!r}: source}})."
        if is_path(name):
            hint += " Files are opened where plan(..., opener=mlarray.open_source) says how."
        raise TransformError(f"{stage.title}: {self.source.name} has no group {name!r}; known are {known}.", hint=hint)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_wholes": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ForkSafeLock()


def _groups_of(stage: Stage) -> tuple[str, ...]:
    return (*stage.transform.groups(stage.before), *stage.transform.references(stage.before))


def _region(target: Region) -> Region:
    return instance("target", target, Region, "plan.grid holds some; Region(start, stop) makes one.")


def is_path(name: str) -> bool:
    """Tell whether the name of a group is that of a file: it has a suffix or a folder."""
    return len(PurePath(name).parts) > 1 or bool(PurePath(name).suffix)


def measured_over(group: Stored, statistic: Statistic) -> Any:
    """Return a statistic of a stored volume: as its file says, or measured now."""
    known = recorded(group, statistic)
    return statistic.measure(partial(blocks_of, group)) if known is None else known
