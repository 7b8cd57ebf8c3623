"""`python -m forge.doctor`: what it prints here, exit codes, JSON, overrides, a broken torch or
Hydra; it leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forge.compose import composition
from forge.data.cache import cache_root
from forge.doctor import __main__ as doctor
from forge.doctor import accelerator
from forge.doctor import examine as examining
from forge.doctor.examine import Plan
from forge.doctor.finding import Finding, lacking, missing, ok, report, warn

CHECKS = [
    "Python", "torch", "CUDA", "NCCL", "gloo", "packages", "Slurm", "run.root", "cache", "temporary", "home", "locks",
    "/dev/shm", "threads", "memory", "open files", "clock", "git", "compiler", "W&B",
]  # fmt: skip
WELL = "a run on the CPU has all that it needs"


def shell(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge.doctor", *arguments]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environ}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environ, timeout=120
    )


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is well, and is not asked again by every test."""
    said = {
        "torch": {"version": "2.13.0", "cuda": None, "hip": None, "cpu": "AVX2", "threads": 1},
        "nvml": {"error": "none"},
    }
    said |= {"cuda": {"devices": []}, "distributed": {"gloo": True, "nccl": False}, "gloo": {}}
    monkeypatch.setattr(accelerator, "probe", lambda: said)


def test_this_machine(tmp_path: Path):
    start = time.perf_counter()
    done = shell(folder=tmp_path)
    assert time.perf_counter() - start < 60
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == WELL
    assert [line[:15].strip() for line in lines[:-2] if line[:15].strip()] == CHECKS
    assert all(line[15:24].strip() in ("ok", "warn", "missing", "") for line in lines[:-2])
    assert list(tmp_path.iterdir()) == []


def test_the_same_as_json(tmp_path: Path, no_probe: None, capsys: pytest.CaptureFixture[str]):
    arguments = [f"run.root={tmp_path}", f"data.cache_dir={tmp_path / 'cache'}"]
    assert doctor.main([*arguments, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is True
    assert [row["check"] for row in content["findings"]] == CHECKS
    assert doctor.main(arguments) == 0
    text = capsys.readouterr().out
    for row in content["findings"]:
        assert set(row) == {"check", "status", "found", "fix", "needed"}
        if row["check"] != "clock" and " GiB free" not in row["found"]:
            assert Finding(**row).render() in text
    assert list(tmp_path.iterdir()) == []


def test_every_finding_that_is_not_well_has_a_fix(no_probe: None):
    findings = examining.examine(
        Plan(
            runs=Path("/dev/null/x"),
            cache=Path("/dev/null/y"),
            num_workers=2,
            loader_bytes=2**50,
            num_threads=9999,
        )
    )
    assert {f.check for f in lacking(findings)} >= {"run.root", "cache", "locks"}
    assert {"/dev/shm", "threads"} <= {f.check for f in findings if f.status == "warn"}
    assert all(bool(f.fix) == (f.status != "ok") for f in findings)


def test_overrides_name_the_places(
    tmp_path: Path, no_probe: None, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    assert (
        doctor.main(
            [f"run.root={tmp_path}/file", f"data.cache_dir={tmp_path}/c", "run.num_threads=9999"]
        )
        == 1
    )
    text = capsys.readouterr().out
    assert (
        f"run.root       missing  {tmp_path}/file cannot be written: {tmp_path}/file is a file\n"
        in text
    )
    assert f"cache          ok       {tmp_path}/c (not there yet): " in text
    assert "-> choose another place: run.root=DIR\n" in text
    assert (
        "9999 threads a rank (run.num_threads=9999): more threads than cores wait for each other"
        in text
    )
    assert text.splitlines()[-1] == "missing, and every run needs it: run.root, locks"
    assert doctor.main([f"run.dir={tmp_path}/file/x"]) == 1
    assert "-> choose another place: run.dir=DIR\n" in capsys.readouterr().out


def test_a_wrong_override_is_refused(capsys: pytest.CaptureFixture[str]):
    assert doctor.main(["run.rot=/data", "data.num_workers=-1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("2 problems; nothing was started or written.\n")
    assert "did you mean run.root=/data?" in captured.err


def test_a_device_that_is_not_there_is_no_reason_to_refuse(
    no_probe: None, capsys: pytest.CaptureFixture[str]
):
    assert doctor.main(["run.device=cuda"]) == 0
    assert "no NVIDIA driver" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]):
    assert doctor.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "python -m forge.doctor" in text
    assert "--json" in text


def test_the_plan_of_a_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    typed = [
        "data.num_workers=3",
        "data.prefetch_factor=5",
        "train.batch_size=7",
        "train.seq_len=128",
        "run.num_threads=2",
    ]
    plan = doctor.plan(composition.config([*typed, 'data.cache_dir="~/c"']))
    assert plan.loader_bytes == 3 * 5 * (7 * 128 * 8 * 2)
    assert (plan.runs, plan.num_workers, plan.num_threads, plan.cache) == (
        tmp_path / "runs",
        3,
        2,
        Path("~/c").expanduser(),
    )
    monkeypatch.setenv("FORGE_CACHE", "here")
    assert doctor.plan(composition.config([])).cache == cache_root(None)
    monkeypatch.delenv("FORGE_CACHE")
    assert doctor.plan(composition.config([])).cache == cache_root(None)


def test_a_broken_torch_is_told_and_the_rest_is_still_looked_at(tmp_path: Path):
    (tmp_path / "path" / "torch").mkdir(parents=True)
    (tmp_path / "path" / "torch" / "__init__.py").write_text(
        "raise ImportError('libtorch.so: no such file')\n"
    )
    done = shell(folder=tmp_path, PYTHONPATH=str(tmp_path / "path"))
    assert (done.returncode, done.stderr) == (1, "")
    assert (
        "torch          missing  it cannot be imported: ImportError: libtorch.so: no such file\n"
        in done.stdout
    )
    assert done.stdout.splitlines()[-1] == "missing, and every run needs it: torch"
    assert "\nthreads        ok       " in done.stdout
    assert "torch cannot be asked" in done.stdout


def test_without_hydra(tmp_path: Path):
    (tmp_path / "path" / "hydra").mkdir(parents=True)
    (tmp_path / "path" / "hydra" / "__init__.py").write_text("raise ImportError('not here')\n")
    done = shell("--json", folder=tmp_path, PYTHONPATH=str(tmp_path / "path"))
    assert (done.returncode, done.stderr) == (1, "")
    content = json.loads(done.stdout)
    assert content["ok"] is False
    assert content["findings"][-1]["check"] == "config"
    assert content["findings"][-1]["found"] == "no config can be composed: ImportError: not here"
    assert [row["check"] for row in content["findings"][:-1]] == CHECKS


def test_exit_codes_follow_what_is_needed():
    fine = [ok("a", "x"), warn("b", "x", "y"), missing("c", "x", "y")]
    assert lacking(fine) == []
    assert report(fine).splitlines()[-1] == WELL
    assert (
        report([*fine, missing("d", "x", "y", needed=True)]).splitlines()[-1]
        == "missing, and every run needs it: d"
    )


def test_no_torch_in_its_own_process(tmp_path: Path):
    code = "import sys; from forge import doctor; doctor.main(['--json']); sys.exit('torch' in sys.modules or 'pynvml' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path).returncode
        == 0
    )
