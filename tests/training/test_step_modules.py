"""Modules of a model with `end_of_step` are asked once a step; what they report is the step's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_update import as_step, decoder, global_batches, make_update

from forge.models.contract import StepReport


class Probe(torch.nn.Module):
    """Counts the tokens that pass, and is told of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.scales, self.told = 0, [], []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.tokens += x.shape[0] * x.shape[1]
        return x

    def begin_step(self, scale: Any) -> None:
        self.tokens = 0
        self.scales.append(float(scale))

    def end_of_step(self, done: float, *, skipped: Any, total: Any) -> StepReport:
        self.told.append((done, bool(skipped)))
        passed = total(torch.tensor(float(self.tokens)))
        return StepReport({"probe/passed": passed}, {"probe/done": torch.tensor(done)})


@pytest.mark.parametrize("scaled", [False, True])
def test_it_is_told_of_each_step_and_reports(scaled: bool) -> None:
    model, probe = decoder(torch.float32), Probe()
    model.blocks["0"].feed_forward = torch.nn.Sequential(model.blocks["0"].feed_forward, probe)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = make_update(model, optimizer, scaler=scaler, max_steps=10)
    for number, (tokens, targets) in enumerate(global_batches(masked=True)):
        if number == 2:
            with torch.no_grad():
                model.output_weight[0] = torch.inf
        step = as_step(tokens, targets, 2)
        step = replace(step, n_tokens=step.n_tokens - number)  # it counts all
        output = update(step, number)
        share = output.n_targets / tokens.numel()
        assert output.sums["probe/passed"] == pytest.approx(tokens.numel() * share)
        assert output.means["probe/done"] == pytest.approx(number / 10)
    assert probe.told == [(0.0, False), (0.1, False), (0.2, True), (0.3, True)]
    scales = [64.0, 64.0, 64.0, 32.0] if scaled else [1.0] * 4  # halved after the skipped one
    assert probe.scales == pytest.approx([scale / tokens.numel() for scale in scales])
