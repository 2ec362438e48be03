"""Chunks that are compressed side by side: the bytes of one thread, whatever the layout and however many at once."""

from __future__ import annotations

import threading
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray.chunk_grid import ChunkGrid
from mlarray.layout import Layout
from mlarray.region import Region
from mlarray.storage.blosc import BloscStore, create_store
from mlarray.storage.packing import ChunkPacker, packer_for

LAYOUT = Layout((16, 24, 20), (8, 8, 16), None, "")
SHAPE = (37, 50, 41)


def voxels(dtype: str = "i2", shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    values = np.random.default_rng(5).normal(0, 40, shape)
    values[: shape[0] // 2] = 0
    return values.astype(dtype)


def stored(at_once: int | None, data: np.ndarray, layout: Layout = LAYOUT, *, cparams: object = None) -> BloscStore:
    store = create_store(data.shape, data.dtype, layout, threads=1, cparams=cparams)
    if at_once is not None:
        store.pack_chunks(at_once)
    store.write(Region.full(data.shape), data)
    return store


def chunk_bytes(store: BloscStore) -> list[bytes]:
    return [store.chunk_bytes(index) for index in range(store.chunk_count)]


def packers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mla-pack")]


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16", "?"])
@pytest.mark.parametrize("at_once", [1, 3])
def test_chunks_are_those_that_blosc2_writes_with_one_thread(dtype: str, at_once: int) -> None:
    data = voxels(dtype)
    assert chunk_bytes(stored(at_once, data)) == chunk_bytes(stored(None, data))
    assert packers() == []


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_layout_is_read_back(data: st.DataObject) -> None:
    extents = st.integers(1, 12)
    shape = tuple(data.draw(st.lists(extents, min_size=1, max_size=4)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    blocks = tuple(data.draw(st.integers(1, n)) for n in chunks)
    values = voxels("i2", shape)
    store = stored(2, values, Layout(chunks, blocks, None, ""))
    assert np.array_equal(store.read(Region.full(shape)), values)


def test_parts_of_chunks_are_written_as_before() -> None:
    data = voxels()
    store = stored(2, data)
    store.write(Region((3, 5, 7), (20, 30, 9)), np.full((17, 25, 2), 9, np.int16))
    data[3:20, 5:30, 7:9] = 9
    assert np.array_equal(store.read(Region.full(SHAPE)), data)


def test_a_filter_that_asks_for_its_array_is_left_to_blosc2() -> None:
    cparams = {"filters": [blosc2.Filter.NDCELL], "filters_meta": [4], "codec": blosc2.Codec.ZSTD, "typesize": 2}
    array = blosc2.zeros(SHAPE, "i2", chunks=LAYOUT.chunks, blocks=LAYOUT.blocks, cparams=cparams)
    grid = ChunkGrid(SHAPE, LAYOUT.chunks, LAYOUT.blocks)
    assert packer_for(array.schunk.cparams, grid, np.dtype("i2"), blosc2, at_once=2) is None
    store = stored(2, voxels(), cparams={**cparams, "filters": [blosc2.Filter.DELTA], "filters_meta": [0]})
    assert np.array_equal(store.read(Region.full(SHAPE)), voxels())


def test_a_chunk_that_fails_ends_the_write_and_every_thread() -> None:
    started: list[int] = []

    def compress(voxels: np.ndarray) -> bytes:
        started.append(voxels.size)
        raise RuntimeError("Could not compress the data")

    grid = ChunkGrid((64, 8), (1, 8), (1, 8))
    packer = ChunkPacker(compress, grid, np.dtype("i2"), at_once=2)
    with pytest.raises(RuntimeError, match="compress"):
        list(packer.packed(Region.full((64, 8)), np.zeros((64, 8), "i2")))
    assert len(started) <= 6
    assert packers() == []


def test_a_file_holds_the_same_bytes_however_many_threads_made_it(tmp_path: Path) -> None:
    made = []
    for at_once in (1, 4):
        path = tmp_path / f"{at_once}.b2nd"
        store = create_store(SHAPE, np.dtype("i2"), LAYOUT, path=path, threads=1)
        store.pack_chunks(at_once)
        store.write(Region.full(SHAPE), voxels())
        store.close()
        made.append(path.read_bytes())
    assert made[0] == made[1]
