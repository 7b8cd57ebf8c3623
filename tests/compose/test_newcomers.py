"""What who comes from another framework types first."""

from __future__ import annotations

import pytest
from refusing import only, problems

from forge.compose.aliases import ALIASES, COMPUTED

SAMPLE = {
    "optimizer": "adamw",
    "scheduler": "cosine",
    "model": "small",
    "model.dim": "64",
    "data=text data.path=": __file__,
    "precision.mixed_precision": "fp32",
}


@pytest.mark.parametrize("word", [*ALIASES, *COMPUTED])
def test_what_newcomers_type_is_answered_with_what_works(
    word: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")  # no login is needed
    value = "0.001" if word in COMPUTED else SAMPLE.get(ALIASES[word], "2")
    words = only([f"{word}={value}"]).fix.partition("did you mean ")[2].partition("?")[0].split()
    assert words
    assert [p for p in problems(words, gpus=2, as_point=True) if not p.warning] == []


def test_advice_is_on_the_values_that_the_whole_line_sets():
    assert "warmup_steps=50?" in only(["warmup_ratio=0.1", "train.max_steps=500"]).fix
    assert (
        only(["train.max_steps=soon", "train.max_steps=77"]).fix == "for example train.max_steps=77"
    )
    assert (
        "warmup_steps=50?"
        in only(["scheduler.warmup_ratio=0.1", "train.max_steps=500"], as_point=True).fix
    )
