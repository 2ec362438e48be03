"""Whatever is done to an array, its geometry keeps every value at its place in the world."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlarray.axes import Axis, axes_from_labels, parse_axes
from mlarray.geometry import Geometry
from mlarray.metadata import Meta, decode, encode
from mlarray.metadata.spatial import axes_of, geometry_of, spatial_fields
from mlarray.region import Region
from mlarray.spec import ArraySpec
from mlarray.testing.strategies import axes, geometries, regions_within, shapes, specs

# Positions are at most 1000 + 12 * 20 mm; products and sums of float64 at that size are exact to about 1e-12.
POSITION_ATOL_MM = 1e-9

Pairs = dict[int, np.ndarray]


def pairs(voxels: np.ndarray, geometry: Geometry) -> Pairs:
    """The world position of every value; values are unique."""
    return {int(voxels[index]): np.array(geometry.world(index)) for index in np.ndindex(voxels.shape)}


def same_places(part: Pairs, whole: Pairs) -> bool:
    return all(np.allclose(position, whole[value], rtol=0, atol=POSITION_ATOL_MM) for value, position in part.items())


@st.composite
def images(draw: st.DrawFn) -> tuple[np.ndarray, Geometry]:
    shape = draw(shapes(max_dims=3, min_side=1, max_side=4))
    voxels = np.arange(np.prod(shape)).reshape(shape)
    return voxels, draw(geometries(len(shape)))


@given(images(), st.data())
def test_cropping_keeps_values_in_place(image: tuple[np.ndarray, Geometry], data: st.DataObject) -> None:
    voxels, geometry = image
    region = data.draw(regions_within(voxels.shape))
    assert same_places(pairs(voxels[region.slices], geometry.cropped(region)), pairs(voxels, geometry))


@given(images(), st.data())
def test_permuting_keeps_values_in_place(image: tuple[np.ndarray, Geometry], data: st.DataObject) -> None:
    voxels, geometry = image
    order = data.draw(st.permutations(range(voxels.ndim)))
    assert same_places(pairs(voxels.transpose(order), geometry.permuted(order)), pairs(voxels, geometry))


@given(images(), st.data())
def test_flipping_keeps_values_in_place(image: tuple[np.ndarray, Geometry], data: st.DataObject) -> None:
    voxels, geometry = image
    axis = data.draw(st.integers(0, voxels.ndim - 1))
    flipped = pairs(np.flip(voxels, axis), geometry.flipped(axis, voxels.shape[axis]))
    assert same_places(flipped, pairs(voxels, geometry))


@given(images(), st.data())
def test_keeping_every_nth_voxel_is_a_rescaling(image: tuple[np.ndarray, Geometry], data: st.DataObject) -> None:
    voxels, geometry = image
    steps = data.draw(st.lists(st.integers(1, 3), min_size=voxels.ndim, max_size=voxels.ndim))
    thinned = voxels[tuple(slice(None, None, step) for step in steps)]
    assert same_places(pairs(thinned, geometry.rescaled(steps)), pairs(voxels, geometry))


@given(images(), st.data())
def test_a_chain_of_all_of_it_keeps_values_in_place(image: tuple[np.ndarray, Geometry], data: st.DataObject) -> None:
    voxels, geometry = image
    there = pairs(voxels, geometry)
    for _ in range(4):
        step = data.draw(st.sampled_from(["crop", "permute", "flip"]))
        if step == "crop":
            region = data.draw(regions_within(voxels.shape))
            voxels, geometry = voxels[region.slices], geometry.cropped(region)
        elif step == "permute":
            order = data.draw(st.permutations(range(voxels.ndim)))
            voxels, geometry = voxels.transpose(order), geometry.permuted(order)
        else:
            axis = data.draw(st.integers(0, voxels.ndim - 1))
            voxels, geometry = np.flip(voxels, axis), geometry.flipped(axis, voxels.shape[axis])
    assert same_places(pairs(voxels, geometry), there)


@given(geometries(3))
def test_spacing_and_direction_multiply_to_the_affine(geometry: Geometry) -> None:
    rebuilt = Geometry.from_parts(
        spacing=geometry.spacing, origin=geometry.origin, direction=geometry.direction, coord_system="LPS"
    )
    assert np.allclose(rebuilt.affine, geometry.affine, rtol=1e-14, atol=1e-12)


@given(geometries(2) | geometries(3))
def test_geometries_pickle_to_equal_values(geometry: Geometry) -> None:
    copy = pickle.loads(pickle.dumps(geometry))
    assert copy == geometry
    assert hash(copy) == hash(geometry)


@given(geometries(3), st.sampled_from(["LPS", "RAS"]))
def test_turning_the_frame_twice_changes_nothing(geometry: Geometry, frame: str) -> None:
    placed = Geometry(geometry.affine, frame, geometry.known)
    other = placed.in_frame("RAS" if frame == "LPS" else "LPS")
    assert other.in_frame(frame) == placed  # type: ignore[arg-type]
    assert other.orientation == placed.orientation


@given(st.integers(1, 5).flatmap(axes))
def test_axes_survive_their_dictionaries(some: tuple[Axis, ...]) -> None:
    assert parse_axes([axis.to_dict() for axis in some]) == some


@given(st.integers(1, 5).flatmap(axes))
def test_the_labels_of_a_file_keep_what_each_axis_is(some: tuple[Axis, ...]) -> None:
    labels = [axis.label for axis in some]
    back = axes_from_labels(labels, [axis.unit or "" for axis in some], len(some))
    assert [axis.type for axis in back] == [axis.type for axis in some]
    assert [axis.unit for axis in back] == [axis.unit for axis in some]
    assert [axis.label for axis in back] == labels
    assert ArraySpec((1,) * len(back), np.dtype("u1"), back).axes == back


@given(st.lists(st.sampled_from(["channel", "spatial", "spatial_x", "c", "c1", "d0", "d1", "x", "echo"]), max_size=6))
def test_any_labels_give_axes_that_an_array_can_have(labels: list[str]) -> None:
    back = axes_from_labels(labels, None, len(labels))
    assert len(ArraySpec((1,) * len(labels), np.dtype("u1"), back).axes) == len(labels)


@given(specs())
def test_a_spec_survives_the_metadata_of_a_file(spec: ArraySpec) -> None:
    meta = Meta(spatial={name: value for name, value in spatial_fields(spec).items() if value is not None})
    stored = Meta.from_mapping(decode(encode(meta)))
    record = [axis.to_dict() for axis in spec.axes]
    assert axes_of(stored.spatial, spec.ndim, record) == spec.axes
    geometry = geometry_of(stored.spatial, spec.axes)
    if spec.geometry is None:
        assert geometry is None
        return
    assert geometry is not None
    assert geometry.coord_system == spec.geometry.coord_system
    if not spec.geometry.is_sheared:
        assert geometry.known == spec.geometry.known
    if spec.geometry.is_sheared or "spacing" in spec.geometry.known:
        assert np.allclose(geometry.spacing, spec.geometry.spacing, rtol=1e-14)
    if geometry.known == {"spacing", "origin", "direction"}:
        assert np.allclose(geometry.affine, spec.geometry.affine, rtol=1e-14, atol=1e-12)


@given(specs(min_side=1), st.data())
def test_permuting_a_spec_and_back_changes_nothing(spec: ArraySpec, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(spec.ndim)))
    assert spec.permuted(order).permuted([order.index(axis) for axis in range(spec.ndim)]) == spec
    assert spec.permuted(order).region == Region.full(spec.shape).permute(order)
