"""A run that is killed in a rollout, in the rewards, or between two updates of a rollout ends with
the bits of one that is not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import assert_bit_equal, logged, step_of, stored

HERE = Path(__file__).parents[1]
STEPS = 8
# Two updates a rollout, and a checkpoint after each of them: half of them are in the middle of one.
OPTIONS = f"""
objective=dr_grpo data=prompts tokenizer=bytes model.dim=32 model.n_layers=2 model.n_heads=2
model.max_seq_len=32 train.seq_len=24 train.batch_size=4 train.global_batch_size=8
train.max_steps={STEPS} optimizer=adamw optimizer.lr=0.003 rollout.num_generations=4
rollout.max_new_tokens=10 rollout.batch_size=3 objective.num_iterations=2 objective.beta=0.05
objective.reference=ema objective.reference_interval=3 objective.reference_mix=0.25
+rewards.signs._target_=helpers.rollout_rewards.signs run.trust=[helpers.] checkpoint.interval=1
checkpoint.keep_last_n=8 metrics.log_interval=3 run.inline=true run.num_threads=1
""".split()
# Kills the process at call N of a function. In the second start nothing is killed.
KILLER = """
import functools, os, signal, sys
from forge.rollouts import slots
from forge.objectives import grpo
from forge.train import main
from helpers import rollout_rewards
owner, name, call = {
    "writing": (slots.Slots, "draw_next", 30),
    "rewards": (rollout_rewards, "signs", 3),
    "update": (grpo.GRPO, "__call__", 12),
    "last update": (grpo.GRPO, "__call__", 16),
    "": (None, "", 0),
}[sys.argv.pop(1)]
def killing(function, calls=[0]):
    @functools.wraps(function)
    def counted(*arguments, **keywords):
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)
    return counted
if owner is not None:
    setattr(owner, name, killing(getattr(owner, name)))
sys.exit(main(sys.argv[1:]))
"""


def run(path: Path, kill: str = "", *more: str) -> int:
    rows = path.parent / "rows.jsonl"
    if not rows.exists():
        lines = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(9)]
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = [*OPTIONS, f"data.path={rows}", f"run.dir={path}", *more]
    environment = os.environ | {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", KILLER, kill, *options]
    return subprocess.run(command, env=environment, capture_output=True, timeout=300).returncode


def rollouts(path: Path) -> dict[str, list[Any]]:
    """The completions of each rollout in the run directory."""
    files = sorted((path / "rollouts").glob("*.jsonl"))
    return {file.name: file.read_text().split("\n")[1:] for file in files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("run") / "undisturbed"
    assert run(path) == 0
    return path


KILLS = [
    pytest.param("update"),
    *(pytest.param(k, marks=pytest.mark.nightly) for k in ("writing", "rewards")),
]


@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_run_ends_with_the_same_bits(kill: str, undisturbed: Path, tmp_path: Path) -> None:
    path = tmp_path / "killed"
    assert run(path, kill) == -signal.SIGKILL
    step = max(int(p.name.removeprefix("step_")) for p in (path / "checkpoints").glob("step_*"))
    assert step % 2 == (kill == "update"), "update: killed between two updates of a rollout"
    assert 0 < step < STEPS
    assert run(path) == 0
    ours, theirs = (stored(step_of(p, STEPS)) for p in (path, undisturbed))
    assert_bit_equal(ours, theirs)
    assert rollouts(path) == rollouts(undisturbed)
    for key in ("train/reward", "train/kl", "train/completions/mean_length"):
        assert logged(path, key) == logged(undisturbed, key)
        assert len(logged(path, key)) == 3


def test_random_rewards_and_replies_are_read_again(tmp_path: Path) -> None:
    """A run killed in the second update of its last rollout resumes from what was written, even if
    its rewards and its environment are random: with the same bits at each try.
    """
    more = [
        "+rewards.dice._target_=helpers.rollout_rewards.dice",
        "+environment._target_=helpers.rollout_rewards.Capitals",
        "+environment.random=true",
        "+environment.max_turns=3",
    ]
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(first, "last update", *more) == -signal.SIGKILL
    written = rollouts(first)
    last = [json.loads(line) for line in written["000003.jsonl"] if line]
    assert any(0 in row["mask"] for row in last)
    assert len({row["rewards"]["dice"] for row in last}) == len(last)
    shutil.copytree(first, second)
    for path in (first, second):
        assert run(path, "", *more) == 0
        assert rollouts(path) == written
    assert_bit_equal(stored(step_of(first, STEPS)), stored(step_of(second, STEPS)))


def test_the_parts_of_a_rollout_have_their_own_seconds(undisturbed: Path) -> None:
    """Beside data_seconds, and as in the rollouts."""
    parts = ("writing", "rewards", "log_probs")
    logs = [logged(undisturbed, f"{name}_seconds", file="performance.jsonl") for name in parts]
    data = logged(undisturbed, "data_seconds", file="performance.jsonl")
    heads = [
        json.loads(file.read_text().split("\n")[0])["seconds"]
        for file in sorted((undisturbed / "rollouts").glob("*.jsonl"))
    ]
    for name, values in zip(parts, logs, strict=True):
        spans = [step - before for before, step in zip([0, *values], values, strict=False)]
        total = sum(span * value for span, value in zip(spans, values.values(), strict=True))
        assert total == pytest.approx(sum(head[name] for head in heads), rel=0.01)
    assert max(data.values()) < max(logs[0].values())


def test_the_reference_moves_by_its_share_at_its_interval(undisturbed: Path) -> None:
    """The reference in each checkpoint, against the weights of the same checkpoint."""
    names = "parameters/ReferenceAverage/"
    references, trained = (
        {step: stored(step_of(undisturbed, step), below) for step in range(1, STEPS + 1)}
        for below in (names, "model/")
    )
    for step in range(2, STEPS + 1):
        for name, before in references[step - 1].items():
            share = 0.25 if step % 3 == 0 else 0.0
            expected = before + share * (trained[step][name] - before)
            torch.testing.assert_close(references[step][name], expected, rtol=1e-6, atol=1e-7)
    name = "blocks.0.attention.wq.weight"
    assert not torch.equal(references[2][name], references[3][name])
