"""Where is a voxel? One float64 affine from array index to world millimetres.

Column ``i`` of the affine is the world step of spatial array axis ``i``; rows are world x, y, z. Spacing, origin and
direction are views of it: ``affine = [direction @ diag(spacing) | origin]``. The class is closed under what planners and
converters do to arrays: cropping, flipping and permuting axes, rescaling.

A header may state only a part of it (an NRRD with ``spacings`` and no ``space``). The affine then holds the neutral value
for the rest, and :attr:`Geometry.known` says which parts were really stated: "unknown" is not the same as 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mlarray.errors import UsageError
from mlarray.orientation import axis_codes, flip_frame, is_orthogonal
from mlarray.region import Region

Part: TypeAlias = Literal["spacing", "origin", "direction"]
ALL_PARTS: frozenset[Part] = frozenset({"spacing", "origin", "direction"})
SPACING_RTOL = 1e-5  # what float32 headers can hold
POSITION_ATOL_MM = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """The map from spatial array index to world position.

    Parameters
    ----------
    affine : array_like, shape (n + 1, n + 1)
        Homogeneous, float64; ``n`` spatial axes in array order, world rows x, y, z (for ``n = 2``: x, y).
    coord_system : str or None
        World frame: ``"LPS"``, ``"RAS"``, another name as given by the file, or None when unknown.
    known : frozenset of {"spacing", "origin", "direction"}
        The parts that were stated; the others hold neutral values.

    Raises
    ------
    UsageError
        When the affine is not square, not finite, singular, or its last row is not ``0 ... 0 1``.

    Examples
    --------
    >>> Geometry.from_parts(spacing=(3, 1, 1), origin=(0, 0, 7)).spacing
    (3.0, 1.0, 1.0)
    """

    affine: npt.NDArray[np.float64]
    coord_system: str | None = None
    known: frozenset[Part] = ALL_PARTS

    def __post_init__(self) -> None:
        affine = np.array(self.affine, dtype=np.float64)
        if affine.ndim != 2 or affine.shape[0] != affine.shape[1] or affine.shape[0] < 2:
            raise UsageError(f"An affine is a square matrix with one row more than spatial axes, got {affine.shape}.")
        if not np.all(np.isfinite(affine)):
            raise UsageError(f"An affine must be finite, got {affine.tolist()}.")
        if not np.array_equal(affine[-1], [0.0] * (affine.shape[0] - 1) + [1.0]):
            raise UsageError(f"The last row of an affine must be 0 ... 0 1, got {affine[-1].tolist()}.")
        scale = np.linalg.norm(affine[:-1, :-1], axis=0)
        if np.any(scale == 0) or abs(np.linalg.det(affine[:-1, :-1] / scale)) < 1e-9:
            raise UsageError(f"The affine is singular: {affine.tolist()} maps different voxels to one place.")
        affine += 0.0  # turns -0.0, which a flip leaves, into 0.0: equal geometries need equal hashes
        affine.setflags(write=False)
        object.__setattr__(self, "affine", affine)
        object.__setattr__(self, "known", frozenset(self.known))

    @classmethod
    def from_parts(
        cls,
        *,
        spacing: Sequence[float] | None = None,
        origin: Sequence[float] | None = None,
        direction: Sequence[Sequence[float]] | npt.NDArray[np.float64] | None = None,
        coord_system: str | None = None,
        ndim: int | None = None,
    ) -> Geometry:
        """Build a geometry from its parts; what is not given is neutral and marked unknown.

        Parameters
        ----------
        spacing, origin : sequence of float, length n, optional
            Millimetres.
        direction : array_like, shape (n, n), optional
            Column ``i`` is the unit step of array axis ``i``.
        coord_system : str, optional
            World frame.
        ndim : int, optional
            Number of spatial axes; needed when no part is given.
        """
        sizes = {len(part) for part in (spacing, origin, direction) if part is not None} | ({ndim} if ndim else set())
        if len(sizes) != 1:
            raise UsageError(f"Spacing, origin and direction must agree on the number of axes, got {sorted(sizes)}.")
        count = sizes.pop()
        affine = np.eye(count + 1)
        cosines = np.eye(count) if direction is None else np.asarray(direction, dtype=np.float64)
        if cosines.shape != (count, count):
            raise UsageError(f"A direction matrix for {count} axes has shape {(count, count)}, got {cosines.shape}.")
        affine[:count, :count] = cosines * (1.0 if spacing is None else np.asarray(spacing, dtype=np.float64))
        if origin is not None:
            affine[:count, count] = origin
        parts: tuple[tuple[Part, object], ...] = (("spacing", spacing), ("origin", origin), ("direction", direction))
        return cls(affine, coord_system, frozenset(name for name, value in parts if value is not None))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Geometry):
            return NotImplemented
        return (
            np.array_equal(self.affine, other.affine)
            and self.coord_system == other.coord_system
            and self.known == other.known
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (Geometry, (self.affine, self.coord_system, self.known))  # a pickled array would come back writable

    def __hash__(self) -> int:
        return hash((self.affine.tobytes(), self.coord_system, self.known))

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return int(self.affine.shape[0]) - 1

    @property
    def linear(self) -> npt.NDArray[np.float64]:
        """The ``(n, n)`` part without translation."""
        return self.affine[:-1, :-1]

    @property
    def spacing(self) -> tuple[float, ...]:
        """Length of one step along each array axis, millimetres."""
        return tuple(np.linalg.norm(self.linear, axis=0).tolist())

    @property
    def origin(self) -> tuple[float, ...]:
        """World position of the first voxel's centre, millimetres."""
        return tuple(self.affine[:-1, -1].tolist())

    @property
    def direction(self) -> npt.NDArray[np.float64]:
        """The ``(n, n)`` matrix whose column ``i`` is the unit step of array axis ``i``."""
        return np.asarray(self.linear / np.linalg.norm(self.linear, axis=0))

    @property
    def is_sheared(self) -> bool:
        """Whether the axes are not at right angles, so that spacing and direction cosines alone mislead."""
        return not is_orthogonal(self.linear)

    @property
    def orientation(self) -> str | None:
        """Anatomical codes of the array axes such as ``"SPL"``, or None where the frame is not known to be anatomical."""
        frame = (self.coord_system or "").rstrip("+")
        if self.ndim != 3 or "direction" not in self.known or frame not in ("RAS", "LPS"):
            return None
        return axis_codes(self.linear, frame="RAS" if frame == "RAS" else "LPS")

    def world(self, index: Sequence[float]) -> tuple[float, ...]:
        """Return the world position, in millimetres, of an array index."""
        return tuple((self.linear @ np.asarray(index, dtype=np.float64) + self.affine[:-1, -1]).tolist())

    def cropped(self, region: Region) -> Geometry:
        """Return the geometry of the sub-array ``region`` (spatial axes only, may lie outside)."""
        affine = self.affine.copy()
        affine[:-1, -1] = self.world(region.start)
        return self._moved(affine)

    def permuted(self, order: Sequence[int]) -> Geometry:
        """Return the geometry after ``array.transpose(order)``: new axis ``i`` is old axis ``order[i]``."""
        affine = self.affine.copy()
        affine[:-1, :-1] = self.linear[:, list(order)]
        return self._with(affine)

    def flipped(self, axis: int, extent: int) -> Geometry:
        """Return the geometry after reversing ``axis``, which has ``extent`` voxels."""
        affine = self.affine.copy()
        affine[:-1, -1] += self.linear[:, axis] * (extent - 1)
        affine[:-1, axis] = -self.linear[:, axis]
        return self._with(affine)

    def rescaled(self, factors: Sequence[float]) -> Geometry:
        """Return the geometry with each step multiplied by ``factors``, the first voxel's centre kept in place."""
        affine = self.affine.copy()
        affine[:-1, :-1] = self.linear * np.asarray(factors, dtype=np.float64)
        return self._with(affine)

    def in_frame(self, frame: Literal["RAS", "LPS"]) -> Geometry:
        """Return the same geometry with world coordinates in the other anatomical frame.

        Raises
        ------
        UsageError
            When the present frame is unknown or not anatomical: a sign flip would then be a guess.
        """
        current = (self.coord_system or "").rstrip("+")
        if current == frame:
            return self
        if current not in ("RAS", "LPS"):
            raise UsageError(f"World frame {self.coord_system!r} cannot be turned into {frame}: it is not RAS or LPS.")
        return replace(self, affine=flip_frame(self.ndim) @ self.affine, coord_system=frame)

    def is_close(self, other: Geometry) -> bool:
        """Tell whether both place every voxel alike: spacing within 1e-5 relative, positions within 1e-3 mm."""
        if self.ndim != other.ndim:
            return False
        same_spacing = np.allclose(self.spacing, other.spacing, rtol=SPACING_RTOL, atol=0)
        return same_spacing and np.allclose(self.affine, other.affine, rtol=SPACING_RTOL, atol=POSITION_ATOL_MM)

    def _moved(self, affine: npt.NDArray[np.float64]) -> Geometry:
        """Return a geometry whose affine has another origin only: what was checked of it holds. Every patch has one."""
        affine += 0.0
        affine.setflags(write=False)
        moved = object.__new__(Geometry)
        for name, value in (("affine", affine), ("coord_system", self.coord_system), ("known", self.known)):
            object.__setattr__(moved, name, value)
        return moved

    def _with(self, affine: npt.NDArray[np.float64]) -> Geometry:
        return Geometry(affine, self.coord_system, self.known)
