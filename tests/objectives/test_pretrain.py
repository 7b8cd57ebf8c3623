"""The pretraining objective over a model with a hidden state, an output weight and logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.models.head import Head
from forge.objectives.pretrain import Pretrain

VOCAB, DIM, BATCH, SEQ = 19, 6, 3, 7
LOSS_FNS = ["cross_entropy", "chunked_cross_entropy"]


class TinyModel(nn.Module):
    """An embedding, a layer and a head; counts how often it is called as a whole."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB, DIM, dtype=torch.float64)
        self.layer = nn.Linear(DIM, DIM, dtype=torch.float64)
        self.head = nn.Linear(DIM, VOCAB, bias=False, dtype=torch.float64)
        self.calls = 0

    @property
    def output_weight(self) -> Tensor:
        return self.head.weight

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.layer(self.embedding(tokens)).tanh()

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.hidden(tokens))


def batch(masked: float = 0.3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCAB, (2, BATCH, SEQ), generator=generator)
    mask = torch.rand(BATCH, SEQ, generator=generator) < masked
    return {"tokens": tokens, "targets": targets.masked_fill(mask, -100)}


def expected_sums(model: TinyModel, data: dict[str, Tensor]) -> tuple[float, float]:
    """Sums of cross-entropy and squared log-partition in numpy, one token at a time."""
    with torch.no_grad():
        logits = model(data["tokens"]).numpy()
    ce = z_loss = 0.0
    for row, target in zip(
        logits.reshape(-1, VOCAB), data["targets"].flatten().tolist(), strict=True
    ):
        if target != -100:
            log_partition = np.log(np.exp(row).sum())
            ce += log_partition - row[target]
            z_loss += log_partition**2
    return ce, z_loss


@pytest.mark.parametrize("z_loss_weight", [0.0, 0.2])
@pytest.mark.parametrize("loss_fn", LOSS_FNS)
def test_losses_are_sums_over_unmasked_targets(loss_fn, z_loss_weight):
    model, data = TinyModel(), batch()
    ce, z_loss = expected_sums(model, data)
    section = PretrainConfig(loss_fn=loss_fn, z_loss_weight=z_loss_weight, ce_chunk_size=4)
    losses = Pretrain(section)(model, data)
    assert losses.total.item() == pytest.approx(ce + z_loss_weight * z_loss, rel=1e-12)
    assert losses.sums["ce"].item() == pytest.approx(ce, rel=1e-12)
    assert set(losses.sums) == ({"ce", "z_loss"} if z_loss_weight else {"ce"})
    if z_loss_weight:
        assert losses.sums["z_loss"].item() == pytest.approx(z_loss, rel=1e-12)
    assert not any(value.requires_grad for value in losses.sums.values())


@pytest.mark.parametrize(("loss_fn", "calls"), [("cross_entropy", 1), ("chunked_cross_entropy", 0)])
def test_chunked_never_asks_for_all_logits(monkeypatch, loss_fn, calls):
    """Neither calls the whole model: fully_shard would then gather weights again for backward."""
    asked, logits = [], Head.logits

    def ask(head: Head, hidden: Tensor) -> Tensor:
        asked.append(1)
        return logits(head, hidden)

    monkeypatch.setattr(Head, "logits", ask)
    model = TinyModel()
    Pretrain(PretrainConfig(loss_fn=loss_fn))(model, batch())
    assert (len(asked), model.calls) == (calls, 0)
