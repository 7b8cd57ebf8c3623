"""This machine, and others as files: torch's probe, programs that are asked, packages, cgroups."""

from __future__ import annotations

import sys
import time
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest
import torch

from forge.doctor import accelerator, limits, places, software
from forge.doctor.finding import MISSING, OK, WARN, Answer, run_program

ROOT = Path(__file__).resolve().parents[2]
STOPPED = "the process that imports torch came to a stop while"
BROKEN = {
    "raise ImportError('no libcudart')": "it cannot be imported: ImportError: no libcudart",
    "import sys; sys.exit('no')": "it cannot be imported: SystemExit: no",
    "import os; os.write(2, b'bad'); os.abort()": f"{STOPPED} importing torch: ended with -6: bad.",
    "import time; print('x', flush=True); time.sleep(60)": f"{STOPPED} importing torch: no answer "
    "in 3 s.",
}


def test_the_probe_of_this_machine():
    said = accelerator.probe()
    assert "end" not in said
    assert (said["torch"]["version"], said["gloo"]) == (torch.__version__, {})
    assert said["torch"]["cuda"] == torch.version.cuda
    assert len(said["cuda"]["devices"]) == torch.cuda.device_count()
    assert accelerator.torch(said).status == OK


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_torch(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    report = accelerator.probe(seconds=3 if "sleep" in text else 60)
    found, _, nccl, gloo = accelerator.findings(report)
    assert (found.status, found.needed, found.found) == (MISSING, True, BROKEN[text])
    assert f"pip install 'torch<2.14,>=2.11' in the environment of {sys.executable}" in found.fix
    assert (nccl.status, gloo.status) == (MISSING, MISSING)


def python(code: str, seconds: float = 20) -> Answer | None:
    return run_program([sys.executable, "-c", code], seconds=seconds)


def test_what_a_program_says():
    """Also more than a pipe holds, of one that crashes, and of one that is not there."""
    answer = python("import os, sys; sys.stderr.write('e\\n' * 99_999); os.kill(os.getpid(), 11)")
    assert answer == Answer(code=-11, out="", err="e\n" * 99_999)
    assert answer.last_line == "e"
    assert run_program(["/no/such/program"], seconds=1) is None


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("import time; print('before', flush=True); time.sleep(60)", "before\n"),
        ("import os, time; os.close(1); os.close(2); time.sleep(60)", ""),
        ("import subprocess; subprocess.run(['sleep', '60'])", ""),
    ],
)
def test_a_program_that_hangs(code: str, out: str):
    start = time.monotonic()
    assert python(code, seconds=1) == Answer(code=None, out=out, err="")
    assert time.monotonic() - start < 10


def test_versions():
    """A pre-release, and a build for CUDA, count as the release."""
    outside = [software.outside(v, "<2.14,>=2.11") for v in ("2.13.0a0+git", "2.14.0", "2.10.9")]
    assert [*outside, software.outside("0.0.1", "")] == [False, True, True, False]


def test_requirements_are_those_of_setup_cfg():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")[1:]
    wanted = {name: set(rest.split(",")) for name, _, rest in (x.partition(" ") for x in lines)}
    found = {name: set(versions.split(",")) for name, versions in software.requirements().items()}
    assert found == wanted
    assert set(software.OPTIONAL) < set(wanted)
    (well,) = software.packages()
    assert (well.status, well.found.split()[0]) == (OK, str(len(wanted) - 1))


PACKAGES = """\
packages       ok       1 of 4 that forge requires are there, in versions it takes
numpy          missing  9.9; forge needs <2
                        -> pip install 'numpy<2'
rich           missing  not installed
                        -> pip install 'rich'
wandb          missing  not installed
                        -> pip install 'wandb'; only needed for metrics.enable_wandb=true"""


def test_packages(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        if name in ("rich", "wandb", software.DISTRIBUTION):
            raise metadata.PackageNotFoundError(name)
        return "9.9"

    required = ["torch>=2", "numpy<2", "rich", "wandb", "PyYAML>=6", "docs; extra == 'docs'"]
    monkeypatch.setattr(software.metadata, "requires", lambda _: required)
    monkeypatch.setattr(software.metadata, "version", version)
    found = software.packages()
    assert "\n".join(one.render() for one in found) == PACKAGES
    assert [one.needed for one in found] == [False, True, True, False]
    monkeypatch.setattr(software.metadata, "requires", version)
    (found,) = software.packages()
    assert (found.status, found.fix) == (WARN, "pip install -e . in a checkout")


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
    found = (tmp_path / "cgroup", tmp_path / "membership")
    assert (limits.cpu_quota(*found), limits.memory_left(*found)) == (cores, left)


def test_cores_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: set(range(6)))
    assert [limits.usable_cores(quota) for quota in (None, 64.0, 2.9, 0.5)] == [6, 6, 2, 1]
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:    60 kB\n")
    assert limits.free_memory(file) == 60 * 1024
    assert limits.free_memory(tmp_path / "none") is None


def test_file_systems(tmp_path: Path):
    mounts = tmp_path / "mounts"
    rows = (
        "/dev/vda / ext4 rw 0 0",
        "srv:/x /data nfs4 rw,local_lock=all 0 0",
        "srv:/y /data/a\\040b lustre rw",
    )
    mounts.write_text("\n".join(rows))
    folders = ("/data/runs", "/data/a b/x", "/database")
    found = [places.mount(Path(folder), mounts) for folder in folders]
    assert found == [("nfs4", ["rw", "local_lock=all"]), ("lustre", ["rw"]), ("ext4", ["rw"])]
    assert places.mount(Path("/"), tmp_path / "none")[0] == "a file system of unknown type"


def test_a_lock_that_other_hosts_do_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for options, status in (("rw,local_lock=all", "warn"), ("rw,flock", "ok")):
        monkeypatch.setattr(places, "mount", lambda _, o=options: ("nfs4", o.split(",")))
        assert places.locks(tmp_path).status == status
    monkeypatch.setattr(places, "mount", lambda _: ("lustre", ["localflock"]))
    said = f"{tmp_path} is lustre, mounted with localflock: other hosts do not see a lock"
    assert places.locks(tmp_path).found == said
