"""Where in a chain is the result so far written to a file, once, to be read from there in the future?"""

from __future__ import annotations

from dataclasses import dataclass

from mlarray.errors import UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Locality, Pointwise
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Save(Transform):
    """Marks where a :class:`mlarray.streaming.PatchStream` writes the case as it is here, and goes on from the file.

    The file is written before the first patch is read, region by region where the stages before it stream, and it is used
    again as long as its source, and the stages before it, are the same. What a single plan gives does not change: there,
    nothing is written.

    Parameters
    ----------
    dataset : str
        Folder of the data set that is written, ``DATASET/CASE/GROUP.mla``. A format may follow: ``"Prepared:mha"``, ``:h5``,
        ``:ome-zarr`` or another that is written.
    group : str, optional
        Name of the group in it. Default: that of the chain.

    Raises
    ------
    UsageError
        No folder is named.
    """

    dataset: str
    group: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, str) or not self.dataset.strip(":"):
            raise UsageError(
                f"Save needs the folder of a data set, got {self.dataset!r}.", hint="Write Save('Prepared')."
            )

    def locality(self, volume: Volume) -> Locality:
        """Return that a voxel is kept as it is."""
        return Pointwise()

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Return the input."""
        return block
