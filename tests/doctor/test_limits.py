"""Threads, memory and open files; cgroups of both versions, as files in a folder."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from forge.config.numbers import GIB
from forge.doctor import limits
from forge.doctor.finding import MISSING, OK, WARN

FEWER = "run.num_threads=2, or OMP_NUM_THREADS=2"


@pytest.mark.parametrize(
    ("usable", "torch_threads", "num_threads", "omp", "said", "fix"),
    [
        (8, 8, 0, None, "8 threads a rank (torch's choice)", ""),
        (8, 4, 0, "4", "4 threads a rank (OMP_NUM_THREADS=4)", ""),
        (8, None, 0, None, "torch cannot be asked", ""),
        (8, 64, 8, None, "8 threads a rank (run.num_threads=8)", ""),
        (2, 64, 0, None, ": more threads than cores wait for each other", FEWER),
        (2, 2, 3, None, ": more threads than cores wait for each other", FEWER),
        (8, 1, 0, "1", "one rank", "unset OMP_NUM_THREADS, or run.num_threads=8"),
        (8, 8, 1, "8", "one rank", "run.num_threads=8"),
    ],
)
def test_threads(usable, torch_threads, num_threads, omp, said, fix):
    environ = {"OMP_NUM_THREADS": omp} if omp else {}
    found = limits.threads(usable, 64, torch_threads, num_threads, environ)
    assert (found.status, found.fix, found.needed) == (WARN if fix else OK, fix, False)
    assert found.found.startswith(f"{usable} of 64 cores may be used; ")
    assert found.found.endswith(said)


def test_memory(tmp_path: Path):
    assert limits.memory(16 * GIB, None).found == "16.0 GiB free"
    assert limits.memory(16 * GIB, 8 * GIB).found == "8.0 GiB free (16.0 GiB on the machine)"
    few = limits.memory(GIB, None)
    assert (few.status, few.fix) == (WARN, "end other programs; or lower train.batch_size")
    capped = limits.memory(16 * GIB, GIB // 4)
    assert (capped.status, capped.needed) == (MISSING, True)
    assert capped.fix == "ask for more: --mem of Slurm, --memory of Docker"
    assert limits.memory(None, None).status == WARN
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:    60 kB\n")
    assert limits.free_memory(file) == 60 * 1024
    assert limits.free_memory(tmp_path / "none") is None


def test_open_files(monkeypatch: pytest.MonkeyPatch):
    endless = resource.RLIM_INFINITY
    assert limits.open_files(1024, 4096).status == OK
    assert limits.open_files(endless, endless).found == "unlimited (at most unlimited)"
    most = {4096: 4096, 10**6: 65536, endless: 65536}
    for hard, allowed in most.items():
        found = limits.open_files(256, hard)
        assert (found.status, found.fix) == (WARN, f"ulimit -n {allowed}")
    assert limits.open_files(256, 512).fix == "ask the administrator for more"
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: (300, 300))
    assert limits.open_files().found == "300 (at most 300)"


def test_usable_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: set(range(6)))
    assert [limits.usable_cores(quota) for quota in (None, 64.0, 2.9, 0.5)] == [6, 6, 2, 1]


VERSION_2 = {
    "cpu.max": "max 100000",
    "job/cpu.max": "150000 100000",
    "job/step/cpu.max": "400000 100000",
    "job/memory.max": "1000",
    "job/memory.current": "700",
    "job/memory.stat": "anon 600\ninactive_file 100",
    "job/step/memory.max": "max",
    "job/step/memory.current": "700",
}
VERSION_1 = {
    "cpu,cpuacct/job/cpu.cfs_quota_us": "200000",
    "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "cpu,cpuacct/cpu.cfs_quota_us": "-1",
    "cpu,cpuacct/cpu.cfs_period_us": "100000",
    "memory/memory.limit_in_bytes": "9223372036854771712",
    "memory/memory.usage_in_bytes": "1",
    "memory/job/memory.limit_in_bytes": "5000",
    "memory/job/memory.usage_in_bytes": "6000",
}
IN_VERSION_1 = "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("membership", "files", "cores", "left"),
    [
        ("0::/job/step\n", VERSION_2, 1.5, 1000 - 700 + 100),
        (IN_VERSION_1, VERSION_1, 2.0, 0),
        ("0::/docker/1234\n", {"cpu.max": "50000 100000"}, 0.5, None),
        ("", {}, None, None),
    ],
    ids=["version 2", "version 1", "a container, which sees only the top", "none"],
)
def test_cgroups(tmp_path: Path, membership: str, files: dict[str, str], cores, left):
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    places = (tmp_path / "cgroup", tmp_path / "membership")
    assert (limits.cpu_quota(*places), limits.memory_left(*places)) == (cores, left)
