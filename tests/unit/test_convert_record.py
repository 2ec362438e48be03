"""An output is up to date when source and settings are those in its record."""

import json
import os
from pathlib import Path

import pytest

from mlarray.sources.base import Note
from mlarray_convert.discovery import Case
from mlarray_convert.record import END_BYTES, identity, is_ours, make_record, why_stale
from mlarray_convert.request import Request, make_request


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.nii"
    path.write_bytes(bytes(range(200)) * 10)
    return path


def setting(source: Path, **options: object) -> tuple[Case, Request]:
    return Case("a", source, source.with_suffix(".mla")), make_request(source, **options)  # type: ignore[arg-type]


def stored(source: Path, **options: object) -> dict[str, object]:
    case, request = setting(source, **options)
    record = make_record(case, request, [source], [Note("code", "A note.")])
    parsed: dict[str, object] = json.loads(json.dumps(record))
    return parsed


def test_a_record_survives_json_and_matches_what_it_was_made_from(source: Path) -> None:
    record = stored(source, patch_size="8,9,10")
    assert is_ours(record)
    assert record["notes"] == [{"code": "code", "message": "A note."}]
    case, request = setting(source, patch_size=(8, 9, 10))
    assert why_stale(record, case, request, [source]) is None


def test_speed_settings_do_not_make_an_output_stale(source: Path) -> None:
    case, request = setting(source, workers=3, memory="1GB", verify="full")
    assert why_stale(stored(source), case, request, [source]) is None


@pytest.mark.parametrize(
    "options",
    [{"patch_size": 64}, {"layout": "small-blocks"}, {"to": "b2nd"}, {"storage": {"block_limit_bytes": 4096}}],
)
def test_settings_that_shape_the_file_make_it_stale(source: Path, options: dict[str, object]) -> None:
    case, request = setting(source, **options)
    assert why_stale(stored(source), case, request, [source]) == "other settings than before"


def test_to_name_the_default_layout_is_to_leave_it_out(source: Path) -> None:
    case, request = setting(source, layout="nnunet", storage={"layout": "small-blocks"})
    assert request.storage == {"layout": "nnunet"}
    assert why_stale(stored(source), case, request, [source]) is None
    case, request = setting(source, storage={"layout": "small-blocks"})
    assert why_stale(stored(source, layout="small-blocks"), case, request, [source]) is None


def test_a_changed_source_is_seen_even_with_its_old_time(source: Path) -> None:
    record, status = stored(source), source.stat()
    source.write_bytes(bytes(reversed(source.read_bytes())))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    case, request = setting(source)
    assert why_stale(record, case, request, [source]) == "the source a.nii has changed"


def test_a_small_source_with_a_new_time_and_the_same_bytes_is_unchanged(source: Path) -> None:
    record = stored(source)
    os.utime(source, (1, 1))
    case, request = setting(source)
    assert why_stale(record, case, request, [source]) is None


def test_a_large_source_with_a_new_time_may_differ_in_the_middle(source: Path) -> None:
    source.write_bytes(bytes(2 * END_BYTES + 1))
    record = stored(source)
    os.utime(source, (1, 1))
    case, request = setting(source)
    assert why_stale(record, case, request, [source]) == "the source a.nii was written again"


def test_another_number_of_files_is_another_source(source: Path) -> None:
    case, request = setting(source)
    assert why_stale(stored(source), case, request, [source, source]) == "the source consists of other files"


def test_the_identity_covers_both_ends_once(tmp_path: Path) -> None:
    path = tmp_path / "x"
    digests = set()
    for content in (b"a" * 10, b"a" * END_BYTES + b"b", b"a" * END_BYTES + b"c", b"b" + b"a" * END_BYTES):
        path.write_bytes(content)
        digests.add(identity(path)["xxh3"])
    assert len(digests) == 4
