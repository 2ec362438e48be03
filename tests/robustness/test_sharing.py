"""Many readers and writers at once get what one at a time would, and a forked child never waits for ever."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mlarray import MLArray
from mlarray.errors import DTypeError, FormatError, UsageError
from mlarray.locks import ForkSafeLock
from mlarray.region import Region
from mlarray.storage.same_file import SameFile
from mlarray.storage.write_lock import WriteLock

ROOT = Path(__file__).parents[2]
CAMPAIGN = ROOT / "benchmarks" / "sharing.py"
CHILD_SECONDS = 20
SCRIPT_SECONDS = 120
VOXELS = np.random.default_rng(0).integers(0, 90, (64, 64, 64)).astype(np.int16)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
needs_locks = pytest.mark.skipif(os.name != "posix", reason="this system has no advisory locks")


def run(code: str, *arguments: object) -> str:
    """Run a script in a process of its own and return what it prints; it must end well and in time."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def campaign(*arguments: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CAMPAIGN), *arguments],
        capture_output=True,
        text=True,
        timeout=4 * SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MLArray(VOXELS, patch_size=16).save(tmp_path / "a.mla")
    return tmp_path / "a.mla"


# -- a file is replaced while others read it -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("by", "replacements"), [("save", 4), ("convert", 1)])
def test_every_handle_reads_one_version_while_the_file_is_replaced(tmp_path: Path, by: str, replacements: int) -> None:
    counts = ("--replacements", str(replacements), "--scratch", str(tmp_path))
    found = campaign("replaced", "--versions", "shape", "--by", by, *counts)
    assert all(one["readers"] == 12 and one["patches"] for one in found)


def test_a_file_with_the_number_and_time_of_the_one_that_was_opened_is_not_taken_for_it(path: Path) -> None:
    image = MLArray.open(path, mmap_mode=None)
    before = path.stat()
    for number in range(20):  # a number that has become free is often given away at once
        MLArray(VOXELS + number, patch_size=16).save(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(FormatError, match=r"was replaced or removed .* Open it again"):
            image[0]


def test_a_file_that_was_moved_away_and_back_during_a_read_is_read_again(path: Path, tmp_path: Path) -> None:
    image = MLArray.open(path, mmap_mode=None)
    same = SameFile(path, image._store.opened_version)  # type: ignore[union-attr, arg-type]
    assert same.was_left_alone()
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.link(path, tmp_path / "b.mla")
    (tmp_path / "b.mla").unlink()
    np.testing.assert_array_equal(image[...], VOXELS)


@pytest.mark.parametrize("mmap_mode", ["r", None])
def test_chunks_of_a_replaced_file_are_never_given_as_those_of_the_old_one(path: Path, mmap_mode: str | None) -> None:
    image = MLArray.open(path, mmap_mode=mmap_mode)  # type: ignore[arg-type]
    store = image._store
    old = store.chunk_bytes(0)  # type: ignore[union-attr]
    MLArray(VOXELS + 1, patch_size=16).save(path)
    if mmap_mode is None:
        with pytest.raises(FormatError, match="was replaced"):
            store.chunk_bytes(0)  # type: ignore[union-attr]
    else:
        assert store.chunk_bytes(0) == old  # type: ignore[union-attr]


# -- threads ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mmap_mode", ["r", None])
def test_one_handle_is_read_by_many_threads(path: Path, mmap_mode: str | None, threads: int) -> None:
    image = MLArray.open(path, mmap_mode=mmap_mode, dparams={"nthreads": threads})  # type: ignore[arg-type]

    def right(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            start = rng.integers(0, 50, 3)
            where = tuple(
                slice(int(low), int(low + size)) for low, size in zip(start, rng.integers(1, 40, 3), strict=True)
            )
            if not np.array_equal(image[where], VOXELS[where]):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(8)))


def test_reading_while_another_thread_closes_is_an_error_of_the_project(path: Path) -> None:
    for _ in range(30):
        image = MLArray.open(path)
        begun = threading.Barrier(5)

        def until_closed(image: MLArray = image, begun: threading.Barrier = begun) -> bool:
            begun.wait(CHILD_SECONDS)
            try:
                while True:
                    if not np.array_equal(image[3:20, 4:9], VOXELS[3:20, 4:9]):
                        return False
            except DTypeError as error:
                return "closed" in str(error)

        with ThreadPoolExecutor(4) as pool:
            ends = [pool.submit(until_closed) for _ in range(4)]
            begun.wait(CHILD_SECONDS)
            image.close()
            assert all(end.result(CHILD_SECONDS) for end in ends)


