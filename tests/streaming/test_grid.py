"""Which patches cover a volume, how far they read, and what fills them at the border: the published numbers."""

from __future__ import annotations

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.streaming import padded, patch_grid, plan
from mlarray.testing.transforms import assert_identical, source_of
from mlarray.transforms import Clip, Dilate, Flip, ResampleToShape, Standardize


@pytest.mark.parametrize(
    ("n", "patch", "overlap", "slices"),
    [
        (10, 4, None, [(0, 4), (3, 7), (6, 10)]),
        (9, 4, None, [(0, 4), (3, 7), (6, 9)]),
        (11, 4, None, [(0, 4), (4, 8), (8, 11)]),
        (30, 8, None, [(0, 8), (8, 16), (16, 24), (24, 30)]),
        (10, 4, 0, [(0, 4), (4, 8), (8, 10)]),
        (3, 8, None, [(0, 3)]),
        (10, 4, -1, [(0, 4), (3, 7), (6, 10)]),
        (10, 4, 1, [(0, 4), (3, 7), (6, 10)]),
        (10, 4, 0.5, [(0, 4), (2, 6), (4, 8), (6, 10)]),
        (10, 4, "50%", [(0, 4), (2, 6), (4, 8), (6, 10)]),
        (10, 4, [2], [(0, 4), (2, 6), (4, 8), (6, 10)]),
        (3, 8, 0.5, [(0, 3)]),
        (4, 1, 3, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (5, 0, None, [(0, 5)]),
    ],
)
def test_slices_along_an_axis(n: int, patch: int, overlap: object, slices: list[tuple[int, int]]) -> None:
    grid = patch_grid((n,), (patch,), overlap)  # type: ignore[arg-type]
    assert [(one.start[0], one.stop[0]) for one in grid] == slices


def test_beside_a_free_axis_patches_overlap_by_a_fifth() -> None:
    grid = patch_grid((7, 30, 10), (0, 10, 10))
    assert grid.patch_size == (7, 10, 10)
    assert grid.starts == ((0,), (0, 8, 16, 24), (0,))  # 24 + 10 reaches beyond 30
    assert grid[-1] == Region((0, 24, 0), (7, 30, 10))


def test_the_last_axis_runs_fastest() -> None:
    grid = patch_grid((4, 9), (2, 3), 0)
    assert [one.start for one in grid] == [(0, 0), (0, 3), (0, 6), (2, 0), (2, 3), (2, 6)]
    assert [grid[index] for index in range(-len(grid), len(grid))] == [*grid, *grid]
    with pytest.raises(IndexError, match="Patch 6 of 6"):
        grid[6]


@pytest.mark.parametrize(("overlap", "words"), [(4, "not below"), (1.0, "within 0 and 1"), ("x", "percentage")])
def test_an_overlap_that_leaves_nothing_is_refused(overlap: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        patch_grid((10, 3), (8, 4) if overlap == 1.0 else 4, overlap)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not below"):
        patch_grid((30, 3), (8, 8), 3)  # the second axis is clamped to 3


def test_a_patch_is_filled_on_the_far_side_with_0_or_its_own_minimum() -> None:
    patch = np.array([[[5, 7]], [[9, -2]]])
    for dtype, value in (("int16", -2), ("float32", -2), ("uint8", 0), ("bool", 0)):
        typed = (patch != -2 if dtype == "bool" else np.abs(patch) if dtype == "uint8" else patch).astype(dtype)
        expected = np.full((2, 2, 3), value, dtype)
        expected[:, :1, :2] = typed
        assert_identical(padded(typed, (2, 3)), expected)
    assert_identical(padded(patch, (0, 2)), patch)
    assert_identical(padded(patch, (1, 3), 4.0)[..., 2:], np.full((2, 1, 1), 4, patch.dtype))


@pytest.mark.parametrize(("halo", "share", "voxels"), [(4, 0.5, 8.0), (8, 1.0, 27.0), (2, 0.25, 1.5**3)])
def test_a_halo_multiplies_what_is_read(halo: int, share: float, voxels: float) -> None:
    """By the product of 1 + 2 halo / extent over the axes, away from the border."""
    planned = plan(source_of(np.zeros((1, 40, 40, 40), "u1")), [Dilate(halo)], patch_size=8)
    assert planned.verdict.cost == (1 + 2 * share) ** 3 == voxels
    assert (planned.regime == "stream") == (voxels <= 8)


def test_the_worked_fold() -> None:
    """Scale 2 in z: outputs 4 to 7 lie at 8.5 to 14.5, between 8 and 15; y and x are copied; then 2 around, and mirrored."""
    scan = source_of(np.zeros((1, 24, 30, 36), "f4"))
    target = Region((4, 8, 0), (8, 16, 8))
    planned = plan(scan, [Flip("0|2"), Dilate(2), ResampleToShape([12, 30, 36])], patch_size=8)
    assert planned.chain.fold(target) == [
        Region((24 - 18, 6, 36 - 10), (24 - 6, 18, 36)),
        Region((6, 6, 0), (18, 18, 10)),
        Region((8, 8, 0), (16, 16, 8)),
        target,
    ]
    without = plan(scan, [Flip("0|2"), ResampleToShape([12, 30, 36])], patch_size=8)
    assert without.fold(target) == Region((8, 8, 28), (16, 16, 36))


def test_a_statistic_left_by_the_case_makes_patches_those_of_the_case() -> None:
    """Standardize(lazy=True) on the case and Standardize() on its patches, to the last bit."""
    scan = np.random.default_rng(0).normal(90, 40, (2, 9, 10, 11)).astype(np.float32)
    expected = plan(source_of(scan), [Standardize()]).read_whole()
    case = plan(source_of(scan), [Standardize(lazy=True)], patch_size=4)
    for patch in case.grid:
        left = {key: case.attributes[key] for key in case.attributes}
        done = plan(source_of(case.read(patch)), [Standardize()], attributes=left).read_whole()
        assert_identical(done, expected[(slice(None), *patch.slices)])


def test_statistics_are_measured_once_for_all_patches() -> None:
    scan = np.random.default_rng(0).normal(0, 300, (1, 24, 30, 36)).astype(np.float32)
    planned = plan(source_of(scan), [Clip("percentile:1", "percentile:99"), Standardize()], patch_size=8)
    planned.measure()
    # 25920 voxels are one block: two passes for percentiles of float32, one for the moments.
    assert planned.source.reads == 3
    for patch in list(planned.grid)[:5]:
        planned.read(patch)
    assert planned.source.reads == 3 + 5
    assert [row.passes for row in planned.explain().rows] == [2, 1]
