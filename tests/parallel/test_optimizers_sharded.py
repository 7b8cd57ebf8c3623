"""Updates of each optimizer over four ranks against one device."""

from __future__ import annotations

import pytest
import torch
from parity_run import Tokens, config_of, this_rank
from ranks import on_ranks
from torch.distributed.tensor import DTensor

from forge.build import build
from forge.optim.build import build_optimizer
from forge.parallel.ranks import Ranks
from forge.training.data import train_loader
from forge.training.models import build_model
from forge.training.step import Update


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_sharded_weights_are_those_of_one_device(optimizer):
    def train(overrides: str, ranks: Ranks) -> dict[str, torch.Tensor]:
        config = config_of("llama", f"optimizer={optimizer} {overrides}")
        device = torch.device("cpu")
        model = build_model(config, device, ranks, torch.float64)
        objective = build(config.objective, path="objective")
        update = Update(
            model=model,
            objective=objective,
            optimizer=build_optimizer(config, model),
            schedule=lambda number: 1.0,
            device=device,
            clip_norm=1.0,
            ranks=ranks,
        )
        loader = train_loader(config, Tokens(), objective, ranks, device)
        for number, step in zip(range(3), loader, strict=False):
            update(step, number)
        parameters = model.named_parameters()
        return {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in parameters}

    layout = "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2"
    expected, config = train("", Ranks()), config_of("llama", f"optimizer={optimizer} {layout}")

    def work(_: int) -> None:
        found = train(layout, this_rank(config))
        assert found.keys() == expected.keys()
        for name, values in found.items():
            torch.testing.assert_close(values, expected[name], rtol=0, atol=1e-12, msg=name)

    on_ranks(4, work)
