"""Batches through torch's DataLoader: the same whoever computes them, as tensors that share memory."""

from __future__ import annotations

import gc
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from mlarray import MLArray  # noqa: E402
from mlarray.errors import UsageError  # noqa: E402
from mlarray.integrations.torch import TorchBatch, TorchPatches, as_tensors, torch_loader  # noqa: E402
from mlarray.region import Region  # noqa: E402
from mlarray.streaming.batch import Batch, Sample, Stack  # noqa: E402
from mlarray.streaming.handover import HELD  # noqa: E402
from mlarray.streaming.loader import WorkerLoader  # noqa: E402

from . import stream_stand_ins as acts  # noqa: E402
from .stream_stand_ins import Acting, Numbers  # noqa: E402

# torch says so where there are fewer processors than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning")
SMALL = (4, 4, 4)
START = [(0, None), (1, "spawn"), *([(2, "fork"), (3, "fork")] if sys.platform == "linux" else [])]


class DrawsGlobally(Numbers):
    def batch(self, index: int, *, stack: Stack = np.stack) -> Batch:
        batch = super().batch(index, stack=stack)
        batch["CT"][0].fill(random.random())
        batch["CT"][1].fill(np.random.random())  # noqa: NPY002 what code of others does
        batch["SEG"].fill(int(torch.randint(255, ())))
        return batch


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    left = [one for one in psutil.Process().children() if "resource_tracker" not in " ".join(one.cmdline())]
    assert left == []


def values(batches: object) -> list[int]:
    return [int(batch["CT"][1].max()) for batch in batches]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("workers", "context"), START)
def test_batches_come_in_order_and_epochs_reach_workers_that_stay(workers: int, context: str | None) -> None:
    stream = Numbers(7, SMALL)
    loader = torch_loader(stream, workers=workers, context=context)
    assert len(loader) == 7
    first = list(loader)
    assert values(first) == list(range(7))
    stream.set_epoch(3)
    second = list(loader)
    assert values(second) == [3000 + k for k in range(7)]
    by = [batch.samples[0].copy for batch in first]
    assert by == [batch.samples[0].copy for batch in second]
    assert len(set(by)) == max(1, workers)
    assert by == [by[k % max(1, workers)] for k in range(7)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_where_its_stream_says(workers: int) -> None:
    stream = Numbers(6, SMALL)
    stream.first = 4
    loader = torch_loader(stream, workers=workers)
    assert len(loader) == 2
    assert values(loader) == [4, 5]
    stream.set_epoch(1)
    assert values(loader) == [1000 + k for k in range(6)]


def test_a_batch_has_tensors_and_samples_that_are_views_of_them() -> None:
    (batch, *_) = torch_loader(Numbers(2, SMALL), workers=1)
    assert isinstance(batch, TorchBatch)
    assert (batch["CT"].dtype, batch["SEG"].dtype, batch["CT"].shape) == (torch.float32, torch.uint8, (2, 1, *SMALL))
    batch["CT"][1] = 5
    assert (batch.samples[1].arrays["CT"] == 5).all()
    assert batch.to("cpu")["CT"] is batch["CT"]
    assert [sample.case for sample in batch] == ["case_0", "case_0"]
    assert len(batch) == 2


def test_arrays_become_tensors_without_a_copy() -> None:
    with WorkerLoader(Numbers(2), workers=1) as loader:
        for batch in loader:
            tensors = as_tensors(batch)
            assert all(tensors[group].data_ptr() == batch[group].ctypes.data for group in ("CT", "SEG"))
            assert all(array.ctypes.data % 64 == 0 for array in batch.arrays.values())
    assert (tensors["SEG"] == 1).all()


@pytest.mark.skipif(sys.platform == "win32", reason="has no such memory")
@pytest.mark.parametrize("context", ["fork", "spawn"] if sys.platform == "linux" else ["spawn"])
def test_memory_of_a_batch_is_used_again_and_kept_while_a_tensor_lies_in_it(context: str) -> None:
    loader = torch_loader(Numbers(12), workers=1, context=context, prefetch=2)
    places: set[int] = set()
    kept: list[torch.Tensor] = []
    for _ in range(2):
        for batch in loader:
            places.add(batch["CT"].data_ptr())
            kept = kept or [batch["CT"][1]]
        del batch
    assert len(places) <= 2 + HELD
    assert (kept[0] == 0).all()
    hoard = list(loader)
    assert values(hoard) == list(range(12))


def test_two_loaders_of_one_dataset_do_not_mix_their_batches() -> None:
    dataset = torch_loader(Numbers(12), workers=1).dataset
    loaders = [torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1) for _ in range(2)]
    for index, both in enumerate(zip(*loaders, strict=True)):
        assert values(both) == [index, index]
    assert values(pickle.loads(pickle.dumps(dataset))[k] for k in range(3)) == [0, 1, 2]


