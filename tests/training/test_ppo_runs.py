"""Runs with a value head: killed and gone on, exported, and begun from."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from run_helpers import assert_bit_equal, logged, step_of, stored
from safetensors.torch import load_file
from test_killed_rollouts import STEPS, run

import forge.export
from forge.generate import main as generate

PPO = [
    "objective.advantage=gae",
    "objective.kl_in=reward",
    "objective.vf_coef=0.5",
    "objective.lam=0.9",
    "rollout.num_generations=1",
]
NAME = "value_head.weight"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("run") / "undisturbed"
    assert run(path, "", *PPO) == 0
    return path


@pytest.mark.nightly
def test_a_killed_run_ends_with_the_same_bits(undisturbed: Path, tmp_path: Path) -> None:
    """Killed in the second update of a rollout: values of the first are read from its file."""
    path = tmp_path / "killed"
    assert run(path, "update", *PPO) == -signal.SIGKILL
    assert run(path, "", *PPO) == 0
    ours, theirs = (stored(step_of(p, STEPS)) for p in (path, undisturbed))
    assert theirs[f"model/{NAME}"].any()
    assert f"optimizer/{NAME}/exp_avg" in theirs
    assert_bit_equal(ours, theirs)
    for key in ("train/value_loss", "train/values/explained_variance"):
        assert logged(path, key) == logged(undisturbed, key)
        assert len(logged(path, key)) == 3


def test_the_head_is_in_no_export(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.safetensors"
    assert forge.export.main([str(undisturbed), str(file)]) == 0
    weights = stored(step_of(undisturbed, STEPS), "model/")
    assert load_file(file).keys() == weights.keys() - {NAME}
    folder = tmp_path / "hf"
    assert forge.export.main([str(undisturbed), str(folder), "--format", "hf"]) == 0
    assert not [name for name in load_file(folder / "model.safetensors") if "value" in name]
    assert generate([str(undisturbed), "--prompt", "1+1=", "--tokens", "2"]) == 0
    capsys.readouterr()


@pytest.mark.nightly
def test_a_run_begins_with_the_weights_and_a_new_head(undisturbed: Path, tmp_path: Path) -> None:
    """A run with a value head, and one without."""
    weights = stored(step_of(undisturbed, STEPS), "model/")
    further = [f"checkpoint.init_from={undisturbed}", "train.max_steps=2", "optimizer.lr=1e-12"]
    for name, options in {"ppo": PPO, "plain": []}.items():
        assert run(tmp_path / name, "", *options, *further) == 0
        begun = stored(step_of(tmp_path / name, 2), "model/")
        assert begun.keys() == (weights.keys() if options else weights.keys() - {NAME})
        output = "blocks.0.attention.wq.weight"
        torch.testing.assert_close(begun[output], weights[output], rtol=0, atol=1e-8)
        assert NAME not in begun or begun[NAME].abs().max() < 1e-8


@pytest.mark.nightly
def test_a_policy_with_adapters_trains_its_head_too(tmp_path: Path) -> None:
    """The base stays, and the head is trained and saved beside the adapters."""
    path = tmp_path / "lora"
    more = ["adapter=lora", "objective.reference=adapter", "train.max_steps=4"]
    assert run(path, "", *PPO, *more) == 0
    names = stored(step_of(path, 4), "model/")
    assert names[NAME].any()
    assert all(name == NAME or "lora" in name for name in names)
    lines = (path / "rollouts/000001.jsonl").read_text().split("\n")[1:-1]
    assert any(any(json.loads(line)["values"]) for line in lines)
    for form, merged in (("peft", []), ("hf", ["--merge"])):
        folder = tmp_path / form
        assert forge.export.main([str(path), str(folder), "--format", form, *merged]) == 0
        (file,) = folder.glob("*.safetensors")
        assert not [name for name in load_file(file) if "value" in name]
