"""A whole benchmark, on tiny data: what is in the report, and what is left behind. No time decides anything."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import MissingDependencyError, UsageError
from mlarray_convert.bench import BenchReport, bench
from mlarray_convert.bench.measure import FLOOR
from mlarray_convert.bench.plot import axis_for, html_page, save_plot


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> BenchReport:
    folder = tmp_path_factory.mktemp("bench")
    rng = np.random.default_rng(0)
    MLArray(rng.normal(0, 100, (24, 40, 40)).astype(np.int16), axes="zyx").save(folder / "case.mla")
    (folder / "scratch").mkdir()
    made = bench(folder / "case.mla", patch_size=16, scratch=folder / "scratch", seconds=3, readers=[1, 2])
    assert list((folder / "scratch").iterdir()) == []
    return made


def test_the_report_has_every_candidate_and_every_single_value(report: BenchReport) -> None:
    told = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert told["candidates"][0]["default"] is True
    assert told["candidates"][0]["over_default"]["total"]["median"] == 1.0
    assert {"warm_1", "warm_2"} <= {mode["key"] for mode in told["modes"]}
    assert told["data"]["patch_extent"] == [16, 16, 16]
    assert told["data"]["bytes"] == 24 * 40 * 40 * 2
    for rounds in told["rounds"]:
        for times in rounds["seconds_per_patch"].values():
            assert {len(values) for values in times.values()} == {len(times[FLOOR])}
            assert all(value > 0 for values in times.values() for value in values)
    assert told["recommendation"]["name"] in {one["name"] for one in told["candidates"]}
    assert all(one["bytes"] > 0 and one["write_seconds"] > 0 for one in told["candidates"])


def test_the_arguments_of_a_candidate_give_its_chunks_and_blocks(report: BenchReport) -> None:
    for one in report.stored:
        image = MLArray(np.zeros((24, 40, 40), np.int16), **one.candidate.arguments)
        assert image.layout is not None
        assert (image.layout.chunks, image.layout.blocks) == (one.chunks, one.blocks)
        assert image.meta.blosc2.cparams["codec"] == {"LZ4HC": 2, "LZ4": 1, "ZSTD": 5}[one.candidate.codec.name]


def test_the_page_stands_alone_and_marks_the_default(report: BenchReport) -> None:
    page = html_page(report)
    assert page.count("<svg") == len(report.modes)
    assert "http" not in page
    assert "<script" not in page
    assert "1 default" in page
    assert all(page.count(one.candidate.name) >= 1 for one in report.stored)
    assert report.recommendation.keep_default or "recommended</text>" in page


def test_a_png_needs_matplotlib_and_says_so(report: BenchReport, tmp_path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(MissingDependencyError, match=r"pip install mlarray\[plot\]"):
            save_plot(report, tmp_path / "a.png")
        assert list(tmp_path.iterdir()) == []
    else:
        save_plot(report, tmp_path / "a.png")
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"\.html or \.png"):
        save_plot(report, tmp_path / "a.svg")


def test_progress_names_the_phases_and_never_goes_back(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    bench(
        synthetic="labels",
        patch_size=8,
        scratch=tmp_path,
        seconds=0.5,
        readers=[1],
        on_progress=lambda what, share: told.append((what, share)),
    )
    assert [share for _, share in told] == sorted(share for _, share in told)
    words = " ".join(what for what, _ in told)
    for phase in ("looking at the data", "preparing data", "writing 1 of", "reading warm: round 1", "done"):
        assert phase in words
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_removed_when_the_run_is_interrupted(tmp_path: Path) -> None:
    def interrupt(what: str, share: float) -> None:
        if what.startswith("reading"):
            assert list(tmp_path.glob("mla-bench-*/candidate_0_0.mla"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(synthetic="labels", patch_size=8, scratch=tmp_path, seconds=0.5, readers=[1], on_progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0}, "needs some time"),
        ({"readers": []}, "Numbers of readers"),
        ({"readers": [0]}, "from 1 to 64; got 0"),
        ({"codecs": ["GZIP"]}, "is no codec"),
        ({"patch_size": "big"}, "is not a patch size"),
        ({"chunk_size": 8}, "without block_size"),
        ({"scratch": "nowhere"}, "There is no folder nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(
    arguments: dict, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        bench(**{"synthetic": "ct", "scratch": tmp_path, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_space_is_refused_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**7))
    with pytest.raises(UsageError, match=r"may need \d+ MB in .*; 9 MB are free there"):
        bench(synthetic="ct", patch_size=64, scratch=tmp_path, seconds=1, readers=[1])
    assert list(tmp_path.iterdir()) == []


def test_an_image_without_voxels_is_refused(tmp_path: Path) -> None:
    MLArray(np.zeros((0, 4), np.int16)).save(tmp_path / "a.mla")
    with pytest.raises(UsageError, match="has no voxels"):
        bench(tmp_path / "a.mla", readers=[1])


@pytest.mark.parametrize("values", [[1.0], [0.0], [3.0, 3.0], [1e-6, 2.5e-6], [120.0, 95_000.0]])
def test_an_axis_holds_its_values(values: list[float]) -> None:
    axis = axis_for(values)
    assert axis.low <= min(values) <= max(values) <= axis.high
    assert axis.low < axis.high
    assert 2 <= len(axis.ticks) <= 9
