"""Muon and NorMuon against numpy and torch's own, and their schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.optimizers import params_of
from torch import nn

from forge.config.optimizers.base import Optimizer
from forge.config.optimizers.muon import Muon, NorMuon
from forge.config.optimizers.schedules import Constant, Linear
from forge.optim import muon, normuon
from forge.optim.muon import newton_schulz, polar_express

SHAPES = [(5, 5), (8, 3), (3, 8), (2, 4, 6), (2, 6, 4)]
STEPS = 20


class Matrices(nn.Module):
    """Tall, wide and square matrices, and stacks of them."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        for number, shape in enumerate(SHAPES):
            values = torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
            self.register_parameter(f"w{number}", nn.Parameter(values))


def gradients(step: int) -> list[np.ndarray]:
    draw = np.random.default_rng(step)
    return [draw.normal(size=shape) for shape in SHAPES]


def quintic(x: np.ndarray, steps: list[tuple[float, float, float]]) -> np.ndarray:
    """On the singular values themselves, by numpy's decomposition."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    for a, b, c in steps:
        s = a * s + b * s**3 + c * s**5
    return u @ np.diag(s) @ v


class Reference:
    """One matrix, in numpy."""

    def __init__(self, weight: np.ndarray, section: Muon) -> None:
        self.w, self.section = weight.copy(), section
        self.m, self.v = np.zeros_like(weight), 0.0

    def step(self, g: np.ndarray, lr: float) -> None:
        beta, rows, columns = self.section.momentum, *g.shape
        self.m = beta * self.m + (1 - beta) * g
        x = beta * self.m + (1 - beta) * g if self.section.nesterov else self.m
        x = self.orthogonal(x)
        scale = max(1, rows / columns) ** 0.5
        if self.section.consistent_rms:
            scale = self.section.consistent_rms * max(rows, columns) ** 0.5
        decayed = self.w * (x * self.w >= 0) if self.section.cautious else self.w
        self.w = self.w - lr * (scale * x + self.section.weight_decay * decayed)

    def orthogonal(self, x: np.ndarray) -> np.ndarray:
        first = x / (np.linalg.norm(x) + 1e-7)
        return quintic(first, [(3.4445, -4.7750, 2.0315)] * self.section.ns_steps)


class NorReference(Reference):
    """The six steps of nanochat's optimizer."""

    def orthogonal(self, x: np.ndarray) -> np.ndarray:
        rows, columns = x.shape
        length = np.linalg.norm(x, axis=1, keepdims=True)
        x = x * (np.linalg.norm(x) / rows**0.5 / length)
        first = [(8.156554524902461, -22.48329292557795, 15.878769915207462)]
        first += [(4.042929935166739, -2.808917465908714, 0.5000178451051316)]
        first += [(3.8916678022926607, -2.772484153217685, 0.5060648178503393)]
        first += [(3.285753657755655, -2.3681294933425376, 0.46449024233003106)]
        first += [(2.3465413258596377, -1.7097828382687081, 0.42323551169305323)]
        x = quintic(x / (1.01 * np.linalg.norm(x) + 1e-6), first)
        x = x * (min(rows, columns) ** 0.5 / np.linalg.norm(x))
        assert isinstance(self.section, NorMuon)
        beta2, axis = self.section.beta2, 1 if rows >= columns else 0
        self.v = beta2 * self.v + (1 - beta2) * np.mean(x**2, axis=axis, keepdims=True)
        scaled = x / np.sqrt(self.v)
        return scaled * np.linalg.norm(x) / np.linalg.norm(scaled)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("muon", {}),
        ("muon", {"nesterov": False, "consistent_rms": 0.2}),
        ("muon", {"cautious": True, "ns_steps": 3, "momentum": 0.8}),
        ("normuon", {}),
        ("normuon", {"cautious": False, "beta2": 0.5}),
    ],
)
def test_updates_equal_numpy(kind, options):
    """Of each matrix of a stack too; the rate changes from step to step."""
    make, schema, reference = {
        "muon": (muon.Muon, Muon, Reference),
        "normuon": (normuon.NorMuon, NorMuon, NorReference),
    }[kind]
    section, model = schema(weight_decay=0.2, **options), Matrices()
    optimizer = make(params_of(section, model), section)
    whole = [p.detach().numpy() for p in model.parameters()]
    expected = [[reference(one, section) for one in _each(each)] for each in whole]
    for step in range(STEPS):
        lr = 0.05 / (1 + step)
        for p, gradient, ours in zip(model.parameters(), gradients(step), expected, strict=True):
            p.grad = torch.tensor(gradient)
            for one, of_one in zip(ours, _each(gradient), strict=True):
                one.step(of_one, lr)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    for p, ours in zip(model.parameters(), expected, strict=True):
        for found, one in zip(_each(p.detach().numpy()), ours, strict=True):
            np.testing.assert_allclose(found, one.w, rtol=1e-9, atol=1e-10)


