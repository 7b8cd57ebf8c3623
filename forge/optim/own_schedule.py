"""The schedule of a run as `factor(step)`: forge's own, or from the user's `_target_`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from forge.build import bind, build, locate, target_parameters
from forge.config.optimizers.schedules import Scheduler
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.config.targets.own import STEPS, TARGET, Own

Schedule = Callable[[int], float]
PATH = "scheduler"


def build_schedule(section: Scheduler, config: Config) -> Schedule:
    """Build the factor of the peak learning rate at each update, the first being step 0.

    Raises ConfigError for a target that gives no function of the step.
    """
    trust = config.run.trust
    if not isinstance(section, Own):
        return build(section, path=PATH, trust=trust)
    # A schedule of torch acts on an optimizer. On this dummy optimizer the schedule is a function
    # of the step, computed again by a resumed run, without saved state.
    lr = config.optimizer.peak(width(config))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    offered: dict[str, Any] = {"optimizer": optimizer, "step": 0} | steps_of(config)
    make = bind(section, path=PATH, trust=trust, offered=offered)
    if "step" in target_parameters(locate(section._target_, path=PATH, trust=trust)):
        return _checked(section, lambda step: make(step=step))
    try:
        schedule = make()
    except Exception as error:  # from the user's code, or from torch about wrong arguments
        raise _refusal(section, f"it fails: {type(error).__name__}: {error}") from error
    if not isinstance(schedule, LRScheduler):
        return _checked(section, schedule)
    if isinstance(schedule, ReduceLROnPlateau):
        message = "it follows a metric, and a schedule of forge is a function of the step alone"
        raise _refusal(section, message, "another schedule")
    return _checked(section, TorchSchedule(section, schedule, optimizer))


def steps_of(config: Config) -> dict[str, int]:
    """Arguments offered to a target with a parameter for the number of updates in the run."""
    return dict.fromkeys(STEPS, config.train.max_steps)


def width(config: Config) -> int | None:
    """Width of the model, if known."""
    return config.model.known_dim


class TorchSchedule:
    """The factors of a schedule of torch, computed by running the schedule, and cached."""

    def __init__(self, section: Own, scheduler: LRScheduler, optimizer: torch.optim.SGD) -> None:
        self.section, self.scheduler, self.optimizer = section, scheduler, optimizer
        (group,) = optimizer.param_groups
        self.peak, self.group = optimizer.defaults["lr"], group
        if group["momentum"]:
            message = "it changes the momentum too, and a schedule of forge only the learning rate"
            raise _refusal(section, message, f"{PATH}.cycle_momentum=false")
        self.factors = [float(group["lr"]) / self.peak]

    def __call__(self, step: int) -> float:
        while len(self.factors) <= step:
            self.optimizer.step()
            try:
                self.scheduler.step()
            except Exception as error:
                failure = f"at step {len(self.factors)}: {type(error).__name__}: {error}"
                raise _refusal(self.section, f"it fails {failure}") from error
            self.factors.append(float(self.group["lr"]) / self.peak)
        return self.factors[step]


def _checked(section: Own, schedule: Any) -> Schedule:
    """Check that a schedule gives a number for the first update."""
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
