"""Small images on disk, and the command line as a process."""

import os
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np

AFFINE = np.diag([1.0, 1.5, 2.0, 1.0])
MLA = (sys.executable, "-m", "tests.cli.mla")
ROOT = Path(__file__).parents[2]


def write_nifti(path: Path, array: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    """Write ``array`` (axes x, y, z) with the suffix of ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


def ramp(shape: tuple[int, ...] = (7, 6, 5), dtype: str = "int16") -> np.ndarray:
    """Return an array in which every voxel has its own value."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def mla(
    *arguments: object, cwd: Path | None = None, before: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess:
    """Run ``mla`` in a process of its own, with ``before`` in front of the command."""
    return subprocess.run(
        [*before, *MLA, *map(str, arguments)],
        cwd=cwd or ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def files_below(folder: Path) -> list[str]:
    """Return every file below a folder, hidden ones too, as sorted relative paths."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
