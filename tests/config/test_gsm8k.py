"""experiment=gsm8k_grpo on a folder and rows of the user's, as `forge.check` sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers.folders import write_folder

from forge.rewards.exact import Numeric


def test_gsm8k_grpo_on_a_folder_of_the_users(tmp_path: Path) -> None:
    write_folder(tmp_path)
    vocab = {"model": {"vocab": {"a": 0, "</s>": 1}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocab))
    rows = [{"question": "1+1?", "answer": "1+1=<<1+1=2>>2\n#### 2"}]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [
        "experiment=gsm8k_grpo",
        f"model.path={tmp_path}",
        f"data.path={tmp_path}/gsm8k.jsonl",
    ]
    command = [sys.executable, "-m", "forge.check", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "learnt nothing" not in ran.stdout


def test_its_reward_is_that_of_nanochat() -> None:
    reward = Numeric(needs_mark=True)
    texts = ["so #### 1,200", "1200", "#### 12", "#### 5 and #### 1200.0"]
    answers = ["... #### 1200"] * len(texts)
    assert reward(texts, answers) == [1.0, 0.0, 0.0, 1.0]
