"""Hydra's names for sweepers and launchers stand for forge's, as typed and in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.refusing import resolved

from forge.config.hydra_names import translate
from forge.config.launch import Slurm, SubmititLocal
from forge.config.sweeper import Optuna
from forge.rundir import saved_config


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
        ("data.hf_dataset_text_field=body", "data.text_field=body"),
        ("+eval.sets.x={hf_dataset_text_field: body}", "+eval.sets.x={text_field: body}"),
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


def test_an_option_of_a_former_name_keeps_its_value(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    """In files, of a set too, and in the config of a run that was made with it."""
    text = "# @package _global_\ndefaults:\n  - override /data: hf\ndata:\n  path: rows.jsonl\n"
    folder = write("experiment/mine.yaml", text + "  hf_dataset_text_field: body\n")
    file = tmp_path / "rows.jsonl"
    file.write_text('{"body": "a text"}\n')
    typed = ["experiment=mine", f"data.path={file}"]
    typed += [f"+eval.sets.other={{path: {file}, hf_dataset_text_field: title}}"]
    config = resolved([*typed, "run.device=cpu"], config_dirs=[folder]).config
    assert (config.data.text_field, config.eval.sets["other"]["text_field"]) == ("body", "title")
    saved_config.save_config(config, tmp_path / "config.yaml")
    ours = (tmp_path / "config.yaml").read_text()
    assert ours.count("text_field: ") == 2
    (tmp_path / "config.yaml").write_text(ours.replace("text_field: ", "hf_dataset_text_field: "))
    before = saved_config.load_config(tmp_path / "config.yaml", trust=())
    assert (before.data.text_field, before.eval.sets["other"]["text_field"]) == ("body", "title")
