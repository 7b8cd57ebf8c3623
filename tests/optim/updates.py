"""Two groups of parameters, gradients that are drawn, and how optimizers are compared over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

STEPS = 24
RATES = np.linspace(0.03, 0.004, STEPS)
SHAPES = {"decayed": [(5, 3), (2, 4, 3)], "kept": [(7,)]}
DECAYS = {"decayed": 0.2, "kept": 0.0}
Groups = list[dict[str, Any]]


def groups_of(dtype: torch.dtype = torch.float64, **keys: Any) -> Groups:
    drawn = np.random.default_rng(0)
    return [
        {
            "name": name,
            "params": [
                torch.nn.Parameter(torch.tensor(drawn.normal(size=shape), dtype=dtype))
                for shape in shapes
            ],
            "weight_decay": DECAYS[name],
            **keys,
        }
        for name, shapes in SHAPES.items()
    ]


def parameters_of(groups: Groups) -> list[torch.nn.Parameter]:
    return [parameter for group in groups for parameter in group["params"]]


def set_gradients(parameters: list[torch.nn.Parameter], step: int) -> None:
    for index, parameter in enumerate(parameters):
        drawn = np.random.default_rng([step, index]).normal(size=tuple(parameter.shape))
        parameter.grad = torch.tensor(drawn).to(parameter.dtype)


def updates(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    steps: range = range(STEPS),
    each: Callable[[int], None] = lambda step: None,
) -> list[Tensor]:
    """The parameters after these updates, at another learning rate each; `each` after an update."""
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = float(RATES[step])
        set_gradients(parameters, step)
        optimizer.step()
        each(step)
    return [parameter.detach().clone() for parameter in parameters]


Rule = Callable[[np.ndarray, np.ndarray, dict[str, Any], int, float, float], np.ndarray]
"""Of weight, gradient, own state, update from 1, rate and decay: the next weight."""


def by_numpy(rule: Rule, dtype: type = np.float64) -> list[np.ndarray]:
    """The same updates by a rule in numpy."""
    groups, found, index = groups_of(), [], 0
    for group in groups:
        for parameter in group["params"]:
            weight, state = parameter.detach().numpy().astype(dtype), {}
            for step in range(STEPS):
                gradient = np.random.default_rng([step, index]).normal(size=weight.shape)
                options = (step + 1, RATES[step], group["weight_decay"])
                weight = rule(weight, gradient.astype(dtype), state, *options)
            found.append(weight)
            index += 1
    return found


def assert_close(found: list[Tensor], expected: list[Any], rtol: float = 1e-11) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), rtol=rtol, atol=rtol)
