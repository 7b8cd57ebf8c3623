"""Lion against numpy."""

from __future__ import annotations

import numpy as np
import torch
from helpers.optimizers import optimizer_of
from test_adamw import Model, set_gradients

from forge.config.optimizers.lion import Lion


def test_twenty_updates_equal_numpy():
    """Program 1 of arXiv:2302.06675."""
    section = Lion(weight_decay=0.3, betas=(0.8, 0.95), decay_embeddings=False)
    model, lrs = Model(), np.linspace(0.02, 0.001, 20)
    optimizer = optimizer_of(section, model)
    expected = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    momenta = {name: np.zeros_like(value) for name, value in expected.items()}
    for step, lr in enumerate(lrs):
        set_gradients(model, step)
        for name, parameter in model.named_parameters():
            gradient, weight, momentum = parameter.grad.numpy(), expected[name], momenta[name]
            update = np.sign(0.8 * momentum + 0.2 * gradient)
            decay = 0.3 if name == "matrix.weight" else 0.0
            expected[name] = weight - lr * (update + decay * weight)
            momenta[name] = 0.95 * momentum + 0.05 * gradient
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    for name, parameter in model.named_parameters():
        found = parameter.detach().numpy()
        np.testing.assert_allclose(found, expected[name], rtol=1e-12, atol=1e-14, err_msg=name)


def test_an_update_that_is_to_be_skipped_changes_no_bit():
    model = Model(torch.float32)
    optimizer = optimizer_of(Lion(), model)
    for step, found_inf in enumerate((0.0, 1.0, 0.0)):
        set_gradients(model, step)
        before = [p.clone() for p in model.parameters()]
        if found_inf:
            next(model.parameters()).grad.fill_(torch.nan)
            momenta = [state["exp_avg"].clone() for state in optimizer.state.values()]
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        pairs = zip(model.parameters(), before, strict=True)
        assert [torch.equal(*pair) for pair in pairs] == [bool(found_inf)] * 3
        if found_inf:
            now = [state["exp_avg"] for state in optimizer.state.values()]
            assert all(map(torch.equal, now, momenta))
