"""Where are the labels of a case? Up to 10,000 voxels of each, from one pass over the segmentation.

Patches around labels need a few voxels of every class, not all. Which are kept does not depend on how the volume was read:
every voxel has a number, a hash of its index, and those with the lowest numbers stay (Vitter's reservoir with keys instead of
counts). Where nnU-Net kept voxels when it preprocessed the case, those are taken, without a pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from mlarray.errors import FormatError, TransformError
from mlarray.formats.nnunet_case import HEADER_KEY, restored_locations
from mlarray.region import Region
from mlarray.sources.base import NDArray, SourceInfo
from mlarray.streaming.arguments import instance, listed, whole
from mlarray.streaming.fingerprint import fingerprint
from mlarray.streaming.grid import patch_grid
from mlarray.streaming.grid_map import GridMap
from mlarray.streaming.kept import Kept
from mlarray.streaming.plan import Plan
from mlarray.transforms.augmentations.drawing import key_of, numbers

LIMIT = 10_000
"""Voxels kept of each class: nnU-Net's own number."""
MAX_CLASSES = 2048
"""Most different labels; more are a sign that the values are no labels."""
_READ_VOXELS = 1 << 23
_HASHED_VOXELS = 1 << 20
_TABLE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class ClassLocations:
    """Voxels of each class.

    Parameters
    ----------
    shape : tuple of int
        Spatial extents of the volume.
    indices : mapping of int to ndarray
        By label, the linear indices of voxels in C order, rising; half the size of coordinates.

    Examples
    --------
    >>> found = ClassLocations((4, 5), {0: np.array([0]), 7: np.array([6, 13])})
    >>> found.present(), found.count(7), found.voxel(7, 1), found.voxels(7).tolist()
    ((7,), 2, (2, 3), [[1, 1], [2, 3]])
    """

    shape: tuple[int, ...]
    indices: Mapping[int, NDArray] = field(default_factory=dict)

    def present(self, classes: Collection[int] | None = None) -> tuple[int, ...]:
        """Return the labels that have voxels, rising: of ``classes``, by default all above 0."""
        return tuple(
            sorted(
                label
                for label, found in self.indices.items()
                if len(found) and (label > 0 if classes is None else label in classes)
            )
        )

    def count(self, label: int) -> int:
        """Return how many voxels of a label are kept."""
        return len(self.indices.get(label, ()))

    def voxel(self, label: int, number: int) -> tuple[int, ...]:
        """Return a voxel of a label, one index per axis."""
        return tuple(int(at) for at in np.unravel_index(int(self.indices[label][number]), self.shape))

    def voxels(self, label: int) -> NDArray:
        """Return the voxels of a label as an array of int64, shape (n, spatial)."""
        found = np.asarray(self.indices.get(label, ()), np.int64)
        return np.stack(np.unravel_index(found, self.shape), axis=-1).astype(np.int64)

    def to_arrays(self) -> dict[str, object]:
        """Return the same as a few arrays, for :class:`~mlarray.streaming.kept.Kept`."""
        labels = sorted(self.indices)
        counts = [len(self.indices[label]) for label in labels]
        joined = np.concatenate([self.indices[label] for label in labels]) if labels else np.empty(0, _kind(self.shape))
        return {
            "shape": list(self.shape),
            "labels": np.array(labels, np.int64),
            "counts": np.array(counts, np.int64),
            "indices": joined,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, object]) -> ClassLocations:
        """Return what :meth:`to_arrays` took apart.

        Raises
        ------
        FormatError
            When the arrays do not fit each other.
        """
        try:
            shape = tuple(int(n) for n in arrays["shape"])  # type: ignore[attr-defined]
            labels, counts, joined = (np.asarray(arrays[name]) for name in ("labels", "counts", "indices"))
            fits = len(labels) == len(counts) and (counts >= 0).all() and int(counts.sum()) == len(joined)
            if not fits or joined.dtype.kind != "u" or (len(joined) and int(joined.max()) >= math.prod(shape)):
                raise ValueError("the counts do not fit the voxels")
            pieces = np.split(joined, np.cumsum(counts)[:-1]) if len(counts) else []
            return cls(shape, {int(label): piece for label, piece in zip(labels, pieces, strict=True)})
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"These are no locations of labels: {error}.") from error


