"""Processors and memory, read from the files of other machines."""

from pathlib import Path

import pytest

from mlarray_convert.machine import Machine, memory_available, processor_limit, share_out


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
        ({"SLURM_MEM_PER_NODE": "100"}, (104_857_600, "0.1 GB (SLURM_MEM_PER_NODE)")),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_PER_TASK": "2"}, (209_715_200, "0.2 GB (SLURM_MEM_PER_CPU)")),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "3"}, (314_572_800, "0.3 GB (SLURM_MEM_PER_CPU)")),
        ({"SLURM_MEM_PER_CPU": "100"}, (104_857_600, "0.1 GB (SLURM_MEM_PER_CPU)")),
    ],
)
def test_a_slurm_job_gets_the_memory_it_asked_for(
    tmp_path: Path, environment: dict[str, str], expected: tuple[int, str]
) -> None:
    assert memory_available(environment, root=tmp_path) == expected


@pytest.mark.parametrize("text", ["0", "", "all", "-5"])
def test_slurm_memory_that_is_no_limit_is_none(tmp_path: Path, text: str) -> None:
    assert memory_available({"SLURM_MEM_PER_NODE": text}, root=tmp_path)[1].endswith("(free memory of the machine)")


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
    assert memory_available(root=root) == (150_000_000, "0.1 GB (cgroup memory limit)")


def test_a_version_1_group_limits_memory(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        "5:memory:/box\n",
        memory__box__memory_dot_limit_in_bytes="300000000",
        memory__box__memory_dot_usage_in_bytes="100000000",
    )
    assert memory_available(root=root) == (200_000_000, "0.2 GB (cgroup memory limit)")


def test_file_cache_that_the_kernel_can_drop_counts_as_free(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        "0::/box\n",
        box__memory_dot_max="300000000",
        box__memory_dot_current="250000000",
        box__memory_dot_stat="anon 50000000\ninactive_file 200000000\n",
    )
    assert memory_available(root=root)[0] == 250_000_000


MACHINE = Machine(processors=8, memory_bytes=20_000_000_000, reason="test")


def test_there_are_never_more_workers_than_cases() -> None:
    share = share_out(MACHINE, cases=3)
    assert (share.workers, share.threads) == (3, 2)


def test_workers_times_threads_stay_within_the_processors() -> None:
    for cases in range(1, 20):
        share = share_out(MACHINE, cases=cases)
        assert share.workers * share.threads <= 8


def test_memory_is_shared_and_limits_the_workers() -> None:
    share = share_out(Machine(64, 4_000_000_000, ""), cases=100)
    assert (share.workers, share.memory_bytes) == (3, 1_066_666_666)


def test_what_is_asked_for_is_kept() -> None:
    share = share_out(MACHINE, cases=100, workers=2, memory_bytes=10**9)
    assert (share.workers, share.threads, share.memory_bytes) == (2, 4, 10**9)


def test_a_memory_limit_per_worker_bounds_how_many_are_started() -> None:
    assert share_out(MACHINE, cases=100, memory_bytes=8_000_000_000).workers == 2
