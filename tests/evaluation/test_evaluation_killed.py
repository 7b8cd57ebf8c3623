"""kill -9 in the middle of an evaluation of 2,000 items: the same command resumes it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forge import evaluate
from forge.rundir import evaluations

ITEMS = 2_000
WORDS = ["the", "a", "of", "sea", "ship", "whale", "white", "captain"]


@pytest.mark.nightly
def test_two_thousand_items_survive_kill_9(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(2)
    rows = [
        {
            "prompt": " ".join(draw.choices(WORDS, k=draw.randint(3, 12))),
            "choices": draw.sample(WORDS, 4),
            "answer": draw.randrange(4),
        }
        for _ in range(ITEMS)
    ]
    items = tmp_path / "items.jsonl"
    items.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = [str(tiny_run), str(items), "eval.tasks_batch_tokens=256"]
    assert evaluate.main([*words, "--out", str(tmp_path / "whole")]) == 0
    whole = evaluations.item_rows(tmp_path / "whole", "items", 6)

    known = 0
    for _ in range(3):
        command = [sys.executable, "-m", "forge.evaluate", *words]
        running = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        before, end = known, time.monotonic() + 120
        while running.poll() is None and time.monotonic() < end:
            files = list((tiny_run / "eval" / "cache").glob("*.jsonl"))
            known = sum(len(file.read_text().splitlines()) for file in files)
            if known >= before + 1_000:
                break
            time.sleep(0.02)
        assert running.poll() is None, "it ended before it was killed"
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert 3_000 <= known < 4 * ITEMS

    capsys.readouterr()
    assert evaluate.main(words) == 0
    (cache,) = (tiny_run / "eval" / "cache").glob("*.jsonl")
    keys = [
        json.loads(line)["key"] for line in cache.read_text().splitlines() if line.endswith("}")
    ]
    assert len(keys) - len(set(keys)) <= 3 * 64, "what was known was scored again"
    mended = evaluations.item_rows(tiny_run, "items", 6)
    assert len(mended) == len(whole) == ITEMS
    for row, other in zip(mended, whole, strict=True):
        assert row["id"] == other["id"]
        for score, other_score in zip(row["scores"], other["scores"], strict=True):
            assert score == pytest.approx(other_score, rel=1e-6)
