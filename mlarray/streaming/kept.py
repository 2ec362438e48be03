"""What was measured once stays: where, under which name, and when is it still true?

Statistics and places of labels take a pass over each case. They are kept as one small file per case in the hidden folder
``.mlarray`` beside the data, or, where that cannot be written, in the user's folder for caches. The name of a file is a hash of
what was measured and of a fingerprint (:mod:`mlarray.streaming.fingerprint`), so that nothing stale is found. A file that is
damaged counts as none and is written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlarray.errors import UsageError
from mlarray.limits import KEPT_BYTES
from mlarray.storage.publish import PART_SUFFIX, part_path
from mlarray.storage.remote import is_remote
from mlarray.streaming.arguments import path_of

FOLDER = ".mlarray"
ENVIRONMENT = "MLARRAY_CACHE"
"""Environment variable that names the user's folder for what is kept; a folder for each data set is made in it."""
LIMIT_BYTES = 8 << 30
_SUFFIX = ".npz"
_PLAIN = "plain.json"
_PUTS_PER_CHECK = 128
_ABANDONED_SECONDS = 3600.0
_USED_SECONDS = 86400.0


class Kept:
    """A folder of small values by key. Several processes may read and write it at once; pickles.

    Parameters
    ----------
    folder : Path
        Made when something is put.
    root : Path, optional
        The data set: names in fingerprints are relative to it, so that it may be moved with what is kept.
    also : Path, optional
        A folder that is read too, and never written.
    limit_bytes : int
        Most bytes of all entries; above it, those that were used least recently go (to the day). Looked at now and then, so that
        a few more may lie there for a while.

    Examples
    --------
    >>> import tempfile
    >>> kept = Kept(Path(tempfile.mkdtemp()))
    >>> kept.put("mean of p1", {"mean": 3.5, "voxels": np.arange(3)}), kept.get("mean of p2")
    (True, None)
    >>> kept.get("mean of p1")
    {'mean': 3.5, 'voxels': array([0, 1, 2])}
    """

    def __init__(
        self, folder: Path, *, root: Path | None = None, also: Path | None = None, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.folder = folder
        self.root = root
        self.also = also
        self.limit_bytes = limit_bytes
        self._puts = 0

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what was put under a key; None where there is nothing, or nothing that can be read."""
        name = self._path(key).name
        for folder in (self.folder, self.also):
            found = None if folder is None else _read(folder / name, key)
            if found is not None:
                return found
        return None

    def put(self, key: str, value: Mapping[str, object]) -> bool:
        """Keep a value; what is there under the key is replaced in one step.

        Parameters
        ----------
        key : str
            Any text.
        value : mapping of str
            Plain JSON values and numpy arrays of numbers.

        Returns
        -------
        bool
            False where the folder cannot be written or the value is larger than 256 MiB: it is measured again next time.

        Raises
        ------
        UsageError
            A value of another kind.
        """
        content = _packed(value, key)
        if len(content) > KEPT_BYTES:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = part_path(self._path(key))
            try:
                part.write_bytes(content)
                os.replace(part, self._path(key))
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        except OSError:
            return False
        if self._puts % _PUTS_PER_CHECK == 0:
            self._remove_surplus()
        self._puts += 1
        return True

    def _path(self, key: str) -> Path:
        return self.folder / (
            hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() + _SUFFIX
        )

    def _remove_surplus(self) -> None:
        """Remove what was used least recently above the limit, and what writers left that were killed."""
        entries: list[tuple[float, int, Path]] = []
        now = time.time()
        for path in list(self.folder.iterdir()):
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == _SUFFIX:
                    entries.append((status.st_mtime, status.st_size, path))
                elif path.suffix == PART_SUFFIX and now - status.st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
        surplus = sum(size for _, size, _ in entries) - self.limit_bytes
        for _, size, path in sorted(entries):
            if surplus <= 0:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            surplus -= size


def _read(path: Path, key: str) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            content = file.read(KEPT_BYTES + 1)
            changed = os.fstat(file.fileno()).st_mtime
        if len(content) > KEPT_BYTES:
            return None
        found = _unpacked(content, key)
    except Exception:  # whatever damaged bytes lead to: what cannot be read is not there
        return None
    if time.time() - changed > _USED_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path)  # those that were used least recently go first
    return found


def kept_for(dataset: Path, *, folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> Kept:
    """Return where what is measured on a data set is kept.

    Parameters
    ----------
    dataset : Path
        Its folder or file.
    folder : Path, optional
        Default: ``.mlarray`` beside the data, where it can be written and ``MLARRAY_CACHE`` is not set; else one of its own in
        :func:`cache_folder`, and what lies beside the data is read all the same.
    environment : mapping
        Of the process.
    """
    dataset = path_of("dataset", dataset)
    folder = None if folder is None else path_of("folder", folder)
    place = dataset if is_remote(dataset) else dataset.absolute()
    root = place if is_remote(place) or place.is_dir() else place.parent
    if folder is not None:
        return Kept(folder, root=root)
    beside = None if is_remote(root) else root / FOLDER
    wanted = not environment.get(ENVIRONMENT)
    if beside is not None and wanted and os.access(beside if beside.exists() else root, os.W_OK):
        return Kept(beside, root=root)
    name = hashlib.blake2b(str(root).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return Kept(cache_folder(environment) / f"{root.name}-{name}", root=root, also=beside)


def cache_folder(environment: Mapping[str, str] = os.environ, *, platform: str = sys.platform) -> Path:
    """Return the user's folder for what is kept of data sets that cannot be written.

    ``MLARRAY_CACHE`` where it is set. Else a folder ``mlarray`` in that of the system: ``%LOCALAPPDATA%`` on Windows,
    ``~/Library/Caches`` on macOS, and as the XDG base directory specification says on others (``$XDG_CACHE_HOME``, or
    ``~/.cache``).
    """
    chosen = environment.get(ENVIRONMENT)
    if chosen:
        return Path(chosen)
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local") / "mlarray" / "Cache"
    if platform == "darwin":
        return home / "Library" / "Caches" / "mlarray"
    xdg = environment.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else home / ".cache") / "mlarray"


def _packed(value: Mapping[str, object], key: str) -> bytes:
    arrays = {f"{name}.npy": one for name, one in value.items() if isinstance(one, np.ndarray)}
    plain = {name: one for name, one in value.items() if not isinstance(one, np.ndarray)}
    try:
        text = json.dumps({"key": key, "order": list(value), "plain": plain})
    except (TypeError, ValueError) as error:
        raise UsageError(f"Only plain values and arrays of numbers are kept: {error}.") from None
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_PLAIN, text)
        for name, array in arrays.items():
            if array.dtype.kind not in "biufc":
                raise UsageError(
                    f"Only plain values and arrays of numbers are kept, {name[:-4]!r} is an array of {array.dtype}."
                )
            one = io.BytesIO()
            np.lib.format.write_array(one, array, allow_pickle=False)
            archive.writestr(name, one.getvalue())
    return packed.getvalue()


def _unpacked(content: bytes, key: str) -> dict[str, Any]:
    """Return the value in the bytes of an entry; anything that is not as it was written is an error, whatever its kind."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > KEPT_BYTES or any(entry.compress_type for entry in entries):
            raise ValueError("too large, or compressed")
        parts = {entry.filename: archive.read(entry) for entry in entries}  # checks each checksum
    text = json.loads(parts.pop(_PLAIN))
    if text["key"] != key:
        raise ValueError("an entry of another key")
    found: dict[str, Any] = dict(text["plain"])
    for name, part in parts.items():
        found[name.removesuffix(".npy")] = _array(part)
    return {name: found[name] for name in text["order"]}


def _array(part: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the array in the bytes of a ``.npy`` file; numpy would make room for what its header claims, whatever follows."""
    file = io.BytesIO(part)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("a header of another version")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "biufc" or math.prod(shape) * dtype.itemsize != len(part) - file.tell():
        raise ValueError("an array of another size")
    flat = np.frombuffer(bytearray(part[file.tell() :]), dtype)
    return flat.reshape(shape, order="F" if fortran else "C")
