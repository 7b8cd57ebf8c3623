"""Fits of scaling laws: constants of made-up runs, other optimizers, best use of a budget."""

from __future__ import annotations

import numpy as np
import pytest
from scaling_coverage import DESIGNS, TRUTH, isoflop
from scipy.optimize import least_squares, minimize, minimize_scalar

from forge.scaling_laws import frontier, huber, law
from forge.scaling_laws.frontier import Curve, Frontier
from forge.scaling_laws.law import Flops, Law, law_of
from forge.scaling_laws.projection import fit

LAWS = [
    TRUTH,
    Law(E=0.5, A=80.0, alpha=0.2, B=3000.0, beta=0.45),
    Law(E=2.2, A=5e4, alpha=0.62, B=900.0, beta=0.33),
]
PLACES = list(DESIGNS.values())


def close(found: Law, truth: Law, tolerance: float) -> bool:
    names = ("E", "A", "alpha", "B", "beta")
    return all(abs(getattr(found, name) / getattr(truth, name) - 1) < tolerance for name in names)


@pytest.mark.parametrize("truth", LAWS)
@pytest.mark.parametrize("places", PLACES, ids=list(DESIGNS))
def test_variable_projection_recovers_the_constants(truth: Law, places: tuple) -> None:
    found = fit(np.stack(places), truth.loss(*places))
    assert close(law_of(found), truth, 1e-6)


def test_the_law_over_compute_is_recovered() -> None:
    compute = np.geomspace(1e12, 1e15, 6)
    found = fit(compute[None], 1.2 + 300 / compute**0.15)
    assert found.coefficients[0] == pytest.approx([1.2, 300], rel=1e-6)
    assert found.exponents[0] == pytest.approx([0.15], rel=1e-6)


@pytest.mark.parametrize("truth", LAWS)
def test_approach_three_recovers_the_constants(truth: Law) -> None:
    sizes, tokens = PLACES[0]
    found = huber.fit_huber(np.stack([sizes, tokens]), truth.loss(sizes, tokens))
    assert close(law_of(found), truth, 1e-6)


@pytest.mark.parametrize("floor", [1.69, -0.6])
def test_variable_projection_agrees_with_scipy(floor: float) -> None:
    """Against a bounded trust-region fit of all five parameters; below a floor of 0, E is 0."""
    sizes, tokens = PLACES[2]
    random = np.random.default_rng(3)
    truth = Law(E=floor, A=406.4, alpha=0.34, B=410.7, beta=0.28)
    losses = truth.loss(sizes, tokens) + 0.01 * random.standard_normal(len(sizes))
    found = fit(np.stack([sizes, tokens]), losses)
    n, d = (np.log(values) - np.log(values).mean() for values in (sizes, tokens))

    def residuals(theta: np.ndarray) -> np.ndarray:
        e, a, alpha, b, beta = theta
        return e + a * np.exp(-alpha * n) + b * np.exp(-beta * d) - losses

    fits = [
        least_squares(
            residuals, (e, 0.5, p, 0.5, q), bounds=(0, 20), xtol=1e-15, ftol=1e-15, gtol=1e-15
        )
        for e in (0.1, 1.5)
        for p in (0.1, 0.4, 1.0)
        for q in (0.1, 0.4, 1.0)
    ]
    best = min(fits, key=lambda fitted: fitted.cost)
    assert (found.residuals**2).sum() / 2 == pytest.approx(best.cost, rel=1e-9)
    assert found.exponents[0] == pytest.approx(best.x[[2, 4]], rel=1e-4)
    assert found.scaled[0] == pytest.approx(best.x[[0, 1, 3]], rel=1e-4, abs=1e-8)
    assert (found.scaled[0, 0] == 0) == (floor < 0)


def test_approach_three_is_as_low_as_scipys_l_bfgs() -> None:
    """With an outlier, that Huber's loss gives little weight."""
    sizes, tokens = PLACES[0]
    losses = TRUTH.loss(sizes, tokens) + 0.005 * np.random.default_rng(5).standard_normal(25)
    losses[7] += 0.4
    found = huber.fit_huber(np.stack([sizes, tokens]), losses)
    n, d, target = np.log(sizes), np.log(tokens), np.log(losses)

    def value(theta: np.ndarray) -> float:
        e, a, alpha, b, beta = theta
        fitted = np.logaddexp(e, np.logaddexp(a - alpha * n, b - beta * d))
        size = np.abs(fitted - target)
        return float(np.where(size < 1e-3, size**2 / 2, 1e-3 * (size - 5e-4)).sum() * 1e6)

    e, a, b = np.log(found.coefficients[0])
    ours = np.array([e, a, found.exponents[0, 0], b, found.exponents[0, 1]])
    start = [np.log(v) for v in (TRUTH.E, TRUTH.A)] + [TRUTH.alpha, np.log(TRUTH.B), TRUTH.beta]
    theirs = minimize(value, start, method="L-BFGS-B", options={"maxiter": 5000, "maxfun": 50000})
    assert value(ours) <= theirs.fun * (1 + 1e-9)
    assert law_of(found).alpha == pytest.approx(TRUTH.alpha, abs=0.03)
    plain = fit(np.stack([sizes, tokens]), losses)
    assert abs(plain.exponents[0, 0] - TRUTH.alpha) > abs(found.exponents[0, 0] - TRUTH.alpha)


