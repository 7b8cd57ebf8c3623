"""Steps without a target have no loss, and that of the run is of steps that have one."""

from __future__ import annotations

import json
import logging
import random
import string
from typing import Any

import pytest
import torch
from optimizers import optimizer_of
from run_helpers import assert_bit_equal, read, weights
from test_guard import state_of
from test_spikes import spikes_of
from test_update import as_step, decoder, global_batches, make_update, scaler_of

from forge.config.optimizer import AdamW
from forge.rundir.files import read_rows
from forge.training.state import TrainState


def test_a_step_without_targets_has_no_loss_and_is_warned_of(trained, tmp_path, caplog):
    draw = random.Random(1)
    prompts = ["".join(draw.choices(string.ascii_letters, k=300 * (n % 4 > 0))) for n in range(80)]
    rows = [{"prompt": prompt, "response": "yes, that is it"} for prompt in prompts]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with caplog.at_level(logging.WARNING):
        path = trained(
            f"data=pairs data.path={file} data.num_workers=0 train.seq_len=16",
            "train.batch_size=1 train.max_steps=40 metrics.log_interval=1 eval=off",
            "checkpoint.interval=0 train.global_batch_size=1",
        )
    losses = [row["train/loss"] for row in read_rows(path / "metrics.jsonl")]
    assert len(losses) == 40
    assert None in losses, "the case has steps without targets"
    assert all(loss is None or 2 < loss < 8 for loss in losses)
    last = next(loss for loss in reversed(losses) if loss is not None)
    assert read(path / "result.json")["objective"] == {
        "name": "train/loss",
        "value": pytest.approx(last),
    }
    assert caplog.text.count("had no token to learn, and so no loss") == 1


@pytest.mark.parametrize("how", ["host", "found_inf", "in_backward", "fp16"])
def test_a_step_without_targets_moves_nothing(how):
    """Momenta and weight decay would move the weights, and the loss of 0 would be no spike."""
    model = decoder(torch.float32)
    optimizer = optimizer_of(AdamW(lr=1e-2, weight_decay=0.1, fused=True), model)
    options: dict[str, Any] = {"in_backward": True} if how == "in_backward" else {}
    options |= {"scaler": scaler_of("fp16")} if how == "fp16" else {}
    spikes, each = spikes_of(6, 6.0), 1 if how == "in_backward" else 2
    update = make_update(model, optimizer, spikes=spikes, **options)
    update.skips_on_device = how == "found_inf"
    state, skipped = TrainState(), []
    for number, (tokens, targets) in enumerate([*global_batches(masked=False)] * 2):
        empty = number % 4 == 2
        before = weights(model), state_of(optimizer), spikes.window.clone()
        output = update(as_step(tokens, targets.fill_(-100) if empty else targets, each), number)
        state.step += 1
        state.record(output)
        skipped.append(bool(output.skipped))
        after = weights(model), state_of(optimizer), spikes.window
        if empty:
            assert_bit_equal(after[0], before[0])
            assert_bit_equal(after[1], before[1])
            torch.testing.assert_close(after[2], before[2], rtol=0, atol=0, equal_nan=True)
        else:
            assert any((after[0][name] != old).any() for name, old in before[0].items())
    assert skipped == [number % 4 == 2 for number in range(8)]
    state.count_skipped()
    assert (state.skipped, state.bad_in_a_row, state.bad, state.spikes) == (2, 0, [], [])
