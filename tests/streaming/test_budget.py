"""How much memory may a rank use?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlarray.errors import UsageError
from mlarray.streaming.budget import GIB, Budget, launched_ranks, memory_budget, parse_bytes

FORMS = (
    'Write "auto", a number of GiB such as 24 or 1.5, or text with a unit such as "24GB" or "512 mib": '
    "b, k, m, g, t, kb, mb, gb, tb (powers of 1000), kib, mib, gib, tib (of 1024)."
)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (24, 24 * GIB),
        (1.5, 3 * GIB // 2),
        (np.int64(8), 8 * GIB),
        (np.float32(0.5), GIB // 2),
        (1 << 20, 1 << 50),
        ("24", 24 * GIB),
        ("1.5", 3 * GIB // 2),
        (".5", GIB // 2),
        ("2.", 2 * GIB),
        ("4096b", 4096),
        ("4096 B", 4096),
        ("300k", 300_000),
        ("300KB", 300_000),
        ("512m", 512_000_000),
        ("512mb", 512_000_000),
        ("24g", 24_000_000_000),
        ("24GB", 24_000_000_000),
        ("24 gb", 24_000_000_000),
        ("  24\tGb ", 24_000_000_000),
        ("2t", 2_000_000_000_000),
        ("2Tb", 2_000_000_000_000),
        ("64kib", 65536),
        ("512MiB", 512 * MIB),
        ("24 GiB", 24 * GIB),
        ("1.5tib", 3 << 39),
        ("1000000000b", 10**9),
        ("2000000m", 2 * 10**12),
    ],
)
def test_every_accepted_form_gives_its_bytes(value: Any, expected: int) -> None:
    assert parse_bytes(value) == expected
    if expected >= 256 * MIB:
        assert memory_budget(value, ranks_on_node=8) == Budget(expected, "given")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0, "0 is not above 0"),
        (-4, "-4 is not above 0"),
        (0.0, "0.0 is not above 0"),
        ("0", "'0' is not above 0"),
        ("0 gb", "'0 gb' is not above 0"),
        ("-4", "'-4' is no amount of memory"),
        ("+4", "'+4' is no amount of memory"),
        ("", "'' is no amount of memory"),
        ("  ", "'  ' is no amount of memory"),
        ("GB", "'GB' is no amount of memory"),
        (".", "'.' is no amount of memory"),
        ("24 gigabytes", "'24 gigabytes' is no amount of memory"),
        ("24 i", "'24 i' is no amount of memory"),
        ("24ib", "'24ib' is no amount of memory"),
        ("1,5", "'1,5' is no amount of memory"),
        ("1e3", "'1e3' is no amount of memory"),
        ("0x10", "'0x10' is no amount of memory"),
        ("80%", "'80%' is no amount of memory"),
        ("２４", "'２４' is no amount of memory"),
        ("inf", "'inf' is no amount of memory"),
        (math.inf, "inf is no amount of memory"),
        (math.nan, "nan is no amount of memory"),
        ("9" * 400, f"{'9' * 400!r} counts GiB without a unit, which makes more than 1 PiB"),
        ("9" * 400 + "b", f"{'9' * 400 + 'b'!r} is no amount of memory"),
        ((1 << 20) + 1, "1048577 counts GiB without a unit, which makes more than 1 PiB"),
        ("17179869184", "'17179869184' counts GiB without a unit, which makes more than 1 PiB"),
        ("0.4b", "'0.4b' is less than one byte"),
        (1e-12, "1e-12 is less than one byte"),
        (True, "True is no amount of memory"),
        ([24], "[24] is no amount of memory"),
        (1j, "1j is no amount of memory"),
    ],
)
def test_every_other_form_is_refused_with_those_that_are_accepted(value: Any, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        memory_budget(value)
    assert str(caught.value) == f"memory_budget {why}. {FORMS}"


def group(tmp_path: Path, cgroup: str = "0::/box\n", **files: int | str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, value in files.items():
        path = tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(value))
    return tmp_path


@pytest.mark.parametrize("value", ["auto", " AUTO ", None])
def test_auto_is_four_fifths_of_what_the_control_group_has_left(tmp_path: Path, value: Any) -> None:
    root = group(tmp_path, box__memory_dot_max=1000 * MIB, box__memory_dot_current=200 * MIB)
    assert memory_budget(value, environment={}, root=root) == Budget(640 * MIB, "80% of 0.78 GiB, cgroup memory limit")


def test_the_tightest_of_the_groups_above_decides(tmp_path: Path) -> None:
    root = group(
        tmp_path,
        "0::/job/step/task\n",
        job__memory_dot_max=900 * MIB,
        job__memory_dot_current=400 * MIB,
        job__step__memory_dot_high=800 * MIB,
        job__step__memory_dot_current=100 * MIB,
        job__step__task__memory_dot_max="max",
    )
    assert memory_budget(environment={}, root=root).bytes == 400 * MIB


def test_a_group_of_version_1_counts_with_what_it_holds(tmp_path: Path) -> None:
    root = group(
        tmp_path,
        "5:memory:/box\n",
        memory__box__memory_dot_limit_in_bytes=1000 * MIB,
        memory__box__memory_dot_usage_in_bytes=500 * MIB,
        memory__memory_dot_limit_in_bytes=9223372036854771712,
    )
    assert memory_budget(environment={}, root=root) == Budget(400 * MIB, "80% of 0.49 GiB, cgroup memory limit")


def test_what_slurm_granted_is_shared_by_the_ranks_on_the_node(tmp_path: Path) -> None:
    environment = {"SLURM_MEM_PER_NODE": "2000", "SLURM_NTASKS_PER_NODE": "4"}
    assert memory_budget(environment=environment, root=tmp_path) == Budget(
        400 * MIB, "80% of 1.95 GiB, SLURM_MEM_PER_NODE, shared by 4 ranks as SLURM_NTASKS_PER_NODE says"
    )
    assert memory_budget(environment=environment, root=tmp_path, ranks_on_node=2) == Budget(
        800 * MIB, "80% of 1.95 GiB, SLURM_MEM_PER_NODE, shared by 2 ranks"
    )


def test_memory_per_processor_is_that_of_the_task_whoever_counts_the_ranks(tmp_path: Path) -> None:
    each = {"SLURM_MEM_PER_CPU": "250", "SLURM_CPUS_PER_TASK": "2"}
    assert memory_budget(environment={**each, "SLURM_NTASKS_PER_NODE": "3"}, root=tmp_path).bytes == 400 * MIB
    one_task = {**each, "SLURM_CPUS_ON_NODE": "2", "LOCAL_WORLD_SIZE": "1"}
    assert memory_budget(environment=one_task, root=tmp_path).bytes == 400 * MIB


def test_an_amount_that_is_given_is_for_each_rank(tmp_path: Path) -> None:
    environment = {"LOCAL_WORLD_SIZE": "8"}
    assert memory_budget("1gib", environment=environment, root=tmp_path) == Budget(GIB, "given")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (1, "")),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "1"}, (4, "LOCAL_WORLD_SIZE")),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (2, "OMPI_COMM_WORLD_LOCAL_SIZE")),
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "2"}, (2, "MV2_COMM_WORLD_LOCAL_SIZE")),
        ({"MPI_LOCALNRANKS": "3"}, (3, "MPI_LOCALNRANKS")),
        ({"SLURM_NTASKS_PER_NODE": "8"}, (8, "SLURM_NTASKS_PER_NODE")),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NTASKS_PER_NODE": "8"}, (1, "SLURM_STEP_TASKS_PER_NODE")),
        ({"SLURM_TASKS_PER_NODE": "2(x3),1"}, (2, "SLURM_TASKS_PER_NODE")),
        ({"SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, (1, "SLURM_TASKS_PER_NODE")),
        ({"SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "9"}, (2, "SLURM_TASKS_PER_NODE")),
        ({"LOCAL_WORLD_SIZE": "0", "SLURM_TASKS_PER_NODE": "many"}, (1, "")),
        ({"LOCAL_WORLD_SIZE": "-2", "SLURM_NTASKS_PER_NODE": ""}, (1, "")),
    ],
)
def test_the_launcher_says_how_many_ranks_a_node_has(environment: dict[str, str], expected: tuple[int, str]) -> None:
    assert launched_ranks(environment) == expected


def test_a_node_has_at_least_one_rank() -> None:
    with pytest.raises(UsageError, match=r"^ranks_on_node is a whole number from 1 on, got 0\.$"):
        memory_budget(ranks_on_node=0)


def test_this_machine_has_a_budget() -> None:
    budget = memory_budget()
    assert budget.bytes > 0
    assert budget.told.startswith("80% of ")


def test_a_budget_below_256_mib_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="below 256 MiB") as caught:
        budget = memory_budget("255 mib")
    assert budget.bytes == 255 * MIB
    expected = "The memory budget of 255 MiB per rank (given) is below 256 MiB: few patches fit."
    assert [str(one.message) for one in caught] == [expected]
    assert caught[0].filename == __file__


def test_nothing_left_is_a_budget_that_is_warned_of_too(tmp_path: Path) -> None:
    root = group(tmp_path, box__memory_dot_max=100 * MIB, box__memory_dot_current=100 * MIB)
    with pytest.warns(UserWarning, match="of 1 byte per rank"):
        assert memory_budget(environment={}, root=root).bytes == 1
