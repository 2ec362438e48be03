"""Files: opened in every mode, saved over, changed in place, sent to other processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import FormatError, MetadataError, MetadataWarning, MissingFileError, UsageError
from mlarray.storage import integrity
from mlarray.storage.blosc import open_store
from mlarray.storage.integrity import IntegrityState

VOXELS = np.arange(20 * 30 * 40, dtype=np.int16).reshape(20, 30, 40)
CHILD_TIMEOUT_SECONDS = 60
MODES = [("r", "r"), ("r", "r+"), ("r", "c"), ("r", None), ("a", None)]
WRITABLE_MODES = [("r", "r+"), ("a", None)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MLArray(VOXELS, spacing=(3, 1, 1), meta={"id": 1}, patch_size=8).save(tmp_path / "case.mla")
    return tmp_path / "case.mla"


def state_of(path: Path) -> IntegrityState:
    return integrity.check(open_store(path)).state


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# --- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "mmap_mode"), MODES)
def test_a_file_opens_in_every_mode(path: Path, mode: str, mmap_mode: str | None) -> None:
    with MLArray.open(path, mode, mmap_mode) as image:
        np.testing.assert_array_equal(image[...], VOXELS)
        assert image.spacing == [3, 1, 1]
        assert (image.filepath, image.mode, image.mmap_mode) == (str(path), mode, mmap_mode)
    assert image.shape is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "w"}, "mode must be 'r' or 'a'.*MLArray.create"),
        ({"mmap_mode": "w+"}, "mmap_mode must be 'r', 'r\\+', 'c' or None"),
        ({"mmap_mode": "rw"}, "mmap_mode must be"),
    ],
)
def test_modes_that_do_not_exist_are_refused(path: Path, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MLArray.open(path, **arguments)  # type: ignore[arg-type]


def test_files_are_created_in_the_modes_for_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mode must be 'w' to create"):
        MLArray.create(tmp_path / "a.mla", (2,), np.uint8, mode="a")
    with pytest.raises(UsageError, match="mmap_mode must be 'w\\+' or None"):
        MLArray.create(tmp_path / "a.mla", (2,), np.uint8, mmap_mode="r+")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("use", [MLArray, MLArray.open, MLArray.load])
def test_names_that_cannot_be_ours_and_files_that_are_not_there_are_refused(tmp_path: Path, use: type[MLArray]) -> None:
    with pytest.raises(UsageError, match=r"ends in '.mla', got 'a.nii'"):
        use(tmp_path / "a.nii")
    with pytest.raises(MissingFileError, match="There is no file"):
        use(tmp_path / "a.mla")
    with pytest.raises(FileNotFoundError):
        use(tmp_path / "a.mla")
    with pytest.raises(RuntimeError):  # what 0.0.x raised
        use(tmp_path / "a.mla")


@pytest.mark.parametrize("content", [b"", b"text", bytes(500), b"\x9e\xa8b2frame\x00" + bytes(500)])
def test_what_is_no_array_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.mla").write_bytes(content)
    for use in (MLArray, MLArray.open):
        with pytest.raises(FormatError, match=r"a\.mla"):
            use(tmp_path / "a.mla")


@pytest.mark.parametrize("keep", [100, 1000, 5000])
def test_a_file_that_was_cut_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match="damaged or was never finished"):
        MLArray.open(path)


def test_suffixes_are_compared_without_regard_to_case(tmp_path: Path) -> None:
    MLArray(VOXELS).save(tmp_path / "A.MLA")
    assert MLArray.open(tmp_path / "A.MLA").shape == VOXELS.shape


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_not_opened_for_writing(path: Path) -> None:
    path.chmod(0o400)
    with pytest.raises(PermissionError, match="cannot be opened for writing"):
        MLArray.open(path, mmap_mode="r+")


@pytest.mark.parametrize("mmap_mode", ["r", None])
def test_a_file_is_open_twice_at_once(path: Path, mmap_mode: str | None) -> None:
    with MLArray.open(path, mmap_mode=mmap_mode) as one, MLArray.open(path, mmap_mode=mmap_mode) as two:
        assert np.array_equal(one[3], two[3])


# --- saving ---------------------------------------------------------------------------------------------------------


def test_only_mla_is_saved_and_only_into_folders_that_exist(tmp_path: Path) -> None:
    image = MLArray(VOXELS)
    with pytest.raises(UsageError, match=r"ends in '.mla'.*mla convert"):
        image.save(tmp_path / "a.nii.gz")
    for write in (image.save, lambda path: MLArray.create(path, (2,), np.uint8)):
        with pytest.raises(UsageError, match=r"The folder .* does not exist"):
            write(tmp_path / "no" / "a.mla")
    assert names_in(tmp_path) == []


def test_a_saved_file_is_complete_and_alone(path: Path) -> None:
    assert names_in(path.parent) == ["case.mla"]
    assert state_of(path) is IntegrityState.INTACT


def test_equal_arrays_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.mla", "b.mla"):
        MLArray(VOXELS, meta={"a": [1, 2]}, spacing=(1, 1, 1)).save(tmp_path / name)
    stores = [open_store(tmp_path / name) for name in ("a.mla", "b.mla")]
    assert stores[0].record_bytes("mlarray") == stores[1].record_bytes("mlarray")
    assert integrity.content_checksum(stores[0]) == integrity.content_checksum(stores[1])


@pytest.mark.parametrize(("mode", "mmap_mode"), MODES)
def test_an_array_can_be_saved_over_its_own_file_and_goes_on(path: Path, mode: str, mmap_mode: str | None) -> None:
    image = MLArray.open(path, mode, mmap_mode)
    expected = VOXELS.copy()
    if mmap_mode in ("r+", "c") or mode == "a":
        image[5:9] = expected[5:9] = -1
    image.meta.source["saved"] = True
    image.save(path)
    assert state_of(path) is IntegrityState.INTACT
    np.testing.assert_array_equal(MLArray(path)[...], expected)
    np.testing.assert_array_equal(image[...], expected)
    assert image.meta.source["saved"] is True
    if mmap_mode in ("r+", "c") or mode == "a":
        image[0] = -7
        assert np.all(image[0] == -7)
    image.meta.source["later"] = 1
    image.close()
    again = MLArray(path)
    kept = mmap_mode == "r+" or mode == "a"
    assert np.all(again[0] == -7) == kept
    assert ("later" in again.meta.source) == kept
    assert state_of(path) is IntegrityState.INTACT
    assert names_in(path.parent) == ["case.mla"]


@pytest.mark.parametrize("mmap_mode", ["w+", None])
def test_a_file_being_created_can_be_saved_over_itself_and_goes_on(tmp_path: Path, mmap_mode: str | None) -> None:
    path = tmp_path / "a.mla"
    image = MLArray.create(path, VOXELS.shape, VOXELS.dtype, mmap_mode=mmap_mode, patch_size=8)
    image[:10] = VOXELS[:10]
    image.save(path)
    image[10:] = VOXELS[10:]
    image.close()
    np.testing.assert_array_equal(MLArray(path)[...], VOXELS)
    assert state_of(path) is IntegrityState.INTACT


def test_a_mapped_reader_keeps_its_voxels_when_the_file_is_replaced(path: Path) -> None:
    readers = [MLArray.open(path, mmap_mode=mmap_mode) for mmap_mode in ("r", "c")]
    MLArray(VOXELS + 1).save(path)
    for reader in readers:
        np.testing.assert_array_equal(reader[...], VOXELS)
    MLArray.create(path, (5,), np.uint8).close()
    for reader in readers:
        np.testing.assert_array_equal(reader[3:7], VOXELS[3:7])
    assert MLArray.open(path).shape == (5,)


def test_a_file_in_use_can_be_saved_under_another_name(path: Path) -> None:
    with MLArray.open(path, mmap_mode="r+") as image:
        image[0] = 5
        image.save(path.with_name("other.mla"))
        image[1] = 6
    other = MLArray(path.with_name("other.mla"))
    assert np.all(other[0] == 5)
    np.testing.assert_array_equal(other[1], VOXELS[1])
    assert np.all(MLArray(path)[1] == 6)


# --- metadata in files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "mmap_mode"), WRITABLE_MODES)
@pytest.mark.parametrize("how", ["close", "with", "garbage collection"])
def test_changed_metadata_is_stored(path: Path, mode: str, mmap_mode: str | None, how: str) -> None:
    image = MLArray.open(path, mode, mmap_mode)
    image.meta.source["id"] = 2
    image.spacing[1] = 5.3
    image.meta.spatial.axis_labels = ["spatial_z", "spatial_y", "spatial_x"]
    if how == "close":
        image.close()
    elif how == "with":
        with image:
            pass
    del image
    gc.collect()
    again = MLArray.open(path)
    assert again.meta.source == {"id": 2}
    assert again.spacing == [3, 5.3, 1]
    assert [axis.name for axis in again.axes or ()] == ["z", "y", "x"]
    assert state_of(path) is IntegrityState.INTACT


@pytest.mark.parametrize(("mode", "mmap_mode"), MODES)
def test_a_file_that_is_not_changed_keeps_its_bytes(path: Path, mode: str, mmap_mode: str | None) -> None:
    before = path.read_bytes()
    image = MLArray.open(path, mode, mmap_mode)
    image[3]
    image.spacing
    image.close()
    image = MLArray.open(path, mode, mmap_mode)
    del image
    gc.collect()
    assert path.read_bytes() == before


def test_metadata_of_a_read_only_array_is_not_stored(path: Path) -> None:
    with MLArray.open(path) as image:
        image.meta.source["id"] = 2
    assert MLArray(path).meta.source == {"id": 1}


def spoil(image: MLArray) -> None:
    image.spacing[1] = "oops"  # type: ignore[index]
    image.meta.source["bad"] = None
    image.meta.source.data["bad"] = object()
    image.meta.stats.min = 0.0
    image.origin = [0.0, float("nan"), 0.0]


def test_invalid_metadata_is_refused_with_all_problems_and_the_file_stays(path: Path) -> None:
    before = path.read_bytes()
    image = MLArray.open(path)
    spoil(image)
    with pytest.raises(MetadataError) as caught:
        image.save(path)
    assert len(caught.value.problems) == 3
    for part in ("spacing[1] is 'oops'", "meta.source", "origin[1] is nan"):
        assert part in str(caught.value)
    assert path.read_bytes() == before
    assert names_in(path.parent) == ["case.mla"]


@pytest.mark.parametrize(("mode", "mmap_mode"), WRITABLE_MODES)
def test_closing_with_invalid_metadata_can_be_repeated(path: Path, mode: str, mmap_mode: str | None) -> None:
    image = MLArray.open(path, mode, mmap_mode)
    image[0] = 9
    spoil(image)
    with pytest.raises(MetadataError, match="oops"):
        image.close()
    assert MLArray.open(path).meta.source == {"id": 1}
    image.spacing[1] = 2
    image.origin = None
    del image.meta.source["bad"]
    image.meta.source["id"] = 3
    image.close()
    again = MLArray(path)
    assert (again.spacing, again.meta.source) == ([3, 2, 1], {"id": 3})
    assert np.all(again[0] == 9)
    assert state_of(path) is IntegrityState.INTACT


def test_an_array_dropped_with_invalid_metadata_keeps_voxels_and_old_metadata_and_warns(path: Path) -> None:
    image = MLArray.open(path, mmap_mode="r+")
    image[0] = 9
    spoil(image)
    with pytest.warns(MetadataWarning, match="was not closed and its metadata is not valid, its old metadata is kept"):
        del image
    again = MLArray.open(path)
    assert again.meta.source == {"id": 1}
    assert np.all(again[0] == 9)
    assert state_of(path) is IntegrityState.INTACT


def test_an_error_inside_with_finishes_a_change_in_place(path: Path) -> None:
    def change_and_fail() -> None:
        with MLArray.open(path, mmap_mode="r+") as image:
            image[0] = 9
            raise KeyError

    with pytest.raises(KeyError):
        change_and_fail()
    assert np.all(MLArray(path)[0] == 9)
    assert state_of(path) is IntegrityState.INTACT


def test_metadata_that_cannot_be_read_costs_a_warning_and_never_the_voxels(path: Path) -> None:
    for record in (b"no metadata", {"spatial": 7}, [1, 2]):
        store = open_store(path, mmap_mode="r+")
        store.put_record("mlarray", record)
        store.put_record("mla_axes", "nonsense")
        store.put_record("mla_layout", [1])
        store.close()
        with MLArray.open(path) as image:
            if isinstance(record, dict):
                assert image.spacing is None
            else:
                with pytest.warns(MetadataWarning):
                    assert image.spacing is None
            np.testing.assert_array_equal(image[...], VOXELS)
            assert image.layout is not None


def test_a_hostile_record_is_not_decoded(path: Path) -> None:
    import msgpack

    store = open_store(path, mmap_mode="r+")
    hostile = msgpack.ExtType(42, b"os.system('true')")
    store._schunk.vlmeta.set_vlmeta("mlarray", msgpack.packb(hostile))
    store._schunk.vlmeta.set_vlmeta("mla_axes", msgpack.packb(hostile))
    store._schunk.vlmeta.set_vlmeta("mla_layout", msgpack.packb({("a", 1): 2}))
    store.close()
    with MLArray.open(path) as image:
        with pytest.warns(MetadataWarning, match="cannot be decoded"):
            assert image.meta.is_default()
        assert image.axes is not None
        assert image.layout is not None
        np.testing.assert_array_equal(image[...], VOXELS)
        with pytest.warns(MetadataWarning):
            MLArray.load(path).meta


# --- other processes ------------------------------------------------------------------------------------------------


def _sum_in_child(image: MLArray) -> int:
    return int(np.sum(image[...], dtype=np.int64)) if image.spacing == [3, 1, 1] else -1


@pytest.mark.slow
def test_arrays_opened_for_reading_are_sent_to_spawned_processes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    images = [
        MLArray.open("case.mla"),
        MLArray.open(path, mmap_mode=None),
        MLArray.open(path, mmap_mode="c"),
        MLArray(path),
        MLArray.load(path, compressed=False),
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_sum_in_child, images) == [int(np.sum(VOXELS, dtype=np.int64))] * len(images)


def test_a_pickled_copy_of_an_open_file_is_an_open_file(path: Path) -> None:
    image = MLArray.open(path, dparams={"nthreads": 2})
    copy = pickle.loads(pickle.dumps(image))
    assert (copy.filepath, copy.mmap_mode, copy.spacing) == (str(path), "r", [3, 1, 1])
    assert len(pickle.dumps(image)) < 500


def test_an_array_being_written_is_not_sent(path: Path) -> None:
    with (
        MLArray.open(path, mmap_mode="r+") as image,
        pytest.raises(UsageError, match=r"open for writing.*Close it first"),
    ):
        pickle.dumps(image)


def in_child(work: object) -> object:
    """Run ``work()`` in a forked process and return what it returns."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(work()))  # type: ignore[operator]
    child.start()
    if not receiver.poll(CHILD_TIMEOUT_SECONDS):
        child.kill()
        raise TimeoutError("the forked process hangs")
    answer = receiver.recv()
    child.join()
    return answer


