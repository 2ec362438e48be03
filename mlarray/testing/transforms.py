"""Does a transform keep what it declares? Patches of a chain against the cut of the whole, and a test class to subclass.

Subclass, say how the transform is made, and let pytest collect it; bring your own arrays where random ones make no sense::

    class TestMyFilter(TransformConformance):
        def transform(self) -> Transform:
            return MyFilter(radius=2)

:func:`prove` is the same proof for any chain on any source, in one call.
"""

from __future__ import annotations

import builtins
import io
import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from hypothesis import strategies as st

from mlarray.axes import Axis, default_axes
from mlarray.errors import TransformError
from mlarray.geometry import Geometry
from mlarray.region import Region
from mlarray.sources.base import Access, NDArray, Source, SourceInfo
from mlarray.sources.memory import ArraySource
from mlarray.spec import ArraySpec
from mlarray.streaming.plan import Plan
from mlarray.streaming.planning import plan
from mlarray.streaming.rules import Regime
from mlarray.transforms.base import Transform
from mlarray.transforms.volume import Volume

PATCHES = 40
"""Most patches that :func:`prove` looks at; beyond it, they are drawn from the grid with a fixed seed."""


def source_of(array: NDArray, geometry: Geometry | None = None, *, is_label: bool = False) -> Source:
    """Return an array ``[C, spatial...]`` as a source whose axes say so."""
    axes = (Axis("c"), *default_axes(array.ndim - 1))
    return ArraySource(array, ArraySpec(array.shape, array.dtype, axes, geometry), SourceInfo(is_seg=is_label or None))


