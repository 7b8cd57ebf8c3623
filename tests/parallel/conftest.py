"""A small decoder, and a config that says how to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.init import init_weights


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """One thread, and no compiled code of an earlier test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_decoder() -> Callable[..., Decoder]:
    def make(**options: Any) -> Decoder:
        sizes = {"dim": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "ffn_hidden_dim": 48}
        others = {"vocab_size": 61, "max_seq_len": 24, "init_std": 0.2}
        model = Decoder(DecoderConfig(**(sizes | others | options)))
        init_weights(model, 0)
        return model

    return make


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def gradients(tokens: torch.Tensor) -> Callable[[torch.nn.Module], dict[str, torch.Tensor]]:
    def of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        model.zero_grad()
        logits = model(tokens[:, :-1]).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    return of
