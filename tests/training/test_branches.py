"""Decays at several horizons from one run of a constant learning rate."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.refusing import problems
from helpers.tiny import TWO_LAYERS
from run_helpers import assert_bit_equal, logged, meta, step_of, stored

from forge import worker
from forge.rundir.files import read_rows

TRUNK = "scheduler=constant scheduler.warmup_steps=2 train.max_steps=12 checkpoint.steps=[4,8] "
TRUNK += "checkpoint.interval=0 checkpoint.keep_last_n=0"
WSD = "scheduler=wsd scheduler.warmup_steps=2 scheduler.wsd_decay_type=sqrt"
END = "checkpoint.interval=0"


@pytest.fixture
def trunk(trained) -> Path:
    return trained(TRUNK)


def test_a_branch_equals_a_whole_run_of_its_schedule(trained, trunk: Path):
    for horizon, first in ((5, 4), (10, 8), (15, 12)):
        length = f"train.max_steps={horizon}"
        whole = trained(WSD, END, length)
        branch = trained(WSD, END, length, f"checkpoint.branch_of={trunk}")
        assert logged(branch, "lr").keys() == {*range(first + 1, horizon + 1)}
        rates = logged(whole, "lr")
        assert rates[first] == rates[3] > rates[first + 1] > rates[horizon] or horizon == 5
        rows = [row for row in read_rows(whole / "metrics.jsonl") if row["step"] > first]
        assert list(read_rows(branch / "metrics.jsonl")) == rows != []
        ours, theirs = (step_of(path, horizon) for path in (branch, whole))
        assert any(name.startswith("optimizer/") for name in stored(ours))
        assert_bit_equal(stored(ours), stored(theirs))
        assert meta(ours) == meta(theirs)


def test_a_killed_branch_goes_on_from_its_own_checkpoint(trained, trunk: Path):
    """Also when the trunk is gone."""
    often = f"{WSD} train.max_steps=15 scheduler.decay_steps=7 checkpoint.interval=3 "
    branch = trained(often + "checkpoint.keep_last_n=0", f"checkpoint.branch_of={trunk}")
    ended, rows = stored(step_of(branch, 15)), list(read_rows(branch / "metrics.jsonl"))
    (branch / "result.json").unlink()
    shutil.rmtree(step_of(branch, 15))
    shutil.rmtree(trunk)
    assert worker.main([str(branch)]) == 0
    assert_bit_equal(stored(step_of(branch, 15)), ended)
    assert list(read_rows(branch / "metrics.jsonl")) == rows
    assert [row["step"] for row in rows] == [*range(9, 16)]


def refused(trunk: Path, text: Path, *words: str) -> dict[str, tuple[str, str]]:
    data = ["data=text", f"data.path={text}", f"checkpoint.branch_of={trunk}"]
    split = [word for text in words for word in text.split()]
    return {
        problem.rule: (problem.what, problem.fix)
        for problem in problems([*TWO_LAYERS, *data, *split])
        if not problem.warning
    }


def test_what_is_no_branch_is_refused(trunk: Path, text_file: Path, tmp_path: Path):
    assert refused(trunk, text_file, WSD, "train.max_steps=10") == {}
    what, fix = refused(trunk, text_file, WSD, "train.max_steps=11")["checkpoint.branch_of"]
    assert what.endswith("no checkpoint of step 9, where the decay begins; it has steps 4, 8, 12.")
    assert fix == "scheduler.decay_steps=3 or scheduler.decay_steps=7"
    for hint in fix.split(" or "):
        assert refused(trunk, text_file, WSD, "train.max_steps=11", hint) == {}
    other = {
        "scheduler=cosine": "the decay of a branch is that of scheduler=wsd.",
        f"{WSD} optimizer.lr=0.02": "has optimizer.lr=0.01; here it is 0.02.",
        f"{WSD} train.global_batch_size=8": "has train.global_batch_tokens=64; here it is 128.",
        f"{WSD} scheduler.warmup_steps=3": "has scheduler.warmup_steps=2; here it is 3.",
        f"{WSD} optimizer.weight_decay_schedule=cosine": "weight decay that falls over the run",
        f"{WSD} checkpoint.branch_of={tmp_path}/none": "is no run directory.",
    }
    for words, message in other.items():
        what, _ = refused(trunk, text_file, "train.max_steps=10", words)["checkpoint.branch_of"]
        assert message in what, (words, what)
