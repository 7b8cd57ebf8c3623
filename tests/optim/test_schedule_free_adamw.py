"""Schedule-free AdamW against algorithm 1 of arXiv:2405.15682 in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from updates import STEPS, assert_close, by_numpy, groups_of, parameters_of, set_gradients, updates

from forge.config.optimizers.schedule_free import ScheduleFreeAdamW as Section
from forge.optim.schedule_free import ScheduleFreeAdamW
from forge.optim.train_eval_modes import Modes, reading

BETAS, EPS = (0.9, 0.95), 1e-3
OPTIONS: dict[str, Any] = {"lr": 1.0, "betas": BETAS, "eps": EPS, "weight_decay": 0.0}


def algorithm(warmup: int, *, read: bool):
    """With z and x written out; read: the weights x that are evaluated, else y."""

    def rule(weight, gradient, state, step, rate, decay):
        beta1, beta2 = BETAS
        if not state:
            state |= {"z": weight, "x": weight, "y": weight, "v": 0.0, "sum": 0.0}
        rate = rate * min(1.0, step / warmup if warmup else 1.0) * np.sqrt(1 - beta2**step)
        state["v"] = beta2 * state["v"] + (1 - beta2) * gradient**2
        step_of_z = gradient / (np.sqrt(state["v"]) + EPS) + decay * state["y"]
        state["z"] = state["z"] - rate * step_of_z
        state["sum"] += rate**2
        c = rate**2 / state["sum"]
        state["x"] = (1 - c) * state["x"] + c * state["z"]
        state["y"] = (1 - beta1) * state["z"] + beta1 * state["x"]
        return state["x" if read else "y"]

    return rule


@pytest.mark.parametrize("warmup", [0, 10])
def test_weights_of_both_modes_are_those_of_the_paper(warmup):
    groups = groups_of()
    parameters = parameters_of(groups)
    optimizer = ScheduleFreeAdamW(groups, Section(**OPTIONS, schedule_free_warmup_steps=warmup))
    assert isinstance(optimizer, Modes)
    model = torch.nn.ParameterList(parameters)

    def look(step: int) -> None:
        if step % 5 == 0:  # a look at the other weights leaves no trace
            before = [parameter.clone() for parameter in parameters]
            with reading(model, optimizer):
                assert not torch.equal(parameters[0], before[0]) or step == 0
            assert all(map(torch.equal, parameters, before))

    found = updates(optimizer, parameters, each=look)
    trained, read = (by_numpy(algorithm(warmup, read=flag)) for flag in (False, True))
    assert_close(found, trained)
    optimizer.eval()
    optimizer.eval()  # a second time changes nothing
    assert_close([parameter.detach() for parameter in parameters], read)
    optimizer.train()
    assert all(map(torch.equal, parameters, found))
    assert np.abs(trained[0] - read[0]).max() > 1e-3
    counts = {int(state["step"]) for state in optimizer.state.values()}
    assert counts == {STEPS}


def test_a_learning_rate_of_0_moves_nothing_and_divides_by_nothing():
    groups = groups_of()
    parameters = parameters_of(groups)
    optimizer = ScheduleFreeAdamW(groups, Section(**{**OPTIONS, "lr": 0.0}))
    before = [parameter.detach().clone() for parameter in parameters]
    for step in range(2):
        set_gradients(parameters, step)
        optimizer.step()
    optimizer.eval()
    assert all(map(torch.equal, parameters, before))
