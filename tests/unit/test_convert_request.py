"""What a user writes becomes a request, or a clear refusal."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlarray.errors import UsageError
from mlarray_convert.request import IfExists, Shard, make_request, parse_memory, parse_patch_size, parse_shard


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GB", 8 * 10**9),
        ("500MB", 5 * 10**8),
        ("1.5GiB", 3 * 2**29),
        ("2g", 2 * 10**9),
        ("4096", 4096),
        (" 1 TB ", 10**12),
    ],
)
def test_memory_is_understood_in_the_units_people_write(text: str, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "lots", "8 XB", "-1GB", "0", "1e9"])
def test_an_amount_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"8GB|positive"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("192", 192), ("128,160,160", (128, 160, 160)), ("64x64", (64, 64)), ((8, 9), (8, 9)), (5, 5)],
)
def test_a_patch_size_is_one_number_or_one_per_axis(value: object, expected: object) -> None:
    assert parse_patch_size(value) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["", "big", "1,,2", "0", "-3", "8,0", 0, (4, -1)])
def test_a_patch_of_no_voxels_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        parse_patch_size(value)  # type: ignore[arg-type]


def test_the_suffix_of_a_single_output_decides_the_format(tmp_path: Path) -> None:
    source = tmp_path / "a.mla"
    source.touch()
    request = make_request(source, tmp_path / "b.nii", to=None)
    assert (request.target.name, request.suffix, request.output_is_file) == ("nifti", ".nii", True)


def test_without_a_suffix_to_go_by_the_target_is_mla(tmp_path: Path) -> None:
    request = make_request([tmp_path / "a.nii", tmp_path / "b.nii"], tmp_path / "out.nii.gz")
    assert (request.target.name, request.suffix, request.output_is_file) == ("mla", ".mla", False)


def test_a_suffix_that_contradicts_the_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"named like NIfTI.*asks for NRRD"):
        make_request(tmp_path / "a.mla", tmp_path / "b.nii.gz", to="nrrd")


def test_a_mode_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="skip, overwrite, error"):
        make_request("a.nii", if_exists="replace")
    assert make_request("a.nii", if_exists="overwrite").if_exists is IfExists.OVERWRITE


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"memory": 0}, {"inputs": []}])
def test_numbers_below_one_and_empty_requests_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        make_request(**{"inputs": ["a.nii"], **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"layout": "small"}, {"storage": {"layout": 3}}])
def test_a_layout_that_has_no_name_is_refused_before_any_file_is_touched(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="'nnunet' or 'small-blocks'"):
        make_request("a.nii", **options)  # type: ignore[arg-type]


# --- parts and schedulers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "shard"), [("1/1", Shard(1, 1)), ("16/16", Shard(16, 16)), (" 3/16 ", Shard(3, 16))])
def test_a_part_is_a_number_of_a_count_from_1(text: str, shard: Shard) -> None:
    assert parse_shard(text) == shard
    assert parse_shard((shard.number, shard.count)) == shard


@pytest.mark.parametrize("text", ["0/16", "17/16", "1/0"])
def test_a_part_that_does_not_exist_is_refused_with_those_that_do(text: str) -> None:
    with pytest.raises(UsageError, match=r"--shard takes 1/.*--array=1-"):
        parse_shard(text)


@pytest.mark.parametrize("text", ["3", "3/", "/16", "-1/16", "1.0/2", "3 of 16", "", "1/2/3"])
def test_a_part_that_is_not_understood_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="3/16"):
        parse_shard(text)


@given(st.integers(1, 20), st.integers(0, 50))
def test_parts_have_every_case_once_and_differ_by_at_most_one(count: int, cases: int) -> None:
    parts = [Shard(number, count).of(range(cases)) for number in range(1, count + 1)]
    assert sorted(case for part in parts for case in part) == list(range(cases))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local", "local"),
        ("tcp://10.0.0.4:8786", "tcp://10.0.0.4:8786"),
        ("tls://[::1]:8786", "tls://[::1]:8786"),
        ("node7.cluster:8786", "tcp://node7.cluster:8786"),
    ],
)
def test_a_scheduler_is_named_by_its_address(text: str, expected: str) -> None:
    assert make_request("d", scheduler=text).scheduler == expected


def test_a_scheduler_file_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "scheduler.json").touch()
    assert make_request("d", scheduler=tmp_path / "scheduler.json").scheduler == str(tmp_path / "scheduler.json")


@pytest.mark.parametrize("text", ["slurm", "", "http://host:8787", "host", "nowhere.json", "tcp://"])
def test_what_is_no_scheduler_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="tcp://host:8786"):
        make_request("d", scheduler=text)


def test_a_number_of_workers_is_for_this_machine_only() -> None:
    assert make_request("d", scheduler="local", workers=2).workers == 2
    with pytest.raises(UsageError, match="--workers 2 does not go with --scheduler tcp://host:1"):
        make_request("d", scheduler="tcp://host:1", workers=2)


def test_parts_are_not_written_into_one_common_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match="one file has one writer"):
        make_request([tmp_path / "d"], tmp_path / "all.h5", shard="1/2")
    assert make_request([tmp_path / "d"], tmp_path / "all.h5").store == tmp_path / "all.h5"
