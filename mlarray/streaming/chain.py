"""What does each stage of a chain get and give, and which part of the input does a patch need?

Resolving a chain walks it from front to back with volumes alone; folding walks it from back to front with regions alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlarray.errors import TransformError
from mlarray.region import Region
from mlarray.streaming.declared import asked
from mlarray.transforms.augmentations.lists import Augmentation
from mlarray.transforms.base import Transform
from mlarray.transforms.locality import Locality
from mlarray.transforms.save import Save
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
    done : int
        How many stages of the chain a saved result stands for; they are left out before the first.
    """

    index: int
    transform: Transform
    before: Volume
    after: Volume
    locality: Locality
    statistics: tuple[Statistic, ...]
    done: int = 0

    @property
    def number(self) -> int:
        """Its place in the whole chain, from 1."""
        return self.index + self.done + 1

    @property
    def label(self) -> str:
        """Name with its place, counted from 1, for messages."""
        return f"stage {self.number} ({self.transform.name})"

    @property
    def title(self) -> str:
        """The label at the beginning of a sentence."""
        return f"Stage {self.number} ({self.transform.name})"


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
    alone, so that everybody gets the same bits; what is behind a ``Save`` is measured there, as it will be in the saved result.
    """
    index = stage.index
    if statistic == Moments():
        while index and _keeps_values(chain.stages[index - 1]):
            index -= 1
    return index


def _keeps_values(stage: Stage) -> bool:
    return stage.locality.preserves_statistics and not isinstance(stage.transform, Save)


def name_stage(error: TransformError, stage: Stage) -> None:
    """Put the stage, and the case where it has a name, at the beginning of an error's message."""
    if not error.message.startswith("Stage "):
        case = f", case {stage.before.case!r}" if stage.before.case else ""
        error.message = f"{stage.title}{case}: {error.message}"


def resolve(stored: Volume, transforms: Iterable[Transform], *, done: int = 0) -> Chain:
    """Ask each transform what it does to the volume before it; ``done`` stages are in that volume already.

    Raises
    ------
    TransformError
        For an object that is no :class:`~mlarray.transforms.Transform`, a stage that cannot take its input, or a declaration
        that breaks its rules; the message names the stage.
    """
    stages: list[Stage] = []
    volume = stored
    for index, transform in enumerate(checked(transforms)):
        where = f"Stage {index + done + 1} ({transform.name})"
        locality: Locality = asked(transform, "locality", volume, where)
        after: Volume = asked(transform, "outcome", volume, where)
        statistics = tuple(asked(transform, "statistics", volume, where))
        for declaration in ("groups", "references"):
            asked(transform, declaration, volume, where)
        _check_maps(where, locality, volume, after)
        stages.append(Stage(index, transform, volume, after, locality, statistics, done))
        volume = after
    return Chain(stored, tuple(stages))


def checked(transforms: Iterable[Transform]) -> list[Transform]:
    """Return the transforms of a chain.

    Raises
    ------
    TransformError
        Something else is among them, or it is no list of them.
    """
    if isinstance(transforms, (Transform, type)) or not isinstance(transforms, Iterable):
        raise TransformError(
            f"The chain is {_named(transforms)}, not a list of transforms.", hint="Put it into a list: [Clip(), ...]."
        )
    listed = list(transforms)
    for index, transform in enumerate(listed):
        if not isinstance(transform, Transform):
            raise TransformError(f"Stage {index + 1} is {_named(transform)}, not a transform.", hint=_remedy(transform))
        if type(transform).apply is Transform.apply:
            raise TransformError(
                f"Stage {index + 1} ({transform.name}) does not say what it computes.", hint=_remedy(transform)
            )
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


def _named(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _remedy(value: object) -> str:
    if isinstance(value, type) and issubclass(value, Transform):
        return f"Make one of it: {value.__name__}(...)."
    if isinstance(value, Augmentation):
        return "Augmentations make copies: plan(..., augmentations=[AugmentationList([...])])."
    if isinstance(value, str):
        return "mlarray.streaming.config.chain_of makes transforms of names."
    return "Subclass mlarray.transforms.Transform and define apply(block, context); without more, it gets the whole volume."
