"""The parent's side imports no torch, whatever it does; nor does `import forge` import Hydra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "datasets", "transformers", "tokenizers", "wandb"}
RUN = """
import json
from pathlib import Path
from forge import cancel, check, checkpoints, clean, cli, compare, explain, export, generate
from forge import prepare, resume, runs, status, train
from forge.new import __main__ as new
from forge.parity import __main__ as parity
from forge.rundir import directory
import forge, forge.worker, forge.compose.help

forge.compose(["model=llama7b"]).validate()
directory.create(cli.resolved(["run.dir=run"])[1], overrides=[])
"""
COMMANDS = (
    ("check", "model=small", 0),
    ("check", "model=llama3_70b", 2),
    ("explain", "scheduler.decay_steps", 0),
    ("train", "--cfg job", 0),
    ("train", "--help", 0),
    ("train", "optimizer.lrr=1", 2),
    ("train", "-m optimizer.lr=-1 seed=1,2", 2),
    ("train", "-m seed=1,2 launch=slurm launch.dry_run=true", 0),
    ("resume", "run seed=7", 2),
    ("checkpoints", "run", 0),
    ("status", "run", 0),
    ("runs", "run", 0),
    ("runs", "tag run paper", 0),
    ("clean", "run --failed", 0),
    ("compare", "run", 2),
    ("cancel", "run", 0),
    ("parity", "a=seed=1 b=", 2),
    ("generate", "nope", 2),
    ("export", "nope file", 2),
    ("prepare", "out data=nope", 2),
    ("new", "mine", 0),
    ("new", "conf", 2),
)
FINISHED = """
result = {"status": "finished", "reason": "end", "step": 1, "metrics": {},
          "config": "config.yaml", "objective": {"name": "eval/loss", "value": 1}}
Path("run", "result.json").write_text(json.dumps(result))
assert forge.worker.main(["run"]) == 0
"""


def modules_after(code: str, folder: Path) -> set[str]:
    code += "\nimport sys; print('LOADED', *(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_torch_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")  # so that no Slurm is asked
    calls = [
        f"assert {verb}.main({words.split()}) == {code}, {words!r}"
        for verb, words, code in COMMANDS
    ]
    loaded = modules_after("\n".join([RUN, *calls, FINISHED]), tmp_path)
    assert "forge" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_import_forge_costs_nothing(tmp_path: Path):
    loaded = modules_after("import forge", tmp_path)
    assert loaded.isdisjoint({"torch", "hydra", "omegaconf", "yaml"})
