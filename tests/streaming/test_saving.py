"""What Save writes, and when it is used again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import UsageError
from mlarray.streaming import GroupChain, PatchStream, plan
from mlarray.streaming.loader import WorkerLoader

BEFORE = (T.Canonical(), T.ResampleToResolution([1.5, 1.5, 1.5]), T.Clip(-500, 500))
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be read in parts", "ignore:The memory budget")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(2):
        path = tmp_path / "data" / f"p{number}" / "CT.mla"
        path.parent.mkdir(parents=True)
        values = rng.normal(0, 300, (14 + number, 20, 17)).astype(np.float32)
        MLArray(values, axes="zyx", spacing=(2, 1.5, 1.5), origin=(1, 2, 3), direction=np.eye(3), patch_size=8).save(
            path
        )
    return tmp_path / "data"


def stream_of(dataset: Path, chain: Sequence[Any], **given: Any) -> PatchStream:
    given = {"patch_size": 8, "batch_size": 2, "shuffle": False, "mode": "predict", **given}
    return PatchStream(dataset, {"CT": list(chain)}, **given)


def arrays(stream: PatchStream) -> list[np.ndarray]:
    return [batch.arrays["CT"] for batch in stream]


def assert_equal(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("token", ["", ":mla", ":mha", ":h5", ":omezarr", ":nii.gz", ":nrrd"])
@pytest.mark.parametrize("mode", ["train", "predict"])
def test_a_saved_case_gives_the_same_patches(dataset: Path, token: str, mode: str) -> None:
    expected = arrays(stream_of(dataset, [*BEFORE, T.Standardize()], mode=mode))
    chain = [*BEFORE, T.Save(f"{dataset.parent / 'saved'}{token}"), T.Standardize()]
    stream = stream_of(dataset, chain, mode=mode)
    assert not (dataset.parent / "saved").exists()  # planning writes nothing
    counted = (len(stream), stream.patches)
    found = arrays(stream)
    assert_equal(found, expected)
    assert counted == (len(stream), stream.patches)
    assert len(list((dataset.parent / "saved").iterdir())) == 2
    assert_equal(arrays(stream_of(dataset, chain, mode=mode)), expected)


@pytest.mark.parametrize("token", ["mla", "mha", "h5", "omezarr", "nii", "nrrd"])
def test_what_was_saved_streams_as_was_promised(dataset: Path, token: str) -> None:
    chain = [*BEFORE, T.Save(f"{dataset.parent / 'saved'}:{token}"), T.Clip(-1, 1)]
    before = stream_of(dataset, chain)
    promised = before.decision.regime
    before.prepare()
    entry = Path(chain[3].place("p0", "CT"))
    written = entry.stat().st_mtime_ns
    after = stream_of(dataset, chain)
    after.prepare()
    assert after.plan_as_judged(0, "CT").source.in_parts
    assert (after.decision.regime, entry.stat().st_mtime_ns) == (promised, written)


def test_a_format_that_is_not_written_is_refused_when_the_stream_is_made(dataset: Path) -> None:
    with pytest.raises(UsageError, match="detached headers are read, not written"):
        stream_of(dataset, [T.Save(f"{dataset.parent / 'saved'}:mhd")])


def test_a_file_that_is_there_is_used_and_not_written_again(dataset: Path) -> None:
    chain = [*BEFORE, T.Save(str(dataset.parent / "saved")), T.Standardize()]
    arrays(stream_of(dataset, chain))
    entry = Path(chain[3].place("p0", "CT"))
    before = entry.stat()
    stream = stream_of(dataset, chain)
    arrays(stream)
    assert (entry.stat().st_ino, entry.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert stream.plan_as_judged(0, "CT").source.info.files[0] == entry
    assert [one.transform.name for one in stream.plan_as_judged(0, "CT").chain.stages] == ["Standardize"]


@pytest.mark.parametrize("what", ["a parameter", "the source", "a stage"])
def test_a_stale_file_is_never_used(dataset: Path, what: str) -> None:
    chain: list[Any] = [*BEFORE, T.Save(str(dataset.parent / "saved")), T.Standardize()]
    arrays(stream_of(dataset, chain))
    if what == "a parameter":
        chain[2] = replace(chain[2], max_value=100)
    elif what == "a stage":
        chain.insert(1, T.Flip("0"))
    else:
        path = dataset / "p0" / "CT.mla"
        with MLArray.open(path) as image:
            values, meta = np.array(image[...]) + 1, {"spacing": image.spacing, "origin": image.origin}
        MLArray(values, axes="zyx", direction=np.eye(3), patch_size=8, **meta).save(path)
    expected = arrays(stream_of(dataset, [one for one in chain if not isinstance(one, T.Save)]))
    assert_equal(arrays(stream_of(dataset, chain)), expected)


def test_of_several_saves_the_last_that_is_there_counts(dataset: Path) -> None:
    first, second = (T.Save(str(dataset.parent / name)) for name in ("first", "second"))
    chain = [*BEFORE, first, T.Standardize(), second, T.Clip(-1, 1)]
    expected = arrays(stream_of(dataset, [*BEFORE, T.Standardize(), T.Clip(-1, 1)]))
    assert_equal(arrays(stream_of(dataset, chain)), expected)
    for name in ("first", "second"):
        assert len(list((dataset.parent / name).iterdir())) == 2
    Path(first.place("p0", "CT")).unlink()
    assert_equal(arrays(stream_of(dataset, chain)), expected)
    assert not Path(first.place("p0", "CT")).exists()


def test_attributes_of_the_case_are_kept_with_the_file(dataset: Path) -> None:
    lazily = [T.Standardize(lazy=True), *BEFORE]
    expected = arrays(stream_of(dataset, [*lazily, T.Standardize()]))
    chain = [*lazily, T.Save(str(dataset.parent / "saved")), T.Standardize()]
    for _ in range(2):
        assert_equal(arrays(stream_of(dataset, chain)), expected)


def test_a_box_of_the_saved_volume_is_found_in_it(dataset: Path) -> None:
    chain = [T.Flip("0"), T.Save(str(dataset.parent / "saved")), T.Crop(), T.Clip(0, 200)]
    found = arrays(stream_of(dataset, chain))
    whole = plan(open_source(Path(chain[1].place("p0", "CT"))), [T.Crop(), T.Clip(0, 200)], patch_size=8)
    np.testing.assert_array_equal(found[0][0], whole.read(whole.grid[0], pad=True))


def test_a_plan_alone_writes_nothing(dataset: Path) -> None:
    source = open_source(dataset / "p0" / "CT.mla")
    chain = [*BEFORE, T.Save(str(dataset.parent / "saved")), T.Standardize()]
    np.testing.assert_array_equal(
        plan(source, chain).read_whole(), plan(source, [*BEFORE, T.Standardize()]).read_whole()
    )
    assert not (dataset.parent / "saved").exists()


def test_saves_of_one_chain_may_share_a_folder(dataset: Path) -> None:
    saved = str(dataset.parent / "saved")
    chain = [*BEFORE, T.Save(saved, "A"), T.Standardize(), T.Save(saved, "B"), T.Clip(-1, 1)]
    expected = arrays(stream_of(dataset, [*BEFORE, T.Standardize(), T.Clip(-1, 1)]))
    assert_equal(arrays(stream_of(dataset, chain)), expected)


def test_two_saves_of_one_file_are_refused(dataset: Path) -> None:
    save = T.Save(str(dataset.parent / "saved"))
    with pytest.raises(UsageError, match=r"Save \(stage 3 of 'CT'\) and stage 1 of 'CT' would both write .*CT\.mla"):
        stream_of(dataset, [save, T.Clip(0, 1), save])
    groups = {"CT": [T.Save(save.dataset, "X")], "COPY": GroupChain([T.Save(save.dataset, "X")], source="CT")}
    with pytest.raises(UsageError, match=r"stage 1 of 'COPY'.* and stage 1 of 'CT' would both write"):
        PatchStream(dataset, groups, patch_size=8)


def test_a_file_of_the_data_set_is_not_written_over(dataset: Path) -> None:
    before = (dataset / "p0" / "CT.mla").read_bytes()
    with pytest.raises(UsageError, match=r"would write over .*CT\.mla, which is a file of the data set"):
        stream_of(dataset, [T.Standardize(), T.Save(str(dataset))])
    assert (dataset / "p0" / "CT.mla").read_bytes() == before


@pytest.mark.parametrize("way", ["pickle", "spawn", "close"])
def test_a_folder_that_two_chains_share_gives_each_its_own_voxels(dataset: Path, way: str) -> None:
    saved = str(dataset.parent / "saved")
    mine, other = ([T.Clip(-500, bound), T.Save(saved)] for bound in (100, 5))
    expected = arrays(stream_of(dataset, mine[:1]))
    stream = stream_of(dataset, mine)
    stream.prepare()
    if way == "pickle":
        sent = pickle.dumps(stream)
        stream_of(dataset, other).prepare()
        assert_equal(arrays(pickle.loads(sent)), expected)
    elif way == "close":
        stream_of(dataset, other).prepare()
        stream.close()
        assert_equal(arrays(stream), expected)
    else:
        with WorkerLoader(stream, workers=1, context="spawn") as loader:
            stream_of(dataset, other).prepare()
            assert_equal([batch.arrays["CT"] for batch in loader], expected)


def _run(dataset: Path, saved: Path, results: Any) -> None:
    stream = stream_of(dataset, [*BEFORE, T.Save(str(saved)), T.Standardize()])
    results.put(b"".join(array.tobytes() for array in arrays(stream)))


def test_processes_that_ask_at_once_write_each_file_once(dataset: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    team = [context.Process(target=_run, args=(dataset, dataset.parent / "saved", results)) for _ in range(3)]
    for process in team:
        process.start()
    found = {results.get(timeout=60) for _ in team}
    for process in team:
        process.join(60)
    expected = arrays(stream_of(dataset, [*BEFORE, T.Standardize()]))
    assert found == {b"".join(array.tobytes() for array in expected)}
    names = sorted(path.name for path in (dataset.parent / "saved").rglob("*") if path.is_file())
    assert names == ["CT.mla", "CT.mla"]


@pytest.mark.skipif(os.name == "nt", reason="kills by signal")
def test_a_killed_writer_leaves_nothing_that_is_taken_for_an_entry(dataset: Path) -> None:
    saved = dataset.parent / "saved"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_run, args=(dataset, saved, results))
    process.start()
    deadline = time.monotonic() + 60
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    expected = arrays(stream_of(dataset, [*BEFORE, T.Standardize()]))
    assert_equal(arrays(stream_of(dataset, [*BEFORE, T.Save(str(saved)), T.Standardize()])), expected)
    assert [path.name for path in saved.rglob("*.part")] == []
