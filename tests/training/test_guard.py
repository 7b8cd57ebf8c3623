"""Steps whose loss or gradient is not finite leave no trace in the weights, are counted, and end
the run when there are too many.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.optimizers import optimizer_of
from run_helpers import assert_bit_equal, logged, weights
from test_update import as_step, decoder, global_batches, make_update, scaler_of

from forge.config.checkpoint import Checkpoint
from forge.config.metrics import Metrics
from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.config.optimizers.adam import AdamW as AdamWConfig
from forge.config.train import Train
from forge.objectives.pretrain import Pretrain
from forge.training.callbacks.every_step import BadSteps
from forge.training.loop import TrainState


class Poisoned(Pretrain):
    """The usual objective, but at the chosen calls its loss, or its gradient, is not finite."""

    def __init__(self, *, loss=(), gradient=(), value: float = math.nan):
        super().__init__(PretrainConfig())
        self.loss, self.gradient, self.value, self.calls = loss, gradient, value, 0

    def __call__(self, model, batch):
        losses, call = super().__call__(model, batch), self.calls
        self.calls += 1
        if call in self.gradient:
            losses.total.register_hook(lambda gradient: gradient * self.value)
        total = losses.total + self.value if call in self.loss else losses.total
        return SimpleNamespace(total=total, sums=losses.sums)


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{index}/{key}": value.clone()
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("on_device", [False, True], ids=["host", "found_inf"])
def test_a_skipped_update_equals_a_plain_loop_that_leaves_it_out(on_device, where, value):
    """Weight decay and moments too, when one of several micro-batches is bad; the learning rate
    continues with the number of the step.
    """
    data, section = global_batches(masked=False), AdamWConfig(lr=0.01, weight_decay=0.1, fused=True)
    options = {"clip": 1.0, "schedule": lambda number: 1.0 / (1 + number)}
    reference, model = decoder(torch.float32), decoder(torch.float32)
    by_hand, optimizer = optimizer_of(section, reference), optimizer_of(section, model)
    plain = make_update(reference, by_hand, **options)
    for number in (0, 2, 3):
        plain(as_step(*data[number], 2), number)
    assert optimizer._step_supports_amp_scaling
    # Two micro-batches a step: the fourth call is the second half of step 1.
    poisoned = Poisoned(**{where: (3,)}, value=value)
    update = make_update(model, optimizer, **options, objective=poisoned)
    assert not update.skips_on_device
    update.skips_on_device = on_device
    for number, pair in enumerate(data):
        before = weights(model), state_of(optimizer)
        output = update(as_step(*pair, 2), number)
        assert bool(output.skipped) is (number == 1)
        assert all(p.grad is None for p in model.parameters())
        if number == 1:
            assert_bit_equal(weights(model), before[0])
            assert_bit_equal(state_of(optimizer), before[1])
            assert math.isfinite(output.loss) is (where == "gradient")
    assert_bit_equal(weights(model), weights(reference))
    assert_bit_equal(state_of(optimizer), state_of(by_hand))
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize("fused", [True, False])
def test_in_fp16_an_overflow_counts_only_when_no_smaller_scale_is_left(fused):
    skipped, scales, scaler = [], [], scaler_of("fp16", init_loss_scale=2.0)
    model = decoder(torch.float32)
    optimizer = optimizer_of(AdamWConfig(lr=0.01, fused=fused), model)
    poisoned = Poisoned(gradient=(0, 1, 2), loss=(3,))
    update = make_update(model, optimizer, objective=poisoned, scaler=scaler)
    before = weights(model)
    for number, pair in enumerate(global_batches(masked=False)):
        skipped.append(bool(update(as_step(*pair, 1), number).skipped))
        scales.append(scaler.get_scale())
    assert skipped == [False, False, True, True]  # at the scales 2, 1, 1/2; a loss counts at any
    assert scales == [1.0, 0.5, 0.25, 0.25]  # the scaler does not see that the last loss was bad
    assert_bit_equal(weights(model), before)


def test_a_norm_that_overflows_is_no_gradient_to_step_with():
    """All gradients are finite, but their norm is not: clipping by the norm would set them to 0,
    and weight decay would act.
    """
    model = decoder(torch.float32)
    optimizer = optimizer_of(AdamWConfig(lr=0.01, fused=False), model)
    poisoned = Poisoned(gradient=(0,), value=3e38)
    update = make_update(model, optimizer, clip=1.0, objective=poisoned)
    before = weights(model)
    output = update(as_step(*global_batches(masked=False)[0], 1), 0)
    assert (bool(output.skipped), output.grad_norm.item()) == (True, math.inf)
    assert_bit_equal(weights(model), before)


@pytest.mark.parametrize(("bad", "reason"), [([True], "bad_steps"), ([False, True, True], None)])
def test_what_goes_on_has_no_further_patience_until_a_good_step(bad, reason, tmp_path):
    """Else the same command again and again would take a run that has diverged to its end."""
    sections = {"train": Train(max_bad_steps=3), "metrics": Metrics(), "checkpoint": Checkpoint()}
    config, device = SimpleNamespace(**sections), torch.device("cpu")
    session: Any = SimpleNamespace(config=config, run_dir=tmp_path, device=device)
    loop: Any = SimpleNamespace(
        state=TrainState(), loader=SimpleNamespace(range_of_last=lambda steps: (0, 8))
    )
    loop.end = lambda reason, fault: setattr(loop, "reason", reason)
    for steps in ([True, True, True], bad):
        loop.reason = None
        guard = BadSteps(session)
        for one in steps:
            loop.state.step += 1
            values = {"skipped": torch.tensor(one), "loss": torch.tensor(1.0), "judged": None}
            values["n_targets"] = 1
            output = SimpleNamespace(**values)
            guard.on_step_end(loop, output)
    assert loop.reason == reason


@pytest.mark.nightly
def test_skipped_steps_are_left_out_of_the_loss_and_data_and_schedule_go_on(assembled):
    # With no learning rate to speak of each step's loss is that of its data, whichever updates are
    # made.
    options = "train.max_steps=6 optimizer.lr=1e-30 optimizer.weight_decay=0"
    whole, holed = assembled(options), assembled(options, "metrics.log_interval=2")
    holed.update.backward.objective = Poisoned(loss=(1, 4, 5))
    for loop in (whole, holed):
        loop.run()
    losses, run = logged(whole.run_dir, "train/loss"), holed.run_dir
    mean = pytest.approx((losses[3] + losses[4]) / 2, rel=1e-12)
    assert logged(run, "train/loss") == {2: losses[1], 4: mean, 6: None}
    assert logged(run, "skipped_steps") == {2: 1, 4: 1, 6: 3}
    rates = logged(whole.run_dir, "lr")
    assert logged(run, "lr") == {step: rates[step] for step in (2, 4, 6)}
    assert logged(run, "tokens") == {step: step * 64 for step in (2, 4, 6)}
