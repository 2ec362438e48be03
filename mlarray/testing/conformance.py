"""Does a source, or a sink, keep its contract? Test classes to subclass, one per format or backend.

Subclass, say how one is made, and let pytest collect it::

    class TestMyFormat(SourceConformance):
        def make(self, folder: Path) -> Source:
            write_my_file(folder / "a.my", self.expected())
            return my_format.open_source(folder / "a.my")

The contracts are those of :class:`mlarray.sources.base.Source` and :class:`mlarray.sources.base.Sink`.
"""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Sink, Source
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec

SHAPE = (7, 10, 12)
FORK_TIMEOUT_SECONDS = 60


class SourceConformance:
    """What every source has to do. Override :meth:`make`, and :meth:`expected` where the voxels are others."""

    def make(self, folder: Path) -> Source:
        """Return a source whose voxels are :meth:`expected`; files go into ``folder``."""
        raise TypeError(f"{type(self).__name__} has to override make().")

    def expected(self) -> NDArray:
        """Return the voxels, native byte order; by default int16, shape (7, 10, 12), all different."""
        return np.arange(int(np.prod(SHAPE)), dtype=np.int16).reshape(SHAPE) - 300

    def regions(self) -> list[Region]:
        """Return the regions that are read: whole, single voxels, planes, random boxes, empty ones."""
        shape = self.expected().shape
        rng = np.random.default_rng(7)
        whole = Region.full(shape)
        boxes = [np.sort(rng.integers(0, np.array(shape) + 1, (2, len(shape))), axis=0) for _ in range(25)]
        drawn = [Region(tuple(low.tolist()), tuple(high.tolist())) for low, high in boxes]
        last = Region.at([n - 1 for n in shape], (1,) * len(shape))
        planes = [next(whole.split(axis, 1)) for axis in range(len(shape))]
        return [whole, last, *planes, Region((0,) * len(shape), (0,) * len(shape)), *drawn]

    def test_the_spec_is_that_of_the_voxels(self, tmp_path: Path) -> None:
        """Shape and dtype are known before a voxel is read."""
        with self.make(tmp_path) as source:
            assert source.spec.shape == self.expected().shape
            assert source.spec.dtype == self.expected().dtype

    def test_access_and_order_are_stated(self, tmp_path: Path) -> None:
        """A planner can rely on both."""
        with self.make(tmp_path) as source:
            assert isinstance(source.access, Access)
            assert sorted(source.order) == list(range(source.spec.ndim))

    def test_it_is_a_source(self, tmp_path: Path) -> None:
        """All names of the protocol are there."""
        with self.make(tmp_path) as source:
            assert isinstance(source, Source)

    def test_every_region_holds_its_voxels(self, tmp_path: Path) -> None:
        """Exactly those, in C order and native byte order."""
        expected = self.expected()
        with self.make(tmp_path) as source:
            for region in self.regions():
                block = source.read(region)
                assert block.flags.c_contiguous
                assert block.dtype == expected.dtype
                np.testing.assert_array_equal(block, expected[region.slices], strict=True)

    def test_voxels_are_written_into_a_given_buffer(self, tmp_path: Path) -> None:
        """Contiguous or a view of something larger; what lies around it stays."""
        expected = self.expected()
        with self.make(tmp_path) as source:
            for region in self.regions():
                buffer = np.full(region.shape, 1, expected.dtype)
                assert source.read(region, buffer) is buffer
                np.testing.assert_array_equal(buffer, expected[region.slices])
                around = np.full([2 * n + 2 for n in region.shape], 1, expected.dtype)
                inner = around[tuple(slice(1, 2 * n + 1, 2) for n in region.shape)]
                source.read(region, inner)
                np.testing.assert_array_equal(inner, expected[region.slices])
                inner[...] = 1
                assert np.all(around == 1)

    def test_what_was_read_belongs_to_the_caller(self, tmp_path: Path) -> None:
        """Changing it does not change the source."""
        with self.make(tmp_path) as source:
            region = Region.full(source.spec.shape)
            source.read(region)[...] = 1
            np.testing.assert_array_equal(source.read(region), self.expected())

    def test_regions_outside_of_the_array_are_refused(self, tmp_path: Path) -> None:
        """They never wrap, and are never clamped in silence."""
        with self.make(tmp_path) as source:
            whole = Region.full(source.spec.shape)
            for region in (whole.grow(1), whole.translate([-1] * whole.ndim), whole.translate([1] * whole.ndim)):
                with pytest.raises(IndexError):
                    source.read(region)

    def test_buffers_that_do_not_fit_are_refused(self, tmp_path: Path) -> None:
        """By shape or by dtype."""
        with self.make(tmp_path) as source:
            region = Region.full(source.spec.shape)
            with pytest.raises(ValueError, match="buffer"):
                source.read(region, np.empty((*region.shape[:-1], region.shape[-1] + 1), source.spec.dtype))
            other = np.dtype(np.complex64 if source.spec.dtype != np.complex64 else np.int16)
            with pytest.raises(ValueError, match="buffer"):
                source.read(region, np.empty(region.shape, other))

    def test_several_threads_read_at_once(self, tmp_path: Path) -> None:
        """Eight threads, every region several times."""
        expected = self.expected()
        with self.make(tmp_path) as source, ThreadPoolExecutor(8) as pool:
            regions = self.regions() * 4
            for region, block in zip(regions, pool.map(source.read, regions), strict=True):
                np.testing.assert_array_equal(block, expected[region.slices])

    def test_a_closed_source_reads_again(self, tmp_path: Path) -> None:
        """Closing releases files; it does not end the source. Closing twice is allowed."""
        source = self.make(tmp_path)
        region = Region.full(source.spec.shape)
        for _ in range(2):
            np.testing.assert_array_equal(source.read(region), self.expected())
            source.close()
            source.close()

    def test_a_pickled_copy_reads_the_same(self, tmp_path: Path) -> None:
        """Also after the original was closed."""
        source = self.make(tmp_path)
        source.read(Region.full(source.spec.shape))
        copy = pickle.loads(pickle.dumps(source))
        source.close()
        assert copy.spec == source.spec
        with copy:
            np.testing.assert_array_equal(copy.read(Region.full(source.spec.shape)), self.expected())

    def test_a_forked_process_reads_on(self, tmp_path: Path) -> None:
        """Beside the parent, with what was open before the fork."""
        if "fork" not in multiprocessing.get_all_start_methods():
            pytest.skip("this system cannot fork")
        with self.make(tmp_path) as source:
            whole = Region.full(source.spec.shape)
            source.read(whole)
            context = multiprocessing.get_context("fork")
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=lambda: sender.send(source.read(whole)))
            child.start()
            np.testing.assert_array_equal(source.read(whole), self.expected())
            assert receiver.poll(FORK_TIMEOUT_SECONDS), "the child did not answer"
            np.testing.assert_array_equal(receiver.recv(), self.expected())
            child.join(FORK_TIMEOUT_SECONDS)
            assert child.exitcode == 0


