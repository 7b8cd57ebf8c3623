"""optimizer=nanochat and scheduler=nanochat against plain torch written from its rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from helpers.refusing import resolved
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from forge.optim import build
from forge.optim.own_schedule import build_schedule
from forge.optim.schedules import LearningRate

N, DIM = 500, 64
STEPS = (0, 1, 2, 39, 40, 175, 176, 177, 399, 400, 401, 450, 499)
"""In the warm-up of both, at the start of the warm-down, in the warm-down, and at the end."""
OPTIONS = [
    "optimizer=nanochat",
    "scheduler=nanochat",
    f"train.max_steps={N}",
    f"model.dim={DIM}",
    "scheduler.warmup_steps=null",
]
SHAPES = {
    "matrix": [(16, 16), (24, 8), (8, 24), (2, 12), (5, 3)],
    "head": [(20, 8)],
    "embedding": [(20, 8)],
    "value_embedding": [(20, 6)],
    "residual_scalar": [(3,)],
    "x0_scalar": [(3,)],
    "gate": [(1, 24), (1,), (1,)],
}
M = (DIM / 768) ** -0.5
ADAMW = {  # rate, betas, weight decay
    "head": (0.008 * M, 0.8, 0.96, 0.01),
    "embedding": (0.3 * M, 0.8, 0.995, 0.001),
    "value_embedding": (0.5 * 0.3 * M, 0.8, 0.995, 0.01),
    "residual_scalar": (0.01 * 0.5, 0.8, 0.95, 0.05),
    "x0_scalar": (0.5, 0.96, 0.95, 0.0),
    "gate": (0.2, 0.8, 0.95, 0.0),
}
POLAR = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
ROLES = {f"{role}_{i}": role for role, shapes in SHAPES.items() for i in range(len(shapes))}
Values = dict[str, Tensor]


def warm_down() -> int:
    return round(0.65 * N)


def rate_factor(k: int) -> float:
    if k < 40:
        return (k + 1) / 40
    if k <= N - warm_down():
        return 1.0
    p = (N - k) / warm_down()
    return p + (1 - p) * 0.05


def momentum_at(k: int) -> float:
    if k < 400:
        return 0.85 + (0.97 - 0.85) * k / 400
    if k >= N - warm_down():
        return 0.97 + (0.90 - 0.97) * (k - (N - warm_down())) / warm_down()
    return 0.97


def adamw(w: Tensor, g: Tensor, state: dict[str, Any], role: str, factor: float) -> Tensor:
    rate, beta1, beta2, decay = ADAMW[role]
    rate, t = rate * factor, state.setdefault("t", 0) + 1
    w = w * (1 - rate * decay)
    m = beta1 * state.get("m", 0) + (1 - beta1) * g
    v = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    state.update(t=t, m=m, v=v)
    return w - rate / (1 - beta1**t) * m / ((v / (1 - beta2**t)).sqrt() + 1e-10)


def polar(x: Tensor) -> Tensor:
    x = x / (1.01 * x.norm() + 1e-6)
    for a, b, c in POLAR:
        if x.shape[0] > x.shape[1]:
            s = x.T @ x
            x = a * x + x @ (b * s + c * s @ s)
        else:
            s = x @ x.T
            x = a * x + (b * s + c * s @ s) @ x
    return x


def muon(w: Tensor, g: Tensor, state: dict[str, Any], k: int) -> Tensor:
    rows, columns = w.shape
    beta = momentum_at(k)
    buffer = state["buffer"] = beta * state.get("buffer", torch.zeros_like(w)) + (1 - beta) * g
    x = (1 - beta) * g + beta * buffer
    lengths = x.norm(dim=1, keepdim=True).clamp(min=1e-6)
    x = polar(x * (x.norm() / math.sqrt(rows)) / lengths)
    x = x * (math.sqrt(min(rows, columns)) / x.norm().clamp(min=1e-6))
    dim = 1 if rows >= columns else 0
    n, v = x.shape[dim], (x * x).mean(dim=dim, keepdim=True)
    second = state["second"] = 0.9 * state.get("second", torch.zeros_like(v)) + 0.1 * v
    q = second.clamp(min=1e-10).rsqrt()
    x = x * q * ((v.sum() * n).sqrt() / (v * n * q * q).sum().sqrt().clamp(min=1e-10))
    rate = 0.02 * rate_factor(k) * math.sqrt(max(1.0, rows / columns))
    decay = 0.28 * 0.5 * (1 + math.cos(math.pi * k / N))
    return w - rate * x - rate * decay * w * (x * w >= 0)


def drawn(step: int) -> Values:
    """Step -1: the first weights. The gradient of a matrix after zeros is 0 at first."""
    generator = torch.Generator().manual_seed(step + 1)
    shapes = [shape for each in SHAPES.values() for shape in each]
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    by_name = dict(zip(ROLES, values, strict=True))
    if step == 0:
        by_name["matrix_0"].zero_()
    return by_name


def expected() -> Values:
    weights, states = drawn(-1), {name: {} for name in ROLES}
    for k in STEPS:
        for name, g in drawn(k).items():
            w, state, role = weights[name], states[name], ROLES[name]
            if role == "matrix":
                weights[name] = muon(w, g, state, k)
            else:
                weights[name] = adamw(w, g, state, role, rate_factor(k))
    return weights


class Parameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, values in drawn(-1).items():
            self.register_parameter(name, nn.Parameter(values))


def updated(model: nn.Module) -> Values:
    """The weights after updates STEPS by the optimizer and the schedule of a config."""
    config = resolved(OPTIONS).config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "roles_of", lambda model, config: ROLES)
        optimizer = build.build_optimizer(config, model)
    rate = LearningRate(optimizer, build_schedule(config.scheduler, config))
    for k in STEPS:
        rate.set(k)
        for name, p in model.named_parameters():
            g = drawn(k)[name]
            cut = isinstance(p, DTensor)
            p.grad = distribute_tensor(g, p.device_mesh, p.placements) if cut else g
        optimizer.step()
    named = model.named_parameters()
    return {n: p.full_tensor() if isinstance(p, DTensor) else p.detach() for n, p in named}


def assert_equal_to(weights: Values) -> None:
    for name, value in expected().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-12, atol=1e-13, msg=name)


def test_updates_equal_plain_torch_on_each_shape_and_role() -> None:
    assert_equal_to(updated(Parameters()))


def test_updates_of_shards_equal_plain_torch() -> None:
    """Rows of matrices, tables and a single scalar are cut over ranks; one has no row of some."""

    def work(_: int) -> None:
        model = Parameters()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        assert_equal_to(updated(model))

    on_ranks(2, work)


def test_a_schedule_ends_a_step_before_the_floor() -> None:
    config = resolved(OPTIONS).config
    factor = build_schedule(config.scheduler, config)
    assert [factor(k) for k in range(N)] == pytest.approx([rate_factor(k) for k in range(N)])
    assert factor(N) == pytest.approx(0.05)
