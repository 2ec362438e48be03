"""How are the files of a series joined to volumes? The settings that a user may change."""

from __future__ import annotations

from dataclasses import dataclass

from mlarray.errors import UsageError


@dataclass(frozen=True, slots=True)
class SeriesOptions:
    """How strictly slices have to form a volume, and what of their headers is kept.

    Parameters
    ----------
    spacing_tolerance : float
        How far a step between two slices may be from the median step, as a part of it.
    orientation_tolerance : float
        How far the direction cosines of two slices of one volume may differ.
    keep_irregular : bool
        Whether a stack with gaps or uneven steps is read nevertheless. Its spacing is then unknown, and the position of every
        slice is among the fields of the header.
    keep_private : bool
        Whether all fields of the headers are kept, names of persons too.

    Raises
    ------
    UsageError
        For tolerances that are not between 0 and 1.
    """

    spacing_tolerance: float = 0.01
    orientation_tolerance: float = 1e-4
    keep_irregular: bool = False
    keep_private: bool = False

    def __post_init__(self) -> None:
        for name, value in (("slice", self.spacing_tolerance), ("orientation", self.orientation_tolerance)):
            if not 0 < value < 1:
                raise UsageError(f"The {name} tolerance lies between 0 and 1, got {value!r}.")
