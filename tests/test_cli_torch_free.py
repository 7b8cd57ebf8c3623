"""The parent's side imports no torch: not to compose, check, explain, show or refuse; nor does
`import forge` import Hydra.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MADE = """
from forge.config import cli; from forge.launch import directory
c, r = cli.resolved(["run.dir=run"]); directory.create(r, overrides=c.overrides)
RESULT = '{"status": "finished", "reason": "end", "step": 1, "metrics": {}, "config": "config.yaml", "objective": {"value": 1}}'
"""
SWEPT = """
from pathlib import Path
from forge.launch.sweep.points import Preflight
from forge.launch.sweep.command import Command
flight = Preflight(["seed=1,2"])
with (command := Command(flight, flight.points())).open():
    for entry in command.entries:
        command.prepare(entry)
RESULT = '{"status": "finished", "reason": "end", "step": 1, "metrics": {}, "config": "config.yaml", "objective": {"value": 1}}'
for run in Path("sweeps/tiny/points").iterdir():
    (run / "result.json").write_text(RESULT)
"""
COMMANDS = {
    "compose": "import forge; forge.compose(['model=llama7b']).validate()",
    "check": "from forge import check; assert check.main(['model=llama3_70b']) == 0",
    "explain": "from forge import explain; assert explain.main(['scheduler.decay_steps']) == 0",
    "the config": "import forge.train; assert forge.train.main(['--cfg', 'job']) == 0",
    "help": "import forge.train; assert forge.train.main(['--help']) == 0",
    "a refusal": "import forge.train; assert forge.train.main(['optimizer.lrr=1']) == 2",
    "the worker's module": "import forge.worker",
    "a run that goes on": MADE
    + "from forge import resume; from forge.launch import local; local.start = lambda path, ranks, **_: 0; "
    "assert resume.main(['run', 'metrics.log_interval=3']) == 0",
    "a change that is refused": MADE
    + "from forge import resume; assert resume.main(['run', 'seed=7']) == 2",
    "a finished run": MADE
    + "from forge import worker; from pathlib import Path; Path('run/result.json').write_text(RESULT); "
    "assert worker.main(['run']) == 0",
    "a comparison that is refused": "from forge import parity; assert parity.main(['a=seed=1', 'b=']) == 2",
    "its checkpoints": MADE
    + "from forge import checkpoints; assert checkpoints.main(['run']) == 0",
    "a sweep that is refused": "import forge.train; assert forge.train.main(['-m', 'optimizer.lr=-1', 'seed=1,2']) == 2",
    "a sweep of done points": SWEPT
    + "import forge.train; assert forge.train.main(['-m', 'seed=1,2']) == 0",
    "the state of a sweep": SWEPT
    + "from forge import status; assert status.main(['sweeps/tiny']) == 0",
    "its end": SWEPT + "from forge import cancel; assert cancel.main(['sweeps/tiny']) == 0",
    "scripts for Slurm": "import forge.train; assert forge.train.main(['-m', 'seed=1,2', 'launch=slurm', 'launch.dry_run=true']) == 0",
    "a text of no run": "from forge import generate; assert generate.main(['nope']) == 2",
    "weights of no run": "from forge import export; assert export.main(['nope', 'file']) == 2",
    "weights over a file": "open('x', 'w'); from forge import export; assert export.main(['nope', 'x']) == 2",
    "the generated pages": "import forge.compose.docs",
}


def modules_after(code: str, folder: Path) -> set[str]:
    code += "\nimport sys; print('LOADED', *(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("code", COMMANDS.values(), ids=COMMANDS)
def test_torch_stays_out(code: str, tmp_path: Path):
    loaded = modules_after(code, tmp_path)
    assert "forge" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "datasets", "transformers", "tokenizers", "wandb"})


def test_import_forge_costs_nothing(tmp_path: Path):
    assert modules_after("import forge", tmp_path).isdisjoint(
        {"torch", "hydra", "omegaconf", "yaml"}
    )


def test_to_show_a_config_reads_no_metadata_of_packages(tmp_path: Path):
    """importlib.metadata, with the email that it brings, is a twentieth of the time."""
    assert "email" not in modules_after(COMMANDS["the config"], tmp_path)


def test_a_worker_needs_no_hydra(tmp_path: Path):
    code = """
from forge import compose
from forge.config import serialize
from pathlib import Path
serialize.save(compose(['model=tiny']).validate().config, Path('config.yaml'))
"""
    modules_after(code, tmp_path)
    loaded = modules_after(
        "from forge.config import serialize; from pathlib import Path; serialize.load(Path('config.yaml'), trust=())",
        tmp_path,
    )
    assert "hydra" not in loaded
