"""Is a stored chunk the one that was written? Its bytes are compared with its checksum, without decoding them.

They are read from the file, not through blosc2: what is damaged is found before anything acts on it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from mlarray.chunk_grid import ChunkGrid
from mlarray.errors import FormatError, IntegrityError
from mlarray.region import Region
from mlarray.storage.frame import RESTORE, FrameHeader, open_to_read, read_at, replaced, version_of_open
from mlarray.storage.frame_parts import Decompress, chunk_ranges, read_offsets

DIGEST_BYTES = 8


def digest(data: bytes | memoryview) -> bytes:
    """Return the checksum of a stored chunk or record: XXH3-64."""
    return xxhash.xxh3_64_digest(data)


def split_digests(stored: bytes) -> tuple[bytes, ...]:
    """Return the checksums of chunks, one by one."""
    return tuple(stored[place : place + DIGEST_BYTES] for place in range(0, len(stored), DIGEST_BYTES))


class ChunkProof:
    """Compares chunks of one file with their checksums.

    Parameters
    ----------
    path : Path
        A file whose seal holds.
    header : FrameHeader
        Of the file.
    digests : bytes
        The checksum of every chunk, :data:`DIGEST_BYTES` each.
    decompress : callable
        Decodes the index.
    mapped : bool
        Look at the bytes through a memory map: what is decoded next is then in the caches of the processor.

    Raises
    ------
    IntegrityError
        The index does not say where the chunks are.
    FormatError
        The file was replaced since its header was read.
    """

    def __init__(
        self, path: Path, header: FrameHeader, digests: bytes, decompress: Decompress, *, mapped: bool
    ) -> None:
        self.path = path
        self._digests = digests
        self._fd = open_to_read(path)
        try:
            if version_of_open(self._fd) != header.version:
                raise replaced(path)
            offsets = read_offsets(self._fd, header, decompress, len(digests) // DIGEST_BYTES)
            self._starts, self._stops = chunk_ranges(header, offsets)
            self._map = mmap.mmap(self._fd, header.data_end, access=mmap.ACCESS_READ) if mapped else None
        except FormatError:
            self.close()
            raise
        except (ValueError, RuntimeError) as error:
            self.close()
            raise IntegrityError(f"{path} is damaged: {error}.", hint=RESTORE) from error

    def holds(self, index: int) -> bool:
        """Tell whether a chunk is what was written. One that has no bytes of its own is part of the index."""
        begin, end = int(self._starts[index]), int(self._stops[index])
        if begin == end:
            return True
        expected = self._digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        if self._map is None:
            return digest(read_at(self._fd, end - begin, begin)) == expected
        with memoryview(self._map) as view, view[begin:end] as stored:
            return digest(stored) == expected

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()


class FirstTouch:
    """Proves each chunk the first time a read needs it.

    Parameters
    ----------
    proof : ChunkProof
        Of the file.
    grid : ChunkGrid
        Its chunks.
    """

    def __init__(self, proof: ChunkProof, grid: ChunkGrid) -> None:
        self._proof = proof
        self._grid = grid
        self._unproven: npt.NDArray[np.bool_] = np.ones(grid.chunk_count, np.bool_)

    def before_read(self, region: Region) -> None:
        """Prove the chunks of a region that have not been touched.

        Raises
        ------
        IntegrityError
            A chunk is not what was written. It stays unproven: every read of it fails.
        """
        for index in self._grid.chunks_touched(region.start, region.stop):
            if self._unproven[index]:
                if not self._proof.holds(index):
                    raise damaged_chunk(self._proof.path, index)
                self._unproven[index] = False


def damaged_chunk(path: Path | None, index: int) -> IntegrityError:
    """Return the error for a chunk that does not match its checksum."""
    return IntegrityError(f"{path or 'The array'} is damaged: chunk {index} does not match its checksum.", hint=RESTORE)
