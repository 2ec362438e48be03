"""How is a place that is no file of this machine named? As a path that keeps its ``scheme://``.

``s3://bucket/scan.zarr`` and ``https://host/scan.zarr`` are reached through fsspec, which brings the protocols as packages
of their own (the extra ``remote``). A :class:`RemotePath` answers the few questions that a converter asks of a path; what lies
below it is read and written with :func:`filesystem`. Only OME-Zarr can be kept on such places: a store of small objects.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mlarray.errors import FormatError, MissingDependencyError, UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(?=[^/])")
_PROTOCOLS = {"s3": "s3fs", "s3a": "s3fs", "http": "aiohttp", "https": "aiohttp", "memory": ""}
# A zarr hierarchy shows itself by one of these objects; a store of objects has no folders that could be asked for.
_MARKERS = ("zarr.json", ".zgroup", ".zattrs", ".zarray")


class RemotePath(type(Path())):  # type: ignore[misc]
    """A path below ``scheme://``; joining, names and suffixes are those of :class:`pathlib.Path`.

    Examples
    --------
    >>> str(as_path("s3://bucket/cases") / "a.zarr")
    's3://bucket/cases/a.zarr'
    """

    def __str__(self) -> str:
        text: str = super().__str__().replace("\\", "/")
        return _SCHEME.sub(r"\1://", text, count=1)

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (as_path, (str(self),))

    @property
    def can_write(self) -> bool:
        """Whether the protocol takes data."""
        return not str(self).lower().startswith("http")

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether a zarr hierarchy starts here."""
        fs, root = filesystem(self)
        return any(_present(fs, f"{root}/{marker}") for marker in _MARKERS)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """As :meth:`exists`: what is here is a hierarchy or nothing."""
        return self.exists()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return False."""
        return False

    def is_symlink(self) -> bool:
        """Return False."""
        return False

    def absolute(self) -> RemotePath:
        """Return the path itself."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        """Return the path itself."""
        return self

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: stores of objects have no folders."""


def as_path(path: str | Path) -> Path:
    """Return a path, a :class:`RemotePath` for text with a scheme.

    Raises
    ------
    UsageError
        For a scheme that is not known.
    """
    if isinstance(path, Path):
        return path
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", path)
    if match is None:
        return Path(path)
    if match[1].lower() == "file":
        return Path(path[match.end() :])
    if match[1].lower() not in _PROTOCOLS:
        raise UsageError(f"{path} has the unknown scheme {match[1]!r}; known are {', '.join(_PROTOCOLS)} and file.")
    return RemotePath(path.rstrip("/"))


def is_remote(path: Path) -> bool:
    """Tell whether a path is one of another machine."""
    return isinstance(path, RemotePath)


def filesystem(path: Path) -> tuple[Any, str]:
    """Return fsspec's file system for a remote path and the path in it.

    Raises
    ------
    MissingDependencyError
        When fsspec or the package of the protocol is not installed.
    """
    scheme = str(path).partition("://")[0].lower()
    try:
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(str(path))
    except ImportError as error:
        package = _PROTOCOLS.get(scheme) or "fsspec"
        raise MissingDependencyError(
            f"{path} needs the package {package}, which is not installed.", hint="pip install 'mlarray[remote]'"
        ) from error
    return fs, str(root).rstrip("/")


def read_object(path: Path, key: str, limit: int) -> bytes | None:
    """Return the bytes of a small object below ``path``, or None where there is none.

    Raises
    ------
    FormatError
        When it is larger than ``limit`` bytes.
    OSError
        When the server cannot be reached or refuses.
    """
    fs, root = filesystem(path)
    url = f"{root}/{key}" if key else root
    try:
        size = fs.info(url).get("size")
        if size is not None and size > limit:
            raise FormatError(f"{path}/{key} has {size} bytes; at most {limit} are read.")
        data: bytes = fs.cat_file(url)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (OSError, FormatError):
        raise
    except Exception as error:  # each protocol has errors of its own, most of them no OSError
        raise OSError(f"{path} cannot be reached: {type(error).__name__}: {error}") from error
    if len(data) > limit:
        raise FormatError(f"{path}/{key} has {len(data)} bytes; at most {limit} are read.")
    return data


def _present(fs: Any, url: str) -> bool:
    try:
        return bool(fs.exists(url))
    except Exception as error:
        raise OSError(f"{url} cannot be reached: {type(error).__name__}: {error}") from error
