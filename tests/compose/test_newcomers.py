"""What who comes from another framework types first."""

from __future__ import annotations

import pytest
from refusing import only, problems

from forge.compose.aliases import ALIASES, HINTS

SAMPLE = {
    "scheduler": "cosine",
    "optimizer": "lion",
    "adapter=lora adapter.dropout=": "0.1",
    "adapter=lora adapter.target_modules=": "[wq,wv]",
    "optimizer=adamw optimizer.eps=": "1e-7",
    "model": "small",
    "model.dim": "64",
    "data=text data.path=": __file__,
    "precision.mixed_precision": "fp32",
    "train.global_batch_tokens": "1024",
}


def test_what_newcomers_type_is_answered_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")  # no login is needed
    typed = {word: SAMPLE.get(ours, "2") for word, ours in ALIASES.items()}
    assert len({*typed, *HINTS}) <= 130, "the words that many type; the rest is in docs/options.md"
    for word, value in typed.items():
        fix = only([f"{word}={value}"], as_point=True).fix
        words = fix.partition("did you mean ")[2].partition("?")[0].split()
        assert words, word
        left = [p for p in problems(words, gpus=2, as_point=True) if not p.warning]
        assert left == [], word


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("optimizer.name=adamw", "optimizer=adamw"),
        ("logger=wandb", "metrics.enable_wandb=true"),
        ("report_to=tensorboard", "metrics.enable_tensorboard=true"),
        ("ckpt_path=last.pt", "python -m forge.resume"),
        ("trainer.devices=2", "run.num_processes=2"),
        ("trainer.max_epochs=2", "train.max_epochs=2"),
        ("depth=20", "model.n_layers=N model.dim=64*N"),
        ("--depth=20", "model.n_layers=N model.dim=64*N"),
        ("--device-batch-size=4", "train.batch_size=4"),
        ("per_device_batch_size=4", "train.batch_size=4"),
        ("lora.rank=8", "adapter=lora adapter.rank=8"),
        ("lora_r=8", "adapter=lora adapter.rank=8"),
        ("lora_alpha=16", "adapter=lora adapter.alpha=16"),
        ("target_modules=[wq]", "adapter=lora adapter.target_modules=[wq]"),
        ("train.max_tokens=1000", "train.max_steps"),
        ("learning_rate=1e-3", "optimizer.lr=1e-3"),
        ("max_length=512", "train.seq_len=512"),
        ("num_train_epochs=3", "train.max_epochs=3"),
        ("logging_steps=5", "metrics.log_interval=5"),
        ("train_on_inputs=false", "data.train_on=responses"),
        ("beta=0.1", "objective=dpo"),
    ],
)
def test_a_key_of_another_tool_gets_ours_with_its_value(typed: str, suggested: str) -> None:
    assert suggested in only([typed], as_point=True).fix


def test_an_adapter_that_was_chosen_stays() -> None:
    fix = only(["adapter=qlora", "lora_r=8"], as_point=True).fix
    assert fix == "did you mean adapter.rank=8?"
