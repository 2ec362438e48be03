"""Where does a chain keep its result so far?

A plan is told which saved results there are; then it begins at the last of them. This module knows what is to be written where;
it writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mlarray.errors import UsageError
from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Kind, Locality, Pointwise
from mlarray.transforms.volume import Volume

SAVE_FORMATS: Mapping[str, str] = MappingProxyType(
    {name: f".{name}" for name in ("mla", "mha", "mhd", "nii", "nii.gz", "nrrd", "h5")} | {"omezarr": ".ome.zarr"}
)
"""Suffix of a saved result by the name of its format."""
REGION_FORMATS = frozenset({"mla", "mha", "h5", "omezarr"})
"""Formats that are written part by part, while the volume is swept."""


@dataclass(frozen=True, slots=True)
class Save(Transform):
    """Keep the result so far in a file for each case, so that later stages read that. The values stay.

    Parameters
    ----------
    dataset : str
        ``"path"`` or ``"path:format"``, the format one of :data:`SAVE_FORMATS`; default: mla. Files are ``path/CASE/GROUP`` with
        the suffix of the format.
    group : str, optional
        Name of the result; default: that of the group it is made of.

    Raises
    ------
    UsageError
        There is no path, or no such format.
    """

    dataset: str
    group: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, str) or not self.root:
            raise UsageError(f"Save takes where to keep results, path or path:format, got {self.dataset!r}.")
        head, _, name = self.dataset.rpartition(":")
        if (
            len(head) > 1 and name not in SAVE_FORMATS and not any(slash in name for slash in "/\\")
        ):  # one letter is a drive
            raise UsageError(f"Save knows no format {name!r}; it has {', '.join(SAVE_FORMATS)}.")

    @property
    def format(self) -> str:
        """Name of the format."""
        name = self.dataset.rpartition(":")[2]
        return name if name in SAVE_FORMATS and name != self.dataset else "mla"

    @property
    def root(self) -> str:
        """The folder."""
        head, colon, name = self.dataset.rpartition(":")
        return head if colon and name in SAVE_FORMATS else self.dataset

    def place(self, case: str, group: str) -> str:
        """Return where the result of a case is kept, as ``mlarray.open_source`` takes it.

        Examples
        --------
        >>> Save("cache:mha").place("CASE_001", "CT"), Save("C:/cache:h5", group="X").place("CASE_001", "CT")
        ('cache/CASE_001/CT.mha', 'C:/cache/CASE_001/X.h5')
        """
        return f"{self.root}/{case}/{self.group or group}{SAVE_FORMATS[self.format]}"

    def locality(self, volume: Volume) -> Locality:
        """Return that each voxel stands for itself; by the published rules, only where the file is written part by part."""
        by_region = self.format in REGION_FORMATS and (self.format != "mha" or volume.geometry is not None)
        return Pointwise(preserves_statistics=True, strict_kind=Kind.POINTWISE if by_region else Kind.WHOLE_VOLUME)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Return the block."""
        return block
