"""Runs on compared examples that are read while training: losses of prepared ones, on two ranks,
and killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_helpers import assert_bit_equal, logged, meta, step_of, stored
from test_streamed_runs import SMALL, WORDS, train

COMMON = ["data.hf_streaming=true", "train.seq_len=64", "model.max_seq_len=64"]
KINDS = {
    "dpo": ("chat_preference", ["objective=dpo", "objective.beta=0.5"]),
    "simpo": ("preference", ["objective=simpo"]),
    "kto": ("labelled", ["objective=kto", "objective.undesirable_weight=0.7"]),
}


def written(folder: Path, files: int = 6) -> Path:
    """Rows that all kinds read; some are longer than a row of a batch."""
    folder.mkdir()
    draw = random.Random(0)
    for number in range(files):
        rows = []
        for _ in range(120 // files):
            asked, good, bad = (
                " ".join(draw.choices(WORDS, k=draw.randint(1, n))) for n in (3, 13, 13)
            )
            sides = {"chosen": good, "rejected": bad, "completion": good, "label": len(good) > 40}
            rows.append(json.dumps({"prompt": asked} | sides))
        (folder / f"{number}.jsonl").write_text("\n".join(rows))
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("objective", list(KINDS))
def test_losses_are_those_of_prepared_rows(tmp_path: Path, objective: str) -> None:
    """To the bit with a reference of the same kind; without shuffling, in a second epoch too, on
    two ranks too.
    """
    kind, words = KINDS[objective]
    rows = written(tmp_path / "rows", files=1)
    common = [*COMMON, *words, "data.shuffle=false", "data.val_fraction=0", "data.stream_parts=1"]
    common += ["train.global_batch_size=8", "train.max_steps=30", "data.num_workers=1"]

    def losses(name: str, *more: str, ranks: int = 1) -> dict[int, float]:
        path = train(tmp_path / name, rows, *common, *more, ranks=ranks, kind=kind)
        return logged(path, "train/loss")

    same = [] if objective == "simpo" else ["objective.reference=copy"]
    prepared = losses("prepared", "data.hf_streaming=false", *same)
    assert len(set(prepared.values())) > 5
    assert losses("streamed") == prepared
    two = losses("two", "parallel.dp_shard=2", ranks=2)
    assert two == pytest.approx(prepared, rel=1e-5)
    if same:
        cached = losses("cached", "data.hf_streaming=false", "objective.reference=cached")
        assert cached == pytest.approx(prepared, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_a_run_that_is_killed_ends_with_the_same_bits(tmp_path: Path, objective: str) -> None:
    """Of the whole group, in the middle of training, with loader processes and a validation
    split; the reference is that of the first weights.
    """
    kind, words = KINDS[objective]
    rows = written(tmp_path / "rows")
    common = [*SMALL, *COMMON, *words, "train.max_steps=40", "data.num_workers=2"]
    common += ["checkpoint.interval=5", "eval.enabled=true", "eval.interval=20"]
    common += ["data.val_documents=6"]
    whole = train(tmp_path / "whole", rows, *common, kind=kind)
    place = tmp_path / "killed"
    words = [f"data={kind}", f"data.path={rows}", *common, f"run.dir={place}"]
    command = [sys.executable, "-m", "forge.train", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    end = time.monotonic() + 60
    while not step_of(place, 5).exists() and time.monotonic() < end:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (place / "result.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert again.returncode == 0, again.stderr
    assert "where it stopped in the data" in again.stdout + again.stderr
    assert_bit_equal(stored(step_of(place, 40)), stored(step_of(whole, 40)))
    for key in ("train/loss", "eval/loss", "eval/accuracy"):
        assert logged(place, key) == logged(whole, key)
    assert logged(whole, "eval/loss").keys() >= {20, 40}
    assert meta(step_of(place, 40))["loader"] == meta(step_of(whole, 40))["loader"]
