"""What does each stage of a chain get and give, and which part of the input does a patch need?

Resolving a chain walks it from front to back with volumes alone; folding walks it from back to front with regions alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import FrozenInstanceError, dataclass

from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.transforms.base import Transform
from mlarray.transforms.locality import Locality
from mlarray.transforms.statistics import Moments, Statistic
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Stage:
    """A transform at its place in a chain.

    Parameters
    ----------
    index : int
        Place, from 0.
    transform : Transform
        What is done.
    before, after : Volume
        Its input and output.
    locality : Locality
        How one depends on the other.
    statistics : tuple of Statistic
        What is measured over its input first.
    """

    index: int
    transform: Transform
    before: Volume
    after: Volume
    locality: Locality
    statistics: tuple[Statistic, ...]

    @property
    def label(self) -> str:
        """Name with its place, counted from 1, for messages."""
        return f"stage {self.index + 1} ({self.transform.name})"

    @property
    def title(self) -> str:
        """The label at the beginning of a sentence."""
        return f"Stage {self.index + 1} ({self.transform.name})"


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages, resolved against a stored volume.

    Parameters
    ----------
    stored : Volume
        What the first stage gets.
    stages : tuple of Stage
        In order.
    """

    stored: Volume
    stages: tuple[Stage, ...]

    @property
    def result(self) -> Volume:
        """What the last stage gives."""
        return self.stages[-1].after if self.stages else self.stored

    def fold(self, target: Region, length: int | None = None) -> list[Region]:
        """Return the region of each stage's input that ``target``, of the result, needs; the target itself comes last.

        Parameters
        ----------
        target : Region
            Of the output of the last stage, or of stage ``length - 1``.
        length : int, optional
            How many stages count; default: all.
        """
        regions = [target]
        for stage in reversed(self.stages[:length]):
            target = stage.locality.pull(target, stage.before.shape)
            regions.append(target)
        regions.reverse()
        return regions


def measured_before(chain: Chain, stage: Stage, statistic: Statistic) -> int:
    """Return the index of the stage over whose input a statistic of ``stage`` is measured.

    Its own, or an earlier one's where nothing in between changes a value: voxels that only change places, or their type without
    loss, have the moments they had, and those of the stored volume may be known already. Which input it is follows from the chain
    alone, so that everybody gets the same bits.
    """
    index = stage.index
    if statistic == Moments():
        while index and chain.stages[index - 1].locality.preserves_statistics:
            index -= 1
    return index


def name_stage(error: TransformError, stage: Stage) -> None:
    """Put the stage, and the case where it has a name, at the beginning of an error's message."""
    if not error.message.startswith("Stage "):
        case = f", case {stage.before.case!r}" if stage.before.case else ""
        error.message = f"{stage.title}{case}: {error.message}"


def resolve(stored: Volume, transforms: Iterable[Transform]) -> Chain:
    """Ask each transform what it does to the volume before it.

    Raises
    ------
    TransformError
        For an object that is no :class:`~mlarray.transforms.Transform`, a stage that cannot take its input, or a declaration
        that breaks its rules; the message names the stage.
    """
    stages: list[Stage] = []
    volume = stored
    for index, transform in enumerate(_checked(transforms)):
        where = f"Stage {index + 1} ({transform.name})"
        try:
            # Attributes of their own: a declaration that writes somewhere cannot reach the next stage.
            locality = transform.locality(volume)
            after = transform.outcome(volume)
            statistics = tuple(transform.statistics(volume))
        except TransformError as error:
            if not error.message.startswith("Stage "):
                error.message = f"{where}: {error.message}"
            raise
        except Exception as error:
            raise TransformError(
                f"{where}: its declaration failed with {type(error).__name__}: {error}.", hint=_rule_broken(error)
            ) from error
        if not isinstance(locality, Locality):
            raise TransformError(
                f"{where}: locality() returned {type(locality).__name__}, not a locality.",
                hint="Return Pointwise(), Halo(...), WholeVolume() or another of mlarray.transforms.locality.",
            )
        _check_maps(where, locality, volume, after)
        stages.append(Stage(index, transform, volume, after, locality, statistics))
        volume = after
    return Chain(stored, tuple(stages))


def _checked(transforms: Iterable[Transform]) -> Sequence[Transform]:
    listed = list(transforms)
    for index, transform in enumerate(listed):
        if not isinstance(transform, Transform):
            raise TransformError(
                f"Stage {index + 1} is a {type(transform).__name__}, not a transform.",
                hint=_SUBCLASS if not isinstance(transform, type) else f"Make one: {transform.__name__}(...).",
            )
        if type(transform).apply is Transform.apply:
            raise TransformError(f"Stage {index + 1} ({transform.name}) does not say what it computes.", hint=_SUBCLASS)
    return listed


def _check_maps(where: str, locality: Locality, before: Volume, after: Volume) -> None:
    """Ask a locality for the output's shape and for what the whole output needs."""
    try:
        said = locality.out_shape(before.shape)
        needed = locality.pull(after.region, before.shape) if said == after.shape else before.region
        inside = needed.is_within(before.shape)
    except Exception as error:
        raise TransformError(
            f"{where}: its locality {locality} failed for the shape {before.shape} with {type(error).__name__}: {error}.",
            hint=f"It needs one entry per spatial axis, {before.ndim} here, and an answer for every region.",
        ) from error
    if said != after.shape:
        raise TransformError(
            f"{where}: its locality gives the shape {said}, its outcome {after.shape}.",
            hint="Both must say the same for every input.",
        )
    if not inside:
        raise TransformError(
            f"{where}: its locality reads {needed.start}..{needed.stop} of an input of shape {before.shape}.",
            hint="pull() stays within the input: clamp it.",
        )


def _rule_broken(error: Exception) -> str:
    """Return which of the rules of a declaration an error of it tells of."""
    if isinstance(error, OSError):
        return (
            "A declaration does no I/O: planning knows headers only. Take what it needs as a parameter, and voxels of "
            "other files as a group."
        )
    if isinstance(error, FrozenInstanceError) or any(words in str(error) for words in _WRITES):
        return "A declaration is read-only: outcome() returns another volume, volume.with_(...) or volume.push(key, value)."
    return "A declaration must be total: where something is unknown, answer WholeVolume()."


_SUBCLASS = "Subclass mlarray.transforms.Transform and define apply(block, context)."
_WRITES = ("does not support item assignment", "does not support item deletion", "read-only")
