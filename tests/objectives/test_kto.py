"""objective=kto against numpy, over several micro-batches and in an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_preference import PAIRS, by_hand
from test_preference import batch as drawn
from test_pretrain import TinyModel

from forge.build import build
from forge.config.objectives.preference import KTO
from forge.parallel.ranks import Ranks
from forge.training.callbacks.evaluation import evaluate
from forge.training.step import look_ahead

BETA, GOOD, BAD = 0.3, 1.3, 0.6


def batches() -> list[dict[str, torch.Tensor]]:
    """Two of three examples each; the last example of each only fills it up."""
    found = []
    for number, liked in enumerate(([True, False, False], [True, True, False])):
        one = drawn()
        one["targets"][-2:] = -100
        one["reference"] -= 3 + number
        found.append(one | {"liked": torch.tensor(liked).repeat_interleave(2)})
    return found


def values(model: Any) -> dict[str, np.ndarray]:
    """Of the four examples, in numpy: log-ratios, also of mismatched responses, and labels."""
    each = []
    for one in batches():
        logp, _ = by_hand(model, one)
        ratio = logp - one["reference"].numpy().reshape(-1, 2)
        liked = one["liked"].numpy()[::2]
        each.append(np.stack([ratio[:, 0], ratio[:, 1], liked, logp[:, 0]])[:, : PAIRS - 1])
    names = ("ratio", "other", "liked", "logp")
    return dict(zip(names, np.concatenate(each, axis=1), strict=True))


def loss_of(found: dict[str, np.ndarray], kl: float) -> np.ndarray:
    """Equation 8 as it stands, each label by itself."""
    good = GOOD * (1 - 1 / (1 + np.exp(-BETA * (found["ratio"] - kl))))
    bad = BAD * (1 - 1 / (1 + np.exp(-BETA * (kl - found["ratio"]))))
    return np.where(found["liked"] == 1, good, bad)


@pytest.mark.parametrize("shift", [0.0, 12.0])
def test_loss_gradient_and_what_is_reported_by_hand(shift: float) -> None:
    """kl is one number over all examples, and a constant of the gradient; with references so high
    that it would be below 0, it is 0.
    """
    section = KTO(beta=BETA, desirable_weight=GOOD, undesirable_weight=BAD)
    model, objective = TinyModel(), build(section, path="objective")

    def shifted() -> list[dict[str, torch.Tensor]]:
        return [one | {"reference": one["reference"] + shift} for one in batches()]

    def wanted() -> dict[str, np.ndarray]:
        found = values(model)
        return found | {name: found[name] - shift for name in ("ratio", "other")}

    first = wanted()
    kl = max(first["other"].mean(), 0.0)
    assert (kl > 0) == (shift == 0)
    ready = look_ahead(model, objective, shifted(), Ranks()).batches
    total = sum(objective(model, one).total for one in ready)
    assert isinstance(total, torch.Tensor)
    assert total.item() == pytest.approx(loss_of(first, kl).sum(), rel=1e-12)
    total.backward()

    weights = list(model.parameters())
    direction = [torch.randn_like(p) for p in weights]
    along = sum(float((p.grad * d).sum()) for p, d in zip(weights, direction, strict=True))
    around = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            for p, d in zip(weights, direction, strict=True):
                p += step * d
        around.append(loss_of(wanted(), kl).sum())
    assert along == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-6)

    with torch.no_grad():
        for p, d in zip(weights, direction, strict=True):
            p += 1e-5 * d
    found = evaluate(model, objective, shifted(), device=torch.device("cpu"))
    liked, reward = first["liked"] == 1, BETA * first["ratio"]
    margin = np.where(liked, reward - BETA * kl, BETA * kl - reward)
    assert found == pytest.approx(
        {
            "loss": loss_of(first, kl).mean(),
            "accuracy": (margin > 0).mean(),
            "margin": margin.mean(),
            "kl": kl,
            "reward_desirable": reward[liked].mean(),
            "reward_undesirable": reward[~liked].mean(),
            "logp_desirable": first["logp"][liked].mean(),
            "logp_undesirable": first["logp"][~liked].mean(),
        },
        rel=1e-9,
    )
