"""How does a patch become what TorchIO's transforms take? A ``Subject`` of images (C, X, Y, Z), with affines to RAS+."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from mlarray.integrations.patch_volumes import Frame, ras_affine, xyz_volume
from mlarray.integrations.torch import tensor_of
from mlarray.streaming.arguments import instance, listed
from mlarray.streaming.batch import Sample

if TYPE_CHECKING:
    import torchio


def to_subject(sample: Sample, *, labels: Collection[str] = (), frame: Frame | None = None) -> torchio.Subject:
    """Return the groups of a patch as images of one ``Subject`` that share their memory.

    Parameters
    ----------
    sample : Sample
        Of a batch, with numpy arrays.
    labels : collection of str
        Groups that hold labels: they become ``LabelMap``, which TorchIO interpolates by nearest neighbour and leaves alone in
        intensity transforms. The others become ``ScalarImage``.
    frame : {"RAS", "LPS"}, optional
        World frame of a case whose file does not say which.

    Returns
    -------
    torchio.Subject
        An image per group, with TorchIO's default affine, the identity, where the case does not say where it lies; ``case``,
        ``copy``, ``patch_start`` and ``patch_stop`` (z, y, x).

    Raises
    ------
    UsageError
        A name among ``labels`` is no group of the sample, or a world frame is not known.
    """
    import torchio

    instance("sample", sample, Sample, "batch.samples holds them.")
    labels = listed("labels", labels, str, 'Like labels=["SEG"].')
    images: dict[str, Any] = {}
    for group in (*sample.arrays, *(name for name in labels if name not in sample.arrays)):
        kind = torchio.LabelMap if group in labels else torchio.ScalarImage
        tensor = tensor_of(xyz_volume(sample, group))
        images[group] = kind(tensor=tensor, affine=ras_affine(sample, group, frame=frame))
    return torchio.Subject(
        **images,
        case=sample.case,
        copy=sample.copy,
        patch_start=sample.region.start,
        patch_stop=sample.region.stop,
    )