@pytest.mark.parametrize("kind", ["created", "r+", "memory"])
def test_several_threads_write_through_one_handle(path: Path, kind: str) -> None:
    if kind == "created":
        image = MLArray.create(path, VOXELS.shape, VOXELS.dtype, patch_size=16)
    elif kind == "r+":
        image = MLArray.open(path, mmap_mode="r+")
    else:
        image = MLArray(np.zeros_like(VOXELS), patch_size=16)

    def write(plane: int) -> None:  # every third plane, so that all threads change parts of the same chunks
        image[plane::3, ::2] = VOXELS[plane::3, ::2] + 1
        image[plane::3, 1::2] = VOXELS[plane::3, 1::2] + 1

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    np.testing.assert_array_equal(image[...], VOXELS + 1)
    image.close()
    if kind != "memory":
        np.testing.assert_array_equal(MLArray.load(path, verify="full")[...], VOXELS + 1)


# -- forks -----------------------------------------------------------------------------------------------------------------

FORK = f"""
import gc, os, pickle, sys, time
import numpy as np
from mlarray import MLArray
from mlarray.region import Region
VOXELS = np.random.default_rng(0).integers(0, 90, (64, 64, 64)).astype(np.int16)
path = sys.argv[1]

def child(work):
    number = os.fork()
    if number == 0:
        sys.exit(0 if work() else 3)  # ends as programs do
    until = time.monotonic() + {CHILD_SECONDS}
    while time.monotonic() < until:
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(number, 9)
    return "hangs"

def right(image):
    return np.array_equal(image[...], VOXELS)
"""
OPEN_AND_READ = """
handles = [MLArray.open(path, mmap_mode=mode, dparams=params) for mode in ("r", "c", None) for params in (None, {"nthreads": 4})]
handles.append(MLArray(VOXELS, patch_size=16, cparams={"nthreads": 4}, dparams={"nthreads": 4}))
assert all(right(image) for image in handles)
"""
WORK = {
    "reads what was open": "all(right(image) for image in handles)",
    "opens for itself": "all(right(MLArray.open(path, mmap_mode=m, dparams={'nthreads': 4})) for m in ('r', 'c', None))",
    "leaves all alone": "True",
    "closes": "[image.close() for image in handles] != []",
    "collects garbage": "[handles.clear(), gc.collect()] != []",
    "loads and compresses": "right(MLArray.load(path, {'nthreads': 4})) and right(MLArray(VOXELS, cparams={'nthreads': 4}))",
    "saves what was open": "not [image.save(path + str(n) + '.mla') for n, image in enumerate(handles)] == []",
    "takes an array from its parent": "right(pickle.loads(frame)) and right(pickle.loads(pickle.dumps(handles[-1])))",
    "announces reads": "not [image.prefetch([Region((0, 0, 0), (60, 60, 60))]) for image in handles] == [] and right(handles[0])",
    "forks again": "child(lambda: all(right(image) for image in handles)) == 0",
    "forks again after reading": "right(handles[1]) and child(lambda: all(right(image) for image in handles)) == 0",
}


@needs_fork
@pytest.mark.parametrize("work", WORK)
def test_a_forked_child_ends_well_when_it(path: Path, work: str) -> None:
    code = f"{FORK}{OPEN_AND_READ}frame = pickle.dumps(handles[-1])\ncode = child(lambda: {WORK[work]})\n"
    assert run(code + "assert all(right(image) for image in handles)\nprint(code)", path).split() == ["0"]


@needs_fork
def test_a_forked_child_that_imports_the_package_after_its_parent_used_blosc2_does_not_hang(path: Path) -> None:
    late = FORK.replace("from mlarray import MLArray\nfrom mlarray.region import Region\n", "")
    code = f"""{late}
import blosc2
array = blosc2.asarray(VOXELS, chunks=(32, 32, 32), blocks=(16, 16, 16), cparams=dict(nthreads=4), dparams=dict(nthreads=4))
array[...]

def work():
    from mlarray import MLArray
    return right(MLArray.open(path, dparams=dict(nthreads=4))) and right(MLArray(VOXELS, patch_size=16)) and not os._exit(0)

print(child(work))
"""
    assert run(code, path).split() == ["0"]


