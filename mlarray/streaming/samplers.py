"""Where in a volume is the next patch?

A sampler says how many patches a case gives, and where each lies: a function of a *key* (of seed, epoch, case and copy) and of
the number of the patch, so that every worker and every run finds the same place. :class:`GridPatches` covers the volume,
:class:`RandomPatches` draws, :class:`ForegroundPatches` draws some of them around labels, as nnU-Net does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from mlarray.block_grid import BlockGrid
from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.streaming.arguments import instance, number, whole
from mlarray.streaming.class_locations import ClassLocations
from mlarray.streaming.grid import Overlap, PatchGrid, extents_of, patch_grid
from mlarray.streaming.grid_map import GridMap
from mlarray.streaming.plan import Plan
from mlarray.transforms.augmentations.drawing import integer_below, key_of, uniforms

PatchSize: TypeAlias = int | Sequence[int] | None
Origins: TypeAlias = Sequence[Sequence[int]]
Carry: TypeAlias = Callable[[tuple[int, ...]], Sequence[int]]
BLOCKS = "blocks"


@runtime_checkable
class Sampler(Protocol):
    """What every sampler answers. A frozen value; pickles."""

    @property
    def group(self) -> str | None:
        """The group whose :class:`ClassLocations` :meth:`region` needs; None where it needs none."""

    @property
    def aligned(self) -> bool:
        """Whether :meth:`region` needs the origins that :func:`block_origins` finds."""

    def count(self, shape: Sequence[int], patch_size: PatchSize) -> int:
        """Return how many patches a volume gives."""

    def forced(self, position: int, batch_size: int) -> bool:
        """Tell whether the patch at a position of its batch must hold a label."""

    def region(
        self,
        shape: Sequence[int],
        patch_size: PatchSize,
        index: int,
        *,
        key: int,
        locations: ClassLocations | None = None,
        forced: bool = False,
        origins: Origins | None = None,
        carry: Carry | None = None,
    ) -> Region:
        """Return where a patch lies: within the volume, as large as the patch, or as the volume along an axis that is smaller.

        Every sampler is asked with all of these by name; one that needs few of them takes the others as ``**_``.

        Parameters
        ----------
        shape : sequence of int
            Spatial extents of the volume.
        patch_size : int, sequence of int or None
            Per spatial axis; 0 is free, None the whole volume.
        index : int
            From 0 to ``count - 1``.
        key : int
            Of what the patches are drawn for, see :func:`mlarray.transforms.augmentations.drawing.key_of`.
        locations : ClassLocations, optional
            Where the labels of the case are.
        forced : bool
            Whether the patch must hold a label, see :meth:`forced`.
        origins : sequence of sequence of int, optional
            The origins that may be taken, per axis, rising. Default: all.
        carry : callable, optional
            Returns the voxel of this volume for one of the volume that the locations are of, where the two differ (a copy).
        """


@dataclass(frozen=True, slots=True)
class GridPatches:
    """Every patch of a grid that covers the volume, once; the same in every epoch.

    Parameters
    ----------
    overlap : optional
        See :func:`mlarray.streaming.patch_grid`.

    Examples
    --------
    >>> grid = GridPatches()
    >>> [grid.region((10,), 4, index, key=0).start for index in range(grid.count((10,), 4))]
    [(0,), (3,), (6,)]
    """

    overlap: Overlap = None
    group = None
    aligned = False

    def count(self, shape: Sequence[int], patch_size: PatchSize) -> int:
        """Return how many patches cover the volume."""
        return len(self._grid(shape, patch_size))

    def forced(self, position: int, batch_size: int) -> bool:
        """Return False."""
        return False

    def region(self, shape: Sequence[int], patch_size: PatchSize, index: int, **_: object) -> Region:
        """Return a patch of the grid, last axis fastest."""
        return self._grid(shape, patch_size)[whole("index", index, 0)]

    def _grid(self, shape: Sequence[int], patch_size: PatchSize) -> PatchGrid:
        return patch_grid(shape, patch_size, self.overlap)


@dataclass(frozen=True, slots=True)
class RandomPatches:
    """Patches at places that are drawn anew in every epoch, all equally likely.

    Parameters
    ----------
    per_case : int
        How many patches a case gives in an epoch.
    align : {None, "blocks"}
        ``"blocks"``: only where a stored block begins, see :func:`block_origins`.

    Raises
    ------
    UsageError
        A number below 1, or another word.

    Examples
    --------
    >>> RandomPatches(8).region((100, 100), (64, 200), 0, key=1).shape
    (64, 100)
    """

    per_case: int
    align: str | None = None
    group = None

    def __post_init__(self) -> None:
        _check(self.per_case, self.align)

    @property
    def aligned(self) -> bool:
        """Whether origins are those of blocks."""
        return self.align is not None

    def count(self, shape: Sequence[int], patch_size: PatchSize) -> int:
        """Return ``per_case``."""
        return self.per_case

    def forced(self, position: int, batch_size: int) -> bool:
        """Return False."""
        return False

    def region(
        self,
        shape: Sequence[int],
        patch_size: PatchSize,
        index: int,
        *,
        key: int,
        origins: Origins | None = None,
        **_: object,
    ) -> Region:
        """Return a patch at a drawn place."""
        return _drawn(shape, patch_size, index, key, _needed(origins, self.align))


@dataclass(frozen=True, slots=True)
class ForegroundPatches:
    """Random patches, some of which are drawn around a voxel of a label.

    The rule is that of nnU-Net's data loader (Isensee et al. 2021), where ``fraction`` is ``oversample_foreground_percent``: the
    patch at position *j* of a batch of *b*, from 0, is forced to hold a label when ``j >= round(b * (1 - fraction))``, with the
    ``round`` of Python. For it, a class is drawn, all that the case holds being equally likely, then a voxel of this class, and
    the patch is centred on the voxel and moved inside the volume. All other patches, and all of a case without labels, are those
    of :class:`RandomPatches`.

    Parameters
    ----------
    per_case : int
        How many patches a case gives in an epoch.
    group : str
        The segmentation.
    fraction : float
        From 0 to 1. With batches of one and a fraction below a half no patch is forced, by the rule.
    classes : sequence of int, optional
        Labels that count. Default: all above 0.
    align : {None, "blocks"}
        ``"blocks"``: the patch begins where a stored block begins, as near as possible to where it would, and holds the voxel.

    Raises
    ------
    UsageError
        A number below 1, a fraction outside 0 and 1, or another word.

    Examples
    --------
    >>> sampler = ForegroundPatches(8, "SEG")
    >>> [sampler.forced(position, 2) for position in range(2)], [sampler.forced(j, 12) for j in range(12)].count(True)
    ([False, True], 4)
    """

    per_case: int
    group: str
    fraction: float = 0.33
    classes: tuple[int, ...] | None = None
    align: str | None = None

    def __post_init__(self) -> None:
        _check(self.per_case, self.align)
        if not isinstance(self.group, str):
            raise UsageError(f"group is the name of the segmentation, got {self.group!r}.")
        if number("fraction", self.fraction, "a number from 0 to 1", least=0) > 1:
            raise UsageError(f"fraction is a number from 0 to 1, got {self.fraction!r}.")
        if self.classes is not None:
            listed = self.classes if isinstance(self.classes, Iterable) and not isinstance(self.classes, str) else None
            if listed is None:
                raise UsageError(f"classes is a list of labels, got {self.classes!r}.")
            object.__setattr__(self, "classes", tuple(whole("A label of classes", label) for label in listed))

    @property
    def aligned(self) -> bool:
        """Whether origins are those of blocks."""
        return self.align is not None

    def count(self, shape: Sequence[int], patch_size: PatchSize) -> int:
        """Return ``per_case``."""
        return self.per_case

    def forced(self, position: int, batch_size: int) -> bool:
        """Tell whether the patch at a position of its batch, from 0, must hold a label."""
        return position >= round(batch_size * (1 - self.fraction))

    def region(
        self,
        shape: Sequence[int],
        patch_size: PatchSize,
        index: int,
        *,
        key: int,
        locations: ClassLocations | None = None,
        forced: bool = False,
        origins: Origins | None = None,
        carry: Carry | None = None,
    ) -> Region:
        """Return a patch at a drawn place, or around a drawn voxel where it is forced."""
        origins = _needed(origins, self.align)
        if not forced:
            return _drawn(shape, patch_size, index, key, origins)
        if locations is None:
            raise UsageError(
                f"A patch around a label needs the locations of the labels in {self.group!r}.",
                hint="Pass locations=class_locations(plan), the plan being that of the segmentation.",
            )
        classes = locations.present(self.classes)
        if not classes:
            return _drawn(shape, patch_size, index, key, origins)
        which, place = uniforms(key_of("foreground", key, index), 2)
        label = classes[integer_below(which, len(classes))]
        voxel = locations.voxel(label, integer_below(place, locations.count(label)))
        return around(voxel if carry is None else carry(voxel), shape, patch_size, origins=origins)


def around(
    voxel: Sequence[int], shape: Sequence[int], patch_size: PatchSize, *, origins: Origins | None = None
) -> Region:
    """Return the patch that is centred on a voxel (``voxel - size // 2`` is its first) and moved inside the volume.

    Parameters
    ----------
    voxel, shape : sequence of int
        Spatial, in array order.
    patch_size : int, sequence of int or None
        See :meth:`Sampler.region`.
    origins : sequence of sequence of int, optional
        Per axis, the origins that may be taken: the nearest whose patch holds the voxel is.

    Examples
    --------
    >>> around((50, 2), (100, 100), (10, 10))
    Region(start=(45, 0), stop=(55, 10))
    >>> around((50, 2), (100, 100), (10, 10), origins=[(0, 8, 44, 48), (0, 90)])
    Region(start=(44, 0), stop=(54, 10))
    """
    sizes = _extents(shape, patch_size)
    start = [min(max(0, at - size // 2), n - size) for at, size, n in zip(voxel, sizes, shape, strict=True)]
    if origins is not None:
        start = [_nearest(*one) for one in zip(origins, start, voxel, sizes, strict=True)]
    return Region.at(start, sizes)


def block_origins(plan: Plan, patch_size: PatchSize) -> tuple[tuple[int, ...], ...]:
    """Return the origins of patches of a plan's result whose voxels begin, in the stored file, with a block.

    Besides them, the first and the last position of each axis are origins, so that no voxel is left out; mirrored and exchanged
    axes are followed, and so is a crop. A file without blocks has all positions as origins.

    Parameters
    ----------
    plan : Plan
        That reads the file, and whose chain keeps the stored grid.
    patch_size : int, sequence of int or None
        See :meth:`Sampler.region`.

    Returns
    -------
    tuple of tuple of int
        Per axis, rising.

    Raises
    ------
    UsageError
        A stage computes another grid; the message names it.
    """
    grid = GridMap.of(instance("plan", plan, Plan, "stream.plan(case, group) is one.").chain)
    if grid.broken is not None:
        raise UsageError(
            f'align="blocks" needs patches on the stored grid, which {grid.broken.label} leaves.',
            hint="Leave align out, or Save what the stage gives and stream from there.",
        )
    sizes = _extents(plan.result.shape, patch_size)
    stored = plan.source.spatial_blocks
    lines = []
    for axis, (n, size) in enumerate(zip(plan.result.shape, sizes, strict=True)):
        source = grid.axes[axis]
        if stored is None:
            lines.append(tuple(range(n - size + 1)))
            continue
        begins = BlockGrid(*((one[source.axis],) for one in stored)).origins(size)[0]
        found = {source.result_of(begin if source.step > 0 else begin + size - 1) for begin in begins}
        lines.append(tuple(sorted({0, n - size} | {one for one in found if 0 <= one <= n - size})))
    return tuple(lines)


def _drawn(shape: Sequence[int], patch_size: PatchSize, index: int, key: int, origins: Origins | None) -> Region:
    sizes = _extents(shape, patch_size)
    draws = uniforms(key_of("patch", key, index), len(sizes))
    if origins is None:
        start = [integer_below(u, n - size + 1) for u, n, size in zip(draws, shape, sizes, strict=True)]
    else:
        start = [line[integer_below(u, len(line))] for u, line in zip(draws, origins, strict=True)]
    return Region.at(start, sizes)


def _nearest(line: Sequence[int], wanted: int, voxel: int, size: int) -> int:
    """Return the origin nearest to ``wanted``, of two as near the lower; where there is one, one whose patch holds the voxel."""
    low, high = bisect_right(line, voxel - size), bisect_right(line, voxel)
    if low == high:
        low, high = 0, len(line)
    after = bisect_left(line, wanted, low, high)
    near = [line[at] for at in (after - 1, after) if low <= at < high]
    return min(near, key=lambda origin: (abs(origin - wanted), origin))


def _extents(shape: Sequence[int], patch_size: PatchSize) -> tuple[int, ...]:
    """Return the extents of a patch within a volume."""
    shape = extents_of("shape", shape)
    if patch_size is None:
        return tuple(shape)
    if isinstance(patch_size, (str, bytes)) or not isinstance(patch_size, Iterable):
        patch_size = (whole("patch_size", patch_size, 0),) * len(shape)
    sizes = tuple(patch_size)
    if len(sizes) != len(shape) or any(size < 0 for size in sizes):
        raise UsageError(f"A patch has {len(shape)} extents from 0 (free) on, one per spatial axis, got {sizes}.")
    return tuple(min(size, n) if size else n for size, n in zip(sizes, shape, strict=True))


def _needed(origins: Origins | None, align: str | None) -> Origins | None:
    if align is None:
        return None
    if origins is None:
        raise UsageError('align="blocks" needs the origins.', hint="Pass origins=block_origins(plan, patch_size).")
    return origins


def _check(per_case: object, align: str | None) -> None:
    whole("per_case", per_case, 1)
    if align is not None and not (isinstance(align, str) and align == BLOCKS):
        raise UsageError(f"align is None or {BLOCKS!r}, got {align!r}.")
