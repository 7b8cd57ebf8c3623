"""Our own Adam, and that of Pax, against torch's AdamW and against formulas in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from updates import assert_close, by_numpy, groups_of, parameters_of, set_gradients, updates

from forge.config.optimizers.adam import Adam as Section
from forge.optim.adam import Adam, AdamPax

BETAS, EPS = (0.8, 0.95), 1e-3
OPTIONS: dict[str, Any] = {"lr": 1.0, "betas": BETAS, "eps": EPS}


def adam_in_numpy(*, eps_root=0.0, cautious=False):
    """Algorithm 2 of arXiv:1711.05101 with optax's eps_root and nanochat's cautious decay."""

    def rule(weight, gradient, state, step, rate, decay):
        beta1, beta2 = BETAS
        m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * gradient
        v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * gradient**2
        mean, variance = m / (1 - beta1**step), v / (1 - beta2**step)
        update = mean / (np.sqrt(variance + eps_root) + EPS)
        mask = (update * weight >= 0) if cautious else 1.0
        return weight - rate * update - rate * decay * weight * mask

    return rule


def test_without_options_it_is_torchs_adamw():
    ours, theirs = groups_of(), groups_of()
    found = updates(Adam(ours, Section(**OPTIONS)), parameters_of(ours))
    expected = updates(torch.optim.AdamW(theirs, **OPTIONS), parameters_of(theirs))
    assert_close(found, expected)


@pytest.mark.parametrize("kind", [Adam, AdamPax])
@pytest.mark.parametrize("eps_root", [0.0, 0.3])
@pytest.mark.parametrize("cautious", [False, True])
def test_eps_root_and_cautious_decay_are_those_of_numpy(kind, eps_root, cautious):
    groups = groups_of(cautious=cautious)
    found = updates(kind(groups, Section(**OPTIONS, eps_root=eps_root)), parameters_of(groups))
    assert_close(found, by_numpy(adam_in_numpy(eps_root=eps_root, cautious=cautious)))


def test_options_of_updates_change_them_by_far_more_than_rounding():
    plain = by_numpy(adam_in_numpy())
    for options in ({"eps_root": 0.3}, {"cautious": True}):
        other = by_numpy(adam_in_numpy(**options))
        assert np.abs(other[0] - plain[0]).max() > 1e-3


def test_moments_of_pax_are_means_from_the_first_update_on():
    """The formula of MaxText's adam_pax, whose decay rates depend on the update, from 0."""

    def rule(weight, gradient, state, step, rate, decay):
        b1, b2 = (b * (1 - b ** (step - 1)) / (1 - b**step) for b in BETAS)
        m = state["m"] = (1 - b1) * gradient + b1 * state.get("m", 0.0)
        v = state["v"] = (1 - b2) * gradient**2 + b2 * state.get("v", 0.0)
        return weight - rate * (m / (np.sqrt(v + 0.1) + EPS) + decay * weight)

    groups = groups_of()
    optimizer = AdamPax(groups, Section(**OPTIONS, eps_root=0.1))
    first = parameters_of(groups)[0]
    set_gradients(parameters_of(groups), 0)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[first]["exp_avg"], first.grad)
    groups = groups_of()
    found = updates(AdamPax(groups, Section(**OPTIONS, eps_root=0.1)), parameters_of(groups))
    assert_close(found, by_numpy(rule))


@pytest.mark.parametrize("mu_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("nu_dtype", ["fp32", "bf16"])
def test_moments_in_16_bits_are_rounded_after_the_update_that_they_made(mu_dtype, nu_dtype):
    """As optax does it; each in numpy with the same roundings, in fp32."""
    groups = groups_of(torch.float32)
    formats = {"mu_dtype": mu_dtype, "nu_dtype": nu_dtype}
    optimizer = Adam(groups, Section(**OPTIONS, **formats))
    found = updates(optimizer, parameters_of(groups))
    state = optimizer.state[parameters_of(groups)[0]]
    kept = {"fp32": torch.float32, "bf16": torch.bfloat16}
    assert state["exp_avg"].dtype == kept[mu_dtype]
    assert state["exp_avg_sq"].dtype == kept[nu_dtype]

    def rounded(values, to):
        values = values.astype(np.float32)
        if to == "fp32":
            return values
        bits = values.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000  # to the nearest, ties to even
        return bits.astype(np.uint32).view(np.float32)

    def rule(weight, gradient, state, step, rate, decay):
        beta1, beta2 = BETAS
        m = beta1 * state.get("m", np.zeros_like(weight)) + (1 - beta1) * gradient
        v = beta2 * state.get("v", np.zeros_like(weight)) + (1 - beta2) * gradient**2
        state["m"], state["v"] = rounded(m, mu_dtype), rounded(v, nu_dtype)
        update = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + EPS)
        return weight - rate * update - rate * decay * weight

    # A moment at the middle of two bf16 numbers may be rounded to the other one here.
    rtol = 3e-3 if "bf16" in formats.values() else 2e-5
    assert_close(found, by_numpy(rule, np.float32), rtol=rtol)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_small_beta_and_long_runs_keep_the_bits_of_the_correction(beta1):
    """1 - 0.9999**t in fp32 would be wrong in the fourth digit for the first update."""
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = Adam([weight], Section(lr=1.0, betas=(beta1, 0.9999), eps=1e-12, weight_decay=0.0))
    weight.grad = torch.full((3,), 7.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), -1.0), rtol=2e-6, atol=0)
