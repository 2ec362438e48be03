"""What was measured is found again while it is true, by any number of processes, and never when it is damaged or stale."""

import json
import os
import pickle
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray import MLArray, open_source
from mlarray import transforms as T
from mlarray.errors import UsageError
from mlarray.region import Region
from mlarray.sources.base import NDArray
from mlarray.streaming import plan
from mlarray.streaming.fingerprint import fingerprint
from mlarray.streaming.kept import Kept, cache_folder, kept_for
from mlarray.testing.transforms import source_of

VALUE = {
    "mean": 1 / 3,
    "labels": np.array([1, 2], np.int64),
    "box": [[1, 2], [3, 4]],
    "name": "p1",
    "voxels": np.arange(24, dtype=np.uint32).reshape(2, 3, 4),
    "empty": np.empty((0, 3), np.float16),
    "nothing": None,
}


def same(found: dict[str, Any] | None) -> bool:
    assert found is not None
    assert list(found) == list(VALUE)
    for name, expected in VALUE.items():
        if isinstance(expected, np.ndarray):
            assert found[name].dtype == expected.dtype
            np.testing.assert_array_equal(found[name], expected)
        else:
            assert found[name] == expected
    return True


def test_values_come_back_to_the_last_bit(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "new" / "folder")
    assert kept.get("a") is None
    assert kept.put("a", VALUE)
    assert same(kept.get("a"))
    assert kept.get("b") is None
    assert same(pickle.loads(pickle.dumps(kept)).get("a"))
    assert kept.put("a", {"x": 1})
    assert kept.get("a") == {"x": 1}
    assert [path.suffix for path in kept.folder.iterdir()] == [".npz"]


def test_entries_are_plain_files_that_numpy_reads(tmp_path: Path) -> None:
    Kept(tmp_path).put("a", VALUE)
    (path,) = tmp_path.iterdir()
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["voxels"], VALUE["voxels"])
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("plain.json"))["plain"]["box"] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("wrong", [{"a": object()}, {"a": np.array([None])}, {"a": np.array(["x"])}, {"a": {1, 2}}])
def test_only_plain_values_are_kept(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="Only plain values and arrays of numbers are kept"):
        Kept(tmp_path).put("a", wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_entry_counts_as_none_and_is_written_anew(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.put("a", VALUE)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for end in range(0, len(whole), 61):
        path.write_bytes(whole[:end])
        assert kept.get("a") is None
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        found = kept.get("a")
        assert found is None or same(found)  # some bytes of an archive mean nothing
    path.write_bytes(os.urandom(1000))
    assert kept.get("a") is None
    assert kept.put("a", VALUE)
    assert same(kept.get("a"))


def test_an_entry_of_another_key_or_with_a_pickle_is_not_taken(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.put("a", VALUE)
    (path,) = tmp_path.iterdir()
    os.replace(path, kept._path("b"))
    assert kept.get("b") is None
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (ran,))

    np.savez(kept._path("c"), allow_pickle=True, trap=np.array([Trap()], dtype=object))
    assert kept.get("c") is None
    assert not ran.exists()


def test_a_folder_that_cannot_be_made_keeps_nothing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    kept = Kept(tmp_path / "file" / "folder")
    assert not kept.put("a", VALUE)
    assert kept.get("a") is None


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit_bytes=5000)
    value = {"x": np.zeros(1000, np.uint8)}
    long_ago = time.time() - 1e6
    for index, key in enumerate("abc"):
        kept.put(key, value)
        os.utime(kept._path(key), (long_ago + index, long_ago + index))
    assert kept.get("a") is not None  # used now
    other = Kept(tmp_path, limit_bytes=5000)  # looks at its first put
    other.put("d", value)
    assert {key for key in "abcd" if kept._path(key).exists()} == {"a", "c", "d"}


def test_leftovers_of_killed_writers_are_removed_after_a_while(tmp_path: Path) -> None:
    old, new = tmp_path / ".x.npz.host-1-1.part", tmp_path / ".x.npz.host-1-2.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    Kept(tmp_path).put("a", VALUE)
    assert (old.exists(), new.exists()) == (False, True)


def test_several_processes_write_and_read_at_once(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from mlarray.streaming.kept import Kept
kept, me = Kept(Path(sys.argv[1]), limit_bytes=20_000), int(sys.argv[2])
for turn in range(60):
    key = f"key {turn % 7}"
    kept.put(key, {"x": np.full(300, turn % 7), "who": me})
    found = kept.get(key)
    assert found is None or (found["x"] == turn % 7).all()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    running = [subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE) for number in range(3)]
    errors = [process.communicate()[1].decode() for process in running]
    assert errors == ["", "", ""]
    assert {path.suffix for path in tmp_path.iterdir()} == {".npz"}


def test_beside_the_data_or_in_the_folder_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "all.h5").touch()
    nowhere = {"HOME": str(tmp_path / "home")}
    assert kept_for(data, environment=nowhere).folder == data / ".mlarray"
    assert kept_for(data / "all.h5", environment=nowhere).folder == data / ".mlarray"
    assert list(data.iterdir()) == [data / "all.h5"]
    mine = kept_for(data, environment={**nowhere, "MLARRAY_CACHE": str(tmp_path / "mine")})
    assert (mine.folder.parent, mine.folder.name[:5]) == (tmp_path / "mine", "data-")
    assert kept_for(data, folder=tmp_path / "here", environment=nowhere).folder == tmp_path / "here"
    kept_for(data, environment=nowhere).put("a", VALUE)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    fallen = kept_for(data, environment=nowhere)
    assert fallen.folder.parent == tmp_path / "home" / ".cache" / "mlarray"
    assert same(fallen.get("a"))  # prepared beside the data by somebody who may write there
    assert fallen.put("b", VALUE)
    assert not kept_for(data, environment=nowhere)._path("c").exists()


