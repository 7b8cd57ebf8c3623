"""Objectives on preferences against numpy, and what they report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusing import SMALL, resolved
from test_pretrain import TinyModel

from forge.adapters.adapter import adapters_off
from forge.build import build
from forge.config.adapters.adapter import is_added
from forge.config.objectives.preference import CPO, DPO, ORPO, Preference, SimPO
from forge.models.head import Head
from forge.models.plain import make_model
from forge.objectives import preference
from forge.objectives.log_probs import log_probs
from forge.parallel.ranks import Ranks
from forge.training.models import build_model
from forge.training.step import look_ahead

VOCAB, PAIRS, SEQ, BETA = 19, 3, 7, 0.3


def batch() -> dict[str, torch.Tensor]:
    """The last pair has no rejected response: it fills up a batch and does not count."""
    draw = np.random.default_rng(1)
    tokens, targets = draw.integers(VOCAB, size=(2, 2 * PAIRS, SEQ))
    for row, (first, stop) in enumerate(zip((2, 3, 1, 4, 2, 7), (5, 7, 2, 6, 4, 7), strict=True)):
        targets[row, :first] = targets[row, stop:] = -100
    found = {"tokens": torch.from_numpy(tokens), "targets": torch.from_numpy(targets)}
    return found | {"reference": torch.from_numpy(draw.normal(-6, 1, size=2 * PAIRS))}


def by_hand(model: Any, data: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of each response, and its tokens: [pairs, 2], in numpy."""
    with torch.no_grad():
        logits = model(data["tokens"]).numpy()
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = data["targets"].numpy()
    each = np.take_along_axis(log_p, targets.clip(0)[..., None], -1)[..., 0] * (targets != -100)
    return each.sum(1).reshape(-1, 2), (targets != -100).sum(1).reshape(-1, 2)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def ratio(logp: np.ndarray, n: np.ndarray, ref: np.ndarray) -> np.ndarray:
    return (logp - ref)[:, 0] - (logp - ref)[:, 1]


def orpo(logp: np.ndarray, n: np.ndarray, ref: np.ndarray) -> np.ndarray:
    mean = logp / n
    odds = np.exp(mean) / (1 - np.exp(mean))
    return -mean[:, 0] + BETA * softplus(-np.log(odds[:, 0] / odds[:, 1]))


def smoothed(x: np.ndarray, wrong: float) -> np.ndarray:
    return (1 - wrong) * softplus(-x) + wrong * softplus(x)


