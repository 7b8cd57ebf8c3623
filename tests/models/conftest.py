"""A small decoder for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.init import init_weights


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_section() -> Callable[..., DecoderConfig]:
    def make(**options: Any) -> DecoderConfig:
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "ffn_hidden_dim": 48}
        return DecoderConfig(**(sizes | {"vocab_size": 61, "max_seq_len": 24} | options))

    return make


@pytest.fixture
def small_decoder(small_section: Callable[..., DecoderConfig]) -> Callable[..., Decoder]:
    def make(*, seed: int = 0, **options: Any) -> Decoder:
        model = Decoder(small_section(**({"init_std": 0.2} | options)))
        init_weights(model, seed)
        return model

    return make