def test_each_system_has_its_folder_for_caches() -> None:
    home = {"HOME": "/h"}
    assert cache_folder({**home, "MLARRAY_CACHE": "/fast/kept"}, platform="linux") == Path("/fast/kept")
    assert cache_folder(home, platform="linux") == Path("/h/.cache/mlarray")
    assert cache_folder({**home, "XDG_CACHE_HOME": "/x"}, platform="linux") == Path("/x/mlarray")
    assert cache_folder({**home, "XDG_CACHE_HOME": "relative"}, platform="linux") == Path("/h/.cache/mlarray")
    assert cache_folder(home, platform="darwin") == Path("/h/Library/Caches/mlarray")
    assert cache_folder({"LOCALAPPDATA": "/l"}, platform="win32") == Path("/l/mlarray/Cache")
    assert cache_folder({"USERPROFILE": "/u"}, platform="win32") == Path("/u/AppData/Local/mlarray/Cache")


@dataclass(frozen=True)
class Shift(T.Transform):
    by: object = 1

    def locality(self, volume: T.Volume) -> T.Pointwise:
        return T.Pointwise()

    def apply(self, block: NDArray, context: T.Context) -> NDArray:
        return block + 1


def edited(body: Callable[..., NDArray]) -> type[Shift]:
    """The class as it would be after its code was changed."""
    return type("Shift", (Shift,), {"apply": body, "__module__": __name__, "__qualname__": "Shift"})


def saved(folder: Path, name: str = "ct.mla") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    MLArray(np.arange(60, dtype=np.int16).reshape(3, 4, 5), axes="zyx").save(folder / name)
    return folder / name


def mark(path: Path, chain: list[T.Transform], root: Path | None = None, **arguments: Any) -> str | None:
    with open_source(path) as source:
        return fingerprint(plan(source, chain, patch_size=2, **arguments), root=root)


def test_a_fingerprint_changes_with_whatever_changes_the_result(tmp_path: Path) -> None:
    path = saved(tmp_path)
    chain: list[T.Transform] = [T.Clip(0, 10), T.Standardize()]
    first = mark(path, chain)
    assert first == mark(path, list(chain))
    others = {
        mark(path, chain[:1]),
        mark(path, [T.Clip(0, 11), T.Standardize()]),
        mark(path, [T.Clip(0, 10.5), T.Standardize()]),
        mark(path, chain, attributes={"number_of_channels_per_model": [2, 3]}),
        mark(saved(tmp_path, "other.mla"), chain),
        mark(path, [Shift(1)]),
        mark(path, [Shift((1, 2.0, {"a": np.arange(3), 7: None}, np.float32(2), Path("x")))]),
        mark(path, [Shift((1, 2.0, {"a": np.arange(4), 7: None}, np.float32(2), Path("x")))]),
        mark(path, [Shift(np.dtype("u1"))]),
        mark(path, [Shift(int)]),
        mark(path, [edited(lambda self, block, context: block + 2)(1)]),
    }
    assert len(others | {first}) == 12
    assert None not in others
    time.sleep(0.01)
    path.touch()
    assert mark(path, chain) != first


