"""The model reads no future token, and the experiments compose."""

from __future__ import annotations

import torch
from myproject.gru import GRU

import forge


def test_the_model_reads_no_future_token() -> None:
    torch.manual_seed(0)
    model, tokens = GRU(vocab_size=50, width=8), torch.randint(50, (2, 12))
    changed = torch.cat([tokens[:, :6], (tokens[:, 6:] + 1) % 50], 1)
    logits, others = model(tokens), model(changed)
    torch.testing.assert_close(logits[:, :6], others[:, :6])
    assert not torch.allclose(logits[:, 6:], others[:, 6:])


def test_the_experiment_chooses_what_is_ours() -> None:
    config = forge.compose(["experiment=width"])
    assert config.model._target_ == "myproject.gru.GRU"
    assert "lowest_loss" in config.callbacks
