"""Vectors that scale features, against PEFT's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.refusing import SMALL, resolved
from torch import Tensor, nn

from forge.adapters.adapter import adapters_off
from forge.config.adapters.adapter import adapter_prefix, is_added
from forge.models.plain import make_model
from forge.optim.build import build_optimizer
from forge.parallel.ranks import Ranks
from forge.training.models import build_model

TOKENS = torch.arange(48).view(2, 24) * 7 % 300
WORDS = "adapter=ia3 model.bias=true optimizer=adamw optimizer.lr=1e-2 optimizer.weight_decay=0"
WORDS += " optimizer.betas=[0.9,0.99] optimizer.eps=1e-8 run.device=cpu"


def losses(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    """Of ten steps."""
    made = []
    for _ in range(10):
        optimizer.zero_grad()
        logits: Tensor = model(TOKENS)[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        made.append(loss.item())
    return made


@pytest.mark.parametrize("more", ["", "adapter.target_modules=[attention,w_up,w_down]"])
def test_ten_losses_and_logits_are_those_of_peft(more: str) -> None:
    from peft import IA3Config, get_peft_model

    config: Any = resolved([*SMALL, *WORDS.split(), *more.split()]).config
    model: Any = build_model(config, torch.device("cpu"), Ranks(), torch.float64)
    plain: Any = make_model(config.model).double()
    plain.load_state_dict({n: v for n, v in model.state_dict().items() if not is_added(n)})
    with torch.no_grad():
        expected = plain(TOKENS)
    names = [adapter_prefix(one) for one in config.model.tensors() if config.adapter.has(one)]
    inputs = [name for name in names if name.endswith("w_down")]
    options = IA3Config(target_modules=names, feedforward_modules=inputs)
    theirs: Any = get_peft_model(plain, options, autocast_adapter_dtype=False)
    theirs = theirs.double()
    assert torch.allclose(model(TOKENS), expected, atol=1e-12)
    trained = [p for p in model.parameters() if p.requires_grad]
    other = [p for p in theirs.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == sum(p.numel() for p in other)
    optimizer = torch.optim.AdamW(other, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0)
    theirs_losses, ours = losses(theirs, optimizer), losses(model, build_optimizer(config, model))
    assert all(abs(a - b) < 1e-8 for a, b in zip(ours, theirs_losses, strict=True))
    assert ours[0] - ours[-1] > 0.01
    assert torch.allclose(model(TOKENS), theirs(TOKENS), atol=1e-8)
    with adapters_off(model):
        assert torch.allclose(model(TOKENS), expected, atol=1e-12)