class SinkConformance:
    """What every sink has to do. Override :meth:`make` and :meth:`stored`; :attr:`suffix` names the file."""

    suffix = ""

    def make(self, path: Path, spec: ArraySpec) -> Sink:
        """Return a sink that writes ``spec`` to ``path``."""
        raise TypeError(f"{type(self).__name__} has to override make().")

    def stored(self, path: Path) -> NDArray:
        """Return the voxels of a finished file."""
        raise TypeError(f"{type(self).__name__} has to override stored().")

    def expected(self) -> NDArray:
        """Return the voxels that are written; by default int16, shape (7, 10, 12)."""
        return np.arange(int(np.prod(SHAPE)), dtype=np.int16).reshape(SHAPE)

    def fill(self, sink: Sink) -> None:
        """Write all voxels, in the tiles that a copy would use."""
        voxels = self.expected()
        for tile in plan_tiles(sink.spec, sink.chunks, access=sink.access, order=sink.order):
            sink.write(tile, voxels[tile.slices])

    def _sink(self, folder: Path) -> tuple[Path, Sink]:
        path = folder / f"case{self.suffix}"
        return path, self.make(path, ArraySpec(self.expected().shape, self.expected().dtype))

    def test_what_is_written_is_stored(self, tmp_path: Path) -> None:
        """Tile by tile, then published; nothing else is left in the folder."""
        path, sink = self._sink(tmp_path)
        self.fill(sink)
        sink.publish()
        np.testing.assert_array_equal(self.stored(path), self.expected(), strict=True)
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]

    def test_nothing_is_visible_before_it_is_published(self, tmp_path: Path) -> None:
        """The file is complete under its temporary name after ``finish``; finishing twice is allowed."""
        path, sink = self._sink(tmp_path)
        self.fill(sink)
        assert not path.exists()
        sink.finish()
        sink.finish()
        assert not path.exists()
        assert sink.path.parent == tmp_path
        np.testing.assert_array_equal(self.stored(sink.path), self.expected())
        sink.publish()
        assert path.exists()

    def test_an_existing_file_stays_until_it_is_replaced(self, tmp_path: Path) -> None:
        """And stays for good when the sink is aborted."""
        path, sink = self._sink(tmp_path)
        path.write_bytes(b"old")
        self.fill(sink)
        assert path.read_bytes() == b"old"
        sink.abort()
        assert path.read_bytes() == b"old"
        _, again = self._sink(tmp_path)
        self.fill(again)
        again.publish()
        np.testing.assert_array_equal(self.stored(path), self.expected())

    def test_aborting_leaves_nothing(self, tmp_path: Path) -> None:
        """At any time, twice, and without effect once published."""
        for filled in (False, True):
            path, sink = self._sink(tmp_path)
            if filled:
                self.fill(sink)
            sink.abort()
            sink.abort()
            assert list(tmp_path.iterdir()) == []
        path, sink = self._sink(tmp_path)
        self.fill(sink)
        sink.publish()
        sink.abort()
        assert path.exists()

    def test_regions_in_any_order_where_access_says_so(self, tmp_path: Path) -> None:
        """Reversed tiles give the same file."""
        path, sink = self._sink(tmp_path)
        if sink.access is not Access.REGION:
            sink.abort()
            pytest.skip("this sink takes voxels in storage order only")
        voxels = self.expected()
        for tile in reversed(list(plan_tiles(sink.spec, sink.chunks, access=sink.access, order=sink.order))):
            sink.write(tile, voxels[tile.slices])
        sink.publish()
        np.testing.assert_array_equal(self.stored(path), voxels)
