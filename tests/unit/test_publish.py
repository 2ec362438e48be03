"""A file gets its name in one step, or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mlarray.errors import UsageError
from mlarray.storage.publish import PendingFile, PendingFolder, alone, is_part, part_owner, remove_tree


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


# --- folders ---------------------------------------------------------------------------------------------------------


def filled(folder: Path, text: str) -> Path:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c").write_text(text)
    return folder


def test_a_folder_is_filled_beside_its_final_name_and_gets_it_in_the_end(tmp_path: Path) -> None:
    pending = PendingFolder(tmp_path / "case.zarr")
    assert is_part(pending.path.name)
    assert pending.path.parent == tmp_path
    filled(pending.path, "new")
    assert not (tmp_path / "case.zarr").exists()
    pending.publish()
    pending.abort()
    assert [entry.name for entry in tmp_path.iterdir()] == ["case.zarr"]
    assert (tmp_path / "case.zarr" / "a" / "b" / "c").read_text() == "new"


@pytest.mark.parametrize("old", ["folder", "file", "link"])
@pytest.mark.parametrize("exchanging", [True, False], ids=["one step", "two steps"])
def test_what_was_there_stays_until_the_folder_is_complete(
    tmp_path: Path, old: str, exchanging: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanging:
        monkeypatch.setattr(sys, "platform", "another")
    place = tmp_path / "out" / "case.zarr"
    elsewhere = filled(tmp_path / "elsewhere", "old")
    place.parent.mkdir()
    if old == "folder":
        filled(place, "old")
    elif old == "file":
        place.write_text("old")
    else:
        place.symlink_to(elsewhere)
    pending = PendingFolder(place)
    filled(pending.path, "new")
    assert (place.read_text() if old == "file" else (place / "a" / "b" / "c").read_text()) == "old"
    pending.publish()
    assert (place / "a" / "b" / "c").read_text() == "new"
    assert not place.is_symlink()
    assert [entry.name for entry in place.parent.iterdir()] == ["case.zarr"]
    assert (elsewhere / "a" / "b" / "c").read_text() == "old"


def test_a_folder_that_is_given_up_leaves_the_old_one(tmp_path: Path) -> None:
    filled(tmp_path / "case.zarr", "old")
    pending = PendingFolder(tmp_path / "case.zarr")
    filled(pending.path, "new")
    pending.abort()
    pending.abort()
    assert [entry.name for entry in tmp_path.iterdir()] == ["case.zarr"]
    assert (tmp_path / "case.zarr" / "a" / "b" / "c").read_text() == "old"


def test_a_second_step_that_fails_brings_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "another")
    filled(tmp_path / "case.zarr", "old")
    pending = PendingFolder(tmp_path / "case.zarr")
    pending.path.rmdir()  # as if another process had removed it
    with pytest.raises(OSError, match="No such file"):
        pending.publish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["case.zarr"]
    assert (tmp_path / "case.zarr" / "a" / "b" / "c").read_text() == "old"


def test_links_in_a_folder_are_removed_and_not_followed(tmp_path: Path) -> None:
    kept = filled(tmp_path / "kept", "mine")
    folder = filled(tmp_path / "folder", "gone")
    (folder / "link").symlink_to(kept)
    remove_tree(folder)
    remove_tree(folder)
    assert not folder.exists()
    assert (kept / "a" / "b" / "c").read_text() == "mine"


def test_a_folder_that_another_process_publishes_first_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = PendingFolder(tmp_path / "case.zarr")
    filled(pending.path, "second")
    filled(tmp_path / "case.zarr", "first")
    seen = iter([False])  # there was none when it was looked for
    look = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: next(seen, None) is not False and look(path))
    pending.publish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["case.zarr"]
    assert (tmp_path / "case.zarr" / "a" / "b" / "c").read_text() == "second"


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked there")
def test_a_folder_is_locked_while_one_is_alone_in_it(tmp_path: Path) -> None:
    import fcntl

    fd = os.open(tmp_path, os.O_RDONLY)
    with alone(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    assert list(tmp_path.iterdir()) == []
    with alone(tmp_path / "missing"):
        pass
