"""Unfinished files are removed when their writer is certainly dead, and never otherwise."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlarray.formats import plugins
from mlarray.formats.table import FORMATS, Format
from mlarray.storage.leftovers import remove_leftovers
from mlarray.storage.publish import PendingFile, part_owner
from mlarray_convert.discovery import discover
from mlarray_convert.request import make_request
from mlarray_convert.run import Job, run_case


def part(folder: Path, pid: int, host: str | None = None) -> Path:
    name = PendingFile(folder / "case.mla").path.name
    owner = part_owner(name)
    assert owner is not None
    path = folder / f".case.mla.{host or owner[0]}-{pid}-0.part"
    path.write_bytes(b"half")
    return path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_file_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    path = part(tmp_path, dead_pid())
    assert remove_leftovers([tmp_path, tmp_path]) == (path,)
    assert not path.exists()


def test_the_file_of_a_living_process_stays(tmp_path: Path) -> None:
    path = part(tmp_path, os.getpid())
    assert remove_leftovers([tmp_path]) == ()
    assert path.exists()


def test_the_file_of_a_process_on_another_host_stays(tmp_path: Path) -> None:
    path = part(tmp_path, dead_pid(), host="elsewhere")
    assert remove_leftovers([tmp_path]) == ()
    assert path.exists()


def test_the_file_of_a_writer_that_is_known_to_be_dead_goes_on_any_host(tmp_path: Path) -> None:
    gone, other = part(tmp_path, 5, host="node1"), part(tmp_path, 6, host="node1")
    assert remove_leftovers([tmp_path], dead=[("node1", 5), ("node2", 6)]) == (gone,)
    assert other.exists()


def test_a_process_younger_than_the_file_only_has_the_same_number(tmp_path: Path) -> None:
    path = part(tmp_path, os.getpid())
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert remove_leftovers([tmp_path]) == (path,)


def test_files_that_are_no_leftovers_stay(tmp_path: Path) -> None:
    for name in ("case.mla", ".hidden", "a.part", ".odd.part"):
        (tmp_path / name).touch()
    assert remove_leftovers([tmp_path, tmp_path / "missing"]) == ()
    assert len(list(tmp_path.iterdir())) == 4


def test_the_folder_of_a_dead_process_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    path = part(tmp_path, dead_pid())
    path.unlink()
    (path / "0" / "c").mkdir(parents=True)
    (path / "0" / "c" / "1").write_bytes(b"half")
    assert remove_leftovers([tmp_path]) == (path,)
    assert list(tmp_path.iterdir()) == []


def test_an_order_to_stop_while_an_output_is_being_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_sink(path: Path, *_: object) -> None:
        PendingFile(path).path.touch()
        raise SystemExit(143)  # as SIGTERM does, before the sink has been handed over

    module = ModuleType("mlarray.formats.stopping")
    module.open_sink, module.losses = open_sink, lambda *_: ()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(plugins, "FORMATS", (*FORMATS, Format("stopping", "Stopping", (".stop",), "stopping")))
    plugins.all_formats.cache_clear()
    try:
        np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
        request = make_request(tmp_path / "a.npy", tmp_path / "out" / "a.stop")
        (case,) = discover(request).cases
        with pytest.raises(SystemExit):
            run_case(Job(case, request, 10**11, 1), lambda share: None)
    finally:
        monkeypatch.undo()
        plugins.all_formats.cache_clear()
    assert list((tmp_path / "out").iterdir()) == []
