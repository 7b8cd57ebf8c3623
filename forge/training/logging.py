"""Training metrics, every log_interval steps."""

from __future__ import annotations

import logging
import math
import resource
import sys
from collections.abc import Callable

import torch

from forge.training.callback import Callback
from forge.training.flops import mfu
from forge.training.loop import Loop
from forge.training.step import StepOutput
from forge.training.trackers import Trackers

log = logging.getLogger(__name__)


class Logger(Callback):
    """Gathers the steps since the last log and hands their metrics to the trackers.

    train/loss and the other train sums are means over all target tokens of those steps; train/grad_norm
    (before clipping) and lr are those of the last of them; tokens_per_second and step_seconds leave out
    evaluation and checkpoints. The only wait for the device is at a log.
    """

    def __init__(
        self,
        open_trackers: Callable[[], Trackers],
        *,
        interval: int,
        device: torch.device,
        flops_per_token: int | None,
        peak: float | None,
    ) -> None:
        """open_trackers is called when the run starts, so that nothing before it finds the terminal taken."""
        self.open_trackers, self.trackers = open_trackers, Trackers()
        self.interval, self.device, self.flops_per_token, self.peak = interval, device, flops_per_token, peak
        self.steps: list[StepOutput] = []
        self.since = 0.0
        self.warned = False
        self.rates: list[tuple[int, float]] = []

    def on_start(self, loop: Loop) -> None:
        self.trackers = self.open_trackers()
        self.since = loop.training_seconds()

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self.steps.append(output)
        if loop.state.step % self.interval == 0:
            self.log(loop)

    def on_end(self, loop: Loop) -> None:
        if self.steps:
            self.log(loop)

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        self.trackers.log(loop.state.step, {f"eval/{name}": value for name, value in metrics.items()})

    def close(self) -> None:
        self.trackers.close()

    def log(self, loop: Loop) -> None:
        """Log the steps gathered so far and begin anew."""
        targets = sum(step.n_targets for step in self.steps)
        names = self.steps[-1].sums
        values = {_name(name): sum(step.sums[name].item() for step in self.steps) / max(targets, 1) for name in names}
        values["train/grad_norm"] = self.steps[-1].grad_norm.item()
        values["lr"] = self.steps[-1].lr
        seconds = loop.training_seconds() - self.since
        rate = targets / seconds
        self.rates.append((targets, seconds))
        values |= {"tokens": loop.state.tokens, "tokens_per_second": rate, "step_seconds": seconds / len(self.steps)}
        share = mfu(rate, self.flops_per_token, self.peak, 1) if self.flops_per_token and self.peak else None
        if share is not None:
            values["mfu"] = share
        values["memory_gib"] = peak_memory(self.device) / 2**30
        self._warn_once(loop.state.step, values)
        self.steps.clear()
        self.trackers.log(loop.state.step, values)
        self.since = loop.training_seconds()

    def _warn_once(self, step: int, values: dict[str, float]) -> None:
        wrong = [name for name in ("train/loss", "train/grad_norm") if not math.isfinite(values.get(name, 0.0))]
        if wrong and not self.warned:
            self.warned = True
            log.warning("%s is not finite at step %d; a lower optimizer.lr may help, and debug=anomaly names the operation", wrong[0], step)

    def mean_rate(self) -> float:
        """Target tokens a second over all logs but the first, which holds the warm-up of caches and kernels."""
        counted = self.rates[1:] or self.rates
        return sum(t for t, _ in counted) / sum(s for _, s in counted) if counted else 0.0


def peak_memory(device: torch.device) -> int:
    """Most bytes allocated on the GPU, or resident in the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _name(sum_name: str) -> str:
    return "train/loss" if sum_name == "ce" else f"train/{sum_name}"
