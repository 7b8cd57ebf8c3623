"""Options of training that no other test of this folder turns."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helpers import assert_bit_equal, weights

from forge.generate import main as generate
from forge.training.assemble import Parts, assemble
from forge.training.samples import opening

SAMPLES = (
    "eval.enabled=true",
    "eval.interval=100",
    "eval.steps=1",
    "eval.sample_prompts=[the sea,ship]",
)


def read_samples(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_activation_checkpointing_changes_no_bit(
    assembled: Callable[..., Parts], mode: str
) -> None:
    runs = [assembled(f"train.activation_checkpointing={chosen}") for chosen in ("none", mode)]
    for parts in runs:
        parts.loop.run()
    assert_bit_equal(weights(runs[1].model), weights(runs[0].model))


def test_a_loader_process_ends_for_its_rank_only(assembled: Callable[..., Parts]) -> None:
    import multiprocessing
    import os
    import signal
    import subprocess
    import sys

    parts = assembled("data.num_workers=1")
    next(parts.loop.loader)
    (process,) = multiprocessing.active_children()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        subprocess.run(
            [sys.executable, "-c", f"import os; os.kill({process.pid}, {int(number)})"], check=True
        )
    next(parts.loop.loader)
    assert process.is_alive()
    os.kill(process.pid or 0, signal.SIGTERM)
    process.join(5)
    assert process.exitcode == 0
    parts.loop.loader.close()


@pytest.mark.parametrize(("interval", "steps"), [(0, [5]), (2, [2, 4, 5]), (5, [5])])
def test_sample_interval_and_prompts(
    trained: Callable[..., Path], interval: int, steps: list[int]
) -> None:
    path = trained(
        *SAMPLES, "train.max_steps=5", f"eval.sample_interval={interval}", "eval.sample_tokens=3"
    )
    found = [(sample["step"], sample["prompt"]) for sample in read_samples(path)]
    assert found == [(step, prompt) for step in steps for prompt in ("the sea", "ship")]


def test_greedy_samples_are_those_of_the_model(trained: Callable[..., Path]) -> None:
    import torch

    from forge.training.restore import load_run

    path = trained(*SAMPLES, "eval.sample_temperature=0", "eval.sample_tokens=4")
    run = load_run(path)
    tokens = run.tokenizer.encode("ship")
    for _ in range(4):
        with torch.no_grad():
            tokens.append(int(run.model(torch.tensor([tokens]))[0, -1].argmax()))
    assert "ship" + read_samples(path)[1]["text"] == run.tokenizer.decode(tokens)


def test_a_prompt_that_cannot_fit_is_refused_before_training(
    assembled: Callable[..., Parts],
) -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"eval\.sample_prompts: a prompt has \d+ tokens, more than "
            r"model\.max_seq_len=\d+; shorten it"
        ),
    ):
        assembled("eval.enabled=true", f"eval.sample_prompts=[{'x' * 400}]")


def test_without_a_prompt_the_text_gives_one(
    trained: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same in each run; the command that the summary advises continues it."""
    said = []
    for _ in range(2):
        path = trained(
            "eval.enabled=true",
            "eval.steps=1",
            "eval.sample_tokens=3",
            "metrics.enable_console=true",
        )
        (sample,) = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
        said.append(sample["prompt"])
        prepared = assemble(path).prepared
        document = prepared.tokenizer.decode(prepared.val.read(0, 50).tolist())
        assert re.fullmatch(r"\d+( [a-z]+){4}", sample["prompt"])
        assert document.startswith(sample["prompt"])
        derived = {
            one["key"]: one["value"] for one in json.loads((path / "derived.json").read_text())
        }
        assert derived["eval.sample_prompts"] == [sample["prompt"]]
        advised = next(
            line for line in capsys.readouterr().out.splitlines() if line.startswith("  next ")
        )
        assert shlex.split(advised)[1:] == [
            "python",
            "-m",
            "forge.generate",
            str(path),
            "--prompt",
            sample["prompt"],
        ]
        assert generate(shlex.split(advised)[4:]) == 0
        assert capsys.readouterr().out.startswith(sample["prompt"])
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("text", "longest", "prompt"),
    [
        ("\n\n  \tTo be, or not  to be, that is\nthe question", 50, "To be, or not  to"),
        ("Αρχή\n", 50, "Αρχή"),
        ("Αρχή\n", 3, "Α"),
        ("word " + "x" * 99, 50, "word " + "x" * 35),
        ("中" * 60, 200, "中" * 40),
        ("cut 中\ufffd", 50, "cut 中"),
        (" \n\n", 50, ""),
        ("To be", 0, ""),
    ],
)
def test_the_opening_of_a_split(text: str, longest: int, prompt: str) -> None:
    """At most five words and 40 characters of one line, and no more tokens than may be: here its
    bytes are the tokens.
    """

    class Bytes:
        eos_id = 256

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode(errors="replace")

    class Store(list[int]):
        def read(self, start: int, stop: int) -> np.ndarray:
            return np.array(self[start:stop])

    store = Store([*text.encode(), 256])
    assert opening(store, Bytes(), longest) == prompt  # type: ignore[arg-type]
