"""A file gets its name in one step, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlarray.errors import UsageError
from mlarray.storage.publish import PendingFile, is_part, part_owner


def test_a_pending_file_is_hidden_beside_its_final_name(tmp_path: Path) -> None:
    pending = PendingFile(tmp_path / "case.mla")
    assert pending.path.parent == tmp_path
    assert is_part(pending.path.name)
    assert pending.path.name.startswith(".case.mla.")
    assert part_owner(pending.path.name) is not None
    assert part_owner(pending.path.name)[1] == os.getpid()  # type: ignore[index]


def test_publishing_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "case.mla").write_bytes(b"old")
    pending = PendingFile(tmp_path / "case.mla")
    pending.path.write_bytes(b"new")
    assert (tmp_path / "case.mla").read_bytes() == b"old"
    pending.publish()
    pending.abort()
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("case.mla", b"new")]


def test_who_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "case.mla").write_bytes(b"old")
    with (tmp_path / "case.mla").open("rb") as reader:
        pending = PendingFile(tmp_path / "case.mla")
        pending.path.write_bytes(b"new")
        pending.publish()
        assert reader.read() == b"old"


def test_aborting_removes_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "case.mla").write_bytes(b"old")
    pending = PendingFile(tmp_path / "case.mla")
    pending.path.write_bytes(b"half")
    pending.abort()
    pending.abort()
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    one, two = PendingFile(tmp_path / "case.mla"), PendingFile(tmp_path / "case.mla")
    assert one.path != two.path


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        PendingFile(tmp_path / "no" / "case.mla")


@pytest.mark.parametrize("name", ["x" * 250 + ".mla", "病例" * 40 + ".mla", "a.b-c.d.mla", "-1-2.mla", "ünï cödé.mla"])
def test_any_name_that_a_file_can_have_can_be_pending(tmp_path: Path, name: str) -> None:
    pending = PendingFile(tmp_path / name)
    pending.path.write_bytes(b"x")
    assert part_owner(pending.path.name) is not None
    pending.publish()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "name", ["case.mla", ".case.mla", "case.part", ".case.part", ".case.mla.host-x-1.part", ".x.-.part"]
)
def test_other_names_have_no_owner(name: str) -> None:
    assert part_owner(name) is None
