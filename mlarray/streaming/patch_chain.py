"""What may be done to each patch by itself, after it was cut and padded?

Only what needs nothing but the patch: pointwise transforms, and those that need a statistic, which is then the patch's own
unless a ``lazy`` stage of the case chain left it (``Standardize(lazy=True)`` for the case, ``Standardize()`` for the patch: the
statistic of the volume). Everything else would take the edge of the patch for that of the volume; it is refused before a file is
opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from mlarray.errors import MLArrayError, PlanError, TransformError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming.chain import Stage, resolve
from mlarray.streaming.execute import execute
from mlarray.streaming.finite import tell_of_unfinite
from mlarray.transforms.base import Transform
from mlarray.transforms.locality import Kind, Locality
from mlarray.transforms.save import Save
from mlarray.transforms.statistics import Block, statistic_blocks
from mlarray.transforms.volume import Volume

PROBE_SHAPE = (7, 11, 13)
"""Extents for which the shape after a transform is looked at: different ones, so that exchanged axes show."""

PROBE_CHANNELS = 16
"""Most channels for which a stage of the case chain is asked what it leaves."""

_REASONS = {
    Kind.HALO: "sees nothing beyond the edge of the patch, so every border of a patch would be wrong",
    Kind.ORIENTATION: "would reorient each patch about itself, not the volume",
    Kind.CROP: "would crop each patch, and break the grid that predictions are put together on",
    Kind.RESCALE: "would resample each patch about itself, and break the grid that predictions are put together on",
    Kind.REGRID: "takes voxels from other places of the volume, and would take the edge of the patch for that of the volume",
    Kind.WHOLE_VOLUME: "needs the whole volume, of which a patch is a part",
}
_MOVE = "Move it to `transforms`, which are done to the case."


def check_patch_transforms(
    transforms: Iterable[Transform],
    *,
    where: str = "patch_transforms",
    mode: str = "train",
    case_chain: Iterable[Transform] = (),
    result: Volume | None = None,
) -> None:
    """Refuse what cannot be done to a patch by itself; no file is read.

    Parameters
    ----------
    transforms : iterable of Transform
        In the order they run.
    where : str
        Path of the list in the configuration, for messages.
    mode : str
        In ``"predict"`` a statistic of the patch alone is refused too, where a prediction has to be carried back through it.
    case_chain : iterable of Transform
        What is done to the case before.
    result : Volume, optional
        What the case chain gives, where it is known already. Default: one channel of float32, with what the lazy stages of
        ``case_chain`` leave.

    Raises
    ------
    PlanError
        The first transform that does not fit: with ``where``, its name, the reason and the remedy.
    """
    chain, bare = list(transforms), _bare(result)
    probe = bare
    for transform in chain:
        reason = _refusal(transform, probe, where)
        if reason:
            raise PlanError(f"{where}: {transform.name} {reason}.", hint=_MOVE)
        for shape in ((1,) * probe.ndim, probe.shape):  # an axis of one voxel may be one that goes away
            after = _outcome(transform, probe.with_(shape=shape), where)
            if after.shape != shape:
                raise PlanError(
                    f"{where}: {transform.name} changes the spatial shape, {shape} to {after.shape}.", hint=_MOVE
                )
        probe = after
    if mode == "predict":
        left = _left_by(case_chain, bare) if result is None else result
        _check_undoable(chain, bare.with_(attributes=left.attributes), where)


def apply_patch_transforms(transforms: Sequence[Transform], array: NDArray, volume: Volume) -> NDArray:
    """Return a patch after its transforms.

    Parameters
    ----------
    transforms : sequence of Transform
        Checked by :func:`check_patch_transforms`.
    array : ndarray, shape (C, spatial...)
        The patch as it was cut and padded; not changed.
    volume : Volume
        What it was cut from, with the attributes of its case as they were measured; what patches note is not seen by others.

    Returns
    -------
    ndarray, shape (C', spatial...)
        The caller's own; the array itself where there is nothing to do.

    Raises
    ------
    TransformError
        A transform refuses the patch, or returns something else than it declared; names it and the case.
    """
    if not transforms:
        return array
    case = f"{volume.case} (a patch)" if volume.case else "a patch"
    current = volume.with_(channels=array.shape[0], shape=array.shape[1:], dtype=array.dtype, case=case)
    block, region = array.view(), current.region  # of the view, so that the caller may still write into the array
    for stage in resolve(current, transforms).stages:
        measured = {one: one.measure(partial(_blocks, block)) for one in stage.transform.statistics(current)}
        for one, value in measured.items():
            tell_of_unfinite(
                value, one, partial(_blocks, block), f"{stage.transform.name} of patches, case {volume.case!r}"
            )
        after = stage.transform.noted(stage.transform.outcome(current), measured)
        block = execute([stage], [current, after], [region, region], block, [measured], _no_group)
        current = after
    return block.copy() if np.may_share_memory(block, array) or not block.flags.writeable else block


def patch_result(result: Volume, transforms: Sequence[Transform]) -> Volume:
    """Return what a patch of a volume is after its transforms; as it was cut where that is not known from headers."""
    try:
        return resolve(result, transforms).result
    except MLArrayError:
        return result


def _bare(result: Volume | None) -> Volume:
    """Return a volume to ask transforms about: without attributes, so that nothing that only one case has is counted on."""
    bare = Volume(1, PROBE_SHAPE, np.dtype(np.float32))
    if result is None:
        return bare
    shape = PROBE_SHAPE[: result.ndim] if result.ndim <= len(PROBE_SHAPE) else result.shape
    return bare.with_(channels=result.channels, shape=shape, dtype=result.dtype, is_label=result.is_label)


def _refusal(transform: Transform, probe: Volume, where: str) -> str:
    """Return why a transform cannot be done to a patch by itself, or nothing."""
    if not isinstance(transform, Transform):
        raise PlanError(
            f"{where}: {type(transform).__name__} is not a transform.",
            hint="Subclass mlarray.transforms.Transform and define apply(block, context).",
        )
    try:
        locality = transform.locality(probe)
        masks = [one.mask for one in transform.statistics(probe) if one.mask is not None]
        others = [*transform.groups(probe), *transform.references(probe), *masks]
    except Exception as error:
        raise _not_total(transform, error, where) from error
    if not isinstance(locality, Locality):
        raise PlanError(
            f"{where}: locality() of {transform.name} returned {type(locality).__name__}, not a locality.",
            hint="Return Pointwise(), GlobalStatistic() or another of mlarray.transforms.locality.",
        )
    # A kind that the published rules load the volume for: percentiles, fields of noise, what depends on the place in the volume.
    kind = Kind.REGRID if locality.kind is Kind.REGRID else locality.strict_kind
    if isinstance(transform, Save):
        return "writes cases, and a patch is none"
    if kind in _REASONS:
        return _REASONS[kind]
    return f"needs group {others[0]!r} of the case, of which a patch has no part" if others else ""


def _outcome(transform: Transform, volume: Volume, where: str) -> Volume:
    """Return what a transform makes of a volume; the volume itself where there is no output for one without attributes."""
    try:
        return transform.outcome(volume)
    except MLArrayError:
        return volume
    except Exception as error:
        raise _not_total(transform, error, where) from error


def _not_total(transform: Transform, error: Exception, where: str) -> PlanError:
    name = getattr(transform, "name", type(transform).__name__)
    return PlanError(
        f"{where}: the declaration of {name} failed with {type(error).__name__}: {error}.",
        hint="A declaration must be total: where something is unknown, answer WholeVolume().",
    )


def _left_by(case_chain: Iterable[Transform], volume: Volume) -> Volume:
    """Return a volume with the attributes that a case chain leaves, whatever number of channels its stages want."""
    for transform in case_chain:
        for channels in range(1, PROBE_CHANNELS + 1):
            asked = volume.with_(channels=channels)
            after = _outcome(transform, asked, "transforms")
            if after is not asked:
                volume = after
                break
    return volume


def _check_undoable(chain: Sequence[Transform], volume: Volume, where: str) -> None:
    """Refuse a statistic that only the patch has, for a stage that has to be undone."""
    for transform in chain:
        undone = transform.invertible and getattr(transform, "inverse", True)
        if undone and transform.locality(volume).kind is Kind.GLOBAL_STAT and transform.statistics(volume):
            raise PlanError(
                f"{where}: {transform.name} takes its statistic from each patch, and a prediction cannot be carried back "
                "through it.",
                hint=f"Put {transform.name}(lazy=True) into `transforms`, which keeps the statistic of the volume, or say "
                "inverse=False.",
            )
        volume = _outcome(transform, volume, where)


def _blocks(block: NDArray) -> Iterator[Block]:
    """Give the fixed blocks of a patch, cut as those of a volume."""
    for region in statistic_blocks(block.shape[0], block.shape[1:]):
        yield block[(slice(None), *region.slices)], None


def _no_group(stage: Stage, name: str, region: Region) -> NDArray:
    raise TransformError(f"{stage.title}: a patch has no group {name!r}.", hint=_MOVE)
