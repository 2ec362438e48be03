"""What makes no progress ends: a case in a circle, and structures that contain themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.formats.hdf5_attributes import read_attributes
from mlarray.streaming.config import load_yaml
from mlarray_convert.cluster.child import Watch
from mlarray_convert.executor import Done, Lost
from mlarray_convert.pool import Pool
from mlarray_convert.share import Share


def square_or_circle(job: int, progress: Callable[[float], None]) -> int:
    while job == 2:
        pass
    progress(0.5)
    return job * job


def test_a_job_without_progress_is_lost_and_the_others_are_done() -> None:
    pool: Pool[int, int] = Pool(square_or_circle, Share(1, 1, 10**9, "test"), stall_seconds=1.0)
    events = list(pool.run([1, 2, 3]))
    assert {event.index: event.result for event in events if isinstance(event, Done)} == {0: 1, 2: 9}
    (lost,) = [event for event in events if isinstance(event, Lost)]
    assert lost.index == 1
    assert "no progress for 1 seconds" in lost.told
    assert "MLARRAY_LIMIT_STALL_SECONDS" in lost.told


def test_a_watch_calls_once_when_nothing_is_heard() -> None:
    called: list[float] = []
    watch = Watch(lambda: called.append(time.monotonic()), 0.05)
    began = time.monotonic()
    while not watch.is_over and time.monotonic() - began < 10:
        pass
    watch.close()
    assert len(called) == 1
    quiet = Watch(lambda: called.append(0.0), 60)
    quiet.heard()
    quiet.close()
    assert len(called) == 1


def test_attributes_of_variable_length_are_not_read_except_texts(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        image = file.create_dataset("image", data=np.zeros((2, 2, 2), np.uint8))
        image.attrs.create("lists", [np.arange(2), np.arange(3)], dtype=h5py.vlen_dtype(np.int64))
        image.attrs["place"] = image.ref
        image.attrs["bytes"] = np.void(b"abc")
        image.attrs["text"], image.attrs["numbers"], image.attrs["flag"] = "t", [1.5, 2.5], True
        _, fields, notes = read_attributes(image, (2, 2, 2), np.dtype(np.uint8))
    assert fields["header"] == {"text": "t", "numbers": [1.5, 2.5], "flag": True}
    assert [note.message for note in notes if note.code == "attributes-skipped"] == [
        "The attributes bytes, lists, place are not kept."
    ]


@pytest.mark.parametrize(
    "content",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\n",
        "a: &a\n  b: *a\n",
        "[" * 100_000,
        "{a: " * 50_000,
        "- " * 100_000,
        "!!int " + ":".join(["59"] * 100_000),
        "!!int '" + "9" * 500_000 + "'",
        "\n".join(f"k{number}: 1" for number in range(60_000)) + "\nk0: 2",
        "? " * 50_000,
    ],
    ids=["bomb", "itself", "lists", "mappings", "entries", "sexagesimal", "digits", "keys", "complex keys"],
)
def test_yaml_that_is_made_to_take_time_is_refused_in_time(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.yaml").write_text(content, encoding="utf-8")
    began = time.monotonic()
    with pytest.raises(UsageError):
        load_yaml(tmp_path / "a.yaml")
    assert time.monotonic() - began < 60