def test_stages_behind_what_was_measured_do_not_count(tmp_path: Path) -> None:
    with open_source(saved(tmp_path)) as source:
        long = plan(source, [T.Clip(0, 10), T.Standardize(), T.Flip("0")], patch_size=2)
        assert fingerprint(long, stages=1) == fingerprint(plan(source, [T.Clip(0, 10)], patch_size=2))


def test_a_data_set_that_is_moved_keeps_its_fingerprints(tmp_path: Path) -> None:
    path = saved(tmp_path / "a" / "p1")
    inside, outside = mark(path, [], tmp_path / "a"), mark(path, [])
    os.rename(tmp_path / "a", tmp_path / "b")
    moved = tmp_path / "b" / "p1" / "ct.mla"
    assert mark(moved, [], tmp_path / "b") == inside
    assert mark(moved, []) != outside


def test_a_mask_counts_where_a_stage_reads_it(tmp_path: Path) -> None:
    path, mask = saved(tmp_path), saved(tmp_path, "mask.mla")
    with open_source(path) as source, open_source(mask) as group:
        chain = [T.Standardize(mask="SEG")]
        first = fingerprint(plan(source, chain, patch_size=2, groups={"SEG": group}))
        without = fingerprint(plan(source, [T.Standardize()], patch_size=2, groups={"SEG": group}))
    os.utime(mask, (1e9, 1e9))
    with open_source(path) as source, open_source(mask) as group:
        assert fingerprint(plan(source, chain, patch_size=2, groups={"SEG": group})) != first
        assert fingerprint(plan(source, [T.Standardize()], patch_size=2, groups={"SEG": group})) == without
    assert first is not None


def test_folders_that_are_one_image_count_file_by_file(tmp_path: Path) -> None:
    pytest.importorskip("numcodecs")
    saved(tmp_path)
    command = [
        sys.executable,
        "-c",
        "from mlarray_convert.cli import main; main()",
        "convert",
        str(tmp_path / "ct.mla"),
    ]
    subprocess.run([*command, "-o", str(tmp_path / "ct.ome.zarr")], check=True, capture_output=True)
    first = mark(tmp_path / "ct.ome.zarr", [])
    assert first == mark(tmp_path / "ct.ome.zarr", [])
    chunk = next(
        path for path in sorted((tmp_path / "ct.ome.zarr").rglob("*")) if path.is_file() and path.parent.name == "0"
    )
    os.utime(chunk, (1e9, 1e9))
    assert mark(tmp_path / "ct.ome.zarr", []) not in (first, None)


def test_where_nothing_can_be_told_nothing_is_kept(tmp_path: Path) -> None:
    class Remembering(T.Transform):
        def __init__(self) -> None:
            self.seen = 0

        def apply(self, block: NDArray, context: T.Context) -> NDArray:
            return block

    assert fingerprint(plan(source_of(np.zeros((1, 4, 4, 4))), [], patch_size=2)) is None
    path = saved(tmp_path)
    assert mark(path, [Shift(object())]) is None
    assert mark(path, [Remembering()]) is None
    with open_source(path) as source:
        bound = plan(source, [T.Clip(0, 1)], patch_size=2)
        path.unlink()
        assert fingerprint(bound) is None


def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    path = saved(tmp_path)
    program = f"""
import sys
from mlarray import open_source, transforms as T
from mlarray.streaming import plan
from mlarray.streaming import fingerprint
chain = [T.Clip(0, 10), T.SelectLabel(["(1,2)"]), T.FlatLabel([1, 2])]
print(fingerprint(plan(open_source({str(path)!r}), chain, patch_size=2)), end="")
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert found != {b"None"}


def test_the_regions_of_a_plan_do_not_matter(tmp_path: Path) -> None:
    with open_source(saved(tmp_path)) as source:
        one = plan(source, [T.Clip(0, 1)], patch_size=2)
        before = fingerprint(one)
        one.read(Region((0, 0, 0), (1, 1, 1)))
        assert fingerprint(one) == before == fingerprint(plan(source, [T.Clip(0, 1)], patch_size=3))
