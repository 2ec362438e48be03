"""Statistics that a file holds about itself: used where they are true, with the bits that measuring gives, and nowhere else."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path

import blosc2
import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import FormatError, UsageError
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.integrity import IntegrityState
from mlarray.streaming import Plan, plan, record_statistics
from mlarray.streaming.recorded import recorded
from mlarray.transforms.base import Transform
from mlarray.transforms.statistics import Moments, MomentValues
from mlarray_convert import convert

SHAPE = (24, 30, 36)
STANDARDIZE = [T.Standardize()]


def voxels(dtype: str = "f4", shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return (np.random.default_rng(5).normal(0.1, 300, shape)).astype(dtype)


def saved(path: Path, array: np.ndarray, *, axes: str = "zyx") -> Path:
    ahead = array.shape[:-3]
    sizes = {"chunk_size": (*ahead, 8, 30, 36), "block_size": (*ahead, 4, 15, 18)}
    image = MLArray(array, axes=axes, spacing=(2, 1, 1), direction=np.eye(3), **sizes)
    image.save(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(tmp_path / "a.mla", voxels())


def planned(path: Path, chain: list[Transform] | None = None) -> Plan:
    return plan(open_source(path), STANDARDIZE if chain is None else chain, patch_size=8)


def recorded_in(path: Path) -> MomentValues:
    with open_source(path) as source:
        return record_statistics(source)


def scans(path: Path, chain: list[Transform] | None = None) -> int:
    """Return how many regions are read to measure, before any patch is."""
    measured = planned(path, chain)
    measured.measure()
    return measured.source.reads


def state(path: Path) -> IntegrityState:
    store = open_store(path)
    try:
        return integrity.check(store).state
    finally:
        store.close()


@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "f4", "f8", "i8"])
def test_what_is_recorded_has_the_bits_of_measuring_and_nothing_is_scanned(tmp_path: Path, dtype: str) -> None:
    path = saved(tmp_path / "a.mla", np.abs(voxels(dtype)))
    before = planned(path)
    before.measure()
    patch = before.read(before.grid[5])
    values = recorded_in(path)
    after = planned(path)
    after.measure()
    assert (before.source.reads > 0, after.source.reads) == (True, 0)
    for key, field in (("Mean", "mean"), ("Std", "std")):
        assert after.attributes[key].hex() == before.attributes[key].hex() == getattr(values, field).hex()
    assert np.array_equal(after.read(after.grid[5]), patch)
    assert (after.source.reads, state(path)) == (1, IntegrityState.INTACT)


def test_numbers_beyond_float64_and_nan_come_back_as_they_were(tmp_path: Path) -> None:
    large = np.full((24, 30, 36), 2**53 + 1, np.int64)
    large[0, 0, 0] = -(2**62) - 1
    path = saved(tmp_path / "large.mla", large)
    recorded_in(path)
    held = recorded(planned(path).source, Moments())
    assert held is not None
    assert (held.minimum, held.maximum) == (-(2**62) - 1, 2**53 + 1)
    holed = voxels()
    holed[3, 4, 5] = np.nan
    recorded_in(saved(tmp_path / "nan.mla", holed))
    held = recorded(planned(tmp_path / "nan.mla").source, Moments())
    assert held is not None
    assert all(map(math.isnan, (held.minimum, held.maximum, held.mean, held.std)))


@pytest.mark.parametrize(
    ("chain", "passes"),
    [
        ([T.Normalize()], 0),
        ([T.Statistics(), T.Standardize()], 0),
        ([T.Clip("min", "max"), T.Flip("0|2")], 0),
        ([T.Canonical(), T.TensorCast("float64"), T.Standardize()], 0),
        ([T.Flip("0"), T.Permute("2|1|0"), T.Normalize()], 0),
        ([T.Clip(-200, 400), T.Standardize()], 1),
        ([T.Standardize(), T.Normalize()], 1),
        ([T.TensorCast("float16"), T.Standardize()], 1),
        ([T.Crop(), T.Standardize()], 2),
        ([T.Normalize(channels=[0])], 0),
    ],
)
def test_it_serves_stages_whose_voxels_are_the_stored_ones(path: Path, chain: list[Transform], passes: int) -> None:
    whole = planned(path, chain).read_whole()
    unrecorded = scans(path, chain)
    recorded_in(path)
    told = planned(path, chain).explain()
    assert any("statistics are in the file" in row.note for row in told.rows) == (unrecorded > scans(path, chain))
    assert (scans(path, chain) > 0) == (passes > 0)
    assert np.array_equal(planned(path, chain).read_whole(), whole)


def test_patches_of_another_process_take_it_too(path: Path) -> None:
    recorded_in(path)
    copied = pickle.loads(pickle.dumps(planned(path)))
    copied.measure()
    assert copied.source.reads == 0


def test_a_reference_of_histogram_matching_is_still_matched_to_the_bit(path: Path, tmp_path: Path) -> None:
    other = saved(tmp_path / "b.mla", voxels() * 2 + 7)

    def matched() -> np.ndarray:
        groups = {"B": open_source(other)}
        return plan(open_source(path), [T.HistogramMatching("B")], patch_size=8, groups=groups).read_whole()

    before = matched()
    recorded_in(path)
    recorded_in(other)
    assert np.array_equal(matched(), before)


def written(path: Path) -> None:
    with MLArray.open(path, mmap_mode="r+") as image:
        image[3, 4, 5] = 30000.0


def written_by_blosc2(path: Path) -> None:
    blosc2.open(str(path), mode="a")[3, 4, 5] = 30000.0


def one_bit_of_a_chunk(path: Path) -> None:
    store = open_store(path)
    chunk, digest_before = store.chunk_bytes(1), integrity.content_checksum(store)
    store.close()
    data = bytearray(path.read_bytes())
    place = bytes(data).find(chunk)
    data[place + len(chunk) // 2] ^= 1
    path.write_bytes(data)
    store = open_store(path)
    assert integrity.is_current(store)  # no header shows it
    assert integrity.content_checksum(store) == digest_before
    store.close()


@pytest.mark.parametrize("change", [written, written_by_blosc2, one_bit_of_a_chunk])
def test_voxels_that_changed_are_measured_again(path: Path, change: Callable[[Path], None]) -> None:
    recorded_in(path)
    change(path)
    assert recorded(planned(path).source, Moments()) is None


def test_a_chunk_of_the_same_size_is_seen_by_its_checksum(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 2**16, SHAPE).astype(np.uint16)  # does not compress
    path = saved(tmp_path / "a.mla", noise)
    recorded_in(path)
    blosc2.open(str(path), mode="a")[0:8] = noise[0:8] // 2 + noise[8:16] // 2 + 1
    fresh = planned(path)
    fresh.measure()
    now = blosc2.open(str(path), mode="r")[:]
    assert fresh.attributes["Mean"] == pytest.approx(now.mean(), rel=1e-12)


def test_writing_drops_the_record_and_changed_metadata_keeps_it(path: Path) -> None:
    recorded_in(path)
    with MLArray.open(path, mmap_mode="r+") as image:
        image.meta.extra["note"] = "other words"
        image.spacing = (3, 1, 1)
    assert scans(path) == 0
    written(path)
    store = open_store(path)
    assert "mla_statistics" not in store.record_names()
    store.close()
    assert state(path) is IntegrityState.INTACT


def test_other_axes_make_it_void(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.mla", voxels(shape=(3, *SHAPE)), axes="czyx")
    recorded_in(path)
    assert scans(path) == 0
    with MLArray.open(path, mmap_mode="r+") as image:
        image.meta.spatial.axis_labels = ["temporal", "spatial_z", "spatial_y", "spatial_x"]
    assert recorded(planned(path).source, Moments()) is None


def test_a_part_of_the_channels_is_measured(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.mla", voxels(shape=(3, *SHAPE)), axes="czyx")
    recorded_in(path)
    assert scans(path, [T.Normalize(channels=[0, 2])]) > 0
    assert scans(path, [T.Normalize(channels=[0, 1, 2])]) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "i2"),
        ("shape", [24, 30, 35]),
        ("space", [2, 1, 0]),
        ("reduction", "another"),
        ("chunks", "xxh3:00"),
        ("mean", "7"),
        ("count", True),
        ("std", None),
    ],
)
def test_a_record_of_something_else_is_not_used(path: Path, key: str, value: object) -> None:
    recorded_in(path)
    store = open_store(path, mode="a", mmap_mode=None)
    changed = {**store.record("mla_statistics"), key: value}
    store.put_record("mla_statistics", changed)
    store.close()
    assert recorded(planned(path).source, Moments()) is None
    assert recorded(planned(path).source, Moments(), proven=False) is None


@pytest.mark.parametrize("value", [7, [1], "text", None])
def test_a_record_that_is_no_map_is_not_used(path: Path, value: object) -> None:
    store = open_store(path, mode="a", mmap_mode=None)
    store.put_record("mla_statistics", value)
    store.close()
    assert scans(path) > 0


def test_keys_of_others_are_not_used(tmp_path: Path) -> None:
    image = MLArray(voxels(), axes="zyx", meta={"Mean": 5.0, "Std": 2.0, "Min": 0.0, "Max": 1.0})
    image.meta.stats = {"min": 0.0, "max": 1.0, "mean": 5.0, "std": 2.0}
    image.meta.extra = {"mla_statistics": {"mean": 5.0, "std": 2.0}}
    image.save(tmp_path / "a.mla")
    measured = planned(tmp_path / "a.mla")
    measured.measure()
    assert measured.source.reads > 0
    assert measured.attributes["Mean"] == Moments().measure(lambda: iter([(voxels(), None)])).mean


def test_a_copy_with_the_same_chunks_keeps_it(path: Path, tmp_path: Path) -> None:
    recorded_in(path)
    MLArray.open(path).save(tmp_path / "saved.mla")
    assert scans(tmp_path / "saved.mla") == 0
    convert(path, tmp_path / "converted.mla", workers=1)
    assert scans(tmp_path / "converted.mla") == 0
    MLArray(MLArray.open(path).to_numpy()).save(tmp_path / "anew.mla")
    assert scans(tmp_path / "anew.mla") > 0


def test_the_converter_stores_it_of_images_where_it_is_asked_to(tmp_path: Path) -> None:
    for name in ("imagesTr", "labelsTr"):
        (tmp_path / "d" / name).mkdir(parents=True)
    np.save(tmp_path / "d" / "imagesTr" / "a.npy", voxels())
    np.save(tmp_path / "d" / "labelsTr" / "a.npy", (voxels() > 0).astype("u1"))
    arguments = {"workers": 1, "axes": "zyx", "verify": "full"}
    assert convert(tmp_path / "d", tmp_path / "o", **arguments).exit_code == 0
    assert scans(tmp_path / "o" / "imagesTr" / "a.mla") > 0
    report = convert(tmp_path / "d", tmp_path / "o", statistics=True, **arguments)
    assert sorted(outcome.status.value for outcome in report.outcomes) == ["ok", "skipped"]
    assert scans(tmp_path / "o" / "imagesTr" / "a.mla") == 0
    assert scans(tmp_path / "o" / "labelsTr" / "a.mla") > 0
    assert state(tmp_path / "o" / "imagesTr" / "a.mla") is IntegrityState.INTACT
    again = convert(tmp_path / "d", tmp_path / "o", statistics=True, **arguments)
    assert [outcome.status.value for outcome in again.outcomes] == ["skipped", "skipped"]


def test_what_has_no_statistics_converts_with_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 5, 6), np.complex64))
    report = convert(tmp_path / "a.npy", tmp_path / "a.mla", axes="zyx", workers=1, statistics=True)
    assert "No statistics were stored" in report.outcomes[0].warnings[-1]
    assert (tmp_path / "a.mla").exists()
    with pytest.raises(UsageError, match=r"stored in \.mla files, not in NRRD"):
        convert(tmp_path / "a.npy", tmp_path / "a.nrrd", workers=1, statistics=True)


@pytest.mark.parametrize("kind", ["text", "complex", "damaged"])
def test_what_cannot_be_recorded_stays_as_it_was(tmp_path: Path, path: Path, kind: str) -> None:
    place = tmp_path / "x.mla"
    if kind == "text":
        place.write_bytes(b"no array")
    elif kind == "complex":
        MLArray(np.ones((4, 5, 6), np.complex64)).save(place)
    elif kind == "damaged":
        one_bit_of_a_chunk(path)
        place = path
    before = place.read_bytes()
    with pytest.raises(UsageError if kind == "complex" else FormatError):
        recorded_in(place)
    assert place.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_file_without_checksums_gets_them(path: Path) -> None:
    store = open_store(path, mode="a", mmap_mode=None)
    store.drop_record("mla_integrity")
    store.close()
    recorded_in(path)
    assert (scans(path), state(path)) == (0, IntegrityState.INTACT)


def test_only_files_that_keep_it_are_measured(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", voxels())
    with open_source(tmp_path / "a.npy") as source, pytest.raises(UsageError, match=r"stored in \.mla files only"):
        record_statistics(source)
