"""Slabs that do not match chunks: gathered, and each chunk compressed once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlarray.chunk_grid import ChunkGrid
from mlarray.region import Region
from mlarray.storage.gather import ChunkGatherer


class CountingStore:
    """A numpy array that counts how often each chunk is stored."""

    def __init__(self, shape: tuple[int, ...], grid: ChunkGrid) -> None:
        self.array = np.zeros(shape, np.int32)
        self.grid = grid
        self.stored: dict[int, int] = {}

    def read(self, region: Region, out: object = None) -> np.ndarray:
        return self.array[region.slices].copy()

    def write(self, region: Region, block: np.ndarray) -> None:
        self.array[region.slices] = block
        for index in self.grid.chunks_touched(region.start, region.stop):
            self.stored[index] = self.stored.get(index, 0) + 1


def gatherer(
    shape: tuple[int, ...], chunks: tuple[int, ...], limit: int = 1 << 30
) -> tuple[ChunkGatherer, CountingStore]:
    grid = ChunkGrid(shape, chunks, chunks)
    store = CountingStore(shape, grid)
    return ChunkGatherer(store.read, store.write, grid, limit_bytes=limit), store


def test_thin_slabs_store_each_chunk_once() -> None:
    shape = (50, 20, 20)
    values = np.arange(50 * 20 * 20, dtype=np.int32).reshape(shape)
    gather, store = gatherer(shape, (16, 8, 8))
    for low in range(0, 50, 3):
        high = min(low + 3, 50)
        gather.write(Region((low, 0, 0), (high, 20, 20)), values[low:high])
    gather.flush()
    assert np.array_equal(store.array, values)
    assert set(store.stored.values()) == {1}
    assert len(store.stored) == 4 * 3 * 3


def test_whole_chunks_are_not_held() -> None:
    gather, store = gatherer((32, 8), (16, 8))
    gather.write(Region((16, 0), (32, 8)), np.ones((16, 8), np.int32))
    assert store.array[16:].sum() == 128


def test_memory_stays_within_the_limit() -> None:
    gather, store = gatherer((16, 64), (16, 8), limit=2 * 16 * 8 * 4)
    gather.write(Region((0, 0), (1, 64)), np.ones((1, 64), np.int32))
    assert gather.held_bytes <= 2 * 16 * 8 * 4
    assert len(store.stored) == 6
    gather.flush()
    assert store.array[0].sum() == 64


@given(st.data())
def test_any_sequence_of_writes_and_flushes_ends_in_what_numpy_holds(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 9)] * 2))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    gather, store = gatherer(shape, chunks, data.draw(st.sampled_from([0, 64, 1 << 20])))
    expected = np.zeros(shape, np.int32)
    for value in range(data.draw(st.integers(1, 8))):
        start = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
        stop = tuple(data.draw(st.integers(a + 1, n)) for a, n in zip(start, shape, strict=True))
        region = Region(start, stop)
        expected[region.slices] = value + 1
        gather.write(region, np.full(region.shape, value + 1, np.int32))
        if data.draw(st.booleans()):
            gather.flush(region)
            assert np.array_equal(store.array[region.slices], expected[region.slices])
    gather.flush()
    assert np.array_equal(store.array, expected)
