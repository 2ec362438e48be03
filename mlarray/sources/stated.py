"""A source with what its user knows and its file does not say: names of axes, spacing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlarray.axes import AxesLike, are_labelled, parse_axes
from mlarray.errors import UsageError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.sources.base import NDArray, Source, SourceBase
from mlarray.spec import ArraySpec

_ANSWERED = frozenset({"axes-unknown", "spacing-unknown"})


class StatedSource(SourceBase):
    """A source under another spec of the same shape and dtype; what else it offers (chunks, a cache) stays reachable.

    Parameters
    ----------
    inner : Source
        Where the voxels are.
    spec : ArraySpec
        What is said of them.
    """

    def __init__(self, inner: Source, spec: ArraySpec) -> None:
        self.inner = inner
        self.spec = spec
        self.access = inner.access
        self.order = inner.order
        notes = tuple(note for note in inner.info.notes if note.code not in _ANSWERED)
        self.info = replace(inner.info, notes=notes)

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Return the voxels of ``region``."""
        return self.inner.read(region, out)

    def close(self) -> None:
        """Release the files of the inner source."""
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __reduce__(self) -> tuple[object, ...]:
        return (StatedSource, (self.inner, self.spec))


def with_stated(source: Source, *, axes: AxesLike | None = None, spacing: Sequence[float] | None = None) -> Source:
    """Return a source with axes and spacing where it does not state them itself; otherwise the source as it is.

    Parameters
    ----------
    source : Source
        Whose own statements count.
    axes : str or sequence, optional
        As for :func:`mlarray.axes.parse_axes`.
    spacing : sequence of float, optional
        Millimetres; one for all spatial axes, or one for each in array order.

    Raises
    ------
    UsageError
        When numbers of axes disagree.
    """
    spec = source.spec
    if axes is not None and not are_labelled(spec.axes):
        named = parse_axes(axes)
        if len(named) != spec.ndim:
            raise UsageError(f"{len(named)} axes were named for an array of {spec.ndim}, shape {spec.shape}.")
        spec = ArraySpec(spec.shape, spec.dtype, named, spec.geometry)
    known = frozenset() if spec.geometry is None else spec.geometry.known
    if spacing is not None and "spacing" not in known:
        spec = replace(spec, geometry=_spaced(spec, spacing))
    return source if spec is source.spec else StatedSource(source, spec)


def _spaced(spec: ArraySpec, spacing: Sequence[float]) -> Geometry:
    count = sum(spec.spatial)
    values = tuple(spacing) * count if len(spacing) == 1 else tuple(spacing)
    if len(values) != count:
        raise UsageError(
            f"{len(values)} spacings were given for {count} spatial axes in {[axis.name for axis in spec.axes]}.",
            hint="Give one for each, in array order; name the axes with --axes if some are not spatial.",
        )
    old = spec.geometry
    known = frozenset() if old is None else old.known
    return Geometry.from_parts(
        spacing=values,
        origin=old.origin if old is not None and "origin" in known else None,
        direction=old.direction if old is not None and "direction" in known else None,
        coord_system=None if old is None else old.coord_system,
    )