def error_of(path: Path) -> str:
    """Open a file as another process would, and return what is said about it."""
    try:
        MLArray.open(path)
    except FormatError as error:
        return str(error)
    return ""


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@needs_fork
@pytest.mark.parametrize("dparams", [None, {"nthreads": 4}])
@pytest.mark.parametrize("mmap_mode", ["r", "c", None])
def test_forked_readers_read_what_was_open(path: Path, mmap_mode: str | None, dparams: dict[str, int] | None) -> None:
    image = MLArray.open(path, mmap_mode=mmap_mode, dparams=dparams)
    np.testing.assert_array_equal(image[...], VOXELS)
    assert in_child(lambda: bool(np.array_equal(image[...], VOXELS))) is True
    assert in_child(lambda: bool(np.array_equal(MLArray.open(path, dparams=dparams)[...], VOXELS))) is True


@needs_fork
def test_a_forked_process_compresses_although_its_parent_did(tmp_path: Path) -> None:
    voxels = np.random.default_rng(0).random((64, 64, 64))
    image = MLArray(voxels, patch_size=32, cparams={"nthreads": 4}, dparams={"nthreads": 4})
    image[...]

    def work() -> bool:
        image[:40] += 1
        MLArray(voxels).save(tmp_path / "a.mla")
        other = MLArray(voxels, patch_size=32, cparams={"nthreads": 4}, dparams={"nthreads": 4})
        with MLArray.open(tmp_path / "a.mla", mmap_mode="r+") as opened:
            opened[:40] += 1
        same = np.array_equal(image[...], opened_voxels := MLArray(tmp_path / "a.mla")[...])
        return bool(same and np.array_equal(opened_voxels[:40], voxels[:40] + 1) and np.array_equal(other[...], voxels))

    assert in_child(work) is True
    np.testing.assert_array_equal(image[...], voxels)


