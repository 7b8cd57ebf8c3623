"""`python -m forge.doctor`: what it prints here, exit codes, JSON, overrides, a broken torch or
Hydra; it leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forge.compose import composition
from forge.data.tokens.cache import cache_root
from forge.doctor import __main__ as doctor
from forge.doctor import accelerator
from forge.doctor.__main__ import Plan
from forge.doctor.finding import Finding

CHECKS = (
    "Python torch CUDA NCCL gloo packages Slurm run.root cache temporary home locks /dev/shm "
    "threads memory git compiler W&B"
)
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
    torch = {"version": "2.13.0", "cuda": None, "hip": None, "cpu": "AVX2", "threads": 1}
    said = {"torch": torch, "nvml": {"error": "none"}, "cuda": {"devices": []}}
    said |= {"distributed": {"gloo": True, "nccl": False}, "gloo": {}}
    monkeypatch.setattr(accelerator, "probe", lambda: said)


def test_this_machine(tmp_path: Path):
    done = shell(folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, empty, last = done.stdout.splitlines()
    checks = [line[:15].strip() for line in lines]
    assert " ".join(filter(None, checks)) == CHECKS
    assert {line[15:24].strip() for line in lines} <= {"ok", "warn", "missing", ""}
    assert (empty, last) == ("", WELL)
    assert list(tmp_path.iterdir()) == []


def test_the_same_as_json(tmp_path: Path, no_probe: None, capsys: pytest.CaptureFixture[str]):
    arguments = [f"run.root={tmp_path}", f"data.cache_dir={tmp_path / 'cache'}"]
    assert doctor.main([*arguments, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is True
    assert " ".join(row["check"] for row in content["findings"]) == CHECKS
    assert doctor.main(arguments) == 0
    text = capsys.readouterr().out
    for row in content["findings"]:
        if " GiB free" not in row["found"]:
            assert Finding(**row).render() in text
    assert list(tmp_path.iterdir()) == []


def test_overrides_name_the_places(
    tmp_path: Path, no_probe: None, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    places = [f"run.root={tmp_path}/file", f"data.cache_dir={tmp_path}/c"]
    assert doctor.main([*places, "run.num_threads=9999"]) == 1
    text = capsys.readouterr().out
    why = f"{tmp_path}/file cannot be written: {tmp_path}/file: Not a directory"
    assert f"run.root       missing  {why}\n" in text
    assert "-> choose another place: run.root=DIR\n" in text
    assert f"cache          ok       {tmp_path}/c (not there yet): " in text
    assert "9999 threads a rank (run.num_threads=9999): more threads than cores" in text
    assert text.splitlines()[-1] == "missing, and every run needs it: run.root, locks"
    assert doctor.main([f"run.dir={tmp_path}/file/x"]) == 1
    assert "-> choose another place: run.dir=DIR\n" in capsys.readouterr().out


def test_a_wrong_override_is_refused(no_probe: None, capsys: pytest.CaptureFixture[str]):
    """A device that is not there is no reason to refuse: the report says it."""
    assert doctor.main(["run.rot=/data", "data.num_workers=-1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("2 problems; nothing was started or written.\n")
    assert "did you mean run.root=/data?" in err
    assert doctor.main(["run.device=cuda"]) == 0
    assert "no NVIDIA driver" in capsys.readouterr().out
    assert doctor.main(["--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_the_plan_of_a_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    data = ["data.num_workers=3", "data.prefetch_factor=5", 'data.cache_dir="~/c"']
    typed = [*data, "train.batch_size=7", "train.seq_len=128", "run.num_threads=2"]
    assert doctor.plan(composition.config(typed)) == Plan(
        runs=tmp_path / "runs",
        cache=Path("~/c").expanduser(),
        num_workers=3,
        loader_bytes=3 * 5 * (7 * 128 * 8 * 2),
        num_threads=2,
    )
    monkeypatch.setenv("FORGE_CACHE", "here")
    assert doctor.plan(composition.config([])).cache == cache_root(None) == tmp_path / "here"


def test_a_user_without_a_home(no_probe: None, monkeypatch: pytest.MonkeyPatch):
    """As a container has that is started with the number of a user it does not know."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("FORGE_CACHE")
    monkeypatch.delenv("WANDB_CONFIG_DIR")
    monkeypatch.delenv("NETRC")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    checks = {finding.check for finding in doctor.examine(doctor.plan(composition.config()))}
    assert "home" in checks


def broken(name: str, folder: Path, *arguments: str) -> str:
    """What is printed where a package cannot be imported."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise ImportError('not here')\n")
    done = shell(*arguments, folder=folder, PYTHONPATH=str(folder))
    assert (done.returncode, done.stderr) == (1, "")
    return done.stdout


def test_a_broken_torch_is_said_and_the_rest_is_still_examined(tmp_path: Path):
    said = broken("torch", tmp_path)
    assert "torch          missing  it cannot be imported: ImportError: not here\n" in said
    assert said.endswith("\nmissing, and every run needs it: torch\n")
    assert "\nthreads        ok       " in said


def test_without_hydra(tmp_path: Path):
    content = json.loads(broken("hydra", tmp_path, "--json"))
    assert content["ok"] is False
    *others, config = content["findings"]
    assert config["found"] == "no config can be composed: ImportError: not here"
    assert " ".join(row["check"] for row in others) == CHECKS
