"""Learning rate factors at every boundary step, worked out by hand."""

from __future__ import annotations

from math import cos, pi, sqrt

import pytest

from forge.config.optimizers.schedules import WSD, Constant, Cosine, Linear, NoSchedule, Rex
from forge.optim import schedules

W, S, D, R = 4, 3, 10, 0.2


def test_none_is_the_peak_from_the_first_update():
    factor = schedules.none(NoSchedule())
    assert [factor(0), factor(1), factor(10**9)] == [1, 1, 1]


def test_constant_warms_up_linearly_and_stays():
    factor = schedules.constant(Constant(warmup_steps=4))
    assert [factor(step) for step in (0, 1, 2, 3, 4, 10**6)] == [0.25, 0.5, 0.75, 1, 1, 1]


DECAY = {"warmup_steps": W, "decay_steps": D, "min_lr_ratio": R}
HALF_WAVE = (0.2 + 0.4 * (1 + cos(pi / 10)), 0.6, 0.2 + 0.4 * (1 - cos(pi / 10)))
STRAIGHT = (0.92, 0.6, 0.28)
ROOT = tuple(0.2 + 0.8 * (1 - sqrt(p)) for p in (0.1, 0.5, 0.9))
REX = tuple(0.2 + 0.8 * value for value in (18 / 19, 2 / 3, 2 / 11))
REX_2 = tuple(0.2 + 0.8 * value for value in ((18 / 19) ** 2, 4 / 9, 4 / 121))


@pytest.mark.parametrize(
    ("schedule", "section", "expected"),
    [
        (schedules.cosine, Cosine(**DECAY), HALF_WAVE),
        (schedules.linear, Linear(**DECAY), STRAIGHT),
        (schedules.rex, Rex(**DECAY), REX),
        (schedules.rex, Rex(**DECAY, rex_alpha=2.0), REX_2),
        (schedules.wsd, WSD(**DECAY, stable_steps=0, wsd_decay_type="linear"), STRAIGHT),
        (schedules.wsd, WSD(**DECAY, stable_steps=S, wsd_decay_type="cosine"), HALF_WAVE),
        (schedules.wsd, WSD(**DECAY, stable_steps=S, wsd_decay_type="linear"), STRAIGHT),
        (schedules.wsd, WSD(**DECAY, stable_steps=S, wsd_decay_type="sqrt"), ROOT),
    ],
)
def test_values(schedule, section, expected):
    """expected: at the first step of the decay, halfway, and at the last but one."""
    factor, start = schedule(section), W + getattr(section, "stable_steps", 0)
    last = start + D - 1
    found = {0: 0.25, W - 2: 0.75, W - 1: 1.0, start - 1: 1.0}
    found |= dict(zip((start, start + 4, last - 1), expected, strict=True))
    for step, value in (found | {last: R, last + 1: R, 10**6: R}).items():
        assert factor(step) == pytest.approx(value, abs=1e-14), step
    assert factor(last) == R


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
