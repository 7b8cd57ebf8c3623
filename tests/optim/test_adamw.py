"""AdamW against numpy; each optimizer saved, loaded and continued in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.optimizers import optimizer_of
from torch import nn

from forge.config.optimizers.adam import AdamW
from forge.config.optimizers.lion import Lion


class Model(nn.Module):
    """One parameter of each role."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 3, dtype=dtype)
        self.matrix = nn.Linear(3, 5, dtype=dtype)


def set_gradients(model: nn.Module, step: int) -> None:
    for index, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(1000 * step + index)
        drawn = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        parameter.grad = drawn.to(parameter.dtype)


def numpy_adamw(
    start: np.ndarray,
    gradients: list[np.ndarray],
    *,
    lrs: list[float],
    section: AdamW,
    decay: float,
) -> np.ndarray:
    """Algorithm 2 of arXiv:1711.05101, with the decay scaled by the learning rate."""
    weight, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    beta1, beta2 = section.betas
    for count, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        weight -= lr * decay * weight
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        mean, variance = first / (1 - beta1**count), second / (1 - beta2**count)
        weight -= lr * mean / (np.sqrt(variance) + section.eps)
    return weight


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("decay_embeddings", [True, False])
def test_updates_equal_numpy(fused, decay_embeddings):
    options = {"lr": 0.03, "weight_decay": 0.2, "betas": (0.8, 0.9), "eps": 1e-6}
    section = AdamW(**options, fused=fused, decay_embeddings=decay_embeddings)
    model, lrs = Model(), [0.03, 0.01, 0.02, 0.005]
    optimizer = optimizer_of(section, model)
    start = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    gradients: list[list[np.ndarray]] = [[] for _ in start]
    for step, lr in enumerate(lrs):
        set_gradients(model, step)
        for history, parameter in zip(gradients, model.parameters(), strict=True):
            assert parameter.grad is not None
            history.append(parameter.grad.numpy().copy())
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    decays = {"matrix.weight": 0.2, "matrix.bias": 0.0}
    decays["embedding.weight"] = 0.2 if decay_embeddings else 0.0
    all_of_each = zip(model.named_parameters(), start, gradients, strict=True)
    for (name, parameter), initial, history in all_of_each:
        expected = numpy_adamw(initial, history, lrs=lrs, section=section, decay=decays[name])
        found = parameter.detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14, err_msg=name)


def test_fused_kernel_is_asked_for_only_where_wanted_and_there():
    assert optimizer_of(AdamW(fused=True), Model()).defaults["fused"] is True
    assert optimizer_of(AdamW(fused=False), Model()).defaults["fused"] is None
    assert optimizer_of(AdamW(fused=True), Model().to("meta")).defaults["fused"] is None


CONTINUE = """
import sys, torch
from optim.test_adamw import Model, run
name, saved, result = sys.argv[1:]
torch.save(run(name, steps=range(3, 6), resume_from=torch.load(saved)), result)
"""


OPTIMIZERS = {
    "adamw": lambda model: optimizer_of(AdamW(lr=0.01), model),
    "lion": lambda model: optimizer_of(Lion(lr=0.01), model),
}


def run(name: str, *, steps: range, resume_from: dict | None = None) -> dict:
    """Take these steps from the given state, or from the start; the state after them."""
    model = Model(torch.float32)
    optimizer = OPTIMIZERS[name](model)
    if resume_from is not None:
        model.load_state_dict(resume_from["model"])
        optimizer.load_state_dict(resume_from["optimizer"])
    for step in steps:
        set_gradients(model, step)
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def tensors(state: object) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state
    if not isinstance(state, dict | list | tuple):
        return []
    return [tensor for value in values for tensor in tensors(value)]


@pytest.mark.ci("adamw-4")
@pytest.mark.parametrize(("name", "values"), [("adamw", 4), ("lion", 2)])
def test_saved_loaded_and_continued_in_a_fresh_process_is_bit_equal(name, values, tmp_path):
    """values: of a parameter: its weight, AdamW's two moments and count of steps, Lion's one."""
    torch.save(run(name, steps=range(3)), tmp_path / "saved.pt")
    paths = [str(tmp_path / file) for file in ("saved.pt", "result.pt")]
    command = [sys.executable, "-c", CONTINUE, name, *paths]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    continued, straight = torch.load(paths[1]), run(name, steps=range(6))
    pairs = list(zip(tensors(continued), tensors(straight), strict=True))
    assert len(pairs) == 3 * values
    assert all(torch.equal(a, b) for a, b in pairs)
    assert continued["optimizer"]["param_groups"] == straight["optimizer"]["param_groups"]
    saved = torch.load(paths[0])["model"]["matrix.weight"]
    assert not torch.equal(straight["model"]["matrix.weight"], saved)
