"""Steps whose loss or gradient is not finite leave no trace in the weights, are counted, and end
the run when there are too many.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_helpers import assert_bit_equal, logged, weights
from test_update import as_step, decoder, global_batches, make_update, scaler_of

from forge.config.objective import Pretrain as PretrainConfig
from forge.config.optimizer import AdamW as AdamWConfig
from forge.config.train import Train
from forge.objectives.pretrain import Pretrain
from forge.optim.adamw import adamw
from forge.training.assemble import Parts
from forge.training.state import TrainState
from forge.training.step import StepOutput
from forge.training.stopping import BadSteps


class Poisoned:
    """The usual objective, but at the chosen calls its loss, or its gradient, is not finite."""

    def __init__(
        self, *, loss: tuple[int, ...] = (), gradient: tuple[int, ...] = (), value: float = math.nan
    ) -> None:
        self.real = Pretrain(PretrainConfig())
        self.loss, self.gradient, self.value, self.calls = loss, gradient, value, 0

    def __call__(self, model: Any, batch: Any) -> Any:
        losses, call = self.real(model, batch), self.calls
        self.calls += 1
        if call in self.gradient:
            losses.total.register_hook(lambda gradient: gradient * self.value)
        return SimpleNamespace(
            total=losses.total + self.value if call in self.loss else losses.total, sums=losses.sums
        )


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{index}/{key}": value.clone()
        for index, entries in state.items()
        for key, value in entries.items()
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("on_device", [False, True], ids=["host", "found_inf"])
def test_a_skipped_update_equals_a_plain_loop_that_leaves_it_out(
    on_device: bool, where: str, value: float
) -> None:
    """Weight decay and moments too, when one of several micro-batches is bad; the learning rate
    goes on with the number of the step.
    """
    data, section = global_batches(masked=False), AdamWConfig(lr=0.01, weight_decay=0.1, fused=True)

    def schedule(number: int) -> float:
        return 1.0 / (1 + number)

    reference = decoder(torch.float32)
    by_hand = adamw(section, model=reference)
    plain = make_update(reference, by_hand, clip=1.0, schedule=schedule)
    for number in (0, 2, 3):
        plain(as_step(*data[number], 2), number)

    model = decoder(torch.float32)
    optimizer = adamw(section, model=model)
    assert optimizer._step_supports_amp_scaling  # type: ignore[attr-defined]
    # Two micro-batches a step: the fourth call is the second half of step 1.
    update = make_update(
        model,
        optimizer,
        clip=1.0,
        schedule=schedule,
        objective=Poisoned(**{where: (3,)}, value=value),
    )
    assert not update.skips_on_device
    update.skips_on_device = on_device
    for number, pair in enumerate(data):
        before, state = weights(model), state_of(optimizer)
        output = update(as_step(*pair, 2), number)
        assert bool(output.skipped) is (number == 1)
        assert all(p.grad is None for p in model.parameters())
        if number == 1:
            assert_bit_equal(weights(model), before)
            assert_bit_equal(state_of(optimizer), state)
            assert math.isfinite(output.loss) is (where == "gradient")
    assert_bit_equal(weights(model), weights(reference))
    assert_bit_equal(state_of(optimizer), state_of(by_hand))
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize("fused", [True, False])
def test_in_fp16_an_overflow_counts_only_when_no_smaller_scale_is_left(fused: bool) -> None:
    data = global_batches(masked=False)
    skipped, scales = [], []
    scaler = scaler_of("fp16", init_loss_scale=2.0)
    model = decoder(torch.float32)
    update = make_update(
        model,
        adamw(AdamWConfig(lr=0.01, fused=fused), model=model),
        objective=Poisoned(gradient=(0, 1, 2), loss=(3,)),
        scaler=scaler,
    )
    before = weights(model)
    for number, pair in enumerate(data):
        skipped.append(bool(update(as_step(*pair, 1), number).skipped))
        scales.append(scaler.get_scale())
    assert skipped == [False, False, True, True]  # at the scales 2, 1, 1/2; a loss counts at any
    assert scales == [
        1.0,
        0.5,
        0.25,
        0.25,
    ]  # the loss alone was bad at the last one, which the scaler does not see
    assert_bit_equal(weights(model), before)


def test_a_norm_that_overflows_is_no_gradient_to_step_with() -> None:
    """All gradients are finite, but their norm is not: clipping by the norm would set them to 0,
    and weight decay would act.
    """
    model = decoder(torch.float32)
    update = make_update(
        model,
        adamw(AdamWConfig(lr=0.01, fused=False), model=model),
        clip=1.0,
        objective=Poisoned(gradient=(0,), value=3e38),
    )
    before = weights(model)
    output = update(as_step(*global_batches(masked=False)[0], 1), 0)
    assert bool(output.skipped)
    assert output.grad_norm.item() == math.inf
    assert_bit_equal(weights(model), before)


def output(skipped: bool, *, loss: float = 1.0) -> StepOutput:
    one = torch.tensor(1.0)
    return StepOutput(
        n_targets=4,
        lr=0.1,
        loss=torch.tensor(loss),
        grad_norm=one,
        skipped=torch.tensor(skipped),
        sums={"ce": one},
    )


class Spy(SimpleNamespace):
    """A loop as far as the guard sees it."""

    ending = False

    def end(self, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize(("bad", "reason"), [([True], "bad_steps"), ([False, True, True], None)])
def test_what_goes_on_has_no_further_patience_until_a_good_step(
    bad: list[bool], reason: str | None, tmp_path: Path
) -> None:
    """Else the same command again and again would take a run that has diverged to its end."""
    loop = Spy(state=TrainState(), reason=None, loader=SimpleNamespace(samples_per_step=8))
    for steps in ([True, True, True], bad):
        loop.reason = None
        guard = BadSteps(Train(max_bad_steps=3), interval=10, checkpoints=tmp_path)
        for one in steps:
            loop.state.step += 1
            guard.on_step_end(loop, output(one))  # type: ignore[arg-type]
    assert loop.reason == reason


def poisoned(parts: Parts, **where: Any) -> Parts:
    parts.loop.update.objective = Poisoned(**where)
    return parts


def test_the_message_and_the_state_it_leaves(
    assembled: Callable[..., Parts], caplog: pytest.LogCaptureFixture
) -> None:
    parts = poisoned(
        assembled("train.max_bad_steps=3", "train.max_steps=9"), loss=(2, 3, 4), gradient=(0,)
    )
    before: dict[str, torch.Tensor] = {}
    guard = next(c for c in parts.loop.callbacks if isinstance(c, BadSteps))
    real = parts.loop.update.optimizer.register_step_post_hook(
        lambda *_: before.update(weights(parts.model))
    )
    with caplog.at_level(logging.WARNING):
        assert parts.loop.run() == "bad_steps"
    real.remove()
    assert_bit_equal(weights(parts.model), before)
    assert (parts.loop.state.step, parts.loop.state.skipped, parts.loop.state.bad_in_a_row) == (
        5,
        4,
        2,
    )
    saved = guard.checkpoints / "step_5"
    assert json.loads((saved / "meta.json").read_text())["train"]["skipped"] == 4
    assert guard.fault == (
        "the loss was not finite in steps 3 to 5, which is "
        "train.max_bad_steps=3 or more in a row. Their updates were skipped: "
        f"{saved} holds the weights as they were before them. Lower optimizer.lr or "
        "train.grad_clip_norm; debug=anomaly names the operation; the data were samples 8 to 19"
    )
    said = [record.getMessage() for record in caplog.records if "not finite" in record.getMessage()]
    assert said == [
        (
            "step 1 is skipped, since its gradient norm is not finite; a lower "
            "optimizer.lr may help, and debug=anomaly names the operation"
        )
    ]


def test_skipped_steps_are_left_out_of_the_loss_and_data_and_schedule_go_on(
    assembled: Callable[..., Parts],
) -> None:
    options = (
        "metrics.log_interval=2",
        "train.max_steps=6",
        "optimizer.lr=1e-30",
        "optimizer.weight_decay=0",
    )
    # With no learning rate to speak of each step's loss is that of its data, whichever updates are
    # made.
    whole, holed = (
        assembled(*options, "metrics.log_interval=1"),
        poisoned(assembled(*options), loss=(1, 4, 5)),
    )
    for parts in (whole, holed):
        parts.loop.run()
    losses, found = (logged(parts.loop.run_dir, "train/loss") for parts in (whole, holed))
    assert found == {
        2: losses[1],
        4: pytest.approx((losses[3] + losses[4]) / 2, rel=1e-12),
        6: None,
    }
    assert logged(holed.loop.run_dir, "skipped_steps") == {2: 1, 4: 1, 6: 3}
    rates = logged(whole.loop.run_dir, "lr")
    assert logged(holed.loop.run_dir, "lr") == {step: rates[step] for step in (2, 4, 6)}
    assert logged(holed.loop.run_dir, "tokens") == {step: step * 64 for step in (2, 4, 6)}
