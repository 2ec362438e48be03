"""Processors and memory, read from the files of other machines."""

from pathlib import Path

import pytest

from mlarray.machine import FREE_MEMORY, memory_available, processor_limit


def fake_root(tmp_path: Path, cgroup: str, **files: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_slurm_job_of_one_cpu_gets_one_worker_on_any_node(tmp_path: Path) -> None:
    count, why = processor_limit({"SLURM_CPUS_PER_TASK": "1"}, root=tmp_path)
    assert count == 1
    assert "SLURM" in why or "affinity" in why


@pytest.mark.parametrize(("quota", "expected"), [("150000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_a_cgroup_quota_limits_the_processors_rounded_down(tmp_path: Path, quota: str, expected: int | None) -> None:
    root = fake_root(tmp_path, "0::/box\n", box__cpu_dot_max=quota)
    unlimited, _ = processor_limit({}, root=tmp_path / "nowhere")
    assert processor_limit({}, root=root)[0] == (expected or unlimited)


def test_the_quota_of_a_group_above_counts_too(tmp_path: Path) -> None:
    root = fake_root(tmp_path, "0::/a/b\n", a__cpu_dot_max="100000 100000", a__b__cpu_dot_max="max 100000")
    assert processor_limit({}, root=root)[0] == 1


def test_a_version_1_quota_limits_the_processors(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        "4:cpu,cpuacct:/box\n",
        cpu__box__cpu_dot_cfs_quota_us="100000",
        cpu__box__cpu_dot_cfs_period_us="100000",
    )
    assert processor_limit({}, root=root)[0] == 1


def test_a_quota_of_minus_one_is_none(tmp_path: Path) -> None:
    root = fake_root(tmp_path, "4:cpu:/\n", cpu__cpu_dot_cfs_quota_us="-1", cpu__cpu_dot_cfs_period_us="100000")
    assert processor_limit({}, root=root) == processor_limit({}, root=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "100"}, (104_857_600, "SLURM_MEM_PER_NODE")),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_PER_TASK": "2"}, (209_715_200, "SLURM_MEM_PER_CPU")),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "3"}, (314_572_800, "SLURM_MEM_PER_CPU")),
        (
            {"SLURM_MEM_PER_CPU": "30", "SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "8"},
            (62_914_560, "SLURM_MEM_PER_CPU"),
        ),
        ({"SLURM_MEM_PER_GPU": "30", "SLURM_GPUS_ON_NODE": "2"}, (62_914_560, "SLURM_MEM_PER_GPU")),
        ({"SLURM_MEM_PER_CPU": "100"}, (104_857_600, "SLURM_MEM_PER_CPU")),
    ],
)
def test_a_slurm_job_gets_the_memory_it_asked_for(
    tmp_path: Path, environment: dict[str, str], expected: tuple[int, str]
) -> None:
    assert memory_available(environment, root=tmp_path) == expected


def test_ranks_of_a_job_have_together_what_was_asked_for_per_processor_and_no_more_than_the_node(
    tmp_path: Path,
) -> None:
    environment = {"SLURM_MEM_PER_CPU": "10", "SLURM_CPUS_PER_TASK": "2"}
    assert memory_available(environment, root=tmp_path, ranks=3)[0] == 60 << 20
    environment["SLURM_CPUS_ON_NODE"] = "4"  # one task that started three ranks by itself
    assert memory_available(environment, root=tmp_path, ranks=3)[0] == 40 << 20


@pytest.mark.parametrize("text", ["0", "", "all", "-5"])
def test_slurm_memory_that_is_no_limit_is_none(tmp_path: Path, text: str) -> None:
    assert memory_available({"SLURM_MEM_PER_NODE": text}, root=tmp_path)[1] == FREE_MEMORY


def test_without_a_number_per_task_the_processors_of_the_job_on_this_node_count(tmp_path: Path) -> None:
    assert processor_limit({"SLURM_CPUS_ON_NODE": "1"}, root=tmp_path)[0] == 1
    count, why = processor_limit({"SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "64"}, root=tmp_path)
    assert (count, "64" in why) == (1, False)


@pytest.mark.parametrize("limit", ["memory_dot_max", "memory_dot_high"])
def test_the_memory_limit_of_a_group_above_counts_too(tmp_path: Path, limit: str) -> None:
    root = fake_root(
        tmp_path,
        "0::/job/step\n",
        **{f"job__{limit}": "200000000", "job__memory_dot_current": "50000000", "job__step__memory_dot_max": "max"},
    )
    assert memory_available(root=root) == (150_000_000, "cgroup memory limit")


def test_a_version_1_group_limits_memory(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        "5:memory:/box\n",
        memory__box__memory_dot_limit_in_bytes="300000000",
        memory__box__memory_dot_usage_in_bytes="100000000",
    )
    assert memory_available(root=root) == (200_000_000, "cgroup memory limit")


def test_file_cache_that_the_kernel_can_drop_counts_as_free(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        "0::/box\n",
        box__memory_dot_max="300000000",
        box__memory_dot_current="250000000",
        box__memory_dot_stat="anon 50000000\ninactive_file 200000000\n",
    )
    assert memory_available(root=root)[0] == 250_000_000
