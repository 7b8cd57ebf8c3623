"""Threads, memory and open files; cgroups of both versions, as files in a folder."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from forge.config.numbers import GIB
from forge.doctor import limits
from forge.doctor.finding import MISSING, OK, WARN


@pytest.mark.parametrize(
    ("usable", "torch_threads", "num_threads", "omp", "status", "fix"),
    [
        (8, 8, 0, None, OK, ""),
        (8, 4, 0, None, OK, ""),
        (8, None, 0, None, OK, ""),
        (8, 64, 8, None, OK, ""),
        (2, 64, 0, None, WARN, "run.num_threads=2, or OMP_NUM_THREADS=2"),
        (2, 2, 3, None, WARN, "run.num_threads=2, or OMP_NUM_THREADS=2"),
        (8, 1, 0, "1", WARN, "unset OMP_NUM_THREADS, or run.num_threads=8"),
        (8, 8, 1, "8", WARN, "run.num_threads=8"),
    ],
)
def test_threads(
    usable: int, torch_threads: int | None, num_threads: int, omp: str | None, status: str, fix: str
):
    found = limits.threads(
        usable, 64, torch_threads, num_threads, {"OMP_NUM_THREADS": omp} if omp else {}
    )
    assert (found.status, found.fix, found.needed) == (status, fix, False)
    assert found.found.startswith(f"{usable} of 64 cores may be used; ")


def test_threads_say_where_they_come_from():
    assert limits.threads(4, 4, 4, 0, {}).found.endswith("4 threads a rank (torch's choice)")
    assert limits.threads(4, 4, 4, 0, {"OMP_NUM_THREADS": "4"}).found.endswith(
        "4 threads a rank (OMP_NUM_THREADS=4)"
    )
    assert limits.threads(4, 4, 4, 3, {}).found.endswith("3 threads a rank (run.num_threads=3)")
    assert limits.threads(4, 4, None, 0, {}).found.endswith("torch cannot be asked")


def test_memory():
    assert limits.memory(16 * GIB, None).found == "16.0 GiB free"
    assert limits.memory(16 * GIB, 8 * GIB).found == "8.0 GiB free (16.0 GiB on the machine)"
    few = limits.memory(GIB, None)
    assert (few.status, few.fix) == (WARN, "end other programs; or lower train.batch_size")
    capped = limits.memory(16 * GIB, GIB // 4)
    assert (capped.status, capped.needed, capped.fix) == (
        MISSING,
        True,
        "ask for more: --mem of Slurm, --memory of Docker",
    )
    assert limits.memory(None, None).status == WARN


def test_open_files():
    assert limits.open_files(1024, 4096).status == OK
    assert (
        limits.open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY).found
        == "unlimited (at most unlimited)"
    )
    assert (limits.open_files(256, 4096).status, limits.open_files(256, 4096).fix) == (
        WARN,
        "ulimit -n 4096",
    )
    assert limits.open_files(256, 10**6).fix == "ulimit -n 65536"
    assert limits.open_files(256, resource.RLIM_INFINITY).fix == "ulimit -n 65536"
    assert limits.open_files(256, 512).fix == "ask the administrator for more"


def test_open_files_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (300, 300))
    assert limits.open_files().found == "300 (at most 300)"


def test_usable_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: set(range(6)))
    assert [limits.usable_cores(quota) for quota in (None, 64.0, 2.9, 0.5)] == [6, 6, 2, 1]


def cgroup(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    return tmp_path / "cgroup", tmp_path / "membership"


def test_cgroup_of_version_two(tmp_path: Path):
    files = {
        "cpu.max": "max 100000",
        "job/cpu.max": "150000 100000",
        "job/step/cpu.max": "400000 100000",
        "job/memory.max": "1000",
        "job/memory.current": "700",
        "job/memory.stat": "anon 600\ninactive_file 100",
        "job/step/memory.max": "max",
        "job/step/memory.current": "700",
    }
    root, membership = cgroup(tmp_path, "0::/job/step\n", files)
    assert limits.cpu_quota(root, membership) == 1.5
    assert limits.memory_left(root, membership) == 1000 - 700 + 100


def test_cgroup_of_version_one(tmp_path: Path):
    files = {
        "cpu,cpuacct/job/cpu.cfs_quota_us": "200000",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "1",
        "memory/job/memory.limit_in_bytes": "5000",
        "memory/job/memory.usage_in_bytes": "6000",
    }
    root, membership = cgroup(
        tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n", files
    )
    assert limits.cpu_quota(root, membership) == 2.0
    assert limits.memory_left(root, membership) == 0


def test_a_container_sees_only_the_top_of_its_cgroups(tmp_path: Path):
    root, membership = cgroup(tmp_path, "0::/docker/1234\n", {"cpu.max": "50000 100000"})
    assert limits.cpu_quota(root, membership) == 0.5


def test_no_cgroup(tmp_path: Path):
    assert limits.cpu_quota(tmp_path, tmp_path / "none") is None
    assert limits.memory_left(tmp_path, tmp_path / "none") is None


def test_free_memory(tmp_path: Path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:    60 kB\n")
    assert limits.free_memory(file) == 60 * 1024
    assert limits.free_memory(tmp_path / "none") is None
