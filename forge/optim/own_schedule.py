"""The schedule of a run: forge's own, or what the user's `_target_` gives, as `factor(step)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from forge.build import bind, build, locate, parameters_of
from forge.config.optimizers.schedules import Scheduler
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.config.targets.own import STEPS, TARGET, Own

Schedule = Callable[[int], float]
PATH = "scheduler"


def build_schedule(section: Scheduler, config: Config) -> Schedule:
    """The factor of the peak learning rate at each update, the first being step 0.

    Raises ConfigError for what gives no function of the step.
    """
    trust = config.run.trust
    if not isinstance(section, Own):
        return build(section, path=PATH, trust=trust)
    # A schedule of torch acts on an optimizer. Beside this one it is a function of the step, which
    # a run that goes on computes again, and needs no state.
    lr = config.optimizer.peak(width(config))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    given: dict[str, Any] = {"optimizer": optimizer, "step": 0} | steps_of(config)
    make = bind(section, path=PATH, trust=trust, offered=given)
    if "step" in parameters_of(locate(section._target_, path=PATH, trust=trust)):
        return _checked(section, lambda step: make(step=step))
    try:
        made = make()
    except Exception as error:  # of the user's, or of torch about what it was given
        raise _refusal(section, f"it fails: {type(error).__name__}: {error}") from error
    if not isinstance(made, LRScheduler):
        return _checked(section, made)
    if isinstance(made, ReduceLROnPlateau):
        what = "it follows a metric, and a schedule of forge is a function of the step alone"
        raise _refusal(section, what, "another schedule")
    return _checked(section, OfTorch(section, made, optimizer))


def steps_of(config: Config) -> dict[str, int]:
    """What is offered to a target that asks for the number of updates in the run."""
    return dict.fromkeys(STEPS, config.train.max_steps)


def width(config: Config) -> int | None:
    """Width of the model, where it is known."""
    return config.model.known_dim


class OfTorch:
    """The factors of a schedule of torch, which are found by running it, and kept."""

    def __init__(self, section: Own, scheduler: LRScheduler, optimizer: torch.optim.SGD) -> None:
        self.section, self.scheduler, self.optimizer = section, scheduler, optimizer
        (group,) = optimizer.param_groups
        self.peak, self.group = optimizer.defaults["lr"], group
        if group["momentum"]:
            what = "it changes the momentum too, and a schedule of forge only the learning rate"
            raise _refusal(section, what, f"{PATH}.cycle_momentum=false")
        self.factors = [float(group["lr"]) / self.peak]

    def __call__(self, step: int) -> float:
        while len(self.factors) <= step:
            self.optimizer.step()
            try:
                self.scheduler.step()
            except Exception as error:
                at = f"at step {len(self.factors)}: {type(error).__name__}: {error}"
                raise _refusal(self.section, f"it fails {at}") from error
            self.factors.append(float(self.group["lr"]) / self.peak)
        return self.factors[step]


def _checked(section: Own, schedule: Any) -> Schedule:
    """A schedule that gives a number for the first update."""
    if not callable(schedule):
        kind = type(schedule).__name__
        raise _refusal(section, f"it gives a {kind}, and no function of the step")
    function: Any = schedule
    try:
        first = float(function(0))
    except ConfigError:
        raise
    except Exception as error:
        raise _refusal(section, f"it fails at step 0: {type(error).__name__}: {error}") from error
    if not math.isfinite(first) or first < 0:
        raise _refusal(section, f"its factor of the learning rate at step 0 is {first}")
    return function


def _refusal(section: Own, what: str, fix: str = "") -> ConfigError:
    key = f"{PATH}.{TARGET}={getattr(section, TARGET)}"
    fix = fix or "let it be, or give, a function of the step: 1 = the peak learning rate"
    return ConfigError([Problem(key, f"{what}.", fix, rule="target")])
