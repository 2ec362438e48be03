"""Tiles, temporary files and memory are decided from headers and stay within the limit."""

from pathlib import Path

import numpy as np
import pytest

from mlarray.errors import MemoryLimitError
from mlarray.sources.base import Access, SourceInfo
from mlarray.sources.memory import ArraySource
from mlarray.spec import ArraySpec
from mlarray_convert.discovery import Case
from mlarray_convert.plan import CasePlan, Limits, plan_case
from mlarray_convert.request import make_request

BASE = 50_000_000


class Stream(ArraySource):
    """An array that says it can only be read forward."""

    access = Access.SLAB


def planned(
    tmp_path: Path,
    limit: int,
    *,
    kind: type[ArraySource] = ArraySource,
    dtype: str = "int16",
    label: bool = False,
    **options: object,
) -> CasePlan:
    path = tmp_path / "a.nii"
    path.write_bytes(b"x" * 1000)
    array = np.lib.stride_tricks.as_strided(np.zeros(1, dtype), (512, 512, 512), (0, 0, 0))
    source = kind(array, ArraySpec(array.shape, array.dtype), SourceInfo(files=(path,)))
    request = make_request(path, **options)  # type: ignore[arg-type]
    case = Case("a", path, tmp_path / "a.mla", is_label=label)
    return plan_case(case, request, source, Limits(limit, 1, BASE))


@pytest.mark.parametrize("limit", [150_000_000, 300_000_000, 10**9, 10**10])
@pytest.mark.parametrize("kind", [ArraySource, Stream])
@pytest.mark.parametrize("target", ["mla", "nifti"])
def test_the_predicted_peak_stays_within_the_limit(tmp_path: Path, limit: int, kind: type, target: str) -> None:
    plan = planned(tmp_path, limit, kind=kind, to=target)
    assert BASE < plan.peak_bytes <= limit
    assert sum(region.size for region in plan.tiles) == 512**3


def test_tiles_cover_whole_chunks(tmp_path: Path) -> None:
    plan = planned(tmp_path, 10**9, patch_size=96)
    assert plan.layout is not None
    assert plan.layout.chunks is not None
    assert all(
        t % c == 0 or t == n for t, c, n in zip(plan.tiles.tile, plan.layout.chunks, plan.spec.shape, strict=True)
    )


def test_a_stream_is_copied_in_rows_of_chunks_while_they_fit(tmp_path: Path) -> None:
    plan = planned(tmp_path, 10**9, kind=Stream)
    assert not plan.spool
    assert plan.tiles.tile[1:] == (512, 512)


def test_a_stream_whose_rows_do_not_fit_is_decoded_into_a_file_first(tmp_path: Path) -> None:
    plan = planned(tmp_path, 150_000_000, kind=Stream)
    assert plan.spool
    assert plan.peak_bytes <= 150_000_000


@pytest.mark.parametrize("kind", [ArraySource, Stream])
def test_a_limit_below_one_chunk_is_refused_with_both_figures(tmp_path: Path, kind: type) -> None:
    with pytest.raises(
        MemoryLimitError, match=r"limit of 80 MB.*\d+ MB are used without any voxel.*needs \d+ MB in all"
    ):
        planned(tmp_path, 80_000_000, kind=kind)


def test_a_wide_segmentation_is_expected_to_become_bytes(tmp_path: Path) -> None:
    plan = planned(tmp_path, 10**9, dtype="float64", label=True)
    assert plan.spec.dtype == np.uint8
    assert "smallest integer type" in plan.dtype_reason
    assert planned(tmp_path, 10**9, dtype="uint8", label=True).dtype_reason == ""


def test_an_uncompressed_target_has_an_exact_size(tmp_path: Path) -> None:
    assert planned(tmp_path, 10**9, output=tmp_path / "b.nii").estimated_bytes == 512**3 * 2
