"""The loss of GRPO and its kin equals TRL's own `_compute_loss`, and closed forms in numpy."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from forge.config.objectives.grpo import GRPO as Section
from forge.objectives.grpo import GRPO
from forge.objectives.policy import divergence, policy_loss, ratio_of
from forge.rollouts.batches import collate, learnt_tokens, weights_of
from forge.rollouts.completion import Completion

FP64 = torch.float64
VOCAB, DIM, MOST = 13, 8, 6
LENGTHS = (6, 2, 4, 5)
# forge's options, and TRL's loss_type with its options
LOSSES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "grpo": ({"aggregation": "sequence_mean"}, "grpo", {}),
    "dr_grpo": ({"aggregation": "dr_grpo"}, "dr_grpo", {}),
    "dapo": ({"aggregation": "token_mean"}, "dapo", {}),
    "two_sided": ({"aggregation": "token_mean", "clip": "two_sided", "delta": 1.5}, "dapo", {}),
    "cispo": ({"aggregation": "token_mean", "clip": "cispo", "epsilon_high": 1.1}, "cispo", {}),
    "sapo": ({"aggregation": "sequence_mean", "clip": "sapo"}, "sapo", {}),
    "gspo": ({"aggregation": "sequence_mean", "ratio_level": "sequence"}, "grpo", {}),
    "luspo": ({"aggregation": "sequence_sum", "ratio_level": "sequence"}, "luspo", {}),
    "mismatch": (
        {"aggregation": "sequence_mean", "mismatch": "token_mask", "mismatch_max": 1.2},
        "grpo",
        {"use_vllm": True},
    ),
}


class Table(nn.Module):
    """A language model whose hidden states are rows of a table, by the position in the batch."""

    def __init__(self, rows: int, seq: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.states = nn.Parameter(torch.randn(rows, seq, DIM, dtype=FP64, generator=draw))
        self.output_weight = nn.Parameter(torch.randn(VOCAB, DIM, dtype=FP64, generator=draw))

    def hidden(self, tokens: Tensor, **_: Any) -> Tensor:
        return self.states[:, : tokens.shape[1]]


def completions(*, nearby: float = 0.5) -> tuple[list[Completion], Table]:
    """Completions with log-probabilities near the model's, so that some ratios are clipped."""
    draw = torch.Generator().manual_seed(1)
    table = Table(len(LENGTHS), 2 + MOST)
    rows = []
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(VOCAB, (length,), generator=draw).tolist()
        logits = table.states[number, 1 : 1 + length] @ table.output_weight.T
        logp = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].detach()
        noise = nearby * torch.randn(3, length, dtype=FP64, generator=draw)
        old, sampled, reference = (logp - each for each in noise)
        rows.append(
            Completion(
                prompt=number // 2,
                number=number % 2,
                prompt_text="",
                text="",
                finish="stop",
                advantage=[-1.3, 0.7, 0.4, -1.1][number],
                prompt_ids=[1, 2],
                ids=ids,
                logprobs=sampled.tolist(),
                old=old.tolist(),
                reference=reference.tolist(),
            )
        )
    return rows, table


def ours(section: Section, rows: list[Completion], table: Table) -> tuple[Tensor, list[Tensor]]:
    batch = collate(rows, weights_of(section, rows, MOST), 1 + MOST, dtype=FP64)
    losses = GRPO(section)(table, batch)  # type: ignore[arg-type]
    loss = losses.total / learnt_tokens(rows)
    return loss, list(torch.autograd.grad(loss, list(table.parameters())))


