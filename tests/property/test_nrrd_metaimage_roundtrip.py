"""Whatever the dtype, shape, axes and place: what is written is what is read, and where SimpleITK sees it."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given, settings
from hypothesis import strategies as st

from mlarray.axes import Axis
from mlarray.errors import FormatError
from mlarray.formats import metaimage, nrrd
from mlarray.formats.registry import open_source
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.sources.base import NDArray, SinkOptions, SourceInfo
from mlarray.sources.copy import copy
from mlarray.sources.memory import ArraySource
from mlarray.sources.tiles import plan_tiles
from mlarray.spec import ArraySpec
from tests.conformance.text_header_files import META_BASE, NRRD_BASE, RAMP, write_meta, write_nrrd

MODULES = {".nrrd": nrrd, ".mha": metaimage}
DTYPES = ["u1", "i1", "<i2", ">i2", "u2", "i4", "u4", "i8", "u8", "f4", ">f4", "f8"]
OTHERS = [Axis("c"), Axis("t", "time", "second", 2.5), Axis("v", "components")]
POSITION_ATOL = 1e-9  # float64 text is exact; spacing times unit direction rounds once more


@st.composite
def arrays(draw: st.DrawFn) -> tuple[NDArray, ArraySpec]:
    """Draw an array with distinct values, axes in any order and an affine that is rotated, mirrored and maybe sheared."""
    spatial = draw(st.permutations([Axis("z"), Axis("y"), Axis("x")]))
    others = draw(st.lists(st.sampled_from(OTHERS), max_size=2, unique_by=lambda axis: axis.name))
    axes = draw(st.permutations([*spatial, *others]))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=len(axes), max_size=len(axes))))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    array = np.random.default_rng(draw(st.integers(0, 9))).permutation(int(np.prod(shape))).reshape(shape).astype(dtype)
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    linear = np.linalg.qr(rng.normal(size=(3, 3)))[0] * rng.uniform(0.01, 9, 3)
    if draw(st.booleans()):
        linear[:, 0] += 0.3 * linear[:, 1]
    affine = np.eye(4)
    affine[:3, :3] = linear
    affine[:3, 3] = rng.uniform(-500, 500, 3)
    return array, ArraySpec(shape, dtype, tuple(axes), Geometry(affine, draw(st.sampled_from(["LPS", "RAS"]))))


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
@given(drawn=arrays())
@settings(max_examples=60)
def test_values_places_and_axes_come_back(suffix: str, drawn: tuple[NDArray, ArraySpec]) -> None:
    array, spec = drawn
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        sink = MODULES[suffix].open_sink(path, spec, SourceInfo(), SinkOptions(record={"case": 1}))
        source = ArraySource(array, spec)
        copy(source, sink, plan_tiles(spec, None, access=sink.access, order=sink.order))
        sink.publish()
        back = open_source(path)
        read = back.read(back.spec.region)
        order = [[axis.name for axis in spec.axes].index(axis.name) for axis in back.spec.axes]
        np.testing.assert_array_equal(read, array.transpose(order))
        assert back.spec.axes[-3:] == tuple(Axis(name, "space", "millimeter") for name in "zyx")
        assert back.spec.axes[:-3] == tuple(spec.axes[i] for i in order[:-3])
        assert back.info.record == {"case": 1}
        moved = spec.permuted(order).geometry
        assert moved is not None
        assert back.spec.geometry is not None
        expected = moved.in_frame("LPS").affine
        np.testing.assert_allclose(back.spec.geometry.affine, expected, rtol=1e-12, atol=POSITION_ATOL)
        back.close()
        if len(order) == 3 or suffix == ".mha":
            image = sitk.ReadImage(str(path))
            last = tuple(n - 1 for n in back.spec.shape[-3:])
            far = (*reversed(last), *(0 for _ in range(image.GetDimension() - 3)))
            np.testing.assert_allclose(
                image.TransformIndexToPhysicalPoint(far)[:3], back.spec.geometry.world(last), atol=1e-5
            )


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
@given(drawn=arrays(), data=st.data())
@settings(max_examples=30)
def test_a_region_equals_the_part_of_the_whole(
    suffix: str, drawn: tuple[NDArray, ArraySpec], data: st.DataObject
) -> None:
    array, spec = drawn
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        sink = MODULES[suffix].open_sink(path, spec, SourceInfo(), SinkOptions())
        copy(ArraySource(array, spec), sink, plan_tiles(spec, None, access=sink.access, order=sink.order))
        sink.publish()
        with closing(open_source(path)) as source:
            whole = source.read(source.spec.region)
            for _ in range(3):
                ends = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in source.spec.shape]
                part = Region(tuple(a for a, _ in ends), tuple(b for _, b in ends))
                np.testing.assert_array_equal(source.read(part), whole[part.slices])


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
@given(data=st.data())
@settings(max_examples=150)
def test_a_damaged_header_is_read_or_refused_but_never_crashes(suffix: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        if suffix == ".nrrd":
            placed = {"space": "RAS", "space directions": "(2,0,0) (0,3,0) (0,0,4)", "kinds": "domain domain domain"}
            write_nrrd(path, {**NRRD_BASE, **placed}, RAMP)
        else:
            placed = {"ElementSpacing": "1 2 3", "TransformMatrix": "1 0 0 0 1 0 0 0 1", "HeaderSize": "0"}
            write_meta(path, {**META_BASE, **placed}, RAMP)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
                st.sampled_from(b'0912-.:= \n\r()ani\xff\x00"L')
            )
        path.write_bytes(bytes(content))
        problem = ""
        try:
            with closing(open_source(path)) as source:
                if source.spec.nbytes < 1 << 20:
                    assert source.read(source.spec.region).shape == source.spec.shape
        except FormatError as error:
            problem = str(error)
        assert not problem or str(path) in problem
