"""Hypothesis strategies for the values that cross module borders: regions, axes, geometries, specs, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mlarray.axes import Axis
from mlarray.geometry import ALL_PARTS, Geometry, Part
from mlarray.layout import Layout
from mlarray.region import Region
from mlarray.spec import ArraySpec

NUMBER_DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")


def dtypes(*, kinds: str = "biufc") -> st.SearchStrategy[np.dtype[Any]]:
    """Native dtypes that can be stored.

    Parameters
    ----------
    kinds : str
        Kind codes to choose from, as ``numpy.dtype.kind``.
    """
    return st.sampled_from([np.dtype(code) for code in NUMBER_DTYPES if np.dtype(code).kind in kinds])


def shapes(
    *, min_dims: int = 1, max_dims: int = 4, min_side: int = 0, max_side: int = 12
) -> st.SearchStrategy[tuple[int, ...]]:
    """Array shapes, by default with axes of extent 0 too."""
    return st.lists(st.integers(min_side, max_side), min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def regions(draw: st.DrawFn, ndim: int, *, low: int = -20, high: int = 20) -> Region:
    """Regions anywhere, outside of arrays too."""
    ends = [sorted(draw(st.tuples(st.integers(low, high), st.integers(low, high)))) for _ in range(ndim)]
    return Region(tuple(a for a, _ in ends), tuple(b for _, b in ends))


@st.composite
def regions_within(draw: st.DrawFn, shape: Sequence[int]) -> Region:
    """Regions inside an array of ``shape``, empty ones too."""
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Region(tuple(a for a, _ in ends), tuple(b for _, b in ends))


@st.composite
def axes(draw: st.DrawFn, ndim: int, *, min_spatial: int = 0) -> tuple[Axis, ...]:
    """Axes with unique names, at least ``min_spatial`` of them spatial; some with units and steps."""
    names = draw(st.lists(st.sampled_from("zyxtcvabdefgh"), min_size=ndim, max_size=ndim, unique=True))
    kinds = st.sampled_from(["space", "time", "channel", "components", "continuous", "other"])
    spatial = draw(st.permutations([True] * min_spatial + [False] * (ndim - min_spatial)))
    result = []
    for name, must_be_spatial in zip(names, spatial, strict=True):
        kind = "space" if must_be_spatial else draw(kinds)
        unit = draw(st.sampled_from([None, "millimeter", "second", "micrometer"]))
        step = None if kind == "space" else draw(st.none() | st.floats(0.001, 1000))
        result.append(Axis(name, kind, unit, step))  # type: ignore[arg-type]
    return tuple(result)


@st.composite
def geometries(draw: st.DrawFn, ndim: int, *, sheared: bool = True) -> Geometry:
    """Invertible geometries of any orientation.

    Parameters
    ----------
    ndim : int
        Number of spatial axes.
    sheared : bool
        Whether axes may stand at other than right angles.
    """
    seed = draw(st.integers(0, 2**32 - 1))
    kind = draw(st.sampled_from(["axis-aligned", "rotated", *(["sheared"] if sheared else [])]))
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], ndim)
    direction = np.eye(ndim)[:, rng.permutation(ndim)] * signs
    if kind != "axis-aligned":
        direction = direction @ np.linalg.qr(rng.normal(size=(ndim, ndim)))[0]
    if kind == "sheared":
        direction = direction @ (np.eye(ndim) + 0.2 * np.triu(rng.uniform(-1, 1, (ndim, ndim)), 1))
    affine = np.eye(ndim + 1)
    affine[:-1, :-1] = direction * draw(st.lists(st.floats(0.05, 20), min_size=ndim, max_size=ndim))
    affine[:-1, -1] = draw(st.lists(st.floats(-1000, 1000), min_size=ndim, max_size=ndim))
    known: frozenset[Part] = draw(st.just(ALL_PARTS) | st.frozensets(st.sampled_from(sorted(ALL_PARTS)), min_size=1))
    return Geometry(affine, draw(st.sampled_from([None, "LPS", "RAS", "RAS+", "scanner"])), known)


@st.composite
def specs(draw: st.DrawFn, *, min_side: int = 0, max_side: int = 12, max_dims: int = 4) -> ArraySpec:
    """Specs with one to ``max_dims`` axes, with and without axes and geometry."""
    shape = draw(shapes(min_side=min_side, max_side=max_side, max_dims=max_dims))
    kind = draw(dtypes())
    if draw(st.booleans()):
        return ArraySpec(shape, kind)
    named = draw(axes(len(shape)))
    count = sum(axis.is_spatial for axis in named)
    return ArraySpec(shape, kind, named, draw(geometries(count)) if count and draw(st.booleans()) else None)


@st.composite
def layouts(draw: st.DrawFn, shape: Sequence[int]) -> Layout:
    """Layouts of explicit chunks and blocks for an array of ``shape``."""
    chunks = tuple(draw(st.integers(1, max(1, n))) for n in shape)
    blocks = tuple(draw(st.integers(1, c)) for c in chunks)
    return Layout(chunks, blocks, None, "drawn at random")