@needs_fork
@pytest.mark.parametrize("mmap_mode", ["w+", None])
def test_a_forked_child_is_refused_what_its_parent_is_writing_and_cannot_harm_it(
    path: Path, mmap_mode: str | None
) -> None:
    code = f"""{FORK}
from mlarray.errors import UsageError
image = MLArray.create(path, VOXELS.shape, VOXELS.dtype, mmap_mode={mmap_mode!r}, patch_size=16)
image[:40] = VOXELS[:40]

def refused():
    for use in (lambda: image[:40], lambda: image.__setitem__(0, 1)):
        try:
            use()
        except UsageError as error:
            if "is being written by process" not in str(error):
                return False
        else:
            return False
    return True

print(child(refused))
image[40:] = VOXELS[40:]
image.close()
assert right(MLArray.load(path, verify="full"))
"""
    assert run(code, path).split() == ["0"]


@needs_fork
def test_a_forked_child_does_not_read_another_file_through_a_handle_of_its_parent(path: Path) -> None:
    code = f"""{FORK}
from mlarray.errors import FormatError
mapped, threaded = MLArray.open(path), MLArray.open(path, dparams=dict(nthreads=4))
MLArray(VOXELS + 1, patch_size=16).save(path)

def work():
    try:
        threaded[0]
    except FormatError as error:
        return right(mapped) and "was replaced" in str(error)

print(child(work))
"""
    assert run(code, path).split() == ["0"]


@needs_fork
@pytest.mark.slow
def test_children_that_are_forked_while_threads_read_read_right(tmp_path: Path) -> None:
    for one in campaign("forks", "--children", "5", "--scratch", str(tmp_path)):
        assert one["children"] == 5


@needs_fork
def test_a_pool_of_forked_processes_reads_right(path: Path) -> None:
    image = MLArray.open(path, dparams={"nthreads": 4})
    np.testing.assert_array_equal(image[...], VOXELS)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        sums = pool.map_async(image_sum, [image] * 8).get(CHILD_SECONDS)
    assert sums == [int(VOXELS.sum())] * 8


def image_sum(image: MLArray) -> int:
    return int(image[...].sum())


