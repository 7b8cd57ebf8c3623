"""Steps without a target have no loss, and that of the run is of steps that have one."""

from __future__ import annotations

import json
import logging
import random
import re
import string
from typing import Any

import numpy as np
import pytest
import torch
from helpers.optimizers import optimizer_of
from run_helpers import assert_bit_equal, read, weights
from test_guard import state_of
from test_spikes import spikes_of
from test_update import as_step, decoder, global_batches, make_update, scaler_of

from forge.config.optimizers.adam import AdamW
from forge.data.batches.mixture import Mixture
from forge.data.batches.packing import Plan
from forge.data.batches.targets import Empty, without_targets
from forge.data.tokens.store import MappedStore
from forge.rundir.files import read_rows
from forge.training.loop import TrainState


def test_a_step_without_targets_has_no_loss_and_is_warned_of(trained, tmp_path, caplog):
    draw = random.Random(1)
    prompts = ["".join(draw.choices(string.ascii_letters, k=300 * (n % 4 > 0))) for n in range(80)]
    rows = [{"prompt": prompt, "response": "yes, that is it"} for prompt in prompts]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with caplog.at_level(logging.WARNING):
        path = trained(
            f"data=pairs data.path={file} data.num_workers=0 train.seq_len=16 data.packing="
            "concat_then_split data.pack_sequences=false data.too_long=split",
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
    share = re.search(r"of the [\d,]+ sequences have no token to learn \((.*)%\)", caplog.text)
    assert share is not None
    assert 84 < float(share[1]) < 96  # 40 to 160 windows of some 1,000 have one of 80 responses


@pytest.mark.parametrize(("long", "warns"), [(30, True), (10, False)])
def test_pairs_that_are_left_out_are_said_before_the_run(assembled, tmp_path, caplog, long, warns):
    """Of which the prompt alone is longer than a sequence."""
    draw = random.Random(1)
    sizes = [300 if n < long else 9 for n in range(40)]
    prompts = ["".join(draw.choices(string.ascii_letters, k=size)) for size in sizes]
    rows = [{"prompt": prompt, "response": "yes"} for prompt in prompts]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with caplog.at_level(logging.INFO):
        loop = assembled(
            f"data=pairs data.path={file} train.seq_len=32 data.num_workers=0 eval=off",
            "data.val_fraction=0 train.batch_size=1 train.global_batch_size=1",
        )
    assert all(next(loop.loader).n_targets > 0 for _ in range(20)), "as of data=chat"
    said = f"{long} documents longer than train.seq_len are left out   (data.too_long=truncate)"
    assert said in caplog.text
    assert ("75.0% of the documents are left out: they are longer" in caplog.text) is warns


class Store(MappedStore):
    @property
    def fingerprint(self) -> str:
        return ""


def test_a_share_is_of_sequences_and_of_pieces_with_a_token_before_a_target():
    """By hand: marks of 4 windows of 3, of which the second has none but its first token."""
    marks = np.array([0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0], np.uint8)
    store = Store([np.arange(13)])
    store.counted = Store([marks])
    (found,) = without_targets(Mixture.of(store), 3)
    assert found == Empty("", 2, 4, 4)
    assert found.said() == "2 of the 4 sequences have no token to learn (50.0%)"
    pieces = np.array([[0, 2], [3, 5], [6, 8], [8, 13]])
    plan = Plan(pieces=pieces, begins=np.array([0, 2, 3, 4]))
    (found,) = without_targets(Mixture(stores={"a": store}, plans={"a": plan}), 3)
    assert found.said() == "2 of the 3, of a, sequences have no token to learn (66.7%)"


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
