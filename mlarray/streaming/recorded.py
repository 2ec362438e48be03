"""Which statistics does a file hold about itself, and are they still true?

What :func:`record_statistics` stores is what :class:`~mlarray.transforms.statistics.Moments` measures, how it was reduced, and
over which arrangement of the axes. It is used only where all of that holds now, and where the file proves that its voxels are
those that were measured. What stands in ``meta.stats``, or under any other name in a header, is somebody's note and is never
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

from mlarray.errors import UsageError
from mlarray.sources.base import Source
from mlarray.streaming.sweep import swept
from mlarray.streaming.volume_source import Stored, VolumeSource
from mlarray.transforms.statistics import REDUCTION, Block, Moments, MomentValues, Statistic

_FIELDS = ("count", "minimum", "maximum", "mean", "std")


@runtime_checkable
class StatisticsKeeper(Protocol):
    """A source whose file keeps what was measured over it: :class:`mlarray.formats.mla.MlaSource`."""

    def kept_statistics(self, *, proven: bool = True) -> Mapping[str, Any] | None:
        """Return what is kept, or None where there is nothing that is of the present voxels."""

    def keep_statistics(self, measure: Callable[[], Mapping[str, object]]) -> Mapping[str, Any]:
        """Store the plain values that ``measure()`` returns, and return them."""


def record_statistics(source: Source) -> MomentValues:
    """Measure an ``.mla`` file as a plan would, and store the result in it.

    The planner then takes the numbers from the file, with the same bits, where ``Standardize``, ``Normalize`` or another stage
    needs them of the stored voxels. Whoever writes voxels later makes the record void. It costs one pass over the volume: as long
    as decoding it takes, and half of that again. The file is replaced in one step by a copy with the record.

    Parameters
    ----------
    source : Source
        ``mlarray.open_source("ct.mla")``; nobody may write to the file at the same time.

    Returns
    -------
    MomentValues
        Count, extremes, mean and deviation.

    Raises
    ------
    UsageError
        The source is no ``.mla`` file, or holds no real numbers, or no single channel axis.
    FormatError
        The file does not match its checksums.
    """
    if isinstance(source, type) or not isinstance(source, StatisticsKeeper) or source.info.format != "mla":
        raise UsageError("Statistics are stored in .mla files only.", hint="`mla convert --statistics` makes one.")
    if source.spec.dtype.kind not in "biuf":
        raise UsageError(f"The array holds {source.spec.dtype}, whose values have no order.")
    volume = VolumeSource(source)

    def measure() -> dict[str, object]:
        values = Moments().measure(partial(blocks_of, volume))
        return {**_tie(volume), **{name: getattr(values, name) for name in _FIELDS}}

    stored = source.keep_statistics(measure)
    return MomentValues(*(stored[name] for name in _FIELDS))


def recorded(volume: Stored, statistic: Statistic, *, proven: bool = True) -> MomentValues | None:
    """Return what the file of a volume says about itself, or None where it has to be measured.

    Parameters
    ----------
    volume : Stored
        Read as it is: the statistic is of its stored voxels.
    statistic : Statistic
        Moments over all channels; others are not recorded.
    proven : bool
        Let the file prove that its voxels are those that were measured. False: believe the header, as a preview may.
    """
    if not isinstance(volume, VolumeSource):
        return None
    source = volume.source
    if not isinstance(source, StatisticsKeeper) or not _is_total(statistic, volume):
        return None
    record = source.kept_statistics(proven=False)  # a look at the header first: a proof reads the file
    if record is None or any(record.get(key) != value for key, value in _tie(volume).items()):
        return None
    values = [record.get(name) for name in _FIELDS]
    if not isinstance(values[0], int) or any(
        isinstance(one, bool) or not isinstance(one, (int, float)) for one in values
    ):
        return None
    if proven and source.kept_statistics() is None:
        return None
    return MomentValues(*values)  # type: ignore[arg-type]


def blocks_of(volume: Stored) -> Iterator[Block]:
    """Give the fixed blocks of a stored volume, without a mask."""
    found = volume.volume
    yield from swept(
        found.channels,
        found.shape,
        lambda region: (volume.read(region), None),
        bytes_of=lambda region: volume.bytes_of_read(region) + found.bytes_of(region),
    )


def _is_total(statistic: Statistic, volume: VolumeSource) -> bool:
    every = (None, tuple(range(volume.volume.channels)))
    return isinstance(statistic, Moments) and statistic.mask is None and statistic.channels in every


def _tie(volume: VolumeSource) -> dict[str, object]:
    """Return what the numbers depend on besides the voxels."""
    spec = volume.source.spec
    return {"reduction": REDUCTION, "dtype": spec.dtype.str[1:], "shape": list(spec.shape), **volume.arrangement}