def class_locations(plan: Plan, *, limit: int = LIMIT, seed: int = 0) -> ClassLocations:
    """Find voxels of every label in the result of a segmentation's chain, in one pass and bounded memory.

    Parameters
    ----------
    plan : Plan
        Of the segmentation; its result has one channel.
    limit : int
        Most voxels of a label. Labels with fewer keep all.
    seed : int
        Of the hash that decides which stay.

    Returns
    -------
    ClassLocations
        On the grid of the result; without label 0.

    Raises
    ------
    TransformError
        The result has several channels, values that are not whole numbers, or more than 2048 different ones.
    """
    instance("plan", plan, Plan, "stream.plan(case, group) is one.")
    limit, seed = whole("limit", limit, 1), whole("seed", seed)
    volume = plan.result
    if volume.channels != 1:
        raise TransformError(
            f"{plan.source.name}: the segmentation has {volume.channels} channels, locations are of labels in one.",
            hint="Append Argmax, or MergeLabels, to its transforms.",
        )
    if volume.dtype.kind not in "biuf":
        raise TransformError(f"{plan.source.name}: {volume.dtype} is no type for labels.", hint="Append TensorCast.")
    key = key_of("locations", seed)
    kept: dict[int, tuple[NDArray, NDArray]] = {}
    for region in _slabs(volume.shape):
        block = plan.read(region)[0]
        for labels, indices in _foreground(block, region, volume.shape, plan.source.name):
            hashes = numbers(key, indices.copy())
            _keep_lowest(kept, labels, hashes, indices, limit)
            if len(kept) > MAX_CLASSES:
                raise TransformError(
                    f"{plan.source.name} holds more than {MAX_CLASSES} different values: is it a segmentation?",
                    hint="Name the group of the segmentation.",
                )
    kind = _kind(volume.shape)
    return ClassLocations(volume.shape, {label: np.sort(kept[label][1]).astype(kind) for label in sorted(kept)})


def kept_by_nnunet(plan: Plan, beside: Iterable[SourceInfo] = ()) -> ClassLocations | None:
    """Return the voxels that nnU-Net kept of a case, on the grid of a chain's result; None where they cannot be had.

    Parameters
    ----------
    plan : Plan
        Of the segmentation that nnU-Net preprocessed. Its chain must keep grid and labels: axes may be exchanged, mirrored or
        cropped.
    beside : iterable of SourceInfo
        Of the other groups of the case: nnU-Net keeps the voxels with the image.
    """
    grid, own = GridMap.of(plan.chain), plan.source.info
    if grid.changed is not None or plan.chain.stored.ndim != 3 or HEADER_KEY not in own.header:
        return None
    stored, shape = plan.chain.stored.shape, plan.result.shape
    for info in (own, *beside):
        try:
            listed = {} if info.locations is None else restored_locations(info.locations)
        except FormatError:
            continue
        # Other keys are regions of several labels, or all that is annotated.
        places = {
            label: np.asarray(at, np.int64).reshape(-1, 4)[:, 1:] for label, at in listed.items() if type(label) is int
        }
        if places and all((at < stored).all() for at in places.values()):
            moved = {label: grid.result_voxels(at, shape) for label, at in places.items()}
            return ClassLocations(shape, {label: _indices(at, shape) for label, at in moved.items()})
    return None