CASES: dict[str, tuple[Preference, Any]] = {
    "dpo": (DPO(beta=BETA), lambda *a: softplus(-BETA * ratio(*a))),
    "dpo, smoothed": (
        DPO(beta=BETA, label_smoothing=0.2),
        lambda *a: smoothed(BETA * ratio(*a), 0.2),
    ),
    "dpo, hinge": (
        DPO(beta=BETA, loss_fn="hinge"),
        lambda *a: np.maximum(1 - BETA * ratio(*a), 0),
    ),
    "dpo, ipo": (
        DPO(beta=BETA, loss_fn="ipo"),
        lambda p, n, r: (ratio(p / n, n, r / n) - 1 / (2 * BETA)) ** 2,
    ),
    "dpo, no reference": (
        DPO(beta=BETA, reference_free=True),
        lambda p, n, r: softplus(-BETA * ratio(p, n, 0 * r)),
    ),
    "orpo": (ORPO(lambda_weight=BETA), orpo),
    "simpo": (
        SimPO(beta=BETA, gamma=0.5),
        lambda p, n, r: softplus(0.5 - BETA * ratio(p / n, n, 0 * r)),
    ),
    "cpo": (
        CPO(beta=BETA, nll_weight=0.7),
        lambda p, n, r: softplus(-BETA * ratio(p, n, 0 * r)) - 0.7 * (p / n)[:, 0],
    ),
    "cpo, ipo": (
        CPO(beta=BETA, nll_weight=0, loss_fn="ipo"),
        lambda p, n, r: (ratio(p, n, 0 * r) - 1 / (2 * BETA)) ** 2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_by_hand(name: str) -> None:
    """The gradient by differences of the loss of numpy, in one direction."""
    section, loss_of = CASES[name]
    model, data, objective = TinyModel(), batch(), built(section)
    if getattr(section, "reference_free", False):
        del data["reference"]

    def wanted() -> float:
        logp, n = by_hand(model, data)
        known = data.get("reference", torch.zeros(2 * PAIRS)).numpy().reshape(-1, 2)
        return float(loss_of(logp[:-1], n[:-1], known[:-1]).sum())

    losses = objective(model, data)
    assert losses.total.item() == pytest.approx(wanted(), rel=1e-12)
    losses.total.backward()
    direction = [torch.randn_like(p) for p in model.parameters()]
    along = sum(
        float((p.grad * d).sum()) for p, d in zip(model.parameters(), direction, strict=True)
    )
    around = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for p, d in zip(model.parameters(), direction, strict=True):
                p += step * d
        around.append(wanted())
    assert along == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-6)


def built(section: Preference) -> Any:
    return build(section, path="objective")


def test_what_is_reported() -> None:
    model, data = TinyModel(), batch()
    logp, _ = by_hand(model, data)
    rewards = BETA * (logp - data["reference"].numpy().reshape(-1, 2))[:-1]
    objective = built(CASES["dpo"][0])
    found = objective.metrics({k: float(v) for k, v in objective.evaluate(model, data).items()})
    margin = rewards[:, 0] - rewards[:, 1]
    assert found == pytest.approx(
        {
            "loss": softplus(-margin).mean(),
            "accuracy": (margin > 0).mean(),
            "margin": margin.mean(),
            "reward_chosen": rewards[:, 0].mean(),
            "reward_rejected": rewards[:, 1].mean(),
            "logp_chosen": logp[:-1, 0].mean(),
            "logp_rejected": logp[:-1, 1].mean(),
            "kl": rewards.mean() / BETA,
        },
        rel=1e-12,
    )


def test_odds_of_responses_that_are_unlikely_or_certain_do_not_overflow() -> None:
    """Log-probabilities of -120 and -130, of which exp(sum) is 0, and of 0."""
    objective = built(ORPO())
    logp = torch.tensor([-120.0, 0.0], requires_grad=True)
    pair = preference.paired(torch.stack([logp, logp - 10]).T.flatten(), torch.ones(4))
    loss = objective.compare(pair, {}).loss.sum()
    loss.backward()
    assert loss.isfinite()
    assert logp.grad is not None
    assert logp.grad.isfinite().all()


@pytest.mark.parametrize("capped", [0.0, 5.0])
def test_log_probs_equal_those_of_all_logits(capped: float) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2, SEQ, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(VOCAB, (2, SEQ))
    targets[0, :3] = -100
    head = Head(weight, multiplier=0.7, cap=capped)
    found = log_probs(hidden, head, targets, chunk_size=4)
    picked = head.logits(hidden).log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])
    wanted = picked[..., 0].where(targets != -100, 0)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    factors = torch.randn_like(wanted)
    for ours, theirs in zip(
        torch.autograd.grad((found * factors).sum(), [hidden, weight]),
        torch.autograd.grad((wanted * factors).sum(), [hidden, weight]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("words", ["objective=dpo data=preference", "objective=kto data=labelled"])
def test_the_model_without_its_adapter_is_a_frozen_copy_of_its_base(words: str) -> None:
    """Loss and gradients, and none of the base."""
    options = (
        f"{words} data.path={__file__} adapter=lora adapter.rank=2 adapter.dropout=0 run.device=cpu"
    )
    config = resolved([*SMALL, *options.split(), "objective.reference=adapter"]).config
    model: Any = build_model(config, torch.device("cpu"), Ranks(), torch.float64)
    base: Any = make_model(config.model).double().requires_grad_(False)
    base.load_state_dict({n: v for n, v in model.state_dict().items() if not is_added(n)})
    generator = torch.Generator().manual_seed(1)
    for name, values in model.named_parameters():
        if is_added(name):
            with torch.no_grad():
                values.add_(torch.randn(values.shape, generator=generator, dtype=values.dtype) / 9)
    found = []
    for reference, models in (("adapter", {}), ("copy", {"reference": base})):
        section = type(config.objective)(reference=reference, beta=BETA)  # type: ignore[call-arg]
        objective = build(section, path="objective", models=models)
        objective.without_adapter = adapters_off
        data = batch()
        del data["reference"]
        data["liked"] = torch.tensor([True, True, False, False, True, True])
        (ready,) = look_ahead(model, objective, [data], Ranks()).batches
        total = objective(model, ready).total
        total.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        found.append((total.item(), grads))
    (loss, grads), (wanted, by_copy) = found
    assert loss == pytest.approx(wanted, rel=1e-14)
    assert all(map(is_added, grads))
    assert grads.keys() == by_copy.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, by_copy[name], rtol=1e-12, atol=1e-14)
    at_first = {"objective=dpo": np.log(2), "objective=kto": 0.5}[words.split()[0]]
    assert abs(loss / (PAIRS - 1) - at_first) > 1e-3
