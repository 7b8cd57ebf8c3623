"""Schedules that a file names by `_target_`: torch's give the rates that torch itself would set."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers.refusing import SMALL, resolved
from torch.optim import lr_scheduler as torchs

from forge.config.problems import ConfigError
from forge.optim.own_schedule import build_schedule

STEPS, LR = 12, 0.25
Make = Callable[[str], Callable[[int], float]]


@pytest.fixture
def schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Builds what a file of the scheduler group has."""
    mine = ModuleType("mine18")

    class Stairs:
        def __init__(self, height: float, max_steps: int) -> None:
            self.height, self.max_steps = height, max_steps

        def __call__(self, step: int) -> float:
            return self.height * step / self.max_steps

    def lightning(optimizer: torch.optim.Optimizer, gamma: float) -> torchs.LRScheduler:
        return torchs.ExponentialLR(optimizer, gamma)

    mine.power = lambda step, exponent, total_steps: (1 - step / total_steps) ** exponent  # type: ignore[attr-defined]
    mine.negative, mine.number = lambda step: -1.0, lambda: 3  # type: ignore[attr-defined]
    mine.Stairs, mine.lightning = Stairs, lightning  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine18", mine)
    small = [word for word in SMALL if not word.startswith(("scheduler.", "train.max_steps"))]

    def make(text: str) -> Callable[[int], float]:
        file = tmp_path / "scheduler" / "mine.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        more = ["run.trust=[mine18.]", f"train.max_steps={STEPS}", f"optimizer.lr={LR}"]
        words = [*small, f"hydra.searchpath=[{tmp_path}]", "scheduler=mine", *more]
        config = resolved(words).config
        return build_schedule(config.scheduler, config)

    return make


def cosine(optimizer: torch.optim.Optimizer) -> torchs.LRScheduler:
    return torchs.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-3)


def one_cycle(optimizer: torch.optim.Optimizer) -> torchs.LRScheduler:
    return torchs.OneCycleLR(optimizer, 0.5, total_steps=STEPS, cycle_momentum=False)


def in_sequence(optimizer: torch.optim.Optimizer) -> torchs.LRScheduler:
    parts = [torchs.LinearLR(optimizer, 0.1, total_iters=4), torchs.StepLR(optimizer, 3)]
    return torchs.SequentialLR(optimizer, parts, milestones=[4])


OF_TORCH = {
    "CosineAnnealingLR\nT_max: ${train.max_steps}\neta_min: 1e-3": cosine,
    "OneCycleLR\nmax_lr: 0.5\ncycle_momentum: false": one_cycle,
    "SequentialLR\nmilestones: [4]\nschedulers:\n"
    "- {_target_: torch.optim.lr_scheduler.LinearLR, start_factor: 0.1, total_iters: 4}\n"
    "- {_target_: torch.optim.lr_scheduler.StepLR, step_size: 3}\n": in_sequence,
}


@pytest.mark.parametrize("text", OF_TORCH)
def test_of_torch(schedule: Make, text: str):
    factor = schedule(f"_target_: torch.optim.lr_scheduler.{text}")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=LR)
    theirs = OF_TORCH[text](optimizer)
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    last_first = {step: LR * factor(step) for step in reversed(range(STEPS))}
    assert [last_first[step] for step in range(STEPS)] == pytest.approx(expected, rel=1e-15)


def test_functions_and_classes_of_ones_own(schedule: Make):
    factor = schedule("_target_: mine18.power\nexponent: 2\n_partial_: true\n")
    assert factor(3) == (1 - 3 / STEPS) ** 2
    assert schedule("_target_: mine18.Stairs\nheight: 3\n")(4) == 3 * 4 / STEPS
    factor = schedule("_target_: mine18.lightning\ngamma: 0.5\n")
    assert [factor(2), factor(0)] == [0.25, 1]


REFUSED = {
    "torch.optim.lr_scheduler.ReduceLROnPlateau": "it follows a metric, and a schedule of forge is",
    "torch.optim.lr_scheduler.OneCycleLR\nmax_lr: 1": "it changes the momentum too, and a",
    "torch.optim.lr_scheduler.OneCycleLR\nmax_lr: 1\npct_start: 3": "it fails: ValueError: ",
    "mine18.negative": "its factor of the learning rate at step 0 is -1.0.",
    "mine18.number": "it gives a int, and no function of the step.",
    "torch.optim.lr_scheduler.ConstantLR\n_args_: [1, 2]": "ConstantLR is given optimizer twice.",
    "torch.optim.lr_scheduler.ChainedScheduler\nschedulers: "
    "[{_target_: torch.optim.lr_scheduler.StepLR}]": "StepLR also needs step_size.",
    "torch.optim.lr_scheduler.ChainedScheduler\nschedulers: "
    "[{_target_: torch.optim.lr_scheduler.StepLR, step_siz: 3}]": "StepLR does not take step_siz.",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_schedule_is_refused(schedule: Make, text: str):
    with pytest.raises(ConfigError) as refused:
        schedule(f"_target_: {text}\n")
    (found,) = refused.value.problems
    assert found.what.startswith(REFUSED[text])
    assert found.fix
    assert found.rule == "target"
