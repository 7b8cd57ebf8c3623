"""What who comes from another framework types first."""

from __future__ import annotations

import pytest
from refusing import only, problems

from forge.compose.aliases import ALIASES, HINTS

SAMPLE = {
    "scheduler": "cosine",
    "model": "small",
    "model.dim": "64",
    "data=text data.path=": __file__,
    "precision.mixed_precision": "fp32",
    "train.global_batch_tokens": "1024",
}


def test_what_newcomers_type_is_answered_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")  # no login is needed
    typed = {word: SAMPLE.get(ours, "2") for word, ours in ALIASES.items()}
    assert len({*typed, *HINTS}) <= 60, "a few words that many type; the rest is in docs/options.md"
    for word, value in typed.items():
        fix = only([f"{word}={value}"], as_point=True).fix
        words = fix.partition("did you mean ")[2].partition("?")[0].split()
        assert words, word
        left = [p for p in problems(words, gpus=2, as_point=True) if not p.warning]
        assert left == [], word
