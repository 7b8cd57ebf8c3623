"""A reward model: trained from preferences, and used as a reward, as a run and as a folder."""

from __future__ import annotations

import json

import pytest
from run_helpers import logged

from forge import export
from forge.rewards import Scorer


def test_a_reward_model_prefers_what_it_was_taught_to(trained, tmp_path) -> None:
    rows = [
        {"prompt": f"say {n}: ", "chosen": f"{n} sea whale", "rejected": f"{n} man captain"}
        for n in range(60)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = f"data=preference data.path={file}"
    run = trained(f"objective=reward_model {data} train.seq_len=32 train.max_steps=25")
    losses, accuracy = (logged(run, f"train/{name}") for name in ("loss", "accuracy"))
    assert losses[25] < 0.3 < 0.5 < losses[1]
    assert accuracy[25] == 1.0

    folder = tmp_path / "folder"
    options = ["--format", "hf", "--dtype", "float32"]
    assert export.main([str(run), str(folder), *options]) == 0
    target = "forge.training.learned_reward.LearnedReward"
    entries = {
        name: {"_target_": target, "path": str(place), "batch_size": 3}
        for name, place in (("run", run), ("folder", folder))
    }
    prompts = ["say 7: "] * 4
    texts = ["7 sea whale", "7 man captain", "8 sea whale", "8 man captain"]
    scores = Scorer(entries).score(prompts, texts, [[0]] * 4, {})
    run_scores, folder_scores = (scores.by_name[name] for name in ("run", "folder"))
    assert run_scores == pytest.approx(folder_scores, rel=1e-4)
    good, bad, other_good, other_bad = (score or 0.0 for score in run_scores)
    assert good - bad > 1 < other_good - other_bad