class WatchedSource:
    """A source that notes what is read.

    Parameters
    ----------
    source : Source
        Which one.

    Attributes
    ----------
    regions : list of Region
        What was read, in order, in the axes of the source.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.spec, self.order, self.info = source.spec, source.order, source.info
        self.access = Access.REGION
        self.regions: list[Region] = []

    def read(self, region: Region, out: NDArray | None = None) -> NDArray:
        """Read, within the array only."""
        assert region.is_within(self.spec.shape), f"{region} is not within {self.spec.shape}"
        self.regions.append(region)
        return self._source.read(region, out)

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def __enter__(self) -> WatchedSource:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def prove(
    chain: Sequence[Transform],
    source: Source,
    *,
    patch_size: int | Sequence[int],
    groups: Mapping[str, Source] | None = None,
    attributes: Mapping[str, object] | None = None,
    targets: Sequence[Region] = (),
) -> NDArray:
    """Prove that patches computed from their own regions are the patches cut from the whole result, to the last bit.

    Proven for each patch: values (NaN at the same places, zeros of the same sign), shape, dtype; one read of the stored volume,
    of the region that the plan said; also by a plan that was pickled before, asked in another order, and in the strict profile.

    Parameters
    ----------
    chain : sequence of Transform
        Any.
    source : Source
        See :func:`source_of`.
    patch_size : int or sequence of int
        Of the result.
    groups, attributes : mapping, optional
        As for :func:`mlarray.streaming.plan`.
    targets : sequence of Region
        Further patches to look at.

    Returns
    -------
    ndarray
        The whole result.

    Raises
    ------
    AssertionError
        With the chain, the patch and the first differing voxels.
    """
    watched = WatchedSource(source)

    def planned(*, strict: bool = False) -> Plan:
        return plan(
            watched,
            chain,
            patch_size=patch_size,
            groups=groups,
            attributes=attributes,
            strict=strict,
            cost_limit=math.inf,
        )

    whole_plan = planned()
    whole = whole_plan.read_whole()
    assert whole.shape == whole_plan.result.array_shape, f"{_named(chain)}: {whole.shape}"
    assert whole.dtype == whole_plan.result.dtype, f"{_named(chain)}: {whole.dtype}"
    patches = [*_chosen(whole_plan), *targets]
    streamed = planned()
    streamed.measure()
    copied: Plan = pickle.loads(pickle.dumps(planned()))
    for target in patches:
        watched.regions.clear()
        patch = streamed.read(target)
        _compare(patch, whole, target, chain)
        if streamed.verdict.regime is Regime.STREAM:
            wanted = streamed.fold(target).shape
            read = [region.shape[-len(wanted) :] for region in watched.regions]
            assert read == [wanted], f"{_named(chain)}: {target} read {watched.regions}"
    for target in patches[::-1][:3]:
        _compare(copied.read(target), whole, target, chain)
    strict = planned(strict=True)
    for target in patches[:2]:
        _compare(strict.read(target), whole, target, chain)
    for key in whole_plan.attributes:
        ours, theirs = streamed.attributes.stacks[key], copied.attributes.stacks[key]
        whole_stack = whole_plan.attributes.stacks[key]
        assert repr(ours) == repr(theirs) == repr(whole_stack), f"{_named(chain)}: {key} differs"
    return whole


def assert_identical(actual: NDArray, expected: NDArray, message: str = "") -> None:
    """Assert the same shape, dtype and values: NaN at the same places, zeros of the same sign."""
    assert actual.shape == expected.shape, f"{message}: shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype == expected.dtype, f"{message}: dtype {actual.dtype}, expected {expected.dtype}"
    same = actual == expected
    if actual.dtype.kind in "fc":
        nan = np.isnan(actual) & np.isnan(expected)
        same = (same & (np.signbit(actual.real) == np.signbit(expected.real))) | nan
    if not same.all():
        places = np.argwhere(~same)[:3]
        shown = "; ".join(f"{place}: {actual[tuple(place)]!r} for {expected[tuple(place)]!r}" for place in places)
        raise AssertionError(f"{message}: {np.count_nonzero(~same)} of {same.size} voxels differ: {shown}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A volume to try a transform on.

    Parameters
    ----------
    array : ndarray, shape (C, spatial...)
        Its voxels.
    geometry : Geometry or None
        Where they lie.
    is_label : bool
        Whether they are labels.
    groups : mapping of str to ndarray
        Other groups of the case, on the same grid.
    attributes : mapping
        What is known about the case.
    """

    array: NDArray
    geometry: Geometry | None = None
    is_label: bool = False
    groups: Mapping[str, NDArray] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The volume as a source."""
        return source_of(self.array, self.geometry, is_label=self.is_label)

    def prove(self, chain: Sequence[Transform], patch_size: int | Sequence[int], **more: Sequence[Region]) -> NDArray:
        """Prove a chain on this volume, see :func:`prove`; the array is not changed."""
        before = self.array.copy()
        groups = {name: source_of(array, self.geometry) for name, array in self.groups.items()}
        whole = prove(
            chain,
            self.source,
            patch_size=patch_size,
            groups=groups,
            attributes=self.attributes,
            targets=more.get("targets", ()),
        )
        assert_identical(self.array, before, "the input was changed")
        return whole


SAMPLE_DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")


@st.composite
def samples(
    draw: st.DrawFn,
    *,
    dtypes: Sequence[str] = SAMPLE_DTYPES,
    channels: tuple[int, int] = (1, 3),
    ndims: Sequence[int] = (2, 3),
    max_side: int = 11,
    geometry: bool = True,
    nan: bool = False,
) -> Sample:
    """Draw volumes: odd extents, axes of extent 1, all dtypes over their whole range or with few values, oblique directions.

    Parameters
    ----------
    dtypes : sequence of str
        To choose from.
    channels : tuple of int
        Least and most.
    ndims : sequence of int
        Numbers of spatial axes to choose from.
    max_side : int
        Largest extent.
    geometry : bool
        Whether there may be one.
    nan : bool
        Whether floats may hold NaN and infinities.
    """
    ndim = draw(st.sampled_from(list(ndims)))
    shape = tuple(draw(st.integers(1, max_side)) for _ in range(ndim))
    dtype = np.dtype(draw(st.sampled_from(list(dtypes))))
    count = draw(st.integers(*channels))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    array = _values(rng, (count, *shape), dtype, draw(st.sampled_from(["narrow", "wide", "constant", "labels"])))
    if nan and dtype.kind == "f" and draw(st.booleans()):
        array[rng.random(array.shape) < 0.1] = rng.choice(np.array([np.nan, np.inf, -np.inf]))
    place = (
        _geometry(rng, ndim, draw(st.sampled_from(["none", "identity", "permuted", "oblique"]))) if geometry else None
    )
    mask = (rng.random((1, *shape)) < 0.5).astype(np.uint8) * rng.integers(1, 4, dtype=np.uint8)
    return Sample(array, place, groups={"MASK": mask})


class TransformConformance:
    """What every transform has to do. Override :meth:`transform`; :meth:`samples` where others make more sense."""

    def transform(self) -> Transform:
        """Return the transform."""
        raise TypeError(f"{type(self).__name__} has to override transform().")

    def chains(self) -> Sequence[Sequence[Transform]]:
        """Return the chains to prove; default: the transform alone, and twice."""
        return [[self.transform()], [self.transform(), self.transform()]]

    def samples(self) -> Sequence[Sample]:
        """Return the volumes to try; default: int16 and float32, 3-D, 2-D, with a thin axis, with two channels.

        Volumes that the transform refuses with :class:`~mlarray.errors.TransformError` are left out; one must remain.
        """
        rng = np.random.default_rng(11)
        shapes = [(1, 9, 10, 11), (1, 12, 7), (1, 1, 8, 9), (2, 6, 5, 7)]
        return [
            Sample(_values(rng, shape, np.dtype(dtype), "narrow"), _geometry(rng, len(shape) - 1, "oblique"))
            for shape in shapes
            for dtype in ("i2", "f4")
        ]

    def patch_sizes(self, ndim: int) -> Sequence[Sequence[int]]:
        """Return the patch sizes to try."""
        return [(4,) * ndim, (1,) * (ndim - 1) + (5,), (64,) * ndim]

    def test_patches_are_cuts_of_the_whole(self) -> None:
        """To the last bit, each from one read of the region that was declared."""
        proven = 0
        for sample in self.samples():
            for chain in self.chains():
                for patch_size in self.patch_sizes(sample.array.ndim - 1):
                    if _accepts(chain, sample):
                        sample.prove(chain, patch_size)
                        proven += 1
        assert proven, "every sample was refused: override samples() with volumes that the transform takes"

    def test_declarations_are_total_and_repeatable(self) -> None:
        """Nothing known about the volume is an input too; asking twice gives the same, and changes nothing."""
        transform = self.transform()
        for sample in self.samples():
            known = _volume(sample)
            for volume in (known, known.with_(geometry=None), Volume(1, sample.array.shape[1:], np.dtype("u1"))):
                for declaration in (transform.locality, transform.statistics, transform.references, transform.groups):
                    assert repr(declaration(volume)) == repr(declaration(volume))
                try:
                    first = transform.outcome(volume)
                except TransformError:
                    continue
                assert first == transform.outcome(volume)
                assert transform.locality(volume).out_shape(volume.shape) == first.shape

    def test_declarations_open_no_files(self) -> None:
        """A data set is planned from headers, perhaps where its other files are not."""
        transform = self.transform()
        for sample in self.samples():
            volume = _volume(sample)
            with _without_files():
                for declaration in (transform.locality, transform.statistics, transform.references, transform.groups):
                    declaration(volume)
                with suppress(TransformError):
                    transform.outcome(volume)

    def test_it_crosses_process_borders(self) -> None:
        """Workers get it by pickling."""
        transform = self.transform()
        assert pickle.loads(pickle.dumps(transform)) == transform


@contextmanager
def _without_files() -> Iterator[None]:
    """Refuse to open files."""

    def refuse(path: object, *_: object, **__: object) -> NoReturn:
        raise AssertionError(f"a declaration opens {path!r}: take what it needs as a parameter or a group")

    with ExitStack() as stack:
        for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, refuse)
        yield


def _accepts(chain: Sequence[Transform], sample: Sample) -> bool:
    volume = _volume(sample)
    try:
        for transform in chain:
            volume = transform.outcome(volume)
    except TransformError:
        return False
    return True


def _volume(sample: Sample) -> Volume:
    return Volume(sample.array.shape[0], sample.array.shape[1:], sample.array.dtype, sample.geometry, sample.is_label)


def _chosen(planned: Plan) -> Iterator[Region]:
    """Yield patches of the grid, and regions that no grid has: single voxels at both ends, the whole."""
    shape, count = planned.result.shape, len(planned.grid)
    rng = np.random.default_rng(count)
    wanted = range(count) if count <= PATCHES else sorted({0, count - 1, *rng.integers(0, count, PATCHES).tolist()})
    yield from (planned.grid[index] for index in wanted)
    yield Region.at((0,) * len(shape), (1,) * len(shape))
    yield Region.at(tuple(n - 1 for n in shape), (1,) * len(shape))
    ends = [sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in shape]
    yield Region(tuple(low for low, _ in ends), tuple(high for _, high in ends))
    yield planned.result.region


def _compare(patch: NDArray, whole: NDArray, target: Region, chain: Sequence[Transform]) -> None:
    assert_identical(
        patch, whole[(slice(None), *target.slices)], f"{_named(chain)}, patch {target.start}..{target.stop}"
    )


def _named(chain: Sequence[Transform]) -> str:
    return f"[{', '.join(map(repr, chain))}]"


def _values(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[np.generic], kind: str) -> NDArray:
    if kind == "labels" or dtype.kind == "b":
        return rng.integers(0, 2 if dtype.kind == "b" else 5, shape).astype(dtype)
    if kind == "constant":
        return np.full(shape, rng.integers(0, 100), dtype)
    if dtype.kind == "f":
        scale = {"narrow": 450.0, "wide": 3e4}[kind]
        return np.clip(rng.normal(size=shape) * scale, -6e4, 6e4).astype(dtype)  # within float16
    limits = np.iinfo(dtype)  # type: ignore[type-var]
    low, high = (limits.min, limits.max) if kind == "wide" else (max(limits.min, -100), 100)
    return rng.integers(low, high, shape, dtype=dtype, endpoint=True)


def _geometry(rng: np.random.Generator, ndim: int, kind: str) -> Geometry | None:
    if kind == "none":
        return None
    direction = np.eye(ndim)
    if kind == "permuted":
        direction = direction[:, rng.permutation(ndim)] * rng.choice([-1.0, 1.0], ndim)
    elif kind == "oblique":
        direction = np.linalg.qr(rng.normal(size=(ndim, ndim)))[0]
    return Geometry.from_parts(
        spacing=(rng.integers(1, 9, ndim) / 4).tolist(),
        origin=rng.integers(-50, 50, ndim).tolist(),
        direction=direction,
    )