@needs_fork
def test_forked_workers_of_torch_read_right(path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import sys, threading
import numpy as np
from torch.utils.data import DataLoader, Dataset
from mlarray import MLArray

class Planes(Dataset):
    def __init__(self):
        self.image = MLArray.open(sys.argv[1], dparams={"nthreads": 4})
        self.mapped = MLArray.open(sys.argv[1])

    def __len__(self):
        return 64

    def __getitem__(self, plane):
        return np.stack([self.image[plane], self.mapped[plane]]).astype(np.int64)

planes = Planes()
whole = planes.image[...]
for epoch in range(2):
    loader = DataLoader(planes, batch_size=8, num_workers=2, multiprocessing_context="fork", timeout=20)
    batches = np.concatenate([batch.numpy() for batch in loader])
    assert np.array_equal(batches[:, 0], whole) and np.array_equal(batches[:, 1], whole)
print("right")
"""
    assert run(code, path).split() == ["right"]


@needs_fork
def test_a_lock_that_another_thread_holds_is_free_in_a_forked_child() -> None:
    lock, held, done = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(CHILD_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(CHILD_SECONDS)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: lock.__enter__())
    child.start()
    child.join(CHILD_SECONDS)
    code = child.exitcode
    if code is None:
        child.kill()
        child.join()
    done.set()
    thread.join()
    assert code == 0


# -- two writers -----------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from mlarray import MLArray
image = {opened}
print("open", flush=True)
sys.stdin.readline()
{end}
"""


class Writer:
    """Another process that has a file open for writing."""

    def __init__(self, opened: str, path: Path, end: str = "image.close()") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(opened=opened, end=end), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate("\n", timeout=CHILD_SECONDS)


OPENED = {
    "r+": "MLArray.open(sys.argv[1], mmap_mode='r+')",
    "a": "MLArray.open(sys.argv[1], 'a', None)",
    "created": "MLArray.create(sys.argv[1], (4, 5), 'u1')",
}
SECOND: dict[str, Callable[[Path], object]] = {
    "r+": lambda path: MLArray.open(path, mmap_mode="r+"),
    "a": lambda path: MLArray.open(path, "a", None),
    "create": lambda path: MLArray.create(path, (4, 5), np.uint8),
    "save": lambda path: MLArray(VOXELS).save(path),
}


@needs_locks
@pytest.mark.parametrize("first", OPENED)
def test_the_second_writer_of_a_file_is_refused_and_told_who_the_first_is(path: Path, first: str) -> None:
    with Writer(OPENED[first], path) as writer:
        before = path.read_bytes()
        who = f"process {writer.process.pid}" if sys.platform == "linux" else "another process"
        for second in SECOND.values():
            with pytest.raises(UsageError, match=rf"a\.mla is being written by {who}\. Wait until it is closed"):
                second(path)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == ["a.mla"]
    for second in SECOND.values():
        made = second(path)
        if isinstance(made, MLArray):
            made.close()


@needs_locks
def test_a_conversion_does_not_replace_a_file_that_is_being_written(path: Path) -> None:
    np.save(path.with_suffix(".npy"), VOXELS)
    arguments = ["convert", "--if-exists", "overwrite", str(path.with_suffix(".npy")), "-o", str(path)]
    with Writer(OPENED["r+"], path):
        done = subprocess.run(
            [sys.executable, "-c", "from mlarray_convert.cli import main; main()", *arguments],
            capture_output=True,
            text=True,
            timeout=SCRIPT_SECONDS,
            check=False,
        )
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "is being written by" in told
    assert "Traceback" not in told
    assert sorted(os.listdir(path.parent)) == ["a.mla", "a.npy"]


@needs_locks
def test_readers_are_not_hindered_by_a_writer_that_has_changed_nothing(path: Path) -> None:
    with Writer(OPENED["r+"], path):
        for mmap_mode in ("r", "c", None):
            np.testing.assert_array_equal(MLArray.open(path, mmap_mode=mmap_mode)[...], VOXELS)  # type: ignore[arg-type]


@needs_locks
def test_a_writer_that_was_killed_hinders_nobody(path: Path) -> None:
    with Writer(OPENED["r+"], path) as writer:
        writer.process.kill()
        writer.process.wait(CHILD_SECONDS)
        MLArray.open(path, mmap_mode="r+").close()


@needs_locks
@needs_fork
def test_a_forked_child_does_not_keep_the_lock_of_its_parent(path: Path) -> None:
    script = HOLD.format(opened=OPENED["r+"], end="").replace(
        'print("open"', f"import os, time\nchild = os.fork() or time.sleep({SCRIPT_SECONDS})\nprint(child"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    child = int(writer.stdout.readline())
    try:
        writer.kill()
        writer.wait(CHILD_SECONDS)
        MLArray.open(path, mmap_mode="r+").close()
    finally:
        os.kill(child, 9)
        writer.communicate()


@needs_locks
def test_a_second_handle_of_the_same_process_is_refused_until_the_first_is_gone(path: Path) -> None:
    first = MLArray.open(path, mmap_mode="r+")
    who = "this process, with another handle" if sys.platform == "linux" else "another process"
    with pytest.raises(UsageError, match=f"is being written by {who}"):
        MLArray.open(path, mmap_mode="r+")
    first.save(path)  # its own file
    first[0] = 1
    cycle: list[object] = [first]
    cycle.append(cycle)
    del first, cycle
    with MLArray.open(path, mmap_mode="r+") as again:
        assert np.all(again[0] == 1)


@needs_locks
def test_a_lock_follows_the_name_and_is_given_back(path: Path) -> None:
    lock = WriteLock(path)
    assert lock.covers(path)
    os.replace(path, path.with_name("b.mla"))
    assert not lock.covers(path)
    lock.release()
    WriteLock(path.with_name("b.mla")).release()


def test_what_cannot_be_locked_is_written_as_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlarray.storage.write_lock._HAS_LOCKS", False)
    first, second = (MLArray.open(path, mmap_mode="r+") for _ in range(2))
    first.close()
    second[0] = 1
    second.close()
    assert np.all(MLArray.load(path)[0] == 1)


# -- read-ahead ------------------------------------------------------------------------------------------------------------


@needs_fork
def test_announcing_reads_in_a_forked_child_does_not_wait_for_what_a_thread_of_its_parent_was_doing(path: Path) -> None:
    code = f"""{FORK}
from mlarray.storage import readahead
image = MLArray.open(path)
import threading
inside, done = threading.Event(), threading.Event()

def announce():
    with image._store._ahead._lock:  # as the thread that announces holds it
        inside.set()
        done.wait(60)

threading.Thread(target=announce).start()
inside.wait(20)

def work():
    image.prefetch([Region((0, 0, 0), (60, 60, 60))])
    readahead.wait_for_prefetches()
    return right(image)

print(child(work))
done.set()
"""
    assert run(code, path).split() == ["0"]


def test_a_handle_that_was_sent_to_another_process_opens_the_file_there(path: Path) -> None:
    image = MLArray.open(path, mmap_mode=None)
    again = pickle.loads(pickle.dumps(image))
    np.testing.assert_array_equal(again.read(Region((0, 0, 0), (3, 64, 64))), VOXELS[:3])
