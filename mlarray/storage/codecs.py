"""Would decoding a chunk load a library that its codec names?

For some codecs blosc2 (4.14.1) starts ``python -c "import blosc2_NAME"`` to find a library, and loads it: a module of that name
in the current folder, which may have come with the data, would run. The first bytes of each chunk name its codec, and are looked
at before blosc2 decodes it for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlarray.chunk_grid import ChunkGrid
from mlarray.errors import FormatError
from mlarray.region import Region
from mlarray.sources.bytes import FileBytes
from mlarray.storage.frame import HEAD_BYTES, FrameHeader, refuse_foreign_codec

_REMEMBERED = 1_000_000
_STORED_AT = 12  # of a chunk: its stored length
HeadOf = Callable[[int], bytes]


class CodecGuard:
    """Remembers which chunks of a store were looked at.

    Parameters
    ----------
    path : Path
        The file, for messages.
    grid : ChunkGrid
        Of the store.
    head_of : callable
        Returns a chunk from its first bytes on.
    in_file : HeadsInFile, optional
        Is asked instead, where it knows.
    """

    def __init__(self, path: Path, grid: ChunkGrid, head_of: HeadOf, in_file: HeadsInFile | None = None) -> None:
        self._path, self._grid, self._head_of, self._in_file = path, grid, head_of, in_file
        self._seen: set[int] = set()

    def check(self, region: Region) -> None:
        """Refuse a region of a chunk whose codec is none that blosc2 brings itself.

        Raises
        ------
        FormatError
            Naming the chunk and its codec.
        """
        new = [index for index in self._grid.chunks_touched(region.start, region.stop) if index not in self._seen]
        if len(self._seen) > _REMEMBERED:
            self._seen.clear()
        for index in new:
            head = None if self._in_file is None else self._in_file.head(index)
            head = bytes(self._head_of(index)[:HEAD_BYTES]) if head is None else head
            refuse_foreign_codec(self._path, head, f"chunk {index}")
            self._seen.add(index)


class HeadsInFile:
    """The first bytes of the chunks of a file that nobody writes; blosc2 would decode the index anew for each.

    Parameters
    ----------
    path : Path
        The file.
    header : FrameHeader
        Of its frame; the codec of the index was looked at.
    decompress : callable
        Decodes the index.
    """

    def __init__(self, path: Path, header: FrameHeader, decompress: Callable[[bytes], bytes]) -> None:
        self._file = FileBytes(path)
        self._start, self._index = header.header_bytes, header.header_bytes + header.compressed_bytes
        self._decompress = decompress
        self._offsets: npt.NDArray[np.int64] | None = None

    def head(self, index: int) -> bytes | None:
        """Return the first bytes of a chunk, none of one that is a remark in the index; None where it is not known here."""
        try:
            if self._offsets is None:
                stored = int.from_bytes(self._read(self._index, HEAD_BYTES)[_STORED_AT : _STORED_AT + 4], "little")
                self._offsets = np.frombuffer(self._decompress(self._read(self._index, stored)), np.int64)
            place = int(self._offsets[index])
            return b"" if place < 0 else self._read(self._start + place, HEAD_BYTES)
        except (FormatError, RuntimeError, ValueError, TypeError, IndexError):
            return None

    def _read(self, offset: int, count: int) -> bytes:
        buffer = bytearray(count)
        self._file.readinto(offset, memoryview(buffer))
        return bytes(buffer)
