"""What is said of volumes that cannot be trained from: NaN, several dtypes, no voxels, batches that are too large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import MemoryLimitError, UsageError
from mlarray.streaming import GroupChain, PatchStream, padded, plan
from mlarray.streaming.plan_source import write_result
from mlarray.testing.transforms import source_of


def saved(root: Path, *volumes: np.ndarray, group: str = "CT") -> Path:
    for number, voxels in enumerate(volumes):
        (root / f"p{number}").mkdir(parents=True, exist_ok=True)
        MLArray(voxels, axes="zyx"[-voxels.ndim :], patch_size=8 if voxels.size else None).save(
            root / f"p{number}" / f"{group}.mla"
        )
    return root


def stream_of(root: Path, chain: Any = (), **given: Any) -> PatchStream:
    return PatchStream(root, {"CT": chain}, **{"patch_size": 8, "memory_budget": 4, "batch_size": 2, **given})


def test_a_case_with_nan_is_told_once_with_its_file_and_the_count(tmp_path: Path) -> None:
    good = np.arange(1000, dtype=np.float32).reshape(10, 10, 10)
    bad = good.copy()
    bad[0, 0, :3] = np.nan, np.nan, np.inf
    root = saved(tmp_path / "d", good, bad)
    stream = stream_of(root, [T.Standardize()])
    with pytest.warns(UserWarning, match="not finite") as told:
        list(stream)
    stream.prepare()
    (message,) = {str(one.message) for one in told}
    assert message.startswith(
        f"Stage 1 (Standardize), case 'p1' ({root / 'p1' / 'CT.mla'}): 3 of 1000 voxels are not finite "
    )
    assert "(2 NaN and 1 infinite)" in message
    assert len(told) == 1
    assert told[0].filename == __file__


def test_a_statistic_that_was_recorded_with_nan_is_told_too(tmp_path: Path) -> None:
    from mlarray.streaming import record_statistics

    voxels = np.ones((10, 10, 10), np.float32)
    voxels[3] = np.nan
    root = saved(tmp_path / "d", voxels)
    record_statistics(open_source(root / "p0" / "CT.mla"))
    with pytest.warns(UserWarning, match=r"100 of 1000 voxels are not finite \(100 NaN\)"):
        stream_of(root, [T.Standardize()]).prepare()


def test_a_patch_with_nan_is_told_by_its_transform_and_is_filled_up_with_a_number(tmp_path: Path) -> None:
    voxels = np.ones((6, 6, 6), np.float32)
    voxels[0, 0, 0] = np.nan
    assert (padded(voxels[None], (8, 6, 6))[0, 6:] == 1).all()
    root = saved(tmp_path / "d", voxels)
    with pytest.warns(UserWarning, match=r"Standardize of patches, case 'p0': 1 of 512 voxels are not finite"):
        list(stream_of(root, GroupChain([], [T.Standardize()]), batch_size=1))


def test_values_that_float64_cannot_measure_are_told_apart_from_nan() -> None:
    with pytest.warns(UserWarning, match="too large to be measured in float64"):
        plan(source_of(np.array([[[1e300, -1e300]]])), [T.Standardize()]).measure()


def test_several_dtypes_are_refused_when_the_stream_is_planned(tmp_path: Path) -> None:
    voxels = np.zeros((8, 8, 8))
    root = saved(tmp_path / "d", voxels.astype(np.float32), voxels.astype(np.int16))
    with pytest.raises(UsageError, match=r"'CT' has float32 in case 'p0' and int16 in case 'p1'") as caught:
        stream_of(root)
    assert caught.value.hint == 'Append TensorCast("float32") to its transforms, or take batch_size=1.'
    assert len(stream_of(root, batch_size=1)) == 2
    assert len(stream_of(root, [T.TensorCast("float32")])) == 1
    assert len(stream_of(root, GroupChain([], [T.TensorCast("float32")]))) == 1


def test_a_case_without_voxels_is_refused_by_its_name(tmp_path: Path) -> None:
    root = saved(tmp_path / "d", np.zeros((8, 8, 8), np.float32), np.zeros((0, 8, 8), np.float32))
    with pytest.raises(
        UsageError, match=r"Case 'p1': 'CT' is stored with the shape \(1, 0, 8, 8\), which holds no voxel"
    ):
        stream_of(root)
    assert len(stream_of(root, subset="p0")) == 1


@pytest.mark.filterwarnings("ignore:The memory budget")
def test_batches_that_are_too_large_are_told_with_a_batch_size_that_fits(tmp_path: Path) -> None:
    root = saved(tmp_path / "d", np.zeros((40, 40, 40), np.float32))
    with pytest.raises(MemoryLimitError, match=r"its batches \(batch_size=1000000\)") as caught:
        stream_of(root, memory_budget="100 MiB", batch_size=1000000, workers=0)
    words = caught.value.hint.split("lower batch_size to ")[1].split()
    assert len(stream_of(root, memory_budget="100 MiB", batch_size=int(words[0]), workers=0)) == 1


@pytest.mark.parametrize(
    ("budget", "told"), [("2 kB", "of 2000 bytes per rank"), ("1 b", "of 1 byte per"), ("20 MiB", "of 20 MiB per")]
)
def test_a_small_budget_is_told_in_a_unit_that_says_something_at_the_line_of_the_caller(
    tmp_path: Path, budget: str, told: str
) -> None:
    root = saved(tmp_path / "d", np.zeros((8, 8, 8), np.float32))
    with pytest.warns(UserWarning, match=told) as caught, pytest.raises(MemoryLimitError):
        stream_of(root, memory_budget=budget)
    assert caught[0].filename == __file__


def test_a_file_that_is_decoded_whole_is_warned_of_at_the_line_of_the_caller(tmp_path: Path) -> None:
    from mlarray.streaming import volume_source

    write_result(plan(source_of(np.zeros((1, 6, 6, 6), np.float32)), []), tmp_path / "a.nrrd")
    volume_source._warned.clear()
    with pytest.warns(UserWarning, match="cannot be read in parts") as caught:
        plan(open_source(tmp_path / "a.nrrd"), []).read_whole()
    assert caught[0].filename == __file__
