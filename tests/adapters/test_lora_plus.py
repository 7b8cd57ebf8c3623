"""B of adapters at a rate of its own, beside PEFT's optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.refusing import SMALL, resolved
from torch import Tensor, nn

from forge.config.adapters.adapter import adapter_prefix, is_added
from forge.models.plain import make_model
from forge.optim.build import build_optimizer
from forge.parallel.ranks import Ranks
from forge.training.models import build_model

TOKENS = torch.arange(48).view(2, 24) * 7 % 300
WORDS = "adapter=lora adapter.rank=4 adapter.alpha=6 adapter.dropout=0"
WORDS += " adapter.lora_plus_ratio=16 optimizer=adamw optimizer.lr=1e-3"
WORDS += " optimizer.betas=[0.9,0.99] optimizer.eps=1e-8 run.device=cpu"


def loss_of(logits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


def losses(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    """Of ten steps."""
    made = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(model(TOKENS))
        loss.backward()
        optimizer.step()
        made.append(loss.item())
    return made


@pytest.mark.parametrize(("dora", "decay"), [(False, 0.1), (True, 0.0)])
def test_ten_losses_are_those_of_the_optimizer_of_peft(dora: bool, decay: float) -> None:
    """Magnitudes too, which PEFT alone decays."""
    from peft import LoraConfig, get_peft_model
    from peft.optimizers import create_loraplus_optimizer

    more = [f"adapter.dora={str(dora).lower()}", f"optimizer.weight_decay={decay}"]
    config: Any = resolved([*SMALL, *WORDS.split(), *more]).config
    model: Any = build_model(config, torch.device("cpu"), Ranks(), torch.float64)
    plain: Any = make_model(config.model).double()
    plain.load_state_dict({n: v for n, v in model.state_dict().items() if not is_added(n)})
    names = [adapter_prefix(one) for one in config.model.tensors() if config.adapter.rank_of(one)]
    options = LoraConfig(r=4, lora_alpha=6, target_modules=names, use_dora=dora)
    theirs: Any = get_peft_model(plain, options, autocast_adapter_dtype=False)
    with torch.no_grad():
        for name in names:
            other = theirs.get_submodule(f"base_model.model.{name}").lora_A["default"].weight
            other.copy_(model.get_submodule(name).lora_a)
    expected = losses(
        theirs,
        create_loraplus_optimizer(
            theirs,
            torch.optim.AdamW,
            lr=1e-3,
            loraplus_lr_ratio=16,
            loraplus_weight_decay=decay,
            betas=(0.9, 0.99),
            eps=1e-8,
        ),
    )
    optimizer = build_optimizer(config, model)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 1.6e-2]
    made = losses(model, optimizer)
    assert all(abs(a - b) < 1e-6 for a, b in zip(made, expected, strict=True)), (made, expected)
    assert made[0] - made[-1] > 0.01
