"""A run of an earlier version, whose config names modules that may have moved since, continues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import forge
from forge.config import schemas
from forge.config.field import variants_of
from forge.rundir import former_paths, saved_config

EARLIER = Path(__file__).parents[1] / "fixtures" / "run_43bd276"
"""Eight steps of 43bd276 by `data=synthetic tokenizer=bytes model.dim=16 model.n_layers=1
model.n_heads=2 train.seq_len=16 train.batch_size=2 train.max_steps=8 checkpoint.interval=4 eval=off
scheduler=wsd seed=3 metrics.log_interval=1`, without what was written after the checkpoint of step
4 but for the rows of metrics.jsonl.
"""


def test_a_run_of_an_earlier_version_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(EARLIER, run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    forge.resume(run)
    again = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert again[:4] == rows[:4]
    for row, expected in zip(again[4:], rows[4:], strict=True):  # by another processor perhaps
        assert row == pytest.approx(expected, rel=1e-5)
    saved = yaml.safe_load((run / "checkpoints/step_8/config.yaml").read_text())
    assert saved["model"]["_type_"] == "decoder"
    assert "_target_" not in saved["model"]


def test_each_schema_of_an_earlier_version_is_still_there() -> None:
    bases = (schemas.sections() | schemas.INNER).values()
    named = {schema.schema_name for base in bases for schema in variants_of(base)}
    rows = [line.split() for line in former_paths.SCHEMAS.strip().splitlines()]
    assert {name for _, name, *_ in rows} <= named


def test_a_config_of_an_earlier_version_is_read_with_the_targets_of_today() -> None:
    config = saved_config.load_config(EARLIER / "config.yaml", trust=())
    for section in vars(config).values():
        target = getattr(section, "_target_", None)
        assert target is None or section.has_own_target
