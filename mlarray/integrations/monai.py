"""How does a patch become what MONAI's transforms take? A ``MetaTensor``: (C, X, Y, Z), with an affine to RAS+ millimetres."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlarray.integrations.patch_volumes import Frame, ras_affine, xyz_volume
from mlarray.integrations.torch import tensor_of
from mlarray.streaming.arguments import instance
from mlarray.streaming.batch import Sample

if TYPE_CHECKING:
    from monai.data import MetaTensor


def to_metatensor(sample: Sample, group: str, *, frame: Frame | None = None) -> MetaTensor:
    """Return a patch as a ``MetaTensor`` that shares its memory.

    Its axes are C, X, Y, Z and its affine leads to RAS+ millimetres, as ``monai.transforms.LoadImage`` gives a file. ``meta``
    holds ``case``, ``copy``, ``patch_start`` and ``patch_stop`` (z, y, x) besides what MONAI puts there.

    Parameters
    ----------
    sample : Sample
        Of a batch, with numpy arrays.
    group : str
        Which array.
    frame : {"RAS", "LPS"}, optional
        World frame of a case whose file does not say which.

    Returns
    -------
    MetaTensor
        With MONAI's default affine, the identity, where the case does not say where it lies.

    Raises
    ------
    UsageError
        The sample has no such group, or its world frame is not known.
    """
    from monai.data import MetaTensor

    instance("sample", sample, Sample, "batch.samples holds them.")
    meta = {
        "case": sample.case,
        "copy": sample.copy,
        "patch_start": sample.region.start,
        "patch_stop": sample.region.stop,
        "space": "RAS",
    }
    return MetaTensor(tensor_of(xyz_volume(sample, group)), affine=ras_affine(sample, group, frame=frame), meta=meta)
