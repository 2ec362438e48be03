"""Which voxels are to blame where a statistic is no finite number?

One NaN in a volume makes its mean NaN, and with it every voxel of ``Standardize``. The numbers stay what they are, as the
published rules want it; the case, the statistic and the number of such voxels are told, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

import numpy as np

from mlarray.notice import notice
from mlarray.transforms.statistics import Blocks, Statistic, selected


def tell_of_unfinite(value: object, statistic: Statistic, blocks: Blocks, where: str) -> None:
    """Warn where a statistic that was measured is not finite; another pass counts the voxels that are not.

    Parameters
    ----------
    value : object
        What the statistic gave.
    statistic : Statistic
        Which one.
    blocks : callable
        The fixed blocks that it was measured over.
    where : str
        Stage, case and group, for the message.
    """
    wrong = {name: number for name, number in _numbers(value) if not math.isfinite(number)}
    if not wrong:
        return
    total = nan = infinite = 0
    for voxels in selected(blocks(), getattr(statistic, "channels", None)):
        total += voxels.size
        if voxels.dtype.kind in "fc":
            bad, nans = voxels.size - int(np.isfinite(voxels).sum()), int(np.isnan(voxels).sum())
            nan, infinite = nan + nans, infinite + bad - nans
    if not total:
        return
    told = ", ".join(f"{name} {number}" for name, number in wrong.items())
    if nan or infinite:
        kinds = " and ".join(f"{count} {kind}" for count, kind in ((nan, "NaN"), (infinite, "infinite")) if count)
        what = (
            f"{nan + infinite} of {total} voxels are not finite ({kinds}), so what is measured is not either ({told})"
        )
    else:
        what = f"the values are too large to be measured in float64 ({told})"
    notice(
        f"{where}: {what}, and what is computed with it is wrong everywhere. Replace the voxels in the file, or leave the case "
        "out."
    )


def _numbers(value: object) -> Iterable[tuple[str, float]]:
    """Return the floats of a statistic by name, whatever it is made of; what is no number is finite."""
    if isinstance(value, (float, np.floating)):
        yield "value", float(value)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from ((field.name, number) for _, number in _numbers(getattr(value, field.name)))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from ((str(key), number) for _, number in _numbers(one))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _numbers(one)
