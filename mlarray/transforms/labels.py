"""What becomes of labels: as channels, merged, chosen, compared, and as a mask?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlarray.errors import TransformError, UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.casting import constant, is_number, real
from mlarray.transforms.channels import refuse_no_channels, terms
from mlarray.transforms.locality import Kind, Locality, Pointwise
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.undo import Undo
from mlarray.transforms.volume import Volume

COUNTS = "number_of_channels_per_model"
"""Attribute with the number of classes, background included, of each member of an ensemble."""

_PAIR = re.compile(r"\s*\(\s*([^,\s]+)\s*,\s*([^,\s]+)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class OneHot(Transform):
    """One channel per class, float32: channel c is 1 where the label is c, else 0.

    Parameters
    ----------
    num_classes : int
        Labels lie within 0 and ``num_classes - 1``; another one, or a fraction, is an error where it is read.
    inverse : bool
        Whether carrying a prediction back takes the channel with the (first) maximum, int64.
    """

    num_classes: int
    inverse: bool = True
    invertible = True

    def __post_init__(self) -> None:
        wrong = not isinstance(self.num_classes, (int, np.integer)) or isinstance(self.num_classes, bool)
        if wrong or self.num_classes < 1:
            raise UsageError(f"OneHot takes for num_classes an integer from 1 on, got {self.num_classes!r}.")

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return a channel per class."""
        if volume.channels != 1:
            raise TransformError(f"OneHot takes one channel of labels, not {volume.channels}.")
        return real(volume).with_(channels=int(self.num_classes), dtype=np.dtype(np.float32), is_label=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Compare with each class."""
        out = np.empty((self.num_classes, *block.shape[1:]), np.float32)
        hit = np.zeros(block.shape[1:], bool)
        for label in range(self.num_classes):
            same = equals(block[0], label)
            hit |= same
            out[label] = same
        if not hit.all():
            wrong = block[0][~hit]
            raise TransformError(
                f"OneHot({self.num_classes}) got the label {wrong[0]}; allowed are 0 to {self.num_classes - 1}.",
                hint="Raise num_classes, or map the labels with SelectLabel first.",
            )
        return out

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform:
        """Return the index of the maximum."""
        return Undo(self.name, _Decoded(int(self.num_classes)), before)


@dataclass(frozen=True, slots=True)
class _Decoded(Transform):
    """The channel with the first maximum, of as many as there are classes."""

    num_classes: int

    def locality(self, volume: Volume) -> Locality:
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        if volume.channels != self.num_classes:
            raise TransformError(
                f"A prediction for {self.num_classes} classes has as many channels, not {volume.channels}."
            )
        return real(volume).with_(channels=1, dtype=np.dtype(np.int64), is_label=True)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        return np.asarray(np.argmax(block, axis=0, keepdims=True), np.int64)


@dataclass(frozen=True, slots=True)
class MergeLabels(Transform):
    """One label map from one per model: labels of later models follow those of earlier ones, and win where both are not 0.

    A label v of model i (its channel) becomes ``v + sum(counts[j] - 1 for j < i)``, with ``counts`` the attribute
    ``number_of_channels_per_model``, which is popped. One channel, in the input's type; a label that this type cannot hold is an
    error.
    """

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return one channel, without the attribute."""
        _counts(real(volume))
        return volume.with_(channels=1, is_label=True).pop(COUNTS)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Put the models over each other."""
        counts, dtype = _counts(context.before), block.dtype
        out, offset = block[:1].copy(), 0
        for channel, count in zip(terms(block, 0)[1:], counts, strict=False):
            offset += count - 1
            there = channel != 0
            labels = channel[there]
            if offset and labels.size and dtype.kind in "biu":
                highest = int(labels.max()) + offset
                if highest > (1 if dtype.kind == "b" else int(np.iinfo(dtype).max)):
                    raise TransformError(
                        f"Label {highest} does not fit {dtype}.", hint='Put TensorCast("int32") before MergeLabels.'
                    )
            out[there] = labels + dtype.type(offset) if offset else labels
        return out


@dataclass(frozen=True, slots=True)
class FlatLabel(Transform):
    """1 where the label is one of some, else 0, in the input's type.

    Parameters
    ----------
    labels : sequence of number, optional
        Which; default (or empty): all above 0.
    """

    labels: Sequence[float] | None = None

    def __post_init__(self) -> None:
        given: Any = self.labels
        listed = (given,) if is_number(given) else given
        if listed is not None:
            if (
                isinstance(listed, str)
                or not isinstance(listed, (Sequence, np.ndarray))
                or not all(map(is_number, listed))
            ):
                raise UsageError(f"FlatLabel takes a list of numbers, got {given!r}.")
            object.__setattr__(self, "labels", tuple(map(_number, listed)))

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume."""
        return real(volume).with_(is_label=True)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Compare with each label."""
        if not self.labels:
            return (block > 0).astype(block.dtype)
        found = np.zeros(block.shape, bool)
        for label in self.labels:
            found |= equals(block, label)
        return found.astype(block.dtype)


@dataclass(frozen=True, slots=True)
class SelectLabel(Transform):
    """Other numbers for some labels, and 0 for all others, in the input's type.

    All comparisons are with the input, so that labels can be exchanged; of pairs with the same old label the last one counts.

    Parameters
    ----------
    labels : sequence of str or of pairs
        ``"(old,new)"`` each, or a pair of numbers.

    Raises
    ------
    UsageError
        Another form.

    Examples
    --------
    >>> SelectLabel(["(1,2)", "(3,1)"]).labels
    ((1, 2), (3, 1))
    """

    labels: Sequence[Any]

    def __post_init__(self) -> None:
        given = self.labels
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise UsageError(f"SelectLabel takes a list of '(old,new)', got {given!r}.")
        object.__setattr__(self, "labels", tuple(_pair(one) for one in given))

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume."""
        for _, new in self.labels:
            held = float(constant(new, real(volume).dtype))
            if not np.isfinite(held) or (held != float(new) and volume.dtype.kind != "f"):
                raise TransformError(f"SelectLabel gives the label {new}, which {volume.dtype} cannot hold.")
        return volume.with_(is_label=True)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Compare with each old label."""
        out = np.zeros(block.shape, block.dtype)
        for old, new in self.labels:
            out[equals(block, old)] = constant(new, block.dtype)
        return out


@dataclass(frozen=True, slots=True)
class SegmentationDisagreement(Transform):
    """The share of members (channels) that do not vote for the most frequent label: ``1 - votes / members``, one float32 channel.

    0 where nobody votes, and for a single member.

    Parameters
    ----------
    ignore_background : bool
        Members whose label is 0 do not vote.
    """

    ignore_background: bool = False

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself."""
        return Pointwise()

    def outcome(self, volume: Volume) -> Volume:
        """Return one float32 channel."""
        refuse_no_channels(volume)
        return real(volume).with_(channels=1, dtype=np.dtype(np.float32), is_label=False)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Count, for each member, who agrees."""
        members = terms(block, 0)
        if len(members) == 1:
            return np.zeros(block.shape, np.float32)
        most = np.zeros(members[0].shape, np.int32)
        voters = np.zeros_like(most)
        for one in members:
            votes = np.zeros_like(most)
            for other in members:
                votes += one == other
            if self.ignore_background:
                votes *= one != 0
                voters += one != 0
            np.maximum(most, votes, out=most)
        if not self.ignore_background:
            voters += len(members)
        share = most.astype(np.float32) / np.maximum(voters, 1).astype(np.float32)
        return np.where(voters == 0, np.float32(0), np.float32(1) - share)


@dataclass(frozen=True, slots=True)
class Mask(Transform):
    """Keep the values where a mask is not 0: ``out = x if mask != 0 else value_outside``.

    Parameters
    ----------
    path : str
        Name of a group of the case, or of a file that serves all cases. Transforms open no files: the planner takes the name from
        ``plan(..., groups={...})``, and a path that is not among them from ``plan(..., opener=mlarray.open_source)``. One
        channel, or as many as the array has; on the grid of the array.
    value_outside : float
        Saturated, and for integers truncated toward zero.
    """

    path: str = "./default.mha"
    value_outside: float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise UsageError(f"Mask takes the name of a group or a path, got {self.path!r}.")
        if not is_number(self.value_outside):
            raise UsageError(f"Mask takes for value_outside a number, got {self.value_outside!r}.")

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel needs the one of the mask at its place."""
        return Pointwise(strict_kind=Kind.WHOLE_VOLUME)

    def outcome(self, volume: Volume) -> Volume:
        """Return the volume."""
        constant(self.value_outside, real(volume).dtype)
        return volume

    def groups(self, volume: Volume) -> tuple[str, ...]:
        """Return the mask's name."""
        return (self.path,)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Choose."""
        mask = context.group(self.path, context.source)
        if mask.shape[0] not in (1, block.shape[0]):
            raise TransformError(
                f"The mask {self.path!r} has {mask.shape[0]} channels, the array {block.shape[0]}.",
                hint="Take a mask of one channel.",
            )
        return np.where(mask != 0, block, constant(self.value_outside, block.dtype))


def equals(block: NDArray, label: float) -> NDArray:
    """Return where values are a label, in whatever type; a label that the type cannot hold is nowhere."""
    if block.dtype.kind != "f":
        return np.asarray(block == label)
    with np.errstate(over="ignore"):
        held = block.dtype.type(label)
    return np.asarray(block == held) if np.isfinite(held) else np.zeros(block.shape, bool)


def _counts(volume: Volume) -> tuple[int, ...]:
    given = volume.attributes.get(COUNTS)
    if given is None:
        raise TransformError(
            f"MergeLabels needs the attribute {COUNTS!r}.",
            hint=f"Give it: plan(..., attributes={{{COUNTS!r}: (3, 4)}}).",
        )
    try:
        counts = tuple(int(one) for one in given)
    except (TypeError, ValueError):
        counts = ()
    if len(counts) != volume.channels or min(counts, default=0) < 1:
        raise TransformError(
            f"{COUNTS} is {given!r}; it needs a number from 1 on for each of the {volume.channels} channels."
        )
    return counts


def _pair(given: Any) -> tuple[float, float]:
    match = _PAIR.fullmatch(given) if isinstance(given, str) else None
    parts: Any = match.groups() if match else given
    if not isinstance(parts, str) and isinstance(parts, Sequence) and len(parts) == 2:
        try:
            return _number(parts[0]), _number(parts[1])
        except (TypeError, ValueError):
            pass
    raise UsageError(f"SelectLabel takes '(old,new)' with two numbers, got {given!r}.")


def _number(text: Any) -> float:
    """Return an int where it is one."""
    value = float(text)
    whole = int(text) if isinstance(text, str) and re.fullmatch(r"[+-]?\d+", text) else None
    if whole is None and value.is_integer():
        whole = int(value)
    if whole is None and not np.isfinite(value):
        raise ValueError(text)
    return value if whole is None else whole
