"""Steps without a target have no loss, and that of the run is of steps that have one."""

from __future__ import annotations

import json
import logging
import random
import string

import pytest
from run_helpers import read

from forge.rundir.files import read_rows


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
