"""Cores and memory within cgroups of both versions, as files in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.doctor import limits

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


def test_cores_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: set(range(6)))
    assert [limits.usable_cores(quota) for quota in (None, 64.0, 2.9, 0.5)] == [6, 6, 2, 1]
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:    60 kB\n")
    assert limits.free_memory(file) == 60 * 1024
    assert limits.free_memory(tmp_path / "none") is None
