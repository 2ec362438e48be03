"""Chains that keep a result on the way: verdicts in both profiles, and plans that begin at what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import TransformError, UsageError
from mlarray.geometry import Geometry
from mlarray.sources.base import Source
from mlarray.streaming import Regime, Rule, plan, record_statistics
from mlarray.testing.transforms import source_of
from mlarray.transforms.base import Transform

ARRAY = np.random.default_rng(0).normal(0, 300, (1, 24, 30, 36)).astype(np.float32)
PLACE = Geometry.from_parts(spacing=(2, 1.5, 1.5), origin=(1, 2, 3), direction=np.eye(3))
WHOLE, STATISTIC = Rule.WHOLE_VOLUME, Rule.STATISTIC_AFTER_CHANGE


@pytest.mark.parametrize(
    ("chain", "rule", "stage"),
    [
        ([T.Clip(-200, 400), T.Save("d:mha"), T.Standardize()], None, None),
        ([T.Clip(-200, 400), T.Save("d"), T.Standardize()], None, None),
        ([T.Clip(-200, 400), T.Save("d:h5"), T.Standardize()], None, None),
        ([T.Clip(-200, 400), T.Save("d:omezarr"), T.Standardize()], None, None),
        *(
            ([T.Clip(-200, 400), T.Save(f"d:{one}"), T.Standardize()], WHOLE, 1)
            for one in ("nii.gz", "nii", "nrrd", "mhd")
        ),
        ([T.HistogramMatching("B"), T.Save("d:mha")], WHOLE, 0),
        ([T.Clip(-200, 400), T.Standardize(), T.Save("d:mha")], STATISTIC, 1),
        ([T.Clip(-200, 400), T.Save("d:mha"), T.Clip(0, 9), T.Standardize()], STATISTIC, 3),
        ([T.Save("d:mha"), T.Clip(0, 9), T.Save("e:h5"), T.Normalize(), T.Gradient()], None, None),
    ],
)
def test_a_saved_result_counts_as_the_stored_volume(
    chain: list[Transform], rule: Rule | None, stage: int | None
) -> None:
    groups = {"B": source_of(ARRAY * 2, PLACE)}
    plans = [
        plan(source_of(ARRAY, PLACE), chain, patch_size=8, groups=groups, strict=strict) for strict in (True, False)
    ]
    strict, extended = (one.verdict for one in plans)
    assert (strict.rule, strict.stage) == (rule, stage), strict.reason
    assert extended.regime is Regime.STREAM, extended.reason
    assert "can be written in one sweep" in extended.reason
    patches = [one.read(one.grid[7]) for one in plans]
    assert np.array_equal(*patches)


def test_a_metaimage_needs_a_geometry() -> None:
    verdict = plan(source_of(ARRAY), [T.Save("d:mha")], patch_size=8, strict=True).verdict
    assert (verdict.rule, verdict.stage) == (WHOLE, 0)
    assert (
        verdict.reason
        == "Stage 1 (Save) is written whole: mha files as this one are not written part by part (rule 1)."
    )
    assert verdict.remedy == "Save into h5, mha, mla, omezarr (mha: with a geometry), or use the extended profile."


CHAIN = [
    T.Clip(-200, 400),
    T.Flip("0"),
    T.Save("cache"),
    T.Standardize(),
    T.ResampleToResolution([1, 1, 1]),
    T.Save("two"),
    T.Gradient(),
]


def kept(folder: Path, length: int) -> Path:
    """Write what the chain gives up to a length, as a file."""
    made = plan(source_of(ARRAY, PLACE), CHAIN[:length], patch_size=8)
    path = folder / f"{length}.mla"
    geometry = made.result.geometry
    assert geometry is not None
    MLArray(made.read_whole()[0], axes="zyx", affine=geometry.affine).save(path)
    return path


@pytest.mark.parametrize("lengths", [(3,), (6,), (3, 6)])
def test_a_plan_begins_at_the_last_result_that_is_kept(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    files = {length: kept(tmp_path, length) for length in lengths}
    asked: list[int] = []

    def saved(transforms: Sequence[Transform]) -> Source | None:
        assert isinstance(transforms[-1], T.Save)
        asked.append(len(transforms))
        return open_source(files[len(transforms)]) if len(transforms) in files else None

    first = plan(source_of(ARRAY, PLACE), CHAIN, patch_size=8, strict=False)
    second = plan(source_of(ARRAY, PLACE), CHAIN, patch_size=8, saved=saved)
    assert asked == ([6] if 6 in lengths else [6, 3])
    assert second.result.shape == first.result.shape
    assert second.result.geometry is not None
    assert first.result.geometry is not None
    assert second.result.geometry.is_close(first.result.geometry)
    done = max(lengths)
    assert [row.stage for row in second.explain().rows] == list(range(done + 1, 8))
    assert f"Stages 1 to {done} are in the saved result that is read." in str(second.explain())
    for target in (first.grid[0], first.grid[len(first.grid) - 1]):
        assert np.array_equal(first.read(target), second.read(target))


def test_what_is_recorded_of_a_kept_result_is_used(tmp_path: Path) -> None:
    path = kept(tmp_path, 3)
    first = plan(source_of(ARRAY, PLACE), CHAIN[:4], patch_size=8).attributes
    with open_source(path) as source:
        record_statistics(source)
    second = plan(source_of(ARRAY, PLACE), CHAIN[:4], patch_size=8, saved=lambda _: open_source(path))
    assert (second.attributes["Mean"], second.attributes["Std"]) == (first["Mean"], first["Std"])
    assert second.source.reads == 0


def test_an_unstreamable_chain_streams_once_it_is_kept(tmp_path: Path) -> None:
    chain = [T.HistogramMatching("B"), T.Save("d:mha")]
    groups = {"B": source_of(ARRAY * 2, PLACE)}
    first = plan(source_of(ARRAY, PLACE), chain, patch_size=8, groups=groups, strict=True)
    MLArray(first.read_whole()[0], axes="zyx").save(tmp_path / "a.mla")
    second = plan(
        source_of(ARRAY, PLACE), chain, patch_size=8, strict=True, saved=lambda _: open_source(tmp_path / "a.mla")
    )
    assert (first.regime, second.regime) == ("buffer", "stream")
    assert np.array_equal(second.read(second.grid[9]), first.read(first.grid[9]))


def test_stages_keep_their_numbers_behind_a_kept_result(tmp_path: Path) -> None:
    path = kept(tmp_path, 3)
    chain = [*CHAIN[:3], T.Clip(0, 1), T.Standardize()]
    verdict = plan(source_of(ARRAY, PLACE), chain, patch_size=8, strict=True, saved=lambda _: open_source(path)).verdict
    assert (verdict.stage, verdict.rule) == (4, STATISTIC)
    assert verdict.reason.startswith("Stage 5 (Standardize) needs a statistic of the values after stage 4 (Clip)")
    with pytest.raises(TransformError, match=r"^Stage 4 \(OneHot\)"):
        plan(source_of(ARRAY, PLACE), [*CHAIN[:3], T.OneHot(3)], saved=lambda _: open_source(path)).read_whole()


@pytest.mark.parametrize(
    ("save", "place"),
    [
        (T.Save("cache"), "cache/c1/CT.mla"),
        (T.Save("cache:nii.gz"), "cache/c1/CT.nii.gz"),
        (T.Save("cache:omezarr", group="SEG"), "cache/c1/SEG.ome.zarr"),
        (T.Save("C:/cache"), "C:/cache/c1/CT.mla"),
        (T.Save("C:/cache:h5"), "C:/cache/c1/CT.h5"),
        (T.Save("mla"), "mla/c1/CT.mla"),
    ],
)
def test_a_result_is_kept_in_a_file_of_its_case(save: T.Save, place: str) -> None:
    assert save.place("c1", "CT") == place


def test_a_format_that_is_misspelt_is_no_path() -> None:
    with pytest.raises(UsageError, match="Save knows no format 'mhaa'; it has mla, mha"):
        T.Save("cache:mhaa")


@pytest.mark.parametrize("dataset", ["", ":mha", None, 3])
def test_a_save_needs_a_path(dataset: object) -> None:
    with pytest.raises(UsageError, match="Save takes where to keep results"):
        T.Save(dataset)  # type: ignore[arg-type]
