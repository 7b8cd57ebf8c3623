"""A tiny model of transformers' own class for every family, with random weights in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

VOCAB, LONGEST, WINDOW = 97, 128, 12
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 80}
SIZES |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"max_position_embeddings": LONGEST, "pad_token_id": 0}
SIZES |= {"bos_token_id": None, "eos_token_id": None}
DEFAULT = {"rope_type": "default", "rope_theta": 500.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 32}
Config = Callable[[], transformers.PreTrainedConfig]


def _of(name: str, **options: Any) -> Config:
    return lambda: getattr(transformers, name)(**(SIZES | options))


CASES: dict[str, Config] = {
    "llama": _of("LlamaConfig", rope_parameters=DEFAULT, tie_word_embeddings=False),
    "llama 3.1": _of("LlamaConfig", rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True),
    "llama 3.2": _of("LlamaConfig", rope_parameters=LLAMA3, head_dim=16, tie_word_embeddings=True),
}
"""By the name of a case; families have several where they have several shapes."""


def peer(case: str) -> Any:
    """The model of a case, eager, its norms near but not at their first values."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = CASES[case]()
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.15 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + drawn if parameter.dim() == 1 else drawn)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return model


def gradients_as_weights(model: nn.Module) -> None:
    """Put its gradients in the place of its weights, so that they are saved under its names."""
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
