"""Learning rate factors at every boundary step, worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import cos, pi, sqrt

import pytest

from forge.config.scheduler import WSD, Constant, Cosine, Decay, Linear, NoSchedule, Rex
from forge.optim import schedules

W, S, D, R = 4, 3, 10, 0.2
LAST = W + D - 1


def test_none_is_the_peak_from_the_first_update():
    factor = schedules.none(NoSchedule())
    assert [factor(0), factor(1), factor(10**9)] == [1, 1, 1]


def test_constant_warms_up_linearly_and_stays():
    factor = schedules.constant(Constant(warmup_steps=4))
    assert [factor(step) for step in (0, 1, 2, 3, 4, 10**6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_no_warmup_starts_at_the_peak():
    assert schedules.constant(Constant(warmup_steps=0))(0) == 1


@pytest.mark.parametrize(
    ("schedule", "section", "expected"),
    [
        (
            schedules.cosine,
            Cosine(warmup_steps=W, decay_steps=D, min_lr_ratio=R),
            {
                W: 0.2 + 0.4 * (1 + cos(pi / 10)),
                W + 4: 0.6,  # halfway
                LAST - 1: 0.2 + 0.4 * (1 - cos(pi / 10)),
            },
        ),
        (
            schedules.linear,
            Linear(warmup_steps=W, decay_steps=D, min_lr_ratio=R),
            {W: 0.92, W + 4: 0.6, LAST - 1: 0.28},
        ),
        (
            schedules.rex,
            Rex(warmup_steps=W, decay_steps=D, min_lr_ratio=R),
            {W: 0.2 + 0.8 * 18 / 19, W + 4: 0.2 + 0.8 * 2 / 3, LAST - 1: 0.2 + 0.8 * 2 / 11},
        ),
        (
            schedules.rex,
            Rex(warmup_steps=W, decay_steps=D, min_lr_ratio=R, rex_alpha=2.0),
            {
                W: 0.2 + 0.8 * (18 / 19) ** 2,
                W + 4: 0.2 + 0.8 * 4 / 9,
                LAST - 1: 0.2 + 0.8 * 4 / 121,
            },
        ),
    ],
    ids=["cosine", "linear", "rex", "rex alpha 2"],
)
def test_decay_values(schedule, section, expected):
    factor = schedule(section)
    warmup = {0: 0.25, W - 2: 0.75, W - 1: 1.0}
    for step, value in (warmup | expected | {LAST: R, LAST + 1: R, 10**6: R}).items():
        assert factor(step) == pytest.approx(value, abs=1e-14), step
    assert factor(LAST) == R


@pytest.mark.parametrize(
    ("shape", "first", "middle", "before_last"),
    [
        ("cosine", 0.2 + 0.4 * (1 + cos(pi / 10)), 0.6, 0.2 + 0.4 * (1 - cos(pi / 10))),
        ("linear", 0.92, 0.6, 0.28),
        (
            "sqrt",
            0.2 + 0.8 * (1 - sqrt(0.1)),
            0.2 + 0.8 * (1 - sqrt(0.5)),
            0.2 + 0.8 * (1 - sqrt(0.9)),
        ),
    ],
)
def test_wsd_values(shape, first, middle, before_last):
    factor = schedules.wsd(
        WSD(warmup_steps=W, stable_steps=S, decay_steps=D, min_lr_ratio=R, wsd_decay_type=shape)
    )
    start, last = W + S, W + S + D - 1
    expected = {
        0: 0.25,
        W - 1: 1,
        W: 1,
        start - 1: 1,
        start: first,
        start + 4: middle,
        last - 1: before_last,
        last: R,
        last + 1: R,
        10**6: R,
    }
    for step, value in expected.items():
        assert factor(step) == pytest.approx(value, abs=1e-14), step


def test_wsd_without_a_stable_phase_decays_right_after_warmup():
    factor = schedules.wsd(
        WSD(warmup_steps=W, stable_steps=0, decay_steps=D, min_lr_ratio=R, wsd_decay_type="linear")
    )
    assert [factor(W - 1), factor(W)] == [1, pytest.approx(0.92)]


DECAYS = {
    "cosine": (schedules.cosine, Cosine),
    "linear": (schedules.linear, Linear),
    "rex": (schedules.rex, Rex),
}


@pytest.mark.parametrize(("schedule", "section"), DECAYS.values(), ids=DECAYS)
@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
def test_no_warmup_and_one_step_of_decay_end_exactly_at_the_floor(schedule, section, floor):
    factor = schedule(section(warmup_steps=0, decay_steps=1, min_lr_ratio=floor))
    assert [factor(0), factor(1)] == [floor, floor]


@pytest.mark.parametrize("shape", ["cosine", "linear", "sqrt", "rex"])
def test_the_decay_falls_at_every_step_and_nowhere_reaches_zero_early(shape):
    section: Decay = (
        Rex(warmup_steps=7, decay_steps=50, min_lr_ratio=0.0)
        if shape == "rex"
        else WSD(
            warmup_steps=7, stable_steps=0, decay_steps=50, min_lr_ratio=0.0, wsd_decay_type=shape
        )
    )
    factor = schedules.rex(section) if isinstance(section, Rex) else schedules.wsd(section)
    values = [factor(step) for step in range(7 + 50)]
    assert all(earlier < later for earlier, later in pairwise(values[:7]))
    assert all(earlier > later for earlier, later in pairwise(values[6:]))
    assert min(values[:-1]) > 0
    assert values[-1] == 0


def test_linear_equals_exact_fractions_over_a_whole_horizon():
    factor = schedules.linear(Linear(warmup_steps=13, decay_steps=87, min_lr_ratio=0.25))
    for step in range(110):
        exact = (
            Fraction(min(step + 1, 13), 13)
            if step < 13
            else 1 - Fraction(3, 4) * min(Fraction(1), Fraction(step - 12, 87))
        )
        assert factor(step) == pytest.approx(float(exact), rel=1e-15, abs=1e-16)
