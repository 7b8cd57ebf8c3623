"""Log-probabilities over the tokens that a cut left, against torch's own on masked logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forge.data import IGNORE_INDEX
from forge.models.head import Head
from forge.objectives.log_probs import log_probs_and_entropies


def written_out(
    hidden: Tensor, weight: Tensor, targets: Tensor, support: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T / temperature
    one_hot = torch.nn.functional.one_hot(support.clamp(min=0), len(weight))
    inside = (one_hot * (support >= 0)[..., None]).any(-2)
    distribution = torch.distributions.Categorical(logits=logits.masked_fill(~inside, -1e30))
    masked = targets == IGNORE_INDEX
    logps = distribution.log_prob(targets.masked_fill(masked, 0)).masked_fill(masked, 0)
    return logps, distribution.entropy().masked_fill(masked, 0)


@pytest.mark.parametrize("chunk_size", [0, 3])
def test_values_and_gradients(chunk_size: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    vocab, most = 13, 4
    hidden, weight = drawn(2, 5, 6).requires_grad_(), drawn(vocab, 6).requires_grad_()
    order = drawn(2, 5, vocab).argsort(-1) % vocab
    support, targets = order[..., :most].clone(), order[..., 1].clone()
    support[0, :, 2:] = -1
    targets[1, 3], support[1, 3] = IGNORE_INDEX, torch.tensor([0, -1, -1, -1])
    by_logp, by_entropy = drawn(2, 5), drawn(2, 5)
    results = []
    for read in (
        lambda: log_probs_and_entropies(
            hidden, Head(weight), targets, temperature=0.7, chunk_size=chunk_size, support=support
        ),
        lambda: written_out(hidden, weight, targets, support, 0.7),
    ):
        logps, entropies = read()
        loss = (logps * by_logp).sum() + (entropies * by_entropy).sum()
        results.append((logps, entropies, *torch.autograd.grad(loss, (hidden, weight))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
