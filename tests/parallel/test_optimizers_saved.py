"""Every optimizer saved on a layout, loaded by fresh processes and continued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from parity_run import Tokens, config_of, this_rank, world_of
from ranks import on_ranks
from torch.distributed.tensor import DTensor

from forge.build import build
from forge.optim.build import build_optimizer
from forge.optim.modes import Modes, reading
from forge.parallel.ranks import Ranks
from forge.training import restore
from forge.training.checkpoint import Checkpointer
from forge.training.data import train_loader
from forge.training.models import build_model
from forge.training.step import Update

CONF = Path(__file__).parents[2] / "conf" / "optimizer"
OPTIMIZERS = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "adamw_large")
LAYOUTS = {
    "single": "",
    "fsdp2": "parallel.dp_shard=2",
    "tp2 fsdp2": "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2",
    "pp2": "parallel.pp=2",
}
DAILY = {"single": OPTIMIZERS, "tp2 fsdp2": ["normuon"], "pp2": ["muon"], "fsdp2": ["lion"]}
CASES = [
    pytest.param(
        optimizer, layout, marks=[] if optimizer in DAILY[layout] else [pytest.mark.nightly]
    )
    for layout in LAYOUTS
    for optimizer in OPTIMIZERS
]
SAVED, STEPS = 2, 4
TOKENIZER: Any = SimpleNamespace(save=lambda path: path.write_text("{}"))


def run(
    optimizer: str,
    layout: str,
    folder: Path,
    *,
    first: int,
    steps: int,
    ranks: Ranks | None = None,
) -> dict[str, torch.Tensor]:
    """Updates from the start, with a checkpoint at SAVED, or from it on; the weights after them,
    those that are read, whole.
    """
    config = config_of("llama", f"optimizer={optimizer} checkpoint.async_mode=disabled {layout}")
    if ranks is None:
        ranks = this_rank(config)
        ranks = replace(ranks, saver=dist.new_group()) if ranks.size > 1 else ranks
    device = torch.device("cpu")
    model = build_model(config, device, ranks, torch.float64)
    objective = build(config.objective, path="objective")
    trained = build_optimizer(config, model)
    update = Update(
        model=model,
        objective=objective,
        optimizer=trained,
        schedule=lambda number: 1.0,
        device=device,
        clip_norm=1.0,
        ranks=ranks,
    )
    loader = train_loader(config, Tokens(), objective, ranks, device)
    checkpointer = Checkpointer(folder, config, TOKENIZER, "", ranks)
    if first:
        restore.load(folder / f"step_{first}", model=model, optimizer=trained, group=ranks.saver)
    if isinstance(trained, Modes):
        trained.train()
    for number, step in zip(range(steps), loader, strict=False):
        if number < first:
            continue
        update(step, number)
        if number + 1 == SAVED:
            with reading(model, trained):
                checkpointer.save(SAVED, model=model, optimizer=trained, meta={}, extra={})
    checkpointer.wait()
    with reading(model, trained):
        named = model.named_parameters()
        whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in named}
        return {name: values.detach().clone() for name, values in whole.items()}


@pytest.mark.parametrize(("optimizer", "layout"), CASES)
def test_continued_it_is_as_if_it_had_not_been_stopped(optimizer, layout, tmp_path):
    """On the same layout to the bit; on one device, from the same checkpoint, within rounding."""
    options = LAYOUTS[layout]
    world = world_of(config_of("llama", options))
    place = tmp_path / "checkpoints"

    def first(rank: int) -> None:
        whole = run(optimizer, options, place, first=0, steps=STEPS)
        torch.save(whole, tmp_path / f"straight_{rank}.pt")

    def then(rank: int) -> None:
        whole = run(optimizer, options, place, first=SAVED, steps=STEPS)
        straight = torch.load(tmp_path / f"straight_{rank}.pt")
        assert whole.keys() == straight.keys()
        for name, values in whole.items():
            assert torch.equal(values, straight[name]), name
        torch.save(whole, tmp_path / f"continued_{rank}.pt")

    on_ranks(world, first)
    on_ranks(world, then)
    if world == 1:
        return
    found = run(optimizer, "", place, first=SAVED, steps=STEPS, ranks=Ranks())
    for rank in range(world):
        for name, values in torch.load(tmp_path / f"continued_{rank}.pt").items():
            torch.testing.assert_close(found[name], values, rtol=0, atol=1e-10, msg=name)
