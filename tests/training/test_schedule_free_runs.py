"""A run of schedule-free AdamW reads the mean of its weights: evaluations, samples, checkpoints and
what is loaded for generation and export (KempnerForge, defects 10 and 13).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from run_helpers import assert_bit_equal, step_of, stored

from forge.training.callback import Callback
from forge.training.checkpoints.restore import load_run

OPTIONS = (
    "optimizer=schedule_free_adamw optimizer.lr=0.02 optimizer.weight_decay=0.1 "
    "optimizer.betas=[0.8,0.95] optimizer.schedule_free_warmup_steps=3 scheduler=constant "
    "scheduler.warmup_steps=0 train.grad_clip_norm=0 train.max_steps=6 "
    "eval.enabled=true eval.interval=3 eval.steps=1 "
    "eval.sample_prompts=[the] eval.sample_tokens=2 checkpoint.interval=3 checkpoint.keep_last_n=0"
)


class Recorder(Callback):
    """The weights at which gradients are taken, and those gradients, of each step."""

    def __init__(self) -> None:
        self.weights: list[dict[str, np.ndarray]] = []
        self.gradients: list[dict[str, np.ndarray]] = []

    def on_gradients(self, loop: Any) -> None:
        named = list(loop.model.named_parameters())
        self.weights.append({name: array(p) for name, p in named})
        self.gradients.append({name: array(p.grad) for name, p in named})


def array(values: torch.Tensor) -> np.ndarray:
    return values.detach().double().numpy().copy()


def means(recorder: Recorder, decays: dict[str, float]) -> dict[int, dict[str, np.ndarray]]:
    """x of algorithm 1 of arXiv:2405.15682 after each step, from the gradients of the run."""
    beta1, beta2, eps, found = 0.8, 0.95, 1e-8, {}
    x = y = z = recorder.weights[0]
    v, total = dict.fromkeys(z, 0.0), 0.0
    for t, gradients in enumerate(recorder.gradients, start=1):
        rate = 0.02 * min(1, t / 3) * np.sqrt(1 - beta2**t)
        total += rate**2
        c = rate**2 / total
        v = {name: beta2 * v[name] + (1 - beta2) * g**2 for name, g in gradients.items()}
        steps = {
            name: g / (np.sqrt(v[name]) + eps) + decays[name] * y[name]
            for name, g in gradients.items()
        }
        z = {name: z[name] - rate * step for name, step in steps.items()}
        x = {name: (1 - c) * x[name] + c * z[name] for name in z}
        y = {name: (1 - beta1) * z[name] + beta1 * x[name] for name in z}
        found[t] = x
    return found


def test_the_mean_is_evaluated_sampled_from_saved_and_loaded(assembled):
    loop, recorder, read = assembled(OPTIONS), Recorder(), []
    loop.callbacks.append(recorder)
    parameters = dict(loop.model.named_parameters())

    def note(*_: Any) -> None:
        if not loop.model.training:
            read.append((loop.state.step, {name: p.clone() for name, p in parameters.items()}))

    hook = loop.model.norm.register_forward_hook(note)
    loop.run()
    hook.remove()
    groups = loop.optimizer.param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    expected = means(recorder, {name: decays[id(p)] for name, p in parameters.items()})
    assert {step for step, _ in read} == {3, 6}
    assert len(read) > 2, "of samples too"
    for step, weights in read:
        assert_bit_equal(weights, stored(step_of(loop.run_dir, step), "model/"))
        for name, mean in expected[step].items():
            np.testing.assert_allclose(array(weights[name]), mean, rtol=2e-4, atol=2e-5)
    loaded = dict(load_run(loop.run_dir).model.named_parameters())
    assert_bit_equal(loaded, stored(step_of(loop.run_dir, 6), "model/"))
    trained = {name: array(p) for name, p in parameters.items()}
    far = max(np.abs(trained[name] - expected[6][name]).max() for name in trained)
    assert far > 1e-3, "what is trained is not what is read"
    plain = assembled(OPTIONS, "eval.enabled=false checkpoint.enabled=false")
    plain.run()
    assert_bit_equal(dict(plain.model.named_parameters()), parameters)


@pytest.mark.nightly
def test_a_fresh_process_takes_the_state_without_a_step_of_its_own(assembled):
    """An optimizer that has no state yet, and whose sum of squared rates is 0."""
    whole = assembled(OPTIONS)
    whole.run()
    source = step_of(whole.run_dir, 3)
    resumed = assembled(OPTIONS, f"checkpoint.resume_from={source}")
    y = {f"{name}/y": p for name, p in resumed.model.named_parameters()}
    kept = stored(source, "optimizer/")
    assert_bit_equal({name: p.detach() for name, p in y.items()}, {name: kept[name] for name in y})
    resumed.run()
    assert_bit_equal(stored(step_of(resumed.run_dir, 6)), stored(step_of(whole.run_dir, 6)))
