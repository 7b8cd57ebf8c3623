"""Models of transformers from a config.json, with drawn weights, and their logits."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from tiny_families import VOCAB

LENGTHS = (24, 100)
"""Below and above windows, chunks and the lengths before stretching."""


def drawn(model: Any, seed: int = 0) -> None:
    """Random weights, norms near but not at their first values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            values = 0.15 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + values if parameter.dim() == 1 else values)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))


def made(content: dict[str, Any]) -> Any:
    """transformers' model of a config.json."""
    config = transformers.AutoConfig.for_model(**_with_floats(copy.deepcopy(content)))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    drawn(model)
    return model


def _with_floats(content: Any) -> Any:
    """Decode the infinities of a config.json, as transformers does when it reads the file."""
    if isinstance(content, dict):
        if set(content) == {"__float__"}:
            return float(content["__float__"])
        return {key: _with_floats(value) for key, value in content.items()}
    return [_with_floats(value) for value in content] if isinstance(content, list) else content


def logits_of(model: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = []
    with torch.no_grad():
        for length in LENGTHS:
            tokens = torch.randint(VOCAB, (1, length), generator=generator)
            logits = model(tokens)
            found.append(getattr(logits, "logits", logits).double())
    return found


def difference(expected: list[torch.Tensor], logits: list[torch.Tensor]) -> float:
    pairs = zip(expected, logits, strict=True)
    return max(float((a - b).abs().max() / a.std()) for a, b in pairs)


def distance(expected: list[torch.Tensor], model: Any, bound: float) -> float:
    """The greatest difference of the model's logits from those expected, by their deviation.

    A choice between nearly equal scores, as an indexer's of tokens, falls otherwise by rounding.
    Where the difference is above the bound, positions whose own logits in fp32 are not those of
    fp64 are left out, a twentieth of all at most.
    """
    found = logits_of(model)
    off = difference(expected, found)
    if off <= bound:
        return off
    try:
        exact = logits_of(copy.deepcopy(model).double())
    except RuntimeError:  # a product that torch does not have in fp64
        return off
    pairs = zip(found, exact, strict=True)
    undecided = [(a - b).abs().amax(-1) > bound * b.std() for a, b in pairs]
    if torch.cat(undecided, dim=1).double().mean() > 0.05:
        return off
    kept = zip(expected, found, undecided, strict=True)
    return max(float((a - b)[~left_out].abs().max() / a.std()) for a, b, left_out in kept)
