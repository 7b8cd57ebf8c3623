"""Options of nanochat are answered with lines that compose, with its shares of a rate."""

from __future__ import annotations

import re

import pytest
from helpers.refusing import problems, resolved

SCHEDULED = ["train.max_steps=1000"]
LINES = {
    "embedding-lr": ("0.3", {"groups.embedding.lr": 0.3, "groups.value_embedding.lr": 0.15}),
    "unembedding-lr": ("0.008", {"groups.head.lr": 0.008}),
    "matrix-lr": ("0.02", {"lr": 0.02}),
    "scalar-lr": ("0.5", {"groups.x0_scalar.lr": 0.5, "groups.residual_scalar.lr": 0.005}),
    "weight-decay": ("0.28", {"weight_decay": 0.28}),
    "warmdown-ratio": ("0.6", {"scheduler.decay_ratio": 0.6}),
    "final-lr-frac": ("0.05", {"scheduler.min_lr_ratio": 0.05}),
    "warmup-steps": ("40", {"scheduler.warmup_steps": 40}),
}


@pytest.mark.parametrize("preset", [[], ["optimizer=nanochat", "scheduler=nanochat"]])
@pytest.mark.parametrize("word", LINES)
def test_a_word_is_answered_with_a_line_that_composes(word, preset):
    value, expected = LINES[word]
    (problem,) = problems([*preset, f"--{word}={value}"])
    meant = re.fullmatch(r"did you mean (.*)\?", problem.fix)
    assert meant, problem.fix
    line = meant[1].split()
    assert not preset or not [text for text in line if text in preset]
    config = resolved([*SCHEDULED, *preset, *line], as_point=True).config
    for key, number in expected.items():
        node = config if key.startswith("scheduler") else config.optimizer
        for part in key.split("."):
            node = node[part] if isinstance(node, dict) else getattr(node, part)
        assert node == pytest.approx(number), key