def _each(values: np.ndarray) -> list[np.ndarray]:
    return list(values) if values.ndim == 3 else [values]


@pytest.mark.parametrize(("rms", "theirs"), [(None, "original"), (0.2, "match_rms_adamw")])
@pytest.mark.parametrize("nesterov", [True, False])
def test_updates_are_those_of_torch_up_to_its_16_bits(nesterov, rms, theirs):
    section = Muon(lr=0.01, nesterov=nesterov, consistent_rms=rms, ns_dtype="bf16")
    ours, other = (nn.Linear(24, 16, bias=False) for _ in range(2))
    other.load_state_dict(ours.state_dict())
    start = ours.weight.detach().clone()
    mine = muon.Muon(params_of(section, ours), section)
    options: dict[str, Any] = {"nesterov": nesterov, "adjust_lr_fn": theirs}
    torchs = torch.optim.Muon(other.parameters(), lr=0.01, weight_decay=0.1, **options)
    for step in range(STEPS):
        gradient = torch.randn(16, 24, generator=torch.Generator().manual_seed(step))
        ours.weight.grad, other.weight.grad = gradient, gradient.clone()
        mine.step()
        torchs.step()
    moved = (other.weight - start).abs().mean()
    assert (ours.weight - other.weight).abs().mean() < 0.02 * moved


def test_singular_values_become_about_1():
    drawn = torch.randn(2, 20, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for orthogonal, width in ((newton_schulz, 0.35), (polar_express, 0.15)):
        values = torch.linalg.svdvals(orthogonal(drawn, 5))
        assert (values - 1).abs().max() < width


@pytest.mark.parametrize(("make", "schema"), [(muon.Muon, Muon), (normuon.NorMuon, NorMuon)])
def test_a_flag_leaves_every_bit_as_it_is(make, schema):
    section, model = schema(lr=0.1), Matrices(torch.float32)
    optimizer = make(params_of(section, model), section)

    def bits() -> list[torch.Tensor]:
        states = [v for state in optimizer.state.values() for v in state.values()]
        return [values.detach().clone() for values in (*model.parameters(), *states)]

    for p in model.parameters():
        p.grad = torch.ones_like(p) + torch.eye(*p.shape[-2:])
    optimizer.step()
    before = bits()
    for p in model.parameters():
        p.grad = torch.full_like(p, float("nan"))
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, bits(), strict=True))
    del optimizer.found_inf
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, bits(), strict=True))


def test_momentum_rises_and_falls_as_in_nanochat():
    section = Muon(momentum=0.97, momentum_start=0.85, momentum_warmup_steps=400, momentum_end=0.90)
    scheduler = Linear(warmup_steps=40, decay_steps=650)
    factor = section.schedules(scheduler, 1000)["momentum"]
    found = [0.97 * factor(step) for step in (0, 100, 200, 350, 399)]
    np.testing.assert_allclose(found, [0.85, 0.88, 0.91, 0.955, 0.9697])  # over the warm-down
    decaying = [0.97 * factor(step) for step in (400, 675, 1000)]
    np.testing.assert_allclose(decaying, [0.97 - 0.07 * 50 / 650, 0.935, 0.90])
    assert Muon().schedules(scheduler, 1000) == {}


def test_weight_decay_falls_by_its_schedule():
    for kind, half in (("linear", 0.5), ("cosine", 0.5)):
        section = Optimizer(_target_="", weight_decay_schedule=kind)
        factor = section.schedules(Constant(), 100)["weight_decay"]
        assert (factor(0), factor(100)) == (1, pytest.approx(0, abs=1e-12))
        assert factor(50) == pytest.approx(half)
    cosine = Optimizer(_target_="", weight_decay_schedule="cosine").schedules(Constant(), 100)
    assert cosine["weight_decay"](25) == pytest.approx(0.5 * (1 + np.cos(np.pi / 4)))