def test_what_torch_cannot_share_is_copied() -> None:
    array = np.arange(8, dtype=">i2").reshape(1, 1, 8)[:, :, ::-1]
    array.flags.writeable = False
    batch = Batch({"CT": array}, (Sample({"CT": array[0]}, "a", 0, Region((0,), (8,))),))
    assert as_tensors(batch)["CT"].tolist() == [[[7, 6, 5, 4, 3, 2, 1, 0]]]


def test_a_pickled_batch_holds_its_voxels_once() -> None:
    batch = as_tensors(Numbers(2).batch(1))
    text = pickle.dumps(batch)
    assert len(text) < 2 * 32**3 * 5 + 4000
    assert (pickle.loads(text).samples[1].arrays["SEG"] == 1).all()


def test_the_dataset_is_indexed_by_number_or_by_epoch_and_number() -> None:
    patches = TorchPatches(Numbers(3, SMALL))
    assert len(patches) == 3
    assert values([patches[2], patches[5, 1], patches[0]]) == [2, 5001, 5000]
    with pytest.raises(IndexError, match="Batch 3 of 3"):
        patches[3]


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_global_random_numbers_in_workers_depend_on_the_batch_alone() -> None:
    def drawn(workers: int, seed: int) -> list[list[float]]:
        torch.manual_seed(seed)
        batches = list(torch_loader(DrawsGlobally(5, SMALL), workers=workers, context="fork"))
        return [[*batch["CT"][:, 0, 0, 0, 0].tolist(), float(batch["SEG"].max())] for batch in batches]

    one = drawn(1, 7)
    assert one == drawn(3, 7)
    assert one != drawn(3, 8)
    assert len({str(row) for row in one}) == 5


def test_an_exception_in_a_worker_is_raised_with_its_message() -> None:
    with pytest.raises(UsageError, match="The patch is too large"):
        list(torch_loader(Acting(acts.fail), workers=1))  # torch waits 5 s for each worker after an exception


def test_asking_for_pinned_memory_without_an_accelerator_warns_of_nothing() -> None:
    loader = torch_loader(Numbers(2, SMALL), workers=1, pin_memory=True)
    assert loader.pin_memory is torch.cuda.is_available()
    assert values(loader) == [0, 1]


KILLED = """
import os, signal, sys
from dataclasses import dataclass
from pathlib import Path

from mlarray import transforms as T
from mlarray.integrations.torch import torch_loader
from mlarray.streaming import PatchStream
from mlarray.transforms.base import Transform
from mlarray.transforms.locality import Pointwise


@dataclass(frozen=True, slots=True)
class Dies(Transform):
    parent: int

    def locality(self, volume):
        return Pointwise()

    def apply(self, block, context):
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return block


if __name__ == "__main__":
    dataset, saved, context = sys.argv[1:]
    for chain in ([Dies(os.getpid())], [Dies(os.getpid()), T.Save(saved)]):
        stream = PatchStream(dataset, {"CT": chain}, patch_size=8, mode="predict", memory_budget=4, batch_size=2)
        try:
            list(torch_loader(stream, workers=1, context=context))
        except RuntimeError as error:
            print("DataLoader worker" in str(error), [path.name for path in Path(saved).rglob("CT*")])
        print(len(list(stream)))
    print([path.name for path in Path(saved).rglob("*") if path.is_file()])
"""


@pytest.mark.parametrize("context", ["spawn", *(["fork"] if sys.platform == "linux" else [])])
@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_a_worker_that_is_killed_is_an_error_and_leaves_no_part_of_a_saved_case(tmp_path: Path, context: str) -> None:
    (tmp_path / "d" / "p0").mkdir(parents=True)
    MLArray(np.ones((10, 8, 8), np.float32), axes="zyx", patch_size=8).save(tmp_path / "d" / "p0" / "CT.mla")
    script = tmp_path / "killed.py"
    script.write_text(KILLED, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path / "d"), str(tmp_path / "s"), context]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.splitlines()) == (
        0,
        ["True []", "1", "True []", "1", "['CT.mla']"],
    ), ended.stderr
