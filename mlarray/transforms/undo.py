"""How is a change of the grid taken back? By a transform that ends at exactly the volume which the change began with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlarray.sources.base import NDArray
from mlarray.transforms.base import Context, Transform
from mlarray.transforms.locality import Locality
from mlarray.transforms.statistics import Statistic
from mlarray.transforms.volume import Volume


@dataclass(frozen=True, slots=True)
class Undo(Transform):
    """A transform that leads back, with the geometry and the attributes from before.

    Parameters
    ----------
    undone : str
        Name of the transform that is undone.
    inner : Transform
        What is done to the voxels: to as many channels, of whatever dtype, as a prediction has.
    before : Volume
        Input of the transform that is undone.
    """

    undone: str
    inner: Transform
    before: Volume

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.undone}, undone"

    def locality(self, volume: Volume) -> Locality:
        """Return that of the inner transform."""
        return self.inner.locality(volume)

    def outcome(self, volume: Volume) -> Volume:
        """Return what the inner transform gives, where the array came from."""
        return self.inner.outcome(volume).with_(
            geometry=self.before.geometry,
            attributes=self.before.attributes,
            on_stored_grid=self.before.on_stored_grid,
        )

    def statistics(self, volume: Volume) -> tuple[Statistic, ...]:
        """Return those of the inner transform."""
        return self.inner.statistics(volume)

    def apply(self, block: NDArray, context: Context) -> NDArray:
        """Apply the inner transform."""
        return self.inner.apply(block, context)

    def inverted(self, before: Volume, after: Volume, measured: Mapping[Statistic, Any]) -> Transform | None:
        """Return None: what was undone is not done again."""
        return None
