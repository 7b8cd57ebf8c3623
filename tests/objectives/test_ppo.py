"""PPO with a value head: advantages by their closed form, and the loss against plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_grpo_trl import DIM, FP64, LENGTHS, MOST, Table, completions
from torch import Tensor, nn

from forge.config.objectives.grpo import GRPO as Section
from forge.objectives.grpo import GRPO
from forge.objectives.value_head import ValueHead
from forge.rollouts.batches import collate, learnt_tokens, weights_of
from forge.rollouts.completion import Completion
from forge.rollouts.gae import advance_by_values, gae
from forge.rollouts.report import report_of

TOTALS = [1.5, -0.25, 0.0, 2.0]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (0.97, 1.0), (0.9, 0.0)])
def test_gae_is_its_closed_form(gamma: float, lam: float) -> None:
    """A_t = sum over l of (gamma lambda)^l d_(t+l): a matrix product, without recursion."""
    draw = np.random.default_rng(0)
    rewards, values = draw.normal(size=9), draw.normal(size=9)
    differences = rewards + gamma * np.append(values[1:], 0) - values
    steps = np.arange(9)[None] - np.arange(9)[:, None]
    powers = np.where(steps >= 0, (gamma * lam) ** np.maximum(steps, 0), 0.0)
    advantages = gae(rewards, values, gamma=gamma, lam=lam)
    np.testing.assert_allclose(advantages, powers @ differences, rtol=0, atol=1e-13)
    if lam == 1:  # discounted returns less values
        returns = np.where(steps >= 0, gamma ** np.maximum(steps, 0), 0.0) @ rewards
        np.testing.assert_allclose(advantages, returns - values, rtol=0, atol=1e-13)


def section(**options: Any) -> Section:
    common = {"advantage": "gae", "aggregation": "token_mean", "gamma": 0.9, "lam": 0.8}
    return Section(**{**common, "vf_coef": 0.3, "cliprange_value": 0.2, **options})


def with_values(rows: list[Completion]) -> list[Completion]:
    draw = np.random.default_rng(1)
    for row in rows:
        row.values = draw.normal(size=len(row.ids)).tolist()
    return rows


def test_replies_are_passed_over_and_the_divergence_is_each_tokens() -> None:
    """A completion with a reply in the middle has the numbers of one without; whitened tokens of
    all rows together have mean 0 and deviation 1, and returns are not whitened.
    """
    options = {"beta": 0.3, "kl_in": "reward"}
    plain, _ = completions()
    spread, _ = completions()
    draw = np.random.default_rng(2)
    for ours, other in zip(with_values(plain), with_values(spread), strict=True):
        other.mask = [1, 0, 0, *[1] * (len(ours.ids) - 1)]
        other.ids = [ours.ids[0], 0, 0, *ours.ids[1:]]
        for name in ("values", "old", "reference", "logprobs"):
            line = getattr(ours, name)
            setattr(other, name, [line[0], *draw.normal(size=2).tolist(), *line[1:]])
    raw = section(whiten_advantages=False, **options)
    advance_by_values(raw, plain, TOTALS)
    advance_by_values(raw, spread, TOTALS)
    for ours, other, total in zip(plain, spread, TOTALS, strict=True):
        assert [other.advantages[0], *other.advantages[3:]] == ours.advantages
        assert other.advantages[1:3] == other.returns[1:3] == [0.0, 0.0]
        rewards = -0.3 * (np.array(ours.old) - np.array(ours.reference))
        rewards[-1] += total
        expected = gae(rewards, np.array(ours.values), gamma=0.9, lam=0.8)
        np.testing.assert_allclose(ours.advantages, expected, rtol=0, atol=1e-14)
        np.testing.assert_allclose(ours.returns, expected + ours.values, rtol=0, atol=1e-14)
    before = np.concatenate([row.advantages for row in plain])
    returns = [row.returns for row in plain]
    advance_by_values(section(**options), plain, TOTALS)
    after = np.concatenate([row.advantages for row in plain])
    expected = (before - before.mean()) / np.sqrt(before.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-13)
    assert [row.returns for row in plain] == returns


def test_what_is_not_judged_or_not_learnt_is_in_no_mean() -> None:
    rows, _ = completions()
    rows[1].learnt = False
    advance_by_values(section(), with_values(rows), [1.0, 5.0, None, 2.0])
    assert [row.learnt for row in rows] == [True, False, False, True]
    counted = np.concatenate([rows[0].advantages, rows[3].advantages])
    assert abs(counted.mean()) < 1e-12
    assert abs(counted.std(ddof=1) - 1) < 1e-6


class Policy(Table):
    """The table with a value head."""

    def __init__(self) -> None:
        super().__init__(len(LENGTHS), 2 + MOST)
        self.value_head = ValueHead(DIM).to(FP64)
        nn.init.normal_(self.value_head.weight, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("clip_value", [0.0, 0.2])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_loss_and_gradient_are_those_of_plain_torch(clip_value: float, aggregation: str) -> None:
    """max of two squares, min of two products, by row and token, with a divergence in the loss."""
    options = {"aggregation": aggregation, "cliprange_value": clip_value, "beta": 0.1}
    conf, policy = section(**options), Policy()
    rows = with_values(completions()[0])
    advance_by_values(conf, rows, TOTALS)
    batch = collate(rows, weights_of(conf, rows, MOST), 1 + MOST, dtype=FP64)
    losses = GRPO(conf)(policy, batch)  # type: ignore[arg-type]
    loss = losses.total / learnt_tokens(rows)
    expected, clipped = plain_loss(policy, rows, conf)
    assert abs(loss.item() - expected.item()) < 1e-10
    assert clipped == losses.sums["value_clip_ratio"].item()
    assert (clipped > 0) == (clip_value > 0)
    parameters = list(policy.parameters())
    ours, theirs = (torch.autograd.grad(value, parameters) for value in (loss, expected))
    for gradient, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 1e-3
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-10)


def plain_loss(policy: Policy, rows: list[Completion], conf: Section) -> tuple[Tensor, int]:
    total, clipped = torch.zeros((), dtype=FP64), 0
    n_tokens = sum(len(row.ids) for row in rows)
    for number, row in enumerate(rows):
        states = policy.states[number, 1 : 1 + len(row.ids)]
        logp = torch.log_softmax(states @ policy.output_weight.T, -1)
        logp = logp[torch.arange(len(row.ids)), torch.tensor(row.ids)]
        old, reference, old_value, returns, advantage = (
            torch.tensor(line, dtype=FP64)
            for line in (row.old, row.reference, row.values, row.returns, row.advantages)
        )
        ratio = torch.exp(logp - old)
        loss = -torch.minimum(ratio * advantage, torch.clip(ratio, 0.8, 1.2) * advantage)
        loss = loss + conf.beta * (torch.exp(reference - logp) - (reference - logp) - 1)
        value = states @ policy.value_head.weight
        square = (value - returns) ** 2
        if width := conf.cliprange_value:
            limited = old_value + torch.clip(value - old_value, -width, width)
            clipped += int(((limited - returns) ** 2 > square).sum())
            square = torch.maximum(square, (limited - returns) ** 2)
        loss = loss + conf.vf_coef * 0.5 * square
        per_token = conf.aggregation == "token_mean"
        total = total + (loss.sum() / n_tokens if per_token else loss.mean() / len(rows))
    return total, clipped


def test_a_value_that_is_the_return_explains_all_variance() -> None:
    rows = with_values(completions()[0])
    advance_by_values(section(), rows, TOTALS)
    for row in rows:
        row.reward = 1.0
    partly = report_of(rows, 2)["values/explained_variance"]
    for row in rows:
        row.values = list(row.returns)
    assert partly < 1
    assert report_of(rows, 2)["values/explained_variance"] == 1.0
