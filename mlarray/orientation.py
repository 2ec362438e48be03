"""Which way does an axis point? Anatomical codes, signed permutations, RAS and LPS.

Pure matrices, no files. World axes are x, y, z in millimetres. In **LPS** they point to the patient's Left, Posterior and
Superior (DICOM, ITK); in **RAS** to Right, Anterior, Superior (NIfTI). The two differ by the sign of x and y. A code such
as ``"SAR"`` names, per array axis, the direction in which the index grows; both facts follow the DICOM standard
(PS3.3 C.7.6.2.1.1) and the NIfTI-1 specification.
"""

from __future__ import annotations

from itertools import permutations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mlarray.errors import UsageError

Frame: TypeAlias = Literal["RAS", "LPS"]
Matrix: TypeAlias = npt.NDArray[np.float64]

_DIRECTIONS = {"LPS": ("RL", "AP", "IS"), "RAS": ("LR", "PA", "IS")}  # per world axis: (negative, positive) end


def flip_frame(ndim: int) -> Matrix:
    """Return the homogeneous matrix, shape ``(ndim + 1, ndim + 1)``, that turns RAS into LPS and back."""
    return np.diag([-1.0 if axis < 2 and axis < ndim else 1.0 for axis in range(ndim)] + [1.0])


def axis_codes(linear: Matrix, *, frame: Frame) -> str:
    """Return the anatomical direction in which each array axis mainly runs.

    Parameters
    ----------
    linear : ndarray, shape (3, n)
        Column ``i`` is the world step of array axis ``i``.
    frame : {"RAS", "LPS"}
        The world frame of the rows.

    Returns
    -------
    str
        One letter per array axis, for example ``"SPL"``; the letter names the end towards which the index grows.

    Examples
    --------
    >>> axis_codes(np.diag([1.0, 1.0, 1.0]), frame="LPS")
    'LPS'
    """
    letters = []
    for world, sign in closest_permutation(linear):
        ends = _DIRECTIONS[frame][world]
        letters.append(ends[1] if sign > 0 else ends[0])
    return "".join(letters)


def closest_permutation(linear: Matrix) -> tuple[tuple[int, int], ...]:
    """Return, per array axis, the world axis it is closest to and the sign, each world axis used once.

    The assignment maximises the sum of absolute direction cosines over all assignments, so that a 45 degree rotation
    still gives a permutation; a tie keeps the smaller world axis first.
    """
    matrix = np.asarray(linear, dtype=np.float64)
    rows, columns = matrix.shape
    if columns > rows:
        raise UsageError(f"{columns} axes cannot be oriented in a world of {rows} axes.")
    norms = np.linalg.norm(matrix, axis=0)
    if not np.all(norms > 0):
        raise UsageError("An axis without a direction (a zero column in the affine) has no orientation.")
    cosines = matrix / norms
    best = max(
        permutations(range(rows), columns),
        key=lambda order: round(float(sum(abs(cosines[world, axis]) for axis, world in enumerate(order))), 12),
    )
    return tuple((world, 1 if cosines[world, axis] >= 0 else -1) for axis, world in enumerate(best))


def is_orthogonal(linear: Matrix, *, tolerance: float = 1e-4) -> bool:
    """Tell whether the columns stand at right angles: all cosines between them at most ``tolerance``.

    The default, 1e-4 (0.006 degrees), is what float32 direction cosines in NIfTI headers need.
    """
    matrix = np.asarray(linear, dtype=np.float64)
    norms = np.linalg.norm(matrix, axis=0)
    if not np.all(norms > 0):
        return False
    unit = matrix / norms
    gram = unit.T @ unit
    return bool(np.all(np.abs(gram - np.eye(gram.shape[0])) <= tolerance))