def theirs(
    loss_type: str, section: Section, rows: list[Completion], table: Table, **options: Any
) -> tuple[Tensor, list[Tensor]]:
    """TRL's `_compute_loss` of a stand-in trainer, of the same log-probabilities and entropies."""
    trl = pytest.importorskip("trl.trainer.grpo_trainer")

    def pad(values: list[Any], fill: float) -> list[Any]:
        return [*values, *[fill] * (MOST - len(values))]

    ids = torch.tensor([pad(row.ids, 0) for row in rows])
    mask = torch.tensor([pad([1] * len(row.ids), 0) for row in rows])

    def read(*_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        logp = (table.states[:, 1:] @ table.output_weight.T).log_softmax(-1)[:, :MOST]
        taken = logp.gather(-1, ids[..., None])[..., 0]
        return taken, -(logp.exp() * logp).sum(-1), None

    def lines(name: str) -> Tensor:
        return torch.tensor([pad(getattr(row, name), 0.0) for row in rows], dtype=FP64)

    args = SimpleNamespace(
        delta=section.delta if section.clip == "two_sided" else None,
        use_bias_correction_kl=False,
        sapo_temperature_pos=section.sapo_temperature_pos,
        sapo_temperature_neg=section.sapo_temperature_neg,
        steps_per_generation=1,
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=read,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=section.ratio_level,
        beta=section.beta,
        args=args,
        loss_type=loss_type,
        epsilon_low=section.epsilon,
        epsilon_high=section.epsilon if section.epsilon_high is None else section.epsilon_high,
        use_vllm=options.get("use_vllm", False),
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=MOST,
        accelerator=SimpleNamespace(
            num_processes=1, sync_gradients=True, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        _entropy_bonus_enabled=bool(section.entropy_bonus),
        use_adaptive_entropy=False,
        entropy_coef=section.entropy_bonus,
        _metrics={"train": Lists()},
    )
    inputs = {
        "prompt_ids": torch.ones(len(rows), 2, dtype=torch.int64),
        "prompt_mask": torch.ones(len(rows), 2, dtype=torch.int64),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor([row.advantage for row in rows], dtype=FP64),
        "old_per_token_logps": lines("old"),
        "ref_per_token_logps": lines("reference"),
        "num_items_in_batch": mask.sum(),
    }
    if options.get("use_vllm"):
        ratio = (lines("old") - lines("logprobs")).exp()
        inputs["importance_sampling_ratio"] = ratio.masked_fill(ratio > section.mismatch_max, 0)
    loss = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss, list(torch.autograd.grad(loss, list(table.parameters())))


class Lists(dict):
    def __missing__(self, name: str) -> list[float]:
        return self.setdefault(name, [])


@pytest.mark.nightly
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("bonus", [0.0, 0.05])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_trls(name: str, beta: float, bonus: float) -> None:
    options, loss_type, trl_options = LOSSES[name]
    section = Section(**{"epsilon": 0.2, "beta": beta, "entropy_bonus": bonus, **options})
    rows, table = completions()
    loss, gradients = ours(section, rows, table)
    expected, expected_gradients = theirs(loss_type, section, rows, table, **trl_options)
    assert abs(loss.item() - expected.item()) < 1e-10
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        assert other.abs().max() > 1e-3
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-10)


def test_clipping_is_exercised() -> None:
    rows, table = completions()
    section = Section(aggregation="token_mean")
    batch = collate(rows, weights_of(section, rows, MOST), 1 + MOST, dtype=FP64)
    sums = GRPO(section)(table, batch).sums  # type: ignore[arg-type]
    assert sums["clip_ratio/low_mean"] > 0
    assert sums["clip_ratio/high_mean"] > 0


def token_values() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    logp = -torch.rand(4, 5, dtype=FP64, generator=draw) * 3
    old = logp + torch.randn(4, 5, dtype=FP64, generator=draw)
    mask = torch.ones(4, 5, dtype=FP64)
    mask[1, 3:] = mask[2, 1:] = 0
    return (
        logp.requires_grad_(),
        old,
        mask,
        torch.tensor([[1.2], [-0.5], [0.3], [-2.0]], dtype=FP64),
    )


def test_dual_clip_and_sapo_are_their_closed_forms() -> None:
    logp, old, mask, advantages = token_values()
    a, r = advantages.numpy(), np.exp((logp - old).detach().numpy())
    ratio = ratio_of(Section(), logp, old, mask)
    loss = policy_loss(Section(clip="dual", dual_clip=1.7), logp, ratio, advantages).loss
    plain = np.maximum(-r * a, -np.clip(r, 0.8, 1.2) * a)
    expected = np.where(a < 0, np.minimum(plain, -1.7 * a), plain)
    assert (plain != expected).any()
    np.testing.assert_allclose(loss.detach(), expected, atol=1e-14)
    gate = policy_loss(Section(clip="sapo"), logp, ratio, advantages).loss
    tau = np.where(a > 0, 1.0, 1.05)
    expected = -4 / tau / (1 + np.exp(-tau * (r - 1))) * a
    np.testing.assert_allclose(gate.detach(), expected, atol=1e-14)


def test_gspo_token_has_the_value_and_with_one_advantage_the_gradient_of_gspo() -> None:
    logp, old, mask, advantages = token_values()
    difference = ((logp - old).detach() * mask).sum(1).numpy() / mask.sum(1).numpy()
    results = []
    for level in ("sequence", "sequence_token"):
        section = Section(ratio_level=level, epsilon=0.4)
        ratio = ratio_of(section, logp, old, mask)
        loss = policy_loss(section, logp, ratio, advantages).loss
        s = np.exp(difference)[:, None]
        a = advantages.numpy()
        expected = np.maximum(-s * a, -np.clip(s, 0.6, 1.4) * a)
        np.testing.assert_allclose(loss.detach().numpy()[:, :1], expected, atol=1e-14)
        by_sequence = (loss * mask / mask.sum(1, keepdim=True)).sum()
        results.append(torch.autograd.grad(by_sequence, logp)[0])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-14)
    assert results[0].abs().max() > 0.01


