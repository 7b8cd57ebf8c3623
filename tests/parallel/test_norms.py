"""Norms by role over several ranks against those of one device, and those against numpy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from parity_run import Tokens, config_of, main_ranks

from forge.build import build
from forge.config.optimizers.param_groups import named_parameters
from forge.optim.build import build_optimizer
from forge.parallel.ranks import Ranks
from forge.training.callbacks.norms import Norms
from forge.training.data import train_loader
from forge.training.models import build_model
from forge.training.step import Update

LAYOUTS = [
    ("llama", "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2"),
    ("moe", "parallel.ep=2 parallel.dp_shard=2 train.batch_size=2"),
    ("llama, tied", "parallel.pp=2"),
]


def measured(model: str, layout: str, ranks: Ranks) -> tuple[dict[str, float], dict[str, Any]]:
    """What is logged of the second update, and weights before and after it, and gradients."""
    config = config_of(model, layout)
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
    metrics = SimpleNamespace(log_interval=2, norms_by_role=True)
    sections = {"model": config.model, "adapter": config.adapter}
    own = SimpleNamespace(metrics=metrics, objective=config.objective, **sections)
    session: Any = SimpleNamespace(config=own, ranks=ranks, model=built, device=device)
    assert Norms.wanted(session)
    logs: list[dict[str, float]] = []
    loop: Any = SimpleNamespace(
        update=update, session=session, state=SimpleNamespace(step=0), log=logs.append
    )
    norms, seen = Norms(session), {}
    loader = train_loader(config, Tokens(), objective, ranks, device)
    for number, step in zip(range(3), loader, strict=False):
        output = update.gradients(step, number)
        norms.on_gradients(loop)
        if number == 1:
            seen["weights"] = whole(built.named_parameters(), ranks)
            seen["gradients"] = whole([(n, p.grad) for n, p in built.named_parameters()], ranks)
        update.apply(output, number)
        loop.state.step += 1
        norms.on_step_end(loop, output)
        if number == 1:
            seen["after"] = whole(built.named_parameters(), ranks)
    (logged,) = logs
    return logged, seen


def whole(named: Any, ranks: Ranks) -> Any:
    if ranks.size > 1:
        return {}
    return {name: values.detach().numpy().copy() for name, values in named}


@pytest.mark.parametrize("model", [model for model, _ in LAYOUTS])
def test_norms_of_one_device_are_those_of_numpy(model):
    found, seen = measured(model, "", Ranks())
    roles = dict(named_parameters(config_of(model)))
    after, before = seen.pop("after"), seen["weights"]
    seen["updates"] = {name: after[name] - before[name] for name in before}
    expected: dict[str, float] = {}
    for what, values in seen.items():
        for role in set(roles.values()):
            squares = [(x**2).sum() for name, x in values.items() if roles[name] == role]
            expected[f"norms/{what}/{role}"] = np.sqrt(sum(squares))
    assert found == pytest.approx(expected, rel=1e-12)
    assert min(expected.values()) > 0


@pytest.mark.nightly
@pytest.mark.ci("moe-parallel.ep=2 parallel.dp_shard=2 train.batch_size=2")
@pytest.mark.parametrize(("model", "layout"), LAYOUTS)
def test_norms_of_a_layout_are_those_of_one_device(model, layout):
    expected, _ = measured(model, "", Ranks())
    config = config_of(model, layout)
    found = main_ranks(config, lambda ranks: measured(model, layout, ranks)[0])
    assert found == pytest.approx(expected, rel=1e-9)