def locations_of(
    plan: Plan, *, store: Kept | None = None, beside: Iterable[SourceInfo] = (), limit: int = LIMIT, seed: int = 0
) -> ClassLocations:
    """Return the voxels of a case: those that nnU-Net kept, those that were found before, or those that are found now and kept.

    Parameters
    ----------
    plan, limit, seed
        As for :func:`class_locations`.
    store : Kept, optional
        Where what was found is looked up and kept.
    beside : iterable of SourceInfo
        As for :func:`kept_by_nnunet`.

    Raises
    ------
    TransformError
        As for :func:`class_locations`.
    """
    instance("plan", plan, Plan, "stream.plan(case, group) is one.")
    limit, seed = whole("limit", limit, 1), whole("seed", seed)
    if store is not None:
        instance("store", store, Kept, "kept_for(dataset) is one.")
    found = kept_by_nnunet(plan, listed("beside", beside, SourceInfo, "plan.source.info is one."))
    if found is not None:
        return found
    mark = None if store is None else fingerprint(plan, root=store.root)
    if store is None or mark is None:
        return class_locations(plan, limit=limit, seed=seed)
    key = f"locations {limit} {seed} {mark}"
    before = store.get(key)
    if before is not None:
        try:
            found = ClassLocations.from_arrays(before)
        except FormatError:
            found = None
        if found is not None and found.shape == plan.result.shape:
            return found
    found = class_locations(plan, limit=limit, seed=seed)
    store.put(key, found.to_arrays())
    return found


def _slabs(shape: tuple[int, ...]) -> Iterator[Region]:
    """Yield boxes that cover a volume, of at most 8 million voxels each."""
    size = list(shape)
    for axis, n in enumerate(shape):
        rest = math.prod(shape[axis + 1 :])
        size[axis] = min(n, max(1, _READ_VOXELS // max(1, rest)))
        if rest <= _READ_VOXELS:
            break
    if math.prod(shape):
        yield from patch_grid(shape, size, overlap=0)


def _foreground(block: NDArray, region: Region, shape: tuple[int, ...], name: str) -> Iterator[tuple[NDArray, NDArray]]:
    """Yield labels and linear indices of the voxels that are not 0, at most a million at a time."""
    flat = block.reshape(-1)
    inner = block.shape
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    for start in range(0, flat.size, _HASHED_VOXELS):
        part = flat[start : start + _HASHED_VOXELS]
        at = np.flatnonzero(part)
        if not at.size:
            continue
        values = part[at]
        with np.errstate(invalid="ignore"):
            labels = values.astype(np.int64)
        if values.dtype.kind == "f" and not np.array_equal(labels, values):
            raise TransformError(
                f"{name} holds values that are no whole numbers, such as {values[labels != values][0]}: it is no segmentation.",
                hint="Name the group of the segmentation.",
            )
        places = np.unravel_index(at + start, inner)
        index = np.zeros(at.size, np.uint64)
        for place, first, stride in zip(places, region.start, strides, strict=True):
            index += ((place + first) * stride).astype(np.uint64)
        yield labels, index


def _keep_lowest(
    kept: dict[int, tuple[NDArray, NDArray]], labels: NDArray, hashes: NDArray, indices: NDArray, limit: int
) -> None:
    """Add voxels to what is kept of their labels: the ``limit`` with the lowest hashes of each."""
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < _TABLE:  # most voxels go here, once the labels have all they may
        least = np.full(high + 1, np.iinfo(np.uint64).max, np.uint64)
        for label, (old, _) in kept.items():
            if 0 <= label <= high and len(old) == limit:
                least[label] = old.max()
        stays = hashes <= least[labels]
        labels, hashes, indices = labels[stays], hashes[stays], indices[stays]
        if not len(labels):
            return
    order = np.argsort(labels, kind="stable")
    labels, hashes, indices = labels[order], hashes[order], indices[order]
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True):
        label = int(labels[start])
        new, where = hashes[start:stop], indices[start:stop]
        if label in kept:
            old, there = kept[label]
            new, where = np.concatenate([old, new]), np.concatenate([there, where])
        if len(new) > limit:
            lowest = np.argpartition(new, limit - 1)[:limit]
            new, where = new[lowest], where[lowest]
        kept[label] = (new, where)


def _indices(voxels: NDArray, shape: tuple[int, ...]) -> NDArray:
    return np.sort(np.ravel_multi_index(tuple(voxels.T), shape)).astype(_kind(shape))


def _kind(shape: tuple[int, ...]) -> np.dtype[np.unsignedinteger]:
    return np.dtype(np.uint32 if math.prod(shape) <= 2**32 else np.uint64)