def test_the_expected_gradient_of_k2_and_k3_plus_is_that_of_the_divergence() -> None:
    """By enumeration of a vocabulary; k3 has the right mean, and another gradient."""
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(7, dtype=FP64, generator=draw, requires_grad=True)
    reference = torch.randn(7, dtype=FP64, generator=draw).log_softmax(0)
    logp = logits.log_softmax(0)
    p = logp.exp().detach()
    exact = (logp.exp() * (logp - reference)).sum()
    (gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    found = {}
    for estimate in ("k2", "k3", "k3_plus"):
        mean = (p * divergence(estimate, logp, reference)).sum()
        found[estimate] = torch.autograd.grad(mean, logits, retain_graph=True)[0]
        if estimate != "k2":
            assert abs(mean.item() - exact.item()) < 1e-12
    for estimate in ("k2", "k3_plus"):
        torch.testing.assert_close(found[estimate], gradient, rtol=0, atol=1e-12)
    assert (found["k3"] - gradient).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["rloo", "centred"])
def test_the_mean_gradient_of_a_bandit_by_enumeration(kind: str) -> None:
    """One-token completions of K arms, over all tuples of G: RLOO gives the gradient of the
    expected reward, and centring (G - 1) / G of it.
    """
    from forge.rollouts.advantages import advantages_of

    arms, group = 4, 3
    draw = torch.Generator().manual_seed(3)
    reward = torch.rand(arms, dtype=FP64, generator=draw)
    logits = torch.randn(arms, dtype=FP64, generator=draw, requires_grad=True)
    p = logits.softmax(0)
    (exact,) = torch.autograd.grad((p * reward).sum(), logits, retain_graph=True)
    section = Section(advantage=kind, clip="none", aggregation="sequence_sum")
    total = torch.zeros(arms, dtype=FP64)
    for arms_drawn in itertools.product(range(arms), repeat=group):
        index = torch.tensor(arms_drawn)
        values = advantages_of(kind, reward[index].tolist(), {}, {}, group)
        logp = logits.log_softmax(0)[index][:, None]
        ratio = ratio_of(section, logp, logp.detach(), torch.ones_like(logp))
        loss = (
            policy_loss(section, logp, ratio, torch.from_numpy(values)[:, None]).loss.sum() / group
        )
        (gradient,) = torch.autograd.grad(-loss, logits, retain_graph=True)
        total += p[index].prod().detach() * gradient
    factor = 1.0 if kind == "rloo" else (group - 1) / group
    torch.testing.assert_close(total, factor * exact, rtol=0, atol=1e-12)
