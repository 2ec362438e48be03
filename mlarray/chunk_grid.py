"""Which chunks and blocks a region of a stored array touches, and how much is decoded to read it.

Plain integer arithmetic over shape, chunks and blocks. Read-ahead asks it what to announce, the converter and
``mla info`` ask it what a patch costs; choosing the sizes is left to :mod:`mlarray.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from mlarray.errors import LayoutError, UsageError


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """How a stored array is cut up: which chunks and blocks a region touches, and how much is decoded for it.

    Chunks are numbered in C order over the grid of chunks, blocks in C order inside their (full-sized) chunk, as Blosc2
    does. Blocks and chunks at the upper border are stored at full extent.

    Parameters
    ----------
    shape, chunks, blocks : tuple of int
        Extents in voxels, one per array axis. On a zero-sized axis 0 is read as 1.

    Raises
    ------
    LayoutError
        The three do not have the same number of axes, or ``1 <= block <= chunk`` does not hold.

    Examples
    --------
    >>> grid = ChunkGrid(shape=(10, 10), chunks=(8, 8), blocks=(4, 4))
    >>> grid.chunk_count, grid.chunk_region(1)
    (4, ((0, 8), (8, 10)))
    >>> list(grid.blocks_touched((3, 0), (5, 4)))
    [(0, 0), (0, 2)]
    >>> grid.bytes_decoded((3, 0), (5, 4), 2)  # 8 voxels asked for, 2 blocks of 16 decoded
    64
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.chunks) == len(self.blocks):
            raise LayoutError(
                f"Shape {self.shape}, chunks {self.chunks} and blocks {self.blocks} must have the same number of axes."
            )
        # Blosc2's own layout of a zero-sized axis is 0, which nothing can be divided by.
        sizes = [
            (n, max(1, c), max(1, b)) if n == 0 else (n, c, b)
            for n, c, b in zip(self.shape, self.chunks, self.blocks, strict=True)
        ]
        if not all(n >= 0 and 1 <= block <= chunk for n, chunk, block in sizes):
            raise LayoutError(
                f"Every axis needs 1 <= block <= chunk; got blocks {self.blocks} in chunks {self.chunks} "
                f"of an array of shape {self.shape}."
            )
        object.__setattr__(self, "chunks", tuple(chunk for _, chunk, _ in sizes))
        object.__setattr__(self, "blocks", tuple(block for _, _, block in sizes))

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of chunks along every axis."""
        return tuple(-(-n // chunk) for n, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def chunk_count(self) -> int:
        """Number of chunks; 0 when an axis is zero-sized."""
        return math.prod(self.grid_shape)

    def chunk_region(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Half-open box of voxels held by one chunk, cut at the border of the array.

        Parameters
        ----------
        index : int
            Number of the chunk, ``0 <= index < chunk_count``.

        Returns
        -------
        start, stop : tuple of int
            In array-axis order.

        Raises
        ------
        UsageError
            There is no chunk of that number.
        """
        if not 0 <= index < self.chunk_count:
            raise UsageError(f"Chunk {index} does not exist; the array has {self.chunk_count} chunks, counted from 0.")
        start: list[int] = []
        for count, chunk in zip(reversed(self.grid_shape), reversed(self.chunks), strict=True):
            index, position = divmod(index, count)
            start.append(position * chunk)
        start.reverse()
        stop = (min(a + c, n) for a, c, n in zip(start, self.chunks, self.shape, strict=True))
        return tuple(start), tuple(stop)

    def chunks_touched(self, start: Sequence[int], stop: Sequence[int]) -> Iterator[int]:
        """Numbers of the chunks that hold voxels of a region, in rising order.

        Parameters
        ----------
        start, stop : sequence of int
            Half-open box inside the array. An empty box touches nothing.

        Raises
        ------
        UsageError
            The box does not lie inside the array.
        """
        start, stop = self._box(start, stop)
        if any(a == b for a, b in zip(start, stop, strict=True)):
            return iter(())
        spans = [range(a // c, -(-b // c)) for a, b, c in zip(start, stop, self.chunks, strict=True)]
        return (_flat(position, self.grid_shape) for position in product(*spans))

    def blocks_touched(self, start: Sequence[int], stop: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Pairs (number of the chunk, number of the block in it) that a read of a region decodes, in rising order.

        Parameters and errors are those of :meth:`chunks_touched`.
        """
        start, stop = self._box(start, stop)
        if any(a == b for a, b in zip(start, stop, strict=True)):
            return
        # Per axis, the chunks and the blocks in each, as what they add to the number: a read of a patch asks for dozens.
        axes: list[list[tuple[int, list[int]]]] = []
        chunks_behind = blocks_behind = 1
        for a, b, n, chunk, block in reversed(
            list(zip(start, stop, self.shape, self.chunks, self.blocks, strict=True))
        ):
            pieces = []
            for at in range(a // chunk, -(-b // chunk)):
                low, high = max(a - at * chunk, 0), min(b - at * chunk, chunk)
                inside = [place * blocks_behind for place in range(low // block, -(-high // block))]
                pieces.append((at * chunks_behind, inside))
            axes.insert(0, pieces)
            chunks_behind *= -(-n // chunk)
            blocks_behind *= -(-chunk // block)
        for of_axes in product(*axes):
            index = sum([number for number, _ in of_axes])
            for blocks in product(*[inside for _, inside in of_axes]):
                yield index, sum(blocks)

    def bytes_decoded(self, start: Sequence[int], stop: Sequence[int], itemsize: int) -> int:
        """Bytes decompressed to read a region: every block it touches, at full extent.

        Divided by the bytes asked for, this is the read amplification. The work does not depend on the number of
        blocks, only on the number of chunks along each axis.

        Parameters
        ----------
        start, stop : sequence of int
            Half-open box inside the array.
        itemsize : int
            Bytes per voxel.

        Raises
        ------
        UsageError
            The box does not lie inside the array.
        """
        start, stop = self._box(start, stop)
        total = itemsize
        for a, b, chunk, block in zip(start, stop, self.chunks, self.blocks, strict=True):
            touched = 0
            for corner in range(a - a % chunk, b, chunk) if a < b else ():
                touched += -(-min(b - corner, chunk) // block) - max(a - corner, 0) // block
            total *= touched * block
        return total

    def _box(self, start: Sequence[int], stop: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        low, high = tuple(start), tuple(stop)
        inside = len(low) == len(high) == len(self.shape) and all(
            0 <= a <= b <= n for a, b, n in zip(low, high, self.shape, strict=True)
        )
        if not inside:
            raise UsageError(f"The region from {low} to {high} does not lie inside the array of shape {self.shape}.")
        return low, high


def _flat(position: Sequence[int], grid: Sequence[int]) -> int:
    index = 0
    for at, count in zip(position, grid, strict=True):
        index = index * count + at
    return index
