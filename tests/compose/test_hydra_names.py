"""Hydra's names for sweepers and launchers stand for forge's, as typed and in files."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusing import resolved

from forge.config.hydra_names import translate
from forge.config.launch import Slurm, SubmititLocal
from forge.config.sweeper import Optuna


@pytest.mark.parametrize(
    ("hydras", "ours_"),
    [
        ("hydra/launcher=submitit_slurm", "launch=slurm"),
        ("+hydra/launcher=basic", "launch=local"),
        ("hydra/sweeper=optuna", "sweeper=optuna"),
        ("hydra.launcher.timeout_min=60", "launch.time=60"),
        ("+hydra.launcher.partition=gpu", "+launch.partition=gpu"),
        ("hydra.launcher.mem_gb=32", "launch.mem=32G"),
        ("hydra.launcher.additional_parameters.nice=5", "launch.sbatch.nice=5"),
        ("hydra.sweeper.n_trials=3", "sweeper.n_trials=3"),
        ("hydra.sweeper.params.optimizer.lr=1,2", "sweeper.params.optimizer.lr=1,2"),
        ("hydra.searchpath=[x]", "hydra.searchpath=[x]"),
        ("optimizer.lr=1", "optimizer.lr=1"),
    ],
)
def test_an_override(hydras: str, ours_: str) -> None:
    assert translate(hydras) == ours_


def test_an_experiment_that_hydra_would_take(write: Callable[[str, str], str]) -> None:
    defaults = ["override /hydra/launcher: submitit_slurm", "override /hydra/sweeper: basic"]
    text = "# @package _global_\ndefaults:\n" + "".join(f"  - {line}\n" for line in defaults)
    text += "hydra:\n  launcher:\n    timeout_min: 7\n  sweeper:\n    params:\n"
    folder = write("experiment/mine.yaml", text + "      optimizer.lr: 1e-3,3e-3\nseed: 5\n")
    config = resolved(["experiment=mine", "run.device=cpu"], config_dirs=[folder]).config
    assert isinstance(config.launch, Slurm)
    assert (config.launch.time, config.sweeper.params, config.seed) == (
        7,
        {"optimizer.lr": "1e-3,3e-3"},
        5,
    )


def test_on_the_command_line() -> None:
    config = resolved(
        ["hydra/launcher=submitit_local", "hydra.launcher.wait=true", "hydra/sweeper=optuna"]
    ).config
    assert isinstance(config.launch, SubmititLocal)
    assert config.launch.wait
    assert isinstance(config.sweeper, Optuna)
