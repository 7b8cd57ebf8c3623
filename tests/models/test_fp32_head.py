"""Logits by a product in fp32, of hidden states and weights in 16 bits."""

from __future__ import annotations

import pytest
import torch

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.head import head_of
from forge.objectives.chunked_cross_entropy import chunked_cross_entropy

TOKENS = torch.arange(12).view(2, 6)


def decoder(fp32_head: bool) -> Decoder:
    torch.manual_seed(0)
    section = DecoderConfig(
        vocab_size=50, dim=16, n_layers=1, n_heads=2, logits_dot_in_fp32=fp32_head
    )
    return Decoder(section).to(torch.bfloat16)


def test_logits_are_not_rounded_to_16_bits() -> None:
    rounded, exact = decoder(False), decoder(True)
    hidden = rounded.hidden(TOKENS)
    product = hidden.double() @ rounded.output_weight.double().T
    assert rounded(TOKENS).dtype == torch.bfloat16
    logits = exact(TOKENS)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), product, rtol=1e-5, atol=1e-6)
    assert (rounded(TOKENS).double() - product).abs().max() > 1e-3
    logits.sum().backward()
    assert exact.output is not None
    assert exact.output.weight.grad is not None
    assert exact.output.weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("fp32_head", [False, True])
def test_chunked_cross_entropy_takes_the_same_logits(fp32_head) -> None:
    model = decoder(fp32_head)
    hidden, targets = model.hidden(TOKENS), TOKENS.roll(1)
    sums = chunked_cross_entropy(hidden, head_of(model), targets, chunk_size=5)
    whole = torch.nn.functional.cross_entropy(
        model(TOKENS).flatten(0, 1).float(), targets.flatten(), reduction="sum"
    )
    torch.testing.assert_close(sums[0].float(), whole, rtol=1e-6, atol=1e-5)