@needs_fork
def test_a_forked_process_does_not_write_through_its_parents_handle(path: Path) -> None:
    image = MLArray.open(path, mmap_mode="r+")

    def work() -> str:
        try:
            image[0] = 1
        except UsageError as error:
            return str(error)
        return "written"

    assert "Open the file again in this process" in str(in_child(work))
    image[0] = 2
    image.close()
    assert np.all(MLArray(path)[0] == 2)


@needs_fork
def test_no_space_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    import signal

    voxels = np.random.default_rng(0).random((64, 64, 64))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    MLArray(np.zeros(3)).save(tmp_path / "a.mla")
    before = (tmp_path / "a.mla").read_bytes()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, old[1]))
        with pytest.raises(OSError, match=r"could not be written .* is full"):
            MLArray(voxels).save(tmp_path / "a.mla")
        for mmap_mode in ("w+", None):
            with (
                pytest.raises(OSError, match="could not be written"),
                MLArray.create(
                    tmp_path / "b.mla", voxels.shape, voxels.dtype, mmap_mode=mmap_mode, patch_size=16
                ) as image,
            ):
                image[...] = voxels
            assert "finished" in str(in_child(lambda: error_of(tmp_path / "b.mla")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "a.mla").read_bytes() == before
    assert names_in(tmp_path) == ["a.mla", "b.mla"]


def test_a_saved_file_holds_no_record_of_a_conversion_that_never_was(tmp_path: Path) -> None:
    MLArray(np.zeros((4, 6, 8), np.float32), axes="zyx").save(tmp_path / "case.mla")
    store = open_store(tmp_path / "case.mla")
    assert sorted(store.record_names()) == ["mla_axes", "mla_integrity", "mla_layout", "mlarray"]
