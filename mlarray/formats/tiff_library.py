"""How is tifffile used? Opened without following other files, silent, and with every failure named.

tifffile reads directories, groups pages into series and knows the codecs. Whatever it raises over a damaged file becomes a
:class:`~mlarray.errors.FormatError` here; what it only logs is checked by the callers themselves.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mlarray.errors import FormatError, MissingDependencyError, MLArrayError
from mlarray.formats.image_streams import stated_size

_DEFLATE, _LZMA = (8, 32946, 50013), 34925
# Of TIFF and of its users: JPEG (7 and older ones), JPEG 2000, PNG.
_IMAGES = (6, 7, 99, 33003, 33004, 33005, 33007, 34712, 34892, 34933)
_PLAIN_BITS = (1, 8, 16, 32, 64, 128)
TIFF_EXTRA = "pip install 'mlarray[tiff]'"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a TIFF file with tifffile; what goes wrong inside the block is a :class:`FormatError` that names the file.

    Data sets of Micro-Manager that spread over files are taken file by file: their own index would be followed wherever it
    leads.
    """
    tifffile = _library()
    try:
        with tifffile.TiffFile(path, is_mmstack=False, is_ndtiff=False) as file:
            yield file
    except (MLArrayError, OSError, MemoryError):
        raise
    except Exception as error:  # what a damaged header makes it raise is not its contract
        told = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(
            f"{path} is no TIFF file that can be read: {told}.", hint="Copy it again, or export it as plain TIFF."
        ) from error


def _library() -> Any:
    import tifffile

    # Without a handler of its own, its remarks on damaged files would go to standard error beside our messages.
    log = logging.getLogger("tifffile")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    return tifffile


def load_decoder(path: Path, offset: int, index: tuple[int, ...], *, code: int, most_bytes: int) -> Callable[..., Any]:
    """Return the function that decodes segments of the page whose directory is at ``offset``.

    Parameters
    ----------
    path : Path
        The file.
    offset : int
        Where the directory of the page is.
    index : tuple of int
        Its place in the tree of directories.
    code : int
        The compression.
    most_bytes : int
        What a segment decodes to at most.
    """
    with opened(path) as file:
        tifffile = _library()
        file.filehandle.seek(offset)
        decode: Callable[..., Any] = tifffile.TiffPage(file, index).decode
    if code in _IMAGES:

        def sized(data: bytes, number: int, **details: Any) -> Any:
            size = stated_size(data)
            if size is not None and math.prod(size) > most_bytes:
                raise ValueError(f"it is an image of {size} rows, columns and samples")
            return decode(data, number, **details)

        return sized
    if has_codecs() or code not in (*_DEFLATE, _LZMA):
        return decode

    def bounded(data: bytes, number: int, **details: Any) -> Any:
        # tifffile's own decoders, which stand in for imagecodecs, take no limit: a few bytes could fill the memory.
        stream: Any = lzma.LZMADecompressor() if code == _LZMA else zlib.decompressobj()
        if len(stream.decompress(data, most_bytes + 1)) > most_bytes:
            raise ValueError(f"it expands to more than {most_bytes} bytes")
        return decode(data, number, **details)

    return bounded


def has_codecs() -> bool:
    """Tell whether imagecodecs is installed."""
    try:
        return importlib.util.find_spec("imagecodecs") is not None
    except ValueError:  # it was blocked
        return False


def check_codec(path: Path, page: Any) -> None:
    """Refuse a page that cannot be decoded, by name of its compression.

    Raises
    ------
    MissingDependencyError
        When imagecodecs, which is not installed, is needed.
    FormatError
        When nobody can decode it.
    """
    tables = _library().TIFF
    bits = page.bitspersample if isinstance(page.bitspersample, int) else 0
    missing: list[str] = []
    if page.compression != 1 and not _knows(tables.DECOMPRESSORS, page.compression):
        missing.append(f"compression {compression_name(page)}")
    if page.predictor != 1 and not _knows(tables.UNPREDICTORS, page.predictor):
        missing.append(f"predictor {int(page.predictor)}")
    if not has_codecs() and page.compression == 1 and bits not in _PLAIN_BITS:
        missing.append(f"samples of {page.bitspersample} bits")
    if not missing:
        return
    if not has_codecs():
        raise MissingDependencyError(
            f"{path} has {' and '.join(missing)}, which imagecodecs decodes; it is not installed.",
            hint=f"{TIFF_EXTRA} installs it.",
        )
    raise FormatError(
        f"{path} has {' and '.join(missing)}, which cannot be decoded.",
        hint="Export it with deflate or LZW compression, or with none.",
    )


def compression_name(page: Any) -> str:
    """Return the compression of a page, name and number."""
    code = int(page.compression)
    return f"{getattr(page.compression, 'name', 'unknown')} ({code})"


def _knows(codecs: Any, code: int) -> bool:
    try:
        codecs[code]
    except KeyError:
        return False
    return True
