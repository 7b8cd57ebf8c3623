"""Updates of each optimizer over several ranks against one device."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from helpers.ranks import on_ranks
from parity_run import Tokens, config_of, this_rank
from torch.distributed.tensor import DTensor

from forge.build import build
from forge.optim.build import build_optimizer
from forge.parallel.ranks import Ranks
from forge.training.data import train_loader
from forge.training.models import build_model
from forge.training.step import Update

UPDATES = 3
FSDP4 = "parallel.dp_shard=4 train.batch_size=2"
HSDP = "parallel.dp_replicate=2 parallel.dp_shard=2 train.batch_size=2"
DDP = "parallel.dp_replicate=2"
TP_FSDP = "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2"
PP_FSDP = "parallel.pp=2 parallel.dp_shard=2 train.batch_size=2"
EP = "parallel.ep=2"
EP_TP = "parallel.ep=2 parallel.tp=2 train.batch_size=2"
EP_FSDP = "parallel.ep=2 parallel.dp_shard=2 train.batch_size=2"
CASES = [
    ("adamw", "llama", TP_FSDP, 4),
    ("lion", "llama", TP_FSDP, 4),
    ("adamw optimizer.eps_root=1e-6 optimizer.cautious=true", "llama", TP_FSDP, 4),
    ("adam_pax", "llama", TP_FSDP, 4),
    ("sgd optimizer.nesterov=true optimizer.momentum=0.9", "llama", TP_FSDP, 4),
    ("schedule_free_adamw scheduler=constant", "moe", EP_TP, 4),
    ("muon", "llama", TP_FSDP, 4),
    ("muon", "llama", DDP, 2),
    ("normuon", "llama", HSDP, 4),
    ("normuon", "llama", PP_FSDP, 4),
    ("normuon", "moe", EP_TP, 4),
    ("normuon optimizer.ns_dtype=bf16", "llama", FSDP4, 4),  # ranks without a matrix in a round
    ("nanochat", "llama", FSDP4, 4),
    *(
        pytest.param(optimizer, model, layout, ranks, marks=pytest.mark.nightly)
        for optimizer in ("muon", "normuon")
        for model, layout, ranks in (
            ("llama", FSDP4, 4),
            ("llama", "parallel.tp=2", 2),
            ("moe", EP, 2),
            ("moe", EP_FSDP, 4),
            ("moe", FSDP4, 4),
        )
    ),
]


def train(optimizer: str, model: str, layout: str, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Parameters after some updates, whole."""
    config = config_of(model, f"optimizer={optimizer} {layout}")
    device = torch.device("cpu")
    built = build_model(config, device, ranks, torch.float64)
    objective = build(config.objective, path="objective")
    update = Update(
        model=built,
        objective=objective,
        optimizer=build_optimizer(config, built),
        schedule=lambda number: 1.0,
        device=device,
        clip_norm=1.0,
        ranks=ranks,
    )
    loader = train_loader(config, Tokens(), objective, ranks, device)
    for number, step in zip(range(UPDATES), loader, strict=False):
        update(step, number)
    parameters = built.named_parameters()
    return {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in parameters}


on_one_device = cache(lambda optimizer, model: train(optimizer, model, "", Ranks()))


@pytest.mark.ci(
    "muon-llama-parallel.tp=2 parallel.dp_shard=2 train.batch_size=2-4",
    "lion-llama-parallel.tp=2 parallel.dp_shard=2 train.batch_size=2-4",
)
@pytest.mark.parametrize(("optimizer", "model", "layout", "ranks"), CASES)
def test_sharded_weights_are_those_of_one_device(optimizer, model, layout, ranks):
    """Muon orthogonalises whole matrices, whichever rank has which part of them."""
    expected, config = on_one_device(optimizer, model), config_of(model, layout)

    def work(_: int) -> None:
        found = train(optimizer, model, layout, this_rank(config))
        assert found.keys() == expected.keys() or "pp" in layout
        for name, values in found.items():
            torch.testing.assert_close(values, expected[name], rtol=0, atol=1e-10, msg=name)

    on_ranks(ranks, work)
