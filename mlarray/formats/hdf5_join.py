"""How do the HDF5 files of many cases become one?

HDF5 has one writer. So workers write files of their own, and one process copies their datasets into one file: chunks as they are
stored, nothing is decoded. The file is made anew beside the old one, with what the old one holds of other cases, and replaces it
in one step: it is whole at any time, and readers of the old one keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlarray.errors import FormatError, IntegrityError
from mlarray.formats.hdf5_file import damage_told, datasets, open_file
from mlarray.formats.hdf5_write import BOUNDS
from mlarray.storage.publish import PendingFile

MARK = "mla_store"


def join(path: Path, parts: Mapping[str, Path]) -> None:
    """Put the datasets of several files into one, each file's into a group.

    Parameters
    ----------
    path : Path
        The file to make. One that exists keeps what it holds in other groups.
    parts : mapping
        From the name of a group, such as ``"site1/case7"``, to the file whose datasets go there. Only read.

    Raises
    ------
    FormatError
        For a damaged part, or an existing file that this function did not make.
    IntegrityError
        When what was copied is not what it was copied from.
    """
    import h5py

    pending = PendingFile(path)
    try:
        with damage_told(path), h5py.File(pending.path, "w", libver=BOUNDS, locking=False) as file:
            file.attrs[MARK] = "1"
            for group in sorted(parts):
                with damage_told(parts[group]), open_file(parts[group]) as source:
                    for name, dataset in datasets(source, parts[group]):
                        _copy(dataset, file, f"/{group}{name}", parts[group])
            if path.exists():
                _keep(file, path, {f"/{group}" for group in parts})
        pending.publish()
    except BaseException:
        pending.abort()
        raise


def refuse_foreign_store(path: Path) -> None:
    """Refuse an existing file that :func:`join` did not make: what else it holds would be lost.

    Raises
    ------
    FormatError
        When it is another file, or damaged.
    """
    if path.exists():
        with damage_told(path), open_file(path) as file:
            if MARK not in file.attrs:
                raise FormatError(
                    f"{path} exists and was not made by converting several cases into one file.",
                    hint="Choose another name with -o, or remove it.",
                )


def _keep(file: Any, path: Path, replaced: set[str]) -> None:
    """Copy what an existing file holds in groups that are not made again."""
    refuse_foreign_store(path)
    with damage_told(path), open_file(path) as old:
        for name, dataset in datasets(old, path):
            if name not in file and name.rpartition("/")[0] not in replaced:
                _copy(dataset, file, name, path)


def _copy(dataset: Any, file: Any, name: str, source: Path) -> None:
    file.copy(dataset, file, name)
    made = file[name]
    if (made.shape, made.dtype, made.id.get_storage_size()) != (
        dataset.shape,
        dataset.dtype,
        dataset.id.get_storage_size(),
    ):
        raise IntegrityError(f"{name} was not copied whole from {source}.", hint="Convert again; check the disk.")