@pytest.mark.parametrize("flops", [Flops(), Flops(factor=90.0, power=0.85)])
def test_the_best_size_is_the_lowest_loss_of_a_budget(flops: Flops) -> None:
    powers = fit(np.stack(PLACES[0]), TRUTH.loss(*PLACES[0]))

    def loss(log_size: float) -> float:
        size = np.exp(log_size)
        return float(TRUTH.loss(size, flops.tokens(1e21, size)))

    searched = minimize_scalar(loss, bounds=(10, 35), method="bounded", options={"xatol": 1e-10})
    assert np.log(law.best_size(powers, 1e21, flops)[0]) == pytest.approx(searched.x, abs=1e-5)
    assert law.least_loss(powers, 1e21, flops)[0] == pytest.approx(searched.fun, rel=1e-9)
    a, ten = law.size_exponent(powers, flops)[0], law.best_size(powers, 1e22, flops)[0]
    assert np.log10(ten / law.best_size(powers, 1e21, flops)[0]) == pytest.approx(a, rel=1e-9)


def test_approach_two_recovers_the_exponents() -> None:
    """Exactly where all budgets have the same multiples of their best size; else within 0.001."""
    a = TRUTH.beta / (TRUTH.alpha + TRUTH.beta)
    sizes, tokens = isoflop(4)
    found = frontier.isoflop(6 * sizes * tokens, sizes, tokens, TRUTH.loss(sizes, tokens))
    assert isinstance(found, Frontier)
    assert (found.a, found.b) == pytest.approx((a, 1 - a), abs=1e-6)
    every = np.geomspace(2e7, 1e10, 14)
    pairs = [
        (size, compute / 6 / size)
        for compute, middle in zip(np.geomspace(1e18, 1e21, 4), sizes[2::5], strict=True)
        for size in every[(every > middle / 5) & (every < middle * 5)]
    ]
    sizes, tokens = np.array(pairs).T
    found = frontier.isoflop(6 * sizes * tokens, sizes, tokens, TRUTH.loss(sizes, tokens))
    assert isinstance(found, Frontier)
    assert (found.a, found.b) == pytest.approx((a, 1 - a), abs=1e-3)


def test_approach_one_recovers_the_exponents_within_their_steps() -> None:
    """17 sizes over four decades: the best size moves in steps, and the exponent is 0.005 off."""
    curves = []
    for size in np.geomspace(1e7, 1e11, 17):
        tokens = np.geomspace(size / 2, 300 * size, 200)
        losses = TRUTH.loss(size, tokens)
        curves.append(
            Curve(parameters=size, compute=6 * size * tokens, tokens=tokens, losses=losses)
        )
    found = frontier.envelope(curves)
    assert isinstance(found, Frontier)
    a = TRUTH.beta / (TRUTH.alpha + TRUTH.beta)
    assert (found.a, found.b) == pytest.approx((a, 1 - a), abs=5e-3)
    assert frontier.envelope(curves[:3]) == "it takes curves of four sizes or more"


def test_a_parabola_without_a_lowest_point_is_named() -> None:
    sizes = np.array([1e6, 2e6, 4e6] * 2)
    compute = np.repeat([1e12, 1e14], 3)
    tokens = compute / 6 / sizes
    falling, hill = [3.0, 2.8, 2.7], [2.0, 2.1, 2.0]
    first, second = frontier.parabolas(compute, sizes, np.array(falling + hill))
    assert first.why == "the lowest loss lies beyond the largest size"
    assert second.why == "the losses have no lowest point between the sizes"
    reason = frontier.isoflop(compute, sizes, tokens, np.array(falling + hill))
    assert isinstance(reason, str)
    assert "at 1e+12 FLOPs the lowest loss lies beyond the largest size" in reason
    alone = frontier.isoflop(compute[:3], sizes[:3], tokens[:3], np.array(falling))
    assert alone == "it takes two budgets or more, each with runs of three sizes"
